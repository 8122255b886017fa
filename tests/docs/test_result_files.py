"""Every file in benchmarks/results names the command, the commit and the versions that made it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))
# Measured before commits were recorded. A file leaves the list when it is measured again.
OLDER = frozenset(
    {
        "ablations", "chaos", "cluster", "frontier-cuda",
        "recipe", "server", "speed-gpu", "training",
    }
)  # fmt: skip
# Measured with an earlier `mini`: `genius report` leaves them out, and nothing else may read them.
EARLIER_MODEL = frozenset({"frontier-cuda"})


def parts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements in a file: one, or several by name, each with a command of its own."""
    named = [part for part in result.values() if isinstance(part, dict) and "command" in part]
    return [result] if "command" in result or not named else named


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_the_list_of_older_files_names_files() -> None:
    assert {file.stem for file in FILES} >= OLDER


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_result_file_says_how_it_was_made(file: Path) -> None:
    measured = parts(json.loads(file.read_text(encoding="utf-8")))
    for part in measured:
        if file.stem not in OLDER:
            assert {"command", "commit", "versions"} <= part.keys(), f"{file.name}: measure it again"
        if "commit" in part:
            assert {"command", "versions"} <= part.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_commit_is_in_the_history(file: Path) -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("this is no checkout of the repository with its whole history")
    for part in parts(json.loads(file.read_text(encoding="utf-8"))):
        if "commit" in part:
            found = git("merge-base", "--is-ancestor", part["commit"], "HEAD").returncode == 0
            assert found, f"{file.name}: {part['commit']} is not in the history: measure at a commit that is"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_its_model_is_the_one_of_the_results(file: Path) -> None:
    def model(name: str) -> str | None:
        about = json.loads((file.parent / f"{name}.json").read_text(encoding="utf-8")).get("model")
        return about.get("fingerprint") if isinstance(about, dict) else None

    earlier = model(file.stem) not in (None, model("results-universal"))
    assert earlier == (file.stem in EARLIER_MODEL), f"{file.name}: measure it again, or list it"


def test_parts_of_a_file_are_looked_at_one_by_one() -> None:
    assert parts({"lookup": {"command": "a"}, "scale": {"command": "b"}, "note": 1}) == [
        {"command": "a"},
        {"command": "b"},
    ]
    assert parts({"command": "a", "inner": {"command": "b"}})[0]["command"] == "a"
    assert parts({"rows": []}) == [{"rows": []}]


def test_the_ablations_were_run_as_one_command() -> None:
    found = json.loads((REPOSITORY / "benchmarks" / "results" / "ablations.json").read_text(encoding="utf-8"))
    if "ablations" in OLDER and "commit" not in found:
        pytest.skip("measured before commands were recorded, in parts")
    assert [by["command"] for by in found["trained_by"]] == [found["command"]]


# What writes the files


@pytest.fixture
def provenance(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = importlib.import_module("genius.evaluate.provenance")
    monkeypatch.delenv("GENIUS_COMMIT", raising=False)
    module.commit.cache_clear()
    yield module
    module.commit.cache_clear()


def test_the_commit_of_a_checkout_and_what_changed_since(provenance, tmp_path: Path, monkeypatch) -> None:
    code = tmp_path / "src" / "genius" / "evaluate" / "provenance.py"
    code.parent.mkdir(parents=True)
    monkeypatch.setattr(provenance, "FILE", code)
    assert provenance.commit() == {}  # no repository
    code.write_text("one\n")

    def in_it(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    in_it("init", "-q")
    provenance.commit.cache_clear()
    assert provenance.commit() == {}  # a repository that does not have it: a venv in somebody's project
    in_it("add", ".")
    in_it("commit", "-qm", "first")
    provenance.commit.cache_clear()
    first = in_it("rev-parse", "HEAD").strip()
    assert provenance.commit() == {"commit": first}
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "new.json").write_text("{}")
    in_it("add", ".")
    provenance.commit.cache_clear()
    assert provenance.commit() == {"commit": first}  # results are no code
    code.write_text("two\n")
    provenance.commit.cache_clear()
    assert provenance.commit() == {"commit": first, "changed": ["src/genius/evaluate/provenance.py"]}


def test_a_copy_without_history_is_told_its_commit(provenance, monkeypatch) -> None:
    monkeypatch.setenv("GENIUS_COMMIT", "0123abc")
    assert provenance.commit() == {"commit": "0123abc"}


def test_a_benchmark_writes_command_commit_and_versions(load_file, provenance, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GENIUS_COMMIT", "0123abc")
    harness = load_file(REPOSITORY / "benchmarks" / "_harness.py")
    out = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["trie.py", "--items", "7", "--out", str(out)])

    def main(items: int = 1) -> dict[str, Any]:
        return {"items": items}

    harness.run(main)
    found = json.loads(out.read_text())
    assert found["command"] == "python benchmarks/trie.py --items 7"
    assert found["commit"] == "0123abc" and found["items"] == 7
    assert {"python", "torch", "processor"} <= found["versions"].keys()


def test_every_script_that_writes_results_goes_through_the_harness() -> None:
    for script in sorted((REPOSITORY / "benchmarks").glob("*.py")):
        text = script.read_text(encoding="utf-8")
        if "--out" in text and not script.name.startswith("_"):
            assert "import" in text and ("provenance()" in text or "run(main" in text), script.name
