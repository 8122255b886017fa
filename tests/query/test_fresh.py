"""The tries of new items: a change builds a small part of them anew, and all views of a state agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.query import fresh
from genius.query.view import PoolView
from genius.search.trie import Trie
from genius.store.index import Index
from genius.store.records import Record
from genius.types import Modality

SIZES = (3, 16, 16)


def record(number: int, id: int) -> Record:
    codes = np.array([number % 3, number % 16, number // 16 % 16], np.uint16)
    return Record(f"i{id}", list(Modality)[number % 3], codes, np.full(4, number % 100, np.float16), text="t")


def create(folder) -> Index:
    Index.create(folder, model="m", fingerprint="f", sizes=SIZES, dim=4)
    return Index.open(folder)


def found(view: PoolView) -> dict[int, tuple[bytes, bytes]]:
    """Every item that the segments allow, by row: its codes as the trie and its vector as the view has it."""
    items = {}
    for segment in view.segments:
        positions = np.arange(segment.trie.items)
        if segment.allowed is not None:
            positions = positions[segment.allowed.mask]
        ordinals = segment.trie.rows(positions)
        codes, vectors = segment.trie.codes(positions), view.vectors(ordinals)
        np.testing.assert_array_equal(view.codes(ordinals), codes)
        for row, code, vector in zip(view.rows(ordinals).tolist(), codes, vectors, strict=True):
            assert row not in items
            items[row] = (code.tobytes(), vector.tobytes())
    return items


def test_a_change_builds_a_small_trie_however_many_items_are_new(tmp_path, monkeypatch):
    built: list[int] = []
    real = Trie.build
    monkeypatch.setattr(
        fresh.Trie, "build", lambda codes, *rest: built.append(len(codes)) or real(codes, *rest)
    )
    with create(tmp_path / "index") as index:
        index.add([record(n, n) for n in range(20_000)])
        monkeypatch.setattr(index, "worth_compacting", lambda: False)
        view = PoolView(index.snapshot())
        assert sum(built) == 20_000
        for step in range(20):
            built.clear()
            if step % 4 == 3:
                index.remove([f"i{step * 700}"])
            else:
                index.add([record(step, 30_000 + step)])
            view = PoolView(index.snapshot(), view)
            assert sum(built) <= fresh.FINE
        assert len(view) == len(found(view)) == 20_000 + 15 - 5


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "remove", "compact"]), st.lists(st.integers(0, 30), max_size=6)
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=40)
@given(changes=CHANGES)
def test_a_view_that_grew_with_the_index_is_the_view_of_the_index(tmp_path_factory, changes):
    with pytest.MonkeyPatch.context() as patch, create(tmp_path_factory.mktemp("x") / "index") as index:
        patch.setattr(fresh, "COARSE", 8)
        patch.setattr(fresh, "FINE", 2)
        grown, number = None, 0
        for what, ids in changes:
            if what == "add":
                number += 1
                index.add([record(100 * number + id, id) for id in ids])
            elif what == "remove":
                index.remove([f"i{id}" for id in ids])
            else:
                index.compact()
            grown = PoolView(index.snapshot(), grown)
            new = PoolView(index.snapshot())
            assert found(grown) == found(new)
            assert set(found(grown)) == set(index.truth.rows().tolist())
            assert len(grown.segments) == len(new.segments) <= 4
            assert grown.present == new.present
            for modality in Modality:
                np.testing.assert_array_equal(grown.mask(modality), new.mask(modality))


def test_states_that_were_given_out_do_not_change(tmp_path):
    with create(tmp_path / "index") as index:
        index.add([record(n, n) for n in range(10)])
        first = PoolView(index.snapshot())
        before = found(first)
        index.add([record(n, n) for n in range(5, 200)])
        index.remove(["i1"])
        second = PoolView(index.snapshot(), first)
        assert found(first) == before
        late = PoolView(first.snapshot, second)  # a thread that was slow
        assert found(late) == before
