"""The programs of fixed shape that a searcher has built: a few for each trie, forgotten with it."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from genius.errors import BadInput
from genius.search.codebooks import Codebooks
from genius.search.gpu.fixed_decoder import FixedDecoder
from genius.search.gpu.fixed_lookup import FixedLookup
from genius.search.gpu.fixed_trie import FilteredTrie, FixedTrie
from genius.search.gpu.replay import BATCH_SIZES, CandidateArrays, GraphReplay, Program
from genius.search.gpu.steps import choose_shape
from genius.search.plan import FixedPlan
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.search.arrays import Bools, Floats

MAX_PROGRAMS = 8  # of each trie; the one used longest ago is dropped with its graphs


class _OnDevice(NamedTuple):
    trie: FixedTrie
    filtered: list[FilteredTrie]  # one, as soon as a search has a filter
    programs: OrderedDict[FixedPlan, GraphReplay]  # least recently used first

    def trie_for(self, plan: FixedPlan) -> FixedTrie:
        """The trie that the program of a plan reads."""
        if plan.filtered and not self.filtered:
            self.filtered.append(FilteredTrie(self.trie))
        return self.filtered[0] if plan.filtered else self.trie


class Programs:
    """Builds programs when first needed. Nothing it holds refers to a trie, so tries are freed as usual."""

    def __init__(self, codebooks: Codebooks, decoder: Decoder | None, device: str, compiled: bool) -> None:
        self.codebooks, self.decoder, self.device, self.compiled = codebooks, decoder, device, compiled
        self._built: WeakKeyDictionary[Trie, _OnDevice] = WeakKeyDictionary()
        self._lock = Lock()

    def run(
        self, segment: TrieSegment, plan: FixedPlan, z: Floats, modalities: Bools | None
    ) -> CandidateArrays:
        """The candidates of a segment for `z` (batch, dim), of those that its filter allows."""
        replay = self.get(segment.trie, plan)
        if segment.allowed is None:
            return replay(z, modalities)
        with self._built[segment.trie].filtered[0].restricted(segment.allowed):
            return replay(z, modalities)

    def get(self, trie: Trie, plan: FixedPlan) -> GraphReplay:
        """The program for this plan and trie; on a GPU it is recorded when first called."""
        with self._lock:
            if trie not in self._built:
                fixed = FixedTrie(trie, self.codebooks, self.device)
                self._built[trie] = _OnDevice(fixed, [], OrderedDict())
            own = self._built[trie]
            if plan not in own.programs:
                own.programs[plan] = self._replay(own.trie_for(plan), plan)
            own.programs.move_to_end(plan)
            while len(own.programs) > MAX_PROGRAMS:
                own.programs.popitem(last=False)
            return own.programs[plan]

    def _replay(self, trie: FixedTrie, plan: FixedPlan) -> GraphReplay:
        books = self.codebooks
        sizes = [size for size in BATCH_SIZES if size <= plan.max_batch]
        program = self._program(trie, plan)
        return GraphReplay(
            program, books.dim, books.sizes[0], self.device,
            batch_sizes=sizes, compiled=self.compiled, ranked=plan.ranked,
        )  # fmt: skip

    def _program(self, trie: FixedTrie, plan: FixedPlan) -> Program:
        shape = choose_shape(trie, plan.beam, plan.k, plan.leaves_per_beam, plan.stop)
        if plan.method == "lookup":
            return FixedLookup(trie, self.codebooks, shape, cosine=plan.score == "cosine")
        if self.decoder is None:
            raise BadInput("this model has no decoder: search with lookup, or train one")
        suffixes = plan.score == "decoder"
        return FixedDecoder(trie, self.codebooks, self.decoder, shape, suffixes)
