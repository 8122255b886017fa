"""Merging rankings of several modalities."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from genius.pool.fair import backgrounds, merged
from genius.types import Modality

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
SIMILAR = arrays(np.float32, st.integers(0, 20), elements=st.floats(-1, 1, width=32))


def test_a_shift_of_a_whole_modality_changes_next_to_nothing():
    """Texts are nearer to every text; what counts is who stands out among their own."""
    noise = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    samples = {IMAGE: 0.2 + 0.05 * noise, TEXT: 0.6 + 0.05 * noise}
    found = backgrounds(samples)
    image = found[IMAGE].stands_out(np.array([0.4], np.float32))
    text = found[TEXT].stands_out(np.array([0.75], np.float32))
    assert image > text  # four deviations against three, though the raw score is lower


@given(images=SIMILAR, texts=SIMILAR, found=SIMILAR)
def test_scores_are_finite_and_keep_the_order_of_the_ranking(images, texts, found):
    for background in backgrounds({IMAGE: images, TEXT: texts}).values():
        scores = background.stands_out(found)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) <= 0).all()


def test_items_that_are_all_alike_do_not_stand_out():
    found = backgrounds({IMAGE: np.full(50, 0.7, np.float32)})
    np.testing.assert_allclose(found[IMAGE].stands_out(np.array([0.7], np.float32)), 0, atol=1e-3)
    assert backgrounds({IMAGE: np.zeros(0, np.float32)}) == {}
    assert backgrounds({}) == {}


def test_ties_go_by_rank_then_by_the_order_of_the_rankings():
    scores = [np.array(row, np.float32) for row in ([3, 1, 1], [3, 2], [])]
    which, rank = merged(scores, 4)
    assert list(zip(which.tolist(), rank.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1), (0, 1)]
