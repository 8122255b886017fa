"""Initial weights of a decoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.decode.model import Decoder
from genius.decode.shape import SPECIAL_ROWS, DecoderShape
from genius.errors import BadInput
from genius.seeding import generator_for

QUERY_SCALE = 30.0  # of the similarities that `query_logits` start as


def fresh_decoder(shape: DecoderShape, codebooks: Sequence[Tensor], seed: int, scale: float = 1.0) -> Decoder:
    """An untrained decoder (on the CPU): T5's random weights, code embeddings from the codebooks."""
    decoder, generator = Decoder(shape), generator_for("cpu", seed, "decoder")
    initialise(decoder, generator)
    init_from_codebooks(decoder, codebooks, generator, scale)
    return decoder


@torch.no_grad()
def initialise(decoder: Decoder, generator: torch.Generator) -> None:
    """Sample all weights as T5 does: normal, with deviations that make attention work without scaling."""
    shape = decoder.shape
    sizes = {
        "embedding.weight": 1.0,
        "position.weight": shape.width**-0.5,
        "projector.weight": shape.dim**-0.5,
        "query_logits.weight": shape.dim**-0.5,
        "self_in.weight": shape.width**-0.5,
        "self_out.weight": shape.inner**-0.5,
        "cross_query.weight": (shape.width * shape.head_width) ** -0.5,
        "cross_in.weight": shape.width**-0.5,
        "cross_out.weight": shape.inner**-0.5,
        "feed_in.weight": shape.width**-0.5,
        "feed_out.weight": shape.feed_forward**-0.5,
    }
    for name, weight in decoder.named_parameters():
        if name.endswith("norm.weight"):
            weight.fill_(1.0)
        elif name.endswith(".bias"):
            weight.zero_()
        else:
            weight.normal_(0.0, sizes[".".join(name.split(".")[-2:])], generator=generator)
        if name.endswith("self_in.weight"):
            weight[: shape.inner] *= shape.head_width**-0.5  # the query part has the attention scale built in


@torch.no_grad()
def init_from_codebooks(
    decoder: Decoder, codebooks: Sequence[Tensor], generator: torch.Generator, scale: float = 1.0
) -> None:
    """Initialise the embeddings of the codes from the code vectors, so that near codes have near embeddings.

    Each level's codebook (sizes[level], dim), L2-normalised, goes through one random matrix; the entries of
    a row have the size `scale`. T5's own start is 1; the released factor of 100 on a matrix that is
    uniform in +-768^-0.5 comes to 2.1. Of codebooks by modality (modalities, sizes[level], dim), a code has
    one embedding for all modalities, from the mean of its vectors. `query_logits`, where there are any, start
    as QUERY_SCALE * (<z, e> - |e|^2 / 2): the order of the code vectors e by their distance from z.
    """
    shape = decoder.shape
    codebooks = [book.mean(0) if book.ndim == 3 else book for book in codebooks]
    found = tuple(tuple(book.shape) for book in codebooks)
    if found != tuple((size, shape.dim) for size in shape.sizes):
        raise BadInput(f"codebooks of shapes {found} for a decoder of width {shape.dim}, sizes {shape.sizes}")
    rows = F.normalize(torch.cat([book.detach().float() for book in codebooks]), dim=1)
    matrix = torch.randn(shape.dim, shape.width, generator=generator, device=generator.device)
    weight = decoder.embedding.weight
    weight[SPECIAL_ROWS:] = (rows.to(matrix.device) @ matrix * scale).to(weight)
    if decoder.query_logits is not None:
        vectors = torch.cat([book.detach().float() for book in codebooks]).to(weight.device)
        decoder.query_logits.weight.copy_(QUERY_SCALE * vectors)
        decoder.query_logits.bias.copy_(-QUERY_SCALE / 2 * vectors.square().sum(1))
