"""The objective against references written here, against TRL, and on every known trap of such losses."""

from __future__ import annotations

import ast
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from agent_gspo_core import objective
from agent_gspo_core.objective import (
    ObjectiveSettings,
    combine_metrics,
    group_advantages,
    grpo_loss,
    gspo_loss,
    gspo_token_loss,
    kl_estimate,
    loss_normaliser,
    noise_floor,
    policy_loss,
    sequence_log_ratio,
)

torch.set_num_threads(1)

LOSSES: list[Callable[..., tuple[Tensor, dict[str, float]]]] = [gspo_loss, gspo_token_loss, grpo_loss]
BAND = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
EVERY_LOSS = pytest.mark.parametrize("loss_function", LOSSES, ids=lambda f: f.__name__)
SEEDS = pytest.mark.parametrize("seed", range(8))


# ------------------------------------------------------------------------------------------------------------ fixtures


def batch(
    seed: int,
    *,
    rows: int = 12,
    width: int = 9,
    drift: float = 1e-3,
    holes: bool = False,
    masked_rows: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An off-policy batch: log-probabilities, old ones, right-padded mask of unequal lengths, advantages."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.1
    new = old + drift * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = torch.arange(width) < lengths[:, None]
    if holes:
        mask = mask & (torch.rand(rows, width, generator=generator) < 0.7)
    for row in masked_rows:
        mask[row] = False
    advantages = torch.randn(rows, generator=generator, dtype=torch.float64)
    return new.to(dtype), old.to(dtype), mask, advantages.to(dtype)


def run(
    loss_function: Callable[..., tuple[Tensor, dict[str, float]]], new: Tensor, *args: Any, **kwargs: Any
) -> tuple[float, Tensor, dict[str, float]]:
    """Value, gradient with respect to the new log-probabilities, metrics."""
    leaf = new.detach().clone().requires_grad_()
    loss, metrics = loss_function(leaf, *args, **kwargs)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad, metrics


def reference(
    kind: str,
    new: Tensor,
    old: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float,
    epsilon_high: float,
    limit: float = 20.0,
    length_weighted: bool = False,
) -> tuple[float, np.ndarray[Any, Any]]:
    """Loss and gradient in plain Python, one sequence and one token at a time; gradients by hand (Eq. 10, 15–17)."""
    rows, width = new.shape
    gradient = np.zeros((rows, width))
    total = weights = 0.0
    for i in range(rows):
        tokens = [t for t in range(width) if bool(mask[i, t])]
        if not tokens:
            continue
        length = len(tokens)
        weight = float(length) if length_weighted else 1.0
        weights += weight
        differences = {t: float(new[i, t]) - float(old[i, t]) for t in tokens}
        mean = math.fsum(differences.values()) / length
        for t in tokens:
            a = float(advantages[i]) if advantages.dim() == 1 else float(advantages[i, t])
            log_ratio = differences[t] if kind == "token" else mean
            ratio = math.exp(max(-limit, min(limit, log_ratio)))
            clipped = max(1 - epsilon_low, min(1 + epsilon_high, ratio))
            total += weight * min(ratio * a, clipped * a) / length
            # With one advantage for all, each token's share of ∇s_i is s_i/|y_i|: the same as Eq. 17's.
            binds = (a > 0 and ratio > 1 + epsilon_high) or (a < 0 and ratio < 1 - epsilon_low)
            gradient[i, t] = 0.0 if binds else weight * ratio * a / length
    return -total / weights, -gradient / weights


def kind_of(loss_function: Callable[..., Any]) -> str:
    return "token" if loss_function is grpo_loss else "sequence"


# ---------------------------------------------------------------------------------- value and gradient, plain reference


@EVERY_LOSS
@SEEDS
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["fp64", "fp32"])
def test_value_and_gradient_equal_a_plain_reference(loss_function, seed, dtype, tolerance) -> None:
    new, old, mask, advantages = batch(
        seed, rows=40, holes=seed % 2 == 1, masked_rows=(3,) if seed % 3 == 0 else (), dtype=dtype
    )
    value, gradient, metrics = run(loss_function, new, old, mask, advantages, **BAND)
    expected, expected_gradient = reference(kind_of(loss_function), new, old, mask, advantages, **BAND)
    assert metrics["clip_share_low"] > 0  # the batch does exercise both sides
    assert metrics["clip_share_high"] > 0
    assert value == pytest.approx(expected, abs=tolerance)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, atol=tolerance, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 7),
    width=st.integers(1, 7),
    drift=st.sampled_from([0.0, 1e-4, 1e-2, 1.0, 30.0]),
    epsilon_low=st.floats(1e-5, 0.9),
    epsilon_high=st.floats(1e-5, 3.0),
    length_weighted=st.booleans(),
    loss_function=st.sampled_from(LOSSES),
)
def test_any_batch_equals_the_plain_reference(
    seed, rows, width, drift, epsilon_low, epsilon_high, length_weighted, loss_function
) -> None:
    new, old, mask, advantages = batch(seed, rows=rows, width=width, drift=drift, holes=True)
    mask[0, 0] = True
    band = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    weighting = "length" if length_weighted else "mean"
    value, gradient, _ = run(loss_function, new, old, mask, advantages, **band, sequence_weighting=weighting)
    expected, expected_gradient = reference(
        kind_of(loss_function), new, old, mask, advantages, **band, length_weighted=length_weighted
    )
    assert value == pytest.approx(expected, abs=1e-9, rel=1e-12)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, atol=1e-9, rtol=1e-12)


@pytest.mark.parametrize("loss_function", [gspo_token_loss, grpo_loss], ids=lambda f: f.__name__)
@SEEDS
def test_each_token_keeps_its_own_advantage(loss_function, seed) -> None:
    """Eq. 17: s_i (1/|y_i|) Σ_t A_it ∇log π(y_it), signs mixed within a row, so that a row is clipped in part."""
    new, old, mask, _ = batch(seed)
    advantages = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    value, gradient, metrics = run(loss_function, new, old, mask, advantages, **BAND)
    expected, expected_gradient = reference(kind_of(loss_function), new, old, mask, advantages, **BAND)
    assert value == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient, atol=1e-9, rtol=0)
    assert 0 < metrics["clip_share"] < 1


@SEEDS
def test_gradient_is_equation_10(seed) -> None:
    """Through a real softmax: ∇J = (1/G) Σ_i s_i A_i (1/|y_i|) Σ_t ∇log π(y_it), nothing clipped."""
    generator = torch.Generator().manual_seed(seed)
    rows, width, vocabulary = 4, 5, 6
    logits = torch.randn(rows, width, vocabulary, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(vocabulary, (rows, width, 1), generator=generator)
    _, _, mask, advantages = batch(seed, rows=rows, width=width)
    logprobs = logits.log_softmax(-1).gather(-1, ids).squeeze(-1)
    old = logprobs.detach() + 0.05 * torch.randn(rows, width, generator=generator, dtype=torch.float64)
    loss, metrics = gspo_loss(logprobs, old, mask, advantages, epsilon_low=0.9, epsilon_high=9.0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert metrics["clip_share"] == 0

    expected = torch.zeros_like(logits)
    probabilities = logits.detach().softmax(-1)
    for i in range(rows):
        length = int(mask[i].sum())
        s = math.exp(sum(float(logprobs.detach()[i, t] - old[i, t]) for t in range(length)) / length)
        for t in range(length):
            score = -probabilities[i, t].clone()  # ∇ of log softmax: one-hot minus probabilities
            score[ids[i, t, 0]] += 1
            expected[i, t] = -s * float(advantages[i]) * score / length / rows
    torch.testing.assert_close(gradient, expected, atol=1e-9, rtol=0)


@EVERY_LOSS
@pytest.mark.parametrize("drift", [1e-3, 0.0], ids=["off-policy", "on-policy"])
def test_autograd_agrees_with_finite_differences(loss_function, drift) -> None:
    new, old, mask, advantages = batch(5, rows=4, width=5, drift=drift, masked_rows=(1,))
    band = {"epsilon_low": 0.5, "epsilon_high": 0.5}
    _, gradient, _ = run(loss_function, new, old, mask, advantages, **band)
    if loss_function is gspo_token_loss:  # its stop-gradients hide s_i on purpose; with one A_i it must equal GSPO
        loss_function = gspo_loss
    step = 1e-6
    for i, t in np.ndindex(*new.shape):
        up, down = new.clone(), new.clone()
        up[i, t] += step
        down[i, t] -= step
        difference = (
            loss_function(up, old, mask, advantages, **band)[0] - loss_function(down, old, mask, advantages, **band)[0]
        )
        assert float(gradient[i, t]) == pytest.approx(float(difference) / (2 * step), abs=1e-8)


# ---------------------------------------------------------------------------------------------------------- against TRL


def trl_loss(
    new: Tensor,
    old: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    level: str = "sequence",
    loss_type: str = "grpo",
    epsilon_low: float,
    epsilon_high: float,
    beta: float = 0.0,
    reference_logprobs: Tensor | None = None,
) -> tuple[float, Tensor]:
    """TRL's own `_compute_loss`, called on a stand-in that holds only what it reads."""
    pytest.importorskip("trl")
    from trl.trainer.grpo_trainer import GRPOTrainer

    leaf = new.detach().clone().requires_grad_()
    accelerator = SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (leaf, torch.zeros_like(leaf), None),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=epsilon_low,
        epsilon_high=epsilon_high,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        accelerator=accelerator,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )
    ids = torch.zeros_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask.to(new.dtype),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference_logprobs,
    }
    loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize(("loss_function", "level"), [(gspo_loss, "sequence"), (grpo_loss, "token")])
def test_equals_trl_with_loss_type_grpo(loss_function, level, dtype) -> None:
    for seed in range(8):
        new, old, mask, advantages = batch(seed, rows=40, dtype=dtype)
        value, gradient, metrics = run(loss_function, new, old, mask, advantages, **BAND)
        expected, expected_gradient = trl_loss(new, old, mask, advantages, level=level, **BAND)
        assert metrics["clip_share_low"] > 0
        assert metrics["clip_share_high"] > 0
        assert value == pytest.approx(expected, abs=1e-5)
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=0)


def test_kl_penalty_equals_trl() -> None:
    new, old, mask, advantages = batch(1)
    reference_logprobs = old + 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(7)).double()
    chosen = ObjectiveSettings(kl_coefficient=0.05)
    value, gradient, metrics = run(
        lambda *args: policy_loss(chosen, *args, reference_logprobs=reference_logprobs), new, old, mask, advantages
    )
    expected, expected_gradient = trl_loss(
        new, old, mask, advantages, **BAND, beta=0.05, reference_logprobs=reference_logprobs
    )
    assert value == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=0)
    assert metrics["kl_reference"] > 0.01


def test_length_weighting_is_the_variant_that_trl_has_under_other_loss_types() -> None:
    """A constant or token-count normaliser weighs sequences by their length; ours does so only when asked."""
    new, old, mask, advantages = batch(2)
    value, gradient, _ = run(gspo_loss, new, old, mask, advantages, **BAND, sequence_weighting="length")
    expected, expected_gradient = trl_loss(new, old, mask, advantages, loss_type="bnpo", **BAND)
    assert value == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=0)


def test_trl_differs_only_in_counting_fully_masked_rows() -> None:
    new, old, mask, advantages = batch(3, masked_rows=(0, 4, 5))
    value, gradient, _ = run(gspo_loss, new, old, mask, advantages)
    diluted, diluted_gradient = trl_loss(new, old, mask, advantages, **BAND)
    assert diluted == pytest.approx(value * 9 / 12, abs=1e-9)
    torch.testing.assert_close(diluted_gradient, gradient * 9 / 12, atol=1e-9, rtol=0)


# ---------------------------------------------------------------------------------- traps of the loss, by their names


def test_length_does_not_weight_sequences_trl_3823() -> None:
    lengths = torch.tensor([2, 4, 8, 12])
    mask = torch.arange(12) < lengths[:, None]
    old = torch.full(mask.shape, -1.0, dtype=torch.float64)
    advantages = torch.tensor([-1.0, 1.0, -0.5, 0.5], dtype=torch.float64)

    def shares(weighting: str) -> list[float]:
        _, gradient, _ = run(gspo_loss, old, old, mask, advantages, sequence_weighting=weighting)
        return (-gradient.sum(dim=1)).tolist()  # of J, which is maximised

    assert shares("mean") == pytest.approx([-0.25, 0.25, -0.125, 0.125], abs=1e-12)
    assert shares("length") == pytest.approx([-0.077, 0.154, -0.154, 0.231], abs=5e-4)


def toy_policy(seed: int = 0) -> tuple[torch.nn.Parameter, Tensor, Tensor, Tensor, Tensor]:
    """A table of logits, one rollout batch from it, and centred advantages."""
    torch.manual_seed(seed)
    table = torch.nn.Parameter(torch.randn(6, 5))
    ids = torch.distributions.Categorical(logits=table.detach()).sample((8,))  # [8, 6]
    mask = torch.arange(6) < torch.randint(1, 7, (8, 1))
    rewards = torch.rand(8)
    advantages = group_advantages(rewards, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])).values
    old = score(table, ids).detach()
    return table, ids, mask, advantages, old


def score(table: Tensor, ids: Tensor) -> Tensor:
    return table.log_softmax(-1).expand(len(ids), -1, -1).gather(-1, ids[..., None]).squeeze(-1)


def test_one_update_per_batch_never_clips_and_the_second_does() -> None:
    table, ids, mask, advantages, old = toy_policy()
    optimiser = torch.optim.SGD([table], lr=0.5)
    loss, metrics = gspo_loss(score(table, ids), old, mask, advantages)
    assert (metrics["ratio_min"], metrics["ratio_mean"], metrics["ratio_max"]) == (1, 1, 1)
    assert metrics["clip_share"] == 0
    assert metrics["kl_old"] == 0
    loss.backward()
    optimiser.step()
    _, metrics = gspo_loss(score(table, ids), old, mask, advantages)
    assert metrics["clip_share"] > 0
    assert metrics["ratio_min"] < 1 < metrics["ratio_max"]


@EVERY_LOSS
def test_loss_near_zero_with_a_live_gradient_is_right_trl_3452(loss_function) -> None:
    table, ids, mask, advantages, old = toy_policy(1)
    loss, _ = loss_function(score(table, ids), old, mask, advantages)
    assert abs(loss.item()) < 1e-7
    loss.backward()
    assert table.grad is not None
    assert table.grad.norm() > 0.05


@EVERY_LOSS
def test_one_step_moves_the_weights_mlx_lm_lora_55(loss_function) -> None:
    table, ids, mask, advantages, old = toy_policy(2)
    before = table.detach().clone()
    loss, _ = loss_function(score(table, ids), old, mask, advantages)
    loss.backward()
    torch.optim.SGD([table], lr=0.1).step()
    assert not torch.equal(table, before)
    better, _ = loss_function(score(table, ids), old, mask, advantages, epsilon_low=0.9, epsilon_high=9.0)
    assert better < loss  # and in the right direction


@EVERY_LOSS
def test_old_policy_is_a_constant_even_when_it_carries_a_gradient_mlx_lm_lora_55(loss_function) -> None:
    new, _, mask, advantages = batch(0)
    _, expected, _ = run(loss_function, new, new.clone(), mask, advantages)
    leaf = new.clone().requires_grad_()
    loss, _ = loss_function(leaf, leaf, mask, advantages)  # nobody detached
    loss.backward()
    assert leaf.grad is not None
    assert expected.abs().max() > 0
    torch.testing.assert_close(leaf.grad, expected, atol=0, rtol=0)


def test_bf16_log_probabilities_are_coarser_than_the_clip_band() -> None:
    """Nothing changed, yet most sequences leave the band when log-probabilities are kept in bf16."""
    _, old, _, _ = batch(0, rows=400, width=16, dtype=torch.float32)
    mask = torch.ones_like(old, dtype=torch.bool)

    def share_outside(rescored: Tensor) -> float:
        s = sequence_log_ratio(rescored, old, mask).exp()
        return float(((s < 1 - 3e-4) | (s > 1 + 4e-4)).double().mean())

    rescored_fp32 = (old.double().exp().float()).log()  # another path to the same number
    assert share_outside(rescored_fp32) == 0
    assert noise_floor(rescored_fp32, old, mask).largest < 1e-6
    assert share_outside(old.bfloat16()) > 0.5
    assert noise_floor(old.bfloat16(), old, mask).rms > 3e-4


@EVERY_LOSS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_is_lifted_before_any_arithmetic(loss_function, dtype) -> None:
    new, old, mask, advantages = batch(3, drift=0.05, dtype=dtype)
    leaf = new.clone().requires_grad_()
    loss, metrics = loss_function(leaf, old, mask, advantages)
    expected, expected_metrics = loss_function(new.float(), old.float(), mask, advantages.float())
    assert loss.dtype == torch.float32
    assert loss.item() == expected.item()
    assert metrics == expected_metrics
    loss.backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@EVERY_LOSS
@pytest.mark.parametrize("rubbish", [-math.inf, math.inf, math.nan, 1e38], ids=["-inf", "inf", "nan", "huge"])
def test_padding_may_hold_anything_and_gets_zero_gradient(loss_function, rubbish) -> None:
    """−inf − (−inf) and 0 · inf are NaN: the mask has to come first. Also Soup#723: masked positions must not leak."""
    new, old, mask, advantages = batch(4, holes=True, masked_rows=(2,))
    clean_value, clean_gradient, clean_metrics = run(loss_function, new, old, mask, advantages)
    value, gradient, metrics = run(
        loss_function,
        torch.where(mask, new, rubbish),
        torch.where(mask, old, rubbish),
        mask,
        torch.where(mask.any(1), advantages, math.nan),
    )
    assert value == clean_value
    assert metrics == clean_metrics
    assert torch.equal(gradient, clean_gradient)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).any()


@EVERY_LOSS
def test_fully_masked_row_is_left_out_of_the_mean_marti_trl(loss_function) -> None:
    new, old, mask, advantages = batch(6, masked_rows=(0, 5))
    keep = mask.any(dim=1)
    value, gradient, metrics = run(loss_function, new, old, mask, advantages)
    alone, alone_gradient, alone_metrics = run(loss_function, new[keep], old[keep], mask[keep], advantages[keep])
    assert value == pytest.approx(alone, abs=1e-12)
    torch.testing.assert_close(gradient[keep], alone_gradient, atol=1e-12, rtol=0)
    assert (gradient[~keep] == 0).all()
    assert metrics == pytest.approx(alone_metrics, abs=1e-12)
    assert metrics["sequences"] == 10


@EVERY_LOSS
@pytest.mark.parametrize("weighting", ["mean", "length"])
def test_batch_without_a_counted_token_has_zero_loss_and_gradient(loss_function, weighting) -> None:
    new, old, mask, advantages = batch(0)
    value, gradient, metrics = run(
        loss_function, new - math.inf, old, torch.zeros_like(mask), advantages, sequence_weighting=weighting
    )
    assert value == 0
    assert (gradient == 0).all()
    assert metrics["sequences"] == metrics["tokens"] == 0
    assert all(math.isnan(value) for name, value in metrics.items() if name not in ("sequences", "tokens"))


@EVERY_LOSS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_ratio_e200_with_negative_advantage_is_pushed_down_finitely_verl(loss_function, dtype) -> None:
    """`exp` would overflow, a plain or one-sided clamp make the gradient 0. Right: Eq. 10 at the bounded ratio."""
    old = torch.full((2, 3), -201.0, dtype=dtype)
    new = torch.full((2, 3), -1.0, dtype=dtype)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantages = torch.tensor([-2.0, -1.0], dtype=dtype)
    value, gradient, metrics = run(loss_function, new, old, mask, advantages)
    bound = math.exp(20)
    assert value == pytest.approx(bound * (2 + 1) / 2, rel=1e-6)
    expected = bound / 2 * torch.tensor([[2 / 3, 2 / 3, 2 / 3], [1 / 2, 1 / 2, 0]], dtype=dtype)
    torch.testing.assert_close(gradient, expected, atol=0, rtol=1e-6)  # > 0: descent makes these tokens less likely
    assert metrics["log_ratio_raw_max"] == pytest.approx(200)  # before the bound
    assert metrics["log_ratio_sum_max"] == pytest.approx(600)
    assert metrics["ratio_max"] == pytest.approx(bound)
    assert metrics["clip_share"] == 0
    assert all(math.isfinite(number) for number in metrics.values())


@EVERY_LOSS
def test_bound_of_the_log_ratio_is_exact_however_far_it_is_passed(loss_function) -> None:
    """x + (bound − x) rounds to 0 in fp32 when x is 1e9; the bounded value must still be e^20."""
    old, new = torch.full((1, 2), -1e9), torch.full((1, 2), -1.0)
    value, gradient, _ = run(loss_function, new, old, torch.ones(1, 2, dtype=torch.bool), torch.tensor([-1.0]))
    assert value == pytest.approx(math.exp(20), rel=1e-6)
    torch.testing.assert_close(gradient, torch.full((1, 2), math.exp(20) / 2), atol=0, rtol=1e-6)


@EVERY_LOSS
@pytest.mark.parametrize(("shift", "advantage"), [(200.0, 1.0), (-200.0, -1.0)], ids=["e200, A > 0", "e-200, A < 0"])
def test_extreme_ratio_on_the_clipped_side_has_no_gradient(loss_function, shift, advantage) -> None:
    old = torch.full((1, 4), -300.0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    value, gradient, metrics = run(loss_function, old + shift, old, mask, torch.tensor([advantage]), **BAND)
    assert value == pytest.approx(-(1 + 4e-4) if advantage > 0 else 1 - 3e-4)
    assert (gradient == 0).all()
    assert metrics["clip_share"] == 1
    assert metrics["log_ratio_raw_max"] == 200


@EVERY_LOSS
def test_vanished_ratio_with_positive_advantage_stays_exact(loss_function) -> None:
    old = torch.full((1, 4), -1.0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    _, gradient, metrics = run(loss_function, old - 200, old, mask, torch.tensor([1.0]))
    torch.testing.assert_close(gradient, torch.full((1, 4), -math.exp(-20) / 4), atol=0, rtol=1e-5)
    assert metrics["ratio_min"] == pytest.approx(math.exp(-20))


def test_clip_share_counts_sequences_not_tokens_verl_openrlhf() -> None:
    """One long clipped row and three short free ones: a quarter of the sequences, three quarters of the tokens."""
    mask = torch.arange(9) < torch.tensor([[9], [1], [1], [1]])
    old = torch.full(mask.shape, -1.0, dtype=torch.float64)
    new = old.clone()
    new[0] += 0.01
    advantages = torch.ones(4, dtype=torch.float64)
    for loss_function in LOSSES:
        _, metrics = loss_function(new, old, mask, advantages, **BAND)
        assert metrics["clip_share"] == metrics["clip_share_high"] == pytest.approx(0.25)
        assert metrics["token_clip_share"] == metrics["token_clip_share_high"] == pytest.approx(0.75)
        assert metrics["clip_share_low"] == metrics["token_clip_share_low"] == 0


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "side"),
    [
        (3.5e-4, 1.0, None),  # inside on the right (a swapped band would clip it)
        (4.5e-4, 1.0, "high"),
        (4.5e-4, -1.0, None),  # outside, but the minimum takes the free branch
        (-2.5e-4, -1.0, None),
        (-3.5e-4, -1.0, "low"),
        (-3.5e-4, 1.0, None),
        (1.0, 0.0, None),
    ],
)
def test_clip_share_counts_only_where_the_clip_binds(log_ratio, advantage, side) -> None:
    mask = torch.ones(1, 4, dtype=torch.bool)
    old = torch.full((1, 4), -1.0, dtype=torch.float64)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    for loss_function in LOSSES:
        _, gradient, metrics = run(loss_function, old + log_ratio, old, mask, advantages, **BAND)
        assert metrics["clip_share_low"] == (side == "low")
        assert metrics["clip_share_high"] == (side == "high")
        assert metrics["clip_share"] == (side is not None)
        assert bool((gradient == 0).all()) == (side is not None or advantage == 0)


def test_token_ratio_clips_tokens_of_a_sequence_apart() -> None:
    mask = torch.arange(4) < torch.tensor([[4], [2]])
    old = torch.full((2, 4), -1.0, dtype=torch.float64)
    new = old.clone()
    new[0, 1] += 1.0  # one of four tokens
    new[1, 0] -= 1.0  # one of two, but A > 0 leaves it free
    _, metrics = grpo_loss(new, old, mask, torch.ones(2, dtype=torch.float64))
    assert metrics["clip_share_high"] == pytest.approx(1 / 8)
    assert metrics["token_clip_share_high"] == pytest.approx(1 / 6)
    assert metrics["clip_share_low"] == 0
    assert metrics["ratio_max"] == pytest.approx(math.e)
    assert metrics["ratio_min"] == pytest.approx(1 / math.e)
    assert metrics["ratio_mean"] == pytest.approx(((3 + math.e) / 4 + (1 + 1 / math.e) / 2) / 2)


def test_log_ratio_is_a_mean_not_a_sum_nemo_rl_2269() -> None:
    """A drift of 1e-4 a token over 28,000 tokens: s_i = .9999, where a sum would give .06."""
    old = torch.full((1, 28_000), -1.0, dtype=torch.float64)
    mask = torch.ones_like(old, dtype=torch.bool)
    s = sequence_log_ratio(old - 1e-4, old, mask).exp()
    assert float(s) == pytest.approx(0.9999, abs=1e-6)
    _, metrics = gspo_loss(old - 1e-4, old, mask, torch.ones(1))
    assert metrics["ratio_mean"] == pytest.approx(0.9999, abs=1e-6)
    assert metrics["log_ratio_raw_max"] == pytest.approx(1e-4)  # both are logged
    assert metrics["log_ratio_sum_max"] == pytest.approx(2.8)
    assert math.exp(-metrics["log_ratio_sum_max"]) == pytest.approx(0.06, abs=1e-3)


@pytest.mark.parametrize("weighting", ["mean", "length"])
@pytest.mark.parametrize("ratio", ["sequence", "sequence_token", "token"])
@pytest.mark.parametrize("cuts", [[3], [1, 2, 7], [2, 4, 6, 8, 10], list(range(1, 12))], ids=["2", "4", "6", "12"])
def test_micro_batches_add_up_to_one_batch_unsloth_3006_trl_3021(ratio, weighting, cuts) -> None:
    """Loss, gradient, KL penalty and metrics, with rows masked so that some micro-batches hold nothing."""
    new, old, mask, advantages = batch(11, masked_rows=(0, 1, 6), dtype=torch.float32)
    reference_logprobs = old + 0.2
    chosen = ObjectiveSettings(ratio=ratio, sequence_weighting=weighting, kl_coefficient=0.01)

    def both(rows: slice, normaliser: float | None) -> tuple[float, Tensor, dict[str, float]]:
        return run(
            lambda *args: policy_loss(
                chosen, *args, reference_logprobs=reference_logprobs[rows], normaliser=normaliser
            ),
            *(tensor[rows] for tensor in (new, old, mask, advantages)),
        )

    value, gradient, metrics = both(slice(None), None)
    edges = [0, *cuts, 12]
    normaliser = loss_normaliser(mask, weighting)
    parts = [both(slice(a, b), normaliser) for a, b in pairwise(edges)]
    assert sum(part[0] for part in parts) == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient, atol=1e-6, rtol=0)
    assert combine_metrics([part[2] for part in parts]) == pytest.approx(metrics, abs=1e-6)
    if ratio != "token":
        assert 0 < metrics["clip_share"] < 1


@EVERY_LOSS
def test_order_of_rows_does_not_matter_soup_723(loss_function) -> None:
    new, old, mask, advantages = batch(7, holes=True)
    order = torch.randperm(len(new), generator=torch.Generator().manual_seed(1))
    value, gradient, metrics = run(loss_function, new, old, mask, advantages)
    shuffled, shuffled_gradient, shuffled_metrics = run(
        loss_function, new[order], old[order], mask[order], advantages[order]
    )
    assert shuffled == pytest.approx(value, abs=1e-12)
    torch.testing.assert_close(shuffled_gradient, gradient[order], atol=1e-12, rtol=0)
    assert shuffled_metrics == pytest.approx(metrics, abs=1e-12)


@EVERY_LOSS
def test_padding_left_right_more_or_none_gives_the_same_loss_ms_swift_5965(loss_function) -> None:
    new, old, mask, advantages = batch(8)
    value, gradient, _ = run(loss_function, new, old, mask, advantages)
    for left, right in [(0, 5), (3, 0), (2, 2)]:
        pad = torch.nn.functional.pad
        padded_value, padded_gradient, _ = run(
            loss_function,
            pad(new, (left, right), value=-math.inf),
            pad(old, (left, right), value=-math.inf),
            pad(mask, (left, right), value=False),
            advantages,
        )
        assert padded_value == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(padded_gradient[:, left : left + 9], gradient, atol=1e-12, rtol=0)
    alone = [  # each row by itself, without padding
        loss_function(
            new[i : i + 1, mask[i]], old[i : i + 1, mask[i]], mask[i : i + 1, mask[i]], advantages[i : i + 1]
        )[0]
        for i in range(len(new))
    ]
    assert float(torch.stack(alone).mean()) == pytest.approx(value, abs=1e-12)


@EVERY_LOSS
@pytest.mark.parametrize("position", [0, -1], ids=["first", "last"])
def test_first_and_last_token_count_verl_3287(loss_function, position) -> None:
    """Off by one loses exactly the first token or the end token, and with it a silent message as a whole."""
    old = torch.full((1, 5), -1.0, dtype=torch.float64)
    mask = torch.ones(1, 5, dtype=torch.bool)
    new = old.clone()
    new[0, position] += 0.5
    value, gradient, metrics = run(
        loss_function, new, old, mask, torch.ones(1, dtype=torch.float64), epsilon_low=0.9, epsilon_high=9.0
    )
    s = math.exp(0.1) if loss_function is not grpo_loss else (4 + math.exp(0.5)) / 5
    assert value == pytest.approx(-s)
    assert (gradient < 0).all()
    assert metrics["tokens"] == 5


def test_silent_message_of_one_end_token_is_trained_like_any_other() -> None:
    """One token, one sequence: neither dropped nor outweighed by the long one beside it."""
    mask = torch.tensor([[True, False, False, False], [True, True, True, True]])
    old = torch.full((2, 4), -1.0)
    _, gradient, _ = run(gspo_loss, old, old, mask, torch.tensor([1.0, -1.0]))
    torch.testing.assert_close(gradient.sum(dim=1), torch.tensor([-0.5, 0.5]))


@EVERY_LOSS
def test_truncated_rows_leave_numerator_and_denominator_together_trl_6369(loss_function) -> None:
    """Masking a row changes the loss exactly as removing it: no count keeps what the sum has lost."""
    new, old, mask, advantages = batch(9)
    truncated = torch.arange(12) % 3 == 0
    effective = mask & ~truncated[:, None]
    masked, _, metrics = run(loss_function, new, old, effective, advantages)
    removed, _, removed_metrics = run(
        loss_function, new[~truncated], old[~truncated], mask[~truncated], advantages[~truncated]
    )
    assert masked == pytest.approx(removed, abs=1e-12)
    assert metrics == pytest.approx(removed_metrics, abs=1e-12)
    assert loss_normaliser(effective) == metrics["sequences"] == 8
    assert loss_normaliser(effective, "length") == metrics["tokens"]


@EVERY_LOSS
def test_what_others_said_or_a_hand_appended_end_is_not_in_the_loss_unsloth_5673_skyrl_758(loss_function) -> None:
    """The mask may have holes: only sampled tokens count, wherever they stand; made-up log-probabilities do nothing."""
    new, old, _, advantages = batch(10, rows=3, width=6)
    mask = torch.tensor([[True, False, True, True, False, False]] * 3)  # own, other, own, own, appended end, padding
    value, gradient, metrics = run(loss_function, new, old, mask, advantages)
    own = [0, 2, 3]
    only, only_gradient, only_metrics = run(loss_function, new[:, own], old[:, own], mask[:, own], advantages)
    assert value == pytest.approx(only, abs=1e-12)
    torch.testing.assert_close(gradient[:, own], only_gradient, atol=1e-12, rtol=0)
    assert (gradient[:, [1, 4, 5]] == 0).all()
    assert metrics == pytest.approx(only_metrics, abs=1e-12)


def test_noise_floor_shows_dropout_left_on_unsloth_4502() -> None:
    _, old, mask, _ = batch(0, masked_rows=(1,))
    assert noise_floor(old, old, mask) == (0.0, 0.0)
    assert noise_floor(old + 0.01, old, mask) == pytest.approx((0.01, 0.01))  # a masked row must not dilute it
    uneven = old.clone()
    uneven[0] -= 0.03
    floor = noise_floor(uneven, old, mask)
    assert floor.largest == pytest.approx(0.03)
    assert floor.rms == pytest.approx(0.03 / math.sqrt(11))


# ------------------------------------------------------------------------------------------------------- GSPO-token


@SEEDS
def test_gspo_token_equals_gspo_when_all_tokens_share_an_advantage(seed) -> None:
    new, old, mask, advantages = batch(seed, holes=True, masked_rows=(4,))
    value, gradient, metrics = run(gspo_loss, new, old, mask, advantages)
    for given_advantages in (advantages, advantages[:, None].expand_as(mask).contiguous()):
        token_value, token_gradient, token_metrics = run(gspo_token_loss, new, old, mask, given_advantages)
        assert token_value == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(token_gradient, gradient, atol=1e-12, rtol=0)
        assert token_metrics == pytest.approx(metrics, abs=1e-12)
    assert 0 < metrics["clip_share"] < 1


@EVERY_LOSS
def test_advantages_are_constants(loss_function) -> None:
    new, old, mask, advantages = batch(0)
    learned = advantages.clone().requires_grad_()
    loss_function(new.requires_grad_(), old, mask, learned)[0].backward()
    assert learned.grad is None


def test_token_advantages_outside_the_mask_do_not_matter() -> None:
    new, old, mask, _ = batch(0)
    advantages = torch.ones_like(new)
    expected = run(gspo_token_loss, new, old, mask, advantages)[0]
    assert run(gspo_token_loss, new, old, mask, torch.where(mask, advantages, math.nan))[0] == expected


# ------------------------------------------------------------------------------------------------------- advantages


def test_advantages_are_standardised_within_their_group() -> None:
    rewards = torch.tensor([1.0, 5.0, 0.0, 7.0, 1.0, 5.0], dtype=torch.float64)
    groups = torch.tensor([9, -2, 9, -2, 9, -2])  # any ids, any order
    advantages = group_advantages(rewards, groups, std_floor=0.0)
    for group in (9, -2):
        members = rewards[groups == group].numpy()
        expected = (members - members.mean()) / members.std(ddof=0)
        np.testing.assert_allclose(advantages.values[groups == group].numpy(), expected, atol=1e-12)
        assert float(advantages.values[groups == group].square().mean()) == pytest.approx(1)
    assert (advantages.groups, advantages.zero_variance_groups, advantages.invalid_rows) == (2, 0, 0)


def test_sample_standard_deviation_and_floor_are_those_of_trl() -> None:
    rewards = torch.tensor([0.0, 1.0, 1.0, 3.0], dtype=torch.float64)
    values = group_advantages(rewards, torch.zeros(4, dtype=torch.long), correction=1).values
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    torch.testing.assert_close(values, expected, atol=1e-12, rtol=0)


def test_floor_is_added_to_the_deviation() -> None:
    rewards = torch.tensor([0.0, 0.2], dtype=torch.float64)
    values = group_advantages(rewards, torch.tensor([0, 0]), std_floor=0.1).values
    assert values.tolist() == pytest.approx([-0.5, 0.5])


def test_fp64_rewards_keep_their_small_differences() -> None:
    rewards = torch.tensor([1e3, 1e3 + 1e-6], dtype=torch.float64)
    assert group_advantages(rewards, torch.tensor([0, 0]), std_floor=0.0).values.tolist() == pytest.approx([-1, 1])


def test_scale_none_only_subtracts_the_mean() -> None:
    rewards = torch.tensor([0.0, 0.2, 10.0, 30.0])
    values = group_advantages(rewards, torch.tensor([0, 0, 1, 1]), scale="none", std_floor=0.5).values
    assert values.tolist() == pytest.approx([-0.1, 0.1, -10, 10])


def test_std_blows_up_a_pure_cost_difference_and_none_does_not() -> None:
    """Task rewards tie; only the cost differs. Under "std" its weight does not matter at all."""
    tokens = torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    groups = torch.zeros(3, dtype=torch.long)
    small, large = -1e-3 * tokens, -1.0 * tokens
    torch.testing.assert_close(
        group_advantages(small, groups, std_floor=0.0).values, group_advantages(large, groups, std_floor=0.0).values
    )
    assert group_advantages(small, groups, scale="none").values.abs().max() < 0.02
    assert group_advantages(small, groups, std_floor=0.1).values.abs().max() < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3, -1e7 / 3])
@pytest.mark.parametrize("std_floor", [0.0, 1e-4])
def test_tied_groups_are_exactly_zero_marked_and_counted(reward, std_floor, dtype) -> None:
    """The mean of equal floats need not be that float; residue over a tiny deviation must not become an advantage."""
    rewards = torch.tensor([reward] * 7 + [0.0, 1.0], dtype=dtype)
    groups = torch.tensor([4] * 7 + [5] * 2)
    advantages = group_advantages(rewards, groups, std_floor=std_floor)
    assert (advantages.values[:7] == 0).all()
    assert (advantages.values[7:] != 0).all()
    assert advantages.zero_variance.tolist() == [True] * 7 + [False] * 2
    assert advantages.zero_variance_groups == 1
    assert advantages.values.dtype == dtype


def test_the_residue_that_ties_must_not_leave_is_real() -> None:
    rewards = torch.tensor([0.1] * 7, dtype=torch.float64)
    mean = torch.zeros(1, dtype=torch.float64).index_add(0, torch.zeros(7, dtype=torch.long), rewards) / 7
    residue = rewards - mean
    assert (residue != 0).any()
    assert (residue / residue.std(correction=0)).abs().max() > 0.9  # noise at full strength
    assert (group_advantages(rewards, torch.zeros(7, dtype=torch.long), scale="none").values == 0).all()


def test_spread_that_underflows_is_no_spread() -> None:
    advantages = group_advantages(torch.tensor([0.0, 1e-200], dtype=torch.float64), torch.tensor([0, 0]), std_floor=0.0)
    assert advantages.values.tolist() == [0, 0]
    assert advantages.zero_variance_groups == 1


def test_skipping_tied_groups_with_the_whole_normaliser_changes_nothing() -> None:
    new, old, mask, _ = batch(3)
    rewards = torch.tensor([0.3] * 4 + [0.0, 1.0, 2.0, 0.0] + [0.1] * 4)
    groups = torch.arange(12) // 4
    advantages = group_advantages(rewards, groups)
    keep = ~advantages.zero_variance
    whole, whole_gradient, _ = run(gspo_loss, new, old, mask, advantages.values)
    kept, kept_gradient, _ = run(
        gspo_loss, new[keep], old[keep], mask[keep], advantages.values[keep], normaliser=loss_normaliser(mask)
    )
    assert keep.sum() == 4
    assert kept == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(kept_gradient, whole_gradient[keep], atol=1e-12, rtol=0)
    assert (whole_gradient[~keep] == 0).all()


def test_unscorable_rows_get_zero_and_do_not_enter_the_mean() -> None:
    rewards = torch.tensor([0.0, math.nan, 1.0, math.inf, 5.0, 7.0], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 0, 1, 1])
    valid = torch.tensor([True, False, True, False, True, True])
    advantages = group_advantages(rewards, groups, valid=valid, std_floor=0.0)
    assert advantages.values.tolist() == pytest.approx([-1, 0, 1, 0, -1, 1])
    assert advantages.invalid_rows == 2
    assert not advantages.zero_variance.any()


def test_group_left_with_one_or_no_scorable_row_teaches_nothing() -> None:
    rewards = torch.tensor([3.0, math.nan, math.nan, math.nan, 0.0, 1.0])
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    valid = torch.tensor([True, False, False, False, True, True])
    for scale in ("std", "none"):
        for correction in (0, 1):
            advantages = group_advantages(rewards, groups, valid=valid, scale=scale, correction=correction)
            assert advantages.values[:4].tolist() == [0, 0, 0, 0]
            assert advantages.zero_variance.tolist() == [True] * 4 + [False] * 2
            assert advantages.zero_variance_groups == 2
            assert advantages.invalid_rows == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=12),
    st.sampled_from(["std", "none"]),
    st.sampled_from([0.0, 1e-4, 0.1]),
)
def test_advantages_are_finite_centred_and_keep_the_order_of_rewards(rewards, scale, std_floor) -> None:
    tensor = torch.tensor(rewards, dtype=torch.float64)
    values = group_advantages(
        tensor, torch.zeros(len(rewards), dtype=torch.long), scale=scale, std_floor=std_floor
    ).values
    assert values.isfinite().all()
    scale_of_values = max(1.0, float(values.abs().max()))
    assert abs(float(values.sum())) < 1e-6 * scale_of_values * len(rewards)
    order = tensor.argsort()
    assert (values[order].diff() >= 0).all()


def test_advantages_do_not_depend_on_the_order_of_rows() -> None:
    rewards, groups = torch.rand(20, dtype=torch.float64), torch.arange(20) % 4
    order = torch.randperm(20)
    torch.testing.assert_close(
        group_advantages(rewards[order], groups[order]).values, group_advantages(rewards, groups).values[order]
    )


# ---------------------------------------------------------------------------------------------------- KL and entropy


def test_kl_estimate_is_k3_per_token_and_per_sequence() -> None:
    new = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, 0.0]], dtype=torch.float64)
    ref = torch.tensor([[-1.5, -2.0, 9.0], [-0.5, -1.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    expected = [(math.exp(-0.5) - 1 + 0.5) / 2, math.exp(0.5) - 1 - 0.5]
    assert kl_estimate(new, ref, mask).tolist() == pytest.approx(expected, abs=1e-12)


def test_kl_estimate_is_unbiased_over_the_policys_own_samples() -> None:
    torch.manual_seed(0)
    policy, other = torch.randn(5).double().log_softmax(0), torch.randn(5).double().log_softmax(0)
    expected = float((policy.exp() * (policy - other)).sum())
    weights = policy.exp()  # the exact expectation, token by token
    each = kl_estimate(policy[:, None], other[:, None], torch.ones(5, 1, dtype=torch.bool))
    assert float((weights * each).sum()) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32))
def test_kl_estimate_is_finite_and_never_negative(new, ref) -> None:
    mask = torch.ones(1, 1, dtype=torch.bool)
    for dtype in (torch.float32, torch.float64):
        leaf = torch.tensor([[new]], dtype=dtype, requires_grad=True)
        kl = kl_estimate(leaf, torch.tensor([[ref]], dtype=dtype), mask).sum()
        kl.backward()
        assert kl.isfinite()
        assert kl >= 0
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        expected = 1 - math.exp(min(ref - new, 20))
        assert float(leaf.grad) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_kl_estimate_is_not_negative_by_rounding(dtype) -> None:
    small = torch.logspace(-12, -1, 500, dtype=dtype)[:, None]
    for d in (small, -small):
        kl = kl_estimate(torch.zeros_like(d), d, torch.ones_like(d, dtype=torch.bool))
        assert (kl >= 0).all()


def test_kl_gradient_still_pulls_where_the_value_is_bounded() -> None:
    leaf = torch.tensor([[-200.0, -1.0]], requires_grad=True)
    kl_estimate(leaf, torch.tensor([[-1.0, -200.0]]), torch.ones(1, 2, dtype=torch.bool)).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist()[0] == pytest.approx([(1 - math.exp(20)) / 2, 0.5], rel=1e-5)


def test_kl_masks_before_subtracting_and_keeps_the_reference_constant() -> None:
    new, old, mask, _ = batch(0, masked_rows=(2,))
    leaf, ref = new.clone().requires_grad_(), torch.where(mask, old, -math.inf).requires_grad_()
    kl = kl_estimate(torch.where(mask, leaf, -math.inf), ref, mask)
    kl.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
    assert ref.grad is None
    assert kl[2] == 0
    torch.testing.assert_close(kl.detach(), kl_estimate(new, old, mask))


def test_kl_old_and_entropy_are_estimates_over_the_old_policys_samples() -> None:
    new, old, mask, advantages = batch(1, drift=0.3, masked_rows=(0,))
    for loss_function in LOSSES:
        _, metrics = loss_function(new, old, mask, advantages)
        assert metrics["entropy_estimate"] == pytest.approx(-float(old[mask].mean()))
        rows = [
            float(((new[i] - old[i])[mask[i]].exp() - 1 - (new[i] - old[i])[mask[i]]).mean())
            for i in range(1, len(new))
        ]
        assert metrics["kl_old"] == pytest.approx(sum(rows) / len(rows))


def test_ratio_metrics_are_per_sequence() -> None:
    new, old, mask, advantages = batch(2, masked_rows=(3,))
    ratios = [math.exp(float((new[i] - old[i])[mask[i]].mean())) for i in range(len(new)) if i != 3]
    for loss_function in (gspo_loss, gspo_token_loss):
        _, metrics = loss_function(new, old, mask, advantages)
        assert metrics["ratio_mean"] == pytest.approx(sum(ratios) / len(ratios))
        assert metrics["ratio_min"] == pytest.approx(min(ratios))
        assert metrics["ratio_max"] == pytest.approx(max(ratios))
        assert metrics["sequences"] == 11
        assert metrics["tokens"] == float(mask.sum())
        assert all(type(value) is float for value in metrics.values())


@EVERY_LOSS
@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_padding_enters_no_extreme(loss_function, drift) -> None:
    """Padding has ratio 1: it must not stand as the smallest (or largest) of ratios that are all above (below) 1."""
    _, old, mask, advantages = batch(2, masked_rows=(3,))
    _, metrics = loss_function(old + drift, old, mask, advantages)
    for name in ("ratio_min", "ratio_mean", "ratio_max"):
        assert metrics[name] == pytest.approx(math.exp(drift)), name


# ----------------------------------------------------------------------------------------------- dispatch and settings


@pytest.mark.parametrize(
    ("ratio", "loss_function"), [("sequence", gspo_loss), ("sequence_token", gspo_token_loss), ("token", grpo_loss)]
)
def test_policy_loss_passes_every_setting_on(ratio, loss_function) -> None:
    new, old, mask, advantages = batch(0, drift=0.5)
    chosen = ObjectiveSettings(
        ratio=ratio, epsilon_low=0.1, epsilon_high=0.3, log_ratio_limit=0.4, sequence_weighting="length"
    )
    value, gradient, metrics = run(
        lambda *args: policy_loss(chosen, *args, normaliser=17.0), new, old, mask, advantages
    )
    expected, expected_gradient, expected_metrics = run(
        loss_function,
        *(new, old, mask, advantages),
        epsilon_low=0.1,
        epsilon_high=0.3,
        log_ratio_limit=0.4,
        sequence_weighting="length",
        normaliser=17.0,
    )
    assert (value, metrics) == (expected, expected_metrics)
    assert torch.equal(gradient, expected_gradient)
    plain = run(loss_function, new, old, mask, advantages)[0]
    assert value != plain


def test_defaults_are_the_papers() -> None:
    chosen = ObjectiveSettings()
    assert (chosen.ratio, chosen.epsilon_low, chosen.epsilon_high) == ("sequence", 3e-4, 4e-4)
    assert (chosen.advantage_scale, chosen.sequence_weighting, chosen.kl_coefficient) == ("std", "mean", 0.0)
    new, old, mask, advantages = batch(0)
    by_default, _ = gspo_loss(new, old, mask, advantages)
    assert by_default == policy_loss(chosen, new, old, mask, advantages)[0]
    assert by_default == gspo_loss(new, old, mask, advantages, **BAND)[0]


@pytest.mark.parametrize("ratio", ["sequence", "sequence_token", "token"])
def test_penalty_is_added_with_its_coefficient(ratio) -> None:
    new, old, mask, advantages = batch(0, masked_rows=(1,))
    plain = policy_loss(ObjectiveSettings(ratio=ratio), new, old, mask, advantages)[0]
    penalised, metrics = policy_loss(
        ObjectiveSettings(ratio=ratio, kl_coefficient=0.3), new, old, mask, advantages, reference_logprobs=old - 0.5
    )
    kl = float(kl_estimate(new, old - 0.5, mask).sum() / 11)
    assert metrics["kl_reference"] == pytest.approx(kl)
    assert float(penalised) == pytest.approx(float(plain) + 0.3 * kl, abs=1e-12)


def test_reference_without_penalty_is_only_measured() -> None:
    new, old, mask, advantages = batch(0)
    value, gradient, _ = run(gspo_loss, new, old, mask, advantages)
    measured, measured_gradient, metrics = run(
        lambda *args: policy_loss(ObjectiveSettings(), *args, reference_logprobs=old - 0.5), new, old, mask, advantages
    )
    assert measured == value
    assert torch.equal(measured_gradient, gradient)
    assert metrics["kl_reference"] > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ratio", "sentence"),
        ("epsilon_low", 0.0),
        ("epsilon_low", 1.0),
        ("epsilon_low", math.nan),
        ("epsilon_high", 0.0),
        ("epsilon_high", math.inf),
        ("advantage_scale", "batch"),
        ("std_floor", -1e-4),
        ("std_floor", math.nan),
        ("log_ratio_limit", 0.0),
        ("log_ratio_limit", 1e-4),  # inside the band: the clip could never bind
        ("log_ratio_limit", 100.0),
        ("sequence_weighting", "tokens"),
        ("kl_coefficient", -0.1),
        ("kl_coefficient", math.nan),
    ],
)
def test_settings_refuse_what_has_no_meaning(field, value) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value!r}"):
        ObjectiveSettings(**{field: value})


@EVERY_LOSS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b | {"mask": b["mask"].float()}, "mask is torch.float32; expected bool"),
        (lambda b: b | {"mask": b["mask"][:, 1:]}, "mask has shape"),
        (lambda b: b | {"old_logprobs": b["old_logprobs"][1:]}, "old or reference logprobs"),
        (lambda b: b | {"logprobs": b["logprobs"][0]}, "expected \\[N, T\\]"),
        (lambda b: {name: tensor[..., :0] for name, tensor in b.items()}, "undefined for an empty response"),
        (lambda b: {name: tensor[:0] for name, tensor in b.items()}, "at least one row"),
        (lambda b: b | {"logprobs": b["logprobs"].long()}, "expected floating point"),
        (lambda b: b | {"advantages": b["advantages"][1:]}, "advantages have shape"),
        (lambda b: b | {"advantages": b["advantages"].index_fill(0, torch.tensor(2), math.nan)}, "row 2 is nan"),
        (
            lambda b: b | {"logprobs": b["logprobs"].index_fill(1, torch.tensor(0), math.nan)},
            "row 0, position 0 counts",
        ),
        (lambda b: b | {"old_logprobs": b["old_logprobs"] - math.inf}, "position 0 counts but has .* and -inf"),
    ],
    ids=["mask dtype", "mask", "old", "1-D", "T = 0", "N = 0", "integer", "A shape", "A nan", "nan", "-inf"],
)
def test_bad_input_is_named(loss_function, change, message) -> None:
    new, old, mask, advantages = batch(0)
    tensors = change({"logprobs": new, "old_logprobs": old, "mask": mask, "advantages": advantages})
    with pytest.raises(ValueError, match=message):
        loss_function(**tensors)


def test_token_advantages_are_refused_by_the_sequence_loss() -> None:
    new, old, mask, _ = batch(0)
    with pytest.raises(ValueError, match="per-token advantages need gspo_token_loss"):
        gspo_loss(new, old, mask, torch.ones_like(new))


@pytest.mark.parametrize("normaliser", [0.0, -1.0, math.nan, math.inf])
def test_useless_normaliser_is_refused(normaliser) -> None:
    with pytest.raises(ValueError, match="normaliser is"):
        gspo_loss(*batch(0), normaliser=normaliser)


@EVERY_LOSS
@pytest.mark.parametrize("bad", [{"epsilon_low": 1.5}, {"epsilon_high": -1.0}, {"log_ratio_limit": 500.0}])
def test_losses_check_their_band_as_settings_do(loss_function, bad) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        loss_function(*batch(0), **bad)


def test_unknown_weighting_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence_weighting is 'sum'"):
        gspo_loss(*batch(0), sequence_weighting="sum", normaliser=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sequence_weighting is 'sum'"):
        loss_normaliser(batch(0)[2], "sum")  # type: ignore[arg-type]


def test_penalty_needs_a_reference() -> None:
    with pytest.raises(ValueError, match=r"kl_coefficient is 0\.1 but reference_logprobs is None"):
        policy_loss(ObjectiveSettings(kl_coefficient=0.1), *batch(0))


def test_noise_floor_of_nothing_is_refused() -> None:
    new, old, mask, _ = batch(0)
    with pytest.raises(ValueError, match="no token at all"):
        noise_floor(new, old, torch.zeros_like(mask))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_reward_that_is_no_number_names_row_and_group(reward) -> None:
    with pytest.raises(ValueError, match=r"row 2 \(group 7\) is .*valid=False"):
        group_advantages(torch.tensor([0.0, 1.0, reward, 1.0]), torch.tensor([3, 3, 7, 7]))


def test_group_of_one_is_refused_verl() -> None:
    """verl lets it keep its raw score as an advantage."""
    with pytest.raises(ValueError, match=r"group 8 has one member.*at least two"):
        group_advantages(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([3, 3, 8]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rewards": torch.zeros(2, 2)}, "rewards have shape"),
        ({"rewards": torch.zeros(0), "groups": torch.zeros(0, dtype=torch.long)}, "at least one row"),
        ({"groups": torch.zeros(3, dtype=torch.long)}, "must agree"),
        ({"groups": torch.zeros(4)}, "expected integer ids"),
        ({"valid": torch.ones(4)}, "valid is torch.float32"),
        ({"valid": torch.ones(3, dtype=torch.bool)}, "valid has shape"),
        ({"scale": "batch"}, "scale is 'batch'"),
        ({"std_floor": -1.0}, "std_floor is -1.0"),
        ({"correction": 2}, "correction is 2"),
    ],
)
def test_bad_groups_are_named(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(**({"rewards": torch.rand(4), "groups": torch.tensor([0, 0, 1, 1])} | arguments))


# ---------------------------------------------------------------------------------------------------- combining metrics


def test_combining_passes_over_empty_parts_and_refuses_strangers() -> None:
    new, old, mask, advantages = batch(0)
    _, full = gspo_loss(new, old, mask, advantages)
    _, empty = gspo_loss(new, old, torch.zeros_like(mask), advantages)
    assert combine_metrics([empty, full, empty]) == pytest.approx(full)
    assert math.isnan(combine_metrics([empty, empty])["ratio_mean"])
    assert combine_metrics([empty, empty])["sequences"] == 0
    with pytest.raises(ValueError, match="no metrics"):
        combine_metrics([])
    with pytest.raises(ValueError, match="different metrics"):
        combine_metrics([full, {"sequences": 1.0}])
    with pytest.raises(ValueError, match=r"cannot combine \['speed'\]"):
        combine_metrics([full | {"speed": 1.0}])


def test_objective_knows_torch_alone() -> None:
    tree = ast.parse(Path(objective.__file__).read_text(encoding="utf-8"))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or "."] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported - sys.stdlib_module_names == {"torch"}
