"""What goes to the server and comes back, as JSON and as our types."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from genius.errors import BadInput, MissingImage
from genius.types import FacetCount, Facets, Hit, Item, Modality

if TYPE_CHECKING:
    from genius.types import ImageSource, VectorSource

BATCH = 16  # items in one request


class HitPage(NamedTuple):
    """Some hits of one search, and what leads to the next ones."""

    hits: list[Hit]
    pool: int  # items that could have been found: what the filter and `want` keep
    facets: Facets
    cursor: str | None  # of the next page
    nearest: Sequence[Hit] = ()  # the best ones, where none is as sure as was asked for
    unknown_fields: Sequence[str] = ()  # of the filter, that no item has, if no item passes


class StoredPage(NamedTuple):
    """Some of the stored items, in the order they were added."""

    items: list[StoredItem]
    total: int  # how many the filter keeps
    facets: Facets  # over all of them
    cursor: str | None  # of the next page


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as the server shows it."""

    id: str
    modality: Modality
    codes: tuple[int, ...]
    text: str | None
    meta: dict[str, Any]
    path: str | None = None


def fields_of(item: Item) -> dict[str, Any]:
    """An item as it is sent; raises BadInput if it cannot be."""
    if not isinstance(item, Item):
        raise BadInput(f"not an Item but {type(item).__name__}")
    try:
        fields = without_none(
            {"id": item.id, "text": item.text, "meta": dict(item.meta), "vector": numbers(item.vector)}
        )
        if item.image is not None:
            fields["image"] = base64_of(item.image)
        json.dumps(fields, allow_nan=False)
    except BadInput:
        raise
    except Exception as error:  # parts of a type that nobody foresaw: their owner is told, the run goes on
        raise BadInput(f"cannot be sent: {type(error).__name__}: {error}") from None
    return {"id": None, **fields}


def numbers(vector: VectorSource | None) -> list[float] | None:
    """An embedding as plain numbers."""
    return None if vector is None else [float(number) for number in vector]


def base64_of(image: ImageSource) -> str:
    """An image, from wherever it is, as base64 of a file."""
    if isinstance(image, str | Path):
        file = Path(image)
        try:
            image = file.read_bytes()
        except FileNotFoundError:
            raise MissingImage(f"no image at {file}") from None
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}") from None
    elif not isinstance(image, bytes):
        buffer = BytesIO()
        image.convert("RGB").save(buffer, "PNG")
        image = buffer.getvalue()
    return base64.b64encode(image).decode()


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items, a request's worth at a time."""
    source = iter(items)
    while batch := list(islice(source, BATCH)):
        yield batch


def stored_of(item: Any) -> StoredItem:
    """An item as the server answers it."""
    return StoredItem(
        item["id"],
        Modality(item["modality"]),
        tuple(item["codes"]),
        item["text"],
        item["meta"],
        item["path"],
    )


def facets_of(answer: Any) -> Facets:
    """The counts of an answer, by field."""
    return {field: [FacetCount(**one) for one in counts] for field, counts in answer["facets"].items()}


def hits_of(hits: Any) -> list[Hit]:
    """Hits as the server answers them."""
    return [
        Hit(
            id=hit["id"],
            score=hit["score"],
            rank=hit["rank"],
            modality=Modality(hit["modality"]),
            codes=tuple(hit["codes"]),
            text=hit["text"],
            path=hit["path"],
            meta=hit["meta"],
            confidence=hit["confidence"],
            missing=hit["missing"],
            span=None if hit.get("span") is None else (hit["span"][0], hit["span"][1]),
        )
        for hit in hits
    ]
