"""The prefix tree: every row is found again along its path, and no token stands twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import agent_gspo_core.prefixes as module
from agent_gspo_core.prefixes import build_tree, prefix_batches, shared_length

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=12)


def distinct_prefixes(rows: list[tuple[int, ...]]) -> int:
    return len({row[:n] for row in rows for n in range(1, len(row) + 1)})


@given(ROWS)
def test_paths_spell_the_rows_and_every_prefix_stands_once(rows):
    tree = build_tree(rows)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tree.ids[path].tolist() == list(row)
        assert tree.positions[path].tolist() == list(range(len(row)))
    assert len(tree.ids) == distinct_prefixes(rows)


@given(ROWS, st.sampled_from([1, 64, 1 << 22]))
def test_blocks_show_each_token_its_own_row_up_to_itself(rows, scores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_SCORES", scores)
        tree = build_tree(rows)
    seen = {}
    for block in tree.blocks:
        n, q = block.queries.shape
        asked = block.queries.flatten()[block.places]
        assert asked.tolist() == list(range(block.start, block.stop))
        for place in block.places.tolist():
            row, column = divmod(place, q)
            keys = block.keys[row][block.visible[row, 0, column]]
            seen[int(block.queries[row, column])] = tree.ids[keys].tolist()
        assert block.visible.shape == (n, 1, q, block.keys.shape[1])
    assert sorted(seen) == list(range(len(tree.ids)))
    for row, path in zip(rows, tree.paths, strict=True):
        for place, index in enumerate(path.tolist()):
            assert seen[index] == list(row[: place + 1])


@given(ROWS, st.integers(1, 40))
def test_batches_partition_the_rows_and_hold_no_more_than_the_budget(rows, budget):
    batches = list(prefix_batches(rows, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or distinct_prefixes([rows[i] for i in batch]) <= budget


@pytest.mark.parametrize(
    ("a", "b", "expected"), [((1, 2), (1, 2, 3), 2), ((1, 2), (3, 2), 0), ((1, 2, 4), (1, 2, 3, 4), 2), ((), (1,), 0)]
)
def test_shared_length(a, b, expected):
    assert shared_length(a, b) == expected == shared_length(b, a)


def test_a_tree_of_one_row_is_the_row():
    tree = build_tree([(5, 6, 7)])
    assert tree.ids.tolist() == [5, 6, 7]
    assert torch.equal(tree.paths[0], torch.arange(3))
