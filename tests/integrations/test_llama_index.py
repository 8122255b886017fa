"""A LlamaIndex retriever gives nodes with text, image and score."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the package's own dependencies, when first imported
    pytest.importorskip("llama_index.core", reason="llama-index-core (extra dev) is not installed")
    from llama_index.core.schema import ImageNode, QueryBundle

    from genius.integrations.llama_index import GeniusNodeRetriever


def test_a_retriever_finds_texts_and_pictures(engine, tmp_path):
    (text,) = GeniusNodeRetriever(engine, k=1, want="text").retrieve("red")
    assert text.node.node_id == "t-red" and text.node.get_content() == "something red"
    assert text.node.metadata["number"] == 0 and text.score is not None and text.score > 0.5
    by_image = QueryBundle(query_str="", image_path=str(tmp_path / "blue.png"))
    (picture,) = GeniusNodeRetriever(engine, k=1, want="image").retrieve(by_image)
    assert isinstance(picture.node, ImageNode) and picture.node.image_path == str(tmp_path / "blue.png")
    assert GeniusNodeRetriever(engine, k=5, where="number > 100").retrieve("red") == []
