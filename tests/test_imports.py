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


WITHOUT_RAY = """
import importlib, pkgutil, sys
for name in ("ray", "pyarrow"):
    sys.modules[name] = None  # importing it fails
import genius
names = [m.name for m in pkgutil.walk_packages(genius.__path__, "genius.")]
for name in names:
    if not name.startswith("genius.cluster") and not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


def test_the_core_has_nothing_of_ray_in_its_import_graph() -> None:
    """Every module but those of `genius.cluster` is imported where Ray cannot be."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 100


def test_a_cluster_without_ray_says_what_to_install() -> None:
    code = """
import sys
sys.modules["ray"] = None
sys.argv = ["genius", "index", ".", "--cluster", "local", "--to", "nowhere"]
from genius import cli
import genius.cluster.session as session
try:
    session.ray_module()
except session.MissingExtra as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == 'a cluster needs ray: pip install "genius-search[cluster]"\n'


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
