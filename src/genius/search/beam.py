"""Beam search over the codes that exist in a pool: one tensor program per level for all beams of all queries.

What a code is worth comes from a scorer: the decoder (paper 4.4; the sum of log-probabilities, each over all
codes of the level, whether they exist in the pool or not) or tables of similarities (`lookup` in batches, for
GPUs). Of equal scores, lower codes win. The search goes through all levels, as in the paper, or stops early:
once few items are left under the beams, their remaining codes are known, and one pass scores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from genius.decode.model import Decoder
from genius.search.leaves import Leaves
from genius.search.tensors import Forest, Frontier, TensorTrie, top

SUFFIXES_AT_ONCE = 2048  # sequences in one teacher-forced pass: bounds its memory
SUFFIXES_IN_CACHE = 128  # on a CPU, where larger tensors are given back and zeroed anew each time


class Scorer(Protocol):
    """Scores of the codes of a batch of beams; it moves along with the search."""

    def next(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """Scores (batch, places) of beams `parent` with scores (batch, beam), continued by `code`."""

    def follow(self, parent: Tensor, code: Tensor) -> None:
        """The beams are now these `parent`s, continued by `code`; both (batch, beam)."""

    def rest(self, owner: Tensor, codes: Tensor) -> Tensor:
        """What all remaining codes (batch, n, levels left) add to the scores of beams `owner`, (batch, n)."""


class DecoderScorer:
    """Sums of the decoder's log-probabilities for queries `z` (batch, dim)."""

    def __init__(self, decoder: Decoder, z: Tensor) -> None:
        self.decoder, self.state = decoder, decoder.start(z)

    def next(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """See Scorer."""
        every = scores[:, :, None] + self.decoder.score_next(self.state)
        return every.flatten(1).gather(1, parent * every.shape[2] + code)

    def follow(self, parent: Tensor, code: Tensor) -> None:
        """See Scorer."""
        self.state = self.decoder.advance(self.state, parent, code)

    def rest(self, owner: Tensor, codes: Tensor) -> Tensor:
        """See Scorer; one teacher-forced pass, in parts that bound its memory."""
        chunk = max(1, (SUFFIXES_IN_CACHE if owner.device.type == "cpu" else SUFFIXES_AT_ONCE) // len(owner))
        parts = [slice(start, start + chunk) for start in range(0, owner.shape[1], chunk)]
        scores = [self.decoder.score_rest(self.state, owner[:, part], codes[:, part]) for part in parts]
        return torch.cat(scores, 1).sum(-1)


class TableScorer:
    """Sums of similarities with code vectors, given for each query and level: (batch, sizes[level])."""

    def __init__(self, tables: Sequence[Tensor]) -> None:
        self.tables, self.level = tables, 0

    def next(self, scores: Tensor, parent: Tensor, code: Tensor) -> Tensor:
        """See Scorer."""
        return scores.gather(1, parent) + self.tables[self.level].gather(1, code)

    def follow(self, parent: Tensor, code: Tensor) -> None:
        """See Scorer; a code is worth the same after any prefix."""
        self.level += 1

    def rest(self, owner: Tensor, codes: Tensor) -> Tensor:
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
) -> list[list[Leaves]]:
    """Items and their scores, for each trie of the forest and each query of the batch.

    The beam keeps `beam` prefixes a level. It ends after `stop` levels (level 0 counts) or, by default, once
    no query has more than `leaves` items under its beams. The remaining codes of those are scored too, unless
    `suffixes` is false: then the score is that of the prefix. With no more leaves than beams, the
    default, nothing could have been dropped at the levels below: the answer is that of the full search of the
    paper. `modalities` (batch, sizes[0]) says which codes of level 0 a query may use.
    """
    most = beam if leaves is None else leaves
    frontier = forest.root(batch)
    scores = torch.zeros(batch, 1, device=forest.device)
    for level in range(1, len(forest.sizes) + 1):
        children = forest.children(frontier)
        if not children.code.shape[1]:  # nobody may find anything
            return [[Leaves.none()] * batch for _ in forest.tries]
        valid = children.valid
        if level == 1 and modalities is not None:
            valid = valid & modalities.gather(1, children.code)
        total = scorer.next(scores, children.parent, children.code).masked_fill_(~valid, -torch.inf)
        places = top(total, beam)
        scores = total.gather(1, places)
        frontier = children.take(places).emptied(scores == -torch.inf)
        if level == len(forest.sizes):
            suffixes = False
            break
        ended = level == stop if stop is not None else int(forest.items(frontier).sum(1).max()) <= most
        if ended and not suffixes:
            break
        scorer.follow(children.parent.gather(1, places), children.code.gather(1, places))
        if ended:
            break
    numbers = range(len(forest.tries))
    return [_leaves(scorer, forest.tries[n], frontier, n, scores, suffixes) for n in numbers]


def _leaves(
    scorer: Scorer, trie: TensorTrie, frontier: Frontier, number: int, scores: Tensor, suffixes: bool
) -> list[Leaves]:
    """The items of one trie under the beams, for each query."""
    ranges = frontier.ranges[number]
    owner, positions, valid = trie.leaves(ranges)
    total = scores.gather(1, owner)
    if suffixes and positions.shape[1]:
        levels = range(frontier.level, len(trie.trie.sizes))
        codes = torch.stack([trie.codes(positions, level) for level in levels], -1)
        total += scorer.rest(owner, codes)
        total = total.gather(1, first_of_equal(owner, codes))
    beams = (ranges.end > ranges.start).sum(1).tolist()
    host = zip(positions.cpu().numpy(), total.cpu().numpy(), valid.cpu().numpy(), beams, strict=True)
    return [Leaves(p[there], s[there], count) for p, s, there, count in host]


def first_of_equal(owner: Tensor, codes: Tensor) -> Tensor:
    """For each item the first with the same codes, (batch, n): products may round equal rows differently."""
    new = torch.ones_like(owner, dtype=torch.bool)
    new[:, 1:] = (owner[:, 1:] != owner[:, :-1]) | (codes[:, 1:] != codes[:, :-1]).any(-1)
    places = torch.arange(owner.shape[1], device=owner.device)
    return torch.where(new, places, 0).cummax(1).values
