"""Which score ranks best, on val: the decoder's, similarity, or a weighted sum of both.

    python benchmarks/ranking.py --data BENCH --device cuda

Every search of `SEARCHES` by the model's own codes in the universal pool of val, hit@5 and MRR, mean over the
rows, and hit@5 over that of exact search. What `genius eval` and the model's `[search]` table use is chosen
by this. Writes benchmarks/results/ranking.json.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from _harness import run

from genius.data.base import open_dataset
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.options import EvalOptions
from genius.evaluate.systems import CodeSearch
from genius.model import Model
from genius.search.options import SearchOptions

LOOKUP = partial(SearchOptions, "lookup", beam=200)
DECODER = partial(SearchOptions, "generate", beam=50)
BOTH = partial(SearchOptions, "both", beam=50, weight=30.0)
OF_LOOKUP = (0.1, 0.2, 0.5)  # weights of the search score: another similarity, or
OF_DECODER = (0.001, 0.002, 0.005, 0.01, 0.02)  # a log-probability
SEARCHES = {
    "lookup, codes": LOOKUP("codes"),
    "lookup, vectors": LOOKUP("vectors"),
    **{f"lookup, vectors + {w} score": LOOKUP("vectors", fusion=w) for w in OF_LOOKUP},
    "decoder": DECODER("none"),
    "decoder, codes": DECODER("codes"),
    "decoder, vectors": DECODER("vectors"),
    **{f"decoder, vectors + {w} score": DECODER("vectors", fusion=w) for w in OF_DECODER},
    **{f"both, lookup weighs {w}": SearchOptions("both", beam=50, weight=w) for w in (10.0, 30.0, 100.0)},
    **{f"both, vectors + {w} score": BOTH("vectors", fusion=w) for w in OF_DECODER},
}


def main(
    data: Path,
    model: str = "mini",
    device: str = "cpu",
    limit: int = 0,
    split: str = "val",
    cache: Path = Path("runs/ranking"),
) -> dict[str, Any]:
    """The figures of all searches; `limit` queries of each row, 0: all."""
    loaded = Model.load(model, device)
    books, decoder = loaded.codebooks(), loaded.decoder
    options = EvalOptions(split=split, limit=limit)
    evaluator = Evaluator(open_dataset("auto", data), loaded, options, cache)
    systems = [
        Exact(device),
        *(CodeSearch(name, books, how, decoder, device) for name, how in SEARCHES.items()),
    ]
    found = evaluator.run(systems, names={"data": "", "model": model}).as_json()["mean"]
    exact = found["exact"]["hit@5"]
    return {
        "searches": {
            name: {
                "hit@5": round(mean["hit@5"], 4),
                "mrr": round(mean["mrr"], 4),
                "over exact": round(mean["hit@5"] / exact, 4),
            }
            for name, mean in found.items()
        }
    }


if __name__ == "__main__":
    run(main)
