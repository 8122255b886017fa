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
    """The figures of `speed.py` on a CPU and on a GPU, of `kernel.py` and of `billion.py`."""
    files = {
        "cpu": "speed-cpu.json", "gpu": "speed-gpu.json", "kernel": "kernel.json", "large": "billion.json",
    }  # fmt: skip
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
        "scale": _scale(figures.get("large", {})),
        "gpu": _gpu(gpu),
        "decoder on a gpu": _short(gpu.get("short", {})),
        "rule": _rule(gpu.get("rule", {})),
        "rerank": _rerank(gpu.get("rerank", {})),
        "against": _against(gpu),
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


LEFT_OUT = ("batch 64", "ef 8", "ef 32", "ef 128", "nprobe 8", "nprobe 16", "nprobe 64", "nprobe 128")


def _lookup(phase: dict[str, Any]) -> str:
    """Milliseconds relative to our lookup with codes at the same pool, since machines differ."""
    rows: Rows = []
    pools = [key for key in phase if key.isdigit()]
    names = list(dict.fromkeys(name for pool in pools for name in phase[pool]))
    for name in (name for name in names if not name.endswith(LEFT_OUT)):
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
    settings = [key for key in phase if key.startswith("1 threads")]
    names = list(dict.fromkeys(name for key in settings for name in phase[key] if "over" not in name))
    rows = [
        [name, *(f"{phase[key][name] / phase[key]['encode']:.2f}" for key in settings), _same(phase, name)]
        for name in names
        if not name.startswith("level by level") and "bfloat16" not in name
    ]
    head = ["time over encoding the text", *(key.split(", ")[1] for key in settings), "same 10 best"]
    return _source(phase, "cpu") + _table(head, rows)


def _same(phase: dict[str, Any], name: str) -> str:
    share = phase["same of the 10 best as float32"].get(name)
    return "" if share is None else f"{share:.3f}"


def _scale(found: dict[str, Any]) -> str:
    """Times over those in the smallest pool, of new queries and of queries asked again, and recall."""
    pools = found.get("sizes", {})
    if not pools:
        return _table([], [])
    first = next(iter(pools.values()))
    rows: Rows = [["bytes per item", *(f"{own['bytes_per_item']:g}" for own in pools.values())]]
    name = "build_bytes_per_item_beside_the_codes"
    rows.append(["peak bytes per item of the build", *(f"{own[name]:g}" for own in pools.values())])
    for search, base in first["cpu"].items():
        cells = [
            f"{own['ms'] / base['ms']:.2f} / {own['ms_again'] / base['ms_again']:.2f} / {own['recall']:.3f}"
            for own in (pool["cpu"][search] for pool in pools.values())
        ]
        rows.append([f"{search}: time / asked again / recall", *cells])
    on_gpu = "lookup, codes, batch 256"
    if all("gpu" in own for own in pools.values()):
        rates = [f"{own['gpu'][on_gpu]['queries_per_s']:,.0f}" for own in pools.values()]
        rows.append([f"{on_gpu}, on a GPU: queries a second", *rates])
        moved = [f"{own['gpu']['gpu_bytes_per_item']:g}" for own in pools.values()]
        rows.append(["bytes per item on the GPU", *moved])
    head = ["", *(f"{int(items):,} items" for items in pools)]
    return f"`{found['command']}`, [figures](../benchmarks/results/billion.json)\n\n" + _table(head, rows)


BATCHES = ("batch 1", "batch 16", "batch 64", "batch 256", "batch 1024")
ENDS = ("batch 1", "batch 256")
RULE_BATCHES = ("batch 1", "batch 4", "batch 8", "batch 16", "batch 64", "batch 256")


def _gpu(gpu: dict[str, Any]) -> str:
    """Lookup beside exact search, and in the largest pools."""
    rows: Rows = []
    for phase in ("lookup", "exact", "scale"):
        for path, rates in _rated(gpu.get(phase, {})):
            cells = [f"{rates[b]['queries_per_s']:,.0f}" if b in rates else "" for b in ENDS]
            pools = [f"{int(key):,} items" for key in path if key.isdigit()]
            names = [key for key in path if not key.isdigit()] or ["exact, width 768"]
            found = f"{rates['recall']['10 best']:.3f}" if "recall" in rates else ""
            rows.append([", ".join([*names, *(pools or ["1,000,000 items, width 256"])]), *cells, found])
    head = ["queries a second", *ENDS, "recall of the 10 nearest"]
    return _source(gpu.get("lookup", {}), "gpu") + _table(head, rows)


def _short(phase: dict[str, Any]) -> str:
    """The decoder by short attention, over torch's attention and as a share of the floor."""
    rows: Rows = []
    for search in ("early stop", "full depth"):
        for batch in (1, 256):
            own, other = (
                phase.get(f"{search}, batch {batch}, {way}", {})
                for way in ("short attention", "torch's attention")
            )
            if own:
                gain = own["queries_per_s"] / other["queries_per_s"]
                cells = [f"{own['queries_per_s']:,.0f}", f"{own['share_of_floor']:.2f}", f"{gain:.1f}"]
                rows.append([f"{search}, batch {batch}", *cells])
    head = ["T5-small's shape, beam 50", "queries a second", "of what is possible", "times torch's attention"]
    return _source(phase, "gpu") + _table(head, rows)


def _rule(phase: dict[str, Any]) -> str:
    """Milliseconds of a batch on the GPU over those on the CPU beside it."""
    rows: Rows = []
    for name, own in phase.items():
        if name.endswith(", gpu"):
            beside = phase[name.removesuffix("gpu") + "cpu"]
            cells = [f"{own[b] / beside[b]:.2f}" if b in own and b in beside else "" for b in RULE_BATCHES]
            rows.append([name.removesuffix(", gpu"), *cells])
    return _source(phase, "gpu") + _table(["time over the CPU's", *RULE_BATCHES], rows)


def _rerank(phase: dict[str, Any]) -> str:
    rows: Rows = []
    for name, own in phase.items():
        if name.endswith(", gpu"):
            beside = phase[name.removesuffix("gpu") + "cpu"]["queries_per_s"]
            rate = own["queries_per_s"]
            rows.append([name.removesuffix(", gpu"), f"{rate:,.0f}", f"{rate / beside:.2f}"])
    head = ["re-ranked by, in a million items, beam 50", "queries a second on the GPU", "times the CPU's"]
    return _source(phase, "gpu") + _table(head, rows)


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
    if "transformers" in gpu and "short" in gpu:
        for search in ("early stop", "full depth"):
            for batch, other in ((1, "batch 1"), (256, "batch 16")):
                ours = gpu["short"][f"{search}, batch {batch}, short attention"]["queries_per_s"]
                ratio = ours / gpu["transformers"][other]["queries_per_s"]
                rows.append([f"{search}, batch {batch}, over theirs in {other}", f"{ratio:,.0f}"])
    return _table(["ours at 1,000,000 items, beam 50", "times transformers' `generate` at 100,000"], rows)


def pictures(figures: dict[str, Any], docs: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    phase = beside_faiss(figures["cpu"])
    pools = [key for key in phase if key.isdigit()]
    if pools:
        figure, axes = pyplot.subplots(
            1, len(pools), figsize=(4.2 * len(pools), 3.6), sharex=True, sharey=True
        )
        colours: dict[str, str] = {}  # one for each family, in every picture
        for axis, pool in zip(axes, pools, strict=True):
            base = phase[pool]["lookup, codes"]["ms"]
            families: dict[str, list[tuple[float, float]]] = {}
            for name, row in phase[pool].items():
                if "batch" not in name:
                    family = name.rsplit(",", 1)[0] if name.startswith("faiss") else name
                    families.setdefault(family, []).append((row["ms"] / base, row["recall"]))
            for family, points in families.items():
                marker = "o-" if family.startswith("faiss") else "s" if "lookup" in family else "^"
                colour = colours.setdefault(family, f"C{len(colours)}")
                axis.plot(
                    *zip(*sorted(points), strict=True), marker,
                    label=family, color=colour, markersize=5, linewidth=1,
                )  # fmt: skip
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
    lookup, short = gpu["lookup"], gpu["short"]
    ours = {
        search: {b: short[f"{search}, {b}, short attention"] for b in ENDS}
        for search in ("early stop", "full depth")
    }
    rows = {
        "lookup": lookup["lookup, 8 leaves a beam"],
        "exact search, width 256": lookup["exact, bf16"],
        "exact search, width 768": gpu["exact"]["1000000"],
        "decoder, early stop": ours["early stop"],
        "decoder, full depth": ours["full depth"],
        "transformers' generate": gpu["transformers"],
    }
    return {
        name: [(int(b.split()[1]), row[b]["queries_per_s"]) for b in BATCHES if b in row]
        for name, row in rows.items()
    }


def _by_pool(gpu: dict[str, Any]) -> Curves:
    """Queries a second by pool, in batches of 256."""
    phases = {"exact search, width 768": ("exact", "")}
    phases |= {"lookup": ("scale", "lookup"), "decoder of mini's shape": ("scale", "generate, early stop")}
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
