"""A LlamaIndex retriever over an index, here or behind `genius serve`.

from genius import Engine
from genius.integrations.llama_index import GeniusNodeRetriever

retriever = GeniusNodeRetriever(Engine.open("my-index"), k=5)
nodes = retriever.retrieve("a dog in the snow")
"""

from __future__ import annotations

from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode

from genius.client import Client
from genius.engine import Engine
from genius.types import Hit, Modality, Query


class GeniusNodeRetriever(BaseRetriever):
    """Finds nodes in an index; `options` are those of `Engine.search`: want, where, at_least, …"""

    def __init__(self, engine: Engine | Client, k: int = 10, **options: Any) -> None:
        super().__init__()
        self.engine, self.k, self.options = engine, k, options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """The best nodes; a query bundle may bring an image beside its text, or in place of it."""
        query = Query(text=query_bundle.query_str or None, image=query_bundle.image_path)
        return [hit_node(hit) for hit in self.engine.search(query, self.k, **self.options)]


def hit_node(hit: Hit) -> NodeWithScore:
    """A hit as a node: with its image, if that is a file; scored by confidence, if there is one."""
    fields: dict[str, Any] = {
        "id_": hit.id,
        "text": hit.text or "",
        "metadata": {**hit.meta, "modality": hit.modality.value, "similarity": hit.score},
    }
    if hit.modality is Modality.TEXT or hit.path is None:
        node: TextNode = TextNode(**fields)
    else:
        node = ImageNode(**fields, image_path=hit.path)
    return NodeWithScore(node=node, score=hit.score if hit.confidence is None else hit.confidence)
