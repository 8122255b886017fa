"""Lookup search against exhaustive scoring and a naive beam; the NumPy and the torch path give one answer."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.arrays import top_k
from genius.search.beam import TableScorer, beam_search
from genius.search.candidates import Candidates
from genius.search.codebooks import Codebooks
from genius.search.lookup import lookup
from genius.search.trie import Trie
from genius.search.trie.tensors import Forest, TensorTrie

SIZES = (3, 20, 12, 12, 300)
Codes = NDArray[np.int64]


def pool(items: int, seed: int = 0) -> Codes:
    rng = np.random.default_rng(seed)
    return (rng.random((items, len(SIZES))) ** 2 * SIZES).astype(np.int64)


def tables(seed: int, whole: bool = False) -> list[NDArray[np.float32]]:
    """Random scores of all codes; `whole` numbers make ties."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=size) for size in SIZES]
    return [np.round(row).astype(np.float32) if whole else row.astype(np.float32) for row in rows]


def exhaustive(codes: Codes, rows: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The score of every item."""
    return np.stack([row[codes[:, level]].astype(np.float64) for level, row in enumerate(rows)]).sum(0)


def naive_beam(codes: Codes, rows: list[NDArray[np.float32]], beam: int, stop: int) -> set[int]:
    """Items under the best prefixes, found one prefix at a time."""
    prefixes: list[tuple[int, ...]] = [()]
    for level in range(stop):
        longer = {tuple(item[: level + 1]) for item in codes.tolist() if tuple(item[:level]) in prefixes}
        score = {p: sum(float(rows[at][code]) for at, code in enumerate(p)) for p in longer}
        prefixes = sorted(longer, key=lambda p: (-score[p], p))[:beam]
    return {row for row, item in enumerate(codes.tolist()) if tuple(item[:stop]) in prefixes}


def by_row(trie: Trie, leaves: Candidates) -> dict[int, float]:
    assert np.all(np.diff(leaves.positions) > 0)
    return dict(zip(trie.rows(leaves.positions).tolist(), leaves.scores.tolist(), strict=True))


def batched(trie: Trie, rows: list[NDArray[np.float32]], beam: int, **options: Any) -> Candidates:
    """The same search by the torch path, twice in a batch."""
    scorer = TableScorer([torch.from_numpy(row).expand(2, -1) for row in rows])
    forest = Forest([TensorTrie(trie).filtered(options.pop("allowed", None))])
    if options.get("modalities") is not None:
        options["modalities"] = torch.from_numpy(options["modalities"]).expand(2, -1)
    ((first, second),) = beam_search(scorer, forest, 2, beam, **options)
    assert np.array_equal(first.positions, second.positions)
    return first


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.integers(1, 9), st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_equals_a_naive_beam(items: int, beam: int, stop: int, seed: int, ties: bool) -> None:
    codes, rows = pool(items, seed), tables(seed, whole=ties)
    trie = Trie.build(codes, SIZES)
    found = by_row(trie, lookup(trie, rows, beam, stop=stop))
    every = exhaustive(codes, rows)
    assert found == pytest.approx({row: every[row] for row in naive_beam(codes, rows, beam, stop)}, abs=1e-4)
    assert by_row(trie, batched(trie, rows, beam, stop=stop)) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("stop", [None, 1, 3, 5])
def test_a_wide_beam_is_exhaustive(stop: int | None) -> None:
    codes, rows = pool(3000), tables(1)
    trie = Trie.build(codes, SIZES)
    expected = exhaustive(codes, rows)
    for leaves in (lookup(trie, rows, 3000, stop=stop), batched(trie, rows, 3000, stop=stop)):
        assert by_row(trie, leaves) == pytest.approx(dict(enumerate(expected)), abs=1e-4)
        best = trie.rows(leaves.best(10).positions)
        assert set(best) == set(np.argsort(-expected)[:10])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), st.integers(0, 1000), st.sampled_from([None, 2, 5]))
def test_filters_equal_a_smaller_pool(items: int, beam: int, seed: int, stop: int | None) -> None:
    codes, rows = pool(items, seed), tables(seed)
    rng = np.random.default_rng(seed)
    mask, modalities = rng.random(items) < 0.4, rng.random(3) < 0.6
    trie = Trie.build(codes, SIZES)
    kept = np.flatnonzero(mask & modalities[codes[:, 0]])
    smaller = Trie.build(codes[kept], SIZES, kept)
    options = {"stop": stop, "leaves": 10, "modalities": modalities, "allowed": trie.allow(mask)}
    expected = by_row(smaller, lookup(smaller, rows, beam, stop=stop, leaves=10))
    found = by_row(trie, lookup(trie, rows, beam, **options))
    assert found == pytest.approx(expected, abs=1e-5)
    if stop is not None:  # the torch path keeps whole leaves where this one stops at `leaves` of them
        assert by_row(trie, batched(trie, rows, beam, **options)) == pytest.approx(expected, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4000),
    st.integers(1, 50),
    st.integers(0, 1000),
    st.sampled_from([None, 1, 2, 3, 4]),
    st.floats(0, 1),
    st.booleans(),
)
def test_filters_of_dense_pools_equal_a_smaller_pool(
    items: int, beam: int, seed: int, stop: int | None, share: float, ties: bool
) -> None:
    """Where prefixes have many children, tables find the best ones: also of the last prefix of the tree."""
    sizes, rng = (3, 17, 11, 11), np.random.default_rng(seed)
    codes = (rng.random((items, 4)) ** 1.5 * sizes).astype(np.int64)
    rows = [rng.normal(size=size).astype(np.float32) for size in sizes]
    if ties:
        rows = [np.round(row * 2) for row in rows]
    mask, modalities = rng.random(items) < share, np.array([seed % 2 > 0, seed % 3 > 0, True])
    trie = Trie.build(codes, sizes)
    kept = np.flatnonzero(mask & modalities[codes[:, 0]])
    smaller = Trie.build(codes[kept], sizes, kept)
    found = lookup(trie, rows, beam, stop=stop, leaves=40, modalities=modalities, allowed=trie.allow(mask))
    expected = lookup(smaller, rows, beam, stop=stop, leaves=40)
    assert by_row(trie, found) == pytest.approx(by_row(smaller, expected), abs=1e-5)


def test_ends_as_soon_as_few_items_are_left() -> None:
    codes, rows = pool(5000), tables(2)
    trie = Trie.build(codes, SIZES)
    assert len(lookup(trie, rows, 10, leaves=5000)) == 5000
    assert 0 < len(lookup(trie, rows, 10, leaves=400)) <= 400
    assert len(lookup(trie, rows, 10, leaves=400)) > len(lookup(trie, rows, 10, stop=5))


def test_identical_items_are_all_found_in_order() -> None:
    trie = Trie.build(np.ones((500, 5), dtype=np.int64), SIZES)
    leaves = lookup(trie, tables(3), 10, leaves=20)
    assert trie.rows(leaves.positions).tolist() == list(range(500))
    assert trie.rows(leaves.best(7).positions).tolist() == list(range(7))


def test_steps_do_not_grow_with_beam_or_pool() -> None:
    def calls(items: int, beam: int) -> int:
        trie, rows, count = Trie.build(pool(items), SIZES), tables(1), 0
        assert trie.tree_levels == 3

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        lookup(trie, rows, beam, stop=5)  # makes the tables that later searches share
        sys.setprofile(note)
        lookup(trie, rows, beam, stop=5)
        sys.setprofile(None)
        return count

    assert calls(4000, 200) <= calls(4000, 5) + 40 < 600  # a wide beam may select in two steps a level
    assert calls(9000, 200) <= calls(4000, 200) + 40


def test_tables_are_products_with_the_code_vectors() -> None:
    rng = np.random.default_rng(0)
    books = [rng.normal(size=(size, 6)).astype(np.float32) for size in SIZES]
    z = rng.normal(size=(4, 6)).astype(np.float32)
    for query, rows in zip(z, Codebooks(books).tables(z), strict=True):
        for row, book in zip(rows, books, strict=True):
            np.testing.assert_allclose(row, book @ query, atol=1e-5)
    with pytest.raises(BadInput, match="width 6"):
        Codebooks(books).tables(z[:, :5])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 70), st.integers(0, 1000), st.sampled_from([1, 30, 10**6]))
def test_top_picks_the_largest_and_the_first_of_equal_ones(n: int, k: int, seed: int, values: int) -> None:
    scores = np.random.default_rng(seed).integers(0, values, n).astype(np.float32)
    expected = np.sort(np.argsort(-scores, kind="stable")[:k])
    assert np.array_equal(top_k(scores, k), expected)
    assert np.array_equal(top_k(np.concatenate([scores, scores]), k, np.arange(n, 2 * n)), expected + n)


@pytest.mark.parametrize("most", [0, 8192])
def test_cosine_is_that_of_the_summed_code_vectors(monkeypatch, most):
    monkeypatch.setattr("genius.search.codebooks.GRAM_CODES", most)
    rng = np.random.default_rng(3)
    books = [rng.standard_normal((size, 16)).astype(np.float32) for size in (3, 7, 7)]
    codes = np.stack([rng.integers(0, len(book), 40) for book in books], axis=1).astype(np.uint16)
    z = rng.standard_normal(16).astype(np.float32)
    z /= np.linalg.norm(z)
    sums = sum(book[codes[:, level]] for level, book in enumerate(books))
    expected = sums @ z / np.linalg.norm(sums, axis=1)
    np.testing.assert_allclose(Codebooks(books).cosine(z, codes), expected, atol=1e-5)
