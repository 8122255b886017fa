"""Row runs, packed modalities, checksums and stamps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from genius.store.records import SETTLED_NS, RowRuns, Stamp, checksum, pack_modality, unpack_modality

ROWS = st.sets(st.integers(1, 60), max_size=40).map(lambda rows: np.array(sorted(rows), dtype=np.int64))


@given(rows=ROWS, asked=ROWS)
def test_row_runs_find_rows_and_places_both_ways(rows, asked):
    runs = RowRuns.of(rows)
    assert len(runs) == len(rows)
    np.testing.assert_array_equal(runs.rows(np.arange(len(rows))), rows)
    np.testing.assert_array_equal(runs.places(asked), np.flatnonzero(np.isin(rows, asked)))


def test_rows_without_gaps_are_one_run():
    assert len(RowRuns.of(np.arange(1, 1000)).row) == 1


@given(values=st.lists(st.integers(0, 2)))
def test_modalities_survive_packing(values):
    modality = np.array(values, dtype=np.uint8)
    packed = pack_modality(modality)
    assert packed.nbytes == -(-len(values) // 4)
    np.testing.assert_array_equal(unpack_modality(packed, len(values)), modality)


def test_checksums_see_boundaries_and_absent_fields():
    sums = {
        checksum(fields) for fields in (("ab", "c"), ("a", "bc"), ("abc", None), ("abc", ""), (None, "abc"))
    }
    assert len(sums) == 5


def test_a_stamp_vouches_only_for_settled_times():
    old = Stamp(size=5, mtime_ns=10, ctime_ns=20, seen_ns=20 + SETTLED_NS + 1)
    assert old.vouches_for(Stamp(5, 10, 20, 0))
    assert not old.vouches_for(Stamp(6, 10, 20, 0))  # another size
    assert not old.vouches_for(Stamp(5, 9, 20, 0))  # a time that went back
    assert not old.vouches_for(Stamp(5, 10, 21, 0))  # mtime was put back, but the inode changed
    fresh = Stamp(size=5, mtime_ns=10, ctime_ns=20, seen_ns=21)
    assert not fresh.vouches_for(Stamp(5, 10, 20, 0))  # touched just before it was read
    future = Stamp(size=5, mtime_ns=10**19, ctime_ns=20, seen_ns=10**18)
    assert not future.vouches_for(Stamp(5, 10**19, 20, 0))
