"""For all tests: Ctrl-C reaches the processes they start, also where a shell runs them in the background.

Locks that are taken out of order are errors (`genius.locks`), in those processes too. `make test` runs tests
in several processes (pytest-xdist); their order, and which of them share a process, changes no outcome.
"""

import os
import signal

import pytest

os.environ["GENIUS_DEBUG_LOCKS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the package anew
# Some virtual machines announce AMX and then kill what uses it (bfloat16 products): keep torch below it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
signal.signal(signal.SIGINT, signal.default_int_handler)  # such a shell ignores it, and children would, too


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With xdist: files with slow tests begin first, and a file's tests share a process and its fixtures.

    A mark `xdist_group` puts tests of several files into one process: one after the other, all that use Ray,
    each of which takes more than a core.
    """
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(config.rootpath))))
