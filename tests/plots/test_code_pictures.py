"""Grids of codes and maps: the right items in the right row, main axes as a full decomposition finds them."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib", reason='needs the extra: pip install "genius-search[bench]"')

from genius.errors import BadInput
from genius.plots.codes import IMAGES, TEXTS, grid, groups
from genius.plots.maps import maps, principal
from genius.plots.style import png

CODES = np.array([[0, 5, 1], [0, 5, 2], [1, 5, 3], [1, 7, 3], [2, 7, 9], [0, 9, 9]])
HAS_IMAGE = np.array([True, True, False, False, True, True])
HAS_TEXT = np.array([False, False, True, True, True, False])


def test_codes_shared_by_images_and_texts_come_first():
    found = groups(CODES, HAS_IMAGE, HAS_TEXT, level=1)
    assert [(g.code, g.count) for g in found] == [(5, 3), (7, 2), (9, 1)]
    assert (found[0].images, found[0].texts) == ((0, 1), (2,))
    assert found[0].label == "(*, 5, *)"
    assert groups(CODES, HAS_IMAGE, HAS_TEXT, level=0)[0].label == "(0, *)"
    assert groups(CODES, HAS_IMAGE, HAS_TEXT, level=2)[0].label == "(*, *, 3)"


def test_a_pool_of_pairs_shows_their_texts():
    both = np.ones(6, dtype=bool)
    assert groups(CODES, both, both, level=1)[0].texts == (0, 1, 2)


def test_few_of_many_are_shown():
    codes = np.zeros((100, 2), dtype=np.int64)
    codes[:, 1] = np.arange(100)
    (only,) = groups(codes, np.arange(100) < 50, np.arange(100) >= 50, level=0)
    assert (len(only.images), len(only.texts), only.count) == (IMAGES, TEXTS, 100)
    assert only.images[0] == 0
    assert only.images[-1] == 49


def test_a_level_that_is_not_there():
    with pytest.raises(BadInput, match="levels 0 to 2"):
        groups(CODES, HAS_IMAGE, HAS_TEXT, level=3)


def test_the_grid_holds_codes_counts_and_words():
    def picture(row):
        return None if row == 1 else Image.new("RGB", (40, 20), "red")

    figure = grid(groups(CODES, HAS_IMAGE, HAS_TEXT, 1), picture, lambda row: f"text number {row} " * 20)
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"(*, 5, *)", "3 items", "unreadable"} <= set(said)
    assert any(words.startswith("text number 2") and words.endswith("…") for words in said)
    pixels = np.asarray(Image.open(BytesIO(png(figure))).convert("RGB"))
    assert (pixels == (255, 0, 0)).all(axis=2).mean() > 0.01
    with pytest.raises(BadInput, match="no code to show"):
        grid([], picture, str)


def test_main_axes_equal_a_singular_value_decomposition():
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(200, 6)) * [5, 3, 1, 1, 0.5, 0.1]).astype(np.float32)
    places = principal(vectors)
    centred = vectors - vectors.mean(axis=0)
    _, values, _ = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    np.testing.assert_allclose(np.linalg.norm(places, axis=0), values[:2], rtol=1e-6)
    with pytest.raises(BadInput, match="at least 3"):
        principal(vectors[:2])


def test_a_map_has_a_panel_for_each_model_and_a_legend_of_kinds():
    vectors = np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32)
    kinds = ["image", "text", "query"] * 10
    figure = maps({"before": (vectors, kinds), "after": (vectors * 2, kinds)}, "title")
    assert [axes.get_title() for axes in figure.axes] == ["before", "after"]
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == ["image", "text", "query"]
    assert len(png(figure)) > 10_000
    with pytest.raises(BadInput, match="nothing to map"):
        maps({}, "title")
