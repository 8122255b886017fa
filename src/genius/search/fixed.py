"""Searches of fixed shape: programs of tensor operations that a GPU can replay as one graph.

Every shape follows from the batch, the beam and the pool; no number travels to the host. Where a fixed width
could not hold the children, the beams may be others than those of the plain search: `sure` is false then, and
such a query can be asked again in the plain way. Of too many leaves, those of the best prefixes are scored.

    FixedLookup   beam by tables: all prefixes of two codes at once, then all children, or of large families
                  the best
    FixedDecoder  beam by the decoder: both first levels in one pass, since all modalities are known in
                  advance; then a pass per level; then the leaves, by their codes or in one more pass
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.model import START, Decoder, DecoderState
from genius.errors import BadInput
from genius.search.beam import first_of_equal
from genius.search.fan import near_the_axes
from genius.search.lookup import Tables
from genius.search.shelf import FixedTrie, Shelf
from genius.search.tensors import Ranges, spread

LAST = (1 << 31) - 1
DENSE = 0.25  # share of existing children from which a family counts as large
CELLS = 1 << 17  # of a query at one level: beams times codes, of which a lookup scores all


class Answers(NamedTuple):
    """The best leaves of a batch, positions rising."""

    positions: Tensor  # (batch, k)
    scores: Tensor  # (batch, k), -inf where there is none
    leaves: Tensor  # (batch,) items under the beams
    sure: Tensor  # (batch,) whether the beams are those of the plain search


@dataclass(frozen=True, slots=True)
class Widths:
    """What a search of fixed shape may hold."""

    beam: int
    k: int
    stop: int  # levels to search; at least those that are taken at once
    leaves: int  # items to score
    children: int  # of all beams of a query, at levels that are no shelves


class _Front(NamedTuple):
    """The prefixes of a batch; those with score -inf are none."""

    start: Tensor  # (batch, beam) and so on
    end: Tensor
    node: Tensor
    scores: Tensor
    sure: Tensor  # (batch,)


class FixedLookup:
    """Search by tables; with `cosine`, the leaves' scores are divided by the lengths of their sums."""

    def __init__(self, trie: FixedTrie, tables: Tables, widths: Widths, cosine: bool = False) -> None:
        self.trie, self.widths, self.levels, self.cosine = trie, widths, tables.levels, cosine
        self.vectors = torch.from_numpy(tables.vectors).to(trie.device)
        self.rows = torch.tensor([level.start for level in self.levels], device=trie.device)
        self.cells = {
            level: _cells(
                min(widths.beam, shelf.prefixes), shelf.size, int(2 * widths.beam / shelf.filled), trie.device
            )
            for level, shelf in trie.shelves.items()
            if level < widths.stop and shelf.filled >= DENSE
        }

    def __call__(self, z: Tensor, wanted: Tensor) -> Answers:
        """Answers for `z` (batch, dim); `wanted` (batch, sizes[0]) says which modalities may be found."""
        every = z @ self.vectors.T  # (batch, codes)
        trie, widths = self.trie, self.widths
        tables = [every[:, level] for level in self.levels]
        scores = torch.stack([t[:, c] for t, c in zip(tables, trie.codes, strict=False)]).sum(0)
        front = _begin(trie, scores, wanted, widths.beam)[0]
        for level in range(len(trie.codes), widths.stop):
            shelf = trie.shelves.get(level)
            table = tables[level]
            if shelf is not None and level in self.cells:
                front = self._family(front, shelf, table, self.cells[level])
            elif shelf is not None and widths.beam * shelf.size <= CELLS:
                front = _pick(front, shelf, table[:, None], widths.beam)[0]
            else:
                front = _follow(trie, front, level, table[:, None], widths)[0]
        owner, positions, valid = _leaves(front, widths.leaves)
        total = front.scores.gather(1, owner) + self.rest(every, positions, widths.stop)
        if self.cosine:
            total = total / trie.length[positions].clamp_min(1e-6)
        return _best(total.masked_fill(~valid, -torch.inf), positions, front, widths.k)

    def rest(self, every: Tensor, positions: Tensor, level: int) -> Tensor:
        """What the codes from `level` on add to the score of items, (batch, n)."""
        inner = range(level, self.trie.trie.tree_levels)  # levels of the tree are not stored by item
        first = max(0, level - self.trie.trie.tree_levels)
        codes = self.trie.below[positions][..., first:].long()
        if inner:
            codes = torch.cat(
                [torch.stack([self.trie.walk.codes(positions, n) for n in inner], -1), codes], -1
            )
        codes += self.rows[level:]
        return every.gather(1, codes.flatten(1)).view(codes.shape).sum(-1)

    def _family(self, front: _Front, shelf: Shelf, table: Tensor, cells: tuple[Tensor, ...]) -> _Front:
        """The best children of large families: only sums near the axes are looked at."""
        row, column, left_out = cells
        falling, code = table.sort(dim=1, descending=True, stable=True)
        scores, beam = front.scores.sort(dim=1, descending=True, stable=True)
        total = scores[:, row] + falling[:, column]
        number, start, end, there = shelf.find(front.node.gather(1, beam)[:, row], code[:, column])
        total = total.masked_fill(~there, -torch.inf)
        width = min(self.widths.beam, total.shape[1])
        number, best, place = top_places(total, number, width)
        missed = (F.pad(falling, (0, 1), value=-torch.inf)[:, left_out] + scores).amax(1)
        sure = front.sure & ((missed < best.amin(1)) | (missed == -torch.inf))
        start, end = start.gather(1, place), end.gather(1, place)
        return _Front(start, end, number + shelf.child_first, best, sure)


class FixedDecoder:
    """Search by the decoder's log-probabilities; the weights may be bfloat16, scores are float32.

    With `suffixes`, the leaves get the decoder's score of all their codes, else the cosine of z with what
    their codes stand for.
    """

    def __init__(
        self, trie: FixedTrie, tables: Tables, decoder: Decoder, widths: Widths, suffixes: bool
    ) -> None:
        if len(trie.codes) < 2 or widths.stop < 2:
            raise BadInput(
                "so few items, or fewer than 2 levels, need no search of fixed shape: leave it off"
            )
        self.trie, self.decoder, self.widths, self.suffixes = trie, decoder, widths, suffixes
        self.lookup = FixedLookup(trie, tables, widths)
        self.modalities = torch.arange(decoder.shape.sizes[0], device=trie.device)
        self.wide = _has_wide_products(decoder.embedding.weight)

    @torch.no_grad()
    def __call__(self, z: Tensor, wanted: Tensor) -> Answers:
        """Answers for `z` (batch, dim); `wanted` (batch, sizes[0]) says which modalities may be found."""
        trie, widths = self.trie, self.widths
        zero, one, state = self._begin(z)
        first, second = trie.codes
        scores = zero[:, first] + one.flatten(1)[:, first * one.shape[2] + second]
        front, place = _begin(trie, scores, wanted, widths.beam)
        parent, code, before = first[place], second[place], zero
        path = torch.stack([parent, code], -1)  # (batch, beam, level) codes of each prefix
        for level in range(2, widths.stop):
            state = self.decoder.advance(state, parent, code)
            logits = self._logits(state.hidden, level)
            before = front.scores
            every = logits - logits.logsumexp(-1, keepdim=True)
            shelf = trie.shelves.get(level)
            if shelf is not None:
                front, parent, code = _pick(front, shelf, every, widths.beam)
            else:
                front, parent, code = _follow(trie, front, level, every, widths)
            path = torch.cat([path.gather(1, parent[..., None].expand(-1, -1, level)), code[..., None]], -1)
        owner, positions, valid = _leaves(front, widths.leaves)
        if self.suffixes:
            total = self._rest(state, before, parent, code, owner, positions)
        else:
            total = self._cosine(z, path, owner, positions)
        return _best(total.masked_fill(~valid, -torch.inf), positions, front, widths.k)

    def _begin(self, z: Tensor) -> tuple[Tensor, Tensor, DecoderState]:
        """Log-probabilities of levels 0 (batch, 3) and 1 (batch, 3, codes), in one pass of the decoder."""
        decoder = self.decoder
        rows = torch.stack(
            [torch.full_like(self.modalities, START), self.modalities + decoder.offsets[0]], -1
        )
        cache = decoder._new_cache(1, len(z) * len(rows))
        cross = decoder._read_prefix(z)
        hidden = decoder._run(0, rows.expand(len(z), -1, -1), cache, cross)  # (batch, 3, 2, width)
        zero = F.log_softmax(self._logits(hidden[:, 0, 0], 0), -1)
        one = F.log_softmax(self._logits(hidden[:, :, 1], 1), -1)
        return zero, one, DecoderState(1, hidden[:, :, 1], cache, cross)

    def _logits(self, hidden: Tensor, level: int) -> Tensor:
        """Logits of a level in float32, also of bfloat16 weights."""
        table = self.decoder._tables()[level]
        scaled = hidden * self.decoder.shape.width**-0.5
        if self.wide:
            flat = torch.mm(scaled.flatten(0, -2), table.T, out_dtype=torch.float32)
            return flat.view(*scaled.shape[:-1], -1)
        return F.linear(scaled.float(), table.float())

    def _rest(
        self,
        state: DecoderState,
        before: Tensor,
        parent: Tensor,
        code: Tensor,
        owner: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Scores of the leaves by all their codes: one pass from the last but one level on."""
        trie, decoder = self.trie, self.decoder
        levels = range(self.widths.stop, len(decoder.shape.sizes))
        known = [code.gather(1, owner), *(trie.walk.codes(positions, level) for level in levels)]
        codes = torch.stack(known, -1)  # (batch, n, levels left)
        parents = parent.gather(1, owner)
        total = before.gather(1, parents)
        hidden = state.hidden.gather(1, parents[..., None].expand(-1, -1, state.hidden.shape[2]))[:, :, None]
        if len(levels):
            rows = codes[:, :, :-1] + decoder.offsets[state.level : -1]
            cache = decoder._continue(state, parents, len(levels))
            hidden = torch.cat([hidden, decoder._run(state.level + 1, rows, cache, state.cross)], 2)
        for time in range(codes.shape[2]):
            logits = self._logits(hidden[:, :, time], state.level + time)
            total = total + logits.gather(-1, codes[:, :, time, None])[..., 0] - logits.logsumexp(-1)
        return total.gather(1, first_of_equal(owner, codes))

    def _cosine(self, z: Tensor, path: Tensor, owner: Tensor, positions: Tensor) -> Tensor:
        """Cosine of z with the sums of code vectors of the leaves."""
        lookup, trie = self.lookup, self.trie
        every = z.float() @ lookup.vectors.T
        prefix = every.gather(1, (path + lookup.rows[: path.shape[2]]).flatten(1)).view(path.shape).sum(-1)
        similar = prefix.gather(1, owner) + lookup.rest(every, positions, path.shape[2])
        return similar / trie.length[positions].clamp_min(1e-6)


def _has_wide_products(weight: Tensor) -> bool:
    """Whether products of such weights can be had in float32 without a copy of the weights."""
    if not weight.is_cuda or weight.dtype != torch.bfloat16:
        return False
    try:
        torch.mm(weight[:8], weight[:8].T, out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True


def top_places(scores: Tensor, order: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` largest scores of each row: their `order` (rising), scores and places, each (batch, k).

    Of equal scores the one with the lowest order wins: score and order are compared as one whole number.
    `order` is below 2^31.
    """
    k = min(k, scores.shape[1])
    bits = (scores + 0.0).view(torch.int32)  # -0.0 is 0.0
    rising = torch.where(bits < 0, bits ^ LAST, bits).long()
    place = (rising << 32 | (LAST - order)).topk(k, sorted=False).indices
    order, turned = order.gather(1, place).sort(1)
    place = place.gather(1, turned)
    return order, scores.gather(1, place), place


def _begin(trie: FixedTrie, scores: Tensor, wanted: Tensor, beam: int) -> tuple[_Front, Tensor]:
    """The best of all prefixes of the first levels, and their places among these."""
    scores = scores.masked_fill(~wanted[:, trie.codes[0]], -torch.inf)
    order = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    place, best, _ = top_places(scores, order, beam)
    start = trie.start[place]
    end = torch.where(best > -torch.inf, trie.end[place], start)
    sure = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    return _Front(start, end, trie.node[place], best, sure), place


def _pick(front: _Front, shelf: Shelf, every: Tensor, beam: int) -> tuple[_Front, Tensor, Tensor]:
    """The best children of prefixes on a shelf: front, and the beam and code each comes from.

    `every` (batch, beams or 1, codes) scores the codes; all children are looked at, so this is always sure.
    """
    there = shelf.exists[(front.node - shelf.first).clamp_min(0)]
    total = (front.scores[..., None] + every).masked_fill(~there, -torch.inf).flatten(1)
    order = torch.arange(total.shape[1], device=total.device)
    place, best, _ = top_places(total, order.expand_as(total), beam)
    parent, code = place // shelf.size, place % shelf.size
    number, start, end, _ = shelf.find(front.node.gather(1, parent), code)
    return _Front(start, end, number + shelf.child_first, best, front.sure), parent, code


def _follow(
    trie: FixedTrie, front: _Front, level: int, every: Tensor, widths: Widths
) -> tuple[_Front, Tensor, Tensor]:
    """The best children by walking ranges; `every` (batch, beams or 1, codes) scores the codes."""
    ranges = Ranges(front.start, front.end, front.node)
    children = trie.walk.children(ranges, level, widths.children)
    beam = children.parent if every.shape[1] > 1 else torch.zeros_like(children.parent)
    gained = every.flatten(1).gather(1, beam * every.shape[2] + children.code)
    total = (front.scores.gather(1, children.parent) + gained).masked_fill(~children.valid, -torch.inf)
    order = torch.arange(total.shape[1], device=total.device).expand_as(total)
    place, best, _ = top_places(total, order, widths.beam)
    taken = children.take(place)
    end = torch.where(best > -torch.inf, taken.end, taken.start)
    held = _children_of(trie, ranges, level) <= widths.children
    following = _Front(taken.start, end, taken.node, best, front.sure & held)
    return following, children.parent.gather(1, place), children.code.gather(1, place)


def _children_of(trie: FixedTrie, ranges: Ranges, level: int) -> Tensor:
    """How many places the children of a query's prefixes need, (batch,)."""
    held = ranges.end > ranges.start
    if level >= trie.trie.tree_levels:
        return (ranges.end - ranges.start).sum(1)
    first = trie.walk.node_first
    return ((first[ranges.node + 1] - first[ranges.node]) * held).sum(1)


def _leaves(front: _Front, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Items under the prefixes, the best prefixes first to get a place: prefix, position, valid."""
    held = front.end - front.start
    turned = front.scores.sort(dim=1, descending=True, stable=True).indices
    sizes = held.gather(1, turned)
    before = sizes.cumsum(1) - sizes
    kept = torch.zeros_like(held).scatter(1, turned, (before < width).long())
    return spread(front.start, held * kept, width)


def _best(total: Tensor, positions: Tensor, front: _Front, k: int) -> Answers:
    order = torch.arange(total.shape[1], device=total.device).expand_as(total)
    place, best, _ = top_places(total, order, k)
    return Answers(positions.gather(1, place), best, (front.end - front.start).sum(1), front.sure)


def _cells(rows: int, columns: int, most: int, device: torch.device) -> tuple[Tensor, ...]:
    """Row and column of each cell near the axes, and for each row the first column that is not among them."""
    row, column = near_the_axes(rows, columns, most)
    return tuple(torch.from_numpy(x).to(device) for x in (row, column, np.bincount(row)))


def chosen_widths(trie: FixedTrie, beam: int, k: int, per_beam: float, stop: int | None = None) -> Widths:
    """Widths for a pool: the search stops where prefixes have few items, and `per_beam` leaves are scored."""
    most = int(per_beam * beam)
    deepest = min(trie.trie.tree_levels + 1, len(trie.trie.sizes))
    if stop is None:
        stop = len(trie.codes)
        while stop < deepest and _usual(trie.sizes_after(stop)) * beam > most:
            stop += 1
    return Widths(beam, k, stop, max(most, k), 32 * beam)


def _usual(sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
    """The items of a prefix, on average."""
    return float(sizes.mean()) if len(sizes) else 0.0
