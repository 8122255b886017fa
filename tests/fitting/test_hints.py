"""What labelled pairs add: kept where held-out queries find more by it, dropped where they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.config import TuningConfig
from genius.errors import BadInput
from genius.fitting.hints import HintOptions, HintResult, learn_from_pairs
from genius.quantize.fit import FitOptions, fit_quantizer
from genius.quantize.model import Quantizer

DIM, ITEMS, TOPICS = 24, 900, 10
TUNING = TuningConfig(steps=80, batch=128, error=3.0)
QUICK = HintOptions(tuning=TUNING, decoder_steps=10, batch=16, beam=5)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


class World:
    """Things of a few topics; items and queries are two rotated, noisy views of them with a gap between."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0)
        things = 1.5 * noise.standard_normal((TOPICS, DIM))[noise.integers(TOPICS, size=ITEMS)]
        things += noise.standard_normal((ITEMS, DIM))
        views = [0.4 * np.linalg.qr(noise.standard_normal((DIM, DIM)))[0] + np.eye(DIM) for _ in range(2)]
        gap = noise.standard_normal(DIM)
        self.items = unit(things @ views[0] + gap + 0.2 * noise.standard_normal((ITEMS, DIM)))
        self.queries = unit(things @ views[1] - gap + 0.4 * noise.standard_normal((ITEMS, DIM)))
        self.modality = np.zeros(ITEMS, dtype=np.uint8)
        self.positives = [[row] for row in range(ITEMS)]
        self.quantizer = fit_quantizer(
            torch.from_numpy(self.items),
            torch.from_numpy(self.modality.astype(np.int64)),
            FitOptions(item_bytes=3, rounds=1),
        )

    def learn(self, options: HintOptions = QUICK, decoder: bool = False) -> HintResult:
        return learn_from_pairs(
            self.quantizer, self.items, self.modality, self.queries, self.positives, options, decoder=decoder
        )


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def test_codes_learn_what_queries_ask_for(world: World) -> None:
    before = world.quantizer.residual.vectors.clone()
    result = world.learn()
    report = result.report
    assert isinstance(result.quantizer, Quantizer)
    assert report.tuned
    assert report.hit_rates["tuned codes"]["hit@10"] > report.hit_rates["codes"]["hit@10"] + 0.05
    assert report.queries + report.held_out == ITEMS
    assert 0.1 < report.held_out / ITEMS < 0.3
    assert torch.equal(world.quantizer.residual.vectors, before)  # the one given is left as it was
    assert "kept" in report.why[0]


def test_pairs_at_random_teach_nothing_that_is_kept(world: World) -> None:
    shuffled = World()
    order = np.random.default_rng(1).permutation(ITEMS)
    shuffled.positives = [[int(row)] for row in order]
    result = shuffled.learn(decoder=True)
    assert result.quantizer is None
    assert result.decoder is None
    assert not result.report.tuned
    assert not result.report.decoder
    assert all("dropped" in sentence for sentence in result.report.why)


def test_the_same_pairs_give_the_same_report(world: World) -> None:
    few = HintOptions(tuning=TuningConfig(steps=5))
    assert world.learn(few).report == world.learn(few).report


def test_large_collections_are_sampled_but_named_items_stay(world: World) -> None:
    half = [rows if rows[0] < 300 else [] for rows in world.positives]
    result = learn_from_pairs(
        world.quantizer, world.items, world.modality, world.queries, half,
        HintOptions(tuning=TuningConfig(steps=2), items=350),
    )  # fmt: skip
    assert result.report.queries + result.report.held_out == 300


def test_too_few_pairs_are_refused(world: World) -> None:
    for positives, message in (
        (world.positives[:99] + [[]] * (ITEMS - 99), "99 labelled pairs are too few"),
        ([[0, 1, 2]] * ITEMS, "too few differ"),
    ):
        with pytest.raises(BadInput, match=message):
            learn_from_pairs(world.quantizer, world.items, world.modality, world.queries, positives)
