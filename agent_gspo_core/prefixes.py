"""Rows of token ids as a tree in which every common prefix stands once.

The members of a group share their prompt, the agents of a team the question, and replies that begin alike share their
first words: what a decoder computes for such a prefix is the same in every row. A tree holds each distinct prefix's
tokens once, in one flat list without padding. Layers that look at one token at a time run on the flat list; attention
runs in blocks, in which the tokens that a row adds (its tail) look along the row's whole path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

_BLOCK_SCORES = 1 << 22
"""Most attention scores (rows × queries × keys) of a block and head: bounds the mask and the gathered keys (ours)."""


@dataclass(frozen=True)
class Block:
    """n rows that attend together: their tails are the queries [n, q], their paths the keys [n, k]."""

    start: int
    """Flat index of the first tail's first token; the block's tails lie side by side from there."""
    stop: int
    """Flat index behind the last."""
    queries: Tensor
    """[n, q] flat index of the tails' tokens; a shorter tail repeats its last token."""
    keys: Tensor
    """[n, k] flat index of the paths' tokens; a shorter path repeats its last token, where no query looks."""
    visible: Tensor
    """[n, 1, q, k] bool, which keys a query sees: those at its own position and before."""
    places: Tensor
    """[stop − start] where in the flattened [n · q] outputs each of the tails' tokens is."""


@dataclass(frozen=True)
class PrefixTree:
    """T distinct tokens of N rows."""

    ids: Tensor
    """[T] token ids."""
    positions: Tensor
    """[T] position of each token in its row."""
    blocks: tuple[Block, ...]
    """They cover the flat list in its order."""
    paths: tuple[Tensor, ...]
    """For every row that was given, the flat index of each of its tokens."""


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two rows have in common at their beginning."""
    width = min(len(a), len(b))
    if a[:width] == b[:width]:
        return width
    differ = np.asarray(a[:width]) != np.asarray(b[:width])
    return int(differ.argmax())


def build_tree(rows: Sequence[tuple[int, ...]], device: torch.device | str = "cpu") -> PrefixTree:
    """The tree of N rows, none empty. In sorted order a row shares more with its predecessor than with any other, so
    its tail is what it adds to that one.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i])
    shared = {i: shared_length(rows[before], rows[i]) for before, i in pairwise(order)}
    tails = {i: len(rows[i]) - shared.get(i, 0) for i in order}
    # Tails within a factor of two of each other, and then paths of like length, side by side: little padding.
    laid = sorted((i for i in order if tails[i]), key=lambda i: (-tails[i].bit_length(), -len(rows[i])))
    starts, total = {}, 0
    for i in laid:
        starts[i], total = total, total + tails[i]

    paths: dict[int, np.ndarray] = {}
    ids, positions = np.empty(total, np.int64), np.empty(total, np.int64)
    path = np.empty(0, np.int64)
    for i in order:
        if tails[i]:
            tail = np.arange(starts[i], starts[i] + tails[i])
            path = np.concatenate([path[: shared.get(i, 0)], tail])
            ids[tail], positions[tail] = rows[i][shared.get(i, 0) :], np.arange(shared.get(i, 0), len(rows[i]))
        paths[i] = path
    blocks = tuple(
        _block([paths[i] for i in part], [tails[i] for i in part], device) for part in _cut(laid, rows, tails)
    )
    return PrefixTree(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(positions).to(device),
        blocks,
        tuple(torch.from_numpy(paths[i]).to(device) for i in range(len(rows))),
    )


def _cut(laid: Sequence[int], rows: Sequence[tuple[int, ...]], tails: dict[int, int]) -> Iterator[list[int]]:
    """Rows of a block: tails of the same power of two, and not more scores than the bound."""
    part: list[int] = []
    for i in laid:
        if part:
            first = part[0]
            scores = (len(part) + 1) << (tails[first].bit_length() + len(rows[first]).bit_length())
            if tails[i].bit_length() != tails[first].bit_length() or scores > _BLOCK_SCORES:
                yield part
                part = []
        part.append(i)
    if part:
        yield part


def _block(paths: Sequence[np.ndarray], tails: Sequence[int], device: torch.device | str) -> Block:
    lengths, added = np.array([len(path) for path in paths]), np.array(tails)
    # A column past a row's end repeats the row's last token: any index would do, its results are not used.
    columns = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)  # [n, k]
    keys = np.stack([path[column] for path, column in zip(paths, columns, strict=True)])
    steps = np.minimum(np.arange(added.max()), added[:, None] - 1)  # [n, q]
    seats = (lengths - added)[:, None] + steps  # [n, q], positions of the queries
    visible = np.arange(lengths.max()) <= seats[..., None]  # [n, q, k]
    start = int(paths[0][lengths[0] - added[0]])
    places = np.concatenate([i * added.max() + np.arange(tail) for i, tail in enumerate(added)])
    return Block(
        start,
        start + int(added.sum()),
        torch.from_numpy(np.take_along_axis(keys, seats, axis=1)).to(device),
        torch.from_numpy(keys).to(device),
        torch.from_numpy(visible[:, None]).to(device),
        torch.from_numpy(places).to(device),
    )


def prefix_batches(rows: Sequence[tuple[int, ...]], budget: int) -> Iterator[list[int]]:
    """Cut rows into micro-batches whose trees hold at most `budget` tokens; rows that share most stay together.

    A single row above the budget forms a batch of its own.
    """
    batch: list[int] = []
    held = 0
    for i in sorted(range(len(rows)), key=lambda i: rows[i]):
        added = len(rows[i]) - (shared_length(rows[batch[-1]], rows[i]) if batch else 0)
        if batch and held + added > budget:
            yield batch
            batch, held, added = [], 0, len(rows[i])
        batch.append(i)
        held += added
    if batch:
        yield batch
