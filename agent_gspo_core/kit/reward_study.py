"""Material for the notebook on reward design: hand-made talk, and the method's own functions swept over one setting.

Nothing here decides anything: every number comes out of `reward`, `budget`, `objective` or `trainer`. The examples and
the assumed response of a policy to a price are ours.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_gspo_core.budget import BudgetSettings, DualBudget
from agent_gspo_core.episode import Episode, Message, Problem
from agent_gspo_core.objective import (
    ObjectiveSettings,
    SequenceWeighting,
    group_advantages,
    gspo_loss,
    sequence_log_ratio,
    token_log_ratio,
)
from agent_gspo_core.reward import CommunicationReward, RewardSettings, RewardTerms
from agent_gspo_core.rollout import Team
from agent_gspo_core.silence import CollapseError
from agent_gspo_core.trainer import Trainer

if TYPE_CHECKING:
    import pandas as pd

END = 0
"""Id of the end token in hand-made messages."""

_WORD = re.compile(r"\[\w+\]|\w+|[^\w\s]")

# ------------------------------------------------------------------------------------------------------ hand-made talk


def word_ids(text: str) -> tuple[int, ...]:
    """One id for every word or mark of `text`, then the end token: easy to count along, the same in every process."""
    return (*(zlib.crc32(word.encode()) + 1 for word in _WORD.findall(text)), END)


def hand_made_message(text: str, *, role: str, agent: int = 0, round: int = 0, heard: tuple[int, ...] = ()) -> Message:
    """A message nobody sampled. Tokens as `word_ids`; its log-probabilities are 0 and mean nothing."""
    ids = word_ids(text)
    return Message(
        agent=agent,
        role=role,
        round=round,
        prompt_ids=(END,),
        token_ids=ids,
        logprobs=(0.0,) * len(ids),
        text=text,
        silent=Team().is_silent(text),
        heard=heard,
    )


def hand_made_episode(*, correct: bool = True) -> Episode:
    """Six ways to speak in one episode, named by `role`. The parrot spoke in round 1 and had heard the first two."""
    first = (
        (
            "verbose",
            "Hello team, let me look at the question carefully. In my notes it is written that Ben has 3 pens. "
            "I hope that this helps you to find the answer.",
        ),
        ("medium", "My note says that Ida has 6 pens."),
        ("short", "Jon 9"),
        ("pass word", "[pass]"),
        ("silence", ""),
    )
    parrot = "In my notes it is written that Ben has 3 pens. My note says that Ida has 6 pens."
    messages = tuple(hand_made_message(text, role=role, agent=agent) for agent, (role, text) in enumerate(first))
    problem = Problem("hand-made", "How many pens do Ben and Ida have together?", "9", needed=frozenset({0, 1}))
    return Episode(
        problem=problem,
        member=0,
        messages=(*messages, hand_made_message(parrot, role="parrot", agent=5, round=1, heard=(0, 1))),
        prediction="9" if correct else "8",
        correct=correct,
    )


def hand_made_group(tokens: Sequence[int], correct: Sequence[bool], *, readable: bool = True) -> list[Episode]:
    """Parallel episodes of one problem, each with one message of so many tokens (end token included), all different.

    `readable=False`: no answer could be read from any of them. ValueError when the two lists differ in length.
    """
    problem = Problem("hand-made", "How many pens do Ben and Ida have together?", "9")
    return [
        Episode(
            problem,
            member,
            (Message(0, "Agent 1", 0, (END,), (*range(1, length), END), (0.0,) * length, ""),),
            prediction=None if not readable else "9" if right else "8",
            correct=right,
        )
        for member, (length, right) in enumerate(zip(tokens, correct, strict=True))
    ]


def terms_table(episodes: Sequence[Episode], terms: Sequence[Sequence[RewardTerms]]) -> pd.DataFrame:
    """One row a message: who said it, what, in how many tokens, and every term of its reward."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "message": message.role,
                "text": message.text,
                "tokens": message.tokens,
                "silent": message.silent,
                "repetition": term.repetition,
                "task": term.task,
                "cost_tokens": term.cost_tokens,
                "cost_turns": term.cost_turns,
                "cost_repetition": term.cost_repetition,
                "reward": term.total,
            }
            for episode, row in zip(episodes, terms, strict=True)
            for message, term in zip(episode.messages, row, strict=True)
        ]
    )


# ---------------------------------------------------------------------------------------------------- advantages and λ


def advantages_over_lambda(
    episodes: Sequence[Episode],
    lambdas: Sequence[float],
    *,
    reward: RewardSettings | None = None,
    objective: ObjectiveSettings | None = None,
) -> Tensor:
    """Advantage of each episode's first message at each λ_tok, [len(lambdas), N], all in one group (fp64)."""
    reward, objective = reward or RewardSettings(), objective or ObjectiveSettings()
    judge = CommunicationReward(reward)
    one_group = torch.zeros(len(episodes), dtype=torch.long)
    rows = []
    for value in lambdas:
        totals = [row[0].total for row in judge(episodes, lambda_token=value)]
        advantages = group_advantages(
            torch.tensor(totals, dtype=torch.float64),
            one_group,
            scale=objective.advantage_scale,
            std_floor=objective.std_floor,
        )
        rows.append(advantages.values)
    return torch.stack(rows)


# ------------------------------------------------------------------------------------------------- the sequence's ratio


def _rows(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Old log-probabilities [N, T] (all −1) and mask [N, T] of rows of these lengths."""
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    return torch.where(mask, -1.0, 0.0).double(), mask


def gradient_shares(
    lengths: Sequence[int], advantages: Sequence[float], weighting: SequenceWeighting = "mean"
) -> list[float]:
    """∂J/∂(log s_i) of each sequence at ratio 1: how hard the objective pulls on it."""
    old, mask = _rows(lengths)
    shift = torch.zeros(len(lengths), dtype=torch.float64, requires_grad=True)  # [N], added to every token of a row
    loss, _ = gspo_loss(
        old + shift[:, None],
        old,
        mask,
        torch.tensor(advantages, dtype=torch.float64),
        sequence_weighting=weighting,
    )
    loss.backward()
    assert shift.grad is not None
    return [-float(value) for value in shift.grad]


def ratios_under_drift(lengths: Sequence[int], drift: float) -> tuple[list[float], list[float]]:
    """Ratio of sequences whose every token became e^drift times as likely: (Eq. 7, the same without 1/|y|)."""
    old, mask = _rows(lengths)
    mean = sequence_log_ratio(old + drift, old, mask).exp()  # [N]
    summed = token_log_ratio(old + drift, old, mask).sum(dim=-1).exp()  # [N]
    return mean.tolist(), summed.tolist()


def clip_share_by_length(
    lengths: Sequence[int], *, spread: float, epsilon: tuple[float, float], rows: int = 4000, seed: int = 0
) -> list[float]:
    """Share of sequences that are clipped when every token's log-ratio is drawn from N(0, spread²), by length.

    Half of the `rows` have advantage +1, half −1.
    """
    advantages = torch.tensor([1.0, -1.0]).repeat(rows // 2)
    shares = []
    for length in lengths:
        noise = torch.randn(len(advantages), length, generator=torch.Generator().manual_seed(seed)) * spread
        old = torch.full_like(noise, -1.0)
        _, metrics = gspo_loss(
            old + noise,
            old,
            torch.ones_like(noise, dtype=torch.bool),
            advantages,
            epsilon_low=epsilon[0],
            epsilon_high=epsilon[1],
        )
        shares.append(metrics["clip_share"])
    return shares


# ------------------------------------------------------------------------------------------------------- the dual loop


def assumed_response(price: float, *, talkative: float = 100.0, least: float = 15.0, half_price: float = 0.25) -> float:
    """Tokens that an imagined policy settles at when a reference length costs `price`; `least` at any price."""
    return least + (talkative - least) / (1.0 + price / half_price)


@dataclass(frozen=True)
class DualRun:
    """A simulated run of the dual variable, one entry per update."""

    tokens: tuple[float, ...]
    """Mean episode tokens of the batch."""
    prices: tuple[float, ...]
    """λ_tok that priced this batch."""
    at_floor: bool
    at_ceiling: bool


def simulate_dual(
    settings: BudgetSettings,
    *,
    updates: int,
    response: Callable[[float], float] = assumed_response,
    inertia: float = 0.8,
) -> DualRun:
    """Close the loop of `DualBudget` over an assumed policy.

    The policy starts where no price takes it and moves by a share 1 − `inertia` of the way to `response(λ)` between
    two batches, because learning follows a price slowly.
    """
    dual = DualBudget(settings)
    spoken = response(0.0)
    tokens, prices = [], []
    for _ in range(updates):
        tokens.append(spoken)
        prices.append(dual.value)
        spoken = inertia * spoken + (1.0 - inertia) * response(dual.value)
        dual.update(tokens[-1])
    return DualRun(tuple(tokens), tuple(prices), dual.at_floor, dual.at_ceiling)


# ------------------------------------------------------------------------------------------------------------ collapse


@dataclass(frozen=True)
class WatchedRun:
    """A training run and how it ended."""

    records: tuple[dict[str, Any], ...]
    """Metrics of every step, the one at which the alarm rang included."""
    alarm: CollapseError | None
    """What stopped it; `None` when all steps were done."""


def run_until_alarm(trainer: Trainer, *, progress: bool = True) -> WatchedRun:
    """Train until the steps are done or the collapse alarm stops the run; other errors pass.

    A trainer that starts at step 0 replaces what an earlier run left in its folder's metrics.
    """
    metrics = trainer.folder / "metrics.jsonl"
    if trainer.done == 0:
        metrics.unlink(missing_ok=True)
    alarm = None
    try:
        trainer.run(progress=progress)
    except CollapseError as error:
        alarm = error
    lines = metrics.read_text(encoding="utf-8").splitlines()
    return WatchedRun(tuple(json.loads(line) for line in lines), alarm)
