"""`import genius`, the readers and `genius --help` are quick: they import nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "faiss", "fastapi", "ray", "matplotlib")

PROBE = """
import sys
try:
    {code}
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
print("imported:", *(name for name in {heavy!r} if name in sys.modules))
"""

CASES = {
    "package": "import genius; genius.Item, genius.Query, genius.__version__",
    "types": "import genius.types, genius.errors, genius.config",
    "readers": "from genius.data import folder, images, instructions, karpathy, mbeir, tables, texts",
    "help": "sys.argv = ['genius', '--help']; from genius.cli import main; main()",
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_heavy_is_imported(case: str) -> None:
    code = PROBE.format(code=CASES[case], heavy=HEAVY)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].split() == ["imported:"]


def test_the_probe_can_fail() -> None:
    code = PROBE.format(code="import unittest", heavy=("unittest",))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["imported:", "unittest"]


def test_help_names_the_program() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from genius.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage" in run.stdout
