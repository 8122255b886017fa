"""LangChain's own base classes find, filter, add and remove documents in an index."""

from __future__ import annotations

import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed: it is in the extra dev")

from langchain_core.documents import Document

from genius.errors import BadInput
from genius.integrations.langchain import GeniusRetriever, GeniusVectorStore


def test_a_retriever_finds_documents(engine, tmp_path):
    (found,) = GeniusRetriever(engine=engine, k=1, want="text").invoke("red")
    assert found.id == "t-red" and found.page_content == "something red" and found.metadata["number"] == 0
    (picture,) = GeniusRetriever(engine=engine, k=1, want="image", where="not even").invoke("green")
    assert picture.id == "green" and picture.metadata["path"] == str(tmp_path / "green.png")


def test_a_vector_store_keeps_documents(engine):
    store = GeniusVectorStore(engine)
    ids = store.add_documents([Document(id="n", page_content="a red thing", metadata={"price": 5})])
    assert ids == ["n"]
    (found,) = store.similarity_search("a red thing", k=1, filter={"price": [5, 6]})
    assert found.id == "n" and found.metadata["price"] == 5
    assert store.similarity_search("a red thing", k=9, filter="price > 5") == []
    ((_, score),) = store.similarity_search_with_score("something red", k=1, want="text")
    ((_, relevance),) = store.similarity_search_with_relevance_scores("something red", k=1, want="text")
    assert 0.9 < score <= 1 and 0.9 < relevance <= 1
    assert [one.page_content for one in store.get_by_ids(["n", "nobody"])] == ["a red thing"]
    assert store.delete(["n"]) and store.get_by_ids(["n"]) == []
    found = store.as_retriever(search_kwargs={"k": 2, "want": "image"}).invoke("blue")
    assert len(found) == 2 and found[0].id == "blue"


def test_words_count_in_the_order_and_scores_are_similarities(engine):
    found = GeniusVectorStore(engine).similarity_search_with_score("t-cyan", 20, want="text")
    similar = {hit.id: hit.score for hit in engine.search("t-cyan", 20, "text", hybrid=False)}
    assert found[0][0].id == "t-cyan" and found[0][1] < max(similar.values())
    assert {document.id: score for document, score in found} == pytest.approx(similar)
    assert all(document.metadata["score"] == score for document, score in found)


def test_a_store_is_made_from_texts(engine):
    store = GeniusVectorStore.from_texts(["blue note"], metadatas=[{"a": 1}], ids=["b"], engine=engine)
    assert store.get_by_ids(["b"])[0].metadata == {"a": 1}
    with pytest.raises(BadInput, match="engine"):
        GeniusVectorStore.from_texts(["blue note"])
    with pytest.raises(BadInput, match="not added"):
        store.add_texts([""], ids=["empty"])
