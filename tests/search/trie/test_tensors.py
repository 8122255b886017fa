"""The torch walk equals the NumPy walk, for batches, filters and mapped files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.search.trie import Nodes, Trie
from genius.search.trie.tensors import Ranges, TensorTrie, spread_ranges, top_k_columns


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.sampled_from([(3, 4, 4), (2, 300, 3, 3), (3, 5000, 2)]), st.integers(0, 999))
def test_children_equal_those_of_numpy(items: int, sizes: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    trie = Trie.build((rng.random((items, len(sizes))) ** 3 * sizes).astype(np.int64), sizes)
    mask = rng.random(items) < 0.5
    for allowed in (None, trie.allow(mask)):
        tensors = TensorTrie(trie).filtered(allowed)
        batch: list[Nodes] = [trie.root(), trie.root()]
        ranges = tensors.root(2)
        for level in range(len(sizes)):
            children = tensors.children(ranges, level)
            chosen = []
            for query, nodes in enumerate(batch):
                expected = trie.children(nodes)
                kept = np.arange(len(expected)) if allowed is None else expected.with_allowed(allowed)
                valid = children.valid[query]
                assert np.array_equal(children.code[query, valid], expected.code[kept])
                assert np.array_equal(children.parent[query, valid], expected.parent[kept])
                some = np.flatnonzero(rng.random(len(kept)) < 0.7)
                chosen.append(valid.nonzero()[:, 0][torch.from_numpy(some)])
                batch[query] = expected.take(kept[some])
            width = max(map(len, chosen))
            if not width:
                break
            bad = (~children.valid).int().argmax(1)  # an invalid place, to fill up with, if there is one
            if any(len(c) < width and children.valid[q, bad[q]] for q, c in enumerate(chosen)):
                break
            places = torch.stack(
                [torch.cat([c, bad[q].expand(width - len(c))]) for q, c in enumerate(chosen)]
            )
            ranges = children.take(places)
            for query, nodes in enumerate(batch):
                held = ranges.end[query] > ranges.start[query]
                assert np.array_equal(ranges.start[query, held], nodes.start)
                assert np.array_equal(ranges.end[query, held], nodes.end)


def test_codes_of_positions_in_and_below_the_tree() -> None:
    rng = np.random.default_rng(0)
    trie = Trie.build((rng.random((900, 4)) ** 2 * (3, 9, 700, 700)).astype(np.int64), (3, 9, 700, 700))
    assert 0 < trie.tree_levels < 4
    positions = rng.integers(0, 900, (2, 50))
    for level in range(4):
        ours = TensorTrie(trie).codes(torch.from_numpy(positions), level)
        assert np.array_equal(ours.flatten(), trie.codes(positions.ravel())[:, level])


def test_a_mapped_file_is_shared_not_copied(tmp_path: Path) -> None:
    trie = Trie.build(np.random.default_rng(0).integers(0, 3, (100, 3)), (3, 3, 3))
    for name, array in trie.arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = Trie.from_arrays({f.stem: np.load(f, mmap_mode="r") for f in tmp_path.iterdir()})
    tensors = TensorTrie(mapped)
    assert tensors.flat.data_ptr() == mapped.flat.ctypes.data
    assert np.array_equal(tensors.flat, trie.flat)


def test_spread_pads_to_the_widest_row() -> None:
    owner, number, valid = spread_ranges(
        torch.tensor([[5, 9, 2], [1, 0, 7]]), torch.tensor([[2, 0, 3], [0, 0, 1]])
    )
    assert valid.tolist() == [[True] * 5, [True] + [False] * 4]
    assert number.tolist() == [[5, 6, 2, 3, 4], [7, 0, 0, 0, 0]]
    assert owner[valid].tolist() == [0, 0, 2, 2, 2, 2]


def test_counts_respect_the_filter() -> None:
    trie = Trie.build(np.zeros((6, 2), dtype=np.int64), (3, 3))
    mask = np.array([True, False, True, True, False, False])
    ranges = Ranges(torch.tensor([[0, 4]]), torch.tensor([[6, 6]]), torch.tensor([[0, 0]]))
    assert TensorTrie(trie).count(ranges).tolist() == [[6, 2]]
    assert TensorTrie(trie).filtered(trie.allow(mask)).count(ranges).tolist() == [[3, 0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 999), st.sampled_from([1, 5, 10**6]))
def test_top_picks_the_largest_and_the_first_of_equal_ones(n: int, k: int, seed: int, values: int) -> None:
    scores = torch.from_numpy(np.random.default_rng(seed).integers(0, values, (3, n)).astype(np.float32))
    expected = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k].sort(1).values
    assert torch.equal(top_k_columns(scores, k), expected)
