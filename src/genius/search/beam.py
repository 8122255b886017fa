"""Beam search over the codes that exist in a pool: one tensor program per level for all beams of all queries.

A scorer says what a code adds to a prefix: the decoder (paper 4.4; log-probabilities, each over all codes of
the level, whether they exist in the pool or not) or tables of similarities (`lookup` in batches, for GPUs).
Of equal scores, lower codes win. The search goes through all levels, as in the paper, or stops early: once
few items are left under the beams, their remaining codes are known, and one pass scores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from genius.decode.model import Decoder
from genius.search.candidates import Candidates
from genius.search.trie.tensors import Forest, Frontier, TensorTrie, top_k_columns

GPU_SEQUENCES = 2048  # in one teacher-forced pass: bounds its memory
CPU_SEQUENCES = 128  # the same on a CPU, where larger tensors are allocated and zeroed every time


class Scorer(Protocol):
    """Scores the children of a batch of beams, level by level; it keeps the state of the beams."""

    def extend(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """Scores (batch, n) of the children `code` of beams `parent`, whose scores are (batch, beam)."""

    def advance(self, parent: Tensor, code: Tensor) -> None:
        """Replace the beams by these `parent`s, continued by `code`; both (batch, beam)."""

    def suffixes(self, beam: Tensor, codes: Tensor) -> Tensor:
        """What all remaining codes (batch, n, levels left) add to the scores of beams `beam`, (batch, n)."""


class DecoderScorer:
    """Sums of the decoder's log-probabilities for queries `z` (batch, dim)."""

    def __init__(self, decoder: Decoder, z: Tensor) -> None:
        self.decoder, self.state = decoder, decoder.start(z)

    def extend(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """See Scorer."""
        every = scores[:, :, None] + self.decoder.score_next(self.state)
        return every.flatten(1).gather(1, parent * every.shape[2] + code)

    def advance(self, parent: Tensor, code: Tensor) -> None:
        """See Scorer."""
        self.state = self.decoder.advance(self.state, parent, code)

    def suffixes(self, beam: Tensor, codes: Tensor) -> Tensor:
        """See Scorer; one teacher-forced pass, in chunks that bound its memory."""
        chunk = max(1, (CPU_SEQUENCES if beam.device.type == "cpu" else GPU_SEQUENCES) // len(beam))
        return self.decoder.score_suffix(self.state, beam, codes, at_once=chunk).sum(-1)


class TableScorer:
    """Sums of similarities with code vectors, given for each query and level: (batch, sizes[level])."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables, self.level = tables, 0

    def extend(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """See Scorer."""
        return scores.gather(1, parent) + self.tables[self.level].gather(1, code)

    def advance(self, parent: Tensor, code: Tensor) -> None:
        """See Scorer; a code has the same score after any prefix."""
        self.level += 1

    def suffixes(self, beam: Tensor, codes: Tensor) -> Tensor:
        """See Scorer."""
        pairs = zip(self.tables[self.level :], codes.unbind(2), strict=True)
        return torch.stack([table.gather(1, code) for table, code in pairs]).sum(0)


@torch.no_grad()
def beam_search(
    scorer: Scorer,
    forest: Forest,
    batch: int,
    beam: int,
    *,
    stop: int | None = None,
    leaves: int | None = None,
    suffixes: bool = True,
    modalities: Tensor | None = None,
) -> list[list[Candidates]]:
    """Candidates for each trie of the forest and each query of the batch.

    The beam keeps `beam` prefixes a level. It ends after `stop` levels (level 0 counts) or, by default, once
    no query has more than `leaves` items under its beams (default: as many as beams; then no lower level
    could have dropped an item, and the result is that of the paper's full search). The remaining codes of
    these items are scored too, unless `suffixes` is false: then the score is that of the prefix.
    `modalities` (batch, sizes[0]) says which codes of level 0 a query can use.
    """
    max_leaves = beam if leaves is None else leaves
    frontier = forest.root(batch)
    scores = torch.zeros(batch, 1, device=forest.device)
    for level in range(1, len(forest.sizes) + 1):
        children = forest.children(frontier)
        if not children.code.shape[1]:  # no query can find anything
            return [[Candidates.none()] * batch for _ in forest.tries]
        valid = children.valid
        if level == 1 and modalities is not None:
            valid = valid & modalities.gather(1, children.code)
        total = scorer.extend(scores, children.parent, children.code).masked_fill_(~valid, -torch.inf)
        columns = top_k_columns(total, beam)
        scores = total.gather(1, columns)
        frontier = children.take(columns).without(scores == -torch.inf)
        if level == len(forest.sizes):
            suffixes = False
            break
        ended = level == stop if stop is not None else int(forest.items(frontier).sum(1).max()) <= max_leaves
        if ended and not suffixes:
            break
        scorer.advance(children.parent.gather(1, columns), children.code.gather(1, columns))
        if ended:
            break
    numbers = range(len(forest.tries))
    return [_leaves(scorer, forest.tries[n], frontier, n, scores, suffixes) for n in numbers]


def _leaves(
    scorer: Scorer, trie: TensorTrie, frontier: Frontier, number: int, scores: Tensor, suffixes: bool
) -> list[Candidates]:
    """The items of one trie under the beams, for each query."""
    ranges = frontier.ranges[number]
    beam, positions, valid = trie.leaves(ranges)
    total = scores.gather(1, beam)
    if suffixes and positions.shape[1]:
        levels = range(frontier.level, len(trie.sizes))
        codes = torch.stack([trie.codes(positions, level) for level in levels], -1)
        total += scorer.suffixes(beam, codes)
        total = total.gather(1, first_of_equal(beam, codes))
    beams = (ranges.end > ranges.start).sum(1).tolist()
    host = zip(positions.cpu().numpy(), total.cpu().numpy(), valid.cpu().numpy(), beams, strict=True)
    return [Candidates(p[there], s[there], count) for p, s, there, count in host]


def first_of_equal(beam: Tensor, codes: Tensor) -> Tensor:
    """For each item the first one with the same codes, (batch, n).

    Matrix products may round equal rows differently; items with equal codes shall have equal scores.
    """
    new = torch.ones_like(beam, dtype=torch.bool)
    new[:, 1:] = (beam[:, 1:] != beam[:, :-1]) | (codes[:, 1:] != codes[:, :-1]).any(-1)
    columns = torch.arange(beam.shape[1], device=beam.device)
    return torch.where(new, columns, 0).cummax(1).values
