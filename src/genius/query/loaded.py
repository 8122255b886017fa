"""A loaded model with its searchers, which are created on first use."""

from __future__ import annotations

from genius.locks import OrderedLock
from genius.retrieval_model import RetrievalModel
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher


class LoadedModel:
    """A model and how items coded by it are searched; threads may share it."""

    def __init__(self, model: RetrievalModel, device: str) -> None:
        self.model, self._device = model, device
        self._making = OrderedLock("model")
        self._searcher: Searcher | None = None
        self._lookup: Searcher | None = None  # the same without a decoder

    @property
    def searcher(self) -> Searcher:
        """The searcher with codebooks and decoder, for every search method."""
        with self._making:
            if self._searcher is None:
                self._searcher = Searcher(self.model.codebooks(), self.model.decoder, self._device)
            return self._searcher

    def searcher_for(self, options: SearchOptions) -> Searcher:
        """The searcher for these options: a lookup does not wait for the decoder to be loaded."""
        with self._making:
            if self._searcher is not None or options.method != "lookup":
                return self.searcher
            if self._lookup is None:
                self._lookup = Searcher(self.model.codebooks(), None, self._device)
            return self._lookup
