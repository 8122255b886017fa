"""A Haystack document store, and the component that retrieves from it.

from haystack import Pipeline
from genius.integrations.haystack import GeniusDocumentRetriever, GeniusDocumentStore

store = GeniusDocumentStore("my-index")
pipeline = Pipeline()
pipeline.add_component("retriever", GeniusDocumentRetriever(store, k=5))
documents = pipeline.run({"retriever": {"query": "a dog in the snow"}})["retriever"]["documents"]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy

from genius.engine import Engine
from genius.errors import BadInput
from genius.integrations.filters import field, literal
from genius.integrations.stored import as_stored
from genius.types import DEFAULT_MODEL, Hit, Item

COMPARISONS = {"==": "=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}
OWN = {"id": "id", "content": "text"}  # fields of a document that are no metadata


class GeniusDocumentStore:
    """Documents in an index; content and blob (an image) are embedded by the index itself."""

    def __init__(self, folder: str, model: str = DEFAULT_MODEL) -> None:
        self.folder, self.model = folder, model

    @cached_property
    def engine(self) -> Engine:
        """The index, made if it is not there; opened when first needed."""
        return Engine.open_or_create(self.folder, self.model)

    def to_dict(self) -> dict[str, Any]:
        """What a pipeline saves."""
        saved: dict[str, Any] = default_to_dict(self, folder=self.folder, model=self.model)
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GeniusDocumentStore:
        """The store that was saved."""
        loaded: GeniusDocumentStore = default_from_dict(cls, data)
        return loaded

    def count_documents(self) -> int:
        """How many documents there are."""
        return len(self.engine)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that pass Haystack's filters."""
        items = self.engine.browse(where_of(filters), limit=None).items
        stored = [as_stored(record) for record in items]
        return [Document(id=one.id, content=one.text, meta=one.meta) for one in stored]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Add documents; returns how many were written. Without a policy, known ids are an error."""
        if policy is not DuplicatePolicy.OVERWRITE:
            known = {document.id for document in documents if document.id in self.engine}
            if known and policy is not DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"there are documents with these ids already: {sorted(known)}")
            documents = [document for document in documents if document.id not in known]
        added = self.engine.add([_item(document) for document in documents])
        if added.report.names:
            name, reason = added.report.names[0]
            raise BadInput(
                f"{len(added.report.names)} documents were not added, the first is {name}: {reason}"
            )
        return len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Remove documents by id."""
        self.engine.remove(document_ids)


@component
class GeniusDocumentRetriever:
    """Finds documents by a text; `options` are those of `Engine.search`: want, instruction, at_least, …"""

    def __init__(self, document_store: GeniusDocumentStore, k: int = 10, **options: Any) -> None:
        self.document_store, self.k, self.options = document_store, k, options

    def to_dict(self) -> dict[str, Any]:
        """What a pipeline saves."""
        store = self.document_store.to_dict()
        saved: dict[str, Any] = default_to_dict(self, document_store=store, k=self.k, **self.options)
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GeniusDocumentRetriever:
        """The retriever that was saved."""
        store = GeniusDocumentStore.from_dict(data["init_parameters"]["document_store"])
        return cls(**{**data["init_parameters"], "document_store": store})

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents for a query."""
        hits = self.document_store.engine.search(query, k or self.k, where=where_of(filters), **self.options)
        return {"documents": [hit_as_document(hit) for hit in hits]}


def hit_as_document(hit: Hit) -> Document:
    """A hit as a document, scored by confidence, if there is one."""
    score = hit.score if hit.confidence is None else hit.confidence
    meta = {**hit.meta, "modality": hit.modality.value}
    return Document(id=hit.id, content=hit.text, meta=meta, score=score)


def where_of(filters: Mapping[str, Any] | None) -> str | None:
    """Haystack's filters in genius' grammar; as in Haystack, a missing field is unequal to every value."""
    if not filters:
        return None
    operator = str(filters.get("operator", ""))
    if "conditions" in filters:
        parts = [where_of(condition) for condition in filters["conditions"]]
        joined = f" {'or' if operator == 'OR' else 'and'} ".join(f"({part})" for part in parts)
        return f"not ({joined})" if operator == "NOT" else joined
    name, value = str(filters.get("field", "")), filters.get("value")
    place = OWN.get(name) or field(name.removeprefix("meta."))
    if operator in ("!=", "not in"):
        same = where_of({**filters, "operator": "==" if operator == "!=" else "in"})
        return f"not ({same})"
    if operator == "==" and value is None:
        return f"{place} is missing"
    if operator == "in" and isinstance(value, list | tuple | set):
        return f"{place} in ({', '.join(map(literal, value))})"
    if operator in COMPARISONS:
        return f"{place} {COMPARISONS[operator]} {literal(value)}"
    allowed = ", ".join((*COMPARISONS, "!=", "in", "not in", "AND", "OR", "NOT"))
    raise BadInput(f"unknown operator {operator!r} in the filter: use {allowed}")


def _item(document: Document) -> Item:
    blob: ByteStream | None = document.blob
    return Item(document.id, None if blob is None else blob.data, document.content, document.meta)
