"""Pictures and tables of docs/speed.md, from the figures in benchmarks/results: none is typed by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Rows = list[list[str]]


def draw(results: Path, docs: Path) -> None:
    """Write docs/speed-cpu.png, docs/speed-gpu.png and the tables between the marks of docs/speed.md."""
    figures = read_figures(results)
    pictures(figures, docs)
    page = docs / "speed.md"
    if page.exists():
        page.write_text(filled(page.read_text(), tables(figures)))


def read_figures(results: Path) -> dict[str, Any]:
    """The figures of `speed.py` on a CPU and on a GPU, and of `kernel.py`."""
    files = {"cpu": "speed-cpu.json", "gpu": "speed-gpu.json", "kernel": "kernel.json"}
    return {
        kind: json.loads((results / name).read_text()) if (results / name).exists() else {}
        for kind, name in files.items()
    }


def filled(text: str, parts: dict[str, str]) -> str:
    """The text with each `<!-- name -->…<!-- end -->` filled with the part of that name."""
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        pieces = pattern.split(text, maxsplit=1)  # before, mark, mark, after
        if len(pieces) == 4:
            text = f"{pieces[0]}{pieces[1]}{part}\n{pieces[2]}{pieces[3]}"
    return text


def tables(figures: dict[str, Any]) -> dict[str, str]:
    cpu, gpu = figures["cpu"], figures["gpu"]
    return {
        "lookup": _lookup(beside_faiss(cpu)),
        "vectors beside hnsw": _beside_hnsw(figures.get("kernel", {})),
        "codes beside ivf": _beside_ivf(figures.get("kernel", {})),
        "generate": _generate(cpu.get("generate", {})),
        "scale": _scale(cpu.get("scale", {})),
        "profile": _profile(cpu.get("profile", {})),
        "rows": _rows(cpu.get("rows", {})),
        "floor": _floor(gpu),
        "against": _against(gpu),
        "gpu": _gpu(gpu),
    }


def _table(head: list[str], rows: Rows) -> str:
    if not rows:
        return "*Not measured yet.*"
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _source(phase: dict[str, Any], kind: str) -> str:
    if not phase:
        return ""
    return f"`{phase['command']}`, [figures](../benchmarks/results/speed-{kind}.json)\n\n"


def beside_faiss(cpu: dict[str, Any]) -> dict[str, Any]:
    """The phase `lookup` with the rows of the phase `faiss`, which another process measured."""
    lookup, faiss = cpu.get("lookup", {}), cpu.get("faiss", {})
    if not lookup or not faiss:
        return dict(lookup)
    pools = {pool: {**faiss.get(pool, {}), **rows} for pool, rows in lookup.items() if pool.isdigit()}
    command = f"{lookup['command']}`, `{faiss['command']}"
    return {**pools, "command": command, "faiss_versions": faiss["versions"]}


def _lookup(phase: dict[str, Any]) -> str:
    """Milliseconds relative to our lookup with codes at the same pool, since machines differ."""
    rows: Rows = []
    pools = [key for key in phase if key.isdigit()]
    names = list(dict.fromkeys(name for pool in pools for name in phase[pool]))
    for name in names:
        line = [name]
        for pool in pools:
            own = phase[pool].get(name)
            base = phase[pool]["lookup, codes"]["ms"]
            line.append("" if own is None else f"{own['ms'] / base:.2f} / {own['recall']:.3f}")
        stored = next(phase[pool][name]["bytes_per_item"] for pool in reversed(pools) if name in phase[pool])
        rows.append([*line, f"{stored:g}"])
    head = [
        "time over `lookup, codes` / recall",
        *(f"{int(pool):,} items" for pool in pools),
        "bytes an item",
    ]
    shared = any(name.startswith("faiss") for name in names) and "faiss_versions" not in phase
    note = "\n\nFAISS and lookup were timed in one process here; they have one each now." if shared else ""
    return _source(phase, "cpu") + _table(head, rows) + note


def _kernel_pools(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pools of `kernel.py`, with what was found in each."""
    return ((pool, own) for pool, own in found.items() if isinstance(own, dict) and "points" in own)


def _ratio(time: dict[str, float]) -> str:
    return f"{time['median']:.2f} ({time['least']:.2f} to {time['most']:.2f})"


def _beside_hnsw(found: dict[str, Any]) -> str:
    """Lookup by vectors at the recalls of `kernel.py`."""
    rows: Rows = []
    for pool, own in _kernel_pools(found):
        ours, theirs = own["systems"]["lookup, vectors"], own["systems"].get("hnsw", {})
        for name, row in own["at equal recall"].items():
            if "hnsw" not in name:
                continue
            reached = "time" in row
            rows.append([
                pool, f"{row['recall']}", _ratio(row["time"]) if reached else "", f"{row['bytes']:.2f}",
                f"{ours['build_seconds'] / theirs['build_seconds']:.3f}",
                row["lookup"], f"ef {row['hnsw']}" if reached else "",
            ])  # fmt: skip
    head = ["pool", "recall", "time", "bytes", "build", "lookup", "HNSW"]
    return _kernel_source(found) + _table(head, rows)


def _beside_ivf(found: dict[str, Any]) -> str:
    """Lookup by codes at the recall of each rival's settings, or better."""
    rows: Rows = []
    for pool, own in _kernel_pools(found):
        best = max(point["recall"] for point in own["points"]["lookup, codes"].values())
        for name, settings in own["at equal recall"].items():
            if "hnsw" in name:
                continue
            rival = name.removeprefix("lookup, codes over ").removesuffix(", by nprobe")
            times = [f"{row['time']['median']:.2f}" if "time" in row else "-" for row in settings.values()]
            theirs = max(row["recall"] for row in settings.values())
            stored = [own["systems"][system]["bytes_per_item"] for system in ("lookup, codes", rival)]
            build = [own["systems"][system]["build_seconds"] for system in ("lookup, codes", rival)]
            rows.append([
                pool, rival, *times, f"{best:.3f}", f"{theirs:.3f}", f"{stored[0]:g}", f"{stored[1]:g}",
                f"{build[0] / build[1]:.3f}",
            ])  # fmt: skip
    probes = list(next((settings for _, own in _kernel_pools(found) for name, settings
                        in own["at equal recall"].items() if "ivf" in name), {}))  # fmt: skip
    head = ["pool", "rival", *probes, "best recall", "its best", "bytes", "its bytes", "build"]
    return _kernel_source(found) + _table(head, rows)


def _kernel_source(found: dict[str, Any]) -> str:
    return f"`{found['command']}`, [figures](../benchmarks/results/kernel.json)\n\n" if found else ""


def _generate(phase: dict[str, Any]) -> str:
    settings = [key for key in phase if "threads" in key]
    names = list(dict.fromkeys(name for key in settings for name in phase[key] if "over" not in name))
    rows = [
        [name, *(f"{phase[key][name] / phase[key]['encode']:.2f}" for key in settings), _same(phase, name)]
        for name in names
    ]
    return _source(phase, "cpu") + _table(["time over encoding the text", *settings, "same 10 best"], rows)


def _same(phase: dict[str, Any], name: str) -> str:
    share = phase["same of the 10 best as float32"].get(name)
    return "" if share is None else f"{share:.3f}"


def _scale(phase: dict[str, Any]) -> str:
    pools = [key for key in phase if key.isdigit()]
    keys = ["build_processor_seconds", "bytes_per_item", "peak_bytes_per_item_of_the_build", "tree_levels"]
    rows: Rows = [
        [key.replace("_", " "), *(f"{phase[pool][key]:g}" for pool in pools), ""] for key in keys if pools
    ]
    for key, ratio in phase.get("many over few", {}).items():
        rows.append([key, *("" for _ in pools), f"{ratio:.2f}"])
    head = ["", *(f"{int(pool):,} items" for pool in pools), "cost of the larger pool over the smaller"]
    return _source(phase, "cpu") + _table(head, rows)


def _profile(phase: dict[str, Any]) -> str:
    rows: Rows = []
    for name, parts in phase.items():
        if isinstance(parts, dict) and name != "versions":
            whole = sum(parts.values()) if "micro" in name else 1.0
            best = sorted(parts.items(), key=lambda pair: -pair[1])[:6]
            rows.append([name, ", ".join(f"{key} {100 * value / whole:.0f} %" for key, value in best)])
    return _source(phase, "cpu") + _table(["one query", "where the time goes"], rows)


def _rows(phase: dict[str, Any]) -> str:
    found = {name: row for name, row in phase.items() if isinstance(row, dict) and "hit@5" in row}
    keys = list(next(iter(found.values()), {}))
    rows = [[name, *(f"{100 * row[key]:.1f}" for key in keys)] for name, row in found.items()]
    return _source(phase, "cpu") + _table(["mean over 15 rows, val", *keys], rows)


def _floor(gpu: dict[str, Any]) -> str:
    """The counted floor of each search, and what was measured beside it."""
    from speed_floor import Rates, floors

    if "ceilings" not in gpu:
        return _table([], [])
    found = gpu["ceilings"]
    rates = Rates(found["copy_bytes_per_s"], found["bf16_flops_per_s"], found["launch_in_a_graph_us"] / 1e6)
    rows: Rows = []
    for name, own in floors(rates).items():
        search, batch = name.rsplit(", ", 1)
        if search == "lookup":
            measured = gpu["lookup"]["lookup, 8 leaves a beam"][batch]
        else:
            measured = gpu["generate"]["1000000"][f"{search}, beam 50"][batch]
        least, most = own.pop("queries a second at most"), measured["queries_per_s"]
        cells = [f"{value:,.4g}" for value in own.values()]
        rows.append([name, *cells, f"{least:,.0f}", f"{most:,.0f}", f"{most / least:.2f}"])
    keys = [*own, "queries a second at most", "measured", "share of the floor's"]
    about = (
        f"{rates.copy / 1e12:.1f} TB/s, {rates.products / 1e12:.0f} bf16 TFLOP/s, "
        f"{1e6 * rates.launch:.2f} microseconds a launch inside a graph ({found['device']}).\n\n"
    )
    return about + _table(["", *keys], rows)


BATCHES = ("batch 1", "batch 16", "batch 64", "batch 256", "batch 1024")


def _gpu(gpu: dict[str, Any]) -> str:
    rows: Rows = []
    for phase in (
        "generate", "compiled_generate", "transformers", "lookup", "compiled_lookup", "exact", "scale",
    ):  # fmt: skip
        for path, rates in _rated(gpu.get(phase, {})):
            cells = [f"{rates[b]['queries_per_s']:,.0f}" if b in rates else "" for b in BATCHES]
            pools = [f"{int(key):,} items" for key in path if key.isdigit()]
            names = [key for key in path if not key.isdigit()]
            found = f"{rates['recall']['10 best']:.3f}" if "recall" in rates else ""
            rows.append([", ".join([phase.replace("_", " "), *pools]), ", ".join(names), *cells, found])
    head = ["queries a second", "", *BATCHES, "recall of the 10 nearest"]
    return _source(gpu.get("generate", {}), "gpu") + _table(head, rows)


def _rated(part: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All that has rates by batch, with the keys that lead to it."""
    if any(key in part for key in BATCHES):
        yield path, part
        return
    for key, value in part.items():
        if isinstance(value, dict):
            yield from _rated(value, (*path, key))


def _against(gpu: dict[str, Any]) -> str:
    """Ours over transformers' `generate`, which was measured in batches of 1 and 16."""
    rows: Rows = []
    if "transformers" in gpu:
        plain, compiled = gpu["generate"]["1000000"], gpu.get("compiled_generate", {})
        early, full = "early stop, beam 50", "full depth, beam 50"
        pairs = {
            "early stop, one at a time": (plain[early], "batch 1", "batch 1"),
            "early stop, one at a time, compiled": (compiled.get(early, plain[early]), "batch 1", "batch 1"),
            "early stop, batch 256, over theirs at 16": (plain[early], "batch 256", "batch 16"),
            "full depth, one at a time": (plain[full], "batch 1", "batch 1"),
            "full depth, batch 256, over theirs at 16": (plain[full], "batch 256", "batch 16"),
        }
        for name, (ours, batch, other) in pairs.items():
            ratio = ours[batch]["queries_per_s"] / gpu["transformers"][other]["queries_per_s"]
            rows.append([name, f"{ratio:,.0f}"])
    return _table(["ours at 1,000,000 items, beam 50", "times transformers' `generate` at 100,000"], rows)


def pictures(figures: dict[str, Any], docs: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    phase = beside_faiss(figures["cpu"])
    pools = [key for key in phase if key.isdigit()]
    if pools:
        figure, axes = pyplot.subplots(1, len(pools), figsize=(4.2 * len(pools), 3.6), sharey=True)
        for axis, pool in zip(axes, pools, strict=True):
            base = phase[pool]["lookup, codes"]["ms"]
            families: dict[str, list[tuple[float, float]]] = {}
            for name, row in phase[pool].items():
                if "batch" not in name:
                    family = name.rsplit(",", 1)[0] if name.startswith("faiss") else name
                    families.setdefault(family, []).append((row["ms"] / base, row["recall"]))
            for family, points in families.items():
                marker = "o-" if family.startswith("faiss") else "s" if "lookup" in family else "^"
                axis.plot(*zip(*sorted(points), strict=True), marker, label=family, markersize=5, linewidth=1)
            axis.set_xscale("log")
            axis.set_title(f"{int(pool):,} items", fontsize=10)
            axis.set_xlabel("time / time of `lookup, codes`")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("recall of the 10 nearest")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8, frameon=False)
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(docs / "speed-cpu.png", dpi=130)
        pyplot.close(figure)
    if figures["gpu"]:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
        _curves(left, "batch", _by_batch(figures["gpu"]))
        left.set_title("1,000,000 items", fontsize=10)
        left.set_ylabel("queries a second")
        _curves(right, "items", _by_pool(figures["gpu"]))
        right.set_title("batches of 256", fontsize=10)
        figure.tight_layout()
        figure.savefig(docs / "speed-gpu.png", dpi=130)
        pyplot.close(figure)


Curves = dict[str, list[tuple[float, float]]]


def _by_batch(gpu: dict[str, Any]) -> Curves:
    """Queries a second by batch, in a million items (transformers: in 100,000)."""
    generate, lookup = gpu["generate"]["1000000"], gpu["lookup"]
    rows = {
        "lookup": lookup["lookup, 8 leaves a beam"],
        "exact search, width 256": lookup["exact, bf16"],
        "exact search, width 768": gpu["exact"]["1000000"],
        "decoder, early stop": generate["early stop, beam 50"],
        "decoder, full depth": generate["full depth, beam 50"],
        "transformers' generate": gpu["transformers"],
    }
    return {
        name: [(int(b.split()[1]), row[b]["queries_per_s"]) for b in BATCHES if b in row]
        for name, row in rows.items()
    }


def _by_pool(gpu: dict[str, Any]) -> Curves:
    """Queries a second by pool, in batches of 256."""
    phases = {"exact search, width 768": ("exact", "")}
    phases |= {f"decoder, {name}": ("generate", f"{name}, beam 50") for name in ("early stop", "full depth")}
    phases |= {"lookup": ("scale", "lookup")}
    curves: Curves = {}
    for label, (phase, search) in phases.items():
        pools = {int(p): row[search] if search else row for p, row in gpu[phase].items() if p.isdigit()}
        curves[label] = [(items, row["batch 256"]["queries_per_s"]) for items, row in pools.items()]
    return curves


def _curves(axis: Any, what: str, curves: Curves) -> None:
    names = [
        "lookup", "exact search, width 768", "decoder, early stop", "decoder, full depth",
        "exact search, width 256",
    ]  # fmt: skip
    for name, points in curves.items():
        colour = f"C{names.index(name) if name in names else len(names)}"
        axis.plot(*zip(*sorted(points), strict=True), "o-", label=name, color=colour, markersize=4)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(what)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
