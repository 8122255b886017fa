"""A LangChain retriever and vector store over an index, here or behind `genius serve`.

from genius import Engine
from genius.integrations.langchain import GeniusRetriever

retriever = GeniusRetriever(engine=Engine.open("my-index"), k=5, want="image")
documents = retriever.invoke("a dog in the snow")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import uuid4

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict

from genius.client import Client
from genius.engine import Engine
from genius.errors import BadInput
from genius.integrations.filters import equalities
from genius.integrations.stored import stored_item
from genius.types import Hit, Item


class GeniusRetriever(BaseRetriever):
    """Finds documents in an index; the fields but `engine` are the options of `Engine.search`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    engine: Engine | Client
    k: int = 10
    want: str | None = None
    instruction: str | None = None
    where: str | None = None
    at_least: float | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        hits = self.engine.search(
            query,
            self.k,
            self.want,
            instruction=self.instruction,
            where=self.where,
            at_least=self.at_least,
        )
        return [hit_document(hit) for hit in hits]


class GeniusVectorStore(VectorStore):
    """An index as a vector store. The index embeds by itself, so no embedding function is given."""

    def __init__(self, engine: Engine | Client) -> None:
        self.engine = engine

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Self:
        """A store in the index `engine` (a keyword), with these texts added."""
        if embedding is not None:
            raise BadInput("the index embeds by itself: leave `embedding` out, or make an index of vectors")
        if "engine" not in kwargs:
            raise BadInput("from_texts needs the keyword `engine`: an Engine or a Client")
        store = cls(kwargs["engine"])
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those with the same ids; returns the ids."""
        several = list(texts)
        names = [name or str(uuid4()) for name in ids or [""] * len(several)]
        metas = metadatas or [{} for _ in several]
        items = [Item(*one) for one in zip(names, [None] * len(several), several, metas, strict=True)]
        added = self.engine.add(items)
        if added.report.names:
            name, reason = added.report.names[0]
            raise BadInput(f"{len(added.report.names)} texts were not added, the first is {name}: {reason}")
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Remove items by id; without ids nothing is removed."""
        return self.engine.remove(ids) == len(set(ids)) if ids else None

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The stored items of these ids; unknown ones are left out."""
        found = [stored_item(self.engine, name) for name in ids]
        return [
            Document(id=item.id, page_content=item.text or "", metadata=dict(item.meta))
            for item in found
            if item is not None
        ]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """The `k` best documents; keywords as for `Engine.search`, and `filter`."""
        return [hit_document(hit) for hit in self._hits(query, k, kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The same with the score of each: its similarity with the query."""
        return [(hit_document(hit), hit.score) for hit in self._hits(query, k, kwargs)]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Relevance is the confidence; of a model that is not calibrated, the cosine moved to 0 to 1."""
        return [
            (hit_document(hit), _cosine_relevance(hit) if hit.confidence is None else hit.confidence)
            for hit in self._hits(query, k, kwargs)
        ]

    def _hits(self, query: str, k: int, options: Mapping[str, Any]) -> list[Hit]:
        """`filter` is a filter in words, as `where`, or a dict of values that metadata must have."""
        rest = {name: value for name, value in options.items() if name not in ("filter", "score_threshold")}
        chosen = options.get("filter")
        if chosen is not None:
            rest["where"] = chosen if isinstance(chosen, str) else equalities(chosen)
        return self.engine.search(query, k, **rest)


def hit_document(hit: Hit) -> Document:
    """A hit as a document; what it is and how it was found is in the metadata."""
    found = {"modality": hit.modality.value, "score": hit.score, "confidence": hit.confidence}
    if hit.path is not None:
        found["path"] = hit.path
    return Document(id=hit.id, page_content=hit.text or "", metadata={**hit.meta, **found})


def _cosine_relevance(hit: Hit) -> float:
    """A cosine as a number from 0 to 1."""
    return min(max((hit.score + 1) / 2, 0.0), 1.0)
