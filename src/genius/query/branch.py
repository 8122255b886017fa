"""A node of the trie of codes: the items that share a prefix, and its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from genius.errors import BadInput
from genius.query.view import PoolView
from genius.search.segment import TrieSegment
from genius.search.trie import Ints, Nodes


class Child(NamedTuple):
    """The prefix with one more code: how many items share it, and the rows of the first few."""

    code: int
    items: int
    rows: list[int]


class Branch(NamedTuple):
    """All items whose codes begin with a prefix; a text in passages counts once for each of them."""

    prefix: tuple[int, ...]
    items: int
    children: list[Child]  # the largest first; empty when the prefix is complete
    rows: list[int]  # of the first items, in the order of their codes


def branch(
    view: PoolView, prefix: Sequence[int], max_items: int, max_children: int, per_child: int
) -> Branch:
    """The node of `prefix` with its first items and its largest children, each with a few of its items."""
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
        [
            Child(code, counts[code], _child_rows(view, found, code, per_child))
            for code in largest[:max_children]
        ],
        _rows(view, found, max_items),
    )


def _descend(segment: TrieSegment, prefix: Sequence[int]) -> Nodes | None:
    """The node of a prefix, or None if no item of the segment has it."""
    node = segment.trie.root()
    for code in prefix:
        children = segment.trie.children(node)
        (match,) = np.nonzero(children.code == code)
        if not len(match):
            return None
        node = children.take(match)
    return node


def _counts(segment: TrieSegment, nodes: Nodes) -> list[int]:
    """How many visible items each node has."""
    if segment.allowed is None:
        return [int(count) for count in nodes.end - nodes.start]
    return [int(count) for count in segment.allowed.count(nodes.start, nodes.end)]


def _child_rows(
    view: PoolView, found: Sequence[tuple[TrieSegment, Nodes]], code: int, most: int
) -> list[int]:
    """Rows of the first items under the child `code` of the nodes."""
    below = []
    for segment, node in found:
        children = segment.trie.children(node)
        (match,) = np.nonzero(children.code == code)
        if len(match):
            below.append((segment, children.take(match)))
    return _rows(view, below, most)


def _rows(view: PoolView, found: Sequence[tuple[TrieSegment, Nodes]], most: int) -> list[int]:
    """Rows in the truth of the first visible items under the nodes, one node per segment."""
    rows: list[int] = []
    for segment, node in found:
        ordinals = segment.trie.rows(_visible(segment, node, most - len(rows)))
        rows += view.items_of(ordinals).tolist()
    return list(dict.fromkeys(rows))


def _visible(segment: TrieSegment, node: Nodes, most: int) -> Ints:
    """The first positions under a node that are not removed."""
    start, end = int(node.start[0]), int(node.end[0])
    if segment.allowed is None:
        return np.arange(start, min(end, start + most))
    return start + np.flatnonzero(segment.allowed.mask[start:end])[:most]
