"""Pictures of a frontier: every system is named once, labels keep apart, odd input is refused."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

pytest.importorskip("matplotlib", reason='needs the extra: pip install "genius-search[bench]"')

from genius.errors import BadInput
from genius.plots import frontier as pictures
from genius.plots.style import colour, png

SYSTEMS = ("exact", "genius", "decoder+codes", "lookup+vectors", "hnsw", "ivf-pq", "something-new")


def make(sizes=(1000, 16_000, 100_000), real=16_000):
    points = [
        {
            "system": system,
            "items": size,
            "real": min(size, real),
            "hit_at_5": 0.7 - 0.01 * number,
            "milliseconds": (number + 1) * size / 1e4,
            "slow_milliseconds": 1.0,
            "queries_per_second": 1e6 / size,
            "bytes_per_item": 2048 / (number + 1),
            "build_seconds": 1.0,
        }
        for size in sizes
        for number, system in enumerate(SYSTEMS)
    ]
    beams = [{"system": "genius", "beam": b, "hit_at_5": b / 60, "milliseconds": b} for b in (1, 10, 50)]
    return {"points": points, "beams": beams, "crossovers": []}


def words(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("draw", [pictures.by_bytes, pictures.by_time, pictures.speed, pictures.latency])
def test_every_system_is_named_once(draw):
    figure = draw(make())
    assert sorted(words(figure)) == sorted(SYSTEMS)
    image = Image.open(BytesIO(png(figure)))
    assert image.size > (900, 600)
    assert len(np.unique(np.asarray(image.convert("L")))) > 50  # not blank


@pytest.mark.parametrize(("span", "shown"), [(1.0, {"0.5", "1", "2"}), (1e4, {"1", "100", "10,000"})])
def test_numbers_on_an_axis_are_written_out(span, shown):
    frontier = make()
    for number, point in enumerate(frontier["points"]):
        point["milliseconds"] = 0.4 + (span + 2) * number / len(frontier["points"])
    figure = pictures.latency(frontier)
    axis = figure.axes[0].yaxis
    labels = [tick.get_text() for tick in axis.get_ticklabels(which="both")]
    assert shown <= set(labels)
    assert not any("10^" in label for label in labels)


def test_hit_rates_are_read_off_the_largest_real_pool():
    figure = pictures.by_bytes(make())
    assert "16,000 items" in figure.axes[0].get_title(loc="left")
    with pytest.raises(BadInput, match="no pool has real items only"):
        pictures.by_time(make(sizes=(20_000,)))


def test_beams():
    figure = pictures.beams(make())
    line = figure.axes[0].lines[0]
    assert line.get_xdata().tolist() == [1, 10, 50]
    assert words(figure) == ["genius"]
    with pytest.raises(BadInput, match="--beams"):
        pictures.beams(make() | {"beams": []})


def test_the_same_picture_is_the_same_file():
    assert png(pictures.beams(make())) == png(pictures.beams(make()))


def test_labels_of_scattered_points_do_not_overlap():
    figure = pictures.by_bytes(make())
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


@given(st.lists(st.floats(0, 500), min_size=1, max_size=10))
def test_heights_are_pushed_apart_in_their_order(heights):
    placed = pictures._apart(heights, 10.0)
    ordered = [placed[n] for n in sorted(range(len(heights)), key=lambda n: heights[n])]
    assert all(b - a > 9 for a, b in pairwise(ordered))


def test_colours_are_stable():
    assert colour("exact") != colour("genius")
    assert colour("unknown-system") == colour("unknown-system")


def test_calibration_shows_the_real_curve_and_all_that_were_tried():
    found = {"spread": 1.2, "base": 500, "sizes": [1000, 2000], "real": [0.7, 0.6]}
    found["filled"] = [{"spread": s, "hit_at_5": [0.7, 0.7 - s / 10]} for s in (0.5, 1.2, 2.0)]
    figure = pictures.calibration(make() | {"calibration": found})
    assert sorted(words(figure)) == ["real items", "spread 0.5", "spread 1.2", "spread 2"]
    assert "calibration" in pictures.figures(make() | {"calibration": found})
    assert "calibration" not in pictures.figures(make())
