"""Measure a team on problems: accuracy, cost three ways, efficiency, silence.

`evaluate_team` sums up, for training and its curves. `evaluate_items` keeps a record of every problem, from which
everything else is computed; benchmarks are measured with it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from agent_gspo_core.episode import CodeTests, Episode, Problem
from agent_gspo_core.methods import Method
from agent_gspo_core.policy import Policy
from agent_gspo_core.rollout import (
    AnswerReader,
    SamplingSettings,
    Team,
    answering_messages,
    derive_seed,
    sample_episodes,
    vote,
)
from agent_gspo_core.scoring import is_correct, read_answer
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


CodeRunner = Callable[[Sequence[tuple[str, CodeTests]]], Sequence[bool]]
"""Runs solutions against their tests, in order: whether each passed. Nothing is run unless one is given."""


@dataclass(frozen=True)
class ItemRecord:
    """One problem, answered once by one method."""

    item: str
    """The problem's id."""
    family: str
    member: int
    """Which of several answers to the same problem."""
    gold: str
    prediction: str | None
    """Read leniently and, where a method draws several samples or its agents vote, voted on; `None` = unparsed."""
    correct: bool | None
    """`None` = not scored (code that nobody asked to run)."""
    strict_prediction: str | None
    """Read in the agreed form only."""
    strict_correct: bool | None
    truncated: bool
    """Whether an answering message was cut at its cap."""
    tokens: int
    """Completion tokens said, all samples and agents."""
    prompt_tokens: int
    """Tokens read."""
    forward_flops: float
    messages: int
    silent: int
    """Silent messages."""
    reply: str
    """The first answering message."""
    transcript: str
    """Everything that was said: JSON, a list of samples, each a list of {"role", "round", "tokens", "text"}."""


def evaluate_items(
    policy: Policy,
    method: Method,
    problems: Sequence[Problem],
    *,
    members: int = 1,
    seed: int = 0,
    temperature: float = 0.0,
    run_code: CodeRunner | None = None,
    batch_rows: int = 256,
) -> list[ItemRecord]:
    """Answer every problem `members` times with one method; records in the order of problems, then members.

    Args:
        policy: speaks for everybody.
        method: see `methods.METHODS`; its own temperature, if it prescribes one, goes before `temperature`.
        problems: what is asked.
        members: answers per problem.
        seed: every reply's own seed is derived from it (and from problem, member, agent and round).
        temperature: 0 decodes greedily.
        run_code: runs answers of kind "code"; without it they stay unscored.
        batch_rows: most rows decoded at once.

    Errors as in `rollout.sample_episodes`.
    """
    team = Team(method.team)
    chosen = temperature if method.temperature is None else method.temperature
    sampling = SamplingSettings(seed=derive_seed(seed, "items"), temperature=chosen, batch_rows=batch_rows)
    episodes = sample_episodes(policy, team, problems, members=members * method.samples, settings=sampling)
    records = [
        _record(team, episodes[start : start + method.samples], start // method.samples % members)
        for start in range(0, len(episodes), method.samples)
    ]
    return records if run_code is None else _with_code_run(records, problems, run_code)


def _record(team: Team, episodes: Sequence[Episode], member: int) -> ItemRecord:
    problem = episodes[0].problem
    answers = [m for episode in episodes for m in answering_messages(team, episode.messages)]
    lenient = vote(read_answer(m.text, problem) for m in answers)
    strict = vote(read_answer(m.text, problem, strict=True) for m in answers)
    said = [m for episode in episodes for m in episode.messages]
    return ItemRecord(
        item=problem.id,
        family=problem.family,
        member=member,
        gold=problem.answer,
        prediction=lenient,
        correct=is_correct(lenient, problem),
        strict_prediction=strict,
        strict_correct=is_correct(strict, problem),
        truncated=any(m.truncated for m in answers),
        tokens=sum(e.tokens for e in episodes),
        prompt_tokens=sum(e.prompt_tokens for e in episodes),
        forward_flops=math.fsum(e.forward_flops for e in episodes),
        messages=len(said),
        silent=sum(m.silent for m in said),
        reply=answers[0].text,
        transcript=json.dumps(
            [
                [{"role": m.role, "round": m.round, "tokens": m.tokens, "text": m.text} for m in episode.messages]
                for episode in episodes
            ],
            ensure_ascii=False,
        ),
    )


def _with_code_run(
    records: Sequence[ItemRecord], problems: Sequence[Problem], run_code: CodeRunner
) -> list[ItemRecord]:
    """The records with answers of kind "code" run, every program once."""
    tests = {problem.id: problem.tests for problem in problems}
    wanted: dict[tuple[str, CodeTests], bool] = {}
    for record in records:
        for program in (record.prediction, record.strict_prediction):
            suite = tests[record.item]
            if suite is not None and program is not None:
                wanted[program, suite] = False
    if not wanted:
        return list(records)
    passed = dict(zip(wanted, run_code(list(wanted)), strict=True))

    def outcome(program: str | None, suite: CodeTests | None, scored: bool | None) -> bool | None:
        return scored if suite is None or program is None else passed[program, suite]

    return [
        replace(
            record,
            correct=outcome(record.prediction, tests[record.item], record.correct),
            strict_correct=outcome(record.strict_prediction, tests[record.item], record.strict_correct),
        )
        for record in records
    ]
