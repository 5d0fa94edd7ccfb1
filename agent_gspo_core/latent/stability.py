"""How steady a team's answers are: three figures that DiffMAS reports beside accuracy.

The paper names perplexity of a team's own decoding, self-consistency over samples and token entropy; its definitions
are not known to us, so the exact ones below are ours. All three are taken from answers sampled at the team's own
temperature and nucleus, while probabilities are always the policy's own (temperature 1, whole vocabulary), so that
arms with different decoding can be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agent_gspo_core.latent.team import LatentAnswer


@dataclass(frozen=True)
class Stability:
    """Means over problems; each problem counts once, however many samples it has."""

    perplexity: float
    token_entropy: float
    self_consistency: float | None
    """`None` with one sample per problem."""
    problems: int
    samples: int
    """Per problem."""


def perplexity(answer: LatentAnswer) -> float:
    """Exponential of the mean negative log-probability of the tokens that the last agent said, end token included.

    1 means that it never doubted; it says nothing about being right.
    """
    return math.exp(-math.fsum(answer.reply.logprobs) / len(answer.reply.logprobs))


def token_entropy(answer: LatentAnswer) -> float:
    """Mean over the answer's positions of the entropy, in nats, of the distribution that the token was drawn from."""
    return math.fsum(answer.reply.entropies) / len(answer.reply.entropies)


def self_consistency(answers: Sequence[LatentAnswer]) -> float:
    """Share of pairs of samples of one problem that give the same answer; one that cannot be read agrees with none.

    1/n for n samples that never agree would be the floor of "share of the most frequent answer"; a share of pairs has
    the floor 0 for every n.

    Raises:
        ValueError: fewer than two samples.
    """
    n = len(answers)
    if n < 2:
        raise ValueError(f"self-consistency: {n} sample(s) of a problem; it needs at least 2")
    times = Counter(answer.prediction for answer in answers if answer.prediction is not None)
    return sum(k * (k - 1) for k in times.values()) / (n * (n - 1))


def measure_stability(answers: Sequence[LatentAnswer]) -> Stability:
    """The three figures over the answers of `LatentTeam.answers` or `arms.run_arm`.

    Raises:
        ValueError: no answers, or unequal numbers of samples.
    """
    if not answers:
        raise ValueError("stability: no answers given")
    by_problem: dict[str, list[LatentAnswer]] = {}
    for answer in answers:
        by_problem.setdefault(answer.problem.id, []).append(answer)
    sizes = {len(group) for group in by_problem.values()}
    if len(sizes) != 1:
        raise ValueError(f"stability: problems have {sorted(sizes)} samples; all need the same number")
    (samples,) = sizes
    groups = list(by_problem.values())
    return Stability(
        perplexity=_mean([_mean([perplexity(answer) for answer in group]) for group in groups]),
        token_entropy=_mean([_mean([token_entropy(answer) for answer in group]) for group in groups]),
        self_consistency=_mean([self_consistency(group) for group in groups]) if samples > 1 else None,
        problems=len(groups),
        samples=samples,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
