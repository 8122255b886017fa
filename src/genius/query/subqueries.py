"""A query and what it wants as one sub-query, or as one for each modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from genius.data.images import open_image
from genius.data.instructions import engine_instruction
from genius.data.texts import MAX_CHARS, clean_text
from genius.data.validate import unit_vector
from genius.errors import BadInput
from genius.ingest.item import ENCODER_SIDE
from genius.types import Modality, Query

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

    from genius.types import ImageSource


class Subquery(NamedTuple):
    """What is encoded and searched as one; with a modality, only items of that modality are candidates."""

    image: Image | None
    text: str | None
    instruction: str
    modality: Modality | None
    vector: NDArray[np.float32] | None = None  # the embedding itself, unit length

    @property
    def have(self) -> Modality | None:
        """The modality of the query itself; unknown for a vector."""
        if self.vector is not None:
            return None
        return Modality.of(image=self.image is not None, text=self.text is not None)


def subqueries(query: Query, present: list[Modality]) -> list[Subquery]:
    """The sub-queries of `query` in a pool that has items of the modalities `present`.

    One for the modality it wants, or one for each that is present. With a sentence as instruction and no
    modality, items of every modality are candidates of one sub-query, as in the paper's universal setting.
    """
    if query.vector is not None:
        return _vector_subqueries(query, present)
    text = _text(query.text)
    image = _image(query.image)
    have = Modality.of(image=image is not None, text=text is not None)
    wanted = query.want
    instruction = None if query.instruction is None else _text(query.instruction) or ""
    if wanted is None and instruction:
        return [Subquery(image, text, instruction, None)]
    targets = present if wanted is None else [wanted]
    return [
        Subquery(
            image, text, engine_instruction(have, target) if instruction is None else instruction, target
        )
        for target in targets
    ]


def _vector_subqueries(query: Query, present: list[Modality]) -> list[Subquery]:
    """The same for a query that is an embedding: instructions have no part in it."""
    if query.text or query.image is not None:
        raise BadInput("a query is a vector, or text and image: give one of the two")
    if query.instruction:
        raise BadInput("an instruction cannot be added to a vector: embed both together")
    vector = unit_vector(query.vector)
    targets = present if query.want is None else [query.want]
    return [Subquery(None, None, "", target, vector) for target in targets]


def _text(text: str | None) -> str | None:
    if text is None:
        return None
    cleaned = clean_text(text)
    if "cut" in cleaned.flags:
        raise BadInput(f"the text has {len(text):,} characters: shorten it to {MAX_CHARS:,} or fewer")
    if cleaned.flags:
        raise BadInput("the text has NULs or broken Unicode: leave them out")
    return cleaned.text or None


def _image(source: ImageSource | None) -> Image | None:
    return None if source is None else open_image(source, at_least=ENCODER_SIDE)
