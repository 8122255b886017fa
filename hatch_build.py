"""Builds the compiled lookup into the wheel where there is a C compiler; others get a pure Python wheel."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

KERNEL = "src/genius/search/kernel"


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernel before files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel and name the platform, or say why there is none."""
        if self.target_name != "wheel":
            return
        failed = runpy.run_path(str(Path(self.root, KERNEL, "build.py")))["compile_kernel"]()
        if failed:
            self.app.display_warning(f"lookup stays in NumPy: {failed}")
            return
        build_data["artifacts"].append(f"{KERNEL}/kernel.lib")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"
