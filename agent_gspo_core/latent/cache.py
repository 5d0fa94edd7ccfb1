"""The one place that knows the cache interface of transformers (5.15 to 5.17).

A trace is kept as plain tensors, never as a cache: every forward mutates the cache that it is given, also with
use_cache=False, and a cache with gradient cannot be copied. So each forward gets a cache of its own, built here from
the same tensors, and what the forward appended is taken out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as remembered
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from agent_gspo_core.generation import PreallocatedLayer

LayerKV = tuple[Tensor, Tensor]
"""Keys and values of one layer, each [N, heads, t, D]."""
KV = tuple[LayerKV, ...]
"""One entry per layer."""


class CacheInterfaceError(RuntimeError):
    """The installed transformers handles caches in another way than this module expects."""


class _GrowingLayer(DynamicLayer):
    """A layer that holds chunks and shows them joined with what the forward appends; gradient flows through both."""

    def __init__(self, chunks: Sequence[LayerKV]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chunks = list(chunks)
        self._held = sum(keys.shape[-2] for keys, _ in chunks)
        self.appended: LayerKV | None = None
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Join chunks and new states; a forward calls this once per layer."""
        if self.appended is not None:
            raise CacheInterfaceError("latent cache: used for a second forward; build a fresh one for every forward")
        self.appended = (key_states, value_states)
        self.keys = torch.cat([*(keys for keys, _ in self._chunks), key_states], dim=-2)
        self.values = torch.cat([*(values for _, values in self._chunks), value_states], dim=-2)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Columns held."""
        return self._held + (0 if self.appended is None else self.appended[0].shape[-2])


def fresh_cache(layers: int, chunks: Sequence[KV]) -> Cache:
    """A cache for one forward that holds `chunks` side by side; the chunks' tensors are not changed by it."""
    return Cache(layers=[_GrowingLayer([chunk[layer] for chunk in chunks]) for layer in range(layers)])


def appended(cache: Cache) -> KV:
    """What the forward added to a `fresh_cache`."""
    taken: list[LayerKV] = []
    for i, layer in enumerate(cache.layers):
        new = layer.appended if isinstance(layer, _GrowingLayer) else None
        if new is None:
            raise CacheInterfaceError(
                f"latent cache: the forward left layer {i} as it was; this model does not pass its keys and values to "
                "the cache (built-in gradient checkpointing does that: switch it off), so there is no trace to keep"
            )
        taken.append(new)
    return tuple(taken)


def branch_cache(layers: int, chunks: Sequence[KV], capacity: int) -> Cache:
    """A cache to decode on, with room for `capacity` columns in buffers of its own: no gradient, no sharing."""
    cache = Cache(layers=[PreallocatedLayer(capacity) for _ in range(layers)])
    for chunk in chunks:
        for layer, (keys, values) in enumerate(chunk):
            cache.update(keys, values, layer)
    return cache


def select_rows(cache: Cache, rows: Tensor) -> None:
    """Keep, drop or repeat rows of a `branch_cache`."""
    layer: Any  # not every kind of layer declares the method
    for layer in cache.layers:
        layer.batch_select_indices(rows)


def count_layers(model: Any) -> int:
    """Number of layers, for models whose every layer attends to everything.

    Raises:
        ValueError: sliding windows, linear attention and the like forget columns, so their caches hold no whole trace.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    if not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None) is not None:
        kinds = {"sliding_attention"}  # as transformers itself infers it
    if kinds != {"full_attention"} or getattr(config, "num_kv_shared_layers", None):
        raise ValueError(
            f"latent trace: {config.model_type} has layers of kind {', '.join(sorted(kinds))}; a trace needs full "
            "attention with keys and values of its own in every layer (Qwen3, Qwen2.5, Llama, SmolLM2 have it)"
        )
    return int(config.num_hidden_layers)


@remembered
def check_cache_interface() -> None:
    """Try on a two-layer toy model what this module relies on.

    Raises:
        CacheInterfaceError: naming what changed and the versions that are known to work.
    """
    from transformers import LlamaConfig, LlamaModel

    with torch.random.fork_rng(devices=[]):
        config = LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2
        )
        model = LlamaModel(config).eval()
        past = tuple((torch.randn(1, 2, 3, 4, requires_grad=True), torch.randn(1, 2, 3, 4)) for _ in range(2))
    before = [keys.detach().clone() for keys, _ in past]
    try:
        cache = fresh_cache(2, [past])
        out = model(
            input_ids=torch.tensor([[1, 2]]),
            attention_mask=torch.ones(1, 5, dtype=torch.long),
            position_ids=torch.tensor([[3, 4]]),
            past_key_values=cache,
            use_cache=True,
        )
        new = appended(cache)
        decoding = branch_cache(2, [past, new], 6)
        select_rows(decoding, torch.tensor([0, 0]))
        gradient = torch.autograd.grad(out.last_hidden_state.sum(), past[0][0])[0]
        faults = {
            "the forward did not append its own keys and values": any(k.shape != (1, 2, 2, 4) for k, _ in new),
            "no gradient reaches the past": not bool(gradient.abs().sum() > 0),
            "the tensors that a cache was built from were changed": any(
                not torch.equal(keys, kept) for (keys, _), kept in zip(past, before, strict=True)
            ),
            "the length is not counted": cache.get_seq_length() != 5 or decoding.get_seq_length() != 5,
        }
    except (AttributeError, TypeError, IndexError, NotImplementedError, RuntimeError) as error:
        raise CacheInterfaceError(_changed(str(error))) from error
    for fault, found in faults.items():
        if found:
            raise CacheInterfaceError(_changed(fault))


def _changed(what: str) -> str:
    import transformers

    return (
        f"latent cache: the cache interface of transformers {transformers.__version__} is not the one this module was "
        f"written for ({what}); install transformers>=5.15,<=5.17.0, or mend agent_gspo_core/latent/cache.py"
    )
