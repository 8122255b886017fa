"""Triton kernels of a decoder's search; `genius.search.gpu.operations` has the same functions in plain torch.

Imported on CUDA only. Sums are float32; keys and values are read where they are, by number of the row, so
beams that change places cost no copy. Whatever fits is one tile: a few positions, one head.
"""
# mypy: ignore-errors
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from genius.search.gpu.operations import top_k_by_blocks

MASKED = tl.constexpr(float("-inf"))
QUERY_ROWS = 64  # beams and times of a query in one program of the attention to the prefix
CODES_AT_ONCE = 2048  # of a row of logits
MOST_COLUMNS = 1 << 14  # of which one program finds the largest


@triton.jit
def _self_attention(
    own, past, rows, bias, out, own_stride, past_stride, bias_head, bias_time,
    TIMES: tl.constexpr, KNOWN: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr,
    T: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """One head of one sequence: TIMES new positions read KNOWN earlier ones and themselves."""
    heads = INNER // WIDTH  # those of one sequence follow each other, as their vectors do in memory
    sequence, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    time, place, column = tl.arange(0, T), tl.arange(0, L), head * WIDTH + tl.arange(0, WIDTH)
    new = sequence * TIMES + time
    query = tl.load(own + new[:, None] * own_stride + column[None], mask=(time < TIMES)[:, None], other=0.0)
    is_new = (place >= KNOWN) & (place < KNOWN + TIMES)
    added = sequence * TIMES + place - KNOWN
    key_at = own + added[:, None] * own_stride + INNER + column[None]
    key = tl.load(key_at, mask=is_new[:, None], other=0.0)
    value = tl.load(key_at + INNER, mask=is_new[:, None], other=0.0)
    if KNOWN > 0:
        known = place < KNOWN
        row = tl.load(rows + sequence * KNOWN + place, mask=known, other=0).to(tl.int64)
        past_at = past + row[:, None] * past_stride + column[None]
        key += tl.load(past_at, mask=known[:, None], other=0.0)
        value += tl.load(past_at + INNER, mask=known[:, None], other=0.0)
    inside = (time < TIMES)[:, None] & (place < KNOWN + TIMES)[None]
    bias_at = bias + head * bias_head + time[:, None] * bias_time + place[None]
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") + tl.load(bias_at, mask=inside, other=0.0)
    scores = tl.where((place < KNOWN + TIMES)[None], scores, MASKED)
    weight = tl.exp(scores - tl.max(scores, 1)[:, None])
    weight = weight / tl.sum(weight, 1)[:, None]
    mixed = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    out_at = out + new[:, None] * INNER + column[None]
    tl.store(out_at, mixed.to(out.dtype.element_ty), mask=(time < TIMES)[:, None])


def self_attention(own: Tensor, past: Tensor, rows: Tensor, bias: Tensor, heads: int) -> Tensor:
    """See `genius.search.gpu.operations:plain_self_attention`."""
    times, length = bias.shape[1:]
    sequences, inner = own.shape[0] // times, own.shape[1] // 3
    out = own.new_empty(own.shape[0], inner)
    _self_attention[(sequences * heads,)](
        own, past, rows, bias, out, own.stride(0), past.stride(0), bias.stride(0), bias.stride(1),
        TIMES=times, KNOWN=length - times, INNER=inner, WIDTH=inner // heads,
        T=_tile(times), L=_tile(length), num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _prefix_attention(
    query, keys, values, out, count, batch_stride, place_stride,
    PREFIX: tl.constexpr, INNER: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """One head of M rows of one query: all of them read the same keys and values."""
    block, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    row, place, column = block * M + tl.arange(0, M), tl.arange(0, L), head * WIDTH + tl.arange(0, WIDTH)
    at = (batch * count + row)[:, None] * INNER + column[None]
    own = tl.load(query + at, mask=(row < count)[:, None], other=0.0)
    prefix_at = batch * batch_stride + place[:, None] * place_stride + column[None]
    key = tl.load(keys + prefix_at, mask=(place < PREFIX)[:, None], other=0.0)
    value = tl.load(values + prefix_at, mask=(place < PREFIX)[:, None], other=0.0)
    scores = tl.dot(own, tl.trans(key), input_precision="ieee")
    scores = tl.where((place < PREFIX)[None], scores, MASKED)
    weight = tl.exp(scores - tl.max(scores, 1)[:, None])
    weight = weight / tl.sum(weight, 1)[:, None]
    mixed = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=(row < count)[:, None])


def prefix_attention(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """See `genius.search.gpu.operations:plain_prefix_attention`."""
    batch, count, inner = query.shape
    assert query.is_contiguous() and keys.stride() == values.stride() and keys.stride(2) == 1
    out = torch.empty_like(query)
    rows = min(QUERY_ROWS, _tile(count))
    _prefix_attention[(triton.cdiv(count, rows), heads, batch)](
        query, keys, values, out, count, keys.stride(0), keys.stride(1),
        PREFIX=keys.shape[1], INNER=inner, WIDTH=inner // heads, M=rows, L=_tile(keys.shape[1]), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _row_logsumexp(logits, out, stride, SIZE: tl.constexpr, AT_ONCE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    most = tl.full((AT_ONCE,), MASKED, tl.float32)
    total = tl.zeros((AT_ONCE,), tl.float32)
    for start in range(0, SIZE, AT_ONCE):
        column = start + tl.arange(0, AT_ONCE)
        value = tl.load(logits + row * stride + column, mask=column < SIZE, other=MASKED).to(tl.float32)
        larger = tl.maximum(most, value)
        safe = tl.where(larger == MASKED, 0.0, larger)  # a column that is past the end everywhere
        total = total * tl.exp(most - safe) + tl.exp(value - safe)
        most = larger
    top = tl.max(most, 0)
    tl.store(out + row, top + tl.log(tl.sum(total * tl.exp(most - top), 0)))


def row_logsumexp(logits: Tensor) -> Tensor:
    """See `genius.search.gpu.operations:plain_logsumexp`."""
    flat = logits.view(-1, logits.shape[-1])
    out = torch.empty(len(flat), dtype=torch.float32, device=logits.device)
    _row_logsumexp[(len(flat),)](
        flat, out, flat.stride(0), SIZE=flat.shape[1], AT_ONCE=CODES_AT_ONCE, num_warps=4
    )
    return out.view(logits.shape[:-1])


@triton.jit
def _child_maxima(
    scores, code_scores, exists, prefix, out,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The maxima of all blocks of codes of one beam."""
    beam = tl.program_id(0).to(tl.int64)
    score, node = tl.load(scores + beam), tl.load(prefix + beam).to(tl.int64)
    for first in range(0, BLOCKS, AT_ONCE):
        block = first + tl.arange(0, AT_ONCE)
        code = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None]
        there = tl.load(exists + node * SIZE + code, mask=code < SIZE, other=0) != 0
        value = tl.load(code_scores + beam * SIZE + code, mask=there, other=MASKED)
        tl.store(out + beam * BLOCKS + block, tl.max(value, 1) + score, mask=block < BLOCKS)


def child_maxima(scores: Tensor, code_scores: Tensor, exists: Tensor, prefix: Tensor, block: int) -> Tensor:
    """See `genius.search.gpu.operations:plain_child_maxima`."""
    batch, beams, size = code_scores.shape
    blocks = triton.cdiv(size, block)
    out = torch.empty(batch, beams, blocks, dtype=torch.float32, device=scores.device)
    _child_maxima[(batch * beams,)](
        scores.contiguous(), code_scores, exists.view(torch.uint8), prefix.contiguous(), out,
        SIZE=size, BLOCKS=blocks, BLOCK=block, AT_ONCE=min(32, triton.next_power_of_2(blocks)), num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _top_k(scores, columns, best, stride, COUNT: tl.constexpr, K: tl.constexpr, N: tl.constexpr):
    """One row: the K-th largest score, bit by bit; then those above it and the first that equal it."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    value = tl.load(scores + row * stride + lane, mask=lane < COUNT, other=0.0)
    bits = (value + 0.0).to(tl.uint32, bitcast=True)  # + 0.0: -0.0 counts as 0.0
    key = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)  # in the order of the scores
    key = tl.where(lane < COUNT, key, 0)
    threshold = tl.full((), 0, tl.uint32)
    bit = tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        higher = threshold | bit
        threshold = tl.where(tl.sum((key >= higher).to(tl.int32), 0) >= K, higher, threshold)
        bit = bit >> 1
    above, equal = key > threshold, key == threshold
    left = K - tl.sum(above.to(tl.int32), 0)
    taken = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))
    place = row * K + tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(columns + place, lane.to(tl.int64), mask=taken)
    tl.store(best + place, value, mask=taken)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `genius.search.gpu.operations:plain_top_k`."""
    if scores.shape[1] > MOST_COLUMNS:
        return top_k_by_blocks(scores, k, top_k)
    rows, count = scores.shape
    scores, k, lanes = scores.contiguous(), min(k, count), triton.next_power_of_2(count)
    columns = torch.empty(rows, k, dtype=torch.int64, device=scores.device)
    best = torch.empty(rows, k, dtype=torch.float32, device=scores.device)
    _top_k[(rows,)](
        scores, columns, best, scores.stride(0),
        COUNT=count, K=k, N=lanes, num_warps=min(16, max(1, lanes // 256)),
    )  # fmt: skip
    return columns, best


def _tile(rows: int) -> int:
    """Rows of a tile: a matrix unit takes 16 or more."""
    return max(16, triton.next_power_of_2(rows))
