"""Requests and responses of the API, as the OpenAPI document shows them."""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from genius.data.texts import MAX_CHARS
from genius.data.validate import MAX_ID, valid_meta
from genius.errors import BadInput
from genius.filter.grammar import MAX_CHARS as MAX_FILTER
from genius.query.facets import MAX_FACETS
from genius.serve.limits import Limits
from genius.types import Modality

MAX_INSTRUCTION = 1000
MAX_WIDTH = 1 << 16  # numbers of a vector
MAX_CURSOR = 20_000  # of a search, with the rows that were shown
MAX_LIST_CURSOR = 200  # in an address, which has to be short


def _image_bytes(value: Any) -> Any:
    """The bytes of an uploaded file, or of base64 (with or without `data:…;base64,` before it)."""
    if not isinstance(value, str):
        return value
    if "://" in value[:16]:
        raise ValueError("URLs are not fetched: send the image itself, as base64 or as an uploaded file")
    head, comma, rest = value[:100].partition(",")
    encoded = value[len(head) + 1 :] if comma and head.startswith("data:") else value
    del rest
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not base64: send the bytes of an image file, encoded as base64") from None


def _storable(meta: dict[str, Any]) -> dict[str, Any]:
    try:
        valid_meta(meta)
    except BadInput as error:
        raise ValueError(str(error)) from None
    return meta


def _capped(name: str) -> AfterValidator:
    """At most what the server's limits say; they come with the validation."""

    def check(value: int | None, info: ValidationInfo) -> int | None:
        limits = info.context if isinstance(info.context, Limits) else Limits()
        cap = int(getattr(limits, name))
        if value is not None and value > cap:
            raise ValueError(f"{value} is over the cap of this server: at most {cap}")
        return value

    return AfterValidator(check)


ImageBytes = Annotated[
    bytes,
    BeforeValidator(_image_bytes),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "description": "An image file."}),
]
Want = Literal["image", "text", "pair", "any"]
Where = Annotated[
    str,
    Field(max_length=MAX_FILTER, description="Only items that pass this filter: price < 50 and not sold."),
]
FACETS = "Fields whose values are counted; in a form, with commas between them."
FacetNames = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_ID)]],
    BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    Field(max_length=MAX_FACETS),
]


class SearchRequest(BaseModel):
    """What to look for: a text, an image, a stored item, or several of them together."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = Field(None, max_length=MAX_CHARS, description="What to look for.")
    image: ImageBytes | None = Field(None, description="An image to look for, alone or with the text.")
    vector: list[float] | None = Field(
        None, max_length=MAX_WIDTH, description="An embedding to look for, instead of text and image."
    )
    like: str | None = Field(
        None, max_length=MAX_ID, description="Id of a stored item to start from; it is not among the hits."
    )
    want: Want = Field("any", description="The kind of result.")
    instruction: str | None = Field(
        None,
        max_length=MAX_INSTRUCTION,
        description="A sentence on what kind of result is wanted; empty: none; absent: the default.",
    )
    at_least: float | None = Field(None, ge=0, le=1, description="Leave out hits below this confidence.")
    k: Annotated[int, _capped("hits")] = Field(
        20, ge=1, validation_alias=AliasChoices("k", "limit"), description="How many hits (or: limit)."
    )
    beam: Annotated[int | None, _capped("beam")] = Field(
        None, ge=1, description="How many prefixes of codes are kept per level."
    )
    search: Literal["generate", "lookup", "both"] | None = Field(None, description="How items are found.")
    rerank: Literal["none", "codes", "vectors"] | None = Field(
        None, description="What re-ranks the candidates."
    )
    match: str | None = Field(
        None, max_length=MAX_INSTRUCTION, description="Words that must occur in the text or id of an item."
    )
    hybrid: bool | None = Field(
        None, description="Whether items with words of the text rank higher; null: only for text alone."
    )
    where: Where | None = None
    offset: int = Field(0, ge=0, description="Skip this many of the best hits.")
    cursor: str | None = Field(
        None,
        max_length=MAX_CURSOR,
        description="From the last response, for the next page of the same search.",
    )
    facets: FacetNames = Field(default_factory=list, description=FACETS)

    @model_validator(mode="after")
    def _not_too_deep(self, info: ValidationInfo) -> SearchRequest:
        limits = info.context if isinstance(info.context, Limits) else Limits()
        if self.offset + self.k > limits.depth:
            raise ValueError(f"offset and k are {self.offset + self.k} together: at most {limits.depth}")
        return self

    @model_validator(mode="after")
    def _asks_something(self) -> SearchRequest:
        there = (self.text or "").strip() or self.image is not None or self.like is not None
        if self.vector is not None and there:
            raise ValueError("a vector is the whole query: leave out text, image and `like`")
        if self.vector is None and not there:
            raise ValueError(
                "nothing to look for: give a text, an image, a vector, or `like` with the id of an item"
            )
        return self


class ItemResponse(BaseModel):
    """A stored item."""

    id: str
    modality: Modality
    codes: list[int]
    text: str | None = None
    image: bool = Field(description="Whether it has a picture: see its thumbnail.")
    meta: dict[str, Any]
    path: str | None = Field(None, description="Its file; shown only by a server without a key.")


class HitResponse(ItemResponse):
    """An item that was found."""

    score: float = Field(description="Similarity of query and item; words do not change it.")
    confidence: float | None = Field(
        description="How often such answers are right, from 0 to 1; null if the model is not calibrated."
    )
    rank: int
    missing: bool = Field(False, description="Whether its file is missing.")
    span: tuple[int, int] | None = Field(
        None,
        description="Start and end, in code points, of the passage of `text` that was found; null where the "
        "text is not in passages.",
    )


class FacetValue(BaseModel):
    """A value of a field, and how many items have it."""

    value: str | int | float | bool
    count: int


class SearchResponse(BaseModel):
    """Hits, best first, and what it took to find them."""

    hits: list[HitResponse]
    nearest: list[HitResponse] = Field(description="The best items, if no hit reaches `at_least`.")
    took_ms: float
    generation: int = Field(description="Generation of the arrays that were searched.")
    changes: int = Field(description="Number of committed changes of the index that was searched.")
    beams: int = Field(description="Prefixes of codes the search ended with.")
    leaves: int = Field(description="Items under them.")
    batch: int = Field(description="Searches that were answered together.")
    pool: int = Field(description="Items that match the filter and `want`.")
    facets: dict[str, list[FacetValue]] = Field(
        description="For each field asked for, its most frequent values among the first 200 answers."
    )
    cursor: str | None = Field(description="Send it with the same search for the next page; null at the end.")
    unknown_fields: list[str] = Field(
        description="If no item matches the filter: its fields that no item has, perhaps misspelt."
    )


class ListResponse(BaseModel):
    """Stored items, in the order they were added."""

    items: list[ItemResponse]
    total: int = Field(description="Items that match the filter.")
    facets: dict[str, list[FacetValue]] = Field(
        description="For each field asked for, its most frequent values among all these items."
    )
    cursor: str | None = Field(description="Send it with the same filter for the next page; null at the end.")


class NewItem(BaseModel):
    """An item to add, or to replace the one with the same id."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(
        "", min_length=1, max_length=MAX_ID, description="Without one, an id is derived from the content."
    )
    text: str | None = None
    image: ImageBytes | None = None
    vector: list[float] | None = Field(
        None, max_length=MAX_WIDTH, description="Its embedding, if that was made elsewhere."
    )
    meta: Annotated[dict[str, Any], AfterValidator(_storable)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _named(self) -> NewItem:
        if not self.id:
            text = blake2b((self.text or "").encode(errors="replace"))
            self.id = blake2b(self.image or b"", digest_size=8, key=text.digest()).hexdigest()
        return self


class ItemPatch(BaseModel):
    """Changes to an item; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = Field(None, description="A new text; an empty one removes it from a pair.")
    image: ImageBytes | None = Field(None, description="A new image.")
    meta: Annotated[dict[str, Any], AfterValidator(_storable)] = Field(
        default_factory=dict, description="New values of these entries; null removes one."
    )


class AddRequest(BaseModel):
    """Items to add."""

    model_config = ConfigDict(extra="forbid")

    items: list[NewItem] = Field(min_length=1)

    @model_validator(mode="after")
    def _few_enough(self, info: ValidationInfo) -> AddRequest:
        limits = info.context if isinstance(info.context, Limits) else Limits()
        if len(self.items) > limits.items:
            raise ValueError(f"{len(self.items)} items in one request: at most {limits.items}")
        return self


class SkippedItem(BaseModel):
    """An item that was not added, and why."""

    id: str
    reason: str


class AddResponse(BaseModel):
    """What became of the items."""

    added: int
    updated: int
    unchanged: int
    repeated: int
    skipped: list[SkippedItem]
    ids: list[str] = Field(description="The ids of the items, in the order in which they were sent.")


class RemoveResponse(BaseModel):
    """How many items were removed."""

    removed: int


class ChildCode(BaseModel):
    """One code more: how many items have it, and some of them."""

    code: int
    items: int
    some: list[ItemResponse]


class CodesResponse(BaseModel):
    """The items under a prefix of codes."""

    prefix: list[int]
    levels: int
    items: int
    codes: list[ChildCode] = Field(description="How the prefix goes on, the largest first.")
    first: list[ItemResponse]


class StatsResponse(BaseModel):
    """What is in the index, and the caps of this server."""

    model_config = ConfigDict(extra="allow")

    items: int
    modalities: dict[str, int]
    generation: int
    changes: int
    levels: int
    model: str
    limits: dict[str, int]


class Health(BaseModel):
    """Health of the server."""

    status: Literal["ok", "ready", "loading", "stuck", "stopping", "failed"]


class Problem(BaseModel):
    """What is wrong, and what to do."""

    detail: str
