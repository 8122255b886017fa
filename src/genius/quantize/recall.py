"""Hit rates of z and of codes by exhaustive search, without a decoder or an index."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.data.pairs import PairRows, Pairs
from genius.hit_rate import hits, mean_over_tasks, rate_by_task
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


def phi_recall(pairs: Pairs, k: int = 5, queries: Tensor | None = None, items: Tensor | None = None) -> float:
    """Hit rate of exact search on phi, the mean over the tasks: the reference for z and codes.

    `queries` are the rows that are searched for and `items` those searched in, by default all.
    """
    queries = torch.arange(pairs.queries, device=pairs.device) if queries is None else queries
    return mean_over_tasks(_phi_hits(pairs, k, queries, items), pairs.task[queries])


def least_share_of_phi(quantizer: Quantizer, pairs: Pairs, k: int = 5) -> float:
    """The smallest share of phi's hit rate that z retains in any task; 1 if z is never behind."""
    queries = torch.arange(pairs.queries, device=pairs.device)
    wanted = rate_by_task(_phi_hits(pairs, k, queries), pairs.task)
    z_hits = exact_hits(fuse_queries(quantizer, pairs), fuse_items(quantizer, pairs), pairs, k)
    shares = (rate_by_task(z_hits, pairs.task) / wanted)[wanted > 0]  # comparisons with NaN are false
    return min(1.0, float(shares.min())) if len(shares) else 1.0


def _phi_hits(pairs: Pairs, k: int, queries: Tensor, items: Tensor | None = None) -> Tensor:
    """Whether exact search on phi finds a positive of each of the `queries` among `items`, bool (n,)."""
    items = torch.arange(pairs.items, device=pairs.device) if items is None else items
    query_phi = F.normalize(torch.add(*pairs.query_parts(queries)), dim=1)
    item_phi = F.normalize(torch.add(*pairs.item_parts(items)), dim=1)
    return exact_hits(query_phi, item_phi, pairs, k, queries, items)


def exact_hit_rate(query: Tensor, item: Tensor, pairs: Pairs, k: int) -> float:
    """Hit rate of exact search for queries (n, dim) among items (m, dim), the mean over the tasks."""
    return mean_over_tasks(exact_hits(query, item, pairs, k), pairs.task)


@torch.no_grad()
def exact_hits(
    query: Tensor,
    item: Tensor,
    pairs: PairRows,
    k: int,
    query_rows: Tensor | None = None,
    item_rows: Tensor | None = None,
) -> Tensor:
    """Whether each query (n, dim) has a positive among its k best items (m, dim), bool (n,).

    The rows say which queries and items of `pairs` these are; by default all, in order.
    """
    found = []
    chunk = max(1, SCORES_AT_ONCE // len(item))
    for start in range(0, len(query), chunk):
        best = (query[start : start + chunk] @ item.T).topk(min(k, len(item))).indices  # (chunk, k)
        rows = torch.arange(start, start + len(best), device=query.device)
        rows = rows if query_rows is None else query_rows[rows]
        best = best if item_rows is None else item_rows[best]
        found.append(hits(pairs.are_positive(rows[:, None], best), k))
    return torch.cat(found)
