"""`genius serve --cluster local` as a program: it answers, and ends with everything it started."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def test_it_serves_until_it_is_told_to_stop(plain: Path, kit: Any, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "index")
    command = [sys.executable, "-c", "from genius.cli import main; main()", "serve", "--in", "index"]
    command += ["--cluster", "local", "--replicas", "1", "--port", "0"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = next(line for line in server.stderr if "genius serves" in line)
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", line)
        ask = urllib.request.Request(
            f"{url}/v1/search", json.dumps({"text": "red"}).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(ask, timeout=60) as answer:
            assert len(json.loads(answer.read())["hits"]) == 20
        started = kit.processes_below(server.pid)
        assert any(b"raylet" in words for words in started.values())
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 143
    finally:
        server.kill()
        server.communicate()
    end = time.monotonic() + 30
    while (left := [pid for pid in started if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # empty: it has ended
    except OSError:
        return False


def test_the_address_of_a_proxy_is_refused() -> None:
    from genius.cluster.session import connected
    from genius.errors import BadInput

    with pytest.raises(BadInput, match="is a proxy"), connected("ray://somewhere:10001"):
        pass
