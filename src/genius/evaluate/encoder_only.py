"""An encoder without quantizer and decoder, so that exact search on its vectors can stand in the tables.

CLIP-SF and BLIP-SF add image and text vectors (phi); CLIP-FF and BLIP-FF give one vector for both. The names
are those of the paper; the weights are whatever the source holds, so the results carry their fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from genius.encode.base import Encoder, FusingEncoder, Parts, load_encoder
from genius.errors import BadInput
from genius.evaluate.encoding import Floats
from genius.types import Modality

# name in the tables -> encoder
NAMES: Mapping[str, str] = {
    "clip-sf": "clip",
    "clip-ff": "clip-ff",
    "blip-sf": "blip",
    "blip-ff": "blip-ff",
}


class EncoderOnly:
    """An encoder where a model is expected; all items have the same code."""

    sizes = (1,)

    def __init__(self, encoder: Encoder | FusingEncoder) -> None:
        self.encoder = encoder
        self.fingerprint = encoder.fingerprint

    def phi(self, parts: Parts) -> Floats:
        """Image and text vectors added up, unit length."""
        return parts.phi()

    def z(self, parts: Parts) -> Floats:
        """The same as phi."""
        return parts.phi()

    def codes(self, parts: Parts, modalities: Sequence[Modality]) -> NDArray[np.uint16]:
        """No codes to speak of."""
        return np.zeros((len(modalities), 1), dtype=np.uint16)


def split_source(word: str) -> tuple[str, str] | None:
    """`clip-sf=SOURCE` as its two halves; None if `word` names no such encoder."""
    name, equals, source = word.partition("=")
    if name.strip() not in NAMES:
        return None
    if not equals or not source.strip():
        raise BadInput(f"{name.strip()} needs weights: write {name.strip()}=FOLDER")
    return name.strip(), source.strip()


def load_encoder_only(name: str, source: str, device: str = "cpu") -> EncoderOnly:
    """The encoder that the tables call `name`, from a folder or hub id."""
    return EncoderOnly(load_encoder(NAMES[name], source, device))
