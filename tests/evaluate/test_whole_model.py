"""All our systems on a real quantizer and a decoder that was really trained, over a tiny encoder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.data.mbeir import MBeir
from genius.decode.init import fresh_decoder
from genius.decode.shape import DecoderShape
from genius.decode.targets import level_losses
from genius.evaluate.options import EvalOptions, Workspace
from genius.evaluate.run import evaluate
from genius.evaluate.systems import OURS
from genius.model import Model
from genius.quantize.codebooks import init_codebooks
from genius.quantize.model import Quantizer

NAMES = ("red", "green", "blue", "yellow", "black", "white", "pink", "grey")
SIZES = (3, 8, 8)


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """A model whose codes and decoder were learned on colour words."""
    encoder = request.getfixturevalue("tiny_world").encoder()
    texts = encoder.encode_texts([f"a {a} and {b} thing" for a in NAMES for b in NAMES])
    z = torch.nn.functional.normalize(torch.from_numpy(np.concatenate([texts, texts])), dim=1)
    modality = torch.arange(len(z)) // len(texts)  # the same place as image and as text
    quantizer = Quantizer(encoder.dim, SIZES, fusion="sum").eval()
    codes = init_codebooks(quantizer.residual, z, modality, torch.Generator().manual_seed(0))
    shape = DecoderShape(encoder.dim, SIZES, 1, 32, 2, 16, 64, prefix=4, dropout=0.0)
    decoder = fresh_decoder(shape, quantizer.residual.codebooks(), 0)
    optimiser = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        level_losses(decoder(z, codes), codes).mean().backward()
        optimiser.step()
    return Model("tiny", "trained", encoder, quantizer, decoder.eval(), {"method": "generate", "beam": 16})


@pytest.mark.parametrize("setting", ["local", "universal"])
def test_all_our_systems_answer_and_vectors_reach_exact_search(colours, trained, tmp_path, setting):
    data, options = MBeir(colours.path), EvalOptions(setting)
    found = evaluate(data, "colours", trained, "ours", options, Workspace(tmp_path), lambda line: None)
    results = found.as_json()
    mean = {name: values["hit@5"] for name, values in results["mean"].items()}
    assert list(mean) == list(OURS)
    assert mean["exact"] == 1.0
    assert mean["fitted+vectors"] >= 0.9
    assert mean["lookup+vectors"] >= 0.9
    assert mean["decoder+codes"] >= 0.6
    assert mean["fitted+codes"] >= 0.6
    assert mean["lookup+codes"] >= 0.6
    assert mean["genius"] > (0.6 if setting == "local" else 0.3)
    sizes = {name: values["bytes_per_item"] for name, values in results["mean"].items()}
    assert sizes["exact"] == 32
    assert sizes["lookup+vectors"] == pytest.approx(sizes["genius"] + 16)
    assert sizes["genius"] == sizes["lookup+codes"]
