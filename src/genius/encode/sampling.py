"""Which queries and positives a step of stage 0 sees, drawn on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genius.data.training_set import TrainingSet


@dataclass(frozen=True, slots=True)
class Batch:
    """A draw of queries with one positive each, as rows of the training set's tables (-1: absent)."""

    query_image: Tensor
    query_text: Tensor
    item_image: Tensor
    item_text: Tensor
    item: Tensor  # rows of the items
    query: Tensor  # rows of the queries


class Sampler:
    """Draws batches: a fresh positive and a fresh instruction every time."""

    def __init__(self, data: TrainingSet, device: torch.device, balance: float) -> None:
        self.weights = torch.from_numpy(data.query_weights(balance)).to(device)
        names = ("query_image", "query_texts", "item_image", "item_text", "offsets", "positives")
        self.rows = {name: torch.from_numpy(getattr(data, name)).to(device) for name in names}
        self.items = len(data.item_image)
        owner = torch.arange(len(self.weights), device=device).repeat_interleave(self.rows["offsets"].diff())
        self.keys = (owner * self.items + self.rows["positives"]).sort().values  # of all (query, positive)

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """`count` queries, each with one of its positives."""
        rows = self.rows
        query = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        first, last = rows["offsets"][query], rows["offsets"][query + 1]
        share = torch.rand(count, generator=generator, device=query.device)
        item = rows["positives"][torch.minimum(first + (share * (last - first)).long(), last - 1)]
        variants = rows["query_texts"].shape[1]
        variant = torch.randint(variants, (count,), generator=generator, device=query.device)
        return Batch(
            query_image=rows["query_image"][query],
            query_text=rows["query_texts"][query, variant],
            item_image=rows["item_image"][item],
            item_text=rows["item_text"][item],
            item=item,
            query=query,
        )

    def also_positive(self, query: Tensor, item: Tensor) -> Tensor:
        """Whether item column j is a positive of query row i, (queries, items): no negative of it."""
        asked = query[:, None] * self.items + item[None, :]
        place = torch.searchsorted(self.keys, asked).clamp(max=len(self.keys) - 1)
        return self.keys[place] == asked
