"""Fault 49: stdout closed or full, locale C, no HOME: the right exit code, no traceback, nothing unsaid."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from genius.store.check import check

PROGRAM = Path(__file__).parents[1] / "cli" / "fake_model.py"
LOST = "what the command changed is committed"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with texts and an index of them, which knows them by this very path."""
    folder = tmp_path_factory.mktemp("streams") / "place"
    folder.mkdir()
    (folder / "texts").mkdir()
    for name in ("red", "blue", "grün"):
        (folder / "texts" / f"{name}.txt").write_text(f"something {name}")
    (folder / "texts" / os.fsdecode(b"odd\xff.txt")).write_text("something odd")
    done = run(folder, "index", "texts", "--to", "idx")
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder, folder.with_name("kept"))
    return folder


@pytest.fixture
def place(made) -> Path:
    """The folder as it was made; a test may change it."""
    shutil.rmtree(made)
    shutil.copytree(made.with_name("kept"), made)
    return made


def run(folder: Path, *arguments: str, redirect: str = "", environment=None):
    """`genius ARGUMENTS` in a shell, so that streams can be closed and redirected."""
    line = f'"$@" {redirect}'
    command = ["bash", "-c", line, "bash", sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GENIUS_INDEX": "idx", **(environment or {})},
        capture_output=True,
        timeout=120,
        check=False,
    )


def items(folder: Path) -> int:
    found = check(folder / "idx")
    assert found.clean
    return found.items


VERBS = {
    "search": ["search", "red"],
    "stats": ["stats"],
    "export": ["export", "-"],
    "export to a file": ["export", "all.jsonl"],
    "check": ["check"],
    "compact": ["compact"],
    "remove": ["remove", "red.txt"],
    "index": ["index", "texts", "--prune"],
    "help": ["--help"],
    "version": ["--version"],
}


@pytest.mark.parametrize("redirect", [">&-", ">/dev/full", ">&- 2>&-"])
@pytest.mark.parametrize("verb", VERBS)
def test_stdout_closed_or_full(place, verb, redirect):
    done = run(place, *VERBS[verb], redirect=redirect)
    assert done.returncode == 9, done.stderr
    if "2>" not in redirect:
        line = done.stderr.decode().splitlines()[-1]
        assert line.startswith("genius: cannot write the output (") and LOST in line
        assert b"Traceback" not in done.stderr
    # it is done, as the line says; and nothing was printed into a file of the index
    assert items(place) == (3 if verb == "remove" else 4)


def test_a_reader_that_goes_away(place):
    """It is no fault, so nothing is said of it: `genius list | head`."""
    gone = "| { exec <&-; sleep 0.1; }; exit ${PIPESTATUS[0]}"
    done = run(place, "list", redirect=gone)
    assert done.returncode in (0, 1)  # 0: the pipe took all of it before its reader was gone
    assert b"Broken pipe" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_nobody_reads_stderr_or_writes_stdin(place, redirect):
    """Reports and progress are lost, the work is not."""
    (place / "texts" / "new.txt").write_text("something new")
    (place / "texts" / "bad.png").write_bytes(b"no picture")
    done = run(place, "index", "texts", "--format", "json", redirect=redirect)
    assert done.returncode == 0 and json.loads(done.stdout)["added"] == 1
    assert items(place) == 5
    done = run(place, "search", "--in", "nowhere", "red", redirect=redirect)
    assert done.returncode == 5 and done.stdout == b""


@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "POSIX", "LANG": ""},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=str,
)
def test_other_locales(place, environment):
    done = run(place, "search", "something", environment=environment)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 5, done.stderr
    assert b"odd\\udcff.txt" in done.stdout
    done = run(place, "search", "red", "--format", "json", environment=environment)
    assert {"grün.txt", "red.txt"} <= {hit["id"] for hit in json.loads(done.stdout)}
    done = run(place, "search", "red", "--in", "nicht-dä", environment=environment)
    assert done.returncode == 5 and b"Traceback" not in done.stderr


def test_names_that_are_no_utf8(place):
    odd = os.fsdecode(b"\xffidx")
    for arguments, code in (
        (["index", "texts", "--to", odd], 0),
        (["search", "red", "--in", odd], 0),
        (["stats", "--in", odd], 0),
        (["check", "--in", odd], 0),
        (["export", odd + ".jsonl", "--in", odd], 0),
        (["import", odd + ".jsonl", "--to", odd + "2"], 0),
        (["export", odd + ".zip", "--in", odd], 2),
        (["search", "red", "--in", odd + "nowhere"], 5),
        (["search", odd], 2),
        (["search", "--image", odd], 2),
        (["search", "red", "--want", odd], 2),
        (["remove", odd], 2),
        (["index", odd + "nowhere"], 2),
        (["search", "--in", "x" * 5000, "red"], 2),
        (["index", "x" * 5000], 2),
    ):
        done = run(place, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert b"Traceback" not in done.stderr


def nobody(*command: str) -> list[str]:
    """The command as a user whom no list of users knows, in a user namespace."""
    return ["unshare", "--user", "--map-user=12345", "--map-group=12345", "env", "-i", *command]


@pytest.fixture
def unshare() -> None:
    if not shutil.which("unshare") or subprocess.run(nobody("true"), capture_output=True).returncode:
        pytest.skip("this machine does not allow user namespaces")


def test_no_home_and_no_user(place, unshare):
    program = [f"PYTHONPATH={':'.join(sys.path)}", sys.executable, str(PROGRAM)]
    for arguments, codes in (
        (["search", "red", "--in", "idx"], {0}),
        (["stats", "--in", "idx"], {0}),
        (["remove", "red.txt", "--in", "idx"], {0}),
        (["--install-completion", "bash"], {1, 2}),  # 1: no shell among the parents of this process
    ):
        done = subprocess.run(
            nobody(*program, *arguments), cwd=place, capture_output=True, timeout=120, check=False
        )
        assert done.returncode in codes, done.stderr
        assert b"Traceback" not in done.stderr


def test_deeply_nested_files(place):
    """TOML and JSON whose brackets never end."""
    (place / "deep.toml").write_text("a = " + "[" * 100_000)
    done = run(place, "train", "all", "deep.toml")
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    (place / "deep").mkdir()
    (place / "deep" / "model.toml").write_text("a = " + "[" * 100_000)
    (place / "deep.jsonl").write_text("[" * 100_000)
    done = run(place, "import", "deep.jsonl", "--to", "new")
    assert done.returncode != 0 and b"Traceback" not in done.stderr
