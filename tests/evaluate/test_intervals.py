"""Bootstrap intervals against the plain draw and against theory."""

from __future__ import annotations

import numpy as np
import pytest

from genius.errors import BadInput
from genius.evaluate.intervals import bootstrap, group_queries


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


def test_queries_of_one_group_are_drawn_together():
    """Four captions of each photo hit or miss together: as uncertain as 50 photos, not as 200 queries."""
    photos = np.random.default_rng(6).binomial(1, 0.4, size=50).astype(float)
    grouped = bootstrap([np.repeat(photos, 4)], [np.repeat(np.arange(50), 4)])
    assert grouped == pytest.approx(bootstrap([photos]), abs=0.01)
    alone = bootstrap([np.repeat(photos, 4)])
    assert alone[1] - alone[0] < 0.6 * (grouped[1] - grouped[0])


def test_rows_that_share_photos_are_no_independent_evidence():
    photos = np.random.default_rng(7).binomial(1, 0.4, size=100).astype(float)
    shared = bootstrap([photos, photos], [np.arange(100), np.arange(100)])
    apart = bootstrap([photos, photos])
    assert apart[1] - apart[0] < 0.8 * (shared[1] - shared[0])
    assert shared == pytest.approx(bootstrap([photos]), abs=0.01)


def test_a_row_that_a_draw_misses_keeps_its_mean():
    low, high = bootstrap([np.ones(1), np.zeros(60)], [np.array([0]), np.arange(1, 61)])
    assert (low, high) == (0.5, 0.5)


def test_groups_join_what_shares_a_link_across_rows():
    found = group_queries({"a": [["photo 1"], ["photo 2", "item 5"], []], "b": [["item 5"], ["photo 1"], []]})
    assert found["a"][0] == found["b"][1]
    assert found["a"][1] == found["b"][0]
    assert len({*found["a"], *found["b"]}) == 4  # and two queries that have nothing in common with any other


def test_a_chain_of_links_is_one_group():
    (numbers,) = group_queries({"row": [["x", "y"], ["y", "z"], ["w"], ["z", "w"]]}).values()
    assert set(numbers) == {numbers[0]}
