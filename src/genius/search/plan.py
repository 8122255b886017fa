"""A search's options, resolved once into what will run: `print(plan_search(options, gpu=False))` shows it.

| method   | re-ranking                  | the decoder scores  | a program of fixed shape scores by |
|----------|-----------------------------|---------------------|------------------------------------|
| lookup   | none; vectors; with fusion  | nothing             | similarity                         |
| lookup   | codes                       | nothing             | cosine (that is the re-ranking)    |
| generate | none; any, with fusion      | all codes           | the decoder                        |
| generate | codes; vectors              | prefixes            | cosine                             |
| both     | any                         | all codes           | (there is none)                    |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from genius.search.lookup import LEAVES_PER_BEAM
from genius.search.options import Method, Rerank, SearchOptions
from genius.search.segment import TrieSegment

RERANKED_PER_BEAM = {"codes": 2, "vectors": 4}  # candidates to re-rank, by default
DECODER_LEAVES_PER_BEAM = 8.0  # items that a program of fixed shape scores
FIXED_SHARE = 0.25  # of the items that a filter must keep: a program reads those that it drops, too
FIXED_ITEMS = 1000  # smaller segments change often, and each change would have to be recorded

FixedScore = Literal["similarity", "cosine", "decoder"]


@dataclass(frozen=True, slots=True)
class LookupPlan:
    """A beam search by tables."""

    leaves: int  # it ends with so many items under its beams,
    stop: int | None  # or after so many levels


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """A beam search by the decoder."""

    leaves: int  # it ends with so many items under its beams,
    stop: int | None  # or after so many levels
    suffixes: bool  # whether the decoder scores the remaining codes of these items


@dataclass(frozen=True, slots=True)
class RerankPlan:
    """Which candidates get which better score."""

    by: Rerank
    limit: int | None  # candidates to re-rank, the best by search score; None: all
    fusion: float  # weight of the search score beside the similarity
    similarity_known: bool  # whether the search score is <z, sum of code vectors> already


@dataclass(frozen=True, slots=True)
class FixedPlan:
    """A program of fixed shape; equal plans share one program."""

    method: Method
    score: FixedScore  # of the candidates
    beam: int
    k: int  # candidates it returns
    stop: int | None
    leaves_per_beam: float  # items it scores
    max_batch: int
    ranked: bool  # whether its scores are those of the answers, and it gives the best candidates first
    filtered: bool = False  # whether only some items may be found


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search runs: a lookup, the decoder or both; then the re-ranking."""

    k: int
    beam: int  # prefixes kept at each level
    lookup: LookupPlan | None
    decoder: DecoderPlan | None
    weight: float  # of the lookup score beside the decoder's, if both run
    rerank: RerankPlan | None
    fixed: FixedPlan | None  # replaces lookup or decoder in segments that suit it

    def fixed_for(self, segment: TrieSegment) -> FixedPlan | None:
        """The program of fixed shape for this segment; None: it is too small, or keeps few of its items."""
        large = segment.trie.items >= FIXED_ITEMS and segment.trie.tree_levels >= 2
        if self.fixed is None or not large or segment.allowed is None:
            return self.fixed if large else None
        broad = segment.allowed.items >= FIXED_SHARE * segment.trie.items
        return replace(self.fixed, filtered=True) if broad else None

    @property
    def by_cells(self) -> bool:
        """Whether a lookup only chooses what is re-ranked: then it goes by cells (`genius.search.cells`)."""
        replaced = self.rerank is not None and self.rerank.fusion == 0.0
        return self.lookup is not None and self.decoder is None and self.lookup.stop is None and replaced


@lru_cache(256)
def plan_search(options: SearchOptions, gpu: bool) -> SearchPlan:
    """The plan for these options on a GPU, or on the CPU."""
    beam = max(options.beam, options.k)
    leaves = LEAVES_PER_BEAM * beam if options.leaves is None else options.leaves
    lookup = decoder = None
    if options.method == "lookup":
        lookup = LookupPlan(leaves, options.stop)
    if options.method == "both":
        lookup = LookupPlan(leaves, None)
    if options.method != "lookup":
        suffixes = options.method == "both" or not _replaced(options)
        few = suffixes and options.leaves is None  # each of them takes part in a pass of the decoder
        decoder = DecoderPlan(beam if few else leaves, options.stop, suffixes)
    use_fixed = gpu if options.fixed is None else options.fixed
    return SearchPlan(
        k=options.k,
        beam=beam,
        lookup=lookup,
        decoder=decoder,
        weight=options.weight,
        rerank=_plan_rerank(options),
        fixed=_plan_fixed(options, beam) if use_fixed else None,
    )


def _plan_rerank(options: SearchOptions) -> RerankPlan | None:
    if options.rerank == "none":
        return None
    # items under a beam that the decoder has left early have equal scores: no reason to take some of them
    alike = options.method == "generate" and options.fusion == 0.0 and options.reranked is None
    limit = None if alike else max(_reranked(options), options.k)
    return RerankPlan(options.rerank, limit, options.fusion, similarity_known=options.method == "lookup")


def _plan_fixed(options: SearchOptions, beam: int) -> FixedPlan | None:
    if options.method == "both" or options.stop in (0, 1):
        return None
    score: FixedScore = "similarity"
    leaves_per_beam: float = LEAVES_PER_BEAM
    if options.method == "generate":
        score = "cosine" if _replaced(options) else "decoder"
        leaves_per_beam = DECODER_LEAVES_PER_BEAM
    elif options.rerank == "codes" and _replaced(options):
        score = "cosine"
    return FixedPlan(
        options.method,
        score,
        beam,
        k=beam if options.rerank == "none" else max(_reranked(options), options.k),
        stop=options.stop,
        leaves_per_beam=leaves_per_beam if options.leaves is None else options.leaves / beam,
        ranked=options.rerank == "none" or (options.rerank == "codes" and score == "cosine"),
        max_batch=64 if score == "decoder" else 256,  # every leaf takes part in a pass of the decoder: memory
    )


def _replaced(options: SearchOptions) -> bool:
    """Whether the re-ranking replaces the search score."""
    return options.rerank != "none" and options.fusion == 0.0


def _reranked(options: SearchOptions) -> int:
    if options.reranked is not None:
        return options.reranked
    return RERANKED_PER_BEAM[options.rerank] * options.beam
