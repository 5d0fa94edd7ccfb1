"""Log-probabilities of given replies: what the loss differentiates, and what the sampler is checked against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from agent_gspo_core.generation import left_pad
from agent_gspo_core.policy import Policy


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

    Prompts end and replies begin at the same column, so the head runs only where a reply token is predicted. Logits
    are divided by the sampling temperature and normalised in fp32.

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


def token_budget_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut rows into micro-batches of at most `budget` tokens, padding included, longest first.

    A single row above the budget forms a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
