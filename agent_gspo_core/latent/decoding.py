"""The last agent speaks: score given answers on a trace, and decode new ones.

Decoding starts from a copy of the trace's columns in buffers of its own, so any number of branches can be grown from
one trace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from agent_gspo_core.generation import draw, left_pad
from agent_gspo_core.latent.cache import branch_cache, count_layers, select_rows
from agent_gspo_core.latent.trace import LatentTrace, decoder_of, forward_on
from agent_gspo_core.logprobs import right_pad
from agent_gspo_core.policy import Policy


@dataclass(frozen=True)
class Reply:
    """What the last agent said, and how sure it was."""

    token_ids: tuple[int, ...]
    """Ids, the end token included if one was reached."""
    logprobs: tuple[float, ...]
    """Log-probability of each id under the policy itself (temperature 1, whole vocabulary), fp32."""
    entropies: tuple[float, ...]
    """Entropy in nats of the policy's own distribution at each id, fp32."""
    truncated: bool
    """The cap was reached before an end token."""


def answer_nll(
    policy: Policy, trace: LatentTrace, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> tuple[Tensor, int]:
    """Summed negative log-likelihood of the answers' tokens on a trace, and their number; differentiable.

    The head runs only where an answer's token is predicted: hidden states of other positions never meet the
    vocabulary.

    Raises:
        ValueError: numbers of prompts, answers and rows that differ, an empty prompt or answer, a row longer than the
            context.
    """
    if not len(prompts) == len(answers) == trace.rows:
        raise ValueError(f"latent answers: {len(prompts)} prompts, {len(answers)} answers, {trace.rows} rows of trace")
    if not all(prompts) or not all(answers):
        raise ValueError("latent answers: an empty prompt or answer; even silence is one end token")
    prompt_ids, prompt_mask = left_pad(prompts, policy.pad_id)
    answer_ids, answer_mask = right_pad(answers, policy.pad_id, torch.long)
    ids = torch.cat([prompt_ids, answer_ids], dim=1).to(policy.device)
    mask = torch.cat([prompt_mask, answer_mask.long()], dim=1).to(policy.device)
    _check_context(policy, int((trace.next_position + mask.sum(1)).max()))
    hidden, _, _ = forward_on(policy.model, trace, policy.model.get_input_embeddings()(ids), mask)
    width = answer_ids.shape[1]
    wanted = answer_mask.to(policy.device)
    logits = policy.model.get_output_embeddings()(hidden[:, -width - 1 : -1][wanted])  # position t predicts t + 1
    loss = F.cross_entropy(logits.float(), answer_ids.to(policy.device)[wanted], reduction="sum")
    return loss, int(wanted.sum())


def _check_context(policy: Policy, longest: int) -> None:
    if longest > policy.context:
        raise ValueError(
            f"latent answers: trace, prompt and reply need {longest} positions, but the policy's context is "
            f"{policy.context}; use fewer latent steps, shorter prompts or a shorter answer"
        )


@torch.no_grad()
def decode(
    policy: Policy,
    trace: LatentTrace,
    prompts: Sequence[Sequence[int]],
    *,
    cap: int,
    seeds: Sequence[int],
    temperature: float = 0.0,
    top_p: float = 1.0,
) -> list[Reply]:
    """Read each prompt on its row of the trace and reply.

    Args:
        policy: who speaks.
        trace: N rows; not changed.
        prompts: N rows of token ids, none empty.
        cap: most tokens of a reply, end token included.
        seeds: seed of each row's own random stream.
        temperature: 0 decodes greedily.
        top_p: keep the likeliest tokens that together have this probability (after the temperature).

    Raises:
        ValueError: numbers that do not agree, an empty prompt, cap below 1, temperature or top_p out of range, a row
            longer than the context, a policy whose outputs are not finite.
    """
    if not len(prompts) == len(seeds) == trace.rows:
        raise ValueError(f"latent decoding: {len(prompts)} prompts, {len(seeds)} seeds, {trace.rows} rows of trace")
    if not all(prompts) or cap < 1:
        raise ValueError(f"latent decoding: an empty prompt, or a cap of {cap}; a reply needs at least its end token")
    if not 0 <= temperature < math.inf or not 0 < top_p <= 1:  # also catches NaN
        raise ValueError(f"latent decoding: temperature {temperature} must be 0 or more, top_p {top_p} in (0, 1]")
    device = policy.device
    ids, mask = (part.to(device) for part in left_pad(prompts, policy.pad_id))
    _check_context(policy, int((trace.next_position + mask.sum(1)).max()) + cap)
    hidden, layers, _ = forward_on(policy.model, trace, policy.model.get_input_embeddings()(ids), mask)
    depth = count_layers(policy.model)
    chunks = [*(segment.layers for segment in trace.segments), layers]
    cache = branch_cache(depth, chunks, trace.mask.shape[1] + ids.shape[1] + cap)
    attention = torch.cat([trace.mask, mask], dim=1)
    position = trace.next_position + mask.sum(1)

    decoder, head = decoder_of(policy.model), policy.model.get_output_embeddings()
    ends = torch.tensor(sorted(policy.end_ids), device=device)
    uniforms = _uniforms(seeds, cap).to(device)
    rows = torch.arange(trace.rows, device=device)
    said = torch.full((trace.rows, cap), policy.pad_id, device=device)
    sure = torch.zeros((trace.rows, cap), device=device)
    entropy = torch.zeros_like(sure)
    lengths = torch.zeros(trace.rows, dtype=torch.long, device=device)
    ended = torch.zeros(trace.rows, dtype=torch.bool, device=device)
    logits = head(hidden[:, -1]).float()
    for t in range(cap):
        logprobs = logits.log_softmax(-1)
        if not bool(logprobs.isfinite().all()):
            raise ValueError(
                "latent decoding: the policy gives log-probabilities that are NaN or infinite; its weights are damaged "
                "or its dtype overflows. Load a good checkpoint, or use float32"
            )
        token = logits.argmax(-1)
        if temperature:
            token = draw(_nucleus((logits / temperature).softmax(-1), top_p), uniforms[rows, t])
        said[rows, t] = token
        sure[rows, t] = logprobs.gather(-1, token[:, None])[:, 0]
        entropy[rows, t] = -(logprobs.exp() * logprobs).sum(-1)
        lengths[rows] = t + 1
        stop = torch.isin(token, ends)
        ended[rows] = stop
        if t + 1 == cap or bool(stop.all()):
            break
        if bool(stop.any()):
            kept = (~stop).nonzero()[:, 0]
            select_rows(cache, kept)
            rows, token, attention, position = rows[kept], token[kept], attention[kept], position[kept]
        attention = torch.cat([attention, attention.new_ones(len(rows), 1)], dim=1)
        out = decoder(
            inputs_embeds=policy.model.get_input_embeddings()(token[:, None]),
            attention_mask=attention,
            position_ids=position[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        logits = head(out.last_hidden_state[:, -1]).float()
        position = position + 1
    return [
        Reply(tuple(ids[:n]), tuple(lps[:n]), tuple(ents[:n]), truncated=not done)
        for ids, lps, ents, n, done in zip(
            said.tolist(), sure.tolist(), entropy.tolist(), lengths.tolist(), ended.tolist(), strict=True
        )
    ]


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Probabilities [N, V] with the tail outside the smallest set of mass `top_p` set to 0 (`draw` renormalises)."""
    if top_p == 1:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True)
    before = ordered.double().cumsum(-1) - ordered.double()
    kept = torch.where(before < top_p, ordered, 0.0)  # the first token is always kept
    return torch.zeros_like(probabilities).scatter(-1, order, kept)


def _uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """One stream of uniform numbers per row, [N, length], independent of the batch."""
    streams = [np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(streams))
