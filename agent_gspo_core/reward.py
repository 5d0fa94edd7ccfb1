"""The four-term reward: what the team gets for its answer, less what each message costs.

r = r_task − λ_tok · tokens / reference − λ_turn · turn − λ_rep · repetition

Source: review; tokens over a reference length: ours.

Every term is measured, priced and kept apart, so that a run can show which of them moved the policy. λ_tok is a live
value: with the dual budget on (`budget.DualBudget`) it is handed in at every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agent_gspo_core.episode import Episode, Message

Ngram = tuple[int, ...]


@dataclass(frozen=True)
class RewardSettings:
    """What a message costs. All λ are in units of task reward (a right answer is worth 1)."""

    lambda_token: float = 0.5
    """Price of `reference_tokens` tokens while no dual budget is on. Source: ours, measured on the embedded default;
    Optima (arXiv 2410.08115) uses 0.4–0.6 on a normalised count. The paper's value is not known."""
    lambda_turn: float = 0.02
    """Price of a message that is not silent. Source: term from the review; value ours: small beside the task, so that
    a message that is needed always pays."""
    lambda_repetition: float = 0.05
    """Price of a message that only repeats (share 1). Source: term from the review; value ours."""
    reference_tokens: float = 40.0
    """Tokens that cost `lambda_token`. Source: ours (about one verbose message of the embedded default). Optima divides
    by the group's longest message instead, which makes a message's price depend on its rivals."""
    ngram: int = 3
    """Length, in tokens, of the n-grams whose recurrence is repetition. Source: ours."""
    charge: Literal["message", "team"] = "message"
    """"message": each message pays for itself; "team": every message pays the sum over its whole episode. Source: ours;
    the review's y is one message."""
    scale_by_pass_rate: bool = False
    """Multiply costs by the share of the problem's episodes that are right, so that unsolved problems teach no silence.
    Source: prime-rl; off by default because the review's form has no such factor."""
    cost_limit: float | None = 2.0
    """Most that the three costs of one message may sum to; beyond it they shrink in proportion, so the reward never
    falls below −`cost_limit`. `None`: no limit (the review's form, unbounded below). Source: ours."""
    brevity_needs_answer: bool = False
    """In episodes without a readable answer every message pays as much as the dearest of its (problem, agent, round),
    so that unreadable answers are not ranked by brevity (verl #4531). Source: ours; off in the review's form."""

    def __post_init__(self) -> None:
        for name in ("lambda_token", "lambda_turn", "lambda_repetition"):
            _price(name, getattr(self, name))
        if not (math.isfinite(self.reference_tokens) and self.reference_tokens > 0):
            raise ValueError(
                f"reference_tokens is {self.reference_tokens}; token counts are divided by it, so it must be a finite "
                "number above 0, e.g. the length of a typical message"
            )
        if self.ngram < 1:
            raise ValueError(f"ngram is {self.ngram}; an n-gram has at least 1 token, 3 is the default")
        if self.charge not in ("message", "team"):
            raise ValueError(f"charge is {self.charge!r}; it must be 'message' or 'team'")
        if self.cost_limit is not None and not (math.isfinite(self.cost_limit) and self.cost_limit > 0):
            raise ValueError(
                f"cost_limit is {self.cost_limit}; it must be a finite number above 0, or None for no limit"
            )


@dataclass(frozen=True)
class RewardTerms:
    """Reward of one message, term by term: `total` = `task` − `cost_tokens` − `cost_turns` − `cost_repetition`."""

    task: float
    """1 for a right answer of the team, 0 for a wrong one, NaN where it could not be scored."""
    tokens: float
    """The message's own completion tokens over `reference_tokens`, end token included."""
    turns: float
    """1 for a message that was said, 0 for a silent one."""
    repetition: float
    """Share of the message's n-grams that had occurred before, in [0, 1]; 0 for a silent message."""
    cost_tokens: float
    """What was taken off for tokens, after λ, team charge, pass rate and limit; never negative."""
    cost_turns: float
    """What was taken off for turns; never negative."""
    cost_repetition: float
    """What was taken off for repetition; never negative."""
    total: float
    """The reward. NaN where `valid` is false, so that a consumer that forgets `valid` is noticed."""
    valid: bool
    """False where the episode could not be scored (`correct` is None): advantage 0, not counted in any baseline."""


class _Amounts(NamedTuple):
    """Three amounts that belong together: measured quantities or prices, in the order of the formula."""

    tokens: float
    turns: float
    repetition: float


class _Bill(NamedTuple):
    """What one message pays: the three costs and their sum.

    The sum is kept because shares of a limit do not add up to it bit for bit, and messages at the limit must tie
    exactly: dividing by their standard deviation would blow rounding up into advantages.
    """

    costs: _Amounts
    owed: float


@dataclass(frozen=True)
class CommunicationReward:
    """Reward of every message of a batch of episodes. Source: review; options as named in `RewardSettings`.

    The task reward is the team's: every message of an episode shares it. All messages are charged, a decider's too.
    """

    settings: RewardSettings = field(default_factory=RewardSettings)

    def __call__(self, episodes: Sequence[Episode], *, lambda_token: float | None = None) -> list[list[RewardTerms]]:
        """Terms as `[episode][message]`, in the order given.

        `lambda_token` is the multiplier in force (the dual variable); `None` takes the fixed one of the settings.
        Pass all episodes of a problem together: the pass rate is taken over them. ValueError on a negative or
        non-finite `lambda_token`.
        """
        settings = self.settings
        lambdas = _Amounts(
            settings.lambda_token if lambda_token is None else _price("lambda_token", lambda_token),
            settings.lambda_turn,
            settings.lambda_repetition,
        )
        scales = pass_rates(episodes) if settings.scale_by_pass_rate else {}
        measured = [self._measure(episode) for episode in episodes]
        bills = [
            [self._bill(charged, lambdas, scales.get(episode.problem.id, 1.0)) for charged in self._charged(rows)]
            for episode, rows in zip(episodes, measured, strict=True)
        ]
        if settings.brevity_needs_answer:
            bills = _dearest_where_unreadable(episodes, bills)
        return [
            [_terms(episode, own, bill) for own, bill in zip(rows, paid, strict=True)]
            for episode, rows, paid in zip(episodes, measured, bills, strict=True)
        ]

    def _measure(self, episode: Episode) -> list[_Amounts]:
        """Tokens over reference, turn and repetition of each message."""
        grams = [ngrams(spoken_ids(message), self.settings.ngram) for message in episode.messages]
        seen = [frozenset(of_message) for of_message in grams]
        return [
            _Amounts(
                message.tokens / self.settings.reference_tokens,
                0.0 if message.silent else 1.0,
                0.0 if message.silent else _repeated_share(own, [seen[index] for index in message.heard]),
            )
            for message, own in zip(episode.messages, grams, strict=True)
        ]

    def _charged(self, rows: list[_Amounts]) -> list[_Amounts]:
        """The quantities that each message pays for: its own, or the whole episode's."""
        if self.settings.charge == "message" or not rows:
            return rows
        team = _Amounts(*(math.fsum(column) for column in zip(*rows, strict=True)))
        return [team] * len(rows)

    def _bill(self, quantities: _Amounts, lambdas: _Amounts, scale: float) -> _Bill:
        costs = _Amounts(*(scale * price * quantity for price, quantity in zip(lambdas, quantities, strict=True)))
        limit, owed = self.settings.cost_limit, sum(costs)
        if limit is None or owed <= limit:
            return _Bill(costs, owed)
        return _Bill(_Amounts(*(limit * (part / owed) for part in costs)), limit)


def spoken_ids(message: Message) -> tuple[int, ...]:
    """The message's ids without its end token (a truncated message has none): every message ends alike."""
    return message.token_ids if message.truncated else message.token_ids[:-1]


def ngrams(ids: Sequence[int], n: int) -> list[Ngram]:
    """All runs of `n` ids in order, one per position; empty when there are fewer than `n` ids."""
    return [tuple(ids[start : start + n]) for start in range(len(ids) - n + 1)]


def repetition(message_ids: Sequence[int], heard: Sequence[Sequence[int]], n: int = 3) -> float:
    """Share, in [0, 1], of the message's n-grams that occur earlier in it or anywhere in what was heard.

    Give ids without end tokens (`spoken_ids`). N-grams do not run across heard messages. A message shorter than `n`
    repeats nothing: 0. Being a share, it can fall when a repetitive message goes on with new words, so a price on it
    is the one term that can pay for length: keep λ_rep small beside λ_tok. ValueError when n < 1. Source: ours, for the
    review's repetition term.
    """
    if n < 1:
        raise ValueError(f"n is {n}; an n-gram has at least 1 token")
    return _repeated_share(ngrams(message_ids, n), [frozenset(ngrams(ids, n)) for ids in heard])


def pass_rates(episodes: Iterable[Episode]) -> dict[str, float]:
    """Share of right answers among the scorable episodes of each problem id; 0 where none could be scored."""
    scored: dict[str, list[bool]] = {}
    for episode in episodes:
        of_problem = scored.setdefault(episode.problem.id, [])
        if episode.correct is not None:
            of_problem.append(episode.correct)
    return {key: sum(values) / len(values) if values else 0.0 for key, values in scored.items()}


def reward_summary(episodes: Sequence[Episode], terms: Sequence[Sequence[RewardTerms]]) -> dict[str, float | None]:
    """Means for the log: reward terms per scorable message, the rest per episode.

    `accuracy` is over scorable episodes, `unparsed_share` over all, `unscorable` is a count. `None` (never NaN) where
    there is nothing to take a mean of. ValueError when episodes and terms do not belong together.
    """
    if [len(episode.messages) for episode in episodes] != [len(row) for row in terms]:
        raise ValueError(
            "episodes and terms differ in shape; give the terms that CommunicationReward returned for these episodes"
        )
    if not episodes:
        raise ValueError("no episodes to sum up; a summary needs at least one")
    scored = [float(episode.correct) for episode in episodes if episode.correct is not None]
    valid = [term for row in terms for term in row if term.valid]
    messages = [message for episode in episodes for message in episode.messages]
    return {
        "reward": _mean([term.total for term in valid]),
        "reward_task": _mean([term.task for term in valid]),
        "reward_cost_tokens": _mean([term.cost_tokens for term in valid]),
        "reward_cost_turns": _mean([term.cost_turns for term in valid]),
        "reward_cost_repetition": _mean([term.cost_repetition for term in valid]),
        "repetition": _mean([term.repetition for term in valid]),
        "accuracy": _mean(scored),
        "tokens_per_episode": _mean([float(episode.tokens) for episode in episodes]),
        "prompt_tokens_per_episode": _mean([float(episode.prompt_tokens) for episode in episodes]),
        "turns_per_episode": _mean([float(episode.turns) for episode in episodes]),
        "truncated_share": _mean([float(message.truncated) for message in messages]),
        "unparsed_share": _mean([float(episode.prediction is None) for episode in episodes]),
        "unscorable": float(len(episodes) - len(scored)),
    }


def _terms(episode: Episode, own: _Amounts, bill: _Bill) -> RewardTerms:
    task = math.nan if episode.correct is None else float(episode.correct)
    return RewardTerms(task, *own, *bill.costs, total=task - bill.owed, valid=episode.correct is not None)


def _dearest_where_unreadable(episodes: Sequence[Episode], bills: Sequence[Sequence[_Bill]]) -> list[list[_Bill]]:
    """Bills, with each message of an unreadable episode paying the most that its (problem, agent, round) pays."""
    dearest: dict[tuple[str, int, int], _Bill] = {}
    for episode, paid in zip(episodes, bills, strict=True):
        for message, bill in zip(episode.messages, paid, strict=True):
            key = (episode.problem.id, message.agent, message.round)
            dearest[key] = max(dearest.get(key, bill), bill, key=lambda one: one.owed)
    return [
        [
            dearest[episode.problem.id, message.agent, message.round] if episode.prediction is None else bill
            for message, bill in zip(episode.messages, paid, strict=True)
        ]
        for episode, paid in zip(episodes, bills, strict=True)
    ]


def _repeated_share(grams: Sequence[Ngram], heard: Sequence[AbstractSet[Ngram]]) -> float:
    earlier: set[Ngram] = set()
    repeated = 0
    for gram in grams:
        repeated += gram in earlier or any(gram in of_message for of_message in heard)
        earlier.add(gram)
    return repeated / len(grams) if grams else 0.0


def _price(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; a price is a finite number of at least 0 (0 switches its term off)")
    return value


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
