"""Which commit of the repository measured something."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve()
CODE = (":(top)src", ":(top)benchmarks", ":(top)recipes", ":(top,exclude)benchmarks/results")
VARIABLE = "GENIUS_COMMIT"


@cache
def commit() -> dict[str, Any]:
    """`commit`, and the files `changed` since, if any.

    Nothing where the package is installed without its repository; on a copy without .git, $GENIUS_COMMIT
    names the commit.
    """
    if os.environ.get(VARIABLE):
        return {"commit": os.environ[VARIABLE]}
    if _git("ls-files", "--error-unmatch", str(FILE)) is None:  # not tracked: another repository, or none
        return {}
    changed = (_git("diff", "HEAD", "--name-only", "--", *CODE) or "").split()
    return {"commit": (_git("rev-parse", "HEAD") or "").strip()} | ({"changed": changed} if changed else {})


def _git(*arguments: str) -> str | None:
    """What git prints, in the folder of this file; None if it fails or is not installed."""
    try:
        run = subprocess.run(["git", *arguments], cwd=FILE.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout
