"""Log-probabilities of given replies: what the loss differentiates, and what the sampler is checked against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from agent_gspo_core.decoder import LeanDecoder
from agent_gspo_core.generation import left_pad
from agent_gspo_core.policy import Policy
from agent_gspo_core.prefixes import build_tree, prefix_batches

_HEAD_NUMBERS = 1 << 24
"""Most logits that the head makes at once, 64 MiB in fp32 (ours): over a vocabulary of 10⁵ the logits of a mini-batch
are larger than everything else that its backward pass keeps."""


def right_pad(rows: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as values [N, T] and mask [N, T], aligned at the left."""
    width = max(len(row) for row in rows)
    values = torch.full((len(rows), width), fill, dtype=dtype)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        values[i, : len(row)] = torch.tensor(row, dtype=dtype)
        mask[i, : len(row)] = True
    return values, mask


def score(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the replies' tokens given their prompts.

    What rows have in common at their beginning is computed once, with its gradients added up, and the head runs only
    where a reply token is predicted, in pieces. Models that `LeanDecoder` does not cover go through padded rows, in
    which prompts end and replies begin at the same column. Logits are divided by the sampling temperature and
    normalised in fp32.

    Args:
        policy: whose log-probabilities.
        prompts: N rows of token ids.
        replies: N rows of token ids, none empty, end tokens included.
        temperature: the one used in sampling (a positive number).

    Returns:
        (logprobs [N, T] in fp32, zero on padding; mask [N, T] bool), differentiable.

    Raises:
        ValueError: no rows, lists of unequal length, an empty prompt or reply, a temperature that is not positive.
    """
    if not 0 < temperature < math.inf:  # also catches NaN
        raise ValueError(f"score: temperature must be positive, got {temperature}")
    if len(prompts) != len(replies):
        raise ValueError(f"score: {len(prompts)} prompts but {len(replies)} replies; every reply needs its prompt")
    if not replies:
        raise ValueError("score: no rows given; there is nothing to score")
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        if not prompt or not reply:
            what = "prompt" if not prompt else "reply"
            raise ValueError(f"score: {what} {i} is empty; even silence is one end token, and something precedes it")
    lean = LeanDecoder.of(policy)
    if lean is None:
        return _score_padded(policy, prompts, replies, temperature)
    tree = build_tree([(*prompt, *reply) for prompt, reply in zip(prompts, replies, strict=True)], policy.device)
    targets, mask = (part.to(policy.device) for part in right_pad(replies, policy.pad_id, torch.long))
    # Position t predicts token t + 1: the prompt's last token is asked, the reply's last is not. M tokens in all.
    asked = torch.cat([path[len(prompt) - 1 : -1] for path, prompt in zip(tree.paths, prompts, strict=True)])
    picked = pick_logprobs(lean.head, lean.hidden(tree)[asked], targets[mask], temperature)
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, picked), mask


def _score_padded(
    policy: Policy, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], temperature: float
) -> tuple[Tensor, Tensor]:
    """`score` through the model's own forward."""
    prompt_ids, prompt_mask = left_pad(prompts, policy.pad_id)
    reply_ids, mask = right_pad(replies, policy.pad_id, torch.long)
    device = policy.device
    ids = torch.cat([prompt_ids, reply_ids], dim=1).to(device)
    attention = torch.cat([prompt_mask, mask.long()], dim=1).to(device)
    reply_ids, mask = reply_ids.to(device), mask.to(device)
    logits = policy.forward(
        input_ids=ids,
        attention_mask=attention,
        position_ids=(attention.cumsum(-1) - 1).clamp_(min=0),
        use_cache=False,
        logits_to_keep=reply_ids.shape[1] + 1,
    ).logits[:, -reply_ids.shape[1] - 1 : -1]  # [N, T, V]; position t predicts token t + 1
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    picked = logprobs.gather(-1, reply_ids[..., None])[..., 0]
    return torch.where(mask, picked, 0.0), mask


def pick_logprobs(
    head: Any, hidden: Tensor, targets: Tensor, temperature: float = 1.0, *, numbers: int = _HEAD_NUMBERS
) -> Tensor:
    """Log-probabilities [M] in fp32 of tokens `targets` [M] under the head's distribution at hidden states [M, E].

    No more than about `numbers` logits exist at once, in the forward pass and in the backward pass. A head that is not
    trained needs no second look: log p(y) is one number a row, whose gradient by the hidden state, (w_y − Σ p_v w_v)/τ,
    is known as soon as the logits are. A trained head makes them again in the backward pass.
    """
    rows = max(1, numbers // head.weight.shape[0])
    if not any(p.requires_grad for p in head.parameters()):
        return _FrozenHead.apply(hidden, targets, head, temperature, rows)  # type: ignore[no-any-return, no-untyped-call]

    def pick(part: Tensor, wanted: Tensor) -> Tensor:
        logprobs = torch.log_softmax(head(part).float() / temperature, dim=-1)
        return logprobs.gather(-1, wanted[:, None])[:, 0]

    parts = list(zip(hidden.split(rows), targets.split(rows), strict=True))
    if len(parts) == 1 or not torch.is_grad_enabled():
        return torch.cat([pick(*part) for part in parts])
    return torch.cat([checkpoint(pick, *part, use_reentrant=False) for part in parts])


class _FrozenHead(torch.autograd.Function):
    """`pick_logprobs` for a head without a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, targets: Tensor, head: Any, temperature: float, rows: int) -> Tensor:
        picked = hidden.new_empty(len(targets), dtype=torch.float32)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # [M, E], of each row's own value
        weight = head.weight.float()
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            logits = head(hidden[part]).float().div_(temperature)  # [m, V]
            total = logits.logsumexp(-1, keepdim=True)
            wanted = targets[part, None]
            picked[part] = (logits.gather(-1, wanted) - total)[:, 0]
            if gradient is not None:
                likely = logits.sub_(total).exp_()
                gradient[part] = (F.embedding(targets[part], weight) - likely @ weight) / temperature
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return picked

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (outputs[0][:, None] * gradient).to(gradient.dtype), None, None, None, None


def micro_batches(
    policy: Policy, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]], budget: int
) -> Iterator[list[int]]:
    """Cut rows into micro-batches of which `score` computes at most `budget` tokens at once.

    Where prefixes are shared those are the distinct tokens; elsewhere padding counts, on both sides of the column at
    which replies begin. A single row above the budget forms a batch of its own.
    """
    if LeanDecoder.of(policy) is not None:
        return prefix_batches([(*prompt, *reply) for prompt, reply in zip(prompts, replies, strict=True)], budget)
    return _padded_batches([len(prompt) for prompt in prompts], [len(reply) for reply in replies], budget)


def _padded_batches(prompts: Sequence[int], replies: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Rows of like length together; a batch is as wide as its longest prompt and its longest reply."""
    batch: list[int] = []
    before = behind = 0  # widths of the batch, on both sides of the column at which replies begin
    for i in sorted(range(len(prompts)), key=lambda i: (-prompts[i] - replies[i], -prompts[i], i)):
        before, behind = max(before, prompts[i]), max(behind, replies[i])
        if batch and (len(batch) + 1) * (before + behind) > budget:
            yield batch
            batch, before, behind = [], prompts[i], replies[i]
        batch.append(i)
    if batch:
        yield batch


def token_budget_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut rows into micro-batches of at most `budget` tokens, padding included, longest first.

    A single row above the budget forms a batch of its own.
    """
    return _padded_batches([0] * len(lengths), lengths, budget)
