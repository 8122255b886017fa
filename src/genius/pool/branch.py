"""A branch of the tree of codes: what shares a prefix, and how it goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genius.errors import BadInput
from genius.pool.view import View
from genius.search.segment import Segment
from genius.search.trie import Ints, Nodes


class Twig(NamedTuple):
    """One code more: how many items have it, and the rows of the first few of them."""

    code: int
    items: int
    rows: list[int]


class Branch(NamedTuple):
    """All items whose codes begin with a prefix."""

    prefix: tuple[int, ...]
    items: int
    twigs: list[Twig]  # the largest first; empty when the prefix is complete
    rows: list[int]  # of the first items, in the order of their codes


def branch(view: View, prefix: Sequence[int], first: int, twigs: int, sample: int) -> Branch:
    """The branch of `prefix`, with its `first` items and its `twigs` largest twigs, `sample` items each."""
    levels = len(view.segments[0].trie.sizes)
    if len(prefix) > levels:
        raise BadInput(f"a prefix of {len(prefix)} codes: an item has {levels}")
    found = [(segment, node) for segment in view.segments if (node := _descend(segment, prefix)) is not None]
    counts: dict[int, int] = {}
    if len(prefix) < levels:
        for segment, node in found:
            children = segment.trie.children(node)
            for code, items in zip(children.code.tolist(), _counts(segment, children.take()), strict=True):
                counts[code] = counts.get(code, 0) + items
    largest = sorted((code for code in counts if counts[code]), key=lambda code: (-counts[code], code))
    return Branch(
        tuple(prefix),
        sum(_counts(segment, node)[0] for segment, node in found),
        [Twig(code, counts[code], _twig(view, found, code, sample)) for code in largest[:twigs]],
        _rows(view, found, first),
    )


def _descend(segment: Segment, prefix: Sequence[int]) -> Nodes | None:
    """The node of a prefix, or None if no item of the segment has it."""
    node = segment.trie.root()
    for code in prefix:
        children = segment.trie.children(node)
        (match,) = np.nonzero(children.code == code)
        if not len(match):
            return None
        node = children.take(match)
    return node


def _counts(segment: Segment, nodes: Nodes) -> list[int]:
    """How many visible items each node has."""
    if segment.allowed is None:
        return [int(count) for count in nodes.end - nodes.start]
    return [int(count) for count in segment.allowed.count(nodes.start, nodes.end)]


def _twig(view: View, found: Sequence[tuple[Segment, Nodes]], code: int, most: int) -> list[int]:
    below = []
    for segment, node in found:
        children = segment.trie.children(node)
        (match,) = np.nonzero(children.code == code)
        if len(match):
            below.append((segment, children.take(match)))
    return _rows(view, below, most)


def _rows(view: View, found: Sequence[tuple[Segment, Nodes]], most: int) -> list[int]:
    """Rows in the truth of the first visible items under the nodes, one node per segment."""
    rows: list[int] = []
    for segment, node in found:
        places = segment.trie.rows(_visible(segment, node, most - len(rows)))
        rows += view.rows(places).tolist()
    return rows


def _visible(segment: Segment, node: Nodes, most: int) -> Ints:
    """The first positions of a node that may be seen."""
    start, end = int(node.start[0]), int(node.end[0])
    if segment.allowed is None:
        return np.arange(start, min(end, start + most))
    return start + np.flatnonzero(segment.allowed.mask[start:end])[:most]
