"""GRACE: images memorized under identifiers, asked for by text (Li et al., ACL 2024), on our decoder.

Kept: the four kinds of identifiers that the paper's tables compare, the two lessons (memorize, retrieve), and
generation constrained to identifiers that exist. Not kept: the 3-billion-parameter language model that reads
image and text (here the encoder's vectors stand in for both, and a small decoder learns from scratch), and
with it the sense that digits and letters have in its vocabulary. A string here is a word of random letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from genius.errors import BadInput
from genius.evaluate.baselines.identifiers import (
    Floats,
    Identifiers,
    cluster_paths,
    numbers,
    own_codes,
    strings,
)
from genius.evaluate.baselines.memorizing import Memorizing
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.examples import Examples

TEXT_TO_IMAGE = frozenset({0})
IMAGE = 0  # in the order of Modality


def _numeric(vectors: Floats, names: Sequence[str]) -> Identifiers:
    return numbers(len(names))


def _string(vectors: Floats, names: Sequence[str]) -> Identifiers:
    return strings(names)


def _semantic(vectors: Floats, names: Sequence[str]) -> Identifiers:
    return cluster_paths(vectors)


def _structured(vectors: Floats, names: Sequence[str]) -> Identifiers:
    return own_codes(cluster_paths(vectors))


KINDS = {"numeric": _numeric, "string": _string, "semantic": _semantic, "structured": _structured}


def grace(
    kind: str,
    examples: Callable[[], Examples],
    schooling: Schooling = Schooling(),  # noqa: B008 (frozen)
    device: str = "cpu",
    folder: Path | None = None,
) -> Memorizing:
    """GRACE with one kind of identifiers: numeric, string, semantic or structured."""
    if kind not in KINDS:
        raise BadInput(f"unknown kind of identifier {kind!r}: choose one of {', '.join(KINDS)}")
    return Memorizing(f"grace-{kind}", KINDS[kind], examples, TEXT_TO_IMAGE, IMAGE, schooling, device, folder)
