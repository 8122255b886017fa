"""Identifiers of generative baselines: numbers, strings, paths in a tree of clusters, residual codes.

Each function gives n items distinct rows of codes (n, levels), and the number of codes of each level.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from genius.quantize.codebooks import kmeans, nearest_in_chunks

Floats = NDArray[np.float32]
LETTERS = 26


class Identifiers(NamedTuple):
    """Codes of items and the number of codes of each level."""

    codes: NDArray[np.int64]  # (n, levels)
    sizes: tuple[int, ...]


def numbers(count: int) -> Identifiers:
    """The items' numbers, digit by digit."""
    digits = max(1, len(str(max(count - 1, 0))))
    powers = 10 ** np.arange(digits - 1, -1, -1)
    return Identifiers(np.arange(count)[:, None] // powers % 10, (10,) * digits)


def strings(ids: Sequence[str], seed: int = 0) -> Identifiers:
    """A word of letters for each id, drawn by a hash of it; long enough for all to differ."""
    length = max(2, int(np.ceil(2 * np.log(max(len(ids), 2)) / np.log(LETTERS))))
    used: set[bytes] = set()
    words = []
    for name in ids:
        attempt = 0
        while True:
            text = f"{seed} {attempt} {name}".encode(errors="surrogatepass")
            word = bytes(byte % LETTERS for byte in hashlib.blake2b(text, digest_size=length).digest())
            if word not in used:
                break
            attempt += 1
        used.add(word)
        words.append(np.frombuffer(word, dtype=np.uint8))
    codes = np.array(words, dtype=np.int64).reshape(len(ids), length)
    return Identifiers(codes, (LETTERS,) * length)


def cluster_paths(vectors: Floats, branches: int = 10, leaf: int = 10, seed: int = 0) -> Identifiers:
    """The path of each item in a tree of k-means clusters, then its number within its leaf.

    A cluster of more than `leaf` items is split into `branches`. A shorter path is padded with zeros.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(np.ascontiguousarray(vectors))
    paths: list[tuple[int, ...]] = [()] * len(x)

    def split(rows: torch.Tensor, path: tuple[int, ...]) -> None:
        members = torch.zeros(len(rows), dtype=torch.long)
        if len(rows) > leaf:
            members = nearest_in_chunks(x[rows], kmeans(x[rows], branches, generator, rounds=10))
        groups = torch.unique(members)
        if len(groups) == 1:  # small enough, or all equal
            for number, row in enumerate(rows.tolist()):
                paths[row] = (*path, number)
            return
        for group in groups.tolist():
            split(rows[members == group], (*path, group))

    split(torch.arange(len(x)), ())
    depth = max(map(len, paths), default=1)
    codes = np.zeros((len(x), depth), dtype=np.int64)
    for row, path in enumerate(paths):
        codes[row, : len(path) - 1] = path[:-1]
        codes[row, -1] = path[-1]  # the number within the leaf is always last
    last = int(codes[:, -1].max(initial=0)) + 1
    return Identifiers(codes, (*(branches,) * (depth - 1), last))


def own_codes(paths: Identifiers) -> Identifiers:
    """The same tree with a distinct code for every node of a level, so that no two clusters share one."""
    codes = np.empty_like(paths.codes)
    sizes = []
    for level in range(paths.codes.shape[1] - 1):
        _, codes[:, level] = np.unique(paths.codes[:, : level + 1], axis=0, return_inverse=True)
        sizes.append(int(codes[:, level].max(initial=0)) + 1)
    codes[:, -1] = paths.codes[:, -1]
    return Identifiers(codes, (*sizes, paths.sizes[-1]))


def residual_codes(vectors: Floats, levels: int = 4, size: int = 256, seed: int = 0) -> Identifiers:
    """Plain residual k-means codes, then a number among the items that share them."""
    generator = torch.Generator().manual_seed(seed)
    residual = torch.from_numpy(np.ascontiguousarray(vectors)).clone()
    columns = []
    for _ in range(levels):
        centres = kmeans(residual, min(size, len(residual)), generator)
        code = nearest_in_chunks(residual, centres)
        residual -= centres[code]
        columns.append(code.numpy())
    codes = np.stack(columns, axis=1)
    order = np.lexsort(codes.T[::-1])
    same = np.zeros(len(codes), dtype=bool)
    same[1:] = (codes[order][1:] == codes[order][:-1]).all(axis=1)
    position = np.arange(len(codes))
    first = np.maximum.accumulate(np.where(same, 0, position))
    number = np.empty(len(codes), dtype=np.int64)
    number[order] = position - first
    sizes = (*(min(size, len(vectors)),) * levels, int(number.max(initial=0)) + 1)
    return Identifiers(np.column_stack([codes, number]).astype(np.int64), sizes)
