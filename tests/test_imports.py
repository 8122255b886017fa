"""What imports what: nothing heavy for `import genius` and `--help`, and the arrows of docs/design.md."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "genius"

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
    if not name.startswith("genius.cluster") and not name.endswith(("__main__", "gpu.kernels")):
        importlib.import_module(name)
print(len(names))
"""


def test_the_core_has_nothing_of_ray_in_its_import_graph() -> None:
    """Every module but those of `genius.cluster` is imported where Ray cannot be; kernels need Triton."""
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


# --- the packages -------------------------------------------------------------------------------------------

BY_NAME = re.compile(r"genius(\.\w+)+:\w+")  # an entry of a registry: "module:function"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed."""
    files = {
        ".".join(["genius", *f.relative_to(SOURCE).with_suffix("").parts]): f for f in SOURCE.rglob("*.py")
    }
    return {
        name.removesuffix(".__init__"): ast.parse(file.read_text(encoding="utf-8"))
        for name, file in files.items()
    }


def imported(tree: ast.Module) -> Iterator[str]:
    """Names of the modules of genius that a module imports, anywhere in it, or names in a registry."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and BY_NAME.fullmatch(node.value):
            yield node.value.partition(":")[0]


def package_of(module: str) -> str:
    """The folder or top-level module that a module belongs to; "genius" for the package itself."""
    package, _, rest = module.partition(".")
    first = rest.split(".")[0]
    return first if first and ((SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists()) else package


def arrows() -> dict[str, set[str]]:
    """Which packages each package imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in modules().items():
        targets = {package_of(target) for target in imported(tree) if target.split(".")[0] == "genius"}
        found[package_of(name)] |= targets - {package_of(name)}
    return found


def listed() -> tuple[set[str], dict[str, set[str]]]:
    """The packages that all may import, and what else each package may: the table in docs/design.md."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = text.partition("## Packages")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    cells = [[re.findall(r"`(\w+)`", cell) for cell in (line[0], line[2])] for line in lines]
    base = set(cells[0][0])
    return base, {package: set(targets) for packages, targets in cells for package in packages}


def test_no_circles_between_rooms() -> None:
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(f"packages import each other: {' -> '.join(reversed(error.args[1]))}")


def test_rooms_import_what_the_design_lists() -> None:
    base, allowed = listed()
    found = arrows()
    assert allowed.keys() == found.keys() | base, "docs/design.md, Packages: one line for every package"
    extra = {package: sorted(targets - base - allowed[package]) for package, targets in found.items()}
    extra = {package: targets for package, targets in extra.items() if targets}
    assert not extra, "imports that docs/design.md does not list"
    unused = {
        package: allowed[package] - targets
        for package, targets in found.items()
        if allowed[package] - targets
    }
    assert not unused, f"docs/design.md lists arrows that are gone: {unused}"


def test_no_two_public_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice
