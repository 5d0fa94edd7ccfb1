"""A lean forward pass for the decoders of the Llama family: one function for scoring, one for decoding.

The library's forward serves every model and every use; on a small model most of its time goes into serving them. The
two here read the same modules (so adapters, tied weights and an fp32 head stay what they are) and compute the same
numbers, on a flat list of tokens without padding (`prefixes.PrefixTree`) and on a preallocated cache.
`LeanDecoder.of` returns `None` for what they do not cover; callers then go through `Policy.forward`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agent_gspo_core.policy import Policy
from agent_gspo_core.prefixes import PrefixTree

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types whose layers are: norm, attention with rotary positions, norm, gated product; full attention only."""

_DECODERS = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"})


@dataclass(frozen=True)
class LeanDecoder:
    """A policy's decoder and head, as modules."""

    decoder: Any
    head: Any
    heads: int
    kv_heads: int
    size: int
    """Numbers per head, d."""

    @classmethod
    def of(cls, policy: Policy) -> LeanDecoder | None:
        """The lean form of a policy, or `None` if its model is of another kind or another backend runs it."""
        if policy.settings.backend != "transformers":
            return None
        model = policy.model.get_base_model() if hasattr(policy.model, "peft_config") else policy.model
        config = model.config
        if config.model_type not in FAMILIES or getattr(config, "sliding_window", None) is not None:
            return None
        decoder = model.get_decoder()
        full = set(getattr(config, "layer_types", None) or ("full_attention",)) == {"full_attention"}
        if not full or type(decoder).__name__ not in _DECODERS:
            return None
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(decoder, model.get_output_embeddings(), config.num_attention_heads, config.num_key_value_heads, size)

    @property
    def layers(self) -> list[Any]:
        """Its layers, first to last."""
        return list(self.decoder.layers)

    def hidden(self, tree: PrefixTree, kept: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Final hidden states of a tree's tokens, [T, E]; differentiable.

        `kept`, if given, receives each layer's keys and values, [T, kv_heads, d] each.
        """
        x = self.decoder.embed_tokens(tree.ids)  # [T, E]
        rotation = self._rotation(x, tree.positions)
        masks = [block.visible.repeat(1, 1, self.heads // self.kv_heads, 1) for block in tree.blocks]
        for layer in self.layers:
            q, k, v = self._project(layer, x, rotation)
            if kept is not None:
                kept.append((k, v))
            seen = [
                self._attend(q[block.queries], k[block.keys], v[block.keys], mask).flatten(0, 1)[block.places]
                for block, mask in zip(tree.blocks, masks, strict=True)
            ]
            x = _close(layer, x, seen[0] if len(seen) == 1 else torch.cat(seen))
        return _norm(self.decoder.norm, x)

    def step(self, tokens: Tensor, cache: RowCache) -> Tensor:
        """Final hidden states [n, E] of one new token [n] a row; the cache takes them in. No gradient."""
        x = self.decoder.embed_tokens(tokens)
        positions = cache.lengths
        rotation = self._rotation(x, positions)
        cache.longest += 1
        n, width = len(tokens), cache.longest
        rows = torch.arange(n, device=tokens.device)
        # Rows fold their query heads into the query axis, so that grouped keys are read once and never repeated.
        visible = (torch.arange(width, device=tokens.device) <= positions[:, None])[:, None, None]  # [n, 1, 1, k]
        mask = visible.expand(-1, -1, self.heads // self.kv_heads, -1)
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            q, k, v = self._project(layer, x, rotation)
            keys[:n, :, width - 1], values[:n, :, width - 1] = 0, 0  # for rows that are shorter
            keys[rows, :, positions], values[rows, :, positions] = k, v
            folded = q.view(n, self.kv_heads, -1, self.size)
            seen = F.scaled_dot_product_attention(folded, keys[:n, :, :width], values[:n, :, :width], attn_mask=mask)
            x = _close(layer, x, seen.reshape(n, -1))
        cache.lengths = positions + 1
        return _norm(self.decoder.norm, x)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head's output for hidden states, in fp32."""
        return self.head(hidden).float()  # type: ignore[no-any-return]

    def _rotation(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [T, 1, d/2]; the library repeats them to d."""
        cos, sin = self.decoder.rotary_emb(x[None], positions[None])
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half], sin[0, :, None, :half]

    def _project(self, layer: Any, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, heads, d], keys and values [T, kv_heads, d], positions turned in."""
        attention = layer.self_attn
        x = _norm(layer.input_layernorm, x)
        q = attention.q_proj(x).view(-1, self.heads, self.size)
        k = attention.k_proj(x).view(-1, self.kv_heads, self.size)
        v = attention.v_proj(x).view(-1, self.kv_heads, self.size)
        if hasattr(attention, "q_norm"):  # Qwen3
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        return _rotate(q, rotation), _rotate(k, rotation), v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """[n, q, heads · d] from queries [n, q, heads, d], keys and values [n, k, kv_heads, d], mask [n, 1, g · q, k],
        where g query heads share a key head.
        """
        n, width = q.shape[:2]
        folded = (
            q.view(n, width, self.kv_heads, -1, self.size)
            .permute(0, 2, 3, 1, 4)
            .reshape(n, self.kv_heads, -1, self.size)
        )
        seen = F.scaled_dot_product_attention(folded, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return seen.view(n, self.heads, width, self.size).transpose(1, 2).reshape(n, width, -1)


@dataclass
class RowCache:
    """Keys and values of the rows that are being decoded, in buffers of fixed size: [slots, kv_heads, capacity, d]."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    """[n] tokens held of each live row; live rows are the first n slots."""
    longest: int = 0
    """At least the largest of them, kept here so that nobody has to ask the device."""

    @classmethod
    def empty(cls, lean: LeanDecoder, slots: int, capacity: int) -> RowCache:
        """Buffers for `slots` rows of up to `capacity` tokens."""
        weight = lean.decoder.embed_tokens.weight
        shape = (slots, lean.kv_heads, capacity, lean.size)
        buffers = [[weight.new_empty(shape) for _ in lean.layers] for _ in range(2)]
        return cls(*buffers, lengths=torch.zeros(0, dtype=torch.long, device=weight.device))

    def admit(self, kept: Sequence[tuple[Tensor, Tensor]], paths: Sequence[Tensor]) -> None:
        """Append rows whose keys and values lie along `paths` in the flat `kept` of `LeanDecoder.hidden`."""
        first, width = len(self.lengths), max(map(len, paths))
        index = torch.nn.utils.rnn.pad_sequence(list(paths), batch_first=True)  # [m, width]
        for buffers, part in ((self.keys, 0), (self.values, 1)):
            for buffer, layer in zip(buffers, kept, strict=True):
                buffer[first : first + len(paths), :, :width] = layer[part][index].transpose(1, 2)
                # Attention gives what lies behind a row's end weight 0, and 0 times what memory held may be NaN.
                buffer[first : first + len(paths), :, width : self.longest] = 0
                buffer[:first, :, self.longest : width] = 0
        self.lengths = torch.cat([self.lengths, self.lengths.new_tensor([len(path) for path in paths])])
        self.longest = max(self.longest, width)

    def keep(self, live: Tensor) -> Tensor:
        """Drop the rows where `live` [n] is False; returns [m], for each row that is left, where it stood before.

        The last rows move into the gaps, so what is copied is the rows that move and not the whole cache.
        """
        count = int(live.sum())
        order = torch.arange(count, device=live.device)
        gaps, movers = (~live[:count]).nonzero()[:, 0], live[count:].nonzero()[:, 0] + count
        if len(gaps):
            order[gaps] = movers
            for buffer in (*self.keys, *self.values):
                buffer[gaps, :, : self.longest] = buffer[movers, :, : self.longest]
        self.lengths = self.lengths[order]
        self.longest = int(self.lengths.max()) if count else 0
        return order


def _norm(module: Any, x: Tensor) -> Tensor:
    """Root-mean-square norm in one pass, where the library's module makes five."""
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: [T, heads, d], halves turned against each other."""
    cos, sin = rotation
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _close(layer: Any, x: Tensor, seen: Tensor) -> Tensor:
    """The rest of a layer after its attention: output product, residual, gated product, residual."""
    x = x + layer.self_attn.o_proj(seen)
    mlp = layer.mlp
    y = _norm(layer.post_attention_layernorm, x)
    return x + mlp.down_proj(mlp.act_fn(mlp.gate_proj(y)) * mlp.up_proj(y))
