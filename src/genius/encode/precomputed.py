"""`precomputed`: embeddings made elsewhere, looked up by key; for research.

A table is a file of vectors, `x.safetensors` or `x.npy`, with `x.names.txt` beside it: one key per line, one
line per row. An image is known by its file (`image.info["source"]`, matched from the end of the path, so keys
may be relative to any root), a text by itself, with line breaks and runs of blanks written as one blank. A
source is one table of images, or a folder with `images.*`, `texts.*` or both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open

from genius.encode.base import Array
from genius.errors import BadData, BadInput, ModelNotFound
from genius.weights import check_readable, refuse_pickle

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".safetensors", ".npy")
_ROWS_AT_ONCE = 65_536
_NAMED = 5  # keys that an error names


class VectorTable:
    """Vectors by key. NaN, Inf, repeated keys and a wrong number of keys are refused."""

    def __init__(self, vectors: NDArray[Any], keys: Sequence[str], where: str = "the table") -> None:
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise BadData(
                f"{where}: vectors must be rows of floats (n, dim), not {vectors.dtype} {vectors.shape}"
            )
        if len(vectors) != len(keys):
            raise BadData(f"{where}: {len(vectors)} vectors but {len(keys)} keys; one line per row is wanted")
        self.vectors, self.where = vectors, where
        self.row = {key: row for row, key in enumerate(keys)}
        if len(self.row) != len(keys):
            last = (key for row, key in enumerate(keys) if self.row[key] != row)
            raise BadData(f"{where}: the key {next(last)!r} occurs twice; keep one of its rows")
        for start in range(0, len(vectors), _ROWS_AT_ONCE):
            finite = np.isfinite(vectors[start : start + _ROWS_AT_ONCE]).all(axis=1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                raise BadData(f"{where}: NaN or Inf in row {row} ({keys[row]!r}); make the vectors again")

    def __len__(self) -> int:
        return len(self.row)

    def __contains__(self, key: str) -> bool:
        return key in self.row

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return int(self.vectors.shape[1])

    def lookup(self, keys: Sequence[str]) -> Array:
        """The vectors of `keys`, (n, dim); raises BadInput naming those that are not there."""
        missing = [key for key in keys if key not in self.row]
        if missing:
            named = ", ".join(repr(key) for key in missing[:_NAMED])
            raise BadInput(
                f"{self.where} has no vector for {len(missing)} of {len(keys)} keys, such as {named}; "
                "add them, or use an encoder that can make new vectors"
            )
        return np.asarray(self.vectors[[self.row[key] for key in keys]], dtype=np.float32).reshape(
            -1, self.dim
        )

    def digest(self) -> str:
        """Hex digits that depend on all keys and vectors."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.vectors.dtype}\0{self.vectors.shape}\0".encode())
        digest.update("\n".join(self.row).encode("utf-8", "surrogatepass"))
        for start in range(0, len(self.vectors), _ROWS_AT_ONCE):
            digest.update(np.ascontiguousarray(self.vectors[start : start + _ROWS_AT_ONCE]).data)
        return digest.hexdigest()


class PrecomputedEncoder:
    """Looks vectors up instead of making them; at least one of the tables must be there."""

    def __init__(self, images: VectorTable | None = None, texts: VectorTable | None = None) -> None:
        tables = [table for table in (images, texts) if table is not None]
        if not tables:
            raise BadInput("a precomputed encoder needs a table of images, of texts, or both")
        if len({table.dim for table in tables}) > 1:
            raise BadData(
                f"image vectors are {tables[0].dim} wide, text vectors {tables[1].dim}: "
                "both must share one space"
            )
        self.images, self.texts = images, texts
        self.dim = tables[0].dim

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all keys and vectors."""
        digests = (table.digest() if table else "none" for table in (self.images, self.texts))
        return hashlib.blake2b(" ".join(digests).encode(), digest_size=16).hexdigest()

    def encode_images(self, images: Sequence[Image]) -> Array:
        """Vectors of images by the files they were read from, (n, dim)."""
        if self.images is None:
            raise BadInput("these precomputed vectors are of texts only: add a table of images")
        return self.images.lookup([image_key(image, self.images) for image in images])

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Vectors of texts by the texts themselves, (n, dim)."""
        if self.texts is None:
            raise BadInput("these precomputed vectors are of images only: add a table of texts")
        return self.texts.lookup([text_key(text) for text in texts])


def image_key(image: Image, table: VectorTable) -> str:
    """The key of an image: the longest end of its file's path that the table has, else the whole path."""
    source = image.info.get("source") or getattr(image, "filename", "")
    if not source:
        raise BadInput(
            "precomputed vectors are found by the file of an image, and this image does not know its file: "
            'set image.info["source"] to its key'
        )
    parts = PurePath(str(source)).parts
    ends = (PurePath(*parts[start:]).as_posix() for start in range(len(parts)))
    return next((end for end in (str(source), *ends) if end in table), str(source))


def text_key(text: str) -> str:
    """The key of a text: one line, single blanks."""
    return " ".join(text.split())


def read_vectors(file: Path, names: Path | None = None, tensor: str | None = None) -> VectorTable:
    """The table in `file` with the keys in `names` (default: `x.names.txt` beside `x.npy`).

    `tensor` names the one to take where a safetensors file holds several. An npy file is mapped, not read.
    """
    names = names or file.with_suffix(".names.txt")
    for needed in (file, names):
        if not needed.is_file():
            raise ModelNotFound(
                f"no {needed.name} in {needed.parent}: vectors need {file.name} and {names.name}"
            )
    try:
        keys = names.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise BadData(f"{names} is not UTF-8 ({error}): save it again as such") from None
    vectors = _read_npy(file) if file.suffix == ".npy" else _read_safetensors(file, tensor)
    return VectorTable(vectors, keys, str(file))


def _read_npy(file: Path) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadData(f"{file} is damaged or no npy file of plain numbers ({error}): make it again") from None
    return vectors


def _read_safetensors(file: Path, tensor: str | None) -> NDArray[Any]:
    refuse_pickle(file)
    check_readable(file)
    with safe_open(file, framework="pt") as opened:
        found = list(opened.keys())
        if tensor is None and len(found) == 1:
            tensor = found[0]
        if tensor not in found:
            which = f"no tensor {tensor!r}" if tensor else "several tensors"
            raise BadData(f"{file} holds {which}: it has {', '.join(found) or 'none'}; name the one to take")
        vectors = opened.get_tensor(tensor)
    vectors = vectors.float() if vectors.dtype is torch.bfloat16 else vectors  # numpy has no bfloat16
    return np.asarray(vectors.numpy())


def load(source: str | Path | None, device: str = "cpu") -> PrecomputedEncoder:
    """The vectors in a file (images) or a folder (`images.*`, `texts.*` or both); `device` is ignored."""
    if not source:
        raise ModelNotFound(
            "precomputed needs a source: a file of vectors, or a folder with images.* or texts.*"
        )
    path = Path(source)
    if path.is_dir():
        images, texts = _in_folder(path, "images"), _in_folder(path, "texts")
        if images is None and texts is None:
            wanted = ", ".join(f"images{suffix} or texts{suffix}" for suffix in SUFFIXES)
            raise ModelNotFound(f"no vectors in {path}: it needs {wanted}, each with its names.txt")
        return PrecomputedEncoder(images, texts)
    return PrecomputedEncoder(images=read_vectors(path))


def _in_folder(folder: Path, part: str) -> VectorTable | None:
    files = [folder / f"{part}{suffix}" for suffix in SUFFIXES]
    return next((read_vectors(file) for file in files if file.is_file()), None)
