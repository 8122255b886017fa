"""Confidence: monotone in the similarity, read back as written, and fitted to how often answers are right."""

from __future__ import annotations

import numpy as np
import pytest

from genius.confidence import Calibration, ConfidenceWeights, background_gaps, sigmoid
from genius.errors import BadData, ModelMismatch
from genius.evaluate.calibration import Observations, fit_calibration, fit_weights
from genius.model import Model
from genius.types import Modality

KIND = (Modality.TEXT, Modality.IMAGE)


def test_more_similar_is_never_less_sure():
    calibration = Calibration({KIND: ConfidenceWeights(-3.0, 4.0, 0.5)}, ConfidenceWeights(-1.0, 1.0, 0.0))
    similar, sample = np.linspace(-1, 1, 50, dtype=np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    for kind in (KIND, (Modality.IMAGE, Modality.PAIR), (None, None), (Modality.TEXT, None)):
        sure = sigmoid(calibration.logits(*kind, similar, sample))
        assert (np.diff(sure) > 0).all() and sure[0] >= 0 and sure[-1] <= 1
    assert sigmoid(np.array([-1e9, 0, 1e9])).tolist() == [0, 0.5, 1]


def test_a_picture_that_finds_itself_is_sure():
    """Whatever the labelled data says, which has no copies; no other kind of query and item is touched."""
    weights = ConfidenceWeights(-30.0, 28.0, 0.0)
    calibration = Calibration({(Modality.IMAGE, Modality.IMAGE): weights, KIND: weights}, weights)
    similar, sample = np.array([0.9, 0.95, 0.97, 0.98, 1.0, 1.0001], np.float32), np.zeros(3, np.float32)
    plain = sigmoid(calibration.logits(*KIND, similar, sample))
    sure = sigmoid(calibration.logits(Modality.IMAGE, Modality.IMAGE, similar, sample))
    assert sure[:2] == pytest.approx(plain[:2]) and plain.max() < 0.2
    assert sure[2:] == pytest.approx([0.25, 0.5, 0.999, 0.999], abs=2e-3)
    for kind in ((Modality.IMAGE, Modality.PAIR), (Modality.IMAGE, None), (None, None)):
        assert sigmoid(calibration.logits(*kind, similar, sample)) == pytest.approx(plain)


def test_a_background_without_items_or_spread_is_harmless():
    similar = np.array([0.5, 0.1], np.float32)
    assert background_gaps(similar, similar[:0]).tolist() == [0, 0]
    assert np.isfinite(background_gaps(similar, np.full(3, 0.1, np.float32))).all()


def test_a_table_is_read_as_it_was_written():
    calibration = Calibration({KIND: ConfidenceWeights(-3.25, 4.0, 0.5)}, ConfidenceWeights(-1.0, 1.0, 0.0))
    assert Calibration.from_table(calibration.table()) == calibration
    assert Calibration.from_table({}) is None
    for bad in ({"pooled": [1, 2]}, {"text_to_image": [1, 2, 3]}, {"pooled": [1, 2, 3], "x_to_y": [1, 2, 3]}):
        with pytest.raises(ModelMismatch, match="genius calibrate"):
            Calibration.from_table(bad)


def observations(weights: ConfidenceWeights, count: int = 40_000) -> Observations:
    noise = np.random.default_rng(0)
    similar, gap = noise.uniform(0, 1, count), noise.normal(3, 1, count)
    chance = 1 / (1 + np.exp(-(weights.bias + weights.similarity * similar + weights.gap * gap)))
    numbers = np.arange(count)
    return Observations(KIND, similar, gap, noise.uniform(size=count) < chance, numbers, numbers % 10)


def test_the_fit_finds_the_weights_that_made_the_labels():
    truth = ConfidenceWeights(-6.0, 5.0, 0.8)
    calibration = fit_calibration([observations(truth)])
    assert (
        np.allclose(calibration.kinds[KIND], truth, atol=0.25)
        and calibration.kinds[KIND] == calibration.pooled
    )


def test_weights_are_not_negative():
    seen = observations(ConfidenceWeights(0.0, 4.0, -1.0))
    weights = fit_weights(seen.similar, seen.gap, seen.right)
    assert weights.gap == 0 and weights.similarity > 3
    seen = observations(ConfidenceWeights(0.0, -4.0, -1.0))
    assert fit_weights(seen.similar, seen.gap, seen.right)[1:] == (0, 0)


def test_data_of_another_world_cannot_calibrate():
    seen = observations(ConfidenceWeights(-500.0, 0.0, 0.0))
    with pytest.raises(BadData, match="no query found a right item"):
        fit_calibration([seen])


def test_the_embedded_model_is_calibrated():
    calibrations = Model.load("mini").calibrations
    assert calibrations.keys() == {"vectors", "codes"}
    for calibration in calibrations.values():
        assert KIND in calibration.kinds
        assert all(min(weights[1:]) >= 0 for weights in (*calibration.kinds.values(), calibration.pooled))
