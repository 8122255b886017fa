"""benchmarks/scale_accuracy.py on the tiny dataset, and the section of docs/scale.md that is made of it."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SYSTEMS = ["exact", "lookup+codes", "lookup+vectors", "genius", "fitted+codes"]


@pytest.fixture(scope="module")
def found(
    load_file: Callable[[Path], ModuleType], root: Path, run_folder: Path, tmp_path_factory: Any
) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        script = load_file(BENCHMARKS / "scale_accuracy.py")
        patch.setattr(script, "COMPARED_ALL", 100)
        patch.setitem(script.LARGEST, "genius", 100)
        *_, last = script.main(
            root, tmp_path_factory.mktemp("cache"), str(run_folder / "model"), [300], 4, SYSTEMS, [1, 20]
        )
    return json.loads(json.dumps(last))


def test_every_size_has_what_can_be_built_for_it(found: dict[str, Any]) -> None:
    real, filled = found["test"]
    assert (real["real"], filled["real"], filled["items"]) == (real["items"], real["items"], 300)
    assert list(real["hit@5"]) == SYSTEMS
    assert "genius" not in filled["hit@5"]
    assert filled["hit@5"]["exact"] < real["hit@5"]["exact"]  # made items stand in the way
    assert real["hit@5"]["lookup+vectors"] == pytest.approx(real["hit@5"]["exact"], abs=0.15)
    assert found["calibration"]["spread"] > 0


def test_beams_are_compared_with_all_codes_on_val(found: dict[str, Any]) -> None:
    real, filled = found["val"]
    assert "all codes" in real and "all codes" not in filled
    assert real["codes"]["20"] == pytest.approx(real["all codes"], abs=0.01)  # the beam holds every item
    assert real["codes"]["1"] <= real["codes"]["20"]
    assert filled["items"] == 300


def test_the_section_of_the_page(found: dict[str, Any]) -> None:
    section = "\n".join(runpy.run_path(str(BENCHMARKS / "scale_plan.py"))["accuracy"](found))
    first, second = found["test"]
    share = [f"{point['hit@5']['lookup+codes'] / point['hit@5']['exact']:.2f}" for point in (first, second)]
    assert f"| lookup+codes | {share[0]} | {share[1]} |" in section
    assert f"| exact, hit@5 | {100 * first['hit@5']['exact']:.1f} % |" in section
    genius = first["hit@5"]["genius"] / first["hit@5"]["exact"]
    assert f"| genius | {genius:.2f} | – |" in section
    assert "| re-ranked by vectors, beam 20 |" in section
    assert "At a billion items nobody knows" in section
    assert found["complete"] and "The run was ended" not in section
    assert "pictures/calibration.png" in section
