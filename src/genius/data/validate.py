"""What may be stored of an item: one set of rules for every way in (Python, files, forms, JSON, imports).

Each function returns the value in the form that is stored, or raises BadInput with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.data.report import is_printable, printable
from genius.data.texts import clean_text
from genius.errors import BadInput

MAX_ID = 1000  # characters
MAX_META_DEPTH = 32  # objects and arrays inside each other; serializers give up at a few hundred
MAX_META_CHARS = 1_000_000  # as JSON
MAX_THUMBNAIL = 1 << 20  # bytes; ours have about 20 KB


def valid_id(id: object) -> str:
    """`id`, if it is a string of 1 to MAX_ID printable characters."""
    if not isinstance(id, str):
        raise BadInput(f"the id must be a string, not {type(id).__name__}")
    if not 0 < len(id) <= MAX_ID or not is_printable(id):
        raise BadInput(f"the id must be 1 to {MAX_ID} printable characters")
    return id


def valid_text(text: object) -> str | None:
    """`text`, if it is None or a string that `clean_text` leaves as it is."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadInput(f"the text must be a string, not {type(text).__name__}")
    if not text or clean_text(text).text != text:
        raise BadInput("the text is empty, too long, or has outer blanks, NULs or lone surrogates")
    return text


def valid_meta(meta: object) -> str:
    """`meta` as JSON: an object, not too deep or long, with no NaN and no lone surrogates in it."""
    if not isinstance(meta, Mapping):
        raise BadInput(f"meta must be an object, not {type(meta).__name__}")
    try:
        text = json.dumps(dict(meta), allow_nan=False, sort_keys=True)
        deep = (
            text.count("{") + text.count("[") > MAX_META_DEPTH and _depth(json.loads(text)) > MAX_META_DEPTH
        )
        if "\\ud" in text and not deep:  # surrogates: pairs decode to one character, a half cannot be encoded
            json.dumps(json.loads(text), ensure_ascii=False).encode()
    except RecursionError:
        deep, text = True, ""
    except (TypeError, ValueError) as error:
        raise BadInput(f"meta is not JSON: {printable(error)}") from None
    if deep:
        raise BadInput(f"meta is nested more than {MAX_META_DEPTH} deep")
    if len(text) > MAX_META_CHARS:
        raise BadInput(f"meta has {len(text)} characters as JSON; at most {MAX_META_CHARS} are kept")
    return text


def valid_codes(codes: object, sizes: Sequence[int]) -> NDArray[np.uint16]:
    """`codes` as uint16 (levels,), if there is one for each level and the model has it."""
    try:
        found = np.asarray(codes)
    except (ValueError, OverflowError):  # ragged, or beyond 64 bits
        found = np.zeros(0)
    if found.shape != (len(sizes),) or found.dtype.kind not in "iu":
        raise BadInput(f"its codes must be {len(sizes)} whole numbers")
    if (found < 0).any() or (found >= np.asarray(sizes)).any():
        raise BadInput("its codes do not fit the sizes of the model")
    return found.astype(np.uint16)


def valid_vector(vector: NDArray[Any], dim: int) -> NDArray[np.float16]:
    """`vector` as float16 (dim,), if it has that width and only finite entries."""
    if vector.shape != (dim,):
        raise BadInput(f"its vector has the shape {vector.shape} instead of ({dim},)")
    with np.errstate(over="ignore"):
        half = vector.astype(np.float16, copy=False)
    if not np.isfinite(half).all():
        raise BadInput("its vector has NaN or infinite entries")
    return half


def unit_vector(vector: object, dim: int | None = None) -> NDArray[np.float32]:
    """`vector` scaled to unit length, (dim,), if it is so many finite numbers, not all of them 0."""
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(vector, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        found = np.asarray(0, dtype=np.float32)
    if not found.ndim:
        raise BadInput("the vector must be a list of numbers")
    if found.ndim > 1 or not found.size:
        raise BadInput(
            f"the vector has the shape {found.shape}: give one list of numbers for each item or query"
        )
    if dim not in (None, len(found)):
        raise BadInput(
            f"the vector has {len(found)} numbers where this index has {dim}: embed it with the model of the "
            "items"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.linalg.norm(found.astype(np.float64))
    if not np.isfinite(length):
        raise BadInput("the vector has NaN or infinite entries: embed it again, or leave it out")
    if length == 0:
        raise BadInput("the vector is all zeros, which points nowhere: embed it again, or leave it out")
    return np.asarray(found / length, dtype=np.float32)


def valid_thumbnail(jpeg: bytes) -> bytes:
    """`jpeg`, if it begins like a JPEG and is small."""
    if len(jpeg) > MAX_THUMBNAIL or not jpeg.startswith(b"\xff\xd8\xff"):
        raise BadInput(f"its thumbnail is not a JPEG of at most {MAX_THUMBNAIL} bytes")
    return jpeg


def _depth(value: object) -> int:
    """Objects and arrays inside each other; without recursion."""
    depth, layer = 0, [value]
    while layer := [inner for inner in layer if isinstance(inner, dict | list)]:
        depth += 1
        layer = [child for inner in layer for child in (inner.values() if isinstance(inner, dict) else inner)]
    return depth
