"""benchmarks/scale_accuracy.py on the tiny dataset, and the section of docs/scale.md that is made of it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SYSTEMS = ["exact", "lookup+codes", "lookup+vectors", "genius", "fitted+codes"]


@pytest.fixture(scope="module")
def scale_accuracy(load_file: Callable[[Path], ModuleType]) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        script = load_file(BENCHMARKS / "scale_accuracy.py")
        patch.setitem(script.LARGEST, "genius", 100)
        patch.setattr(script, "ITEM_BYTES", [8])
        yield script


@pytest.fixture(scope="module")
def found(scale_accuracy: ModuleType, root: Path, run_folder: Path, tmp_path_factory: Any) -> dict[str, Any]:
    cache = tmp_path_factory.mktemp("cache")
    *_, last = scale_accuracy.main(root, cache, str(run_folder / "model"), [300], 4, SYSTEMS, [1, 20])
    return json.loads(json.dumps(last))


def test_every_size_has_what_can_be_built_for_it(found: dict[str, Any]) -> None:
    real, filled = found["test"]
    assert (real["real"], filled["real"], filled["items"]) == (real["items"], real["items"], 300)
    assert set(real["systems"]) == set(SYSTEMS)
    assert "genius" not in filled["systems"]
    hits = [point["systems"]["exact"]["hit@5"] for point in (real, filled)]
    assert hits[1] < hits[0]  # made items stand in the way
    assert found["calibration"]["spread"] > 0


def test_systems_are_measured_beside_exact_search(found: dict[str, Any]) -> None:
    for point in found["test"]:
        exact, lookup = point["systems"]["exact"], point["systems"]["lookup+vectors"]
        assert (exact["share"], exact["nearest"], exact["interval"]) == (1, 1, [1, 1])
        assert lookup["share"] == pytest.approx(1, abs=0.15)
        assert lookup["nearest"] > 0.9  # all items are within the beam
        for name, each in point["systems"].items():
            assert each["share"] == pytest.approx(each["hit@5"] / exact["hit@5"]), name
            assert each["interval"][0] <= each["share"] <= each["interval"][1]


def test_beams_are_compared_with_all_codes_on_val(found: dict[str, Any]) -> None:
    real, filled = found["val"]
    assert real["own"]["codes"]["20"]["hit@5"] == pytest.approx(real["own"]["all codes"]["hit@5"], abs=0.01)
    assert real["own"]["codes"]["1"]["nearest"] < real["own"]["codes"]["20"]["nearest"]
    assert filled["items"] == 300
    fitted = [key for point in (real, filled) for key in point if key.startswith("fitted")]
    assert fitted == ["fitted, 8 bytes"]


def test_fitted_codes_come_together_and_others_in_their_order(scale_accuracy: ModuleType) -> None:
    systems = ["exact", "fitted+codes", "genius", "fitted+vectors"]
    assert list(scale_accuracy.in_turn(systems, [10, 300_000])) == [
        ("exact", 10), ("exact", 300_000),
        ("fitted+codes", 10), ("fitted+vectors", 10), ("fitted+codes", 300_000), ("fitted+vectors", 300_000),
        ("genius", 10),
    ]  # fmt: skip


def test_the_section_of_the_page(found: dict[str, Any]) -> None:
    section = "\n".join(runpy.run_path(str(BENCHMARKS / "scale_plan.py"))["accuracy"](found))
    first, second = (point["systems"] for point in found["test"])
    low, high = first["genius"]["interval"]
    assert f"| genius | {first['genius']['share']:.2f} ± {(high - low) / 2:.2f} | – |" in section
    assert f"| exact, hit@5 | {100 * first['exact']['hit@5']:.1f} % |" in section
    near = [f"{each['lookup+codes']['nearest']:.2f}" for each in (first, second)]
    assert f"| lookup+codes | {near[0]} | {near[1]} |" in section
    assert "| own: re-ranked by vectors, beam 20 |" in section
    assert "| fitted, 8 bytes: all of them compared |" in section
    assert "At a billion items nobody knows" in section
    assert found["complete"] and "The run was ended" not in section
    assert "pictures/calibration.png" in section
