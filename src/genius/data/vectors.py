"""Items from embeddings that were made elsewhere: `.npy` and `.safetensors` files of one vector a row.

Beside `NAME.npy` (or `.safetensors`) may lie `NAME.jsonl`, a line for each row with the fields of a table
(`id`, `text`, `image`, `meta`, …), or `NAME.txt`, an id for each row. Without either, ids are row numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.lines import json_object, numbered_lines
from genius.data.report import Report, printable
from genius.data.rows import item_of, skip_row
from genius.errors import BadData, BadInput

if TYPE_CHECKING:
    from genius.data.remote import RemotePath
    from genius.types import Item

SUFFIXES = (".npy", ".safetensors")


def read_vectors(file: Path | RemotePath, report: Report) -> Iterator[Item]:
    """The items of a file of embeddings."""

    if not isinstance(file, Path):
        raise BadInput(
            f"{file}: fetch .npy and .safetensors files first, or use Parquet: it is read in place"
        )
    array = _array(file)
    for number, (vector, line) in enumerate(zip_longest(array, _lines(file, len(array)), fillvalue=None)):
        fields: Mapping[str, Any] = {}
        try:
            fields = _fields(line, number)
            item = item_of({**fields, "vector": vector}, file.parent)
        except (ValueError, BadInput) as error:
            skip_row(report, f"{file}:{number + 1}", error, fields)
            continue
        report.read += 1
        yield item


def _array(file: Path) -> NDArray[Any]:
    """The vectors, (n, dim), read from disk as they are used."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False) if file.suffix == ".npy" else _tensor(file)
    except (OSError, ValueError, EOFError) as error:
        raise BadData(f"{printable(file)} cannot be read as vectors: {printable(error)}") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        raise BadData(
            f"{printable(file)} is {array.dtype} {array.shape}: it must be (items, width), one vector a row"
        )
    return np.asarray(array)


def _tensor(file: Path) -> NDArray[Any]:
    """The one matrix in a safetensors file, or the one called `vectors`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            names = list(opened.keys())
            name = "vectors" if "vectors" in names else names[0] if len(names) == 1 else None
            if name is None:
                raise BadData(f"{printable(file)} has several tensors: call the one with the items `vectors`")
            return np.asarray(opened.get_tensor(name))
    except SafetensorError as error:
        raise ValueError(error) from None
    except TypeError as error:  # bfloat16, which NumPy has not
        raise ValueError(f"{error}; save it as float32 or float16") from None


def _lines(file: Path, count: int) -> Iterator[bytes | None]:
    """What is said of each row: lines of the file beside it, which must be as many."""
    for suffix in (".jsonl", ".txt"):
        beside = file.with_suffix(suffix)
        if beside.is_file():
            lines = [line for _, line in numbered_lines(beside)]
            if len(lines) != count:
                raise BadData(
                    f"{printable(beside)} has {len(lines)} lines for the {count} vectors of {file.name}: "
                    "one for each row, in the same order"
                )
            return iter(lines)
    return repeat(None, count)


def _fields(line: bytes | None, number: int) -> Mapping[str, Any]:
    if line is None:
        return {"id": str(number)}
    return json_object(line) if line.lstrip().startswith(b"{") else {"id": line.decode().strip()}
