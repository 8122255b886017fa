"""Search without a decoder: a beam over the trie, scored by tables (see `genius.search.codebooks`).

The beam stops once few items are left under its prefixes; these are then scored by all their codes. `lookup`
is the NumPy path for one query; `TableScorer` in `genius.search.beam` does the same for batches on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from genius.search.arrays import Bools, Floats, Ints, ragged_ranges, top_k
from genius.search.candidates import Candidates
from genius.search.segment import TrieSegment
from genius.search.trie import ItemFilter, Nodes, Trie

LEAVES_PER_BEAM = 32  # items left at which a lookup ends: their codes are read and added up
SCATTERED = 4  # what a strict filter allows lies all over the trie: an item costs as much as so many in a row
FILTERED_AT_ONCE = (
    8192  # what a filter allows lies all over the trie: more items are found faster by the beam
)

CandidatesBySegment = list[list[Candidates]]  # for each segment, for each query


def search_by_lookup(
    segments: Sequence[TrieSegment],
    tables: Sequence[Sequence[Floats]],
    modalities: Bools | None,
    *,
    beam: int,
    leaves: int,
    stop: int | None,
    device: str,
) -> CandidatesBySegment:
    """Candidates by the similarity of the query with their codes; `tables` has an entry for each query.

    On the CPU one query after the other in NumPy, elsewhere the whole batch in torch.
    """
    if device == "cpu":
        allowed = [None] * len(tables) if modalities is None else list(modalities)
        return [
            [
                lookup(
                    s.trie,
                    own,
                    beam,
                    leaves=leaves // SCATTERED if s.is_strict else leaves,
                    stop=stop,
                    modalities=mask,
                    allowed=s.allowed,
                )
                for own, mask in zip(tables, allowed, strict=True)
            ]
            for s in segments
        ]
    import torch

    from genius.search.beam import TableScorer, beam_search
    from genius.search.trie.tensors import Forest

    found = []
    for segment in segments:
        by_level = [torch.from_numpy(np.stack(rows)).to(device) for rows in zip(*tables, strict=True)]
        mask = None if modalities is None else torch.from_numpy(modalities).to(device)
        forest = Forest([segment.tensors(device)])
        scorer = TableScorer(by_level)
        found += beam_search(scorer, forest, len(tables), beam, stop=stop, leaves=leaves, modalities=mask)
    return found


def lookup(
    trie: Trie,
    tables: Sequence[Floats],
    beam: int,
    *,
    leaves: int | None = None,
    stop: int | None = None,
    modalities: Bools | None = None,
    allowed: ItemFilter | None = None,
) -> Candidates:
    """Candidates for one query, scored by its `tables` (one entry of `Codebooks.tables`).

    The beam keeps `beam` prefixes a level. It ends after `stop` levels (level 0 counts) or, by default, as
    soon as it holds no more than `leaves` items (32 per beam), and then scores all of them. `modalities` is a
    mask over the codes of level 0, `allowed` a filter of the trie's items.
    """
    max_leaves = LEAVES_PER_BEAM * beam if leaves is None else leaves
    nodes, scores, ended = _start(trie, tables, beam, stop, max_leaves, modalities, allowed)
    for level in range(nodes.level, len(trie.sizes)):
        ended = ended or (level == stop if stop is not None else _items(nodes, allowed).sum() <= max_leaves)
        if ended and level >= trie.tree_levels:
            break  # inside the tree codes are known from the nodes only: go on down, but keep all of them
        best = None
        if not ended and level <= trie.tree_levels:
            is_allowed = None if allowed is None else partial(_has_allowed_child, trie, allowed, level)
            best = trie.child_tables.best_children(level, nodes.node, scores, tables[level], beam, is_allowed)
        if best is not None:
            first, last, scores = best
            inside = level < trie.tree_levels
            nodes = trie.nodes(level + 1, first) if inside else Nodes(level + 1, first, last, first[:0])
            continue
        children = trie.children(nodes)
        total = np.repeat(scores, children.counts)
        if children.heads is not None:
            total = total[children.heads[:-1]]
        total += tables[level].take(children.code)
        kept = None if allowed is None else children.with_allowed(allowed)
        picked = kept if ended else top_k(total, beam, kept)
        nodes = children.take(slice(None) if picked is None else picked)
        scores = total if picked is None else total[picked]
    if stop is None:
        nodes, scores = _best_nodes(nodes, scores, max_leaves, allowed)
    return _score_leaves(trie, nodes, scores, tables, allowed)


def _start(
    trie: Trie,
    tables: Sequence[Floats],
    beam: int,
    stop: int | None,
    max_leaves: int,
    modalities: Bools | None,
    allowed: ItemFilter | None,
) -> tuple[Nodes, Floats, bool]:
    """The first levels in one step: all but the last have too few nodes for a beam to drop any.

    Returns the nodes, their scores, and whether the search ends here because so few items are left.
    """
    level = trie.child_tables.start_level(beam)
    if stop is not None:
        level = min(level, max(stop, 1))
    node, codes = trie.child_tables.prefixes(level)
    scores = tables[0].take(codes[0])
    for own, code in zip(tables[1:level], codes[1:], strict=True):
        scores += own.take(code)
    kept = None if allowed is None else np.flatnonzero(_has_allowed_item(trie, allowed, node))
    items = trie.items if allowed is None else allowed.items
    if modalities is not None:
        roots = trie.children(trie.root())
        items = int(_items(roots.take(modalities[roots.code]), allowed).sum())
        kept = np.flatnonzero(modalities[codes[0]]) if kept is None else kept[modalities[codes[0][kept]]]
    few = max_leaves if allowed is None else min(max_leaves, FILTERED_AT_ONCE)
    ended = items <= few if stop is None else stop < level
    picked = kept if ended else top_k(scores, beam, kept)
    if picked is None:
        return trie.nodes(level, node), scores, ended
    return trie.nodes(level, node[picked]), scores[picked], ended


def _has_allowed_item(trie: Trie, allowed: ItemFilter, node: Ints) -> Bools:
    """Whether each node of the tree has an allowed item."""
    before = allowed.count_before
    return np.asarray(before[trie.node_start[node + 1]] > before[trie.node_start[node]])


def _has_allowed_child(trie: Trie, allowed: ItemFilter, level: int, first: Ints, last: Ints) -> Bools:
    """Whether children one code longer than `level` have an allowed item; see `ChildTables.best_children`."""
    if level < trie.tree_levels:
        return _has_allowed_item(trie, allowed, first)
    return np.asarray(allowed.count_before[last] > allowed.count_before[first])


def _items(nodes: Nodes, allowed: ItemFilter | None) -> Ints:
    """How many (allowed) items each node has."""
    return nodes.end - nodes.start if allowed is None else allowed.count(nodes.start, nodes.end)


def _best_nodes(
    nodes: Nodes, scores: Floats, max_leaves: int, allowed: ItemFilter | None
) -> tuple[Nodes, Floats]:
    """The best nodes, as many as it takes to have `max_leaves` items."""
    count = _items(nodes, allowed)
    if count.sum() <= max_leaves:
        return nodes, scores
    order = np.argsort(-scores, kind="stable")
    before = np.cumsum(count[order]) - count[order]
    kept = np.sort(order[before < max_leaves])
    return Nodes(nodes.level, nodes.start[kept], nodes.end[kept], nodes.node[:0]), scores[kept]


def _score_leaves(
    trie: Trie, nodes: Nodes, scores: Floats, tables: Sequence[Floats], allowed: ItemFilter | None
) -> Candidates:
    """Every item under the nodes, with the rest of its codes added to the node's score."""
    if allowed is None:
        counts = nodes.end - nodes.start
        positions = ragged_ranges(nodes.start, counts)
    else:
        positions, counts = allowed.within(nodes.start, nodes.end)
    total = np.repeat(scores, counts)
    records = trie.records.take(positions, axis=0)
    for level in range(nodes.level, len(trie.sizes)):
        total += tables[level].take(trie.layout.code(records, level - trie.tree_levels))
    return Candidates(positions, total, len(nodes))
