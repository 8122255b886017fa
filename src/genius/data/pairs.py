"""Labelled pairs (a query, one of its positives) as tensors on the device, and the sampler of all stages.

Queries and items name their images and texts by row; -1 means that this part is absent. Stage 0 looks the
rows up in tables of pixels and token ids, stages 1 and 2 (`Pairs`) in tables of embeddings. A batch is drawn
without any Python per sample: a fresh permutation of the queries every epoch, and for each query a fresh
positive and a fresh instruction every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import BadInput
from genius.seeding import generator_for

if TYPE_CHECKING:
    from genius.data.training_set import TrainingSet

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32] | NDArray[np.float16]
IMAGE, TEXT, PAIR = range(3)  # the order of types.Modality: the codes of level 0


@dataclass(frozen=True, slots=True)
class PairBatch:
    """The rows of one step: queries, the text and the positive drawn for each."""

    query: Tensor  # (batch,) query rows
    text: Tensor  # (batch,) text rows: the query's text under one of its instructions
    item: Tensor  # (batch,) item rows: one positive of each query


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRows:
    """Labelled queries and the items of their pool, as rows of tables of images and texts (-1: absent)."""

    query_image: Tensor  # (queries,) image rows
    query_text: Tensor  # (all variants,) text rows, one per instruction, query after query
    query_text_start: Tensor  # (queries + 1,) where the variants of each query begin
    positive: Tensor  # (all positives,) item rows, ascending within each query
    positive_start: Tensor  # (queries + 1,) where the positives of each query begin
    positive_key: Tensor  # (all positives,) query * items + item, ascending
    task: Tensor  # (queries,) number of the task the query counts for
    item_image: Tensor  # (items,) image rows
    item_text: Tensor  # (items,) text rows
    item_modality: Tensor  # (items,) IMAGE, TEXT or PAIR
    chance: Tensor | None = None  # (queries,) cumulative probabilities of the queries; None: epochs

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.query_image)

    @property
    def items(self) -> int:
        """How many items there are, positives of some query or not."""
        return len(self.item_image)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.query_image.device

    @property
    def wanted(self) -> Tensor:
        """The modality each query asks for, (queries,): that of its first positive."""
        return self.item_modality[self.positive[self.positive_start[:-1]]]

    @property
    def first_text(self) -> Tensor:
        """The text row of each query under its first instruction, (queries,)."""
        return self.query_text[self.query_text_start[:-1]]

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        held: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: t.to(device) for name, t in held.items() if t is not None})

    def balanced(self, balance: float) -> Self:
        """The same, with tasks drawn by their size to the power `balance`; 1: all queries alike."""
        if balance == 1:
            return replace(self, chance=None)
        sizes = torch.bincount(self.task).double()
        chance = (sizes**balance / sizes.clamp(min=1))[self.task].cumsum(0)
        return replace(self, chance=chance / chance[-1])

    def sample(self, step: int, batch: int, seed: int) -> PairBatch:
        """The batch of a step: the same on every process, and again after a resume."""
        generator = generator_for(self.device, seed, "draw", step)
        if self.chance is None:
            query = self._in_epoch_order(step * batch, batch, seed)
        else:
            query = self._by_chance(self.chance, batch, generator)
        text = _one_of(self.query_text, self.query_text_start, query, generator)
        item = _one_of(self.positive, self.positive_start, query, generator)
        return PairBatch(query, text, item)

    def are_positive(self, query: Tensor, item: Tensor) -> Tensor:
        """Whether each item is a positive of the query beside it; rows of shapes that broadcast, bool."""
        key = query * self.items + item
        place = torch.searchsorted(self.positive_key, key).clamp_(max=len(self.positive_key) - 1)
        return self.positive_key[place] == key

    def _in_epoch_order(self, start: int, count: int, seed: int) -> Tensor:
        """Query rows number `start` … of an endless list in which every epoch is a fresh permutation."""
        rows: list[Tensor] = []
        while count > 0:
            epoch, offset = divmod(start, self.queries)
            rows.append(_epoch_order(self.device, self.queries, seed, epoch)[offset : offset + count])
            start, count = start + len(rows[-1]), count - len(rows[-1])
        return torch.cat(rows)

    def _by_chance(self, chance: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` query rows by stratified sampling: one out of each of `count` equal slices of [0, 1)."""
        slices = torch.arange(count, device=self.device, dtype=torch.float64)
        shift = torch.rand(count, generator=generator, device=self.device, dtype=torch.float64)
        return torch.searchsorted(chance, (slices + shift) / count).clamp_(max=self.queries - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs(PairRows):
    """Labelled pairs with the embeddings of their images and texts; for training and validation alike."""

    images: Tensor  # (n + 1, dim), float32 or float16; the last row, which -1 names, is zero
    texts: Tensor  # (n + 1, dim), float32 or float16; the last row, which -1 names, is zero

    @property
    def dim(self) -> int:
        """Width of the embeddings."""
        return self.images.shape[1]

    def query_parts(self, query: Tensor, text: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Image and text vectors of queries, (n, dim) each, float32; `text` as drawn, else the first one."""
        if text is None:
            text = self.query_text[self.query_text_start[query]]
        return self.images[self.query_image[query]].float(), self.texts[text].float()

    def item_parts(self, item: Tensor) -> tuple[Tensor, Tensor]:
        """Image and text vectors of item rows, (n, dim) each, float32."""
        return self.images[self.item_image[item]].float(), self.texts[self.item_text[item]].float()


def rows_of(data: TrainingSet) -> PairRows:
    """The labelled pairs of a training set, on the CPU."""
    queries, variants = data.query_texts.shape
    return _assemble(
        query_image=data.query_image,
        query_text=data.query_texts.reshape(-1),
        query_text_start=np.arange(queries + 1) * variants,
        owner=np.repeat(np.arange(queries), np.diff(data.offsets)),
        positive=data.positives,
        task=data.query_task,
        item_image=data.item_image,
        item_text=data.item_text,
        item_modality=data.item_modality,
    )


def pairs_of(data: TrainingSet, images: Vectors, texts: Vectors) -> Pairs:
    """Pairs (on the CPU) of a training set whose distinct images and texts have these vectors, (n, dim)."""
    return with_vectors(rows_of(data), images, texts)


def build_pairs(images: Vectors, texts: Vectors, **rows: Any) -> Pairs:
    """Pairs (on the CPU) from tables of distinct vectors, (n, dim) each, and `build_rows`'s rows in them."""
    return with_vectors(build_rows(**rows), images, texts)


def with_vectors(rows: PairRows, images: Vectors, texts: Vectors) -> Pairs:
    """`rows` with the vectors they name, (n, dim) each; float16 stays as it is, all else becomes float32."""
    if not (np.isfinite(images).all() and np.isfinite(texts).all()):
        raise BadInput("NaN or Inf in the vectors: encode them again")
    held = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return Pairs(images=_with_zero_row(images), texts=_with_zero_row(texts), **held)


def build_rows(
    *,
    query_image: Sequence[int],
    query_texts: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    item_image: Sequence[int],
    item_text: Sequence[int],
    item_modality: Sequence[int] | None = None,
    task: Sequence[int] | None = None,
) -> PairRows:
    """Pairs (on the CPU) from rows in tables of distinct images and texts; -1: this part is absent.

    `query_texts` lists for each query one text row per instruction, `positives` its item rows. The modality
    of an item follows from its parts unless given (an encoder that fuses by itself has one vector for all).
    """
    if not len(query_image) or not len(item_image):
        raise BadInput("no query or no item to learn from: check the data of the recipe")
    variants = [list(rows) or [-1] for rows in query_texts]
    images, texts = np.asarray(item_image), np.asarray(item_text)
    has_image, has_text = images >= 0, texts >= 0
    if not (has_image | has_text).all():
        raise BadInput("an item has neither image nor text: leave it out")
    modality = np.where(has_image & has_text, PAIR, np.where(has_image, IMAGE, TEXT))
    return _assemble(
        query_image=np.asarray(query_image),
        query_text=np.concatenate([np.asarray(rows) for rows in variants]),
        query_text_start=np.cumsum([0, *map(len, variants)]),
        owner=np.repeat(np.arange(len(positives)), [len(rows) for rows in positives]),
        positive=np.array([row for rows in positives for row in rows], dtype=np.int64),
        task=np.zeros(len(query_image), dtype=np.int64) if task is None else np.asarray(task),
        item_image=images,
        item_text=texts,
        item_modality=modality if item_modality is None else np.asarray(item_modality),
    )


def _assemble(
    *, owner: Rows, positive: Rows, query_image: Rows, item_image: Rows, **others: Rows
) -> PairRows:
    """Pairs from arrays; the i-th entry of `positive` is an item row, that of `owner` its query."""
    queries, items = len(query_image), len(item_image)
    key = np.unique(owner * items + positive)  # sorted, without repetitions
    start = np.searchsorted(key, np.arange(queries + 1) * items)
    if (alone := np.flatnonzero(np.diff(start) == 0)).size:
        raise BadInput(f"query {alone[0]} has no positive item: leave it out")
    arrays = {
        "query_image": query_image,
        "item_image": item_image,
        "positive": key % items,
        "positive_start": start,
        "positive_key": key,
        **others,
    }
    return PairRows(**{name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()})


@lru_cache(maxsize=2)
def _epoch_order(device: torch.device, count: int, seed: int, epoch: int) -> Tensor:
    """The permutation of an epoch's queries, (count,); kept for the steps that follow."""
    return torch.randperm(count, generator=generator_for(device, seed, "epoch", epoch), device=device)


def _one_of(flat: Tensor, start: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """One entry of each row's list, drawn evenly, (n,)."""
    first = start[rows]
    count = start[rows + 1] - first
    share = torch.rand(len(rows), generator=generator, device=flat.device)
    return flat[first + torch.minimum((share * count).long(), count - 1)]


def _with_zero_row(vectors: Vectors) -> Tensor:
    kind = np.float16 if vectors.dtype == np.float16 else np.float32
    table = np.zeros((len(vectors) + 1, vectors.shape[1]), kind)
    table[:-1] = vectors
    return torch.from_numpy(table)
