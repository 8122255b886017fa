"""One front for every way to search: segments of a pool in, ranked items out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.found import Found, merge, rank
from genius.search.leaves import Floats, Leaves
from genius.search.lookup import Tables
from genius.search.methods import PerSegment, by_both, by_decoder, by_lookup
from genius.search.rerank import Fetch, by_codes, by_vectors
from genius.search.segment import Segment
from genius.search.trie import Bools, Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.search.replay import Replay

LOOKUP_LEAVES = 32  # per beam: their codes are read and added up
RERANKED = {"codes": 2, "vectors": 4}  # per beam: each is scored anew
FIXED_LEAVES = {"lookup": LOOKUP_LEAVES, "generate": 8.0}  # per beam, in searches of fixed shape
FIXED_SUFFIXES = 4.0  # per beam, where the decoder has to score them
FEW = 8  # queries that the CPU has looked up, one by one, before a GPU has done its many small steps
FIXED_ITEMS = 1000  # fewer are searched the plain way: they may change often, and each change is a recording


@dataclass(frozen=True, slots=True)
class Options:
    """How to search. The weights are values found on validation data."""

    method: Literal["generate", "lookup", "both"] = "lookup"
    rerank: Literal["none", "codes", "vectors"] = "none"
    beam: int = 50  # prefixes kept at each level; never fewer than k
    k: int = 10
    stop: int | None = None  # levels to search; None: until few items are left
    leaves: int | None = None  # how many are few; None: 32 per beam, 1 where the decoder has to score them
    reranked: int | None = (
        None  # items that are scored anew, the best by search score; None: 4 per beam by vectors, 2 by codes
    )
    weight: float = 1.0  # of the lookup score beside the decoder's, for `both`
    fusion: float = 0.0  # of the search score beside the similarity, when re-ranking
    fixed: bool | None = None  # by a program of fixed shape where there can be one; None: on a GPU

    def __post_init__(self) -> None:
        if self.method not in ("generate", "lookup", "both"):
            raise BadInput(f"unknown search {self.method!r}: use generate, lookup or both")
        if self.rerank not in ("none", "codes", "vectors"):
            raise BadInput(f"unknown re-ranking {self.rerank!r}: use none, codes or vectors")
        if self.beam < 1 or self.k < 1:
            raise BadInput(f"beam {self.beam} and k {self.k}: both must be at least 1")


class Searcher:
    """The model's side of a search: code vectors and, unless only `lookup` is wanted, a decoder.

    `device` is where the decoder is put and batches are searched; `lookup` on the CPU does not import torch.
    `precision` is that of the decoder's weights: float32, bfloat16, or on the CPU int8. With `compiled`,
    programs of fixed shape go through torch.compile: a minute for each batch size, then faster on a GPU.
    """

    def __init__(
        self,
        codebooks: Sequence[NDArray[Any]],
        decoder: Decoder | None = None,
        device: str = "cpu",
        precision: str = "float32",
        compiled: bool = False,
    ) -> None:
        self.tables, self.device, self.compiled = Tables(codebooks), device, compiled
        if decoder is not None and decoder.shape.sizes != self.tables.sizes:
            raise BadInput(f"a decoder of sizes {decoder.shape.sizes} for codebooks of {self.tables.sizes}")
        if decoder is not None:
            from genius.search.precision import lighter

            decoder = lighter(decoder, precision).to(device).eval()
        self.decoder = decoder
        self.gpu = device.startswith("cuda")  # it has programs of fixed shape unless options say otherwise
        self._fixed: WeakKeyDictionary[Trie, dict[Any, Any]] = WeakKeyDictionary()
        self._making = Lock()

    def search(
        self,
        segments: Sequence[Segment],
        z: NDArray[Any],
        options: Options,
        *,
        modalities: Sequence[int] | Bools | None = None,
        mask: Bools | None = None,
        phi: NDArray[Any] | None = None,
        fetch: Fetch | NDArray[Any] | None = None,
    ) -> list[Found]:
        """The best items for each query of `z` (batch, dim).

        `modalities`: codes of level 0 that may be found, or a mask (batch, sizes[0]) with a row per query.
        `mask`: which item rows may be found. `phi` (batch, dim) and `fetch` are needed to re-rank by vectors.
        """
        z = self._checked(segments, z)
        pool = [s if mask is None else s.restricted(mask) for s in segments if s.trie.items]
        if not len(z) or not pool:
            return [Found.none(len(self.tables.sizes)) for _ in z]
        found = self._find(pool, z, self._wanted(modalities, len(z)), options)
        ranked = []
        for segment, several in zip(pool, found, strict=True):
            if options.rerank == "vectors":
                several = [
                    self._by_vectors(segment, leaves, query, phi, fetch, options)
                    for query, leaves in enumerate(several)
                ]
            elif options.rerank == "codes" and not self._scores_codes(segment, options):
                several = [
                    self._by_codes(segment, leaves, own, options)
                    for leaves, own in zip(several, z, strict=True)
                ]
            ranked.append(rank(segment.trie, several, options.k))
        return [merge(parts, options.k) for parts in zip(*ranked, strict=True)]

    def _find(
        self,
        pool: Sequence[Segment],
        z: Floats,
        wanted: Bools | None,
        options: Options,
    ) -> PerSegment:
        """The leaves of each segment and query, by the method's own score."""
        if not any(self._replays(segment, options) for segment in pool):
            return self._plainly(pool, z, wanted, options)
        return [
            self._replay(segment, z, wanted, options)
            if self._replays(segment, options)
            else self._plainly([segment], z, wanted, options)[0]
            for segment in pool
        ]

    def _replays(self, segment: Segment, options: Options) -> bool:
        """Whether a program of fixed shape searches this segment: it is wanted, possible and worth making."""
        wanted = self.gpu if options.fixed is None else options.fixed
        large = segment.trie.items >= FIXED_ITEMS and segment.trie.tree_levels >= 2
        plain = options.method == "both" or segment.allowed is not None or options.stop in (0, 1)
        return wanted and large and not plain

    def _scores_codes(self, segment: Segment, options: Options) -> bool:
        """Whether the search of this segment gives the scores of a re-ranking by codes already."""
        return self._replays(segment, options) and _by_cosine(options)

    def _plainly(
        self, pool: Sequence[Segment], z: Floats, wanted: Bools | None, options: Options
    ) -> PerSegment:
        """The same by a search that follows what each query finds."""
        beam, device = max(options.beam, options.k), self.device
        cheap = LOOKUP_LEAVES * beam if options.leaves is None else options.leaves
        if options.method == "lookup":
            tables, near = self.tables.of(z), "cpu" if len(z) <= FEW else device
            return by_lookup(pool, tables, wanted, beam=beam, leaves=cheap, stop=options.stop, device=near)
        if self.decoder is None:
            raise BadInput("this model has no decoder: search with lookup, or train one")
        suffixes = options.method == "both" or _deep(options)
        dear = beam if suffixes and options.leaves is None else cheap
        generated = by_decoder(
            pool,
            self.decoder,
            z,
            wanted,
            beam=beam,
            leaves=dear,
            stop=options.stop,
            suffixes=suffixes,
            device=device,
        )
        if options.method == "generate":
            return generated
        tables = self.tables.of(z)
        looked_up = by_lookup(pool, tables, wanted, beam=beam, leaves=cheap, stop=None, device=device)
        shorter = [
            [[leaves.best(beam) for leaves in part] for part in found] for found in (generated, looked_up)
        ]
        return by_both(pool, self.decoder, z, self.tables, *shorter, weight=options.weight, device=device)

    def _replay(self, segment: Segment, z: Floats, wanted: Bools | None, options: Options) -> list[Leaves]:
        """The leaves of each query by a recorded program; the plain search helps where it is not sure."""
        program = self.recorded(segment.trie, options)
        found = program(z, wanted)
        leaves = [found.of(query, max(options.beam, options.k)) for query in range(len(z))]
        again = np.flatnonzero(~found.sure)
        if len(again):
            mask = None if wanted is None else wanted[again]
            (plain,) = self._plainly([segment], z[again], mask, options)
            for query, own in zip(again, plain, strict=True):
                by_product = not _by_cosine(options)
                leaves[query] = own if by_product else self._by_codes(segment, own, z[query], options)
        return leaves

    def warm(self, segments: Sequence[Segment], options: Options) -> None:
        """Record now what such searches will replay, for batches of any size; nothing to do on a CPU."""
        for segment in segments:
            if self._replays(segment, options):
                self.recorded(segment.trie, options).warm()

    def recorded(self, trie: Trie, options: Options) -> Replay:
        """The program that such a search of a pool runs; made, and on a GPU recorded, when first needed."""
        with self._making:
            return self._recorded(trie, options)

    def _recorded(self, trie: Trie, options: Options) -> Replay:
        from genius.search.fixed import FixedDecoder, FixedLookup, chosen_widths
        from genius.search.replay import BUCKETS, Replay
        from genius.search.shelf import FixedTrie

        made = self._fixed.setdefault(trie, {})
        beam = max(options.beam, options.k)
        k = beam if options.rerank == "none" else max(_reranked(options), options.k)
        known = (options.method, _deep(options), _by_cosine(options), beam, k, options.stop, options.leaves)
        if known not in made:
            if "trie" not in made:
                made["trie"] = FixedTrie(trie, self.tables, self.device)
            share = FIXED_SUFFIXES if _deep(options) else FIXED_LEAVES[options.method]
            share = share if options.leaves is None else options.leaves / beam
            widths = chosen_widths(made["trie"], beam, k, share, options.stop)
            program: Any = FixedLookup(made["trie"], self.tables, widths, _by_cosine(options))
            if options.method == "generate":
                if self.decoder is None:
                    raise BadInput("this model has no decoder: search with lookup, or train one")
                program = FixedDecoder(made["trie"], self.tables, self.decoder, widths, _deep(options))
            made[known] = Replay(
                program,
                self.tables.dim,
                self.tables.sizes[0],
                self.device,
                buckets=BUCKETS[:-1]
                if _deep(options)
                else BUCKETS,  # every leaf takes part in a pass: memory
                compiled=self.compiled,
            )
        replay: Replay = made[known]
        return replay

    def _by_codes(self, segment: Segment, leaves: Leaves, z: Floats, options: Options) -> Leaves:
        looked_up = options.method == "lookup"
        return by_codes(segment.trie, _few(leaves, options), self.tables, z, options.fusion, looked_up)

    def _by_vectors(
        self,
        segment: Segment,
        leaves: Leaves,
        query: int,
        phi: NDArray[Any] | None,
        fetch: Fetch | NDArray[Any] | None,
        options: Options,
    ) -> Leaves:
        if phi is None or fetch is None:
            raise BadInput("this pool has no vectors to re-rank by: use codes, or index it with vectors")
        own = np.asarray(phi[query], dtype=np.float32)
        return by_vectors(segment.trie, _few(leaves, options), own, fetch, options.fusion)

    def _checked(self, segments: Sequence[Segment], z: NDArray[Any]) -> Floats:
        z = np.ascontiguousarray(z, dtype=np.float32)
        if not np.isfinite(z).all():
            raise BadInput(
                "a query vector has NaN or infinite entries: check the image or text it comes from"
            )
        for segment in segments:
            if segment.trie.sizes != self.tables.sizes:
                raise BadInput(
                    f"codes of sizes {segment.trie.sizes} for a model with {self.tables.sizes}: "
                    "index the items with this model"
                )
        return z

    def _wanted(self, modalities: Sequence[int] | Bools | None, batch: int) -> Bools | None:
        """Which codes of level 0 each query may find, (batch, sizes[0])."""
        if modalities is None:
            return None
        given = np.asarray(modalities)
        if given.ndim == 2:
            return given.astype(bool)
        wanted = np.zeros((batch, self.tables.sizes[0]), dtype=bool)
        wanted[:, given.astype(np.int64)] = True
        return wanted


def _deep(options: Options) -> bool:
    """Whether the decoder scores every code of an item: its score is all, or a part, of the item's."""
    return options.method == "generate" and (options.rerank == "none" or options.fusion != 0.0)


def _by_cosine(options: Options) -> bool:
    """Whether a program of fixed shape ends with the cosine of z and codes: that is all of the score."""
    return options.rerank == "codes" and options.fusion == 0.0


def _few(leaves: Leaves, options: Options) -> Leaves:
    """Those that are scored anew."""
    return leaves.best(max(_reranked(options), options.k)) if _told_apart(options) else leaves


def _told_apart(options: Options) -> bool:
    """Whether leaves have scores of their own: those under a beam that the decoder left early are alike."""
    return options.method != "generate" or options.fusion != 0.0 or options.reranked is not None


def _reranked(options: Options) -> int:
    return RERANKED[options.rerank] * options.beam if options.reranked is None else options.reranked
