"""A capacity plan for 10 million to 10 billion items: docs/scale.md, computed from measured figures.

    python benchmarks/scale_plan.py            # writes docs/scale.md

Every number on the page is computed here, from a file in benchmarks/results or from an assumption that the
page names; `tests/test_scale_plan.py` fails when the page is not what this script writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "scale.md"
SIZES = (10**7, 10**8, 10**9, 10**10)
QUERIES_S = 1000
MONTH_H = 730


class Figure(NamedTuple):
    """A number the plan starts from."""

    symbol: str
    value: float
    unit: str
    source: str  # a link to the file that has it, or why it is assumed


def read(name: str) -> dict[str, Any]:
    """A file of benchmarks/results; nothing where it is not there."""
    file = HERE / "results" / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def linked(name: str, what: str) -> str:
    return f"[{name}.json](../benchmarks/results/{name}.json), {what}"


def measured() -> list[Figure]:
    """What was measured, each with its file."""
    trie, decode, cluster = (read(name) for name in ("trie", "decode", "cluster"))
    few, many = (read("speed-cpu")["scale"][str(n)] for n in (10**6, 10**8))
    decoder = read("speed-gpu")["generate"][str(5_600_000)]["early stop, beam 50"]["batch 256"]
    wide = trie["4096 codes"]
    bytes_ = wide["bytes_per_item"]
    slope = (many["lookup, codes, ms"] - few["lookup, codes, ms"]) / 2
    commit = cluster["commit"]
    return [
        Figure("c", bytes_["in_memory"], "bytes per item, codes and trie",
               linked("trie", "4096 codes a level")),
        Figure("v", bytes_["on_disk_with_vectors"] - bytes_["on_disk"], "bytes per item, its embedding",
               linked("trie", "768 values of 2 bytes")),
        Figure("t", commit["codes only, truth_bytes_per_item"], "bytes per item in SQLite, without embedding",
               linked("cluster", "without texts and images")),
        Figure("w", commit["with vectors, items_per_s"], "items per second that one writer commits",
               linked("cluster", "embeddings of width 512")),
        Figure("b", 1e6 * wide["build_processor_seconds"] / trie["items"],
               "microseconds per item, trie build", linked("trie", "one thread")),
        Figure("l", few["lookup, codes, ms"], "core milliseconds, one lookup search",
               linked("speed-cpu", "1 M items")),
        Figure("g", slope, "milliseconds more for ten times the items",
               linked("speed-cpu", "1 M to 100 M items")),
        Figure("f", many["lookup, codes, leaves"], "items re-ranked by a search",
               linked("speed-cpu", "100 M items")),
        Figure("z", decoder["queries_per_s"], "searches per second by the decoder on one H200",
               linked("speed-gpu", "5.6 M items, early stop, beam 50, batches of 256")),
        Figure("d", decode["float32"]["batch 16"]["early stop"]["processor_ms"],
               "core milliseconds, one search by the decoder", linked("decode", "beam 50, batch 16")),
        Figure("m", read("encoders")["mini"]["texts_per_s"], "texts per second, `mini`",
               linked("encoders", "two cores")),
        *trained(),
    ]  # fmt: skip


def trained() -> list[Figure]:
    """Speed of the two trained stages: measured where the file is there, else assumed."""
    rows = read("training").get("rows", [])

    def best(stage: str) -> float:
        return max((row["samples_per_s"] for row in rows if row["stage"] == stage), default=0.0)

    figures = []
    for symbol, stage, guess in (("q", "quantizer", 100_000.0), ("r", "decoder", 57_500.0)):
        speed = best(stage)
        source = linked("training", "one H200") if speed else ASSUMED + ": one H200, batch 2000, no file yet"
        figures.append(Figure(symbol, speed or guess, f"samples per second, {stage}", source))
    return figures


ASSUMED = "**assumed**"


def assumed() -> list[Figure]:
    """What still has to be measured, or is a price."""
    return [
        Figure("s", 0.7, "share of the items with an image", ASSUMED),
        Figure("i", 100_000, "bytes of an image at its source", ASSUMED),
        Figure("x", 2_000, "images per second, CLIP ViT-L/14 on one H200", ASSUMED),
        Figure("y", 20_000, "texts per second on one H200", ASSUMED),
        Figure("p", 1.1e6, "training pairs (M-BEIR), 20 epochs of stage 1 and 30 of stage 2", ASSUMED),
        Figure("R", 1_500, "GB of memory in a machine, 80 % of it usable", ASSUMED),
        Figure("$g", 3.5, "dollars per H200 and hour", ASSUMED),
        Figure("$c", 0.04, "dollars per core and hour", ASSUMED),
        Figure("$m", 0.004, "dollars per GB of memory and hour", ASSUMED),
        Figure("$d", 0.08, "dollars per GB of SSD and month", ASSUMED),
    ]


class Line(NamedTuple):
    """A row of the plan: what, its formula, and the number for each size."""

    what: str
    formula: str
    value: Callable[[float], float]
    show: Callable[[float], str]


def size(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB", "PB"):
        if value < 1000 or unit == "PB":
            return f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def money(value: float) -> str:
    return f"${value:,.0f}" if value >= 10 else f"${value:.2f}"


def lines(k: dict[str, float]) -> dict[str, list[Line]]:
    """All rows of the plan; `k` has the figures by their symbols."""

    def gpu_hours(n: float) -> float:
        return n * (k["s"] / k["x"] + 1 / k["y"]) / 3600

    def gpus(n: float) -> float:
        return math.ceil(gpu_hours(n) / 24)

    def search_ms(n: float) -> float:
        return k["l"] + k["g"] * math.log10(n / 1e6)

    def cores(n: float) -> float:
        return QUERIES_S * search_ms(n) / 1000 + 2 * QUERIES_S / k["m"]

    def machines(n: float) -> float:
        return math.ceil(n * (k["c"] + k["v"]) / (0.8 * k["R"] * 1e9))

    def held(n: float) -> float:
        return max(2, machines(n)) * n * k["c"] + n * k["v"]

    stage_zero = 20 * k["p"] * 3 * (1 / k["x"] + 1 / k["y"]) / 3600  # a step costs three times a look
    training = (20 * k["p"] / k["q"] + 30 * k["p"] / k["r"]) / 3600

    def serving(n: float) -> float:
        return (
            MONTH_H * (cores(n) * k["$c"] + held(n) / 1e9 * k["$m"])
            + n * (k["c"] + k["v"] + k["t"]) / 1e9 * k["$d"]
        )

    return {
        "Bytes": [
            Line("codes and trie, in every replica", "N c", lambda n: n * k["c"], size),
            Line("embeddings (optional), sharded", "N v", lambda n: n * k["v"], size),
            Line("SQLite, without embeddings", "N t", lambda n: n * k["t"], size),
            Line("images read once, to encode them", "N s i", lambda n: n * k["s"] * k["i"], size),
        ],
        "Encode": [
            Line("GPU hours", "N (s/x + 1/y) / 3600", gpu_hours, number),
            Line("GPUs needed to finish in a day", "GPU hours / 24", gpus, number),
            Line("hours of the single writer", "N / w / 3600", lambda n: n / k["w"] / 3600, number),
            Line("cost", "GPU hours $g", lambda n: gpu_hours(n) * k["$g"], money),
        ],
        "Train": [
            Line("GPU hours, stage 0 (CLIP as published needs none)", "20 p 3 (1/x + 1/y) / 3600",
                 lambda n: stage_zero, number),
            Line("GPU hours, stages 1 and 2", "p (20/q + 30/r) / 3600", lambda n: training, number),
            Line("cost, all stages", "GPU hours $g", lambda n: (stage_zero + training) * k["$g"], money),
        ],
        "Index": [
            Line("hours of one core, trie", "N b log N / log 5.6 M",
                 lambda n: n * k["b"] * 1e-6 * math.log(n) / math.log(5.6e6) / 3600, number),
        ],
        "Serve 1,000 searches per second": [
            Line("cores, lookup", "1000 (l + g log10(N / 1 M)) / 1000",
                 lambda n: QUERIES_S * search_ms(n) / 1000, number),
            Line("cores, encoding the queries (`mini`)", "2 1000 / m",
                 lambda n: 2 * QUERIES_S / k["m"], number),
            Line("cores, decoder", "1000 d / 1000", lambda n: QUERIES_S * k["d"] / 1000, number),
            Line("or GPUs, decoder", "1000 / z", lambda n: math.ceil(QUERIES_S / k["z"]), number),
            Line("machines that hold codes and embeddings", "N (c + v) / 0.8 R", machines, number),
            Line("embeddings gathered per second", "1000 f v", lambda n: QUERIES_S * k["f"] * k["v"], size),
            Line("cost per month, lookup", "730 (cores $c + memory $m) + disk $d", serving, money),
        ],
    }  # fmt: skip


def breaks(k: dict[str, float]) -> list[str]:
    """What gives way first, with the number of items at which it does."""
    room = 0.8 * k["R"] * 1e9
    per_gpu = 1 / (k["s"] / k["x"] + 1 / k["y"])
    return [
        f"**The single writer** commits {number(k['w'])} items a second, as many as "
        f"{number(k['w'] / per_gpu)} GPUs encode. With more GPUs, build several indexes side by "
        "side, one for each part of the pool.",
        f"**Embeddings fill the memory of one machine** at {number(room / k['v'] / 1e6)} million items. "
        "Shard them (`--vector-shards`), or leave them out and re-rank by codes.",
        f"**SQLite on one disk**: {size(1e9 * k['t'])} at a billion items, and as much again for every "
        "billion. Keep texts and metadata in another store by then; the index needs ids, hashes and "
        "codes.",
        f"**One trie**: items are numbered with 32 bits, which ends at {number(2**32 / 1e9)} billion; "
        f"codes and trie fill a machine at {number(room / k['c'] / 1e9)} billion. Split the pool by item "
        "range into indexes of a billion, search all of them, and merge by score: scores are cosines "
        "of embeddings of one model, so they are comparable.",
        "**The file lock**: replicas on several machines cannot share one SQLite file for writing; they "
        "serve copies, and a new generation is a new deployment (`genius serve --cluster` again: replicas "
        "change one by one).",
    ]  # fmt: skip


def table(rows: list[list[str]], numbers: range) -> list[str]:
    head, *rest = rows
    marks = ["|".join(["", *("---:" if place in numbers else "---" for place in range(len(head))), ""])]
    return [f"| {' | '.join(head)} |", *marks, *(f"| {' | '.join(row)} |" for row in rest)]


def page() -> str:
    """The whole of docs/scale.md."""
    known, guessed = measured(), assumed()
    k = {figure.symbol: figure.value for figure in (*known, *guessed)}
    cluster = read("cluster")
    encode = cluster["encode"]
    light, heavy = cluster["serve"]["by lookup"], cluster["serve"]["by the decoder, beam 400"]
    names = [f"{n // 10**6:,} M" if n < 10**9 else f"{n // 10**9:,} B" for n in SIZES]
    text = [
        "# Scale: a capacity plan for 10 million to 10 billion items",
        "",
        "Bytes, GPUs, hours and cost for pools of N items, extrapolated from measurements on small machines.",
        "`python benchmarks/scale_plan.py` computes every number; inputs marked *assumed* were not measured.",
        "",
    ]
    for title, rows in lines(k).items():
        body = [[row.what, f"`{row.formula}`", *(row.show(row.value(n)) for n in SIZES)] for row in rows]
        text += [f"## {title}", "", *table([["", "formula", *names], *body], range(2, 6)), ""]
    text += [
        "## What breaks first, and what to do then",
        "",
        *(f"{i}. {line}" for i, line in enumerate(breaks(k), 1)),
    ]
    text += [
        "", "## Where the numbers come from", "",
        *table(
            [["symbol", "what", "value", "from"],
             *([f"`{f.symbol}`", f.unit, number(f.value), f.source] for f in (*known, *guessed))],
            range(2, 3),
        ),
        "",
        f"On two cores, two encoding workers were {encode['2 workers by 1 worker']['median']} times as "
        f"fast as one, and one worker {encode['1 worker by one process']['median']} times as fast as a "
        "single process, since reading and committing run in processes of their own. Two replicas answered "
        f"{heavy['2 replicas by 1 replica']['median']} times as many searches as one with heavy searches "
        f"(the decoder, beam 400) and {light['2 replicas by 1 replica']['median']} times with light ones "
        "(lookup), where clients, proxy and front use most of the two cores. One replica reached "
        f"{heavy['1 replica by one process']['median']} of the rate of a plain server with heavy searches, "
        f"{light['1 replica by one process']['median']} with light ones "
        "(`python benchmarks/cluster.py`, [results](../benchmarks/results/cluster.json)).",
    ]  # fmt: skip
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
