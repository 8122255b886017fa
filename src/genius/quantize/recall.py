"""Hit rates of z and of codes by exhaustive search, without a decoder or an index."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.data.pairs import PairRows, Pairs
from genius.hit_rate import hits, mean_over_tasks
from genius.quantize.model import ROWS_AT_ONCE, Quantizer

SCORES_AT_ONCE = 1 << 26  # query-item scores in memory at a time


@torch.no_grad()
def fuse_items(quantizer: Quantizer, pairs: Pairs, rows: Tensor | None = None) -> Tensor:
    """z of the items (all, or these rows), (n, dim)."""
    rows = torch.arange(pairs.items, device=pairs.device) if rows is None else rows
    return torch.cat([quantizer(*pairs.item_parts(part)) for part in torch.split(rows, ROWS_AT_ONCE)])


@torch.no_grad()
def fuse_queries(quantizer: Quantizer, pairs: Pairs, rows: Tensor | None = None) -> Tensor:
    """z of the queries (all, or these rows) under their first instruction, (n, dim)."""
    rows = torch.arange(pairs.queries, device=pairs.device) if rows is None else rows
    return torch.cat([quantizer(*pairs.query_parts(part)) for part in torch.split(rows, ROWS_AT_ONCE)])


def code_recall(quantizer: Quantizer, pairs: Pairs, k: int = 5) -> dict[str, float]:
    """Hit rates on the whole pool, means over the tasks, and the quantization error of the items.

    `hit@5` scores the cosine of z_q and the sum of code vectors, the best that codes alone can do;
    `hit@5_sum` the product <z_q, sum>, as lookup search does level by level; `hit@5_z` scores <z_q, z_c>.
    """
    query, item = fuse_queries(quantizer, pairs), fuse_items(quantizer, pairs)
    codes = quantizer.encode(item, pairs.item_modality)
    quantized = quantizer.decode(codes)
    return {
        f"hit@{k}": exact_hit_rate(query, quantizer.directions(codes), pairs, k),
        f"hit@{k}_sum": exact_hit_rate(query, quantized, pairs, k),
        f"hit@{k}_z": exact_hit_rate(query, item, pairs, k),
        "error": float((item - quantized).square().sum(1).mean()),
    }


def phi_recall(pairs: Pairs, k: int = 5) -> float:
    """Hit rate of exact search on phi, the mean over the tasks: the reference for z and codes."""
    query = torch.arange(pairs.queries, device=pairs.device)
    item = torch.arange(pairs.items, device=pairs.device)
    query_phi = F.normalize(torch.add(*pairs.query_parts(query)), dim=1)
    item_phi = F.normalize(torch.add(*pairs.item_parts(item)), dim=1)
    return exact_hit_rate(query_phi, item_phi, pairs, k)


def exact_hit_rate(query: Tensor, item: Tensor, pairs: Pairs, k: int) -> float:
    """Hit rate of exact search for queries (n, dim) among items (m, dim), the mean over the tasks."""
    return mean_over_tasks(exact_hits(query, item, pairs, k), pairs.task)


@torch.no_grad()
def exact_hits(query: Tensor, item: Tensor, pairs: PairRows, k: int) -> Tensor:
    """Whether each query (n, dim) has a positive among its k best items (m, dim), bool (n,)."""
    found = []
    chunk = max(1, SCORES_AT_ONCE // len(item))
    for start in range(0, len(query), chunk):
        best = (query[start : start + chunk] @ item.T).topk(min(k, len(item))).indices  # (chunk, k)
        rows = torch.arange(start, start + len(best), device=query.device)
        found.append(hits(pairs.are_positive(rows[:, None], best), k))
    return torch.cat(found)
