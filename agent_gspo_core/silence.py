"""Silence: when it is right, what talk costs beside the least that suffices, and the alarm for harmful silence.

Silence is strategic when those who are not needed keep it. It is a collapse when those who are needed keep it too:
then it spreads while accuracy falls. Everything here only looks at episodes; nothing is learned from it. What
silence is worth is found by telling episodes again: see `replay`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agent_gspo_core.episode import Episode, Message


@dataclass(frozen=True)
class SilenceReport:
    """How silence was used. Shares lie in [0, 1]; `None` where there was nothing to count, never NaN.

    Shares named `rate…` are over messages. The judgement against need is over *agents in episodes*: an agent counts as
    silent when it said nothing in any round, and as speaking when it spoke at least once, since one message suffices to
    pass a note on. Only episodes that know who is needed are judged.
    """

    rate: float | None
    """Share of the discussion agents' messages that are silent."""
    rate_decider: float | None
    """The same of the decider, which is in no other figure."""
    rate_by_correctness: dict[str, float]
    """By outcome of the episode: "correct", "wrong", "unscorable"; outcomes that did not occur are absent."""
    rate_by_role: dict[str, float]
    """By role, without the decider's."""
    rate_by_round: dict[int, float]
    """By discussion round, counted from 0."""
    needed_silent: float | None
    """Share of needed agents that were silent: harmful silence."""
    not_needed_silent: float | None
    """Share of agents not needed that were silent: strategic silence. It is also the recall of silence."""
    precision: float | None
    """Share of silent agents that were not needed."""
    silence_right: float | None
    """Share of agents that were silent when not needed or spoke when needed."""
    judged: int
    """Agents in episodes that the judgement covers."""

    @property
    def recall(self) -> float | None:
        """Share of agents not needed that kept silent; another name for `not_needed_silent`."""
        return self.not_needed_silent


def silence_report(episodes: Iterable[Episode], *, decider: int | None) -> SilenceReport:
    """Count silence over episodes. Source: ours.

    `decider` is the decider's agent index, `None` for a team that votes.
    """
    talk: list[tuple[Episode, Message]] = []
    decisions: list[Message] = []
    pairs: list[tuple[bool, bool]] = []  # (silent, needed) of each agent in each episode that knows need
    for episode in episodes:
        spoke: dict[int, bool] = {}
        for message in episode.messages:
            if message.agent == decider:
                decisions.append(message)
                continue
            talk.append((episode, message))
            spoke[message.agent] = spoke.get(message.agent, False) or not message.silent
        if episode.problem.needed is not None:
            pairs.extend((not said, agent in episode.problem.needed) for agent, said in spoke.items())

    by_correctness: dict[str, list[bool]] = {}
    by_role: dict[str, list[bool]] = {}
    by_round: dict[int, list[bool]] = {}
    for episode, message in talk:
        by_correctness.setdefault(_outcome(episode), []).append(message.silent)
        by_role.setdefault(message.role, []).append(message.silent)
        by_round.setdefault(message.round, []).append(message.silent)
    return SilenceReport(
        rate=_share([message.silent for _, message in talk]),
        rate_decider=_share([message.silent for message in decisions]),
        rate_by_correctness={key: sum(values) / len(values) for key, values in sorted(by_correctness.items())},
        rate_by_role={key: sum(values) / len(values) for key, values in sorted(by_role.items())},
        rate_by_round={key: sum(values) / len(values) for key, values in sorted(by_round.items())},
        needed_silent=_share([silent for silent, needed in pairs if needed]),
        not_needed_silent=_share([silent for silent, needed in pairs if not needed]),
        precision=_share([not needed for silent, needed in pairs if silent]),
        silence_right=_share([silent != needed for silent, needed in pairs]),
        judged=len(pairs),
    )


def communication_efficiency(episodes: Iterable[Episode]) -> float | None:
    """Σ least tokens ÷ Σ tokens used, over episodes whose least is known; `None` when there are none. Source: ours.

    A ratio of sums, so that a few tiny episodes do not carry it. It looks at length only: a team that says less than
    suffices, and answers wrongly, rises above 1. Read it beside accuracy, or take `effective_efficiency`.
    """
    known = _measurable(episodes)
    return sum(least for _, least in known) / sum(episode.tokens for episode, _ in known) if known else None


def effective_efficiency(episodes: Iterable[Episode]) -> float | None:
    """Mean of correct · min(1, least tokens ÷ tokens used), in [0, 1]; `None` when nothing can be measured.

    Source: ours. A wrong episode earns 0 however brief it was, so silence that breaks the answer cannot raise this
    figure. Episodes whose least is not known, or that could not be scored, are left out.
    """
    known = [(episode, least) for episode, least in _measurable(episodes) if episode.correct is not None]
    return _mean([min(1.0, least / episode.tokens) if episode.correct else 0.0 for episode, least in known])


class CollapseError(RuntimeError):
    """Silence spread while accuracy fell. `step` is where it was seen, `last_good` the step to go back to, if any."""

    def __init__(self, message: str, *, step: int, last_good: int | None) -> None:
        super().__init__(message)
        self.step = step
        self.last_good = last_good

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this the error cannot come back from a worker process: keyword arguments are lost in pickling.
        return partial(CollapseError, step=self.step, last_good=self.last_good), self.args


@dataclass(frozen=True)
class CollapseSettings:
    """When silence counts as a collapse. Source: ours; in a trial run the whole collapse took ten steps."""

    window: int = 5
    """Training steps over which silence and accuracy are averaged before they are compared."""
    silence_rise: float = 0.2
    """Rise of the silence rate, in points of share, over its value in the best window. Strategic silence rises too: the
    alarm needs the fall in accuracy as well."""
    accuracy_drop: float = 0.25
    """Fall of accuracy as a share of the best window's, so that weak and strong teams are watched alike."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window} steps; at least 1 is needed to take a mean")
        for name in ("silence_rise", "accuracy_drop"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{name} is {value}; it must be a share above 0 and at most 1")


@dataclass
class CollapseAlarm:
    """Watches the mean silence rate and accuracy of the last `window` steps against those of the best window so far.

    The best window is the one with the highest mean accuracy, the later one on a tie; silence is compared with what it
    was *there*, so silence that came with rising or steady accuracy becomes the new reference and never fires. It says
    nothing before the first full window, and cannot fire for a team that was never right.
    """

    settings: CollapseSettings = field(default_factory=CollapseSettings)
    last_good: int | None = field(init=False, default=None)
    """Latest step whose window mean kept at least half of the allowed drop and whose own accuracy kept all of it (one
    step alone is noisy, a window lags); the checkpoint to keep is that of the policy sampled at this step."""
    _recent: deque[tuple[int, float, float]] = field(init=False)  # (step, silence, accuracy), oldest first
    _best: tuple[float, float] | None = field(init=False, default=None)  # (silence, accuracy) of the best window

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=self.settings.window)

    def observe(self, step: int, silence_rate: float, accuracy: float) -> None:
        """Take in one step's rates, measured on the policy that was sampled at `step`.

        CollapseError when silence has spread while accuracy fell; ValueError when a rate is no share or steps go back.
        """
        for name, value in (("silence_rate", silence_rate), ("accuracy", accuracy)):
            if not 0 <= value <= 1:  # also catches NaN
                raise ValueError(f"{name} at step {step} is {value}; it must be a share between 0 and 1")
        if self._recent and step <= self._recent[-1][0]:
            raise ValueError(f"step {step} follows step {self._recent[-1][0]}; give steps in rising order, each once")
        self._recent.append((step, float(silence_rate), float(accuracy)))
        if len(self._recent) < self.settings.window:
            return
        silence, level = (math.fsum(column) / len(self._recent) for column in list(zip(*self._recent, strict=True))[1:])
        if self._best is None or level >= self._best[1]:
            self._best = (silence, level)
        best_silence, best = self._best
        allowed = self.settings.accuracy_drop
        if level >= best * (1 - allowed / 2) and accuracy >= best * (1 - allowed):
            self.last_good = step
        # A rise or fall of exactly the threshold counts; 1e-9 keeps it so in floating point.
        spread = silence - best_silence >= self.settings.silence_rise - 1e-9
        fell = level <= best * (1 - allowed) + 1e-9
        if spread and fell:
            raise CollapseError(self._message(step, silence, level), step=step, last_good=self.last_good)

    def state_dict(self) -> dict[str, Any]:
        """All that moves, ready for JSON."""
        return {
            "recent": [list(entry) for entry in self._recent],
            "best": None if self._best is None else list(self._best),
            "last_good": self.last_good,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state. ValueError when it is incomplete or of a longer window."""
        missing = {"recent", "best", "last_good"} - set(state)
        if missing:
            raise ValueError(f"collapse alarm state lacks {sorted(missing)}; give what state_dict() returned")
        if len(state["recent"]) > self.settings.window:
            raise ValueError(
                f"saved state holds {len(state['recent'])} steps but the window is {self.settings.window}; "
                "resume with the window of the saved run"
            )
        recent = [(int(step), float(silence), float(accuracy)) for step, silence, accuracy in state["recent"]]
        self._recent = deque(recent, maxlen=self.settings.window)
        self._best = None if state["best"] is None else (float(state["best"][0]), float(state["best"][1]))
        self.last_good = None if state["last_good"] is None else int(state["last_good"])

    def _message(self, step: int, silence: float, level: float) -> str:
        assert self._best is not None
        back = "no step is known to be good" if self.last_good is None else f"the last good step is {self.last_good}"
        return (
            f"collapse into silence at step {step}: over the last {self.settings.window} steps {silence:.0%} of "
            f"messages were silent ({self._best[0]:.0%} in the best window) and accuracy was {level:.1%} "
            f"({self._best[1]:.1%} in the best window); {back}. Go back to it with a smaller learning rate, "
            "a lower lambda_ceiling, mean-only advantages (advantage_scale='none') or scale_by_pass_rate=True"
        )


def _outcome(episode: Episode) -> str:
    return "unscorable" if episode.correct is None else "correct" if episode.correct else "wrong"


def _measurable(episodes: Iterable[Episode]) -> list[tuple[Episode, int]]:
    """Episodes with a known least and at least one token, each with its least."""
    return [
        (episode, episode.problem.least_tokens)
        for episode in episodes
        if episode.problem.least_tokens is not None and episode.messages
    ]


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
