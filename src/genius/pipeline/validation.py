"""How good an encoder is while it trains: exact search on phi over a split's universal pool."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.training_set import TrainingSet
from genius.encode.train import scatter_rows

CHUNK = 256


def task_hits(data: TrainingSet, query: Tensor, item: Tensor, k: int = 5) -> dict[str, float]:
    """Percent of queries with a positive among the `k` nearest items, per task; `hit@k` is their mean."""
    device = query.device
    offsets = torch.from_numpy(data.offsets).to(device)
    positives = torch.from_numpy(data.positives).to(device)
    query, item = F.normalize(query.float(), dim=1), F.normalize(item.float(), dim=1)
    hits = torch.zeros(len(query), dtype=torch.bool, device=device)
    owner = torch.repeat_interleave(torch.arange(len(query), device=device), offsets.diff())
    for start in range(0, len(query), CHUNK):
        best = (query[start : start + CHUNK] @ item.T).topk(min(k, len(item)), dim=1).indices  # (chunk, k)
        mine = (owner >= start) & (owner < start + len(best))
        found = (best[owner[mine] - start] == positives[mine, None]).any(dim=1)
        hits.index_put_((owner[mine],), found, accumulate=True)
    task = torch.from_numpy(data.query_task).to(device)
    figures = {
        name: 100 * float(hits[task == number].float().mean()) for number, name in enumerate(data.tasks)
    }
    return {f"hit@{k}": sum(figures.values()) / len(figures), **figures}


def sum_parts(data: TrainingSet, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    """phi (before its norm) of all queries, under their first instruction, and items, from vectors by row."""
    device = images.device
    rows = {
        name: torch.from_numpy(getattr(data, name)).to(device)
        for name in ("query_image", "query_texts", "item_image", "item_text")
    }
    query = scatter_rows(images, rows["query_image"]) + scatter_rows(texts, rows["query_texts"][:, 0])
    item = scatter_rows(images, rows["item_image"]) + scatter_rows(texts, rows["item_text"])
    return query, item


@torch.no_grad()
def in_chunks(
    tower: Callable[[Tensor], Tensor], count: int, device: torch.device, chunk: int = 512
) -> Tensor:
    """`tower(rows)` for rows 0 … count-1, a chunk at a time, as float32."""
    parts = [
        tower(torch.arange(start, min(start + chunk, count), device=device)).float()
        for start in range(0, count, chunk)
    ]
    return torch.cat(parts)
