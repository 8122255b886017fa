"""Items, queries, hits and their modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from genius.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    ImageSource = str | Path | bytes | Image
    VectorSource = Sequence[float] | NDArray[Any]  # an embedding, of any length

DEFAULT_MODEL = "mini"  # the embedded one
ANY = "any"  # every modality is wanted


class Modality(StrEnum):
    """What an item consists of. The order is that of the modality codes."""

    IMAGE = "image"
    TEXT = "text"
    PAIR = "pair"

    @classmethod
    def parse(cls, name: str) -> Modality:
        """The modality called `name`; M-BEIR's `image,text` and `text,image` are pairs."""
        parts = frozenset(part.strip() for part in name.lower().split(","))
        if parts == {"image", "text"}:
            return cls.PAIR
        try:
            return cls(name.strip().lower())
        except ValueError:
            raise BadInput(f"unknown modality {name!r}: use image, text or pair") from None

    @classmethod
    def of(cls, *, image: bool, text: bool) -> Modality:
        """The modality of something that has an image, a text or both."""
        if image and text:
            return cls.PAIR
        if image:
            return cls.IMAGE
        if text:
            return cls.TEXT
        raise BadInput("neither image nor text: give at least one of them")


@dataclass(frozen=True, slots=True)
class Item:
    """Something to be found: an image, a text, or both (a pair).

    With `vector`, its embedding was made elsewhere, and image and text are only shown; an item with nothing
    but a vector counts as a text.
    """

    id: str
    image: ImageSource | None = None
    text: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    vector: VectorSource | None = field(default=None, compare=False, repr=False)

    @property
    def modality(self) -> Modality:
        """Image, text or pair, by the parts that are there."""
        alone = self.vector is not None and self.image is None
        return Modality.of(image=self.image is not None, text=bool(self.text) or alone)


@dataclass(frozen=True, slots=True)
class Query:
    """What to search with: an image, a text or both, or an embedding; and the kind of result wanted.

    `want` is a modality; None is any of them. `instruction` is a sentence that says what kind of result is
    wanted; "" is none, and None leaves it to the engine.
    """

    text: str | None = None
    image: ImageSource | None = None
    want: Modality | None = None
    instruction: str | None = None
    id: str | None = None
    vector: VectorSource | None = field(default=None, compare=False, repr=False)  # instead of text and image

    @property
    def modality(self) -> Modality:
        """Image, text or pair, by the parts that are there; a vector counts as a text."""
        return Modality.of(image=self.image is not None, text=bool(self.text) or self.vector is not None)

    def wanting(self, want: Modality | str | None = None, instruction: str | None = None) -> Query:
        """The query with another `want` (image, text, pair, any, or a sentence) or instruction."""
        wanted = self.want if want is None else want
        sentence = self.instruction if instruction is None else instruction
        if isinstance(wanted, str) and not isinstance(wanted, Modality):
            if " " in wanted.strip():
                if instruction is not None:
                    raise BadInput("two instructions: `want` is a sentence, too; leave one of them out")
                wanted, sentence = self.want, wanted
            else:
                wanted = _wanted_modality(wanted)
        return replace(self, want=wanted, instruction=sentence)

    @classmethod
    def of(cls, query: str | Path | Query) -> Self | Query:
        """A query from a plain string (text) or a path (image)."""
        if isinstance(query, Query):
            return query
        if isinstance(query, list | tuple):
            raise BadInput("search answers one query: call search_batch(queries) for several")
        if not isinstance(query, str | Path):
            raise BadInput(
                f"a query is a text, a path or a Query, not {type(query).__name__}: "
                "use Query(image=...) for an image in memory"
            )
        return cls(image=query) if isinstance(query, Path) else cls(text=query)


def _wanted_modality(want: str) -> Modality | None:
    """The modality of that name, None for any."""
    if want.strip().lower() == ANY:
        return None
    try:
        return Modality.parse(want)
    except BadInput:
        raise BadInput(f"cannot want {want!r}: use image, text, pair, any, or a sentence") from None


@dataclass(frozen=True, slots=True)
class Hit:
    """An item that was found, with its score and codes.

    `score` is the similarity of query and item, at most 1 (with rerank="none", the search's own score); words
    of the query do not change it, only the ranking and `confidence`. That, from 0 to 1, is how often answers
    like it are right; None if the model is not calibrated.
    """

    id: str
    score: float
    rank: int
    modality: Modality
    codes: tuple[int, ...] = ()
    text: str | None = None
    path: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    confidence: float | None = None
    missing: bool = False  # its file is not where it was
    span: tuple[int, int] | None = None  # start and end of the passage that was found, in a text of several

    @property
    def passage(self) -> str | None:
        """The passage that was found, or the whole text if it is not split into passages."""
        return self.text if self.text is None or self.span is None else self.text[slice(*self.span)]


class FacetCount(NamedTuple):
    """A value of a field, and how many items have it."""

    value: str | int | float | bool
    count: int  # type: ignore[assignment]  # of a tuple, nobody counts the elements


Facets = dict[str, list[FacetCount]]  # by field, the most frequent values first
