"""What README says in words holds of the figures; a claim that no longer holds has to be rewritten."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README = re.sub(r"\s+", " ", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
figure = runpy.run_path(str(REPOSITORY / "docs" / "figures.py"), run_name="figures")["lookup"]


def hit(setting: str, system: str) -> float:
    return figure(f"results-{setting}.json > mean > {system} > headline")


def grown(system: str, what: str) -> list[float]:
    sizes = (16_618, 50_000, 200_000, 2_000_000)
    return [figure(f"scale_accuracy.json > test > items={n} > systems > {system} > {what}") for n in sizes]


def lookup_time(items: int, how: str, what: str) -> float:
    phase = "faiss" if how.startswith("faiss") else "lookup"
    return figure(f"speed-cpu.json > {phase} > {items} > {how} > {what}")


def least_gain(setting: str, seed: int) -> float:
    """Of the decoder, re-ranked by embeddings, over exact search: the lower end of its interval."""
    found = f"decoder_seeds.json > {setting} > {seed} > differences > decoder+vectors - exact"
    return figure(f"{found} > interval > 0")


SETTINGS = ("universal", "local")
CLAIMS = {
    "Codes fitted to the pool, without labels, lose less than the shipped ones": lambda: (
        all(hit(setting, "fitted+codes") > hit(setting, "lookup+codes") for setting in SETTINGS)
    ),
    "residual quantizer is behind them in the universal pool, level with them in small ones": lambda: (
        hit("universal", "fitted+codes") > hit("universal", "faiss-rq")
        and abs(hit("local", "fitted+codes") - hit("local", "faiss-rq")) < 0.005
    ),
    "it finds more than exact search where the pool has all modalities, under each of three seeds": lambda: (
        hit("universal", "decoder+vectors") > hit("universal", "exact")
        and all(least_gain("universal", seed) > 0 for seed in range(3))
    ),
    "is over 300 times as large": lambda: (
        300 * figure("results-universal.json > rows > 0 > pool_items") < 5.6e6
    ),
    "on a CPU it is slower": lambda: (
        figure("frontier-cpu.json > points > system=genius&items=16618 > milliseconds")
        > figure("frontier-cpu.json > points > system=lookup+codes&items=16618 > milliseconds")
    ),
    "Codes alone lose accuracy**, the more the larger the pool": lambda: (
        all(
            max(grown(system, "share")) < 1
            and grown(system, "nearest") == sorted(grown(system, "nearest"), reverse=True)
            for system in ("lookup+codes", "fitted+codes")
        )
    ),
    "Exact search is faster in small pools": lambda: (
        figure("frontier-cpu.json > points > system=exact&items=2000 > milliseconds")
        < figure("frontier-cpu.json > points > system=lookup+vectors&items=2000 > milliseconds")
    ),
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
def test_claim_is_made_and_holds(claim):
    assert claim in README, "the sentence has changed: change this test with it"
    assert CLAIMS[claim](), "the figures say otherwise now: rewrite the sentence"


def test_lookup_is_ahead_of_hnsw_in_every_round_at_a_million_items():
    assert "of the time of HNSW at recall 0.95" in README
    for recall in (0.95, 0.98):
        found = "kernel.json > synthetic, 1,000,000 items > at equal recall"
        found += f" > lookup, vectors over hnsw, recall {recall}"
        assert figure(f"{found} > time > most") < 1
        assert figure(f"{found} > bytes") < 0.5


def test_hnsw_is_faster_among_very_near_neighbours():
    assert "among very near neighbours HNSW can be faster" in README
    found = "kernel.json > made from photos, 1,000,000 items > at equal recall"
    assert figure(f"{found} > lookup, vectors over hnsw, recall 0.95 > time > least") > 1


def test_hnsw_is_faster_in_smaller_pools():
    """One of HNSW's settings finds as much as lookup with embeddings in less time."""
    assert "in smaller pools and among very near neighbours HNSW can be faster" in README
    for items in (10_000, 100_000):
        recall, time = (lookup_time(items, "lookup, vectors", what) for what in ("recall", "ms"))
        rivals = [f"faiss hnsw, ef {effort}" for effort in (8, 16, 32, 64, 128)]
        assert any(
            lookup_time(items, one, "recall") >= recall and lookup_time(items, one, "ms") < time
            for one in rivals
        )
