"""The objective: group advantages, sequence ratio, GSPO, GSPO-token and GRPO. Tensors in, loss and metrics out.

Equation numbers are those of GSPO (arXiv 2507.18071v2), "ours" marks what the paper leaves open. Shapes: N rows
(sequences, one action each), T token positions, padding anywhere; a bool mask `[N, T]` says which positions count.

One mask rules everything. Positions outside it may hold anything (−inf and NaN too): they enter no value and get a
gradient of exactly 0. A row without a counted position is left out of every mean, numerator and denominator alike.

What the loss refuses, it refuses with `ValueError`: disagreeing shapes, a mask that is not bool, NaN or infinity where
the mask counts, tensors without rows or columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Ratio = Literal["sequence", "sequence_token", "token"]
AdvantageScale = Literal["std", "none"]
SequenceWeighting = Literal["mean", "length"]
Metrics = dict[str, float]

_KL_LOG_RATIO_LIMIT = 20.0
_LARGEST_LOG_RATIO_LIMIT = 80.0


@dataclass(frozen=True)
class ObjectiveSettings:
    """Everything that decides the loss."""

    ratio: Ratio = "sequence"
    """Whose ratio: "sequence" = GSPO (Eq. 5), "sequence_token" = GSPO-token (Eq. 13), "token" = GRPO (Eq. 2).

    "token" needs a band of its own: the sequence ratio is a mean over tokens, so its band is far too narrow for single
    tokens. GSPO §5.1 runs GRPO with 0.2 and 0.27.
    """
    epsilon_low: float = 3e-4
    """Left clip width, a ratio (no unit), between 0 and 1. Default: GSPO §5.1, for long answers. Short messages average
    over few tokens and clip far more; watch `clip_share` beside `noise_floor`."""
    epsilon_high: float = 4e-4
    """Right clip width, a ratio (no unit), above 0. Default: GSPO §5.1."""
    advantage_scale: AdvantageScale = "std"
    """Default "std" = Eq. 6. "none" = reward minus group mean only: in a group whose task rewards tie, "std" blows the
    cost term up to full strength whatever its weight (ours; Dr. GRPO, arXiv 2503.20783, gives a like reason)."""
    std_floor: float = 1e-4
    """Added to the standard deviation, in units of reward. Eq. 6 has none; default as in TRL. A larger floor (0.1, say)
    keeps groups that differ by cost alone from weighing as much as groups that differ in being right (ours)."""
    log_ratio_limit: float = 20.0
    """Symmetric bound of the log-ratio before `exp`, in nats: of its mean over tokens for the sequence ratio, of each
    token's for the token ratio. Only the value is bounded, not the gradient (ours; see `gspo_loss`)."""
    sequence_weighting: SequenceWeighting = "mean"
    """Default "mean" = every sequence weighs the same (Eq. 5). "length" weighs sequences by their tokens: not the
    paper's, seen in several public trainers (TRL #3823), kept for the ablation only."""
    kl_coefficient: float = 0.0
    """Weight of the KL penalty to a reference policy, loss units per nat. Default: GSPO leaves the penalty out."""

    def __post_init__(self) -> None:
        if self.ratio not in _LOSSES:
            raise ValueError(f"ratio is {self.ratio!r}; expected one of {sorted(_LOSSES)}")
        _check_band(self.epsilon_low, self.epsilon_high, self.log_ratio_limit)
        _check_choice("advantage_scale", self.advantage_scale, ("std", "none"))
        _check_std_floor(self.std_floor)
        _check_choice("sequence_weighting", self.sequence_weighting, ("mean", "length"))
        if not (math.isfinite(self.kl_coefficient) and self.kl_coefficient >= 0):
            raise ValueError(f"kl_coefficient is {self.kl_coefficient}; expected a finite number of at least 0")


# ---------------------------------------------------------------------------------------------------------- advantages


@dataclass(frozen=True, eq=False)
class Advantages:
    """Advantages of N rows, with what has to be counted beside them."""

    values: Tensor
    """[N], the advantage of each row; exactly 0 in tied groups and for rows that could not be scored."""
    zero_variance: Tensor
    """[N] bool, rows of groups that teach nothing: valid rewards all equal, or fewer than two valid rewards. They may
    be left out of the update if `normaliser` still counts them."""
    groups: int
    """Groups seen."""
    zero_variance_groups: int
    """Groups that teach nothing."""
    invalid_rows: int
    """Rows that could not be scored (`valid` was False)."""


def group_advantages(
    rewards: Tensor,
    groups: Tensor,
    *,
    scale: AdvantageScale = "std",
    std_floor: float = 1e-4,
    correction: int = 0,
    valid: Tensor | None = None,
) -> Advantages:
    """How much better each row did than its own group: A_i = (r_i − mean) / (std + floor), Eq. 6.

    Args:
        rewards: [N], in units of reward.
        groups: [N] integer ids; rows with the same id are compared with each other, in any order, any group size ≥ 2.
        scale: "std" divides by the group's standard deviation, "none" only subtracts the mean.
        std_floor: added to the standard deviation, in units of reward.
        correction: 0 = population standard deviation: the group is all there is, not a sample that estimates a spread,
            and the advantages of a group then have mean square 1 whatever its size. 1 = what TRL does (divides by
            G − 1, smaller by √((G − 1)/G)). Eq. 6 does not say which.
        valid: [N] bool, False where the answer could not be scored. Such a row gets advantage 0 and does not enter the
            mean or the deviation; its reward may be NaN. A group left with fewer than two valid rows has nothing to
            compare, so all its advantages are 0.

    Sums run in fp64; `values` is fp64 for fp64 rewards, else fp32. Tied means equal bit for bit: then the advantages
    are exactly 0, where a rounded mean would leave a residue that the division makes large.

    Raises:
        ValueError: a NaN or infinite reward in a valid row; a group of one row; wrong shapes or types.
    """
    _check_choice("scale", scale, ("std", "none"))
    _check_std_floor(std_floor)
    if correction not in (0, 1):
        raise ValueError(f"correction is {correction}; expected 0 (population) or 1 (sample)")
    if rewards.dim() != 1 or rewards.numel() == 0:
        raise ValueError(f"rewards have shape {tuple(rewards.shape)}; expected [N], one reward a row, at least one row")
    if groups.shape != rewards.shape:
        raise ValueError(f"groups have shape {tuple(groups.shape)}, rewards {tuple(rewards.shape)}; they must agree")
    if groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        raise ValueError(f"groups are {groups.dtype}; expected integer ids, one a row")
    if valid is None:
        valid = torch.ones_like(groups, dtype=torch.bool)
    _check_bool("valid", valid, rewards.shape)

    bad = (valid & ~rewards.isfinite()).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise ValueError(
            f"reward of row {row} (group {int(groups[row])}) is {float(rewards[row])}; expected a finite number. "
            "Mark a row that could not be scored with valid=False"
        )
    ids, index = torch.unique(groups, return_inverse=True)  # [K], [N]
    alone = (torch.bincount(index, minlength=len(ids)) == 1).nonzero()
    if alone.numel():
        raise ValueError(
            f"group {int(ids[alone[0]])} has one member; an advantage compares the members of a group. "
            "Sample at least two responses a group, or leave the row out"
        )

    output = rewards.dtype if rewards.dtype == torch.float64 else torch.float32
    r = torch.where(valid, rewards.detach().double(), 0.0)  # [N]
    zeros = r.new_zeros(len(ids))  # [K]
    count = zeros.index_add(0, index, valid.double())  # [K], valid members
    mean = zeros.index_add(0, index, r) / count.clamp_min(1)  # [K]
    centred = torch.where(valid, r - mean[index], 0.0)  # [N], numerator of Eq. 6
    variance = zeros.index_add(0, index, centred.square()) / (count - correction).clamp_min(1)
    std = variance.sqrt()  # [K]

    highest = (zeros - math.inf).scatter_reduce(0, index, torch.where(valid, r, -math.inf), "amax")
    lowest = (zeros + math.inf).scatter_reduce(0, index, torch.where(valid, r, math.inf), "amin")
    tied = (highest == lowest) | (std == 0)  # [K]; std is 0 too where no member is valid, and where it underflows

    values = centred / (std[index] + std_floor) if scale == "std" else centred
    return Advantages(
        values=torch.where(tied[index], 0.0, values).to(output),
        zero_variance=tied[index],
        groups=len(ids),
        zero_variance_groups=int(tied.sum()),
        invalid_rows=int((~valid).sum()),
    )


# -------------------------------------------------------------------------------------------------------------- ratios


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[N, T], log π(y_it) − log π_old(y_it) where the mask counts, 0 elsewhere. π_old is a constant.

    The mask comes before the subtraction, and by `where`: on padding −inf − (−inf) is NaN, which a product with the
    mask keeps, in the value and in the gradient.
    """
    return torch.where(mask, _lift(logprobs), 0.0) - torch.where(mask, _lift(old_logprobs).detach(), 0.0)


def sequence_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[N], log s_i = (1/|y_i|) Σ_t [log π(y_it) − log π_old(y_it)], Eq. 7; 0 for a row without a counted position.

    A mean, not a sum: summed, a drift too small to matter in any token makes the ratio of a long answer vanish
    (NeMo-RL #2269).
    """
    return _token_mean(token_log_ratio(logprobs, old_logprobs, mask), mask)


# -------------------------------------------------------------------------------------------------------------- losses


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float = 3e-4,
    epsilon_high: float = 4e-4,
    log_ratio_limit: float = 20.0,
    normaliser: float | None = None,
    sequence_weighting: SequenceWeighting = "mean",
) -> tuple[Tensor, Metrics]:
    """GSPO, −J of Eq. 5: minus the mean over sequences of min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i).

    Args:
        logprobs: [N, T], log π(y_it) of the policy under training; carries the gradient. Score in fp32: bf16
            log-probabilities are coarser than the clip band, and fp16 gradients overflow at a ratio of e^20.
        old_logprobs: [N, T], log π_old(y_it) of the policy that sampled; taken as a constant even if it carries a
            gradient (else the two would cancel to a gradient of exactly 0).
        mask: [N, T] bool, True on the tokens that this policy sampled.
        advantages: [N]; not used where a row has no counted token.
        epsilon_low: left clip width.
        epsilon_high: right clip width.
        log_ratio_limit: bound of |log s_i|, in nats. At ±200 `exp` overflows in fp32. The bound is on the value alone:
            the gradient passes as if it were not there, so a sequence that became likely and should not have (A < 0)
            is still pushed down, with the gradient of Eq. 10 at the bounded s_i. A plain clamp would make that 0.
        normaliser: what the sum over sequences is divided by; `None` = the sequences with at least one counted token.
            For a batch in k micro-batches pass `loss_normaliser` of the whole batch: the k losses then add up to it.
        sequence_weighting: "mean" as in Eq. 5; "length" weighs each sequence by its tokens (not the paper's).

    Returns:
        The loss (a scalar, fp32 or fp64) and its metrics (see `combine_metrics`). With ratio 1 and centred advantages
        the loss is 0 and the gradient is not: a loss of 0 is no sign that nothing is learned (TRL #3452). A batch
        without any counted token has loss 0, gradient 0 and `sequences` 0, so that an empty micro-batch adds nothing.

    Raises:
        ValueError: see the module's docstring.
    """
    _check_band(epsilon_low, epsilon_high, log_ratio_limit)
    logprobs, old_logprobs, A = _checked(logprobs, old_logprobs, mask, advantages, per_token=False)

    log_ratio = sequence_log_ratio(logprobs, old_logprobs, mask)  # [N], log s_i, Eq. 7
    s = _bounded(log_ratio, -log_ratio_limit, log_ratio_limit).exp()  # [N], s_i
    surrogate = _clipped_surrogate(s, A, epsilon_low, epsilon_high)  # [N], inside the sum of Eq. 5
    loss = -_sequence_mean(surrogate, mask, sequence_weighting, normaliser)

    return loss, _metrics(
        logprobs, old_logprobs, mask, log_ratio[:, None], s[:, None], A[:, None], epsilon_low, epsilon_high
    )


def gspo_token_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float = 3e-4,
    epsilon_high: float = 4e-4,
    log_ratio_limit: float = 20.0,
    normaliser: float | None = None,
    sequence_weighting: SequenceWeighting = "mean",
) -> tuple[Tensor, Metrics]:
    """GSPO-token, Eq. 13–17: the sequence's ratio, but an advantage for each token.

    s_it = sg[s_i] · π(y_it) / sg[π(y_it)] (Eq. 14) has the value of s_i and the gradient of its own token. With the
    same advantage at every token it equals GSPO in value, clipping and gradient.

    Arguments, results and errors as `gspo_loss`, but `advantages` are [N, T] (A_it, not used outside the mask) or [N]
    (the same for every token of a row).
    """
    _check_band(epsilon_low, epsilon_high, log_ratio_limit)
    logprobs, old_logprobs, A = _checked(logprobs, old_logprobs, mask, advantages, per_token=True)

    log_ratio = sequence_log_ratio(logprobs, old_logprobs, mask)  # [N], log s_i, Eq. 7
    s = _bounded(log_ratio, -log_ratio_limit, log_ratio_limit).exp()  # [N], s_i
    own = torch.where(mask, logprobs, 0.0)  # [N, T], log π(y_it)
    s_token = s.detach()[:, None] * (own - own.detach()).exp()  # [N, T], s_it, Eq. 14
    surrogate = _clipped_surrogate(s_token, A, epsilon_low, epsilon_high)  # [N, T], inside the sums of Eq. 13
    loss = -_sequence_mean(_token_mean(surrogate, mask), mask, sequence_weighting, normaliser)

    return loss, _metrics(logprobs, old_logprobs, mask, log_ratio[:, None], s[:, None], A, epsilon_low, epsilon_high)


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.27,
    log_ratio_limit: float = 20.0,
    normaliser: float | None = None,
    sequence_weighting: SequenceWeighting = "mean",
) -> tuple[Tensor, Metrics]:
    """GRPO, Eq. 2–3: each token has its own ratio and is clipped on its own; mean over tokens, then over sequences.

    Here for the ablation. The KL term of the original is left to `policy_loss`. Default widths: GSPO §5.1's for GRPO.

    Arguments, results and errors as `gspo_token_loss`, but `log_ratio_limit` bounds each token's log-ratio, and
    `sequence_weighting="length"` is a mean over all tokens of the batch.
    """
    _check_band(epsilon_low, epsilon_high, log_ratio_limit)
    logprobs, old_logprobs, A = _checked(logprobs, old_logprobs, mask, advantages, per_token=True)

    log_ratio = token_log_ratio(logprobs, old_logprobs, mask)  # [N, T], log w_it, Eq. 3
    w = _bounded(log_ratio, -log_ratio_limit, log_ratio_limit).exp()  # [N, T], w_it
    surrogate = _clipped_surrogate(w, A, epsilon_low, epsilon_high)  # [N, T], inside the sums of Eq. 2
    loss = -_sequence_mean(_token_mean(surrogate, mask), mask, sequence_weighting, normaliser)

    return loss, _metrics(logprobs, old_logprobs, mask, log_ratio, w, A, epsilon_low, epsilon_high)


_LOSSES: dict[str, Callable[..., tuple[Tensor, Metrics]]] = {
    "sequence": gspo_loss,
    "sequence_token": gspo_token_loss,
    "token": grpo_loss,
}


def policy_loss(
    settings: ObjectiveSettings,
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    reference_logprobs: Tensor | None = None,
    normaliser: float | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss that `settings` ask for, KL penalty included.

    Shapes, normaliser and errors as in `gspo_loss`. `reference_logprobs` [N, T] are needed if `kl_coefficient` is above
    0; whenever given, the metrics hold `kl_reference`. The penalty is averaged exactly as the surrogate is.

    Raises:
        ValueError: `kl_coefficient` above 0 without `reference_logprobs`.
    """
    if settings.kl_coefficient > 0 and reference_logprobs is None:
        raise ValueError(
            f"kl_coefficient is {settings.kl_coefficient} but reference_logprobs is None; "
            "score the batch with the reference policy, or set kl_coefficient to 0"
        )
    loss, metrics = _LOSSES[settings.ratio](
        logprobs,
        old_logprobs,
        mask,
        advantages,
        epsilon_low=settings.epsilon_low,
        epsilon_high=settings.epsilon_high,
        log_ratio_limit=settings.log_ratio_limit,
        normaliser=normaliser,
        sequence_weighting=settings.sequence_weighting,
    )
    if reference_logprobs is not None:
        kl = kl_estimate(logprobs, reference_logprobs, mask)  # [N]
        total = float(kl.detach().double().sum())
        metrics["kl_reference"] = total / metrics["sequences"] if metrics["sequences"] else math.nan
        loss = loss + settings.kl_coefficient * _sequence_mean(kl, mask, settings.sequence_weighting, normaliser)
    return loss, metrics


def loss_normaliser(mask: Tensor, sequence_weighting: SequenceWeighting = "mean") -> float:
    """What a whole batch's loss is divided by: its sequences with a counted token ("mean") or its tokens ("length").

    At least 1, so that a batch without a counted token has loss 0 instead of 0/0. `mask` is [N, T] bool.
    """
    _check_choice("sequence_weighting", sequence_weighting, ("mean", "length"))
    counted = mask.any(dim=-1) if sequence_weighting == "mean" else mask
    return max(float(counted.sum()), 1.0)


# ------------------------------------------------------------------------------------------------ estimates and metrics


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[N], each sequence's mean over tokens of the k3 estimate of KL(π ‖ π_ref): e^d − 1 − d, d = log π_ref − log π.

    Source: J. Schulman, "Approximating KL divergence" (2020). Never negative; unbiased if the tokens were sampled from
    π. In nats a token. A row without a counted position has 0. The reference is a constant. The value of d is bounded
    by 20 from above (ours), so that the estimate stays finite; the gradient passes as in `gspo_loss`.

    Raises:
        ValueError: as `gspo_loss`.
    """
    logprobs, reference_logprobs, _ = _checked(logprobs, reference_logprobs, mask, None, per_token=False)
    d = -token_log_ratio(logprobs, reference_logprobs, mask)  # [N, T]
    d = _bounded(d, -math.inf, _KL_LOG_RATIO_LIMIT)
    k3 = d.expm1() - d  # expm1, because exp(d) − 1 rounds to less than d when d is small
    return _token_mean(k3, mask)


class NoiseFloor(NamedTuple):
    """Spread of the sequence log-ratio, in nats, over sequences; compare with ε (log(1 + ε) ≈ ε)."""

    rms: float
    """Root mean square of log s_i."""
    largest: float
    """Largest |log s_i|."""


def noise_floor(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> NoiseFloor:
    """How far the sequence ratio strays although the policy has not changed: rounding, batching, dropout left on.

    Both sets of log-probabilities [N, T] come from the same weights, scored twice or by two paths. A floor near ε means
    that clipping is decided by noise.

    Raises:
        ValueError: as `gspo_loss`; no counted token at all.
    """
    logprobs, old_logprobs, _ = _checked(logprobs, old_logprobs, mask, None, per_token=False)
    counted = mask.any(dim=-1)
    if not bool(counted.any()):
        raise ValueError("the mask counts no token at all; a noise floor needs at least one scored sequence")
    log_ratio = sequence_log_ratio(logprobs, old_logprobs, mask).detach()[counted]
    return NoiseFloor(rms=float(log_ratio.square().mean().sqrt()), largest=float(log_ratio.abs().max()))


_COMBINED_BY: dict[str, Literal["sum", "min", "max", "sequences", "tokens"]] = {
    "sequences": "sum",
    "tokens": "sum",
    "ratio_mean": "sequences",
    "ratio_min": "min",
    "ratio_max": "max",
    "clip_share": "sequences",
    "clip_share_low": "sequences",
    "clip_share_high": "sequences",
    "token_clip_share": "tokens",
    "token_clip_share_low": "tokens",
    "token_clip_share_high": "tokens",
    "log_ratio_raw_max": "max",
    "log_ratio_sum_max": "max",
    "kl_old": "sequences",
    "kl_reference": "sequences",
    "entropy_estimate": "tokens",
}


def combine_metrics(parts: Sequence[Mapping[str, float]]) -> Metrics:
    """The metrics of a whole batch from those of its micro-batches, as if it had been one batch.

    | metric | meaning | combined by |
    |---|---|---|
    | `sequences`, `tokens` | rows with a counted token; counted tokens | sum |
    | `ratio_mean`, `ratio_min`, `ratio_max` | the ratio that the loss used, bounded: s_i, or w_it for GRPO (whose mean is over a row's tokens, then over rows) | sequences, min, max |
    | `clip_share`, `_low`, `_high` | **per sequence**: mean over sequences of the share of a sequence's tokens whose clip binds, which is 0 or 1 with the sequence ratio and one advantage; low: A < 0 and ratio < 1 − ε_low; high: A > 0 and ratio > 1 + ε_high | sequences |
    | `token_clip_share`, `_low`, `_high` | the same **per token**: long sequences weigh more (GSPO Fig. 2) | tokens |
    | `log_ratio_raw_max` | largest absolute log-ratio that the loss used, before its bound, nats | max |
    | `log_ratio_sum_max` | largest absolute log-ratio of a whole sequence, summed over its tokens, nats | max |
    | `kl_old` | k3 estimate of KL(π_old ‖ π), nats a token, mean over sequences | sequences |
    | `kl_reference` | k3 estimate of KL(π ‖ π_ref), likewise; only with a reference | sequences |
    | `entropy_estimate` | −mean log π_old over the sampled tokens, nats: estimates the entropy of the policy that sampled, from its samples alone | tokens |

    A micro-batch without a counted token has NaN for every mean and extreme, and is passed over here.

    Raises:
        ValueError: no parts, parts with different names, a name that is not in the table.
    """  # noqa: E501
    if not parts:
        raise ValueError("no metrics to combine; expected those of at least one micro-batch")
    names = list(parts[0])
    for part in parts:
        if part.keys() != parts[0].keys():
            raise ValueError(f"micro-batches hold different metrics: {sorted(names)} and {sorted(part)}")
    if unknown := [name for name in names if name not in _COMBINED_BY]:
        raise ValueError(f"cannot combine {unknown}; known metrics are {sorted(_COMBINED_BY)}")

    filled = [part for part in parts if part["sequences"] > 0] or [parts[0]]
    combined: Metrics = {}
    for name in names:
        values = [part[name] for part in filled]
        match how := _COMBINED_BY[name]:
            case "sum":
                combined[name] = sum(values)
            case "min":
                combined[name] = min(values)
            case "max":
                combined[name] = max(values)
            case _:
                total = sum(part[how] for part in filled)
                combined[name] = sum(part[how] * part[name] for part in filled) / total if total else math.nan
    return combined


@torch.no_grad()
def _metrics(
    logprobs: Tensor,  # [N, T]
    old_logprobs: Tensor,  # [N, T]
    mask: Tensor,  # [N, T]
    log_ratio: Tensor,  # [N, 1] or [N, T], before the bound
    ratio: Tensor,  # [N, 1] or [N, T], after it
    advantages: Tensor,  # [N, 1] or [N, T]
    epsilon_low: float,
    epsilon_high: float,
) -> Metrics:
    """The metrics that all losses share; see `combine_metrics` for their meaning."""
    counted = mask.any(dim=-1)  # [N]
    sequences, tokens = counted.sum(), mask.sum()
    low = ((advantages < 0) & (ratio < 1 - epsilon_low)).expand_as(mask) & mask
    high = ((advantages > 0) & (ratio > 1 + epsilon_high)).expand_as(mask) & mask

    def per_sequence(x: Tensor) -> Tensor:  # [N, T] → scalar; every sequence weighs the same
        return _token_mean(x.double(), mask).sum() / sequences

    def per_token(x: Tensor) -> Tensor:  # [N, T] → scalar; every token weighs the same
        return torch.where(mask, x.double(), 0.0).sum() / tokens

    sums = token_log_ratio(logprobs, old_logprobs, mask).sum(dim=-1)  # [N]
    values = {
        "sequences": sequences,
        "tokens": tokens,
        "ratio_mean": per_sequence(ratio.expand_as(logprobs)),
        "ratio_min": torch.where(mask, ratio, math.inf).min(),
        "ratio_max": torch.where(mask, ratio, -math.inf).max(),
        "clip_share": per_sequence(low | high),
        "clip_share_low": per_sequence(low),
        "clip_share_high": per_sequence(high),
        "token_clip_share": per_token(low | high),
        "token_clip_share_low": per_token(low),
        "token_clip_share_high": per_token(high),
        "log_ratio_raw_max": torch.where(mask, log_ratio.abs(), 0.0).max(),
        "log_ratio_sum_max": sums.abs().max(),
        "kl_old": kl_estimate(old_logprobs, logprobs, mask).double().sum() / sequences,
        "entropy_estimate": per_token(-old_logprobs),
    }
    numbers: list[float] = torch.stack([value.double() for value in values.values()]).tolist()  # one transfer
    metrics = dict(zip(values, numbers, strict=True))
    if not metrics["sequences"]:
        return {name: value if name in ("sequences", "tokens") else math.nan for name, value in metrics.items()}
    return metrics


# ------------------------------------------------------------------------------------------------------------- helpers


def _lift(x: Tensor) -> Tensor:
    """Half precision to fp32, because its steps are wider than the clip band; fp32 and fp64 stay."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _bounded(x: Tensor, low: float, high: float) -> Tensor:
    """`x` with its value bounded and its gradient left alone (straight through)."""
    return x.detach().clamp(low, high) + (x - x.detach())


def _token_mean(x: Tensor, mask: Tensor) -> Tensor:
    """[N], each row's mean of `x` [N, T] over its counted positions; 0 where there are none."""
    return torch.where(mask, x, 0.0).sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)


def _sequence_mean(x: Tensor, mask: Tensor, sequence_weighting: SequenceWeighting, normaliser: float | None) -> Tensor:
    """Scalar, the mean of `x` [N] over rows with a counted token; weighted by tokens if "length"."""
    if normaliser is None:
        normaliser = loss_normaliser(mask, sequence_weighting)
    elif not (math.isfinite(normaliser) and normaliser > 0):
        raise ValueError(f"normaliser is {normaliser}; expected the whole batch's count, see loss_normaliser")
    _check_choice("sequence_weighting", sequence_weighting, ("mean", "length"))
    weights = mask.any(dim=-1) if sequence_weighting == "mean" else mask.sum(dim=-1)  # [N]
    return (x * weights).sum() / normaliser


def _clipped_surrogate(ratio: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float) -> Tensor:
    """min(ratio · A, clip(ratio, 1 − ε_low, 1 + ε_high) · A), in the shape of `ratio`."""
    return torch.minimum(ratio * advantages, ratio.clamp(1 - epsilon_low, 1 + epsilon_high) * advantages)


def _checked(
    logprobs: Tensor, other_logprobs: Tensor, mask: Tensor, advantages: Tensor | None, *, per_token: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Refuse what has no meaning; lift to fp32. Advantages come back constant, 0 where the mask does not count,
    `[N, T]` if `per_token`, else `[N]`.
    """
    if logprobs.dim() != 2 or 0 in logprobs.shape:
        raise ValueError(
            f"logprobs have shape {tuple(logprobs.shape)}; expected [N, T] with at least one row and one token "
            "(1/|y| is undefined for an empty response; even silence is one end token)"
        )
    if other_logprobs.shape != logprobs.shape:
        raise ValueError(
            f"logprobs have shape {tuple(logprobs.shape)} but old or reference logprobs {tuple(other_logprobs.shape)}; "
            "score the same tokens with both policies"
        )
    if not (logprobs.is_floating_point() and other_logprobs.is_floating_point()):
        raise ValueError(f"log-probabilities are {logprobs.dtype} and {other_logprobs.dtype}; expected floating point")
    _check_bool("mask", mask, logprobs.shape)
    bad = (mask & ~(logprobs.isfinite() & other_logprobs.isfinite())).nonzero()
    if bad.numel():
        row, position = bad[0].tolist()
        raise ValueError(
            f"row {row}, position {position} counts but has log-probabilities {float(logprobs[row, position])} and "
            f"{float(other_logprobs[row, position])} (new, old or reference); a sampled token has a finite one. "
            "The mask may cover padding, or the model gave NaN"
        )
    lifted, other = _lift(logprobs), _lift(other_logprobs)
    if advantages is None:
        return lifted, other, lifted.new_zeros(())

    rows, used = logprobs.shape[0], mask if per_token else mask.any(dim=-1)
    if advantages.shape == (rows,) and per_token:
        advantages = advantages[:, None].expand_as(mask)
    if advantages.shape != used.shape:
        raise ValueError(
            f"advantages have shape {tuple(advantages.shape)}; expected [N] = [{rows}]"
            + (f" or [N, T] = {list(mask.shape)}" if per_token else "; per-token advantages need gspo_token_loss")
        )
    bad = (used & ~advantages.isfinite()).nonzero()
    if bad.numel():
        raise ValueError(
            f"advantage of row {int(bad[0, 0])} is {float(advantages[tuple(bad[0])])}; expected a finite number. "
            "group_advantages gives 0 to rows that could not be scored"
        )
    return lifted, other, torch.where(used, advantages.detach(), 0.0).to(torch.promote_types(lifted.dtype, other.dtype))


def _check_bool(name: str, tensor: Tensor, shape: torch.Size) -> None:
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name} is {tensor.dtype}; expected bool, convert with `{name}.bool()` if it holds 0 and 1")
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected one of {list(choices)}")


def _check_std_floor(std_floor: float) -> None:
    if not (math.isfinite(std_floor) and std_floor >= 0):
        raise ValueError(f"std_floor is {std_floor}; expected a finite number of at least 0, in units of reward")


def _check_band(epsilon_low: float, epsilon_high: float, log_ratio_limit: float) -> None:
    """A usable clip band, inside the bound of the log-ratio (else the clip could never bind)."""
    if not 0 < epsilon_low < 1:
        raise ValueError(f"epsilon_low is {epsilon_low}; expected a number between 0 and 1 (GSPO: 3e-4, GRPO: 0.2)")
    if not (math.isfinite(epsilon_high) and epsilon_high > 0):
        raise ValueError(f"epsilon_high is {epsilon_high}; expected a finite number above 0 (GSPO: 4e-4, GRPO: 0.27)")
    smallest = max(-math.log1p(-epsilon_low), math.log1p(epsilon_high))
    if not smallest < log_ratio_limit <= _LARGEST_LOG_RATIO_LIMIT:
        raise ValueError(
            f"log_ratio_limit is {log_ratio_limit} nats; expected more than the clip band's {smallest:.3g} "
            f"and at most {_LARGEST_LOG_RATIO_LIMIT:.0f} (exp overflows in fp32 soon after)"
        )
