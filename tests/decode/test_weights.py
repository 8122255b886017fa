"""A decoder saved and loaded is the same; a folder that does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.decode.weights import FILE, load_decoder, save_decoder
from genius.errors import BadInput, ModelMismatch, ModelNotFound

SHAPE = DecoderShape(6, (3, 5), layers=1, width=8, heads=1, head_width=8, feed_forward=8, prefix=2)


@pytest.fixture
def decoder() -> Decoder:
    decoder = Decoder(SHAPE)
    initialise(decoder, torch.Generator().manual_seed(0))
    return decoder


def test_saved_and_loaded_decoder_scores_the_same(decoder: Decoder, tmp_path: Path) -> None:
    values = json.loads(json.dumps(save_decoder(decoder, tmp_path)))  # plain values survive any text format
    again = load_decoder(tmp_path, values)
    assert again.shape == SHAPE
    assert not again.training
    z, codes = torch.ones(2, 6), torch.zeros(2, 1, 2, dtype=torch.long)
    assert torch.equal(again.score_codes(z, codes), decoder.eval().score_codes(z, codes))


def test_what_does_not_fit_is_refused(decoder: Decoder, tmp_path: Path) -> None:
    values = save_decoder(decoder, tmp_path)
    with pytest.raises(ModelMismatch, match=r"missing layers\.1"):
        load_decoder(tmp_path, {**values, "layers": 2})
    with pytest.raises(ModelMismatch, match="missing or unknown: depth"):
        load_decoder(tmp_path, {**values, "depth": 2})
    with pytest.raises(ModelMismatch, match="missing or unknown: prefix"):
        load_decoder(tmp_path, {name: value for name, value in values.items() if name != "prefix"})
    with pytest.raises(BadInput, match="choose one of level, vocabulary"):
        load_decoder(tmp_path, {**values, "normalise": "pool"})
    del values["normalise"]  # of a model made before there was a choice
    assert load_decoder(tmp_path, values).shape.normalise == "level"
    (tmp_path / FILE).unlink()
    with pytest.raises(ModelNotFound):
        load_decoder(tmp_path, values)
