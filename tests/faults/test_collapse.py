"""Fault 22: NaN, Inf and collapsed codebooks stop the training with step and figure, never in silence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from genius.config import OptimiserConfig
from genius.data.pairs import Pairs, build_pairs
from genius.errors import BadInput, ModelMismatch, TrainingStopped
from genius.quantize import train as module
from genius.quantize.model import Quantizer, load_quantizer, save_quantizer
from genius.quantize.train import QuantizerObjective, train_quantizer

PLAN = OptimiserConfig(steps=8, batch=16, rate=1e-3, check_every=4)


def pairs(spoilt: float | None = None) -> Pairs:
    """Captions that ask for pictures, pictures that ask for captions."""
    random = np.random.default_rng(0)
    images = random.standard_normal((60, 16), dtype=np.float32)
    texts = images + random.standard_normal((60, 16), dtype=np.float32) / 2
    if spoilt is not None:
        images[7, 3] = spoilt
    return build_pairs(
        images,
        texts,
        query_image=[-1] * 30 + list(range(30)),
        query_texts=[[i] for i in range(30)] + [[]] * 30,
        positives=[[i] for i in range(30)] + [[60 + i] for i in range(30)],
        item_image=list(range(60)) + [-1] * 60,
        item_text=[-1] * 60 + list(range(60)),
    )


def trained(folder, data, plan=PLAN, quantizer=None, **options):
    torch.manual_seed(0)
    quantizer = quantizer or Quantizer(16, (3, 8, 8), fusion="small")
    options = {"seed": 0, "kmeans_sample": 100, "show": False, **options}
    return train_quantizer(
        quantizer, data, data, plan, QuantizerObjective(temperature=0.1), folder=folder, **options
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_refused_before_any_step(value):
    with pytest.raises(BadInput, match="NaN or Inf in the vectors"):
        pairs(spoilt=value)


def test_vectors_that_spoil_later_stop_with_the_step(tmp_path):
    data = pairs()
    spoilt = replace(data, texts=data.texts.clone())
    steps = []
    plain = module.make_step

    def spoiling(stage, train, plan, objective, seed):
        step = plain(stage, train, plan, objective, seed)

        def watched(number):
            steps.append(number)
            if number == 5:
                spoilt.texts.fill_(torch.inf)
            return step(number)

        return watched

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(TrainingStopped, match=r"loss = nan.* at step 6;"),
    ):
        patch.setattr(module, "make_step", spoiling)
        trained(tmp_path, spoilt)
    assert steps[-1] < PLAN.steps  # it did not go on and report a recall of zero


def test_a_rate_that_blows_up_stops_with_the_figure(tmp_path):
    with pytest.raises(TrainingStopped, match=r"z of length 0\.0 instead of 1"):
        trained(tmp_path, pairs(), plan=PLAN.model_copy(update={"rate": 1e30}))


def test_collapsed_codebooks_stop_with_the_level_and_the_figure(tmp_path, monkeypatch):
    def out_of_reach(moving, residual, *_):
        residual.vectors[4:] = 100.0  # all codes but one of level 1

    monkeypatch.setattr(module.MovingAverage, "update", out_of_reach)
    quantizer = Quantizer(16, (3, 64, 64), fusion="small")
    with pytest.raises(TrainingStopped, match=r"level 1 uses 1\.6% of its codes, at least 10% is needed"):
        trained(tmp_path, pairs(), quantizer=quantizer)


def test_level_zero_that_mixes_modalities_stops_with_its_purity(tmp_path, monkeypatch):
    quantizer = Quantizer(16, (3, 8, 8), fusion="small", modality="nearest")
    with pytest.raises(TrainingStopped, match=r"modality purity 0\.\d+, at least 0\.99"):
        trained(tmp_path, pairs(), quantizer=quantizer)


def test_spoilt_weights_are_neither_written_nor_read(tmp_path):
    quantizer = Quantizer(16, (3, 8), fusion="sum")
    table = save_quantizer(quantizer, tmp_path)
    good = (tmp_path / "quantizer.safetensors").read_bytes()
    quantizer.residual.vectors[2, 1] = torch.nan
    with pytest.raises(ModelMismatch, match=r"NaN or Inf in residual\.vectors"):
        save_quantizer(quantizer, tmp_path)
    assert (tmp_path / "quantizer.safetensors").read_bytes() == good
    load_quantizer(tmp_path, table)
