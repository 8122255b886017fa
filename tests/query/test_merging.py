"""Merging rankings of several modalities."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from genius.query.merging import backgrounds, merge_rankings
from genius.types import Modality

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR
SIMILAR = arrays(np.float32, st.integers(0, 20), elements=st.floats(-1, 1, width=32))


def sample(mean: float, seed: int, size: int = 256) -> np.ndarray:
    """Similarities of ordinary items: around a mean, with a deviation of 0.05."""
    noise = np.random.default_rng(seed).standard_normal(size)
    return (mean + 0.05 * noise).astype(np.float32)


def test_a_gap_between_modalities_is_taken_off():
    """Texts are nearer to every text; what counts is who stands out among their own."""
    found = backgrounds({IMAGE: sample(0.2, 0), TEXT: sample(0.6, 1)})
    image = found[IMAGE].standardize(np.array([0.4], np.float32))
    text = found[TEXT].standardize(np.array([0.7], np.float32))
    assert image > text  # four deviations against two, though the raw score is far lower
    assert found[IMAGE].mean < 0.23 and found[TEXT].mean > 0.57  # almost all of the gap


def test_without_a_gap_similarities_are_compared_as_they_are():
    """A modality that is a little nearer as a whole may be where the answer lies: it is not held back."""
    found = backgrounds({IMAGE: sample(0.60, 0), TEXT: sample(0.62, 1), PAIR: sample(0.61, 2)})
    assert max(ground.mean for ground in found.values()) - min(g.mean for g in found.values()) < 0.005
    image = found[IMAGE].standardize(np.array([0.80], np.float32))
    text = found[TEXT].standardize(np.array([0.81], np.float32))
    assert text > image


@given(shift=st.floats(-0.5, 0.5), scale=st.floats(0.1, 2))
def test_scores_do_not_depend_on_where_similarities_lie_or_how_far_apart(shift, scale):
    samples = {IMAGE: sample(0.3, 0), TEXT: sample(0.5, 1)}
    similar = np.array([0.9, 0.5], np.float32)
    moved = backgrounds({m: scale * values + np.float32(shift) for m, values in samples.items()})
    for modality, ground in backgrounds(samples).items():
        there = moved[modality].standardize(scale * similar + np.float32(shift))
        np.testing.assert_allclose(there, ground.standardize(similar), rtol=1e-3, atol=1e-3)


def test_the_only_item_of_a_modality_can_stand_out():
    found = backgrounds({IMAGE: sample(0.3, 0), TEXT: np.array([0.8], np.float32)})
    alone = found[TEXT].standardize(np.array([0.8], np.float32))
    assert alone > found[IMAGE].standardize(np.array([0.5], np.float32))


@given(images=SIMILAR, texts=SIMILAR, found=SIMILAR)
def test_scores_are_finite_and_keep_the_order_of_the_ranking(images, texts, found):
    for background in backgrounds({IMAGE: images, TEXT: texts}).values():
        scores = background.standardize(found)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) <= 0).all()


def test_items_that_are_all_alike_do_not_stand_out():
    found = backgrounds({IMAGE: np.full(50, 0.7, np.float32)})
    np.testing.assert_allclose(found[IMAGE].standardize(np.array([0.7], np.float32)), 0, atol=1e-3)
    assert backgrounds({IMAGE: np.zeros(0, np.float32)}) == {}
    assert backgrounds({}) == {}


def test_ties_go_by_rank_then_by_the_order_of_the_rankings():
    scores = [np.array(row, np.float32) for row in ([3, 1, 1], [3, 2], [])]
    which, rank = merge_rankings(scores, 4)
    assert list(zip(which.tolist(), rank.tolist(), strict=True)) == [(0, 0), (1, 0), (1, 1), (0, 1)]
