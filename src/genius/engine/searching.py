"""Searches: from queries to ranked hits, over one committed state of the index."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.engine.opening import OpenIndex, is_storable
from genius.errors import BadInput, IndexCorrupt
from genius.filter.match import with_match
from genius.query.embedding import EmbeddedSubquery, embed
from genius.query.facets import FACETED, count_facets
from genius.query.paging import PageCursor, PageRequest, rank_page
from genius.query.ranking import ScoredRow, pool_size
from genius.query.result import SearchResult
from genius.query.subqueries import subqueries
from genius.query.words import WordMatches
from genius.retrieval_model import RetrievalModel
from genius.search.options import SearchOptions
from genius.store.large_array import CacheDamaged
from genius.store.records import Record
from genius.types import Hit, Modality, Query

ATTEMPTS = 5  # of a search while the index changes
LIKE_SIDE = 1024  # pixels of a stored image that is searched with: more than any encoder reads


class IndexSearch(OpenIndex):
    """The part of an engine that answers queries."""

    def search(
        self,
        query: str | Path | Query,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[Hit]:
        """The `k` best items for a text, an image file or a `Query`; options as for `search_batch`."""
        return self.search_batch(
            [query],
            k,
            want,
            search=search,
            rerank=rerank,
            beam=beam,
            instruction=instruction,
            where=where,
            match=match,
            hybrid=hybrid,
            offset=offset,
            at_least=at_least,
        )[0]

    def search_batch(
        self,
        queries: Sequence[str | Path | Query],
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[list[Hit]]:
        """The `k` best items for each query, best first.

        `want` is image, text, pair, any (default), or an instruction. `instruction` is a sentence that says
        what kind of result is wanted, "" for none; by default there is one, except for images alone and for
        texts that want texts. `search` is generate, lookup or both (default: the model's); `rerank` is none,
        codes or vectors (default: vectors, if the index stores them); `beam` is the beam width, in prefixes
        of codes. `where` is a filter such as "price < 50 and not sold" (docs/filters.md): only matching
        items are searched; `match` has words that must occur in their text or id. With `hybrid`, items with
        words of the query in their name, text or metadata rank higher (default: for queries of text alone,
        unless hits are ranked by the search's own score). The `offset` best hits are skipped. `at_least`
        drops hits below a confidence (0 to 1).
        """
        results = self.results(
            queries,
            k,
            want,
            search=search,
            rerank=rerank,
            beam=beam,
            instruction=instruction,
            where=where,
            match=match,
            hybrid=hybrid,
            offset=offset,
            at_least=at_least,
        )
        return [result.hits for result in results]

    def results(
        self,
        queries: Sequence[str | Path | Query],
        k: int = 10,
        want: Modality | str | None = None,
        *,
        search: str | None = None,
        rerank: str | None = None,
        beam: int | None = None,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        hybrid: bool | None = None,
        offset: int = 0,
        cursor: str | None = None,
        without: str | None = None,
        facets: Sequence[str] = (),
        at_least: float | None = None,
    ) -> list[SearchResult]:
        """Like `search_batch`, with statistics of each search and the state of the index that was searched.

        Passing the `cursor` of a result with the same query and options gives its next page of hits, whatever
        is added or removed meanwhile. The item with the id `without` is left out. `facets` are fields whose
        values are counted over the first 200 hits. If no hit has a confidence of `at_least`, the result has
        the `nearest` items instead.
        """
        if isinstance(queries, str | Path | Query):
            raise BadInput("search_batch answers a list of queries: call search(query) for one")
        if cursor is not None and len(queries) != 1:
            raise BadInput("a cursor belongs to one query: ask for the next page of each on its own")
        known = None if without is None or not is_storable(without) else self.index.truth.record(without)
        after = None if cursor is None else PageCursor.parse(cursor)
        page = PageRequest(k, offset, after, None if known is None else known[0])
        count_facets(facets, ())  # refuses what is no field before anything is searched
        depth = max(page.depth, FACETED if facets else 0)
        where = with_match(where, match)
        self.prepare(where)
        asked = [Query.of(query).wanting(want, instruction) for query in queries]
        words = None
        loaded, fitted_anew = self._current_model(), False
        known_view = self._view
        # looked at again once the queries are encoded
        present = (self._current() if known_view is None else known_view).present
        embedded = self._embed(loaded.model, asked, present)
        for attempt in range(ATTEMPTS):
            try:
                if fitted_anew:
                    loaded = self._current_model()
                    embedded = self._embed(loaded.model, asked, present)
                options = self._options(loaded.model, depth, search, rerank, beam)
                if words is None:
                    words = self._word_matches(asked, hybrid, options)
                with self.index.steady() if attempt else nullcontext():
                    view = self._current()
                    fitted_anew = view.snapshot.fingerprint != loaded.model.fingerprint
                    if fitted_anew:
                        continue
                    if view.present != present:
                        present = view.present
                        embedded = self._embed(loaded.model, asked, present)
                    pool = None if where is None else self._filters.pool(where, view)
                    ranked = rank_page(page, view, loaded, embedded, options, pool, words)
                    cuts = [page.left(one.items) for one in ranked]
                    rows = {item.row for left in cuts for item in left[: None if facets else page.end]}
                    records = self.index.truth.records(rows)
                    spans = self.index.truth.spans(rows) if view.has_passages else {}
                    changed = pool is not None and self._filters.changed(pool)
            except CacheDamaged as error:
                self.index.rebuild(str(error))
                continue
            if changed:
                continue
            if rows == records.keys():  # else the index changed: the next attempt holds changes back
                results = [
                    SearchResult(
                        _hits(left[page.offset : page.end], records, spans, page.first_rank),
                        one.beams,
                        one.leaves,
                        view.snapshot.generation.number,
                        view.snapshot.change,
                        pool_size(view, pool, several),
                        count_facets(facets, (records[item.row] for item in left[:FACETED])),
                        page.next(left, view.snapshot.through),
                    )
                    for one, left, several in zip(ranked, cuts, embedded, strict=True)
                ]
                return [result.at_least(at_least) for result in results]
            if attempt:  # nothing has changed meanwhile
                self.index.rebuild("it has rows that the truth does not have")
        folder = self.index.folder
        raise IndexCorrupt(f"{folder}: arrays and truth do not agree: `genius check --repair --in {folder}`")

    def prepare(self, where: str | None) -> None:
        """Create the database indexes for a filter now rather than in the first search; raises BadInput."""
        if where is not None:
            self._filters.prepare(where, len(self._current()))

    def like(
        self,
        id: str,
        but: str | None = None,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        instruction: str | None = None,
        where: str | None = None,
        match: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[Hit]:
        """Items like a stored one, changed as the text `but` says; the item itself is left out."""
        return self.like_result(
            id,
            but,
            k,
            want,
            instruction=instruction,
            where=where,
            match=match,
            offset=offset,
            at_least=at_least,
        ).hits

    def like_result(
        self,
        id: str,
        but: str | None = None,
        k: int = 10,
        want: Modality | str | None = None,
        **options: Any,
    ) -> SearchResult:
        """Like `like`, with statistics of the search; options as for `results`."""
        record = self.get(id)
        if record is None:
            raise BadInput(f"no item is called {id!r}")
        words = (but or "").strip()
        if self.index.embeds:
            image = None if record.modality is Modality.TEXT else self._thumbnail(id, LIKE_SIDE)
            # with an image, the words take the place of the caption; a text they add to
            parts = [words] if words and image is not None else [record.text, words]
            query = Query(text=" ".join(filter(None, parts)) or None, image=image)
        else:
            query = Query(text=words or None, vector=self.vector(id))
        (found,) = self.results([query], k, want, without=id, **{"hybrid": False, **options})
        return found

    def pages(
        self, query: str | Path | Query, k: int = 10, want: Modality | str | None = None, **options: Any
    ) -> Iterator[list[Hit]]:
        """All items for a query, `k` at a time, best first; options as for `search`.

        No item appears twice; items that are added or changed meanwhile are left out.
        """
        cursor: str | None = None
        while True:
            (found,) = self.results([query], k, want, cursor=cursor, **options)
            if found.hits:
                yield found.hits
            cursor = found.cursor
            if cursor is None:
                return
            options.pop("offset", None)  # of the first page

    def warm(self) -> None:
        """Load what the first search needs, and record the programs for a GPU."""
        self.search(Query(text="first") if self.index.embeds else Query(vector=np.ones(self.model.dim)), k=1)
        loaded = self._current_model()
        options = self._options(loaded.model, 10, None, None, None)
        loaded.searcher_for(options).warm(self._current().segments, options)

    def _word_matches(
        self, queries: Sequence[Query], hybrid: bool | None, options: SearchOptions
    ) -> list[WordMatches | None]:
        """For each query that is ranked by words, too, the items that have words of it."""
        if hybrid is False or (hybrid is None and not options.by_similarity):
            return [None] * len(queries)
        self._words.prepare(always=bool(hybrid))
        return [
            self._words.find(query.text) if query.text and (hybrid or query.image is None) else None
            for query in queries
        ]

    def _embed(
        self, model: RetrievalModel, queries: Sequence[Query], present: list[Modality]
    ) -> list[list[EmbeddedSubquery]]:
        """The sub-queries of each query, with their embeddings."""
        split = [subqueries(query, present) for query in queries]
        embedded = iter(embed(model, [one for several in split for one in several]))
        return [[next(embedded) for _ in several] for several in split]


def _hits(
    ranked: Sequence[ScoredRow],
    records: dict[int, Record],
    spans: dict[int, NDArray[np.int32]],
    first_rank: int,
) -> list[Hit]:
    there = [(answer, records[answer.row]) for answer in ranked]
    return [
        Hit(
            id=record.id,
            score=answer.score,
            rank=number,
            modality=record.modality,
            codes=answer.codes,
            text=record.text,
            path=record.path,
            meta=json.loads(record.meta),
            confidence=answer.confidence,
            missing=record.path is not None and not os.path.exists(record.path),  # noqa: PTH110
            span=_span(spans.get(answer.row), answer.passage),
        )
        for number, (answer, record) in enumerate(there, start=first_rank)
    ]


def _span(spans: NDArray[np.int32] | None, passage: int) -> tuple[int, int] | None:
    """Start and end of a passage; None if the text has no others."""
    if spans is None or passage >= len(spans):
        return None
    start, end = spans[passage].tolist()
    return start, end
