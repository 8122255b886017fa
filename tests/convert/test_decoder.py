"""The published files: random weights written under their names come back whole, or are refused by name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from genius.convert.decoder import (
    convert_decoder,
    from_released,
    to_released,
)
from genius.convert.quantizer import convert_quantizer, quantizer_from_released, quantizer_to_released
from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.decode.weights import load_decoder
from genius.errors import ModelMismatch
from genius.quantize.model import load_quantizer

DIM, SIZES = 12, (3, 7, 7)
SHAPE = DecoderShape(
    DIM, SIZES, layers=2, width=16, heads=2, head_width=4, feed_forward=24, prefix=5, normalise="vocabulary"
)
BLOCK = "id_generator.decoder.block.1.layer"


def quantizer_tensors() -> dict[str, Tensor]:
    """What the authors' quantizer stores: their fusion names, and a real ResidualVQ's."""
    from vector_quantize_pytorch import ResidualVQ

    torch.manual_seed(0)
    tensors = {}
    for name, size in {
        "text_projection_layer": (512, DIM),
        "image_projection_layer": (512, DIM),
        "combiner_layer": (1024, 1024),
        "output_layer": (DIM, 1024),
        "dynamic_scalar.0": (1024, 1024),
        "dynamic_scalar.3": (1, 1024),
    }.items():
        tensors[f"encoder.{name}.weight"] = 0.05 * torch.randn(size)
        tensors[f"encoder.{name}.bias"] = 0.05 * torch.randn(size[0])
    residual = ResidualVQ(dim=DIM, codebook_size=SIZES, num_quantizers=3)
    for name, tensor in residual.state_dict().items():
        tensors[f"residual_rq.{name}"] = tensor.clone()
        if name.startswith("layers.0."):
            tensors[f"vq.{name.removeprefix('layers.0.')}"] = tensor.clone()
    tensors["clip_model.logit_scale"] = torch.tensor(4.6)
    return tensors


def decoder_tensors() -> tuple[Decoder, dict[str, Tensor]]:
    decoder = Decoder(SHAPE).eval()
    initialise(decoder, torch.Generator().manual_seed(0))
    with_quantizer = {f"quantizer.{name}": tensor for name, tensor in quantizer_tensors().items()}
    return decoder, {**to_released(decoder), **with_quantizer}


def test_decoder_comes_back_whole() -> None:
    decoder, tensors = decoder_tensors()
    again = from_released(tensors)
    assert again.shape == SHAPE
    assert not again.training
    for name, tensor in decoder.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert to_released(again).keys() == {n for n in tensors if not n.startswith("quantizer.")}


def test_sizes_can_be_given_where_the_file_has_no_codebooks() -> None:
    decoder, _ = decoder_tensors()
    assert from_released(to_released(decoder), sizes=SIZES).shape == SHAPE
    with pytest.raises(ModelMismatch, match="convert the quantizer first"):
        from_released(to_released(decoder))


def spoil(tensors: dict[str, Tensor], name: str, value: Tensor | None) -> dict[str, Tensor]:
    spoilt = {key: tensor for key, tensor in tensors.items() if key != name}
    return spoilt if value is None else {**spoilt, name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{BLOCK}.1.EncDecAttention.k.weight", None, "missing .*block.1.layer.1.EncDecAttention.k.weight"),
        (f"{BLOCK}.0.SelfAttention.q.weight", torch.zeros(9, 16), "misshaped .*SelfAttention.q.weight"),
        (
            "id_generator.encoder.block.0.layer.0.SelfAttention.q.weight",
            torch.zeros(8, 16),
            "extra .*encoder",
        ),
        ("id_generator.decoder.block.5.layer.2.layer_norm.weight", torch.zeros(16), "extra .*block.5"),
        ("id_generator.lm_head.weight", torch.zeros(20, 16), "only a tied embedding"),
        ("id_generator.shared.weight", None, "tied|no matrix named id_generator.shared.weight"),
        ("embed_projector.0.bias", None, r"missing embed_projector.0.bias"),
        ("embed_projector.0.weight", None, "no matrix named embed_projector.0.weight"),
        ("quantizer.residual_rq.layers.1._codebook.embed", None, r"levels \[0, 2\]"),
        ("quantizer.residual_rq.layers.1._codebook.embed", torch.zeros(1, 8, DIM), "has 20 rows"),
        ("something.else", torch.zeros(1), "extra something.else"),
    ],
)
def test_a_decoder_that_does_not_fit_is_refused(name: str, value: Tensor | None, message: str) -> None:
    _, tensors = decoder_tensors()
    with pytest.raises(ModelMismatch, match=message):
        from_released(spoil(tensors, name, value))


def test_quantizer_gives_the_codes_of_residual_vq() -> None:
    from vector_quantize_pytorch import ResidualVQ

    tensors = quantizer_tensors()
    quantizer = quantizer_from_released(tensors)
    oracle = ResidualVQ(dim=DIM, codebook_size=SIZES, num_quantizers=3).eval()
    own = {n.removeprefix("residual_rq."): t for n, t in tensors.items() if n.startswith("residual_rq.")}
    oracle.load_state_dict(own)
    z = F.normalize(torch.randn(50, DIM), dim=1)
    total, codes, _ = oracle(z[None])
    assert quantizer.sizes == SIZES
    assert torch.equal(quantizer.encode(z), codes[0])
    torch.testing.assert_close(quantizer.decode(codes[0]), total[0])
    assert not quantizer.training
    assert quantizer.shape() == {
        "dim": DIM,
        "sizes": list(SIZES),
        "fusion": "small",
        "modality": "nearest",
        "shared_codebooks": False,
        "encode_beam": 1,
    }


def test_quantizer_comes_back_whole() -> None:
    tensors = quantizer_tensors()
    again = quantizer_to_released(quantizer_from_released(tensors))
    assert again.keys() == {name for name in tensors if not name.startswith("clip_model.")}
    for name, tensor in again.items():
        if not name.endswith(("cluster_size", "embed_avg", "initted")):
            assert torch.equal(tensor, tensors[name]), name
    without_copy = {name: tensor for name, tensor in tensors.items() if not name.startswith("vq.")}
    quantizer_from_released(without_copy)


def test_initted_may_have_a_shape() -> None:
    """Files of vector-quantize-pytorch before 1.27, as the authors' is, have shape (1,)."""
    tensors = quantizer_tensors()
    older = {name: t.reshape(1) if name.endswith(".initted") else t for name, t in tensors.items()}
    assert torch.equal(
        quantizer_from_released(older).residual.vectors, quantizer_from_released(tensors).residual.vectors
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder.output_layer.bias", None, "missing encoder.output_layer.bias"),
        ("encoder.combiner_layer.weight", torch.zeros(7, 10), "sizes 5 and 7"),
        ("encoder.combiner_layer.weight", None, "no matrix named"),
        ("encoder.new.weight", torch.zeros(1), "extra encoder.new.weight"),
        ("residual_rq.layers.1._codebook.embed", None, "extra residual_rq.layers.2"),
        ("residual_rq.layers.0._codebook.embed", None, "instead of .1, codes, dim."),
        ("residual_rq.layers.1._codebook.initted", torch.tensor(False), "never trained"),
        ("residual_rq.layers.1._codebook.initted", torch.tensor([False]), "never trained"),
        ("residual_rq.layers.1._codebook.initted", torch.ones(2).bool(), "misshaped"),
        ("vq._codebook.embed", torch.zeros(1, 3, DIM), "which one is level 0"),
    ],
)
def test_a_quantizer_that_does_not_fit_is_refused(name: str, value: Tensor | None, message: str) -> None:
    with pytest.raises(ModelMismatch, match=message):
        quantizer_from_released(spoil(quantizer_tensors(), name, value))


def test_files_go_into_a_model_folder_and_back(tmp_path: Path) -> None:
    decoder, tensors = decoder_tensors()
    compiled = {n.replace("id_generator.", "id_generator._orig_mod."): t for n, t in tensors.items()}
    torch.save({"model": compiled, "epoch": 3}, tmp_path / "GENIUS_t5small.pth")
    torch.save({"model": quantizer_tensors()}, tmp_path / "rq_clip_large.pth")
    folder = tmp_path / "model"
    convert_quantizer(str(tmp_path / "rq_clip_large.pth"), folder)
    convert_decoder(str(tmp_path / "GENIUS_t5small.pth"), folder)
    tables = tomllib.loads((folder / "model.toml").read_text())
    quantizer = load_quantizer(folder, tables["quantizer"])
    converted = load_decoder(folder, tables["decoder"])
    assert converted.shape.sizes == quantizer.sizes == SIZES
    z, codes = torch.ones(2, DIM), torch.zeros(2, 1, 3, dtype=torch.long)
    assert torch.equal(converted.score_codes(z, codes), decoder.score_codes(z, codes))

    written = to_released(converted)
    assert written.keys() == to_released(decoder).keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in written.items())


def test_decoder_takes_the_sizes_of_the_quantizer_converted_before(tmp_path: Path) -> None:
    decoder, tensors = decoder_tensors()
    torch.save({"model": to_released(decoder)}, tmp_path / "bare.pth")
    with pytest.raises(ModelMismatch, match="convert the quantizer first"):
        convert_decoder(tmp_path / "bare.pth", tmp_path / "model")
    torch.save({"model": quantizer_tensors()}, tmp_path / "quantizer.pth")
    convert_quantizer(tmp_path / "quantizer.pth", tmp_path / "model")
    convert_decoder(tmp_path / "bare.pth", tmp_path / "model")

    toml = tmp_path / "model" / "model.toml"
    toml.write_text(toml.read_text().replace("[3, 7, 7]", "[3, 7, 8]"))
    torch.save({"model": tensors}, tmp_path / "whole.pth")
    with pytest.raises(ModelMismatch, match="convert the quantizer that belongs to it"):
        convert_decoder(tmp_path / "whole.pth", tmp_path / "model")
    toml.write_text("= broken")
    with pytest.raises(ModelMismatch, match=r"is not a valid model\.toml"):
        convert_decoder(tmp_path / "whole.pth", tmp_path / "model")
