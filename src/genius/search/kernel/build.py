"""Compiles the kernel: `python src/genius/search/kernel/build.py`; each installation does (hatch_build.py).

Only the standard library is used here, since it runs before anything else is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCES, LIBRARY = tuple(sorted(FOLDER.glob("*.c"))), FOLDER / "kernel.lib"
FLAGS = ("-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fPIC", "-shared")


def compile_kernel(library: Path = LIBRARY) -> str | None:
    """Compile the kernel into `library`; returns why that was not possible, or None."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        return "there is no C compiler"
    part = library.with_suffix(f".{os.getpid()}.part")  # a process may have loaded the old one
    command = [*compiler, *FLAGS, "-o", str(part), *map(str, SOURCES), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        part.unlink(missing_ok=True)
        return f"{shlex.join(command)}: {done.stderr.strip()}"
    part.replace(library)
    return None


if __name__ == "__main__":
    failed = compile_kernel()
    sys.exit(f"lookup stays in NumPy: {failed}" if failed else 0)
