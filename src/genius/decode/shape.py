"""The sizes of a decoder, and the rows of its embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from genius.errors import BadInput

START = 0  # row of the embedding that starts every sequence (T5's pad); 1 is T5's end, 2 its unknown
SPECIAL_ROWS = 3

# over which codes the probabilities of a level sum up to 1: its own, or (as published) the whole vocabulary
Normalise = Literal["level", "vocabulary"]

# name -> layers, width, heads, head_width, feed_forward (supplement, Table 5; mini is ours)
PRESETS: dict[str, tuple[int, int, int, int, int]] = {
    "mini": (4, 256, 4, 64, 1024),
    "t5-small": (6, 512, 8, 64, 2048),
    "t5-base": (12, 768, 12, 64, 3072),
    "t5-large": (24, 1024, 16, 64, 4096),
}


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """All that a decoder is beside its weights; two decoders of equal shape can exchange them."""

    dim: int  # width of z
    sizes: tuple[int, ...]  # codes per level
    layers: int = 6
    width: int = 512
    heads: int = 8
    head_width: int = 64
    feed_forward: int = 2048
    prefix: int = 30
    dropout: float = 0.1
    normalise: Normalise = "level"
    query_logits: bool = False  # whether logits have a part that is linear in z (see Decoder)

    def __post_init__(self) -> None:
        if self.normalise not in get_args(Normalise):
            raise BadInput(f"normalise {self.normalise!r}: choose one of {', '.join(get_args(Normalise))}")
        if self.query_logits and self.normalise == "vocabulary":
            raise BadInput("query_logits need normalise = level: set one or the other")

    @classmethod
    def preset(
        cls,
        name: str,
        dim: int,
        sizes: Sequence[int],
        prefix: int = 30,
        dropout: float = 0.1,
        normalise: Normalise = "level",
        query_logits: bool = False,
    ) -> DecoderShape:
        """The shape called `name` for vectors of width `dim` and these code sizes."""
        if name not in PRESETS:
            raise BadInput(f"unknown decoder preset {name!r}: choose one of {', '.join(PRESETS)}")
        return cls(
            dim, tuple(sizes), *PRESETS[name],
            prefix=prefix, dropout=dropout, normalise=normalise, query_logits=query_logits,
        )  # fmt: skip

    @property
    def levels(self) -> int:
        """How many codes an item has."""
        return len(self.sizes)

    @property
    def inner(self) -> int:
        """Width of all attention heads together."""
        return self.heads * self.head_width

    @property
    def offsets(self) -> tuple[int, ...]:
        """Embedding row of code 0 of each level."""
        return tuple(accumulate(self.sizes[:-1], initial=SPECIAL_ROWS))

    @property
    def rows(self) -> int:
        """Rows of the embedding: the special ones, then each level's codes in order."""
        return SPECIAL_ROWS + sum(self.sizes)
