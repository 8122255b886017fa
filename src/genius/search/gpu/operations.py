"""What a decoder's search on a GPU spends its time on, beside products of large matrices.

Each function exists twice: in plain torch here, which is what it means, and as a Triton kernel in
`genius.search.gpu.kernels`. `operations_for` says which one runs: the kernels on CUDA with Triton, where the
shape suits them, else the plain ones. `tests/search/gpu/test_operations.py` compares both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.shape import DecoderShape

HEAD_WIDTHS = (16, 32, 64, 128)  # of the kernels' tiles
BLOCK = 64  # neighbouring scores of which the largest is found first, where more than WIDE are compared
WIDE = 4096
INT32_MAX = (1 << 31) - 1
MOST_POSITIONS = 64  # that one tile holds; a decoder has as many as levels, or vectors of the prefix


TopK = Callable[[Tensor, int], tuple[Tensor, Tensor]]


class Operations(NamedTuple):
    """The functions of this file, plain or as kernels."""

    self_attention: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    prefix_attention: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    logsumexp: Callable[[Tensor], Tensor]
    child_maxima: Callable[[Tensor, Tensor, Tensor, Tensor, int], Tensor]
    top_k: TopK


def operations_for(device: torch.device, shape: DecoderShape | None = None) -> Operations:
    """The kernels where they run and this shape of a decoder suits them, else the plain functions."""
    kernels = triton_operations() if device.type == "cuda" else None
    if kernels is None:
        return PLAIN
    if shape is not None and not suits_kernels(shape):
        return kernels._replace(self_attention=plain_self_attention, prefix_attention=plain_prefix_attention)
    return kernels


def suits_kernels(shape: DecoderShape) -> bool:
    """Whether one tile holds all positions of a head."""
    return shape.head_width in HEAD_WIDTHS and max(shape.levels, shape.prefix) <= MOST_POSITIONS


@cache
def triton_operations() -> Operations | None:
    """The kernels; None: there is no Triton, it cannot compile here, or a kernel is not what it should be."""
    try:
        from genius.search.gpu import kernels
    except ImportError:
        return None
    found = Operations(
        kernels.self_attention,
        kernels.prefix_attention,
        kernels.row_logsumexp,
        kernels.child_maxima,
        kernels.top_k,
    )
    if not torch.cuda.is_available():
        return found
    try:
        wrong = disagreements(found, torch.device("cuda"))
    except Exception as error:  # a missing C compiler, a chip that Triton does not know, …
        wrong = [str(error)]
    if wrong:
        warnings.warn(f"searches of the decoder are slower, Triton fails: {', '.join(wrong)}", stacklevel=2)
        return None
    return found


def disagreements(
    kernels: Operations, device: torch.device, dtype: torch.dtype = torch.bfloat16, limit: float = 2e-2
) -> list[str]:
    """The functions of `kernels` that give something else than the plain ones for small random inputs."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    heads, width, times, known = 2, 16, 2, 3
    inner = heads * width
    ahead = torch.ones(times, known + times, dtype=torch.bool, device=device).triu(known + 1)
    bias = random(heads, times, known + times).float().masked_fill(ahead, -torch.inf)
    rows = torch.randint(0, 9, (5, known), generator=generator).to(device)
    prefix = torch.randint(0, 4, (3, 5), generator=generator).to(device)
    inputs: dict[str, tuple[Tensor | int, ...]] = {
        "self_attention": (random(5 * times, 3 * inner), random(9, 2 * inner), rows, bias, heads),
        "prefix_attention": (random(3, 6, inner), random(3, 8, inner), random(3, 8, inner), heads),
        "logsumexp": (random(7, 100),),
        "child_maxima": (random(3, 5).float(), random(3, 5, 96).float(), random(4, 96) > 0, prefix, 16),
        "top_k": (random(4, 200).float(), 10),
    }
    wrong = []
    for name, values in inputs.items():
        found, meant = (getattr(some, name)(*values) for some in (kernels, PLAIN))
        pairs = zip(found, meant, strict=True) if isinstance(found, tuple) else [(found, meant)]
        if not all(torch.allclose(a.float(), b.float(), rtol=limit, atol=limit) for a, b in pairs):
            wrong.append(name)
    return wrong


def plain_self_attention(own: Tensor, past: Tensor, rows: Tensor, bias: Tensor, heads: int) -> Tensor:
    """What new positions of each sequence read of its earlier ones and of themselves, (n * times, inner).

    `own` (n * times, 3 inner): query, key and value of the new positions. `past` (any, 2 inner): keys and
    values of earlier ones, of which `rows` (n, known) are those of each sequence. `bias` (heads, times,
    known + times) is added to the products in float32; -inf where a position is ahead.
    """
    times, inner = bias.shape[1], own.shape[1] // 3
    new = own.view(-1, times, 3 * inner)
    both = torch.cat([past[rows], new[..., inner:]], 1).float()  # (n, known + times, 2 inner)
    key, value = both.view(*both.shape[:2], 2, heads, -1).unbind(2)
    query = new[..., :inner].reshape(-1, times, heads, inner // heads).float()
    scores = torch.einsum("nthd,nlhd->nhtl", query, key) + bias
    mixed = torch.einsum("nhtl,nlhd->nthd", scores.softmax(-1), value)
    return mixed.reshape(-1, inner).to(own.dtype)


def plain_prefix_attention(query: Tensor, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """What rows of each query read of its prefix, (batch, n, inner).

    `query` (batch, n, inner), `keys` and `values` (batch, prefix, inner), shared by all n rows.
    """
    split = [x.float().reshape(*x.shape[:2], heads, -1) for x in (query, keys, values)]
    scores = torch.einsum("bnhd,bphd->bhnp", split[0], split[1])
    mixed = torch.einsum("bhnp,bphd->bnhd", scores.softmax(-1), split[2])
    return mixed.flatten(2).to(query.dtype)


def plain_logsumexp(logits: Tensor) -> Tensor:
    """log of the sum of exp over the last dimension, in float32."""
    return logits.float().logsumexp(-1)


def plain_child_maxima(
    scores: Tensor, code_scores: Tensor, exists: Tensor, prefix: Tensor, block: int
) -> Tensor:
    """The largest score of each `block` of children, (batch, beams, blocks); -inf where none exists.

    A child's score is that of its beam, `scores` (batch, beams), plus that of its code, `code_scores` (batch,
    beams, codes). `exists` (prefixes, codes) says which children `prefix` (batch, beams) has.
    """
    size = code_scores.shape[2]
    there = torch.where(exists[prefix], code_scores, -torch.inf)
    padded = F.pad(there, (0, -size % block), value=-torch.inf)
    return padded.view(*scores.shape, -1, block).amax(-1) + scores[..., None]


def plain_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Columns (ascending) and scores of the `k` largest of each row; of equal ones, the first columns win."""
    count = scores.shape[1]
    if count > WIDE and k * BLOCK < count:
        return top_k_by_blocks(scores, k, plain_top_k)
    column, best, _ = ordered_top_k(scores, torch.arange(count, device=scores.device).expand_as(scores), k)
    return column, best


def top_k_by_blocks(scores: Tensor, k: int, top_k: TopK) -> tuple[Tensor, Tensor]:
    """The same for many columns: only those of the `k` blocks with the largest maxima are compared.

    A column of any other block is worse than `k` others.
    """
    count = scores.shape[1]
    if count % BLOCK:
        scores = F.pad(scores, (0, -count % BLOCK), value=-torch.inf)
    blocks = scores.reshape(len(scores), -1, BLOCK)
    block, _ = top_k(blocks.amax(2), k)
    few = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK)).flatten(1)
    column, best = top_k(few, k)
    column = block.gather(1, column // BLOCK) * BLOCK + column % BLOCK
    return column.clamp_max(count - 1), best  # of the padding, if there are fewer than k scores above -inf


def ordered_top_k(scores: Tensor, order: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` largest scores of each row: their `order` (ascending), scores and columns, each (batch, k).

    Of equal scores the one with the lowest order wins: score and order are compared as one integer.
    `order` is below 2^31.
    """
    k = min(k, scores.shape[1])
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: -0.0 counts as 0.0
    monotonic = torch.where(bits < 0, bits ^ INT32_MAX, bits).long()
    column = (monotonic << 32 | (INT32_MAX - order)).topk(k, sorted=False).indices
    order, ascending = order.gather(1, column).sort(1)
    column = column.gather(1, ascending)
    return order, scores.gather(1, column), column


PLAIN = Operations(
    plain_self_attention, plain_prefix_attention, plain_logsumexp, plain_child_maxima, plain_top_k
)
