"""Counterfactual replay: what silence was worth, or talk, by telling episodes again with some messages changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from agent_gspo_core.episode import Episode, Message
from agent_gspo_core.policy import Policy
from agent_gspo_core.rollout import AnswerReader, SamplingSettings, Team, resample_episodes
from agent_gspo_core.scoring import read_answer
from agent_gspo_core.statistics import Interval, item_means, paired_difference

Choice = Callable[[Episode, Message], bool]
"""Whether a message of an episode is meant."""


def of_needed(episode: Episode, message: Message) -> bool:
    """A message of an agent whose note the question needs. ValueError where need is not known."""
    return message.agent in _needed(episode)


def of_not_needed(episode: Episode, message: Message) -> bool:
    """A message of an agent whose note the question does not need. ValueError where need is not known."""
    return message.agent not in _needed(episode)


def of_anybody(episode: Episode, message: Message) -> bool:
    """Any message."""
    return True


@dataclass(frozen=True)
class Replay:
    """Episodes as they were and as they would have been, side by side."""

    recorded: tuple[Episode, ...]
    """As given."""
    told: tuple[Episode, ...]
    """The same episodes with the chosen messages restored or muted."""
    meant: int
    """Messages that were chosen and could be changed: silent ones to restore, spoken ones to mute."""
    changed: int
    """Of these, messages that were: a restored agent may pass in every draw (see `rollout.resample_episodes`)."""
    accuracy: Interval | None
    """Mean of (told − recorded) correctness over problems, in [−1, 1], with a 95 % interval that resamples problems.
    `None` when no problem has an episode that was changed and could be scored both times."""
    tokens: Interval | None
    """The same of completion tokens per episode."""
    problems: int
    """Problems behind both. Only episodes in which something changed count: the others differ by 0 for certain."""


def replay(
    policy: Policy,
    team: Team,
    episodes: Sequence[Episode],
    *,
    restore: Choice | None = None,
    mute: Choice | None = None,
    settings: SamplingSettings | None = None,
    read: AnswerReader = read_answer,
) -> Replay:
    """What silence was worth, or talk: tell episodes again with some messages changed. Source: ours.

    `restore` makes silent agents speak (sampled with silence masked), `mute` takes spoken messages back; give one of
    the two. Whoever then reads something else speaks anew, with the seed that it had; everything else is held fixed,
    so the difference is what those messages did. Restoring answers "what did silence cost?": a difference near 0 says
    that silence was free. Muting answers "what was the talk worth?". Answering messages are never changed.

    Args:
        policy: who spoke.
        team: the team of the episodes.
        episodes: as sampled.
        restore: silent messages to restore, e.g. `of_needed`.
        mute: spoken messages to mute, e.g. `of_not_needed`.
        settings: those that the episodes were sampled with.
        read: reads answers.

    Raises:
        ValueError: both or neither of `restore` and `mute`; no episodes; as in `rollout.resample_episodes`.
    """
    if (restore is None) == (mute is None):
        raise ValueError("replay: give either restore=… (silent agents speak) or mute=… (spoken messages fall silent)")
    if not episodes:
        raise ValueError("replay: no episodes given; sample some first")
    wanted_silent = restore is not None
    chosen = restore if restore is not None else mute
    assert chosen is not None
    answering = {turn.round for turn in team.turns if team.answering(turn)}

    def meant(episode: Episode, message: Message) -> bool:
        return message.round not in answering and message.silent == wanted_silent and chosen(episode, message)

    def change(episode: Episode, message: Message) -> Literal["mute", "speak"] | None:
        if not meant(episode, message):
            return None
        return "speak" if wanted_silent else "mute"

    told = resample_episodes(policy, team, episodes, change, settings=settings, read=read)
    places = [[m for m, message in enumerate(episode.messages) if meant(episode, message)] for episode in episodes]
    changed = [sum(new.messages[m].silent != wanted_silent for m in at) for new, at in zip(told, places, strict=True)]
    pairs = [(old, new) for old, new, times in zip(episodes, told, changed, strict=True) if times]
    scored = [(old, new) for old, new in pairs if old.correct is not None and new.correct is not None]
    return Replay(
        recorded=tuple(episodes),
        told=tuple(told),
        meant=sum(map(len, places)),
        changed=sum(changed),
        accuracy=_mean_change([(old.problem.id, float(bool(new.correct)) - bool(old.correct)) for old, new in scored]),
        tokens=_mean_change([(old.problem.id, float(new.tokens - old.tokens)) for old, new in scored]),
        problems=len({old.problem.id for old, _ in scored}),
    )


def _mean_change(changes: Sequence[tuple[str, float]]) -> Interval | None:
    """Mean change over problems; several episodes of one problem are one unit."""
    if not changes:
        return None
    by_problem: dict[str, list[float]] = {}
    for problem, change in changes:
        by_problem.setdefault(problem, []).append(change)
    means = item_means(by_problem)
    if len(means) == 1:
        return Interval(next(iter(means.values())), None, None, 1)
    return paired_difference(means, dict.fromkeys(means, 0.0))


def _needed(episode: Episode) -> frozenset[int]:
    if episode.problem.needed is None:
        raise ValueError(
            f"problem {episode.problem.id!r} does not know whose notes it needs; choose messages by another rule, "
            "e.g. of_anybody"
        )
    return episode.problem.needed
