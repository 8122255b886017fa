"""`genius index --cluster` and `genius serve --cluster` over two hosts, one of which is lost.

Only the source and `--parts` are shared. A served index lies on both hosts, as a copy.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="a cluster needs the extra `cluster`")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

GENIUS = [sys.executable, "-c", "from genius.cli import main; main()"]
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
LINES = 700
PORT = 8123
KEY = secrets.token_urlsafe(24)
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this cluster alone
    "RAY_health_check_period_ms": "1000",  # a host is dead after three checks without an answer
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_raylet_start_wait_time_s": "180",
    "GENIUS_KEY": KEY,
}
SEARCHES = [{"text": "red and green", "limit": 5}, {"text": "blue", "want": "text", "limit": 7}]


def start_ray(host: Any, pair: Any) -> None:
    """Ray's processes of one host; the first host has the head."""
    command = [*RAY, "start", "--node-ip-address", host.address, "--num-cpus", "1", "--disable-usage-stats"]
    command += ["--object-store-memory", str(100 * 2**20)]
    if host is pair.a:
        command += ["--head", "--port", "6399", "--include-dashboard", "false"]
        command += ["--temp-dir", host.home / "ray"]
    else:
        command += ["--address", f"{pair.a.address}:6399"]
    assert host.run(command, **SETTINGS) == 0, pair.said()


@pytest.fixture
def cluster(hosts: Any) -> Any:
    """Both hosts in one Ray cluster, and a source that both see."""
    hosts.restore()
    for host in (hosts.a, hosts.b):
        if not any(words[0].endswith(b"/raylet") for words in host.processes().values()):
            start_ray(host, hosts)
    colours = ("red", "green", "blue", "yellow", "black")
    texts = [f"{n} " + " ".join(colours[: 1 + n % 5]) for n in range(LINES)]
    lines = [json.dumps({"id": f"i{n}", "text": text}) for n, text in enumerate(texts)]
    (hosts.shared / "lines.jsonl").write_text("\n".join(lines))
    return hosts


def index(pair: Any, name: str, *more: Any) -> subprocess.Popen[str]:
    command = [*GENIUS, "index", pair.shared / "lines.jsonl", "--to", pair.a.home / name, *more]
    process: subprocess.Popen[str] = pair.a.start(command, **SETTINGS)
    return process


def on_cluster(pair: Any) -> tuple[Any, ...]:
    return "--cluster", f"{pair.a.address}:6399", "--workers", 2, "--parts", pair.shared / "parts"


def content(folder: Path) -> list[Any]:
    if not (folder / "index.sqlite").exists():
        return []
    truth = sqlite3.connect(folder / "index.sqlite")
    try:
        return truth.execute("SELECT row, id, text, hash, codes, vector FROM items ORDER BY row").fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        truth.close()


def alone(pair: Any) -> Path:
    """The index that one host makes by itself."""
    folder: Path = pair.a.own / "alone"
    if not folder.exists():
        process = index(pair, "alone")
        pair.wait(lambda: process.poll() is not None, 240)
        assert process.returncode == 0 and len(content(folder)) == LINES, pair.said()
    return folder


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_an_index_is_made_though_a_host_is_lost(cluster: Any, fault: str) -> None:
    """The cable is cut for a few seconds, or the second host is switched off, while both encode."""
    expected = content(alone(cluster))
    own = cluster.a.own / fault
    run = index(cluster, fault, *on_cluster(cluster))
    cluster.wait(lambda: content(own) or list((cluster.shared / "parts").glob("*.part")), 400)
    if fault == "kill":
        cluster.b.kill()
    else:
        cluster.cut()
        time.sleep(5)
        cluster.restore()
    safe = content(own)
    cluster.wait(lambda: run.poll() is not None, 400)
    assert run.returncode in (0, 11), cluster.said()
    assert content(own)[: len(safe)] == safe
    if run.returncode:  # it said so: what is left of the cluster does the rest
        again = index(cluster, fault, *on_cluster(cluster))
        cluster.wait(lambda: again.poll() is not None, 400)
        assert again.returncode == 0, cluster.said()
    assert content(own) == expected
    assert not (cluster.b.own / fault).exists()


def ask(pair: Any, host: Any, path: str, body: Any, seconds: float = 20.0) -> tuple[int, Any]:
    """A request of the first host to a host; status 0 if there was no answer in time."""
    program = (
        "import urllib.request, urllib.error\n"
        f"url, body = 'http://{host.address}:{PORT}{path}', {json.dumps(body).encode()!r}\n"
        "request = urllib.request.Request(url, body,"
        f" {{'Authorization': 'Bearer {KEY}', 'Content-Type': 'application/json'}})\n"
        "try:\n"
        f"    answer = urllib.request.urlopen(request, timeout={seconds})\n"
        "    print(answer.status, answer.read().decode())\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code, 'null')\n"
        "except OSError:\n"
        "    print(0, 'null')\n"
    )
    command = ["ip", "netns", "exec", pair.a.namespace, sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30)
    assert done.returncode == 0, done.stderr
    status, _, answer = done.stdout.partition(" ")
    return int(status), json.loads(answer)


def served(pair: Any, host: Any, expected: list[Any], seconds: float = 150.0) -> None:
    """Wait until a host answers six searches in a row. No answer is wrong, none takes a wrong status."""
    end, right = time.monotonic() + seconds, 0
    while right < 6:
        assert time.monotonic() < end, pair.said()
        for body, hits in zip(SEARCHES, expected, strict=True):
            status, answer = ask(pair, host, "/v1/search", body)
            assert status in (0, 200, 404, 503), status  # 404: a proxy that knows no route yet
            assert status != 200 or answer["hits"] == hits
            right = right + 1 if status == 200 else 0


def test_an_index_is_served_by_two_hosts_and_by_what_is_left_of_them(cluster: Any) -> None:
    """The cable is cut and restored; then the second host is switched off."""
    folder = alone(cluster)
    shutil.copytree(folder, cluster.b.own / "alone")
    command = [*GENIUS, "serve", "--in", cluster.a.home / "alone", "--cluster", f"{cluster.a.address}:6399"]
    command += ["--host", "0.0.0.0", "--port", PORT, "--replicas", 2]
    assert cluster.a.run(command, **SETTINGS) == 0, cluster.said()
    from genius import Engine, Query

    with Engine.open(folder) as engine:
        asked = [
            engine.search(Query(text=body["text"]), k=body["limit"], want=body.get("want"))
            for body in SEARCHES
        ]
    expected = [ask(cluster, cluster.a, "/v1/search", body)[1]["hits"] for body in SEARCHES]
    assert [[hit["id"] for hit in hits] for hits in expected] == [[hit.id for hit in hits] for hits in asked]
    for host in (cluster.a, cluster.b):
        served(cluster, host, expected)
    new = {"items": [{"id": "new", "text": "new"}]}
    assert ask(cluster, cluster.a, "/v1/items", new)[0] == 422  # copies would differ
    cluster.cut()
    served(cluster, cluster.a, expected)
    cluster.restore()
    served(cluster, cluster.a, expected)
    cluster.b.kill()
    served(cluster, cluster.a, expected)
