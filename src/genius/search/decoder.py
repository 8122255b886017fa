"""Search by the decoder, alone or together with a lookup: candidates for each segment and query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from genius.search.arrays import Bools, Floats, Ints
from genius.search.candidates import Candidates
from genius.search.codebooks import Codebooks
from genius.search.lookup import CandidatesBySegment
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder


def search_by_decoder(
    segments: Sequence[TrieSegment],
    decoder: Decoder,
    z: Floats,
    modalities: Bools | None,
    *,
    beam: int,
    leaves: int,
    stop: int | None,
    suffixes: bool,
    device: str,
) -> CandidatesBySegment:
    """Candidates by the decoder's log-probability of their codes; the segments are searched as one pool."""
    import torch

    from genius.search.beam import DecoderScorer, beam_search
    from genius.search.trie.tensors import Forest

    forest = Forest([segment.tensors(device) for segment in segments])
    mask = None if modalities is None else torch.from_numpy(modalities).to(device)
    scorer = DecoderScorer(decoder, torch.from_numpy(z).to(device))
    return beam_search(
        scorer, forest, len(z), beam, stop=stop, leaves=leaves, suffixes=suffixes, modalities=mask
    )


def combine(
    segments: Sequence[TrieSegment],
    decoder: Decoder,
    z: Floats,
    codebooks: Codebooks,
    generated: CandidatesBySegment,
    looked_up: CandidatesBySegment,
    *,
    weight: float,
    device: str,
) -> CandidatesBySegment:
    """Candidates of both searches, scored by the sum of both scores: decoder + weight * lookup.

    Those that only the lookup has found get the decoder's score in one pass.
    """
    combined: CandidatesBySegment = []
    for segment, by_decoder, by_lookup in zip(segments, generated, looked_up, strict=True):
        pairs = list(zip(by_decoder, by_lookup, strict=True))
        extra = [np.setdiff1d(b.positions, a.positions) for a, b in pairs]
        extra_scores = _decoder_scores(segment.trie, decoder, z, extra, device)
        several = []
        for query, (a, b) in enumerate(pairs):
            positions = np.concatenate([a.positions, extra[query]])
            decoded = np.concatenate([a.scores, extra_scores[query]])
            order = np.argsort(positions)
            positions = positions[order]
            codes = segment.trie.codes(positions)
            new = np.append(True, (codes[1:] != codes[:-1]).any(1))[: len(codes)]
            first = np.maximum.accumulate(np.where(new, np.arange(len(codes)), 0))  # of equal codes
            total = decoded[order][first] + np.float32(weight) * codebooks.similarity(z[query], codes)
            several.append(Candidates(positions, total, a.beams + b.beams, a.leaves + b.leaves))
        combined.append(several)
    return combined


def _decoder_scores(
    trie: Trie, decoder: Decoder, z: Floats, positions: Sequence[Ints], device: str
) -> list[Floats]:
    """The decoder's scores of the items at these positions, for each query, in one pass."""
    import torch

    longest = max(map(len, positions))
    if not longest:
        return [np.zeros(0, np.float32) for _ in positions]
    codes = np.zeros((len(z), longest, len(trie.sizes)), dtype=np.int64)
    for query, own in enumerate(positions):
        codes[query, : len(own)] = trie.codes(own)
    queries, known = torch.from_numpy(z).to(device), torch.from_numpy(codes).to(device)
    scores = decoder.score_codes(queries, known).sum(-1).cpu().numpy()
    return [row[: len(own)] for row, own in zip(scores, positions, strict=True)]
