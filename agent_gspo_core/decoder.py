"""A lean forward pass for the decoders of the Llama family: one function for scoring, one for decoding.

The library's forward serves every model and every use; on a small model most of its time goes into serving them. The
two here read the same modules (so adapters, tied weights and an fp32 head stay what they are) and compute the same
numbers, on a flat list of tokens without padding (`prefixes.PrefixTree`) and on a cache in which the rows of a group
share their prompt.
`LeanDecoder.of` returns `None` for what they do not cover; callers then go through `Policy.forward`.
"""

from __future__ import annotations

import math
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
        """Final hidden states [n, E] of one new token [n] a row; the cache takes them in. No gradient.

        A row looks at its prompt and at what it has said in two parts, which are then weighed against each other, so
        that the rows of a group read the keys and values of their prompt together.
        """
        x = self.decoder.embed_tokens(tokens)
        rotation = self._rotation(x, cache.lengths)
        n, said = len(tokens), cache.said
        width = cache.longest_said = cache.longest_said + 1
        rows = torch.arange(n, device=tokens.device)
        behind = torch.arange(width, device=tokens.device) > said[:, None]  # [n, width]
        own_bias = torch.zeros(n, 1, 1, width, device=tokens.device).masked_fill_(behind[:, None, None], -math.inf)
        for i, layer in enumerate(self.layers):
            q, k, v = self._project(layer, x, rotation)
            keys, values = cache.keys[i], cache.values[i]
            keys[:n, :, width - 1], values[:n, :, width - 1] = 0, 0  # for rows that have said less
            keys[rows, :, said], values[rows, :, said] = k, v
            q = q.view(n, self.kv_heads, -1, self.size)  # query heads that share a key head, side by side
            own, own_weight = _look(q, keys[:n, :, :width], values[:n, :, :width], own_bias)
            together = q[cache.table].transpose(1, 2)  # [groups, kv_heads, members, g, d]
            shape = together.shape
            read, read_weight = _look(
                together.flatten(2, 3), cache.prompt_keys[i], cache.prompt_values[i], cache.prompt_bias
            )
            read = read.view(shape).transpose(1, 2)[cache.groups, cache.places]
            read_weight = read_weight.view(*shape[:-1], 1).transpose(1, 2)[cache.groups, cache.places]
            seen = torch.lerp(own, read, torch.sigmoid(read_weight - own_weight))  # [n, kv_heads, g, d], fp32
            x = _close(layer, x, seen.to(x.dtype).reshape(n, -1))
        cache.said, cache.lengths = said + 1, cache.lengths + 1
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
    """Keys and values of the rows that are being decoded: of each distinct prompt once, of each reply in a slot.

    The live rows are the first n slots. Rows with the same prompt are a group.
    """

    keys: list[Tensor]
    """A layer's replies, [slots, kv_heads, capacity, d]."""
    values: list[Tensor]
    prompt_keys: list[Tensor]
    """A layer's prompts, [groups, kv_heads, longest prompt, d]."""
    prompt_values: list[Tensor]
    prompt_bias: Tensor
    """[groups, 1, 1, longest prompt]: −∞ behind a prompt's end."""
    lengths: Tensor
    """[n] tokens that a row has read and said: the next token's position."""
    said: Tensor
    """[n] tokens that a row has said."""
    groups: Tensor
    """[n] each row's group."""
    places: Tensor
    """[n] each row's place in its group."""
    table: Tensor
    """[groups, members] the rows of each group; a smaller group repeats row 0, and nobody reads what comes of it."""
    longest_said: int = 0
    """At least the largest of `said`, kept here so that nobody has to ask the device."""

    @classmethod
    def empty(cls, lean: LeanDecoder, slots: int, capacity: int) -> RowCache:
        """Buffers for `slots` rows that say up to `capacity` tokens."""
        weight = lean.decoder.embed_tokens.weight
        none = torch.zeros(0, dtype=torch.long, device=weight.device)

        def buffers(rows: int, tokens: int) -> list[Tensor]:
            return [weight.new_empty(rows, lean.kv_heads, tokens, lean.size) for _ in lean.layers]

        return cls(
            keys=buffers(slots, capacity),
            values=buffers(slots, capacity),
            prompt_keys=buffers(0, 0),
            prompt_values=buffers(0, 0),
            prompt_bias=torch.zeros(0, 1, 1, 0, device=weight.device),
            lengths=none,
            said=none,
            groups=none,
            places=none,
            table=none.view(0, 0),
        )

    def admit(self, kept: Sequence[tuple[Tensor, Tensor]], paths: Sequence[Tensor], groups: Sequence[int]) -> None:
        """Append rows. The prompts' keys and values lie along `paths` in the flat `kept` of `LeanDecoder.hidden`;
        `groups` says which of these prompts each row reads.
        """
        old, width = self.prompt_bias.shape[0], max(self.prompt_bias.shape[-1], *map(len, paths))
        index = torch.nn.utils.rnn.pad_sequence(list(paths), batch_first=True)  # [m, width of the new ones]
        for held, part in ((self.prompt_keys, 0), (self.prompt_values, 1)):
            for i, layer in enumerate(kept):
                fresh = layer[part][index].transpose(1, 2)
                held[i] = torch.cat([_widen(held[i], width, 2), _widen(fresh, width, 2)])
        ends = self.lengths.new_tensor([len(path) for path in paths])
        behind = torch.arange(width, device=ends.device) >= ends[:, None]
        bias = torch.zeros(behind.shape, device=ends.device).masked_fill_(behind, -math.inf)[:, None, None]
        self.prompt_bias = torch.cat([_widen(self.prompt_bias, width, 3, -math.inf), bias])

        first, fresh_groups = len(self.lengths), self.lengths.new_tensor(list(groups))
        for buffer in (*self.keys, *self.values):
            # Attention gives what lies behind a row's end weight 0, and 0 times what memory held may be NaN.
            buffer[first : first + len(groups), :, : self.longest_said] = 0
        self.lengths = torch.cat([self.lengths, ends[fresh_groups]])
        self.said = torch.cat([self.said, torch.zeros_like(fresh_groups)])
        self._arrange(torch.cat([self.groups, fresh_groups + old]))

    def keep(self, live: Tensor) -> Tensor:
        """Drop the rows where `live` [n] is False; returns [m], for each row that is left, where it stood before.

        The last rows move into the gaps, so what is copied is the rows that move and not the whole cache. Prompts that
        nobody reads any more leave when they are a quarter of all.
        """
        count = int(live.sum())
        order = torch.arange(count, device=live.device)
        gaps, movers = (~live[:count]).nonzero()[:, 0], live[count:].nonzero()[:, 0] + count
        if len(gaps):
            order[gaps] = movers
            for buffer in (*self.keys, *self.values):
                buffer[gaps, :, : self.longest_said] = buffer[movers, :, : self.longest_said]
        self.lengths, self.said = self.lengths[order], self.said[order]
        self.longest_said = int(self.said.max()) if count else 0
        read, groups = self.groups[order].unique(return_inverse=True)
        if len(read) <= 0.75 * self.prompt_bias.shape[0]:
            self.prompt_bias = self.prompt_bias[read]
            for held in (self.prompt_keys, self.prompt_values):
                held[:] = [layer[read] for layer in held]
        else:
            groups = self.groups[order]
        self._arrange(groups)
        return order

    def _arrange(self, groups: Tensor) -> None:
        """Note who is in which group, and where."""
        counts = torch.bincount(groups, minlength=self.prompt_bias.shape[0])
        by_group = groups.argsort(stable=True)
        places = torch.empty_like(groups)
        rows = torch.arange(len(groups), device=groups.device)
        places[by_group] = rows - (counts.cumsum(0) - counts)[groups[by_group]]
        self.groups, self.places = groups, places
        self.table = groups.new_zeros(len(counts), int(counts.max()) if len(groups) else 0)
        self.table[groups, places] = rows


def _widen(x: Tensor, width: int, dim: int, fill: float = 0.0) -> Tensor:
    """`x` with `dim` filled up to `width` at its end."""
    missing = width - x.shape[dim]
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing), value=fill) if missing else x


def _look(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of q [b, h, m, d] to k and v [b, h, w, d] in fp32, and the log of its summed weights [b, h, m, 1].

    Two parts a and b of one attention make the whole: a · σ(w_a − w_b) + b · σ(w_b − w_a).
    """
    scores = torch.matmul(q, k.transpose(-1, -2)).float().mul_(q.shape[-1] ** -0.5).add_(bias)
    weight = scores.logsumexp(-1, keepdim=True)
    return torch.matmul(scores.sub_(weight).exp_().to(v.dtype), v).float(), weight


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
    return x + mlp.down_proj(mlp.act_fn(mlp.gate_proj(y)) * mlp.up_proj(y))  # type: ignore[no-any-return]
