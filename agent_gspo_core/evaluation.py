"""Measure a team on problems: accuracy, cost three ways, efficiency, silence."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from agent_gspo_core.episode import Episode, Problem
from agent_gspo_core.policy import Policy
from agent_gspo_core.rollout import AnswerReader, SamplingSettings, Team, sample_episodes
from agent_gspo_core.scoring import read_answer
from agent_gspo_core.silence import communication_efficiency, effective_efficiency, silence_report


@dataclass(frozen=True)
class TeamScore:
    """Means over episodes; `None` where nothing could be measured."""

    episodes: int
    accuracy: float | None
    """Share of scorable episodes that are right."""
    tokens: float
    """Completion tokens said per episode, decider included."""
    prompt_tokens: float
    """Tokens read per episode."""
    forward_flops: float
    """Forward FLOPs per episode."""
    turns: float
    """Messages per episode that were not silent."""
    unparsed: float
    """Share of episodes without a readable answer."""
    truncated: float
    """Share of messages cut at a cap."""
    silence_rate: float | None
    """Share of discussion messages that were silent."""
    silence_right: float | None
    """Share of (episode, agent) that spoke when needed and were silent when not."""
    communication_efficiency: float | None
    """Σ least tokens ÷ Σ tokens used."""
    effective_efficiency: float | None
    """Mean of correct · min(1, least ÷ used)."""
    seconds: float = 0.0
    """Wall time of the whole evaluation."""

    def as_dict(self) -> dict[str, float | int | None]:
        """Plain values for a record."""
        return asdict(self)


def score_episodes(episodes: Sequence[Episode], *, decider: int | None, seconds: float = 0.0) -> TeamScore:
    """Sum up sampled episodes. `decider` is the decider's agent index (see `Team.decider`)."""
    if not episodes:
        raise ValueError("evaluation: no episodes to score")
    scored = [episode.correct for episode in episodes if episode.correct is not None]
    messages = [message for episode in episodes for message in episode.messages]
    silence = silence_report(episodes, decider=decider)

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    return TeamScore(
        episodes=len(episodes),
        accuracy=mean([float(c) for c in scored]) if scored else None,
        tokens=mean([e.tokens for e in episodes]),
        prompt_tokens=mean([e.prompt_tokens for e in episodes]),
        forward_flops=mean([e.forward_flops for e in episodes]),
        turns=mean([e.turns for e in episodes]),
        unparsed=mean([float(e.prediction is None) for e in episodes]),
        truncated=mean([float(m.truncated) for m in messages]),
        silence_rate=silence.rate,
        silence_right=silence.silence_right,
        communication_efficiency=communication_efficiency(episodes),
        effective_efficiency=effective_efficiency(episodes),
        seconds=seconds,
    )


def evaluate_team(
    policy: Policy,
    team: Team,
    problems: Sequence[Problem],
    *,
    members: int = 1,
    sampling: SamplingSettings | None = None,
    read: AnswerReader = read_answer,
) -> tuple[TeamScore, list[Episode]]:
    """Talk every problem through `members` times and score what came out.

    The default sampling is the policy as it is trained (temperature 1); pass `SamplingSettings(temperature=0)` for
    greedy decoding. Errors as in `rollout.sample_episodes`.
    """
    started = time.monotonic()
    episodes = sample_episodes(policy, team, problems, members=members, settings=sampling, read=read)
    return score_episodes(episodes, decider=team.decider, seconds=time.monotonic() - started), episodes
