"""Three ways to find items: by lookup, by the decoder, by both; each gives leaves per segment and query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from genius.search.leaves import Floats, Leaves
from genius.search.lookup import Tables, lookup
from genius.search.segment import Segment
from genius.search.trie import Bools, Ints, Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder

PerSegment = list[list[Leaves]]  # of each segment, of each query


def by_lookup(
    pool: Sequence[Segment],
    tables: Sequence[Sequence[Floats]],
    wanted: Bools | None,
    *,
    beam: int,
    leaves: int,
    stop: int | None,
    device: str,
) -> PerSegment:
    """Items by the similarity of the query with their codes; `tables` has a row for each query.

    On the CPU query after query in NumPy, elsewhere the whole batch in torch.
    """
    if device == "cpu":
        allowed = [None] * len(tables) if wanted is None else list(wanted)
        return [
            [
                lookup(s.trie, own, beam, leaves=leaves, stop=stop, modalities=mask, allowed=s.allowed)
                for own, mask in zip(tables, allowed, strict=True)
            ]
            for s in pool
        ]
    import torch

    from genius.search.beam import TableScorer, beam_search
    from genius.search.tensors import Forest

    found = []
    for segment in pool:
        by_level = [torch.from_numpy(np.stack(rows)).to(device) for rows in zip(*tables, strict=True)]
        mask = None if wanted is None else torch.from_numpy(wanted).to(device)
        forest = Forest([segment.tensors(device)])
        scorer = TableScorer(by_level)
        found += beam_search(scorer, forest, len(tables), beam, stop=stop, leaves=leaves, modalities=mask)
    return found


def by_decoder(
    pool: Sequence[Segment],
    decoder: Decoder,
    z: Floats,
    wanted: Bools | None,
    *,
    beam: int,
    leaves: int,
    stop: int | None,
    suffixes: bool,
    device: str,
) -> PerSegment:
    """Items by the decoder's log-probability of their codes; the segments are searched as one pool."""
    import torch

    from genius.search.beam import DecoderScorer, beam_search
    from genius.search.tensors import Forest

    forest = Forest([segment.tensors(device) for segment in pool])
    mask = None if wanted is None else torch.from_numpy(wanted).to(device)
    scorer = DecoderScorer(decoder, torch.from_numpy(z).to(device))
    return beam_search(
        scorer, forest, len(z), beam, stop=stop, leaves=leaves, suffixes=suffixes, modalities=mask
    )


def by_both(
    pool: Sequence[Segment],
    decoder: Decoder,
    z: Floats,
    tables: Tables,
    generated: PerSegment,
    looked_up: PerSegment,
    *,
    weight: float,
    device: str,
) -> PerSegment:
    """Items of either search by the sum of both scores: decoder + weight * lookup.

    Items that only the lookup has found get the decoder's score in one pass.
    """
    found: PerSegment = []
    for segment, ours, theirs in zip(pool, generated, looked_up, strict=True):
        extra = [np.setdiff1d(b.positions, a.positions) for a, b in zip(ours, theirs, strict=True)]
        scores = _decoded(segment.trie, decoder, z, extra, device)
        rows = []
        for query, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            positions = np.concatenate([a.positions, extra[query]])
            decoded = np.concatenate([a.scores, scores[query]])
            order = np.argsort(positions)
            positions = positions[order]
            codes = segment.trie.codes(positions)
            new = np.append(True, (codes[1:] != codes[:-1]).any(1))[: len(codes)]
            first = np.maximum.accumulate(np.where(new, np.arange(len(codes)), 0))  # of equal codes
            total = decoded[order][first] + np.float32(weight) * tables.similarity(z[query], codes)
            rows.append(Leaves(positions, total, a.beams + b.beams, a.touched + b.touched))
        found.append(rows)
    return found


def _decoded(trie: Trie, decoder: Decoder, z: Floats, positions: Sequence[Ints], device: str) -> list[Floats]:
    """The decoder's scores of the items at these positions, for each query, in one pass."""
    import torch

    most = max(map(len, positions))
    if not most:
        return [np.zeros(0, np.float32) for _ in positions]
    codes = np.zeros((len(z), most, len(trie.sizes)), dtype=np.int64)
    for query, own in enumerate(positions):
        codes[query, : len(own)] = trie.codes(own)
    queries, known = torch.from_numpy(z).to(device), torch.from_numpy(codes).to(device)
    scores = decoder.score_codes(queries, known).sum(-1).cpu().numpy()
    return [row[: len(own)] for row, own in zip(scores, positions, strict=True)]
