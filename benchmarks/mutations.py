"""Small sabotages of the store, the server's gate and the bench: does the suite notice each of them?

    python benchmarks/mutations.py                       # the first list: benchmarks/results/mutations.json
    python benchmarks/mutations.py --list bench          # mutations_bench.toml: bench, recipes, formats
    python benchmarks/mutations.py --only key --out -    # those whose name has `key`

Each entry of a list replaces one text by another in one file of a copy of the tree and runs the tests
it names; a test must fail. All named tests pass without any change, which is checked first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import provenance

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
COPIED = ("src", "tests", "benchmarks", "pyproject.toml", "README.md", "docs", "recipes")
LIMIT_S = 300.0  # tests that take longer have hung, which is noticed, too


@dataclass(frozen=True, slots=True)
class Mutation:
    """One sabotage, and the tests that must notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Change the file under `root`; the old text must be there once."""
        file = root / self.file
        text = file.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(
                f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}, not once"
            )
        file.write_text(text.replace(self.old, self.new))


def read_list(file: Path) -> list[Mutation]:
    """The entries of a list."""
    entries = tomllib.loads(file.read_text())["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def run_tests(root: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of a tree; pytest's exit code (0 passed, 1 failed, -1 hung) and the first that failed."""
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[0] if failed else done.stdout[-500:]


def copy_tree(to: Path) -> None:
    """What the tests need of this tree."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, to / name)


def check(mutations: Sequence[Mutation], scratch: Path) -> list[dict[str, Any]]:
    """Apply one mutation after the other and say what became of it."""
    tree = scratch / "tree"
    tree.mkdir()
    copy_tree(tree)
    code, why = run_tests(tree, sorted({test for mutation in mutations for test in mutation.tests}))
    if code:
        raise SystemExit(f"the tests do not pass without any change: {why}")
    found = []
    for mutation in mutations:
        original = (tree / mutation.file).read_bytes()
        mutation.apply(tree)
        began = time.perf_counter()
        code, by = run_tests(tree, mutation.tests)
        (tree / mutation.file).write_bytes(original)
        noticed = code in (1, -1)
        seconds = round(time.perf_counter() - began, 1)
        print(f"{'noticed ' if noticed else 'SURVIVED'} {mutation.name} ({seconds} s) {by}", file=sys.stderr)
        found.append(
            {"name": mutation.name, "file": mutation.file, "noticed": noticed,
             "by": "it hangs" if code == -1 else by if noticed else ""}
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="A part of the names.")
    parser.add_argument("--list", default="", help="Which list: bench, or nothing for the first.")
    parser.add_argument("--out", help="A file, or - for none.")
    options = parser.parse_args()
    name = f"mutations_{options.list}" if options.list else "mutations"
    listed = read_list(Path(__file__).with_name(f"{name}.toml"))
    mutations = [mutation for mutation in listed if options.only in mutation.name]
    about = provenance()
    with tempfile.TemporaryDirectory(prefix="genius-mutations-") as scratch:
        found = check(mutations, Path(scratch))
    survivors = [entry["name"] for entry in found if not entry["noticed"]]
    facts = {**about, "mutations": len(found)}
    facts |= {"noticed": len(found) - len(survivors), "survivors": survivors}
    text = json.dumps({**facts, "each": found}, indent=2) + "\n"
    if options.out == "-":
        print(text, end="")
    else:
        file = Path(options.out) if options.out else RESULTS / f"{name}.json"
        file.write_text(text)
        print(file)
    if survivors:
        raise SystemExit(f"not noticed: {', '.join(survivors)}")


if __name__ == "__main__":
    main()
