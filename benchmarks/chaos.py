"""Everything at once on one index, and everything goes wrong: is an answer wrong, is anything lost?

    python benchmarks/chaos.py --minutes 30              # benchmarks/results/chaos.json
    python benchmarks/chaos.py --minutes 1 --out -       # a quick look
    python benchmarks/chaos.py --minutes 5 --seed 7      # the same faults in the same order

Two writers and a reader in processes of their own, a server with clients that search and write, a Ray cluster
that serves the same index, and now and then a run of `genius index --cluster`. Meanwhile processes are killed
and stopped, the disk fills up, files of the cache are damaged or deleted, and clients do what clients should
not do. Everybody asks for everything; every answer is held against the states that were committed or under
way at that time (chaos_judge.py). A writer that died is started again once the file itself was read: what was
acknowledged must be in it. Costs of being killed are part of the times; all traffic stays on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _harness import provenance
from chaos_actors import ClusterIndexing, Reader, Writer
from chaos_clients import BadClients
from chaos_faults import Faults
from chaos_judge import Judge
from chaos_roles import stored
from chaos_services import HttpWriter, Searcher, Service

from genius.engine import Engine
from genius.store.check import check

RESULTS = Path(__file__).parent / "results" / "chaos.json"
DISK_MB = 192
NAMESPACES = ("w0", "w1", "h", "c")  # two writers, one over HTTP, one on the cluster


def disk(folder: Path, cleanup: ExitStack) -> bool:
    """Make `folder` a small disk of its own; whether that is allowed here."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "genius-chaos", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    cleanup.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False, capture_output=True)
    return True


def run(minutes: float, seed: int, cluster: bool, scratch: Path) -> dict[str, Any]:
    """One run; its figures."""
    chance, token = random.Random(seed), secrets.token_hex(8)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GENIUS_KEY": token, "GENIUS_CHAOS": token}
    with ExitStack() as cleanup:
        small_disk = disk(scratch / "disk", cleanup)
        index = scratch / "disk" / "index"
        Engine.create(index, "mini").close()
        judge = Judge(NAMESPACES)
        server = Service("server", index, env, [])
        services = [server]
        if cluster:
            services.append(Service("cluster", index, env, ["--cluster", "local", "--replicas", "2"]))
        actors: list[Any] = [*services]
        actors += [Writer(name, index, judge, env, seed + place) for place, name in enumerate(NAMESPACES[:2])]
        actors += [Reader("reader", index, judge, env), HttpWriter("h", index, judge, server, token, seed)]
        actors += [Searcher(f"{service.name}-client", judge, service, token) for service in services]
        if cluster:
            actors.append(ClusterIndexing("c", index, judge, env))
        for actor in actors:
            cleanup.callback(actor.stop)
            actor.start()
            if actor is services[-1]:
                wait_for(lambda: all(service.ready for service in services), "what serves")
        clients = BadClients(server.port, token)
        wait_for(lambda: judge.answers > 10, "answers")
        began = time.monotonic()
        memory = [server.memory_mb()]
        faults = Faults(chance, index, actors, clients, token, full_disk=small_disk)
        while time.monotonic() - began < 60 * minutes:
            faults.strike()
            judge.judge()
            memory.append(server.memory_mb() or memory[-1])
            time.sleep(chance.uniform(0.5, 3.0))
        faults.heal()
        time.sleep(min(20.0, 10 * minutes))  # everybody goes on without faults, and the last answers come
        memory.append(server.memory_mb() or memory[-1])
        for actor in reversed(actors):
            actor.stop()
        return conclude(judge, index, actors, faults, memory, time.monotonic() - began)


def wait_for(true: Callable[[], bool], what: str, patience: float = 400.0) -> None:
    """Wait until everything has begun."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not begin within {patience:g} s")
        time.sleep(0.2)


def conclude(
    judge: Judge, index: Path, actors: list[Any], faults: Faults, memory: list[float], seconds: float
) -> dict[str, Any]:
    """Judge what is left, read the index once more, and sum up."""
    judge.judge(everything=True)
    for name in judge.histories:
        judge.observe(name, stored(index, name))
    findings = check(index)
    with Engine.open(index) as engine:
        hits = {hit.id for hit in engine.search("red", k=200, want="text", beam=500)}
    kept = {id for name in judge.histories for id in stored(index, name)}
    if hits != kept:
        judge.wrong.append(f"at the end: {sorted(hits ^ kept)[:5]}")
    operations: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    unexpected: list[str] = []
    for actor in actors:
        operations.update(actor.operations)
        refused.update(actor.refused)
        unexpected += [f"{actor.name}: {line}" for line in actor.unexpected]
    # a cache that a fault damaged at the very end is no finding: it is rebuilt when it is next used
    return {
        "minutes": round(seconds / 60, 1),
        "operations": dict(sorted(operations.items())),
        "answers_checked": judge.answers,
        "faults": dict(sorted(faults.counts.items())),
        "faults_injected": sum(faults.counts.values()),
        "refused": dict(sorted(refused.items())),
        "wrong_answers": len(judge.wrong),
        "lost_acknowledged_items": len(judge.lost),
        "truth_problems": len(findings.truth),
        "unexpected": len(unexpected),
        "longest_s_without_an_answer": {
            actor.name: round(actor.longest_gap, 1) for actor in actors if hasattr(actor, "longest_gap")
        },
        "longest_restart_s": {
            actor.name: round(actor.longest_restart, 1) for actor in actors if isinstance(actor, Service)
        },
        "memory_mb": {"start": round(memory[0]), "end": round(memory[-1]), "most": round(max(memory))},
        "items": findings.items,
        "examples": {"wrong": judge.wrong[:10], "lost": judge.lost[:10], "unexpected": unexpected[:20]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="Of the faults (default: a new one).")
    parser.add_argument("--no-cluster", action="store_true", help="Leave Ray out.")
    parser.add_argument("--out", default=str(RESULTS))
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", file=sys.stderr, flush=True)
    about = provenance()
    with tempfile.TemporaryDirectory(prefix="genius-chaos-") as scratch:
        found = run(options.minutes, seed, not options.no_cluster, Path(scratch))
    command = f"python benchmarks/chaos.py --minutes {options.minutes:g} --seed {seed}"
    text = json.dumps({**about, "command": command, "seed": seed, **found}, indent=2) + "\n"
    if options.out == "-":
        print(text, end="")
    else:
        Path(options.out).write_text(text)
        print(options.out)
    bad = ("wrong_answers", "lost_acknowledged_items", "truth_problems", "unexpected")
    if any(found[name] for name in bad):
        raise SystemExit(f"{', '.join(f'{found[name]} {name}' for name in bad)}: see the examples")


if __name__ == "__main__":
    main()
