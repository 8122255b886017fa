"""How good an encoder is while it trains: exact search on phi over a split's universal pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.training_set import TrainingSet
from genius.encode.train import Things, in_chunks

CHUNK = 256  # queries compared with all items at once


def task_hits(data: TrainingSet, query: Tensor, item: Tensor, k: int = 5) -> dict[str, float]:
    """Share of queries with a positive among the `k` nearest items, per task; `hit@k` is their mean."""
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
        hits[owner[mine][found]] = True
    task = torch.from_numpy(data.query_task).to(device)
    figures = {name: float(hits[task == number].float().mean()) for number, name in enumerate(data.tasks)}
    return {f"hit@{k}": sum(figures.values()) / len(figures), **figures}


def hit_rates(data: TrainingSet, things: Things, device: torch.device) -> dict[str, float]:
    """`task_hits` with the vectors of `things`; queries are asked under their first instruction."""
    query_image, query_texts, item_image, item_text = (
        torch.from_numpy(rows).to(device)
        for rows in (data.query_image, data.query_texts, data.item_image, data.item_text)
    )
    query = in_chunks(lambda rows: things(query_image[rows], query_texts[rows, 0]), len(query_image), device)
    item = in_chunks(lambda rows: things(item_image[rows], item_text[rows]), len(item_image), device)
    return task_hits(data, query, item)
