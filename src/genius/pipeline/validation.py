"""How good an encoder is while it trains: exact search on phi over a split's universal pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.pairs import rows_of
from genius.data.training_set import TrainingSet
from genius.encode.train import EmbedRows, in_chunks
from genius.hit_rate import mean_over_tasks, rate_by_task
from genius.quantize.recall import exact_hits


def task_hits(data: TrainingSet, query: Tensor, item: Tensor, k: int = 5) -> dict[str, float]:
    """Share of queries with a positive among the `k` nearest items, per task; `hit@k` is their mean."""
    pairs = rows_of(data).to(query.device)
    found = exact_hits(F.normalize(query.float(), dim=1), F.normalize(item.float(), dim=1), pairs, k)
    rates = rate_by_task(found, pairs.task).tolist()
    return {f"hit@{k}": mean_over_tasks(found, pairs.task), **dict(zip(data.tasks, rates, strict=True))}


def hit_rates(data: TrainingSet, embed: EmbedRows, device: torch.device) -> dict[str, float]:
    """`task_hits` with the embeddings that `embed` gives; queries are asked under their first instruction."""
    pairs = rows_of(data).to(device)
    query = in_chunks(
        lambda rows: embed(pairs.query_image[rows], pairs.first_text[rows]), pairs.queries, device
    )
    item = in_chunks(lambda rows: embed(pairs.item_image[rows], pairs.item_text[rows]), pairs.items, device)
    return task_hits(data, query, item)
