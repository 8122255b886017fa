"""Builds the arrays of a trie from codes in any order, sorting a bounded number of items at a time.

Items are partitioned by their first codes, so that the parts, each sorted, follow each other in the order of
the codes. A part is sorted by as many codes as fit into a 64-bit word; the few items that agree in all of
those are sorted afterwards by their other codes, then by input order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Ints
from genius.search.trie.packing import RecordLayout, bytes_for

Arrays = tuple[NDArray[np.uint8], NDArray[Any], NDArray[np.int32], NDArray[np.int32], Ints]
HEAD_BITS = 16  # of the first codes, by which items are partitioned
HEADS_AT_ONCE = 1 << 22
THREADS = 16  # at most; each sorts a part


def build_arrays(
    codes: NDArray[Any], sizes: Sequence[int], rows: Ints | None, mean_bucket: int, at_once: int
) -> Arrays:
    """records, node_code, node_start, node_first and levels of a trie.

    A level joins the tree while its nodes have at least `mean_bucket` items on average; level 0 always does.
    """
    items = len(codes)
    last_row = items - 1 if rows is None else int(rows.max(initial=0))
    wide = RecordLayout.of(sizes[1:], bytes_for(max(last_row, 0)))  # level 0 is always in the tree
    records = np.zeros((items, wide.width), dtype=np.uint8)
    tree = TreeBuilder(len(sizes), items // mean_bucket)

    def put(part: Part) -> NDArray[Any]:
        """Write the records of a part; returns its codes, sorted."""
        picked = part.items()
        own = codes if picked is None else codes.take(picked, axis=0)
        order = sort_codes(own, sizes)
        place = records[part.start : part.start + len(own)]
        wide.put_row(place, _item_rows(order if picked is None else picked[order], rows))
        own = own.take(order, axis=0)
        for level in range(1, len(sizes)):
            wide.put_code(place, level - 1, own[:, level])
        return own

    done = 0
    for own in _in_threads(put, _parts(codes, sizes, at_once)):
        tree.add(own, done)
        done += len(own)
    narrow = RecordLayout.of(sizes[tree.depth :], wide.row_bytes)
    return _without_tree_codes(records, wide, narrow), *tree.arrays(items, max(sizes))


class TreeBuilder:
    """Collects the nodes of the first levels from the sorted parts, one part after the other."""

    def __init__(self, levels: int, max_nodes: int) -> None:
        self.depth, self.max_nodes = levels, max_nodes  # levels that can still join the tree; nodes of each
        self.parts: list[list[tuple[NDArray[Any], Ints]]] = [[] for _ in range(levels)]  # codes and starts
        self.last: list[int] = []  # codes of the last item

    def add(self, codes: NDArray[Any], offset: int) -> None:
        """Add a part's sorted codes (items, levels), which begin at position `offset`."""
        if not len(codes):
            return
        new = np.zeros(len(codes), dtype=bool)  # whether a prefix starts at this position
        for level in range(self.depth):
            column = codes[:, level]
            new[0] |= not self.last or self.last[level] != column[0]
            new[1:] |= column[1:] != column[:-1]
            starts = np.flatnonzero(new)
            self.parts[level].append((column[starts], starts + offset))
            if level and sum(len(starts) for _, starts in self.parts[level]) > self.max_nodes:
                self.depth = level
                del self.parts[level:]
                break
        self.last = codes[-1].tolist()

    def arrays(
        self, items: int, largest: int
    ) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int32], Ints]:
        """node_code, node_start, node_first and levels."""
        blocks = [(np.zeros(1, np.uint16), np.zeros(1, np.int64))]
        none = [(np.zeros(0, np.uint16), np.zeros(0, np.int64))]
        blocks += [
            (np.concatenate(codes), np.concatenate(starts))
            for codes, starts in (zip(*p, strict=True) for p in [part or none for part in self.parts])
        ]
        levels = np.cumsum([0] + [len(starts) + 1 for _, starts in blocks])
        closed = [np.append(starts, items) for _, starts in blocks]
        first = [
            levels[number + 1] + np.searchsorted(closed[number + 1][:-1], closed[number])
            for number in range(self.depth)
        ]
        code = np.concatenate([np.append(codes, 0) for codes, _ in blocks])
        return (
            code.astype(np.uint8 if largest <= 256 else np.uint16),
            np.concatenate(closed).astype(np.int32),
            np.concatenate(first).astype(np.int32),
            levels.astype(np.int64),
        )


def sort_codes(codes: NDArray[Any], sizes: Sequence[int]) -> Ints:
    """The stable order of `codes` (n, levels) by level 0, then level 1, …"""
    words = _words(codes, sizes)
    order = np.argsort(words[0])
    first = words[0][order]
    same = first[1:] == first[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    items = order[places]
    group = np.cumsum(np.append(True, ~same))[places]
    order[places] = items[np.lexsort((items, *(word[items] for word in words[:0:-1]), group))]
    return order


def _words(codes: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[np.uint64]]:
    """The codes of each item, packed into as few words as hold them, level 0 first."""
    words = [np.zeros(len(codes), dtype=np.uint64)]
    room = 64
    for level, size in enumerate(sizes):
        bits = (size - 1).bit_length()
        if bits > room:
            words.append(np.zeros(len(codes), dtype=np.uint64))
            room = 64
        words[-1] <<= np.uint64(bits)
        words[-1] |= codes[:, level]
        room -= bits
    return words


class Part(NamedTuple):
    """Items that are sorted together; their positions follow those of the part before."""

    start: int  # first position
    number: int
    part_of_item: NDArray[np.uint16] | None  # None: there is one part

    def items(self) -> Ints | None:
        """The items of this part, ascending, or None for all."""
        return None if self.part_of_item is None else np.flatnonzero(self.part_of_item == self.number)


def _parts(codes: NDArray[Any], sizes: Sequence[int], at_once: int) -> list[Part]:
    """All items in parts of about `at_once`; one prefix with many items may exceed that."""
    if len(codes) <= at_once:
        return [Part(0, 0, None)]
    levels = 1
    while levels < len(sizes) and sum((size - 1).bit_length() for size in sizes[: levels + 1]) <= HEAD_BITS:
        levels += 1
    heads = np.empty(len(codes), dtype=np.uint16)
    counts = np.zeros(1 << HEAD_BITS, dtype=np.int64)
    for start in range(0, len(codes), HEADS_AT_ONCE):
        chunk = slice(start, start + HEADS_AT_ONCE)
        (head,) = _words(codes[chunk, :levels], sizes[:levels])
        heads[chunk] = head
        counts += np.bincount(heads[chunk], minlength=len(counts))
    before = np.cumsum(counts) - counts
    number, first = np.unique(before[counts > 0] // at_once, return_index=True)
    start_of = before[counts > 0][first]
    np.take((before // at_once).astype(np.uint16), heads, out=heads)
    return [Part(int(start), int(part), heads) for start, part in zip(start_of, number, strict=True)]


def _in_threads(put: Callable[[Part], NDArray[Any]], parts: Sequence[Part]) -> Iterator[NDArray[Any]]:
    """What `put` returns for each part, in their order; some are made in advance."""
    threads = min(THREADS, os.cpu_count() or 1, len(parts))
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[NDArray[Any]]] = deque()
        for part in parts:
            waiting.append(pool.submit(put, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _item_rows(order: Ints, rows: Ints | None) -> Ints:
    return order if rows is None else np.asarray(rows, dtype=np.int64)[order]


def _without_tree_codes(
    records: NDArray[np.uint8], wide: RecordLayout, narrow: RecordLayout
) -> NDArray[np.uint8]:
    """The records in the `narrow` layout, which lacks the tree's codes; done in place, front to back."""
    if wide == narrow:
        return records
    items, skipped = len(records), wide.below - narrow.below
    for start in range(0, items, HEADS_AT_ONCE):
        chunk = records[start : start + HEADS_AT_ONCE]
        out = np.zeros((len(chunk), narrow.width), dtype=np.uint8)
        for number in range(narrow.below):
            narrow.put_code(out, number, wide.code(chunk, number + skipped))
        narrow.put_row(out, wide.row(chunk))
        records.reshape(-1)[start * narrow.width :][: out.size] = out.ravel()
        del chunk
    records.resize((items, narrow.width), refcheck=False)  # no view of it is left
    return records
