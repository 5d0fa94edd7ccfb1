"""The latent trace: agents in order read on one growing cache, think a few latent steps each, and append their segment.

Nothing is overwritten. A segment keeps its own keys and values, so a trace is a tuple of segments, and what is done to
it in the controls (zeroed, another item's, one dropped, built apart and joined) is a function from trace to trace.

Source: DiffMAS (arXiv 2604.21794) stage I, as far as known; the latent step is LatentMAS's (arXiv 2511.20639).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agent_gspo_core.latent.cache import KV, appended, count_layers, fresh_cache
from agent_gspo_core.latent.embedding_map import EmbeddingMap
from agent_gspo_core.policy import Policy


@dataclass(frozen=True, eq=False)
class Segment:
    """What one agent added in one go: the columns of its prompt, or of its latent steps."""

    agent: str
    """Who wrote it."""
    kind: Literal["prompt", "latent"]
    """Read from text, or thought."""
    layers: KV
    """Keys and values, each [N, heads, t, D]."""
    mask: Tensor
    """[N, t]; 0 where padding made unequal prompts equally wide."""
    positions: Tensor
    """[N, t] rotary positions that the keys were computed with."""
    hidden: Tensor | None = None
    """Final hidden states [N, t, E]; latent segments only, for `inspect_trace`."""


@dataclass(frozen=True, eq=False)
class LatentTrace:
    """Segments of N rows side by side, and where each row goes on."""

    segments: tuple[Segment, ...]
    next_position: Tensor
    """[N] rotary position of the next column of each row."""

    @property
    def rows(self) -> int:
        """N."""
        return self.next_position.shape[0]

    @property
    def mask(self) -> Tensor:
        """[N, T], 1 for every column that may be attended to."""
        empty = self.next_position.new_zeros(self.rows, 0)
        return torch.cat([empty, *(segment.mask for segment in self.segments)], dim=1)

    @property
    def positions(self) -> Tensor:
        """[N, T] rotary positions as computed."""
        empty = self.next_position.new_zeros(self.rows, 0)
        return torch.cat([empty, *(segment.positions for segment in self.segments)], dim=1)

    @property
    def layers(self) -> KV:
        """Keys and values of the whole trace, each [N, heads, T, D]."""
        per_layer = zip(*(segment.layers for segment in self.segments), strict=True)
        return tuple((torch.cat([k for k, _ in kvs], -2), torch.cat([v for _, v in kvs], -2)) for kvs in per_layer)

    @property
    def spans(self) -> tuple[tuple[str, str, int, int], ...]:
        """(agent, kind, first column, last column + 1) of every segment."""
        found, start = [], 0
        for segment in self.segments:
            stop = start + segment.mask.shape[1]
            found.append((segment.agent, segment.kind, start, stop))
            start = stop
        return tuple(found)

    def count(self, kind: Literal["prompt", "latent"]) -> Tensor:
        """[N] real columns of one kind: tokens read, or latent steps."""
        found = self.next_position.new_zeros(self.rows)
        return found + sum(segment.mask.sum(1) for segment in self.segments if segment.kind == kind)

    @property
    def kv_bytes(self) -> Tensor:
        """[N] bytes of keys and values in real columns (padding left out, so a row costs what it would cost alone)."""
        if not self.segments:
            return self.next_position.new_zeros(self.rows)
        per_column = sum(
            tensor.shape[1] * tensor.shape[3] * tensor.element_size()
            for pair in self.segments[0].layers
            for tensor in pair
        )
        return self.mask.sum(1) * per_column


def empty_trace(rows: int, *, start: Tensor | int = 0, device: torch.device | str = "cpu") -> LatentTrace:
    """A trace of no columns whose first column will have position `start` ([N], or one for all rows)."""
    begin = start if isinstance(start, Tensor) else torch.full((rows,), start, dtype=torch.long)
    return LatentTrace((), begin.to(device))


def decoder_of(model: Any) -> Any:
    """The transformer under the head, adapters and all: its output is the final hidden state."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return base.get_decoder()


def forward_on(
    model: Any,
    trace: LatentTrace,
    embeds: Tensor,
    mask: Tensor,
    *,
    checkpointing: bool = False,
) -> tuple[Tensor, KV, Tensor]:
    """One forward of `embeds` [N, t, E] with mask [N, t] behind a trace, which stays as it is.

    The mask covers past and new columns and positions go on from the trace's own, so padding in the middle of a trace
    does no harm. With `checkpointing` (non-reentrant) only keys, values and inputs are kept for the backward pass.

    Returns:
        Final hidden states [N, t, E], the new columns' keys and values, their positions [N, t].
    """
    decoder, layers = decoder_of(model), count_layers(model)
    positions = (trace.next_position[:, None] + mask.cumsum(-1) - 1).clamp(min=0)
    attention = torch.cat([trace.mask, mask], dim=1)
    chunks = len(trace.segments)

    def step(embeds: Tensor, *flat: Tensor) -> tuple[Tensor, ...]:
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        past = [tuple(pairs[chunk * layers : (chunk + 1) * layers]) for chunk in range(chunks)]
        cache = fresh_cache(layers, past)
        out = decoder(
            inputs_embeds=embeds,
            attention_mask=attention,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        )
        return (out.last_hidden_state, *(tensor for pair in appended(cache) for tensor in pair))

    flat = [tensor for segment in trace.segments for pair in segment.layers for tensor in pair]
    if checkpointing and torch.is_grad_enabled():
        hidden, *new = checkpoint(step, embeds, *flat, use_reentrant=False)
    else:
        hidden, *new = step(embeds, *flat)
    return hidden, tuple(zip(new[::2], new[1::2], strict=True)), positions


def extend(
    model: Any,
    trace: LatentTrace,
    ids: Tensor,
    mask: Tensor,
    *,
    agent: str,
    steps: int,
    embed: EmbeddingMap,
    checkpointing: bool = False,
) -> LatentTrace:
    """One agent's turn: read its prompt on the trace, then think `steps` latent steps.

    A latent step feeds the last hidden state, mapped to an embedding, back as a length-1 input. `steps=0` still keeps
    the prompt's columns.

    Args:
        model: a causal language model, with or without adapters.
        trace: what the agents before have written.
        ids: prompts [N, t], padded at the left.
        mask: [N, t], 1 for tokens.
        agent: name kept with the segments.
        steps: latent steps m.
        embed: hidden state → input embedding.
        checkpointing: recompute each step in the backward pass.

    Raises:
        ValueError: rows that do not fit the trace, an empty prompt, padding at the right, negative steps.
    """
    _check_prompts(trace, ids, mask, agent)
    if steps < 0:
        raise ValueError(f"latent trace: {agent} should think {steps} latent steps; give 0 or more")
    hidden, layers, positions = forward_on(
        model, trace, model.get_input_embeddings()(ids), mask, checkpointing=checkpointing
    )
    read = Segment(agent, "prompt", layers, mask, positions)
    trace = LatentTrace((*trace.segments, read), trace.next_position + mask.sum(1))
    state = hidden[:, -1]
    one = mask.new_ones(trace.rows, 1)
    thoughts: list[Segment] = []
    for _ in range(steps):
        past = LatentTrace((*trace.segments, *thoughts), trace.next_position + len(thoughts))
        hidden, layers, positions = forward_on(model, past, embed(state)[:, None], one, checkpointing=checkpointing)
        thoughts.append(Segment(agent, "latent", layers, one, positions, hidden))
        state = hidden[:, -1]
    if not thoughts:
        return trace
    return LatentTrace((*trace.segments, _merged(thoughts)), trace.next_position + steps)


def _check_prompts(trace: LatentTrace, ids: Tensor, mask: Tensor, agent: str) -> None:
    if ids.shape != mask.shape or ids.dim() != 2 or ids.shape[0] != trace.rows:
        raise ValueError(
            f"latent trace: prompts of {agent} are {tuple(ids.shape)} with a mask {tuple(mask.shape)} on a trace of "
            f"{trace.rows} rows; all must be [{trace.rows}, t]"
        )
    if ids.shape[1] == 0 or not bool(mask[:, -1].all()):
        raise ValueError(
            f"latent trace: a prompt of {agent} ends in padding or is empty; the next column follows the last real "
            "token, so pad at the left (generation.left_pad)"
        )


def _merged(columns: Sequence[Segment]) -> Segment:
    """Latent steps of one agent as one segment."""
    first, layers = columns[0], range(len(columns[0].layers))
    return Segment(
        first.agent,
        "latent",
        tuple(
            (
                torch.cat([column.layers[i][0] for column in columns], -2),
                torch.cat([column.layers[i][1] for column in columns], -2),
            )
            for i in layers
        ),
        torch.cat([column.mask for column in columns], 1),
        torch.cat([column.positions for column in columns], 1),
        torch.cat([column.hidden for column in columns if column.hidden is not None], 1),
    )


# ---------------------------------------------------------------------------------------------------- trace → trace


def _mapped(trace: LatentTrace, change: Any) -> LatentTrace:
    """`change` applied to every key, value and hidden state."""
    return replace(
        trace,
        segments=tuple(
            replace(
                segment,
                layers=tuple((change(keys), change(values)) for keys, values in segment.layers),
                hidden=None if segment.hidden is None else change(segment.hidden),
            )
            for segment in trace.segments
        ),
    )


def detached(trace: LatentTrace) -> LatentTrace:
    """The same tensors without gradient."""
    return _mapped(trace, Tensor.detach)


def zeroed(trace: LatentTrace) -> LatentTrace:
    """Every key and value 0, mask and positions as they were: the reader attends to as many columns of nothing."""
    return _mapped(trace, torch.zeros_like)


def select(trace: LatentTrace, rows: Tensor) -> LatentTrace:
    """Rows kept, reordered or repeated, with their masks and positions."""
    chosen = _mapped(trace, lambda tensor: tensor[rows])
    return LatentTrace(
        tuple(replace(s, mask=s.mask[rows], positions=s.positions[rows]) for s in chosen.segments),
        trace.next_position[rows],
    )


def foreign(trace: LatentTrace) -> LatentTrace:
    """Another item's trace: every row gets that of the row before it, with its mask and positions.

    Raises:
        ValueError: one row only, so there is no other item.
    """
    if trace.rows < 2:
        raise ValueError("latent trace: one row has no other item's trace; evaluate at least two items at a time")
    return select(trace, torch.arange(trace.rows, device=trace.next_position.device).roll(1))


def dropped(trace: LatentTrace, agent: str) -> LatentTrace:
    """The trace without one agent's columns.

    The columns leave the mask with their keys. Positions are not closed up: the others' keys were turned by theirs, and
    the next column goes on where it would have, as if the agent had spoken unheard. Agents after it have read it, so
    what they passed on stays.

    Raises:
        ValueError: no segment by that agent.
    """
    kept = tuple(segment for segment in trace.segments if segment.agent != agent)
    if len(kept) == len(trace.segments):
        known = sorted({segment.agent for segment in trace.segments})
        raise ValueError(f"latent trace: no segment by {agent!r} to drop; there are {', '.join(known) or 'none'}")
    return replace(trace, segments=kept)


def joined(traces: Sequence[LatentTrace]) -> LatentTrace:
    """Traces built apart, side by side (StitchMAS). The next column follows the number of real columns, as ever.

    Keys keep the phases that they were built with. Traces that each started at position 0 are thus joined with wrong
    positions; give each its offset when it is built (`empty_trace(start=…)`) or turn it later (`rerotated`).

    Raises:
        ValueError: no traces, or unequal numbers of rows.
    """
    if not traces or len({trace.rows for trace in traces}) != 1:
        raise ValueError(
            f"latent trace: cannot join traces of {[trace.rows for trace in traces]} rows; need equal ones"
        )
    segments = tuple(segment for trace in traces for segment in trace.segments)
    whole = LatentTrace(segments, traces[0].next_position)
    return replace(whole, next_position=whole.mask.sum(1))


def rerotated(model: Any, trace: LatentTrace, offset: Tensor) -> LatentTrace:
    """Keys turned on by `offset` [N] positions, as if the trace had been built that much later.

    Rotations add up: R(p) R(δ) = R(p + δ). Exact for a trace that was built alone, whose columns attend to none before
    them.

    Raises:
        ValueError: no segments; rotary embeddings that scale or that cover only part of a head.
    """
    if not trace.segments:
        raise ValueError("latent trace: an empty trace has no keys to turn; use empty_trace(start=offset)")
    keys = trace.segments[0].layers[0][0]
    rotary = getattr(decoder_of(model), "rotary_emb", None)
    scaled = getattr(rotary, "attention_scaling", 1.0) != 1.0
    cos, sin = (keys[..., :0],) * 2 if rotary is None else rotary(keys.float(), offset[:, None])  # [N, 1, D]
    if scaled or cos.shape[-1] != keys.shape[-1]:
        raise ValueError(
            "latent trace: the keys of this model cannot be turned afterwards (no rotary embedding, a scaled or a "
            "partial one); build the segment with empty_trace(start=offset) instead"
        )

    def turn(keys: Tensor) -> Tensor:
        first, second = keys.float().chunk(2, dim=-1)
        turned: Tensor = keys.float() * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
        return turned.to(keys.dtype)

    return LatentTrace(
        tuple(
            replace(
                segment,
                layers=tuple((turn(keys), values) for keys, values in segment.layers),
                positions=segment.positions + offset[:, None],
            )
            for segment in trace.segments
        ),
        trace.next_position + offset,
    )


@dataclass(frozen=True)
class Glimpse:
    """What one latent position would say if it had to."""

    agent: str
    step: int
    """Latent step, counted from 1."""
    tokens: tuple[tuple[str, float], ...]
    """Likeliest tokens with their probabilities, the likeliest first."""


@torch.no_grad()
def inspect_trace(policy: Policy, trace: LatentTrace, *, row: int = 0, top: int = 5) -> list[Glimpse]:
    """Decode the latent positions of one row through the head. A reading aid: the trace itself is not text."""
    head = policy.model.get_output_embeddings()
    found: list[Glimpse] = []
    for segment in trace.segments:
        if segment.hidden is None:
            continue
        shares, ids = head(segment.hidden[row]).float().softmax(-1).topk(top, dim=-1)
        for step in range(ids.shape[0]):
            words = [policy.tokenizer.decode([token]) for token in ids[step].tolist()]
            found.append(Glimpse(segment.agent, step + 1, tuple(zip(words, shares[step].tolist(), strict=True))))
    return found
