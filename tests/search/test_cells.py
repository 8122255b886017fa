"""Lookup by cells: NumPy against a naive search, and the compiled kernel against NumPy in every bit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.search import kernel
from genius.search.cell_search import CellSearch
from genius.search.cells import (
    MAX_CELLS,
    MAX_DEEP_CELLS,
    CellCodebooks,
    Cells,
    cell_candidates,
    parents_kept,
)
from genius.search.codebooks import Codebooks
from genius.search.kernel import CompiledCells, load_kernel
from genius.search.kernel.build import compile_kernel
from genius.search.options import SearchOptions
from genius.search.rank import products
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

DIM = 21  # code vectors are filled up
SIZES = {
    "few": (3, 7, 5, 4),
    "mini": (3, 40, 40, 30, 20),
    "wide": (2, 200, 150, 100, 9),
    "plain": (11, 11),
    "deep": (3, 30, 30, 20, 7),
}


@pytest.fixture(scope="session", params=["", " -DPLAIN"], ids=["fast", "plain"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel as it is in the source; and without what only some processors have."""
    file = tmp_path_factory.mktemp("kernel") / "kernel.lib"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", os.environ.get("CC", "cc") + request.param)
        failed = compile_kernel(file)
    if failed == "there is no C compiler":
        pytest.skip(failed)
    assert failed is None, failed
    return load_kernel(file)


class Pool:
    """Items with codes of these sizes, of which some have equal codes, and a query."""

    def __init__(self, sizes: tuple[int, ...], items: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.sizes = sizes
        self.codes = (rng.random((items, len(sizes))) ** 2 * sizes).astype(np.int64)
        shrink = 0.7 ** np.arange(len(sizes))
        self.books = [
            (rng.normal(size=(size, DIM)) * length).astype(np.float32)
            for size, length in zip(sizes, shrink, strict=True)
        ]
        self.codebooks = Codebooks(self.books)
        deep = sizes == SIZES["deep"]
        self.cell_books = CellCodebooks(self.codebooks, MAX_DEEP_CELLS if deep else MAX_CELLS)
        self.prefix_inverse = self.cell_books.prefix_inverse()
        self.trie = Trie.build(self.codes, sizes)
        self.cells = Cells(self.trie, self.cell_books)
        self.cells.nearest = min(self.cells.nearest, 16)  # as in a large pool: then some cells are left out
        z = rng.normal(size=DIM).astype(np.float32)
        self.z = z / np.linalg.norm(z)

    def sums(self) -> NDArray[np.float32]:
        """The sum of code vectors of each item."""
        return np.sum([book[self.codes[:, level]] for level, book in enumerate(self.books)], axis=0)


def naive(pool: Pool, rows: Any, beam: int, leaves: int, limit: int, filtered: bool) -> set[int]:
    """The rows that a search among `rows` keeps, one prefix at a time, with the same whole numbers."""
    books, tables = pool.cell_books, pool.cell_books.tables(pool.z)
    items = {int(row): tuple(pool.codes[row].tolist()) for row in rows}

    def score(prefix: tuple[int, ...]) -> int:
        vector = np.sum([pool.books[level][code] for level, code in enumerate(prefix)], axis=0)
        inverse = int(books.inverse(np.array([np.linalg.norm(vector)], np.float32))[0])
        if len(prefix) <= books.depth:  # what is rounded differently is no matter here
            place = np.ravel_multi_index(prefix, pool.sizes[: len(prefix)])
            assert abs(inverse - int(pool.prefix_inverse[len(prefix) - 1][place])) <= 1
            inverse = int(pool.prefix_inverse[len(prefix) - 1][place])
        return sum(int(tables[level][code]) for level, code in enumerate(prefix)) * inverse

    kept: list[tuple[int, ...]] = [()]
    under = dict(items)
    for level in range(1, books.depth + 1):
        prefixes = {codes[:level] for codes in items.values() if codes[: level - 1] in kept}
        most = pool.cells.kept(beam) if level == books.depth else parents_kept(beam)
        kept = sorted(prefixes, key=lambda prefix: (-score(prefix), prefix))[:most]
        nearest = pool.cells.nearest
        if level == books.depth and len(kept) > nearest and not filtered:
            least = score(kept[nearest - 1]) - pool.cells.margin(beam)
            kept = [prefix for prefix in kept if score(prefix) >= least]
        under = {row: codes for row, codes in items.items() if codes[:level] in kept}
        if len(under) <= leaves:
            break
    if len(under) > leaves:
        taken: dict[int, tuple[int, ...]] = {}
        for cell in kept:
            if len(taken) < leaves:
                taken |= {row: codes for row, codes in under.items() if codes[: books.depth] == cell}
        under = taken
    rounded = [np.rint(book / books.unit) for book in pool.books]
    sums = np.sum([book[pool.codes[list(under), level]] for level, book in enumerate(rounded)], axis=0)
    lengths = np.linalg.norm(sums, axis=-1).astype(np.float32) * books.unit
    inverses = dict(zip(under, books.inverse(lengths).tolist(), strict=True)) if under else {}

    def item_score(row: int) -> int:
        return sum(int(table[code]) for table, code in zip(tables, under[row], strict=True)) * inverses[row]

    return set(sorted(under, key=lambda row: (-item_score(row), under[row], row))[:limit])


SEARCHES = st.tuples(
    st.sampled_from(sorted(SIZES)),
    st.integers(1, 1500),  # items
    st.integers(0, 10_000),  # seed
    st.integers(1, 150),  # beam
    st.integers(0, 800),  # leaves
    st.integers(1, 60),  # limit
    st.sampled_from([None, 0.9, 0.5, 0.1, 0.0]),  # share of the items that a filter allows
    st.booleans(),  # whether modalities are chosen
)


def limits(pool: Pool, share: float | None, choose: bool) -> tuple[Any, Any, Any]:
    """A filter and a choice of modalities, and the rows that both allow."""
    items = len(pool.codes)
    mask = np.ones(items, bool) if share is None else pool.rng.random(items) < share
    modalities = pool.rng.random(pool.sizes[0]) < 0.6 if choose else None
    rows = mask if modalities is None else mask & modalities[pool.codes[:, 0]]
    return None if share is None else pool.trie.allow(mask), modalities, np.flatnonzero(rows)


@settings(max_examples=80, deadline=None)
@given(SEARCHES)
def test_equals_a_naive_search(search: Any) -> None:
    name, items, seed, beam, leaves, limit, share, choose = search
    pool = Pool(SIZES[name], items, seed)
    allowed, modalities, rows = limits(pool, share, choose)
    found = cell_candidates(
        pool.trie,
        pool.cells,
        pool.z,
        beam,
        leaves=leaves,
        limit=limit,
        modalities=modalities,
        allowed=allowed,
    )
    assert np.all(np.diff(found.positions) > 0)
    assert set(pool.trie.rows(found.positions).tolist()) == naive(
        pool, rows, beam, leaves, limit, share is not None
    )


@settings(max_examples=150, deadline=None)
@given(SEARCHES)
def test_kernel_finds_the_same_candidates(library: Any, search: Any) -> None:
    name, items, seed, beam, leaves, limit, share, choose = search
    pool = Pool(SIZES[name], items, seed)
    allowed, modalities, _ = limits(pool, share, choose)
    options = {"leaves": leaves, "limit": limit, "modalities": modalities, "allowed": allowed}
    expected = cell_candidates(pool.trie, pool.cells, pool.z, beam, **options)
    cells = Cells(pool.trie, pool.cell_books)  # knows no lengths yet
    cells.nearest = pool.cells.nearest
    fresh = CompiledCells(library, cells)
    found = fresh.candidates(pool.trie, pool.z, beam, **options)
    assert np.array_equal(found.positions, expected.positions)
    assert (found.beams, found.leaves) == (expected.beams, expected.leaves)


@settings(max_examples=60, deadline=None)
@given(SEARCHES, st.integers(1, 12), st.sampled_from([1, 7, 16, 40]))
def test_kernel_ranks_as_numpy_does(library: Any, search: Any, k: int, width: int) -> None:
    """By codes and by vectors; scores may differ in their last bits, ties are in the order of codes."""
    name, items, seed, beam, leaves, limit, share, choose = search
    pool = Pool(SIZES[name], items, seed)
    allowed, modalities, _ = limits(pool, share, choose)
    vectors = pool.rng.normal(size=(items, width)).astype(np.float16)
    phi = pool.rng.normal(size=width).astype(np.float32)
    compiled = CompiledCells(library, pool.cells)
    options = {"leaves": leaves, "limit": max(k, limit), "modalities": modalities, "allowed": allowed}
    candidates = compiled.candidates(pool.trie, pool.z, beam, **options)
    rows = pool.trie.rows(candidates.positions)
    for own, scores in (
        ({}, pool.codebooks.cosine(pool.z, pool.codes[rows].astype(np.uint16))),
        ({"phi": phi, "vectors": vectors}, products(vectors[rows], phi)),
    ):
        found = compiled.search(pool.trie, pool.z, beam, k=k, **options, **own)
        place = {int(row): number for number, row in enumerate(rows)}
        np.testing.assert_allclose(
            found.scores, scores[[place[row] for row in found.rows.tolist()]], atol=2e-5
        )
        np.testing.assert_allclose(found.scores, np.sort(scores)[::-1][:k], atol=2e-5)
        assert np.array_equal(found.codes, pool.codes[found.rows])
        order = list(zip((-found.scores).tolist(), found.codes.tolist(), found.rows.tolist(), strict=True))
        assert order == sorted(order)
        assert (found.beams, found.leaves) == (candidates.beams, candidates.leaves)


@settings(max_examples=60, deadline=None)
@given(SEARCHES)
def test_filters_equal_a_smaller_pool(search: Any) -> None:
    name, items, seed, beam, leaves, limit, share, choose = search
    pool = Pool(SIZES[name], items, seed)
    allowed, modalities, rows = limits(pool, share, choose)
    if not len(rows):
        return
    smaller = Trie.build(pool.codes[rows], pool.sizes, rows)
    options = {"leaves": leaves, "limit": limit}
    cells = Cells(smaller, pool.cell_books)
    cells.nearest, cells.distance = pool.cells.nearest, pool.cells.distance  # are measured with other items
    everything = None if share is None else smaller.allow(np.ones(items, bool))
    expected = cell_candidates(smaller, cells, pool.z, beam, allowed=everything, **options)
    found = cell_candidates(
        pool.trie, pool.cells, pool.z, beam, modalities=modalities, allowed=allowed, **options
    )
    assert np.array_equal(pool.trie.rows(found.positions), smaller.rows(expected.positions))


@settings(max_examples=60, deadline=None)
@given(SEARCHES)
def test_kernel_and_numpy_agree_for_codebooks_by_modality(library: Any, search: Any) -> None:
    """Candidates in every bit, by the tables of each modality; its margin is that of its own items."""
    name, items, seed, beam, leaves, limit, share, _ = search
    pool = Pool(SIZES[name], items, seed)
    allowed, _, _ = limits(pool, share, False)
    of_each = [pool.rng.normal(size=(pool.sizes[0], *book.shape)).astype(np.float32) for book in pool.books]
    several = Codebooks([pool.books[0], *of_each[1:]])
    for modality, own in enumerate(several.own):
        books = CellCodebooks(own)
        numpy, compiled = Cells(pool.trie, books), Cells(pool.trie, books)
        wanted = np.arange(pool.sizes[0]) == modality
        options = {"leaves": leaves, "limit": limit, "modalities": wanted, "allowed": allowed}
        expected = cell_candidates(pool.trie, numpy, pool.z, beam, **options)
        found = CompiledCells(library, compiled).candidates(pool.trie, pool.z, beam, **options)
        assert np.array_equal(found.positions, expected.positions)
        rows = np.flatnonzero(pool.codes[:, 0] == modality)
        assert set(pool.trie.rows(found.positions).tolist()) <= set(rows.tolist())
        if len(rows):
            alone = Cells(Trie.build(pool.codes[rows], pool.sizes), books)
            assert numpy.nearest == alone.nearest
            assert numpy.distance == pytest.approx(alone.distance, abs=1e-6)


def test_whole_numbers_are_close_to_the_cosine() -> None:
    pool = Pool(SIZES["mini"], 3000, 0)
    found = cell_candidates(pool.trie, pool.cells, pool.z, 3000, leaves=3000, limit=3000)
    sums = pool.sums()
    cosine = (sums @ pool.z / np.linalg.norm(sums, axis=1))[pool.trie.rows(found.positions)]
    unit = 2.0**16 * 2.0**11  # see UNITS and INVERSE_UNITS
    np.testing.assert_allclose(found.scores / unit, cosine, atol=0.02)


@pytest.mark.parametrize("name", SIZES)
def test_lengths_of_items_are_close_to_those_of_their_sums(library: Any, name: str) -> None:
    pool = Pool(SIZES[name], 1000, 3)
    expected = pool.cell_books.inverse(np.linalg.norm(pool.sums(), axis=1))[pool.trie.rows(np.arange(1000))]
    for search in (
        cell_candidates,
        lambda trie, cells, *a, **o: CompiledCells(library, cells).candidates(trie, *a, **o),
    ):
        cells = Cells(pool.trie, pool.cell_books)
        cells.nearest = 10**6
        search(pool.trie, cells, pool.z, 10**6, leaves=1000, limit=1000)
        np.testing.assert_allclose(cells.inverse, expected, rtol=5e-3)


def test_prefixes_are_as_long_as_their_sums() -> None:
    pool = Pool(SIZES["few"], 50, 1)
    books = pool.cell_books
    assert books.depth == 4 and [len(of) for of in pool.prefix_inverse] == list(
        accumulate(pool.sizes, lambda a, b: a * b)
    )
    sums = pool.books[0][:, None] + pool.books[1]
    expected = books.inverse(np.linalg.norm(sums.reshape(-1, DIM), axis=1))
    assert np.abs(pool.prefix_inverse[1].astype(int) - expected.astype(int)).max() <= 1


def test_pools_that_cells_do_not_suit_are_left_to_the_beam() -> None:
    pool = Pool((3, 300, 10), 400, 0)  # codes of more than a byte
    assert not Cells.suit(pool.trie, pool.cell_books)
    assert Cells.suit(*(lambda own: (own.trie, own.cell_books))(Pool(SIZES["mini"], 400, 0)))
    assert CellCodebooks(Codebooks([np.ones((4096, 2))] * 3)).depth == 1 and MAX_CELLS < 4096**2
    searcher = Searcher(pool.books)
    (found,) = searcher.search(
        [TrieSegment(pool.trie)], pool.z[None], SearchOptions("lookup", "codes", beam=400, k=5)
    )
    sums = pool.sums()
    cosine = sums @ pool.z / np.linalg.norm(sums, axis=1)
    np.testing.assert_allclose(found.scores, np.sort(cosine)[::-1][:5], atol=1e-5)


@pytest.mark.parametrize("rerank", ["codes", "vectors"])
def test_searches_with_and_without_the_kernel_agree(library, monkeypatch, rerank):
    pool = Pool(SIZES["mini"], 2500, 5)
    vectors = pool.rng.normal(size=(2500, 40)).astype(np.float16)
    z = pool.rng.normal(size=(6, DIM)).astype(np.float32)
    phi = pool.rng.normal(size=(6, 40)).astype(np.float32)
    options = SearchOptions("lookup", rerank, beam=20, k=8, leaves=300)
    kept = np.arange(2500) % 7 > 0
    segments = [
        TrieSegment(Trie.build(pool.codes[:2000], pool.sizes)),
        TrieSegment(Trie.build(pool.codes[2000:], pool.sizes, np.arange(2000, 2500))),
    ]
    answers = []
    for built in (library, None):
        monkeypatch.setattr("genius.search.cell_search.load_kernel", lambda built=built: built)
        searcher = Searcher(pool.books)
        for fetch in (vectors, lambda rows: vectors[rows], vectors.astype(np.float32)):
            for more in ({}, {"modalities": [0, 2]}, {"mask": kept}):
                answers.append(searcher.search(segments, z, options, phi=phi, fetch=fetch, **more))
        assert isinstance(searcher.cells.cells(segments[0].trie), CompiledCells) == (built is not None)
    for one, other in zip(answers[:9], answers[9:], strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a.rows, b.rows) and np.array_equal(a.codes, b.codes)
            np.testing.assert_allclose(a.scores, b.scores, atol=2e-5)
            assert (a.beams, a.leaves) == (b.beams, b.leaves)


def test_records_are_copied_where_the_tree_is_deeper_than_the_cells(library, monkeypatch):
    pool = Pool(SIZES["few"], 3000, 1)
    books = CellCodebooks(pool.codebooks, 3 * 7)
    assert pool.trie.tree_levels == 4 and books.depth == 2 and Cells.suit(pool.trie, books)
    cells, every = Cells(pool.trie, books), np.arange(3000)
    codes = [cells.layout.code(cells.records, number) for number in (0, 1)]
    assert np.array_equal(np.stack(codes, axis=1), pool.trie.codes(every)[:, 2:])
    assert np.array_equal(cells.layout.row(cells.records), pool.trie.rows(every))
    assert cells.nbytes > cells.records.nbytes
    options = {"leaves": 800, "limit": 100}
    expected = cell_candidates(pool.trie, cells, pool.z, 12, **options)
    found = CompiledCells(library, cells).candidates(pool.trie, pool.z, 12, **options)
    assert np.array_equal(np.sort(expected.positions), found.positions)
    monkeypatch.setattr("genius.search.cells.COPIED", 2999)
    assert not Cells.suit(pool.trie, books)


def test_large_pools_have_cells_of_one_more_code(monkeypatch):
    pool = Pool(SIZES["mini"], 2500, 5)
    search = CellSearch(pool.codebooks)
    assert search.books_for(pool.trie) is search.books and search.books.depth == 4
    monkeypatch.setattr("genius.search.cells.ITEMS_PER_CELL", 0.001)  # 144 items, 2,880 items
    assert search.books_for(pool.trie) is search.deep_books and search.deep_books.depth == 5
    options = SearchOptions("lookup", "codes", beam=2500, k=9)
    (found,) = Searcher(pool.books).search([TrieSegment(pool.trie)], pool.z[None], options)
    sums = pool.sums()
    cosine = sums @ pool.z / np.linalg.norm(sums, axis=1)
    np.testing.assert_allclose(found.scores, np.sort(cosine)[::-1][:9], atol=1e-5)
    monkeypatch.setattr("genius.search.cells.ITEMS_PER_CELL", 0.0001)
    assert search.books_for(pool.trie) is None


def test_vectors_of_too_few_items_are_an_error(library):
    pool = Pool(SIZES["few"], 300, 2)
    compiled = CompiledCells(library, pool.cells)
    few = np.zeros((20, DIM), np.float16)
    with pytest.raises(IndexError):
        compiled.search(pool.trie, pool.z, 50, leaves=300, limit=100, k=5, phi=pool.z, vectors=few)


def test_bytes_count_cells_and_code_vectors(library):
    pool = Pool(SIZES["few"], 300, 2)
    vectors = pool.codebooks.vectors.nbytes
    assert CompiledCells(library, pool.cells).nbytes > pool.cells.nbytes + vectors


def test_a_dropped_trie_takes_its_cells_along(library, monkeypatch):
    monkeypatch.setattr("genius.search.cell_search.load_kernel", lambda: library)
    pool = Pool(SIZES["few"], 300, 2)
    search, trie = CellSearch(pool.codebooks), Trie.build(pool.codes, pool.sizes)
    assert search.cells(trie) is search.cells(trie)
    gone = weakref.ref(trie)
    del trie
    gc.collect()
    assert gone() is None and not search._cells


def test_without_the_library_or_with_another_version_numpy_is_used(library, monkeypatch, tmp_path):
    assert load_kernel(tmp_path / "none.lib") is None
    (tmp_path / "broken.lib").write_bytes(b"not a library")
    assert load_kernel(tmp_path / "broken.lib") is None
    monkeypatch.setattr(kernel, "VERSION", -1)
    assert load_kernel.__wrapped__(Path(library._name)) is None
    monkeypatch.setenv("GENIUS_KERNEL", "numpy")
    assert load_kernel.__wrapped__() is None


def test_a_failing_compiler_says_why_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compile_kernel(tmp_path / "kernel.lib") == "there is no C compiler"
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"broken\")'")
    assert "broken" in str(compile_kernel(tmp_path / "kernel.lib"))
    assert not list(tmp_path.iterdir())


def test_importing_genius_does_not_load_the_kernel() -> None:
    code = "import sys, genius; assert 'genius.search.kernel' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
