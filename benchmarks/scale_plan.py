"""A capacity plan for 10 million to 10 billion items: docs/scale.md, computed from measured figures.

    python benchmarks/scale_plan.py            # writes docs/scale.md and the picture in it

Every number on the page is computed here, from a file in benchmarks/results or from an assumption that the
page names; scale_plan.toml has the inputs, formulas and sentences. `tests/test_scale_plan.py` fails when the
page is not what this script writes.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "scale.md"
PLAN = tomllib.loads((HERE / "scale_plan.toml").read_text(encoding="utf-8"))
ACCURACY = HERE / "results" / "scale_accuracy.json"
SIZES = (10**7, 10**8, 10**9, 10**10)


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


class Values:
    """The values of expressions for N items."""

    def __init__(self, items: int) -> None:
        self._known: dict[str, Any] = {"size": size, "number": number, "money": money, "N": items}
        self._known |= {name: getattr(math, name) for name in ("ceil", "log", "log10")}
        for file in (HERE / "results").glob("*.json"):
            self._known[file.stem.replace("-", "_")] = json.loads(file.read_text())
        for name, expression in PLAN["names"].items():
            self._known[name] = self.of(expression)
        for figure in PLAN["inputs"]:
            self._known[_identifier(figure["symbol"])] = self.of(figure["value"])
        for name, expression in PLAN["terms"].items():
            self._known[name] = self.of(expression)

    def of(self, expression: str) -> Any:
        """The value of an expression of scale_plan.toml."""
        return eval(_identifier(expression), self._known)  # ours, not a user's

    def fill(self, text: str) -> str:
        """The text with the values of the expressions in braces."""
        return re.sub(r"\{([^}]+)\}", lambda found: str(self.of(found[1])), text)


def _identifier(text: str) -> str:
    return text.replace("$", "dollars_")


def source(figure: dict[str, Any]) -> str:
    """A link to the file that has an input with the commit that it was measured at, or that it is assumed."""
    if "file" not in figure:
        return "**assumed**"
    link = f"[{figure['file']}.json](../benchmarks/results/{figure['file']}.json)"
    return f"{link}, {figure['note']}; {measured_at(figure)}"


def measured_at(figure: dict[str, Any]) -> str:
    """The commit of an input's file, or of the part of it that is measured on its own (speed-*.json)."""
    result = json.loads((HERE / "results" / f"{figure['file']}.json").read_text())
    about = result if "command" in result else result[figure.get("part", "scale")]
    return f"commit {about['commit'][:7]}" if "commit" in about else "commit not recorded"


def table(rows: list[list[str]], numbers: range) -> list[str]:
    head, *rest = rows
    marks = ["|".join(["", *("---:" if column in numbers else "---" for column in range(len(head))), ""])]
    return [f"| {' | '.join(head)} |", *marks, *(f"| {' | '.join(row)} |" for row in rest)]


def accuracy(found: dict[str, Any]) -> list[str]:
    """What is found as pools grow beside exact search, from scale_accuracy.json."""
    points = found["test"]
    sizes = [f"{point['items']:,}" for point in points]
    names = list(dict.fromkeys(name for point in points for name in point["systems"]))
    exact = [f"{100 * point['systems']['exact']['hit@5']:.1f} %" for point in points]
    shares, near = (
        [[head, *sizes]] for head in ("hit@5, share of exact search's", "of the 10 nearest items")
    )
    shares.append(["exact, hit@5", *exact])
    for name in names[1:]:
        shares.append([name, *(share(point["systems"].get(name)) for point in points)])
        near.append([name, *(nearest(point["systems"].get(name)) for point in points)])
    grown = [["on val: share / nearest", *(f"{point['items']:,}" for point in found["val"])]]
    for codes in dict.fromkeys(
        key for point in found["val"] for key in point if isinstance(point[key], dict)
    ):
        grown += beams([point.get(codes, {}) for point in found["val"]], codes)
    filled = PLAN["accuracy"]
    known = {
        "real": f"{found['real_items']['test']:,}",
        "largest": sizes[-1],
        "test": found["queries"]["test"],
    }
    texts = ("before", "nearest", "between", "after")
    before, second, between, after = (filled[name].format(**known).strip() for name in texts)
    numbers = range(1, len(sizes) + 1)
    if not found.get("complete"):
        after += " The run was ended before its last systems."
    shown = ["![Exact search as pools grow by real and by made items](pictures/calibration.png)", ""]
    return [
        "## Accuracy", "", before, "", *table(shares, numbers), "", second, "", *table(near, numbers), "",
        between, "", *table(grown, numbers), "", after, "", *(shown if found["calibration"] else []),
    ]  # fmt: skip


def beams(points: list[dict[str, Any]], codes: str) -> list[list[str]]:
    """Rows of a table: what lookups with each beam find, and what all codes would, at each size."""
    first = next(point for point in points if point)
    rows = [[f"{codes}: all of them compared", *(both(point.get("all codes")) for point in points)]]
    for rerank in ("codes", "vectors"):
        for beam in first[rerank]:
            cells = [both(point.get(rerank, {}).get(beam)) for point in points]
            rows.append([f"{codes}: re-ranked by {rerank}, beam {beam}", *cells])
    return rows


def share(found: dict[str, Any] | None) -> str:
    """A hit rate as a share of exact search's with half its interval; – where it was not measured."""
    if not found or "share" not in found:
        return "–"
    low, high = found["interval"]
    return f"{found['share']:.2f} ± {(high - low) / 2:.2f}"


def nearest(found: dict[str, Any] | None) -> str:
    """How many of the nearest items were found; – where it was not measured."""
    return f"{found['nearest']:.2f}" if found else "–"


def both(found: dict[str, Any] | None) -> str:
    """The share of exact search's hit rate, and the share of the nearest items."""
    return f"{found['share']:.2f} / {found['nearest']:.2f}" if found and "share" in found else "–"


def draw(found: dict[str, Any], file: Path) -> None:
    """The calibration of made items as a picture."""
    from genius.plots.frontier import calibration
    from genius.plots.style import png

    file.write_bytes(png(calibration(found)))


def page() -> str:
    """The whole of docs/scale.md."""
    by_size = [Values(items) for items in SIZES]
    values = by_size[0]  # for what does not depend on N
    names = [f"{n // 10**6:,} M" if n < 10**9 else f"{n // 10**9:,} B" for n in SIZES]
    text = [
        "# Scale: a capacity plan for 10 million to 10 billion items",
        "",
        "Bytes, GPUs, hours and cost for pools of N items, extrapolated from measurements on small machines.",
        "`python benchmarks/scale_plan.py` computes every number; inputs marked *assumed* were not measured.",
        "Those whose commit is not recorded are older than the code: measure again before you rely on them.",
        "",
    ]
    for title, lines in PLAN["lines"].items():
        rows = [["", "formula", *names]]
        for line in lines:
            cells = [known.of(f"{line['show']}({line['value']})") for known in by_size]
            rows.append([line["what"], f"`{line['formula']}`", *cells])
        text += [f"## {title}", "", *table(rows, range(2, 6)), ""]
    if ACCURACY.is_file():
        text += accuracy(json.loads(ACCURACY.read_text()))
    limits = [f"{rank}. {values.fill(limit)}" for rank, limit in enumerate(PLAN["limits"], 1)]
    inputs = [["symbol", "what", "value", "from"]]
    for figure in PLAN["inputs"]:
        shown = number(values.of(figure["symbol"]))
        inputs.append([f"`{figure['symbol']}`", figure["what"], shown, source(figure)])
    text += ["## What breaks first, and what to do then", "", *limits, ""]
    text += ["## Where the numbers come from", "", *table(inputs, range(2, 3)), ""]
    return "\n".join([*text, values.fill(PLAN["cluster"])]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    if ACCURACY.is_file() and (measured := json.loads(ACCURACY.read_text()))["calibration"]:
        draw(measured, PAGE.parent / "pictures" / "calibration.png")
