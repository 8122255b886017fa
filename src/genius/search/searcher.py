"""The searcher: segments of a pool and query vectors in, ranked items out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.errors import BadInput
from genius.search.arrays import Bools, Floats
from genius.search.by_modality import candidates_by_modality, search_by_modality
from genius.search.candidates import Candidates
from genius.search.cell_search import CellSearch
from genius.search.codebooks import Codebooks
from genius.search.decoder import combine, search_by_decoder
from genius.search.lookup import CandidatesBySegment, search_by_lookup
from genius.search.options import Method, Rerank, SearchOptions
from genius.search.placement import runs_on_gpu
from genius.search.plan import FixedPlan, SearchPlan, plan_search
from genius.search.rank import (
    Fetch,
    RankedItems,
    merge,
    rank,
    read_ranked,
    rerank_batch_by_vectors,
    rerank_by_codes,
    rerank_by_vectors,
)
from genius.search.segment import TrieSegment

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.search.gpu.programs import Programs


class Searcher:
    """The model's side of a search: code vectors and, unless only `lookup` is wanted, a decoder.

    `device` is where the decoder is put and batches are searched; `lookup` on the CPU does not import torch.
    `precision` is that of the decoder's weights: float32, bfloat16, or on the CPU int8. With `compiled`,
    programs of fixed shape go through torch.compile: a minute for each batch size, then faster on a GPU.
    Where modalities have codebooks of their own, each is looked up by a searcher of its own.
    """

    def __init__(
        self,
        codebooks: Sequence[NDArray[Any]] | Codebooks,
        decoder: Decoder | None = None,
        device: str = "cpu",
        precision: str = "float32",
        compiled: bool = False,
    ) -> None:
        self.codebooks = codebooks if isinstance(codebooks, Codebooks) else Codebooks(codebooks)
        self.device, self.compiled = device, compiled
        if decoder is not None and decoder.shape.sizes != self.codebooks.sizes:
            raise BadInput(
                f"a decoder of sizes {decoder.shape.sizes} for codebooks of {self.codebooks.sizes}"
            )
        if decoder is not None:
            from genius.decode.precision import with_precision

            decoder = with_precision(decoder, precision).to(device).eval()
        self.decoder = decoder
        self.own = [Searcher(own, None, device, compiled=compiled) for own in self.codebooks.own]
        self.gpu = device.startswith("cuda")  # programs of fixed shape are used unless options say otherwise
        self._programs: Programs | None = None
        self._lock = Lock()

    @property
    def programs(self) -> Programs:
        """The programs of fixed shape; torch is imported when they are first needed."""
        with self._lock:
            if self._programs is None:
                from genius.search.gpu.programs import Programs

                self._programs = Programs(self.codebooks, self.decoder, self.device, self.compiled)
            return self._programs

    def search(
        self,
        segments: Sequence[TrieSegment],
        z: NDArray[Any],
        options: SearchOptions,
        *,
        modalities: Sequence[int] | Bools | None = None,
        mask: Bools | None = None,
        phi: NDArray[Any] | None = None,
        fetch: Fetch | NDArray[Any] | None = None,
    ) -> list[RankedItems]:
        """The best items for each query of `z` (batch, dim).

        `modalities`: codes of level 0 to search, or a mask (batch, sizes[0]) with a row per query.
        `mask`: which item rows to search. `phi` (batch, dim) and `fetch` are needed to re-rank by vectors.
        """
        z = self._checked(segments, z)
        segments = [s if mask is None else s.restricted(mask) for s in segments if s.trie.items]
        if not len(z) or not segments:
            return [RankedItems.none(len(self.codebooks.sizes)) for _ in z]
        on_gpu = (self.gpu or self.device != "cpu") and self._runs_on_gpu(
            options.method, options.rerank, len(z), segments
        )
        plan, device = plan_search(options, self.gpu and on_gpu), self.device if on_gpu else "cpu"
        wanted = self._modality_mask(modalities, len(z))
        if plan.rerank is not None and plan.rerank.by == "vectors":
            if phi is None or fetch is None:
                raise BadInput("this pool has no vectors to re-rank by: use codes, or index it with vectors")
            phi = np.ascontiguousarray(phi, dtype=np.float32)
        if self.own and plan.decoder is None:
            return search_by_modality(self.own, segments, z, options, wanted, phi, fetch)
        if self._is_by_cells(segments, plan, device):
            ranked = [self.cells.search(segment, z, wanted, phi, fetch, plan) for segment in segments]
            if len(ranked) == 1:
                return ranked[0]
            return [merge(parts, plan.k) for parts in zip(*ranked, strict=True)]
        fixed = [plan.fixed_for(segment) for segment in segments]
        if any(fixed):
            ranked = [
                self._fixed(segment, own, z, wanted, phi, fetch, plan)
                if own is not None
                else self._ranked(
                    segment, self._plain([segment], z, wanted, plan, device)[0], z, phi, fetch, plan
                )
                for segment, own in zip(segments, fixed, strict=True)
            ]
        else:  # the decoder searches all segments as one pool
            found = self._plain(segments, z, wanted, plan, device)
            ranked = [
                self._ranked(segment, own, z, phi, fetch, plan)
                for segment, own in zip(segments, found, strict=True)
            ]
        return [merge(parts, plan.k) for parts in zip(*ranked, strict=True)]

    @cached_property
    def cells(self) -> CellSearch:
        """Lookups that go by cells; made when first needed."""
        return CellSearch(self.codebooks)

    def _runs_on_gpu(
        self, method: Method, rerank: Rerank, batch: int, segments: Sequence[TrieSegment]
    ) -> bool:
        """Whether a batch of queries is searched on this searcher's device, if that is a GPU."""
        return runs_on_gpu(method, rerank, batch, sum(segment.trie.items for segment in segments))

    def _is_by_cells(self, segments: Sequence[TrieSegment], plan: SearchPlan, device: str) -> bool:
        """Whether all segments are searched by cells, on the CPU."""
        if not plan.by_cells or device != "cpu":
            return False
        fixed = plan.fixed is not None and any(plan.fixed_for(segment) is not None for segment in segments)
        return not fixed and all(map(self.cells.suits, [segment.trie for segment in segments]))

    def warm(self, segments: Sequence[TrieSegment], options: SearchOptions) -> None:
        """Record now what such searches will replay, for batches of any size; nothing to do on a CPU."""
        plan = plan_search(options, self.gpu)
        if self.own and plan.decoder is None:
            for own in self.own:
                own.warm(segments, options)
            return
        for segment in segments:
            fixed = plan.fixed_for(segment)
            if fixed is not None:
                self.programs.get(segment.trie, fixed).warm()

    def _plain(
        self,
        segments: Sequence[TrieSegment],
        z: Floats,
        modalities: Bools | None,
        plan: SearchPlan,
        device: str,
    ) -> CandidatesBySegment:
        """Candidates by lookup, by the decoder or by both; tensors are sized by what each query finds."""
        if plan.decoder is None:
            return self.look_up(segments, z, modalities, plan, device)
        if self.decoder is None:
            raise BadInput("this model has no decoder: search with lookup, or train one")
        generated = search_by_decoder(
            segments,
            self._stepwise,
            z,
            modalities,
            beam=plan.beam,
            leaves=plan.decoder.leaves,
            stop=plan.decoder.stop,
            suffixes=plan.decoder.suffixes,
            device=self.device,
        )
        if plan.lookup is None:
            return generated
        looked_up = self.look_up(segments, z, modalities, plan, device)
        best = [[[own.best(plan.beam) for own in part] for part in found] for found in (generated, looked_up)]
        return combine(
            segments, self._stepwise, z, self.codebooks, *best, weight=plan.weight, device=self.device
        )

    @cached_property
    def _stepwise(self) -> Decoder:
        """The decoder for searches that are no program of fixed shape; on a CPU its weights are packed."""
        from genius.decode.packed import can_pack, packed

        assert self.decoder is not None
        return packed(self.decoder) if can_pack(self.decoder) else self.decoder

    def look_up(
        self,
        segments: Sequence[TrieSegment],
        z: Floats,
        modalities: Bools | None,
        plan: SearchPlan,
        device: str,
    ) -> CandidatesBySegment:
        """Candidates by the similarity of the queries with their codes, before any re-ranking."""
        assert plan.lookup is not None
        if self.own:
            return candidates_by_modality(self.own, segments, z, modalities, plan, device)
        return search_by_lookup(
            segments,
            self.codebooks.tables(z),
            modalities,
            beam=plan.beam,
            leaves=plan.lookup.leaves,
            stop=plan.lookup.stop,
            device=device,
        )

    def _fixed(
        self,
        segment: TrieSegment,
        fixed: FixedPlan,
        z: Floats,
        modalities: Bools | None,
        phi: NDArray[Any] | None,
        fetch: Fetch | NDArray[Any] | None,
        plan: SearchPlan,
    ) -> list[RankedItems]:
        """The best items by a program of fixed shape; queries without exact beams are searched again."""
        found, trie, rerank = self.programs.run(segment, fixed, z, modalities), segment.trie, plan.rerank
        if fixed.ranked:
            ranked = read_ranked(trie, found.positions, found.scores, found.leaves, plan.beam, plan.k)
        elif rerank is not None and rerank.by == "vectors":
            assert phi is not None and fetch is not None
            best = rerank_batch_by_vectors(trie, found.positions, found.scores, phi, fetch, rerank.fusion)
            ranked = read_ranked(trie, *best, found.leaves, plan.beam, plan.k)
        else:
            candidates = [found.of_query(query, plan.beam) for query in range(len(z))]
            ranked = self._ranked(segment, candidates, z, phi, fetch, plan)
        again = np.flatnonzero(~found.exact)
        if len(again):
            mask = None if modalities is None else modalities[again]
            by = "none" if rerank is None else rerank.by
            device = self.device if self._runs_on_gpu(fixed.method, by, len(again), [segment]) else "cpu"
            (plain,) = self._plain([segment], z[again], mask, plan, device)
            own_phi = None if phi is None else phi[again]
            for query, own in zip(
                again, self._ranked(segment, plain, z[again], own_phi, fetch, plan), strict=True
            ):
                ranked[query] = own
        return ranked

    def _ranked(
        self,
        segment: TrieSegment,
        candidates: Sequence[Candidates],
        z: Floats,
        phi: NDArray[Any] | None,
        fetch: Fetch | NDArray[Any] | None,
        plan: SearchPlan,
    ) -> list[RankedItems]:
        """The best candidates of each query, re-ranked where the plan says so."""
        trie, rerank = segment.trie, plan.rerank
        if rerank is not None and rerank.limit is not None:
            candidates = [own.best(rerank.limit) for own in candidates]
        if rerank is not None and rerank.by == "codes":
            candidates = [
                rerank_by_codes(trie, own, self.codebooks, query, rerank.fusion, rerank.similarity_known)
                for own, query in zip(candidates, z, strict=True)
            ]
        elif rerank is not None:
            assert phi is not None and fetch is not None
            candidates = [
                rerank_by_vectors(trie, own, query, fetch, rerank.fusion)
                for own, query in zip(candidates, phi, strict=True)
            ]
        return rank(trie, candidates, plan.k)

    def _checked(self, segments: Sequence[TrieSegment], z: NDArray[Any]) -> Floats:
        z = np.ascontiguousarray(z, dtype=np.float32)
        if not isfinite(np.vdot(z, z)) and not np.isfinite(z).all():  # the first is faster, and may overflow
            raise BadInput(
                "a query vector has NaN or infinite entries: check the image or text it comes from"
            )
        for segment in segments:
            if segment.trie.sizes != self.codebooks.sizes:
                raise BadInput(
                    f"codes of sizes {segment.trie.sizes} for a model with {self.codebooks.sizes}: "
                    "index the items with this model"
                )
        return z

    def _modality_mask(self, modalities: Sequence[int] | Bools | None, batch: int) -> Bools | None:
        """Which codes of level 0 each query can find, (batch, sizes[0])."""
        if modalities is None:
            return None
        codes = np.asarray(modalities)
        if codes.ndim == 2:
            return codes.astype(bool)
        mask = np.zeros((batch, self.codebooks.sizes[0]), dtype=bool)
        mask[:, codes.astype(np.int64)] = True
        return mask
