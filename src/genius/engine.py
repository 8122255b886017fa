"""A search engine for one's own collection: the only place that knows all stations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.images import open_image
from genius.data.remote import RemotePath
from genius.data.report import Report
from genius.data.rows import TableOptions
from genius.data.validate import valid_id
from genius.errors import BadInput, IndexCorrupt, IndexNotFound, ModelMismatch, ModelNotFound
from genius.ingest.add import add_items
from genius.ingest.item import THUMBNAIL, thumbnail
from genius.ingest.missing import FilesReport, missing_files
from genius.ingest.result import AddResult
from genius.ingest.source import ItemSource, noting_ids
from genius.ingest.update import update_items
from genius.locks import OrderedLock
from genius.query.branch import Branch, branch
from genius.query.browse import ItemPage, browse
from genius.query.defaults import default_options, describe_options
from genius.query.duplicates import NEAR, DuplicateGroup, find_duplicates
from genius.query.embedding import EmbeddedSubquery, embed
from genius.query.facets import FACETED, count_facets
from genius.query.filtered import Filters
from genius.query.loaded import LoadedModel
from genius.query.paging import PageCursor, PageRequest, rank_page
from genius.query.ranking import ScoredRow, pool_size
from genius.query.result import SearchResult
from genius.query.subqueries import subqueries
from genius.query.view import PoolView
from genius.retrieval_model import RetrievalModel
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.store.index import Index
from genius.store.large_array import CacheDamaged
from genius.store.records import Record
from genius.store.snapshot import Snapshot
from genius.store.stats import stats
from genius.types import DEFAULT_MODEL, Hit, Item, Modality, Query

if TYPE_CHECKING:
    from genius.fitting.pairs import LabelledPairs
    from genius.fitting.run import FitResult

ATTEMPTS = 5  # of a search while the index changes
LIKE_SIDE = 1024  # pixels of a stored image that is searched with: more than any encoder reads


class Engine:
    """An open index with the model that made it. Threads may share it."""

    def __init__(self, index: Index, model: RetrievalModel | None = None, device: str = "cpu") -> None:
        self.index = index
        self._device = device
        self._loading = OrderedLock("model")
        self._viewing = OrderedLock("view")
        self._loaded: LoadedModel | None = None
        self._view: PoolView | None = None
        self._filters = Filters(index)
        if model is not None:
            self._use_model(model, index.settings)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: str | Path | RetrievalModel | None = None,
        *,
        encoder: str | Path | None = None,
        dim: int | None = None,
        vectors: bool = True,
        device: str = "cpu",
    ) -> Engine:
        """Make an empty index in `folder` and open it.

        It is for a model (a name, a folder, or one that is loaded; default: `mini`), or for an `encoder`
        without trained codes: a hub name such as `openai/clip-vit-base-patch32`, a folder, or `vectors` for
        embeddings of width `dim` that were made elsewhere. Such an index is searched exactly until it has
        some hundreds of items; then codes are fitted to them. Without `vectors`, nothing but codes is kept of
        an item: the index is small, re-ranking is by codes.
        """
        if encoder is not None:
            return cls._create_for_encoder(Path(folder), model, encoder, dim, vectors, device)
        model = DEFAULT_MODEL if model is None else model
        loaded = load_model(model, device) if isinstance(model, str | Path) else model
        Index.create(
            Path(folder),
            model=loaded.name,
            fingerprint=loaded.fingerprint,
            sizes=loaded.sizes,
            dim=loaded.dim,
            vectors=vectors,
            notes={"search": dict(loaded.search_defaults)},
        )
        return cls(Index.open(Path(folder)), loaded, device)

    @classmethod
    def open(
        cls, folder: str | Path, *, model: str | Path | RetrievalModel | None = None, device: str = "cpu"
    ) -> Engine:
        """Open the index in `folder`; its model is loaded when first needed, unless one is given."""
        index = Index.open(Path(folder))
        try:
            if index.settings.get("fit") and isinstance(model, str | Path):
                from genius.fitting.create import require_encoder

                require_encoder(index, model)
                model = None  # the one that was fitted to this index takes its place
            loaded = load_model(model, device) if isinstance(model, str | Path) else model
            return cls(index, loaded, device)
        except BaseException:
            index.close()
            raise

    @classmethod
    def open_or_create(
        cls,
        folder: str | Path,
        model: str | Path | RetrievalModel | None = None,
        *,
        encoder: str | Path | None = None,
        dim: int | None = None,
        vectors: bool | None = None,
        device: str = "cpu",
    ) -> Engine:
        """Open the index in `folder`, or make one as `create` does.

        Raises BadInput if the index that is there does not keep vectors as asked, IndexMismatch if it was
        made by another model or encoder.
        """
        try:
            engine = cls.open(folder, model=model, device=device)
        except IndexNotFound:
            return cls.create(
                folder, model, encoder=encoder, dim=dim, vectors=vectors is not False, device=device
            )
        if encoder is not None:
            from genius.fitting.create import require_encoder

            require_encoder(engine.index, encoder)
        has = engine.index.dim is not None
        if vectors is not None and vectors != has:
            engine.close()
            raise BadInput(
                f"{folder} was made with{'' if has else 'out'} vectors: use another folder for the other kind"
            )
        return engine

    def close(self) -> None:
        """Close all files."""
        self.index.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def _create_for_encoder(
        cls,
        folder: Path,
        model: object,
        encoder: str | Path,
        dim: int | None,
        vectors: bool,
        device: str,
    ) -> Engine:
        if model is not None:
            raise BadInput("a model has an encoder of its own: give model or encoder, not both")
        if not vectors:
            raise BadInput(
                "codes for an encoder of one's own are fitted from the vectors that the index keeps: leave "
                "out --no-vectors; the fitted model can then make smaller indexes (--model INDEX/fit-000001)"
            )
        from genius.fitting.create import create_index

        create_index(folder, encoder, dim, device)
        return cls.open(folder, device=device)

    @property
    def model(self) -> RetrievalModel:
        """The model that made the index; raises IndexMismatch if its name now stands for another one."""
        return self._current_model().model

    def _current_model(self) -> LoadedModel:
        """The model of the index as its settings name it; another one after the codes were fitted anew."""
        with self._loading:
            settings = self.index.settings
            if self._loaded is None or self._loaded.model.fingerprint != settings["fingerprint"]:
                self._use_model(self._load(self.index.model_source), settings)
            assert self._loaded is not None
            return self._loaded

    def _load(self, source: str) -> RetrievalModel:
        """The model at `source`; after a fit, its encoder is the one in use."""
        from genius.model import Model

        before = None if self._loaded is None else self._loaded.model
        if isinstance(before, Model) and self.index.settings.get("fit"):
            return Model.load(source, self._device, before.encoder)
        return load_model(source, self._device)

    # --- changing ------------------------------------------------------------------------------------------

    def add(
        self,
        items: Iterable[Item],
        *,
        source: str | None = None,
        allow_urls: bool = False,
        exif: bool = False,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
        fit: str = "auto",
    ) -> AddResult:
        """Add or update items by id; searchable and on disk batch by batch, without any rebuild.

        Unchanged items are not encoded again, bad ones are skipped and named in the result's report. In an
        index for an encoder without trained codes, these are fitted at the end once that is worth it, unless
        `fit` is `never`. With `allow_urls`, an image may be an address of the web, which is fetched.
        With `exif`, date, place and camera of photos become metadata.
        """
        if fit not in ("auto", "never"):
            raise BadInput(f"fit {fit!r}: use auto or never")
        if isinstance(items, Item):
            raise BadInput("add takes several items: call add([item]) for one")
        with self.index.writing():
            self.index.refresh()  # a locked or read-only index is refused before the model is loaded
        model = self.model  # and the model is loaded before writing begins
        with self.index.writing():
            self.index.refresh()
            if model.fingerprint != self.index.settings["fingerprint"]:
                model = self.model  # it was fitted anew in between
            added = add_items(
                self.index,
                model,
                items,
                source=source,
                allow_urls=allow_urls,
                exif=exif,
                report=report,
                progress=progress,
            )
            self.index.compact_if_due()
            own = self.index.settings.get("fit")
            if fit == "auto" and own and not own.get("from_pairs") and self.fit_is_due():
                self.fit()
        return added

    def update(
        self,
        changes: Iterable[Item],
        *,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
    ) -> AddResult:
        """Change stored items in part: an image or a text that is None stays, and so do entries of `meta`
        that are not named; a value of None removes one. Unknown ids are skipped and named in the report.
        """
        if isinstance(changes, Item):
            raise BadInput("update takes several changes: call update([item]) for one")
        with self.index.writing():
            self.index.refresh()
            updated = update_items(self.index, lambda: self.model, changes, report=report, progress=progress)
            self.index.compact_if_due()
        return updated

    def add_from(
        self,
        path: str | Path | RemotePath,
        *,
        exclude: Sequence[str] = (),
        prune: bool = False,
        update: bool = False,
        tables: TableOptions | None = None,
        exif: bool = True,
        report: Report | None = None,
        progress: Callable[[AddResult], None] | None = None,
        fit: str = "auto",
    ) -> AddResult:
        """Add what a folder, a table, a tar or a single file holds, as `genius index` does.

        `exclude` has patterns of names to leave out. With `prune`, items are removed that `path` had before
        and has no longer; none, where a folder or a line could not be read. With `update`, the rows of a
        table change stored items in part, as in `update`. `tables` says which columns are what, and whether
        images of the web are fetched. `exif` keeps date, place and camera of the photos of a folder.
        """
        source = ItemSource.of(path)
        report = Report() if report is None else report
        tables = replace(tables or TableOptions(), partial=update)
        if update:
            if source.root is not None or prune:
                raise BadInput("an update reads a table whose rows have ids, and prunes nothing")
            changes = source.items(self.index, exclude, report, tables)
            return self.update(changes, report=report, progress=progress)
        if prune:
            report.ids = set()
        seen: set[str] = set()
        items = source.items(self.index, exclude, report, tables)
        if prune:
            items = noting_ids(items, seen)
        result = self.add(
            items,
            source=source.label,
            allow_urls=tables.allow_urls,
            exif=exif and source.root is not None,
            report=report,
            progress=progress,
            fit=fit,
        )
        if prune and not report.unknown:
            result.removed = self.prune(source.label, seen | source.kept_ids(report.ids or set()))
        return result

    def remove(self, ids: str | Iterable[str]) -> int:
        """Remove items by id, one or several; returns how many there were."""
        every = [ids] if isinstance(ids, str) else ids
        return self.index.remove([id for id in every if _storable(id)])

    def prune(self, source: str, keep: Collection[str]) -> int:
        """Remove items once read from `source` whose ids are not in `keep`; returns how many there were."""
        return self.index.remove([id for id in self.index.truth.ids_from(source) if id not in keep])

    def fit(
        self,
        *,
        item_bytes: int | None = None,
        pairs: str | Path | LabelledPairs | None = None,
        decoder: bool = False,
        seed: int = 0,
        report: Report | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> FitResult:
        """Fit the codes to the items as they are now, from their stored vectors; no labels are needed.

        `item_bytes` is how many bytes the codes of an item take (default: 15). `pairs` are queries with the
        ids of items that they should find: (query, id) each, a JSONL file of them, or `captions`, the texts
        of the collection's own pairs. They tune the codes and, with `decoder`, teach one; a held-out part of
        them decides what is kept. All items get new codes in one transaction; searches go on meanwhile. A
        decoder that the model had before is not used any more.
        """
        from genius.fitting.run import fit

        with self.index.writing():
            self.index.refresh()
            return fit(
                self.index,
                lambda: self.model,
                item_bytes=item_bytes,
                pairs=pairs,
                decoder=decoder,
                seed=seed,
                report=Report() if report is None else report,
                progress=progress,
            )

    def fit_is_due(self) -> str | None:
        """Why fitting the codes is worth it; None if it is not."""
        from genius.fitting.due import fit_state

        return fit_state(self.index).due

    def compact(self) -> int:
        """Merge all changes into a new generation of arrays; returns its number."""
        return self.index.compact()

    # --- searching -----------------------------------------------------------------------------------------

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
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[list[Hit]]:
        """The `k` best items for each query, best first.

        `want` is image, text, pair, any (default), or a sentence. `instruction` is a sentence that says what
        is wanted, "" to ask without one; by default, texts and pairs are asked with a sentence and images
        without. `search` is generate, lookup or both (default: the model's); `rerank` is none, codes or
        vectors (default: vectors, if the index keeps them); `beam` is the beam width, in prefixes of codes.
        `where` is a filter such as "price < 50 and not sold" (docs/filters.md): only items that pass it are
        searched. The `offset` best are left out. `at_least` leaves out hits of less confidence (0 to 1).
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
        offset: int = 0,
        cursor: str | None = None,
        without: str | None = None,
        facets: Sequence[str] = (),
        at_least: float | None = None,
    ) -> list[SearchResult]:
        """As `search_batch`, with what each search touched and the state of the index that was searched.

        A `cursor` of a result, given with the same query and options, leads to the next page of its hits,
        whatever is added or removed meanwhile. The item called `without` is left out. `facets` are fields
        whose values are counted over the first 200 answers. Where no hit is as sure as `at_least`, the result
        has the `nearest` instead.
        """
        if isinstance(queries, str | Path | Query):
            raise BadInput("search_batch answers a list of queries: call search(query) for one")
        if cursor is not None and len(queries) != 1:
            raise BadInput("a cursor belongs to one query: ask for the next page of each on its own")
        known = None if without is None or not _storable(without) else self.index.truth.record(without)
        after = None if cursor is None else PageCursor.parse(cursor)
        page = PageRequest(k, offset, after, None if known is None else known[0])
        count_facets(facets, ())  # refuses what is no field before anything is searched
        depth = max(page.depth, FACETED if facets else 0)
        self.prepare(where)
        asked = [Query.of(query).wanting(want, instruction) for query in queries]
        loaded, present = self._current_model(), self._current().present
        embedded = self._embed(loaded.model, asked, present)
        for attempt in range(ATTEMPTS):
            try:
                if loaded.model.fingerprint != self._current().snapshot.fingerprint:  # fitted anew
                    loaded = self._current_model()
                    embedded = self._embed(loaded.model, asked, present)
                options = self._options(loaded.model, k, search, rerank, beam)
                with self.index.steady() if attempt else nullcontext():
                    view = self._current()
                    if view.snapshot.fingerprint != loaded.model.fingerprint:
                        continue
                    if view.present != present:
                        present = view.present
                        embedded = self._embed(loaded.model, asked, present)
                    pool = None if where is None else self._filters.pool(where, view)
                    ranked = rank_page(page, depth, view, loaded, embedded, options, pool)
                    cuts = [page.left(one.items) for one in ranked]
                    rows = {item.row for left in cuts for item in left[: None if facets else page.end]}
                    records = self.index.truth.records(rows)
                    changed = pool is not None and self._filters.changed(pool)
            except CacheDamaged as error:
                self.index.rebuild(str(error))
                continue
            if changed:
                continue
            if rows == records.keys():  # else the index changed: the next attempt holds changes back
                results = [
                    SearchResult(
                        _hits(left[page.offset : page.end], records, page.first_rank),
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
        """Make the indexes that a filter uses, as the first search with it would; raises BadInput."""
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
        offset: int = 0,
        at_least: float | None = None,
    ) -> list[Hit]:
        """What is like a stored item, but as the words in `but` say; the item itself is left out."""
        return self.like_result(
            id, but, k, want, instruction=instruction, where=where, offset=offset, at_least=at_least
        ).hits

    def like_result(
        self,
        id: str,
        but: str | None = None,
        k: int = 10,
        want: Modality | str | None = None,
        *,
        instruction: str | None = None,
        where: str | None = None,
        offset: int = 0,
        at_least: float | None = None,
    ) -> SearchResult:
        """As `like`, with what the search touched."""
        record = self.get(id)
        if record is None:
            raise BadInput(f"no item is called {id!r}")
        words = (but or "").strip()
        if self.index.embeds:
            image = None if record.modality is Modality.TEXT else self.thumbnail(id, LIKE_SIDE)
            # with an image, the words take the place of the caption; a text they add to
            parts = [words] if words and image is not None else [record.text, words]
            query = Query(text=" ".join(filter(None, parts)) or None, image=image)
        else:
            query = Query(text=words or None, vector=self.vector(id))
        (found,) = self.results(
            [query],
            k,
            want,
            instruction=instruction,
            where=where,
            offset=offset,
            without=id,
            at_least=at_least,
        )
        return found

    def pages(
        self, query: str | Path | Query, k: int = 10, want: Modality | str | None = None, **options: Any
    ) -> Iterator[list[Hit]]:
        """All items for a query, `k` at a time, best first; options as for `search`.

        No item comes twice; items that are added or changed meanwhile are left out.
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

    # --- looking -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many items there are."""
        return len(self._current())

    def __bool__(self) -> bool:
        """An engine is true, whether or not its index is empty."""
        return True

    def __iter__(self) -> Iterator[str]:
        """The ids of all items, in the order they were added, as a dict gives its keys."""
        return self.index.truth.ids()

    def __contains__(self, id: object) -> bool:
        """Whether an item is called so."""
        return isinstance(id, str) and self.get(id) is not None

    def count(self, where: str | None = None) -> int:
        """How many items pass a filter; all without one."""
        return self.browse(where, limit=0).total

    def browse(
        self,
        where: str | None = None,
        limit: int | None = 100,
        offset: int = 0,
        *,
        cursor: str | None = None,
        facets: Sequence[str] = (),
    ) -> ItemPage:
        """The stored items that pass a filter, in the order they were added, and how many there are.

        `cursor` is that of the page before; items that are added or changed meanwhile come last. `facets`
        are fields whose values are counted over all of these items.
        """
        self.prepare(where)
        view = self._current()
        pool = None if where is None else self._filters.pool(where, view)
        return browse(self.index.truth, view, pool, limit, offset, cursor, facets)

    def duplicates(self, at_least: float | None = NEAR) -> list[DuplicateGroup]:
        """Groups of items of the same content or, unless `at_least` is None, at least that similar."""
        return find_duplicates(self.index, at_least)

    def missing_files(self) -> FilesReport:
        """Items whose files are not where they were, and where they are now, if they were only moved."""
        return missing_files(self.index)

    def warm(self) -> None:
        """Load what the first search needs, and record the programs that a GPU replays."""
        self.search(Query(text="first") if self.index.embeds else Query(vector=np.ones(self.model.dim)), k=1)
        loaded = self._current_model()
        options = self._options(loaded.model, 10, None, None, None)
        loaded.searcher_for(options).warm(self._current().segments, options)

    def _embed(
        self, model: RetrievalModel, queries: Sequence[Query], present: list[Modality]
    ) -> list[list[EmbeddedSubquery]]:
        """The sub-queries of each query, with their embeddings."""
        split = [subqueries(query, present) for query in queries]
        embedded = iter(embed(model, [one for several in split for one in several]))
        return [[next(embedded) for _ in several] for several in split]

    def branch(
        self, prefix: Sequence[int] = (), max_items: int = 24, max_children: int = 64, per_child: int = 4
    ) -> tuple[Branch, dict[int, Record]]:
        """The items under a prefix of codes, its children, and the records of the rows they name."""
        found = branch(self._current(), prefix, max_items, max_children, per_child)
        rows = {*found.rows, *(row for child in found.children for row in child.rows)}
        return found, self.index.truth.records(rows)

    def get(self, id: str) -> Record | None:
        """What is stored of an item, without its vector; None if it is not there."""
        found = self.index.truth.record(id) if _storable(id) else None
        return None if found is None else found[1]

    def vector(self, id: str) -> NDArray[np.float16]:
        """The embedding of an item, unit length, (dim,)."""
        found = self.index.truth.record(id) if _storable(id) else None
        if found is None or self.index.dim is None:
            raise BadInput(f"no item is called {id!r}" if found is None else "this index keeps no vectors")
        return np.asarray(self.index.truth.vectors(np.array([found[0]]), self.index.dim)[0])

    def thumbnail(self, id: str, side: int = THUMBNAIL) -> bytes | None:
        """A small JPEG of an item's image, made on demand; None if there is no such item or image."""
        found = self.index.truth.record(id) if _storable(id) else None
        if found is None:
            return None
        row, record = found
        path = self.index.image_path(record)
        if path is not None:
            return thumbnail(open_image(path, at_least=side), side)
        return self.index.truth.thumbnail(row)

    def stats(self) -> dict[str, Any]:
        """Items, sizes and settings, and the default search, as plain values; does not load the model."""
        search = describe_options(self._search_settings(), vectors=self.index.dim is not None)
        from genius.fitting.due import fit_state

        fit = fit_state(self.index)
        if fit.number:
            search["chosen_on"] = "nothing: plain values"
        return {**stats(self.index), "search": search, "fit": fit.as_dict()}

    def _search_settings(self) -> Mapping[str, Any]:
        """The search settings of the model; those stored with the index, if the model cannot be read."""
        loaded = self._loaded
        if loaded is not None and loaded.model.fingerprint == self.index.settings["fingerprint"]:
            return loaded.model.search_defaults
        from genius.model import read_settings

        try:
            chosen: Mapping[str, Any] = read_settings(self.index.model_source).get("search", {})
        except (ModelNotFound, ModelMismatch):
            chosen = self.index.settings["notes"].get("search", {})
        return chosen

    @property
    def searcher(self) -> Searcher:
        """The searcher with codebooks and decoder, for every search method."""
        return self._current_model().searcher

    def _use_model(self, model: RetrievalModel, settings: Mapping[str, Any]) -> None:
        self.index.require_model(model.name, model.fingerprint, model.sizes, model.dim, settings)
        self._loaded = LoadedModel(model, self._device)

    def _current(self) -> PoolView:
        """The committed state, searchable; its snapshot comes first, as a damaged cache needs the writer."""
        snapshot = self.index.snapshot()
        with self._viewing:
            before = self._view
            if before is not None and before.snapshot is snapshot:
                return before
            view = PoolView(snapshot, before)
            if before is None or not _older(snapshot, before.snapshot):
                self._view = view
            return view

    def _options(
        self, model: RetrievalModel, k: int, search: str | None, rerank: str | None, beam: int | None
    ) -> SearchOptions:
        defaults = default_options(model.search_defaults, vectors=self.index.dim is not None)
        if len(model.sizes) == 1:  # no codes yet: all vectors are compared
            search = rerank = None
        own = {"k": k, "method": search, "rerank": rerank, "beam": beam}
        return SearchOptions(**defaults | {name: value for name, value in own.items() if value is not None})


def load_model(model: str | Path, device: str = "cpu") -> RetrievalModel:
    """The model of that name or folder; torch is imported only here."""
    from genius.model import MODELS, Model, model_folder

    folder = model_folder(model)
    # a shipped model goes by its name, one's own by a path that holds wherever the index is opened
    return Model.load(model if folder.parent == MODELS else folder.absolute(), device=device)


def _older(one: Snapshot, other: Snapshot) -> bool:
    """Whether one state came before the other; states of two files (one was repaired) have no order."""
    return one.state[0] == other.state[0] and one.change < other.change


def _storable(id: object) -> bool:
    """Whether an item can have this id; SQLite cannot even be asked for some others."""
    try:
        valid_id(id)
    except BadInput:
        return False
    return True


def _hits(ranked: Sequence[ScoredRow], records: dict[int, Record], first_rank: int) -> list[Hit]:
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
        )
        for number, (answer, record) in enumerate(there, start=first_rank)
    ]
