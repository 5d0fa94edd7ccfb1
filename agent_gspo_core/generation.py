"""Sample many replies at once and keep, for every token, the log-probability under which it was sampled.

One decode loop for all rows: what prompts have in common is read once, the cache is preallocated, rows that have ended
leave the batch and waiting rows take their places. Each row draws from a random stream of its own, so what a row says
depends on its seed and its prompt and not on who else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from agent_gspo_core.decoder import LeanDecoder, RowCache
from agent_gspo_core.policy import Policy
from agent_gspo_core.prefixes import build_tree, prefix_batches


@dataclass(frozen=True)
class Completion:
    """One sampled reply."""

    token_ids: tuple[int, ...]
    """Sampled ids, the end token included if one was reached."""
    logprobs: tuple[float, ...]
    """Their log-probabilities in fp32 at the sampling temperature (at temperature 1 when decoding greedily)."""
    truncated: bool
    """The cap was reached before an end token."""


_ADMISSION = 8
"""Waiting rows are admitted once this share of the slots (1/8) is free: prompts are read in batches too (ours)."""
_PREFILL_TOKENS = 1 << 14
"""Most distinct prompt tokens read at once; bounds memory (ours)."""


class PreallocatedLayer(DynamicLayer):
    """A layer's keys and values in one buffer: a decode step writes one column where `DynamicLayer` copies everything.

    For sampling only: it writes in place, so no gradient may flow through it.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append [N, heads, t, d]; returns everything held so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._keys, self._values = self._buffer(key_states), self._buffer(value_states)
        end = self.length + key_states.shape[-2]
        self._keys[:, :, self.length : end] = key_states
        self._values[:, :, self.length : end] = value_states
        self.length = end
        return self._show()

    def _buffer(self, like: Tensor) -> Tensor:
        rows, heads, _, size = like.shape
        return like.new_empty((rows, heads, self.capacity, size))

    def _show(self) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[:, :, : self.length], self._values[:, :, : self.length]
        self.keys, self.values = keys, values
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep, drop or repeat rows."""
        self._keys, self._values = self._keys[indices], self._values[indices]
        self._show()


def _new_cache(model: Any, capacity: int) -> Cache:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    if kinds == {"full_attention"}:
        return Cache(layers=[PreallocatedLayer(capacity) for _ in range(config.num_hidden_layers)])
    return DynamicCache(config=config)  # sliding windows and the like keep the library's own layers


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of unequal length as ids [N, T] and mask [N, T], aligned at the right."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids, mask


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: probabilities [N, V], one uniform number in [0, 1) per row; returns ids [N].

    The sum runs in fp64: over a vocabulary of 10⁵ an fp32 sum loses the tail.
    """
    cumulative = probabilities.double().cumsum(-1)
    # Scaling by the sum as computed keeps a uniform just below 1 inside the vocabulary.
    threshold = uniforms.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    caps: Sequence[int],
    seeds: Sequence[int],
    temperature: float = 1.0,
    must_speak: Sequence[bool] | None = None,
    batch_rows: int | None = None,
) -> list[Completion]:
    """Sample one reply for each prompt.

    There is no top-p and no top-k: truncated sampling would make the kept log-probabilities those of another policy
    (trl#4159).

    Args:
        policy: who speaks.
        prompts: N rows of token ids, none empty.
        caps: most tokens of each reply, end token included.
        seeds: seed of each row's own random stream.
        temperature: divides the logits; 0 decodes greedily.
        must_speak: rows that may not end at once: end tokens are masked at their first position. The kept
            log-probabilities are those of the policy without the mask, so that a scoring pass finds the same ones.
        batch_rows: most rows decoded at once, all if `None`; bounds memory, does not change what is said. Waiting rows
            are admitted as others end, the longest first.

    Raises:
        ValueError: empty prompt, cap below 1, a row longer than the context, a negative or infinite temperature,
            a policy whose outputs are not finite.
    """
    if not prompts:
        return []
    if not len(prompts) == len(caps) == len(seeds):
        raise ValueError(f"sample: {len(prompts)} prompts, {len(caps)} caps and {len(seeds)} seeds; all must agree")
    if must_speak is not None and len(must_speak) != len(prompts):
        raise ValueError(f"sample: {len(prompts)} prompts but must_speak has {len(must_speak)} entries; give one each")
    if not 0 <= temperature < math.inf:  # also catches NaN
        raise ValueError(f"sample: temperature must be 0 (greedy) or positive, got {temperature}")
    for i, (prompt, cap) in enumerate(zip(prompts, caps, strict=True)):
        if not prompt:
            raise ValueError(f"sample: prompt {i} is empty; it needs at least one token")
        if cap < 1:
            raise ValueError(f"sample: the cap of row {i} is {cap}; a message needs at least its end token")
        if len(prompt) + cap > policy.context:
            raise ValueError(
                f"sample: row {i} needs {len(prompt)} prompt tokens + {cap} new tokens, but the policy's context is "
                f"{policy.context}; shorten the messages (round cap), the rounds or the team"
            )
    if batch_rows is not None and batch_rows < 1:
        raise ValueError(f"sample: batch_rows must be at least 1, got {batch_rows}")
    device = policy.device
    slots = min(len(prompts), batch_rows or len(prompts))
    batch = _open_batch(policy, slots, prompts, caps)
    # The longest first: short ones at the end leave few steps in which the batch is nearly empty.
    waiting = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]) - caps[i])

    limits = torch.tensor(list(caps), device=device)
    forced = torch.tensor(list(must_speak) if must_speak else [False] * len(prompts), device=device)
    uniforms = _uniforms(seeds, max(caps)).to(device)
    ends = torch.tensor(sorted(policy.end_ids), device=device)
    said = torch.full((len(prompts), max(caps)), policy.pad_id, device=device)
    said_logprobs = torch.zeros((len(prompts), max(caps)), device=device)
    lengths = torch.zeros(len(prompts), dtype=torch.long, device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    rows = torch.empty(0, dtype=torch.long, device=device)  # which prompt each live row answers
    logits: Tensor | None = None  # [live rows, V] in fp32, of each one's next token
    while waiting or len(rows):
        free = slots - len(rows)
        if waiting and (not len(rows) or (batch.joins and free >= min(len(waiting), max(1, slots // _ADMISSION)))):
            chosen, waiting = sorted(waiting[:free], key=lambda i: tuple(prompts[i])), waiting[free:]
            fresh = batch.admit([tuple(prompts[i]) for i in chosen])
            logits = fresh if logits is None or not len(rows) else torch.cat([logits, fresh])
            rows = torch.cat([rows, torch.tensor(chosen, device=device)])
        assert logits is not None
        at = lengths[rows]  # tokens said so far
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        allowed, weights = logits, logprobs.exp()
        must = forced[rows] & (at == 0)
        if must_speak is not None and bool(must.any()):
            silent = torch.zeros_like(logits, dtype=torch.bool)
            silent[:, ends] = must[:, None]
            allowed = logits.masked_fill(silent, -math.inf)
            # Normalised anew, because beside a sure end token the rest would round to nothing.
            weights = torch.where(must[:, None], torch.softmax(allowed / (temperature or 1.0), dim=-1), weights)
        token = draw(weights, uniforms[rows, at]) if temperature else allowed.argmax(-1)
        said[rows, at] = token
        said_logprobs[rows, at] = logprobs.gather(-1, token[:, None])[:, 0]
        lengths[rows] = at + 1
        stop = torch.isin(token, ends)
        ended[rows] = stop
        live = ~stop & (at + 1 < limits[rows])
        if not bool(live.all()):
            kept = batch.keep(live)
            rows, token = rows[kept], token[kept]
        if len(rows):
            logits = batch.step(token)
    if not bool(said_logprobs.isfinite().all()):
        row = int((~said_logprobs.isfinite()).any(-1).nonzero()[0])
        raise ValueError(
            f"sample: the policy gives row {row} log-probabilities that are NaN or infinite; its weights are damaged "
            "or its dtype overflows. Load a good checkpoint, or use float32"
        )
    ids_out, logprobs_out = said.tolist(), said_logprobs.tolist()
    return [
        Completion(tuple(ids_out[i][:n]), tuple(logprobs_out[i][:n]), truncated=not done)
        for i, (n, done) in enumerate(zip(lengths.tolist(), ended.tolist(), strict=True))
    ]


class _Batch(Protocol):
    """Rows that are being decoded."""

    joins: bool
    """Whether rows may be admitted while others are being decoded."""

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        """Append rows, their prompts in sorted order; returns the logits of their first tokens, [m, V] in fp32."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token [n] to every row; returns the logits of the next, [n, V] in fp32."""

    def keep(self, live: Tensor) -> Tensor:
        """Drop rows where `live` [n] is False; returns where each row that is left stood before, [m]."""


def _open_batch(policy: Policy, slots: int, prompts: Sequence[Sequence[int]], caps: Sequence[int]) -> _Batch:
    """An empty batch in which every one of these rows finds room."""
    lean = LeanDecoder.of(policy)
    if lean is None:
        return _LibraryBatch(policy, max(caps))
    return _LeanBatch(lean, slots, max(caps))


class _LeanBatch:
    """Rows of a model that `LeanDecoder` covers, each at its own length; rows with one prompt read it together."""

    joins = True

    def __init__(self, lean: LeanDecoder, slots: int, capacity: int) -> None:
        self._lean, self._cache = lean, RowCache.empty(lean, slots, capacity)

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        logits = []
        for part in prefix_batches(prompts, _PREFILL_TOKENS):
            distinct, groups = _distinct([prompts[i] for i in part])
            tree = build_tree(distinct, self._cache.lengths.device)
            read: list[tuple[Tensor, Tensor]] = []
            hidden = self._lean.hidden(tree, read)
            self._cache.admit(read, tree.paths, groups)
            ends = torch.stack([path[-1] for path in tree.paths])
            logits.append(self._lean.logits(hidden[ends])[groups])
        return torch.cat(logits)

    def step(self, tokens: Tensor) -> Tensor:
        return self._lean.logits(self._lean.step(tokens, self._cache))

    def keep(self, live: Tensor) -> Tensor:
        return self._cache.keep(live)


class _LibraryBatch:
    """Rows of any model, through its own forward and cache; equal prompts are read once."""

    joins = False

    def __init__(self, policy: Policy, longest_reply: int) -> None:
        self._policy, self._longest_reply = policy, longest_reply

    def admit(self, prompts: Sequence[tuple[int, ...]]) -> Tensor:
        distinct, source = _distinct(prompts)
        ids, mask = (part.to(self._policy.device) for part in left_pad(distinct, self._policy.pad_id))
        self._cache = _new_cache(self._policy.model, ids.shape[1] + self._longest_reply)
        logits = _forward(self._policy, ids, mask, (mask.cumsum(-1) - 1).clamp_(min=0), self._cache)
        _select_rows(self._cache, torch.tensor(source, device=ids.device))
        self._mask = mask[source]
        self._positions = self._mask.sum(-1)  # [n], of the next token
        return logits[source]

    def step(self, tokens: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=-1)
        logits = _forward(self._policy, tokens[:, None], self._mask, self._positions[:, None], self._cache)
        self._positions = self._positions + 1
        return logits

    def keep(self, live: Tensor) -> Tensor:
        kept = live.nonzero()[:, 0]
        if len(kept):
            _select_rows(self._cache, kept)
            self._mask, self._positions = self._mask[kept], self._positions[kept]
        return kept


def _distinct(prompts: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Each wording once, and for every prompt which one it is."""
    places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
    return list(places), [places[prompt] for prompt in prompts]


def _forward(policy: Policy, ids: Tensor, mask: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Logits of the last position, [N, V] in fp32; the cache grows."""
    held = cache.get_seq_length()
    # A step goes in as embeddings: Unsloth's one-token path on a GPU keeps buffers of its own and ignores the cache.
    inputs = {"input_ids": ids} if held == 0 else {"inputs_embeds": policy.model.get_input_embeddings()(ids)}
    out = policy.forward(
        **inputs,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    if out.past_key_values is not cache:  # Unsloth on a GPU: keys and values come back beside an untouched cache
        for layer, (keys, values) in enumerate(out.past_key_values):
            cache.update(keys[:, :, held:], values[:, :, held:], layer)
    return out.logits[:, -1].float()  # type: ignore[no-any-return]


def _select_rows(cache: Cache, indices: Tensor) -> None:
    layer: Any  # not every kind of layer declares the method
    for layer in cache.layers:
        layer.batch_select_indices(indices)


def _uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """One stream of uniform numbers per row, [N, length], from the counter-based Philox generator."""
    streams = [np.random.Generator(np.random.Philox(key=seed)).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(streams))
