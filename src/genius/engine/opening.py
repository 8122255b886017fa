"""An open index with the model that made it: made, opened, closed; the model is loaded when needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from genius.data.images import open_image
from genius.data.validate import valid_id
from genius.errors import (
    BadImage,
    BadInput,
    IndexCorrupt,
    IndexMismatch,
    IndexNotFound,
    ModelMismatch,
    ModelNotFound,
)
from genius.fitting.due import FitState
from genius.ingest.embedding import text_limit
from genius.ingest.item import THUMBNAIL, thumbnail
from genius.locks import OrderedLock
from genius.query.defaults import default_options, widened
from genius.query.filtered import Filters
from genius.query.loaded import LoadedModel
from genius.query.view import PoolView
from genius.query.words import WordSearch
from genius.retrieval_model import RetrievalModel
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.store.check import model_problem
from genius.store.index import Index
from genius.store.records import Record
from genius.store.snapshot import Snapshot
from genius.types import DEFAULT_MODEL


class OpenIndex:
    """An open index and its model, as the rest of the engine uses them. Threads may share it."""

    def __init__(self, index: Index, model: RetrievalModel | None = None, device: str = "cpu") -> None:
        self.index = index
        self._device = device
        self._loading = OrderedLock("model")
        self._viewing = OrderedLock("view")
        self._loaded: LoadedModel | None = None
        self._view: PoolView | None = None
        self._filters = Filters(index)
        self._words = WordSearch(index)
        self._fit_state: tuple[object, FitState] | None = None  # and the state of the truth it is of
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
        split_texts: bool = False,
        device: str = "cpu",
    ) -> Self:
        """Create an empty index in `folder` and open it.

        It uses a model (a name, a folder, or a loaded one; default: `mini`), or an `encoder` without trained
        codes: a hub name such as `openai/clip-vit-base-patch32`, a folder, or `vectors` for embeddings of
        width `dim` that were made elsewhere. Such an index is searched exactly until it has 1,000 items; then
        codes are fitted to them. Without `vectors`, only codes are stored: the index is small, and re-ranking
        uses codes. With `split_texts`, texts longer than the encoder reads are indexed in passages, and a hit
        says which passage was found.
        """
        if encoder is not None:
            return cls._create_for_encoder(Path(folder), model, encoder, dim, vectors, split_texts, device)
        model = DEFAULT_MODEL if model is None else model
        loaded = load_model(model, device) if isinstance(model, str | Path) else model
        if split_texts and text_limit(loaded) is None:
            raise BadInput(f"{loaded.name} does not say how much of a text it reads: leave out --split-texts")
        Index.create(
            Path(folder),
            model=loaded.name,
            fingerprint=loaded.fingerprint,
            sizes=loaded.sizes,
            dim=loaded.dim,
            vectors=vectors,
            notes={"search": dict(loaded.search_defaults), **({"split_texts": True} if split_texts else {})},
        )
        return cls(Index.open(Path(folder)), loaded, device)

    @classmethod
    def open(
        cls, folder: str | Path, *, model: str | Path | RetrievalModel | None = None, device: str = "cpu"
    ) -> Self:
        """Open the index in `folder`; its model is loaded on first use, unless one is given."""
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
        split_texts: bool | None = None,
        device: str = "cpu",
    ) -> Self:
        """Open the index in `folder`, or create one as `create` does.

        Raises BadInput if an existing index does not store vectors or split texts as requested, and
        IndexMismatch if it was made by another model or encoder.
        """
        try:
            engine = cls.open(folder, model=model, device=device)
        except IndexNotFound:
            return cls.create(
                folder,
                model,
                encoder=encoder,
                dim=dim,
                vectors=vectors is not False,
                split_texts=bool(split_texts),
                device=device,
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
        if split_texts is not None and split_texts != engine.index.split_texts:
            splits = engine.index.split_texts
            engine.close()
            raise BadInput(
                f"{folder} was made with{'' if splits else 'out'} --split-texts: use another folder for the "
                "other kind"
            )
        return engine

    @classmethod
    def _create_for_encoder(
        cls,
        folder: Path,
        model: object,
        encoder: str | Path,
        dim: int | None,
        vectors: bool,
        split_texts: bool,
        device: str,
    ) -> Self:
        if model is not None:
            raise BadInput("a model has an encoder of its own: give model or encoder, not both")
        if not vectors:
            raise BadInput(
                "codes for an encoder of one's own are fitted from the vectors that the index keeps: leave "
                "out --no-vectors; the fitted model can then make smaller indexes (--model INDEX/fit-000001)"
            )
        from genius.fitting.create import create_index

        create_index(folder, encoder, dim, device, split_texts=split_texts)
        return cls.open(folder, device=device)

    def close(self) -> None:
        """Close all files."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model(self) -> RetrievalModel:
        """The model that made the index; raises IndexMismatch if its name now refers to another."""
        return self._current_model().model

    @property
    def searcher(self) -> Searcher:
        """The searcher with codebooks and decoder, for every search method."""
        return self._current_model().searcher

    def _current_model(self) -> LoadedModel:
        """The model of the index as its settings name it; another one after the codes were fitted anew."""
        while True:
            settings = self.index.settings
            try:
                with self._loading:
                    loaded = self._loaded
                    if loaded is None or loaded.model.fingerprint != settings["fingerprint"]:
                        loaded = self._use_model(self._load(self.index.model_source), settings)
                    return loaded
            except (ModelNotFound, ModelMismatch, IndexMismatch):
                self.index.refresh()
                if self.index.settings["fingerprint"] != settings["fingerprint"]:
                    continue  # fitted several times since: that model is gone
                problem = model_problem(self.index)
                if problem is None:
                    raise
                raise IndexCorrupt(problem) from None

    def _load(self, source: str) -> RetrievalModel:
        """The model at `source`; after a fit, its encoder is the one in use."""
        from genius.model import Model

        before = None if self._loaded is None else self._loaded.model
        if isinstance(before, Model) and self.index.settings.get("fit"):
            return Model.load(source, self._device, before.encoder)
        return load_model(source, self._device)

    def _use_model(self, model: RetrievalModel, settings: Mapping[str, Any]) -> LoadedModel:
        self.index.require_model(model.name, model.fingerprint, model.sizes, model.dim, settings)
        self._loaded = LoadedModel(model, self._device)
        return self._loaded

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
        options = SearchOptions(
            **defaults | {name: value for name, value in own.items() if value is not None}
        )
        if beam is not None:
            return options
        view = self._view
        return widened(options, len(self._current() if view is None else view))

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

    def get(self, id: str) -> Record | None:
        """A stored item, without its vector; None if there is none."""
        found = self.index.truth.record(id) if is_storable(id) else None
        return None if found is None else found[1]

    def vector(self, id: str) -> NDArray[np.float16]:
        """The embedding of an item: unit length, (dim,)."""
        found = self.index.truth.record(id) if is_storable(id) else None
        if found is None or self.index.dim is None:
            raise BadInput(f"no item is called {id!r}" if found is None else "this index keeps no vectors")
        return np.asarray(self.index.truth.vectors(np.array([found[0]]), self.index.dim)[0])

    def thumbnail(self, id: str, side: int = THUMBNAIL) -> bytes | None:
        """A small JPEG of an item's image, made on demand; None if there is no such item, or no image of it
        that can be read.
        """
        try:
            return self._thumbnail(id, side)
        except BadImage:
            return None

    def _thumbnail(self, id: str, side: int) -> bytes | None:
        """The same; raises BadImage if the file cannot be read any more."""
        found = self.index.truth.record(id) if is_storable(id) else None
        if found is None:
            return None
        row, record = found
        path = self.index.image_path(record)
        if path is not None:
            return thumbnail(open_image(path, at_least=side), side)
        return self.index.truth.thumbnail(row)


def load_model(model: str | Path, device: str = "cpu") -> RetrievalModel:
    """The model of that name or folder; torch is imported only here."""
    from genius.model import MODELS, Model, model_folder

    folder = model_folder(model)
    # a shipped model goes by its name, one's own by a path that holds wherever the index is opened
    return Model.load(model if folder.parent == MODELS else folder.absolute(), device=device)


def _older(one: Snapshot, other: Snapshot) -> bool:
    """Whether one state came before the other; states of two files (one was repaired) have no order."""
    return one.state[0] == other.state[0] and one.change < other.change


def is_storable(id: object) -> bool:
    """Whether an item can have this id; SQLite cannot even be asked for some others."""
    try:
        valid_id(id)
    except BadInput:
        return False
    return True
