"""Bootstrap intervals against the plain draw and against theory."""

from __future__ import annotations

import numpy as np
import pytest

from genius.errors import BadInput
from genius.evaluate.metrics import bootstrap


def test_the_same_as_drawing_every_query():
    values = np.random.default_rng(1).choice([0.0, 0.25, 0.5, 1.0], size=300)
    generator = np.random.default_rng(2)
    plain = values[generator.integers(0, 300, (20_000, 300))].mean(axis=1)
    np.testing.assert_allclose(
        bootstrap([values], samples=20_000), np.quantile(plain, [0.025, 0.975]), atol=0.004
    )


def test_covers_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(3)
    covered = 0
    for trial in range(300):
        low, high = bootstrap([generator.binomial(1, 0.3, size=200).astype(float)], samples=500, seed=trial)
        covered += low <= 0.3 <= high
    assert 0.90 <= covered / 300 <= 0.99


def test_paired_differences_are_narrower_than_two_separate_intervals():
    generator = np.random.default_rng(4)
    hard = generator.random(400)  # how hard each query is, the same for both systems
    one, other = (hard < 0.5).astype(float), (hard < 0.53).astype(float)
    low, high = bootstrap([other - one])
    alone = bootstrap([one])
    assert low > 0
    assert high - low < alone[1] - alone[0]


def test_rows_count_alike_whatever_their_size():
    low, high = bootstrap([np.ones(10_000), np.zeros(5)])
    assert low == high == 0.5


def test_deterministic_and_constant():
    values = np.random.default_rng(5).random(50)
    assert bootstrap([values], seed=7) == bootstrap([values], seed=7)
    assert bootstrap([np.full(9, 0.25)]) == (0.25, 0.25)


def test_nothing_to_draw_from():
    with pytest.raises(BadInput, match="at least one"):
        bootstrap([np.ones(3), np.empty(0)])
