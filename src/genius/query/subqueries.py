"""A query and what it wants as one sub-query, or as one for each modality."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from genius.data.images import open_image
from genius.data.instructions import default_instruction
from genius.data.texts import MAX_CHARS, clean_text
from genius.errors import BadInput
from genius.ingest.item import ENCODER_SIDE
from genius.types import Modality, Query

if TYPE_CHECKING:
    from PIL.Image import Image

    from genius.types import ImageSource

ANY = "any"


class Subquery(NamedTuple):
    """What is encoded and searched as one; with a modality, only items of that modality are candidates."""

    image: Image | None
    text: str | None
    instruction: str
    modality: Modality | None


def subqueries(query: Query, want: Modality | str | None, present: list[Modality]) -> list[Subquery]:
    """The sub-queries of `query` in a pool that has items of the modalities `present`.

    `want` (or the query's own) is image, text or pair: one sub-query with the default instruction for it.
    `any`, or nothing: one for each modality that is present. An instruction in words: one sub-query with
    items of every modality as candidates, as in the paper's universal setting.
    """
    text = _text(query.text)
    image = _image(query.image)
    have = Modality.of(image=image is not None, text=text is not None)
    wanted, instruction = _wanted(query, want)
    if wanted is not None:
        return [Subquery(image, text, instruction or default_instruction(have, wanted), wanted)]
    if instruction is not None:
        return [Subquery(image, text, instruction, None)]
    return [Subquery(image, text, default_instruction(have, modality), modality) for modality in present]


def _wanted(query: Query, want: Modality | str | None) -> tuple[Modality | None, str | None]:
    """The modality that is wanted, if one is, and the user's own instruction, if there is one."""
    if want is None or isinstance(want, Modality):
        return want or query.want, query.instruction
    if want.strip().lower() == ANY:
        return None, None
    if " " in want.strip():
        return query.want, _text(want)
    return Modality.parse(want), query.instruction


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
