"""The written report: all systems on all rows in both settings, who beats whom, the frontier; in Markdown.

Every sentence is made from a row of the results beside it; nothing is claimed that was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genius.evaluate.compare import compare
from genius.evaluate.results import Results
from genius.evaluate.tables import frontier_table, results_table

# who is worth comparing: ours, then what people use today at about the same bytes
AT_CODE_SIZE = (("genius", "genius+codes", "decoder+codes", "lookup+codes"), ("ivf-pq", "pq", "faiss-rq"))
WITH_VECTORS = (("genius+vectors", "decoder+vectors", "lookup+vectors"), ("exact", "hnsw", "ivf-pq-best"))
DECODER = (("genius", "decoder+codes"), ("lookup+codes",))


def writeup(
    results: Sequence[Results],
    frontiers: Sequence[Mapping[str, Any]],
    command: str,
    pictures: Sequence[str] = (),
) -> str:
    """The whole document; `pictures` are paths relative to it, shown under the frontiers."""
    first = results[0]
    parts = [
        "# Results",
        f"Made by `{command}`. Model `{first.model}` ({first.fingerprint}), data `{first.data}`, "
        f'{first.split} split. Figures are hit rates in percent (the paper\'s "Recall@k"): hit@5, hit@10 for '
        "Fashion200K and FashionIQ. Intervals are 95 %, by bootstrap over queries; differences are paired.",
    ]
    for each in results:
        parts += [
            f"## {each.setting.capitalize()} pool",
            results_table(each.as_json()).markdown(),
            _shares(each),
        ]
        parts += ["### At code size: no vectors are stored", *_comparisons(each, AT_CODE_SIZE)]
        parts += ["### With vectors", *_comparisons(each, WITH_VECTORS)]
        parts += ["### The decoder against lookup in the same codes", *_comparisons(each, DECODER)]
    for frontier in frontiers:
        parts += [f"## Frontier on {frontier['machine']['device']}", frontier_table(frontier).markdown()]
    parts += [f"![{path}]({path})" for path in pictures]
    parts += ["## Versions", *(f"- {name}: {value}" for name, value in sorted(first.versions.items()))]
    return _joined(parts)


def _shares(results: Results) -> str:
    """The mean of each system as a share of exact search."""
    mean = results.as_json()["mean"]
    if "exact" not in mean:
        return ""
    exact = mean["exact"]["headline"]
    shares = [
        f"{name} {values['headline'] / exact:.2f}"
        for name, values in mean.items()
        if name != "exact" and values["complete"] and exact > 0
    ]
    return f"Share of exact search ({100 * exact:.1f}): {', '.join(shares)}." if shares else ""


def _comparisons(results: Results, sides: tuple[Sequence[str], Sequence[str]]) -> list[str]:
    """A line for each pair that was run."""
    there = set(results.systems())
    lines = [
        f"- {compare(results, one, other).line()}"
        for one in sides[0]
        for other in sides[1]
        if one in there and other in there
    ]
    return lines or ["- not run"]


def _joined(parts: Sequence[str]) -> str:
    """Parts with a blank line between them, but none between the lines of a list."""
    out = ""
    for before, part in zip(("", *parts), parts, strict=False):
        if not part:
            continue
        tight = part.startswith("- ") and before.startswith("- ")
        out += ("" if not out else "\n" if tight else "\n\n") + part.strip("\n")
    return out + "\n"
