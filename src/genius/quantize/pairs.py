"""Queries, items and which belongs to which, as tensors on the device: what stages 1 and 2 learn from.

Vectors are kept once in two tables (images, texts) and named by row; row 0 of each is the zero vector of an
absent part. A batch is drawn without any Python per sample: a fresh order of the queries every epoch, and for
each query a fresh positive and a fresh instruction every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genius.errors import BadInput
from genius.training.distributed import my_part
from genius.training.schedule import generator_for

if TYPE_CHECKING:
    from genius.data.training_set import TrainingSet

IMAGE, TEXT, PAIR = range(3)  # the order of types.Modality: the codes of level 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One draw for all processes together; `part` are the rows of this process."""

    query: Tensor  # (batch,) query rows
    text: Tensor  # (batch,) row of the text drawn for the query: its words under one of the instructions
    item: Tensor  # (batch,) item rows: one positive of each query
    part: slice


@dataclass(frozen=True, slots=True)
class Pairs:
    """Labelled queries and a pool of items with their vectors; for training and for validation alike."""

    images: Tensor  # (1 + n, dim); row 0 is zero
    texts: Tensor  # (1 + n, dim); row 0 is zero
    query_image: Tensor  # (queries,) rows of images
    query_text: Tensor  # (all variants,) rows of texts, query after query
    query_text_start: Tensor  # (queries + 1,) where the variants of each query begin
    positive: Tensor  # (all positives,) item rows, ascending within each query
    positive_start: Tensor  # (queries + 1,)
    positive_key: Tensor  # (all positives,) query * items + item, ascending
    task: Tensor  # (queries,) number of the table row the query counts for
    item_image: Tensor  # (items,) rows of images
    item_text: Tensor  # (items,) rows of texts
    item_modality: Tensor  # (items,) IMAGE, TEXT or PAIR
    chance: Tensor | None = None  # (queries,) rising to 1: the summed chances of the queries; None: epochs

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return len(self.query_image)

    @property
    def items(self) -> int:
        """How many items there are, positives of some query or not."""
        return len(self.item_image)

    @property
    def dim(self) -> int:
        """Width of the vectors."""
        return self.images.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.images.device

    @property
    def wanted(self) -> Tensor:
        """The modality each query asks for, (queries,): that of its first positive."""
        return self.item_modality[self.positive[self.positive_start[:-1]]]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Pairs:
        """The same on another device; `dtype` narrows the vectors, which are widened again where used."""
        held: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: tensor.to(device) for name, tensor in held.items() if tensor is not None}
        for name in ("images", "texts"):
            moved[name] = moved[name].to(dtype or moved[name].dtype)
        return Pairs(**moved)

    def balanced(self, balance: float) -> Pairs:
        """The same, with tasks drawn by their size to the power `balance`; 1: all queries alike."""
        if balance == 1:
            return replace(self, chance=None)
        sizes = torch.bincount(self.task).double()
        chance = (sizes**balance / sizes.clamp(min=1))[self.task].cumsum(0)
        return replace(self, chance=chance / chance[-1])

    def sample(self, step: int, batch: int, seed: int) -> Batch:
        """The batch of a step: the same on every process, and again after a resume."""
        generator = generator_for(self.device, seed, "draw", step)
        if self.chance is None:
            query = self._in_epoch_order(step * batch, batch, seed)
        else:
            query = self._by_chance(self.chance, batch, generator)
        text = _one_of(self.query_text, self.query_text_start, query, generator)
        item = _one_of(self.positive, self.positive_start, query, generator)
        return Batch(query, text, item, my_part(batch))

    def query_parts(self, query: Tensor, text: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Image and text vectors of queries, each (n, dim) float32; `text` as drawn, else the first one."""
        if text is None:
            text = self.query_text[self.query_text_start[query]]
        return self.images[self.query_image[query]].float(), self.texts[text].float()

    def item_parts(self, item: Tensor) -> tuple[Tensor, Tensor]:
        """Image and text vectors of item rows, each (n, dim) float32."""
        return self.images[self.item_image[item]].float(), self.texts[self.item_text[item]].float()

    def are_positive(self, query: Tensor, item: Tensor) -> Tensor:
        """Whether each item is a positive of the query beside it; rows of shapes that broadcast, bool."""
        asked = query * self.items + item
        place = torch.searchsorted(self.positive_key, asked).clamp_(max=len(self.positive_key) - 1)
        return self.positive_key[place] == asked

    def _in_epoch_order(self, start: int, count: int, seed: int) -> Tensor:
        """Query rows number `start` … of an endless list in which every epoch is a fresh permutation."""
        rows: list[Tensor] = []
        while count > 0:
            epoch, offset = divmod(start, self.queries)
            rows.append(_epoch_order(self.device, self.queries, seed, epoch)[offset : offset + count])
            start, count = start + len(rows[-1]), count - len(rows[-1])
        return torch.cat(rows)

    def _by_chance(self, chance: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """`count` query rows, one out of each of as many equal slices: every task gets its share."""
        slices = torch.arange(count, device=self.device, dtype=torch.float64)
        shift = torch.rand(count, generator=generator, device=self.device, dtype=torch.float64)
        return torch.searchsorted(chance, (slices + shift) / count).clamp_(max=self.queries - 1)


def pairs_of(data: TrainingSet, images: NDArray[np.float32], texts: NDArray[np.float32]) -> Pairs:
    """Pairs (on the CPU) of a training set whose distinct images and texts have these vectors, (n, dim)."""
    return build_pairs(
        images,
        texts,
        query_image=data.query_image.tolist(),
        query_texts=data.query_texts.tolist(),
        positives=[part.tolist() for part in np.split(data.positives, data.offsets[1:-1])],
        item_image=data.item_image.tolist(),
        item_text=data.item_text.tolist(),
        item_modality=data.item_modality.tolist(),
        task=data.query_task.tolist(),
    )


def build_pairs(
    images: NDArray[np.float32],
    texts: NDArray[np.float32],
    *,
    query_image: Sequence[int],
    query_texts: Sequence[Sequence[int]],
    positives: Sequence[Sequence[int]],
    item_image: Sequence[int],
    item_text: Sequence[int],
    item_modality: Sequence[int] | None = None,
    task: Sequence[int] | None = None,
) -> Pairs:
    """Pairs (on the CPU) from tables of unique vectors, (n, dim) each, and rows in them; -1: part is absent.

    `query_texts` lists for each query one text row per instruction, `positives` its item rows. The modality
    of an item follows from its parts unless given (an encoder that fuses by itself has one vector for all).
    """
    if not len(query_image) or not len(item_image):
        raise BadInput("no query or no item to learn from: check the data of the recipe")
    if not (np.isfinite(images).all() and np.isfinite(texts).all()):
        raise BadInput("NaN or Inf in the vectors: encode them again")
    variants = [list(rows) or [-1] for rows in query_texts]
    answers = [sorted(set(rows)) for rows in positives]
    if not all(answers):
        raise BadInput(f"query {answers.index([])} has no positive item: leave it out")
    item_images, item_texts = _rows(item_image), _rows(item_text)
    has_image, has_text = item_images > 0, item_texts > 0
    if not bool((has_image | has_text).all()):
        raise BadInput("an item has neither image nor text: leave it out")
    modality = torch.where(has_image & has_text, PAIR, torch.where(has_image, IMAGE, TEXT))
    if item_modality is not None:
        modality = torch.tensor(list(item_modality))
    positive, positive_start = torch.tensor([row for rows in answers for row in rows]), _starts(answers)
    owner = torch.arange(len(answers)).repeat_interleave(positive_start.diff())
    return Pairs(
        images=_table(images),
        texts=_table(texts),
        query_image=_rows(query_image),
        query_text=_rows([row for rows in variants for row in rows]),
        query_text_start=_starts(variants),
        positive=positive,
        positive_start=positive_start,
        positive_key=owner * len(item_image) + positive,
        task=torch.zeros(len(query_image), dtype=torch.long) if task is None else torch.tensor(list(task)),
        item_image=item_images,
        item_text=item_texts,
        item_modality=modality,
    )


@lru_cache(maxsize=2)
def _epoch_order(device: torch.device, count: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch asks its queries, (count,); kept for the steps that follow."""
    return torch.randperm(count, generator=generator_for(device, seed, "epoch", epoch), device=device)


def _one_of(flat: Tensor, start: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """One entry of each row's list, drawn evenly, (n,)."""
    first = start[rows]
    count = start[rows + 1] - first
    share = torch.rand(len(rows), generator=generator, device=flat.device)
    return flat[first + torch.minimum((share * count).long(), count - 1)]


def _rows(rows: Sequence[int]) -> Tensor:
    return torch.tensor(list(rows), dtype=torch.long) + 1


def _starts(lists: Sequence[Sequence[int]]) -> Tensor:
    counts = torch.tensor([0, *(len(entries) for entries in lists)])
    return counts.cumsum(0)


def _table(vectors: NDArray[np.float32]) -> Tensor:
    return torch.cat([torch.zeros(1, vectors.shape[1]), torch.from_numpy(np.asarray(vectors, np.float32))])
