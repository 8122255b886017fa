"""Items that were read to records: embedded and quantized, long texts in passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from genius.data.passages import is_longer, passages
from genius.data.validate import unit_vector
from genius.encode.base import CountsTokens, Parts
from genius.errors import BadInput
from genius.ingest.item import PendingItem
from genius.retrieval_model import RetrievalModel
from genius.store.records import Passages, Record
from genius.types import Modality

PASSAGE = 32  # tokens of a passage, with those that begin and end every text: benchmarks/split_texts.py


def text_limit(model: RetrievalModel) -> CountsTokens | None:
    """What counts the tokens of texts; None if the model does not say how many it reads."""
    return getattr(model, "text_limit", None)


def is_long(model: RetrievalModel, item: PendingItem) -> bool:
    """Whether only the beginning of its text is read."""
    limit = text_limit(model)
    if limit is None or not item.text or item.vector is not None:
        return False
    return is_longer(item.text, limit.count_tokens, _most(limit))


def with_passages(model: RetrievalModel, item: PendingItem) -> PendingItem:
    """The item with the spans of its passages, if its text is longer than the encoder reads."""
    limit = text_limit(model)
    if limit is None or not item.text or item.vector is not None:
        return item
    spans = passages(item.text, limit.count_tokens, _most(limit), PASSAGE)
    return replace(item, spans=tuple(spans)) if len(spans) > 1 else item


def _most(limit: CountsTokens) -> int:
    """Tokens of a passage: one less than are read, as a full stop is added where there is none."""
    return limit.max_tokens - 1


def embedded_records(model: RetrievalModel, items: Sequence[PendingItem], vectors: bool) -> list[Record]:
    """The items as they are stored, with vectors if they are wanted."""
    every = [passage for item in items for passage in _passages(item)]
    parts = _parts(model, every)
    phi = model.phi(parts)
    if not np.isfinite(phi).all():
        raise BadInput("its vector has NaN or infinite entries")
    codes = model.codes(parts, [one.modality for one in every])
    half = phi.astype(np.float16)
    records, first = [], 0
    for item in items:
        others = slice(first + 1, first + max(1, len(item.spans)))
        records.append(
            Record(
                item.id,
                item.modality,
                codes[first],
                half[first] if vectors else None,
                item.path,
                item.text,
                item.source,
                item.meta,
                item.hash,
                item.stamp,
                item.thumbnail,
                Passages(np.array(item.spans, np.int32), codes[others], half[others] if vectors else None)
                if item.spans
                else None,
            )
        )
        first = others.stop
    return records


def _passages(item: PendingItem) -> Iterator[PendingItem]:
    """What is embedded of an item: itself, or each passage of its text, with its image if it has one."""
    if not item.spans or item.text is None:
        yield item
        return
    for start, end in item.spans:
        yield replace(item, text=item.text[start:end], spans=())


def _parts(model: RetrievalModel, pending: Sequence[PendingItem]) -> Parts:
    """Image and text embeddings of items; one that comes with its embedding is not encoded."""
    own = [row for row, one in enumerate(pending) if one.vector is not None]
    if not own:
        return model.embed_items([one.image for one in pending], [one.text for one in pending])
    shape = (len(pending), model.dim)
    parts = Parts(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
    for row in own:
        one = pending[row]
        part = parts.text if one.modality is Modality.TEXT else parts.image
        part[row] = unit_vector(one.vector, model.dim)
    rest = [row for row, one in enumerate(pending) if one.vector is None]
    if rest:
        encoded = model.embed_items([pending[row].image for row in rest], [pending[row].text for row in rest])
        parts.image[rest], parts.text[rest] = encoded.image, encoded.text
    return parts
