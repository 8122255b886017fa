"""Packed weights give the scores of the plain decoder, whatever a search asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.packed import PackedLinear, can_pack, packed
from genius.decode.precision import with_precision
from genius.decode.shape import DecoderShape

SIZES = (3, 7, 5, 7)


@pytest.fixture(params=[False, True], ids=["plain", "query_logits"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    shape = DecoderShape(
        12, SIZES, layers=2, width=32, heads=2, head_width=16, feed_forward=64, prefix=4,
        query_logits=request.param,
    )  # fmt: skip
    made, generator = Decoder(shape).eval(), torch.Generator().manual_seed(0)
    initialise(made, generator)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    if not can_pack(made):
        pytest.skip("this torch does not pack weights for this processor")
    return made


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_layer_is_the_plain_one(decoder: Decoder, relu: bool, bias: bool) -> None:
    plain = torch.nn.Linear(20, 30, bias=bias)
    x = torch.randn(5, 3, 20, generator=torch.Generator().manual_seed(1))
    expected = plain(x).relu() if relu else plain(x)
    torch.testing.assert_close(PackedLinear(plain.weight, plain.bias, relu)(x), expected.detach())


@pytest.mark.parametrize("normalise", ["level", "vocabulary"])
def test_all_scores_are_the_same(decoder: Decoder, normalise: str) -> None:
    if decoder.query_logits is None:
        decoder.shape = replace(decoder.shape, normalise=normalise)
    other = packed(decoder)
    z = torch.randn(4, 12, generator=torch.Generator().manual_seed(2))
    codes = torch.stack([torch.arange(6).expand(4, 6) % size for size in SIZES], -1)
    torch.testing.assert_close(other.score_codes(z, codes), decoder.score_codes(z, codes))
    parents = torch.zeros(4, 6, dtype=torch.long)
    scores = []
    for one in (decoder, other):
        state = one.advance(one.start(z), parents, codes[:, :, 0])
        scores.append((one.score_next(state), one.score_suffix(state, parents + 2, codes[:, :, 1:])))
    torch.testing.assert_close(scores[1], scores[0])


def test_the_decoder_itself_is_not_changed(decoder: Decoder) -> None:
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    other = packed(decoder)
    assert {*before} == {*decoder.state_dict()}
    assert all(torch.equal(value, before[name]) for name, value in decoder.state_dict().items())
    assert decoder.heads is None and other.heads is not None
    linear = [module for module in other.layers.modules() if isinstance(module, torch.nn.Linear)]
    assert not linear and any(isinstance(module, PackedLinear) for module in other.layers.modules())


def test_only_float32_is_packed(decoder: Decoder) -> None:
    assert not can_pack(with_precision(decoder, "bfloat16"))


@pytest.mark.parametrize("at_once", [1, 2, 4, 9])
def test_suffixes_in_parts_are_those_of_one_pass(
    decoder: Decoder, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next level is scored once, however many parts there are."""
    z = torch.randn(2, 12, generator=torch.Generator().manual_seed(2))
    codes = torch.stack([torch.arange(5).expand(2, 5) % size for size in SIZES], -1)
    state = decoder.advance(decoder.start(z), torch.zeros(2, 5, dtype=torch.long), codes[:, :, 0])
    parents = torch.tensor([[4, 0, 2, 2, 1]] * 2)
    whole = decoder.score_suffix(state, parents, codes[:, :, 1:])
    scored = []
    score_next = Decoder.score_next
    monkeypatch.setattr(Decoder, "score_next", lambda *args: scored.append(1) or score_next(*args))
    parts = decoder.score_suffix(state, parents, codes[:, :, 1:], at_once)
    torch.testing.assert_close(parts, whole)
    assert scored == [1]
