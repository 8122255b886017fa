"""The compiled form of `genius.search.cells` and of the re-ranking after it: C, called through ctypes.

The library is built when the package is installed, where there is a C compiler (`hatch_build.py`); without it
everything works in NumPy. `GENIUS_KERNEL=numpy` does so where it is there.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char, c_char_p, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.search.arrays import Bools, Floats, Ints
from genius.search.candidates import Candidates
from genius.search.cells import CellCodebooks, Cells, parents_kept
from genius.search.kernel.build import LIBRARY
from genius.search.rank import RankedItems
from genius.search.trie import ItemFilter, Trie

VERSION = 7  # of the kernel: a library that was built from another one is not used
BLOCK, WIDTH, TABLE = 64, 8, 256  # see tables.c: code vectors together, numbers of each, codes of a level
STEP = 32  # see lengths.c
NO_MEMORY, NO_VECTOR = -1, -2


class _Pool(ctypes.Structure):
    """`Pool` of kernel.h."""

    _fields_ = (
        ("items", c_int64),
        *((name, c_int32) for name in ("levels", "depth", "width", "code_at", "row_at", "row_bytes")),
        *((name, c_int32) for name in ("dim", "cell_codes")),
        *((name, c_void_p) for name in ("sizes", "records", "start")),
        ("nearest", c_int64),
        *((name, c_void_p) for name in ("inverse", "prefix_inverse", "coarse", "fine")),
        *((name, c_void_p) for name in ("factor", "vectors", "whole")),
        *((name, c_float) for name in ("whole_unit", "inverse_unit")),
    )


class _Request(ctypes.Structure):
    """`Request` of kernel.h."""

    _fields_ = (
        *((name, c_int64) for name in ("beam", "parents", "leaves", "limit", "margin")),
        *((name, c_void_p) for name in ("modalities", "mask", "count_before", "listed")),
        ("z", c_char_p),  # copies of vectors: making a pointer takes longer
        ("phi", c_char_p),
        ("vectors", c_void_p),
        *((name, c_int64) for name in ("rows", "dim", "k")),
    )


class _Seen(ctypes.Structure):
    """`Seen` of kernel.h."""

    _fields_ = tuple((name, c_int64) for name in ("beams", "leaves"))


@cache
def load_kernel(file: Path = LIBRARY) -> ctypes.CDLL | None:
    """The compiled library, or None where it was not built."""
    if os.environ.get("GENIUS_KERNEL") == "numpy" or not file.exists():
        return None
    try:
        library = ctypes.CDLL(str(file))
    except OSError:  # built for another system
        return None
    if library.genius_kernel_version() != VERSION:
        return None
    for function in (library.genius_candidates, library.genius_search, library.genius_kernel_quad):
        function.restype = c_int64
    library.genius_read_parts.restype = c_int64
    library.genius_read_parts.argtypes = (c_int32, c_void_p, c_int64, c_int64, c_void_p, c_void_p)
    return library


class CompiledCells:
    """The cells of a trie as the library takes them."""

    def __init__(self, library: ctypes.CDLL, cells: Cells) -> None:
        self.library, self.cells = library, cells
        books, layout = cells.books, cells.layout
        coarse, fine, factor = _blocks(books, int(library.genius_kernel_quad()))
        arrays: dict[str, NDArray[Any]] = {
            "sizes": np.array(books.sizes, dtype=np.int32),
            "records": np.ascontiguousarray(cells.records),
            "start": cells.start,
            "inverse": cells.inverse,
            "prefix_inverse": np.array([array.ctypes.data for array in cells.prefix_inverse], dtype=np.uintp),
            "coarse": coarse,
            "fine": fine,
            "factor": factor,
            "vectors": books.codebooks.vectors,
            "whole": _padded(books.rounded.vectors),
        }
        self._arrays = arrays  # the library has pointers to these
        self._levels, self._vectors = len(books.sizes), (np.empty(0, np.float16), 0)
        self._pool = _Pool(
            items=cells.items,
            levels=self._levels,
            depth=books.depth,
            width=layout.width,
            code_at=books.depth - cells.tree_levels,
            row_at=layout.below + layout.high_bytes,
            row_bytes=layout.row_bytes,
            dim=books.codebooks.dim,
            cell_codes=sum(books.sizes[: books.depth]),
            nearest=cells.nearest,
            whole_unit=books.unit,
            inverse_unit=books.inverse_unit,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )

    @property
    def nbytes(self) -> int:
        """Bytes that a search reads beside those of the trie: the cells and the code vectors."""
        books = ("sizes", "coarse", "fine", "factor", "vectors", "whole")
        return self.cells.nbytes + sum(self._arrays[name].nbytes for name in books)

    def candidates(
        self,
        trie: Trie,
        z: Floats,
        beam: int,
        *,
        leaves: int,
        limit: int,
        modalities: Bools | None = None,
        allowed: ItemFilter | None = None,
    ) -> Candidates:
        """`genius.search.cells:cell_candidates`; positions only, all scores are 0."""
        request, kept = self._request(z, beam, leaves, limit, modalities, allowed)
        found, seen = np.empty(request.limit, dtype=np.int64), _Seen()
        count = self._call(self.library.genius_candidates, request, found, seen)
        del kept
        return Candidates(np.sort(found[:count]), np.zeros(count, np.float32), seen.beams, seen.leaves)

    def search(
        self,
        trie: Trie,
        z: Floats,
        beam: int,
        *,
        leaves: int,
        limit: int,
        k: int,
        modalities: Bools | None = None,
        allowed: ItemFilter | None = None,
        phi: Floats | None = None,
        vectors: NDArray[np.float16] | None = None,
    ) -> RankedItems:
        """The `k` best candidates, best first: by <phi, vector> if `vectors` are given, else by codes."""
        request, kept = self._request(z, beam, leaves, limit, modalities, allowed)
        if vectors is not None and phi is not None:
            known = self._vectors  # a pointer takes long to make, and mostly the array is that of last time
            if known[0] is not vectors:
                known = self._vectors = vectors, vectors.ctypes.data
            request.phi, request.vectors = phi.tobytes(), known[1]
            request.rows, request.dim = vectors.shape
        request.k, levels, seen = k, self._levels, _Seen()
        first = request.limit + k  # after the positions: rows, scores and codes, see rank.c
        out = np.empty(first + k + (k + 1) // 2 + (k * levels + 3) // 4 + 1, dtype=np.int64)
        count = self._call(self.library.genius_search, request, out, seen)
        del kept
        if count == NO_VECTOR:
            raise IndexError(f"there are vectors of {request.rows} items only")
        scores_at = 8 * (first + k)  # bytes
        return RankedItems(
            out[first : first + count],
            np.ndarray(count, np.float32, out, scores_at),
            np.ndarray((count, levels), np.uint16, out, scores_at + 4 * k),
            seen.beams,
            seen.leaves,
        )

    def _request(
        self,
        z: Floats,
        beam: int,
        leaves: int,
        limit: int,
        modalities: Bools | None,
        allowed: ItemFilter | None,
    ) -> tuple[_Request, Any]:
        """The request, and what has to live as long as it is used."""
        limit = min(limit, self.cells.items)
        request = _Request(
            min(self.cells.kept(beam), self.cells.items),
            parents_kept(beam),
            leaves,
            limit,
            self.cells.margin(beam),
        )
        request.z = z.tobytes()
        if modalities is not None:
            modalities = np.ascontiguousarray(modalities)
            request.modalities = modalities.ctypes.data
        if allowed is not None:
            request.mask, request.count_before = allowed.mask.ctypes.data, allowed.count_before.ctypes.data
            if allowed.positions is not None:
                request.listed = allowed.positions.ctypes.data
        return request, (z, modalities, allowed)

    def _call(self, function: Any, request: _Request, out: Ints, seen: _Seen) -> int:
        found = ctypes.byref(c_char.from_buffer(out.data))
        count = int(function(ctypes.byref(self._pool), ctypes.byref(request), found, ctypes.byref(seen)))
        if count == NO_MEMORY:
            raise MemoryError("no memory for a search")
        return count


def _padded(vectors: Floats) -> NDArray[np.int16]:
    """Whole numbers as lengths.c reads them."""
    out = np.zeros((len(vectors), vectors.shape[1] + -vectors.shape[1] % STEP), np.int16)
    out[:, : vectors.shape[1]] = vectors
    return out


def _blocks(books: CellCodebooks, quad: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
    """Code vectors of cells and of the levels below in the order of tables.c, and the factors of both."""
    levels, dim = books.codebooks.levels, books.codebooks.dim
    split = sum(books.sizes[: books.depth])
    coarse = np.zeros((split + -split % BLOCK, dim + -dim % WIDTH), np.int8)
    coarse[:split, :dim] = books.small[:split]
    fine = np.zeros((TABLE * (len(levels) - books.depth), coarse.shape[1]), np.int8)
    factor = np.zeros(len(coarse) + len(fine), np.float32)
    factor[:split] = books.factor[:split]
    for number, level in enumerate(levels[books.depth :]):
        own = slice(TABLE * number, TABLE * number + books.sizes[books.depth + number])
        fine[own, :dim] = books.small[level]
        factor[len(coarse) :][own] = books.factor[level]
    pairs = (fine + 8).astype(np.uint8).reshape(len(fine), fine.shape[1] // (2 * quad), 2, quad)
    halves = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(fine), fine.shape[1] // 2)
    return (
        _in_blocks((coarse.astype(np.int16) + 128).astype(np.uint8), quad),
        _in_blocks(halves.astype(np.uint8), quad),
        factor,
    )


def _in_blocks(rows: NDArray[np.uint8], quad: int) -> NDArray[np.uint8]:
    """BLOCK rows at a time: `quad` bytes of each, then the next."""
    split = rows.reshape(-1, BLOCK, rows.shape[1] // quad, quad)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))
