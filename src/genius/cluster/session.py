"""A connection to Ray: a cluster of one's own on this machine, or one that is there already."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from genius.errors import BadInput, ClusterError, MissingExtra

LOCAL = "local"
OBJECT_STORE = 256 * 2**20  # bytes, of a local cluster: parts are small and do not stay
INSTALL = 'pip install "genius-search[cluster]"'


def ray_module(name: str = "ray") -> Any:
    """The module of Ray called `name`; raises MissingExtra with the install command."""
    try:
        with warnings.catch_warnings():  # its own imports and settings are full of deprecations
            warnings.simplefilter("ignore")
            module = importlib.import_module(name)
            if name == "ray.data":
                module.DataContext.get_current()
            logging.getLogger(name).setLevel(logging.ERROR)  # it tells every step it takes
            return module
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a cluster needs {error.name}: {INSTALL}") from None


@contextmanager
def connected(address: str, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected to `address`: `local` starts one on this machine, with `cpus` to give away.

    What was started here ends here; a cluster that was there before goes on.
    """
    ray = ray_module()
    if address.startswith("ray://"):
        raise BadInput(
            "a ray:// address is a proxy: run the command on a machine of the cluster, with `auto`"
        )
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its core warns of what Ray's own parts do
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")  # a busy machine needs longer than 5
    own: dict[str, Any] = {"address": address}
    if address == LOCAL:
        own |= {"num_cpus": cpus, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**own, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterError(
            f"no Ray cluster at {address!r} ({error}): start one with `ray start --head`"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's own would change the exit code
    try:
        yield ray
    finally:
        ray.shutdown()
