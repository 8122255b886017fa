"""A Haystack document store: duplicates by policy, filters, pipelines that are saved and loaded."""

from __future__ import annotations

import io
import warnings

import pytest
from PIL import Image

from genius import Engine
from genius.errors import BadInput

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own dependencies, when first imported
    pytest.importorskip("haystack", reason="haystack-ai is not installed: it is in the extra dev")
    from haystack import Document, Pipeline
    from haystack.dataclasses import ByteStream
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy
    from haystack.utils.filters import document_matches_filter

    from genius.integrations.haystack import GeniusDocumentRetriever, GeniusDocumentStore, where_of


@pytest.fixture
def store(engine):
    made = GeniusDocumentStore(str(engine.index.folder))
    made.__dict__["engine"] = engine
    return made


def test_documents_come_and_go(store):
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9), "red").save(buffer, "PNG")
    new = [
        Document(id="a", content="a red thing", meta={"price": 5}),
        Document(id="b", blob=ByteStream(buffer.getvalue())),
    ]
    before = store.count_documents()
    assert store.write_documents(new) == 2 and store.count_documents() == before + 2
    with pytest.raises(DuplicateDocumentError, match="'a', 'b'"):
        store.write_documents(new)
    assert store.write_documents(new, DuplicatePolicy.SKIP) == 0
    assert store.write_documents([Document(id="a", content="blue")], DuplicatePolicy.OVERWRITE) == 1
    assert store.filter_documents({"field": "id", "operator": "==", "value": "a"})[0].content == "blue"
    store.delete_documents(["a", "b"])
    assert store.count_documents() == before


FILTERS = [
    {"field": "meta.number", "operator": ">=", "value": 5},
    {"field": "meta.number", "operator": "in", "value": [1, 2]},
    {"field": "meta.number", "operator": "not in", "value": [1, 2]},
    {"field": "meta.price", "operator": "!=", "value": 5},
    {"field": "meta.price", "operator": "==", "value": None},
    {"field": "content", "operator": "==", "value": "something red"},
    {
        "operator": "OR",
        "conditions": [
            {"field": "meta.even", "operator": "==", "value": True},
            {"operator": "NOT", "conditions": [{"field": "meta.number", "operator": "<", "value": 8}]},
        ],
    },
]


@pytest.mark.parametrize("filters", FILTERS)
def test_filters_mean_what_they_mean_in_haystack(store, filters):
    every = store.filter_documents()
    expected = {one.id for one in every if document_matches_filter(filters, one)}
    assert {one.id for one in store.filter_documents(filters)} == expected
    assert 0 < len(expected) <= len(every)


def test_an_unknown_operator_is_named():
    with pytest.raises(BadInput, match="not in, AND"):
        where_of({"field": "meta.a", "operator": "~", "value": 1})


def test_a_pipeline_retrieves_and_is_saved(store, monkeypatch, fake):
    pipeline = Pipeline()
    pipeline.add_component("retriever", GeniusDocumentRetriever(store, k=1, want="text"))
    asked = {"retriever": {"query": "red"}}
    assert pipeline.run(asked)["retriever"]["documents"][0].id == "t-red"
    monkeypatch.setattr(
        "genius.engine.opening.load_model", lambda name, device="cpu": fake.FakeModel(str(name))
    )
    monkeypatch.setattr(Engine, "open_or_create", lambda folder, model: store.engine)
    saved = GeniusDocumentRetriever(store, k=1, want="text").to_dict()
    again = GeniusDocumentRetriever.from_dict(saved)
    assert again.run("red")["documents"][0].id == "t-red" and again.document_store.folder == store.folder
