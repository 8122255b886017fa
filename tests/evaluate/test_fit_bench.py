"""benchmarks/fit.py: parts that several processes measured become one result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from genius.errors import BadInput

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import fit

    yield fit
    for name in ("fit", "_harness"):
        sys.modules.pop(name, None)


def part(folder: Path, name: str, setting: str, *, commit: str = "c", **more: Any) -> Path:
    """The file of a run that measured one setting of one kind of vectors."""
    file = folder / f"{name}-{setting}-{commit}.json"
    table = {"exact": {"hit@5": 0.5}, "genius, cosine": {"hit@5": 0.4}}
    made_by = {"command": f"python benchmarks/fit.py {name} {setting}", "commit": commit, "versions": {}}
    file.write_text(json.dumps({**made_by, "bytes": 15, **more, name: {"test": {setting: table}}}))
    return file


def test_parts_are_merged_and_each_says_how_it_was_made(fit: ModuleType, tmp_path: Path) -> None:
    files = [
        part(tmp_path, "mini", "universal"),
        part(tmp_path, "mini", "local"),
        part(tmp_path, "x", "local"),
    ]
    found = fit.merged(files)
    assert set(found) == {"measured_by", "bytes", "mini", "x"}
    assert set(found["mini"]["test"]) == {"universal", "local"}
    assert found["x"]["test"]["local"]["exact"] == {"hit@5": 0.5}
    assert [by["command"].split()[2:] for by in found["measured_by"]] == [
        ["mini", "universal"],
        ["mini", "local"],
        ["x", "local"],
    ]


def test_parts_that_do_not_belong_together_are_refused(fit: ModuleType, tmp_path: Path) -> None:
    first = part(tmp_path, "mini", "universal")
    with pytest.raises(BadInput, match="another commit"):
        fit.merged([first, part(tmp_path, "mini", "local", commit="d")])
    with pytest.raises(BadInput, match="universal is in another file"):
        fit.merged([first, first])
    with pytest.raises(BadInput, match="bytes"):
        fit.merged([first, part(tmp_path, "x", "local", bytes=16)])


def test_the_merged_file_names_command_commit_and_versions(tmp_path: Path) -> None:
    files = [part(tmp_path, "mini", "universal"), part(tmp_path, "mini", "local")]
    out = tmp_path / "fit.json"
    command = [sys.executable, str(BENCHMARKS / "fit.py"), "--merge", *map(str, files), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert {"command", "versions", "measured_by", "mini"} <= found.keys()
    assert "--merge" in found["command"]


def test_names_that_do_not_exist_are_refused(fit: ModuleType) -> None:
    assert fit.chosen("local,universal", fit.SETTINGS, "--settings") == ["local", "universal"]
    with pytest.raises(BadInput, match="--settings globe"):
        fit.chosen("local,globe", fit.SETTINGS, "--settings")
