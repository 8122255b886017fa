"""The frontier of a model on real data: pools grown around real answers, systems by name, beams compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset
from genius.encode.base import encode_parts
from genius.evaluate.catalog import LEARNING, OURS, SYSTEMS, BenchModel, Setup, names_of
from genius.evaluate.code_search import CodeSearch
from genius.evaluate.contents import ABSENT, Contents, Progress
from genius.evaluate.encoding import CHUNK, Floats, Pool, Questions, open_or_none
from genius.evaluate.evaluation import Evaluation
from genius.evaluate.frontier import as_json, crossovers, machine, measure_frontier, measure_point
from genius.evaluate.grown import Growth
from genius.evaluate.measure import Place, Say
from genius.evaluate.metrics import Judgements
from genius.evaluate.results import versions
from genius.evaluate.systems import System
from genius.types import Modality

FLAT = "faiss-flat"  # exact search that is well written: the harder rival where it was measured
BUILT = frozenset({"hnsw", "ivf-pq", "ivf-pq-best", "pq", "faiss-rq"})  # minutes to build at 100,000 items
TIMED = 3  # times that the encoding of a query is timed


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    systems: str
    sizes: Sequence[int]
    beams: Sequence[int] = ()  # beams to compare on the real pool
    queries: int = 20  # of each row
    split: str = "test"
    most_built: int = 100_000  # items; in larger pools systems whose index takes long to build are left out


def benchmark(
    dataset: Dataset, data: str, model: BenchModel, name: str, plan: Plan, place: Place, say: Say,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Points of all systems at all sizes, crossovers with exact search, beam curves; plain values."""
    evaluation = Evaluation(
        dataset, model, setting="universal", split=plan.split, cache=place.cache, limit=plan.queries,
        progress=progress,
    )  # fmt: skip
    say(evaluation.estimate().line())
    pool, questions, judged = evaluation.all_at_once()
    answers = judged.item[judged.item < len(pool)]
    growth = Growth(pool, _z(model, pool), answers, _codes_of(model))
    sizes = sorted({max(size, growth.least) for size in plan.sizes}) or [len(pool)]
    folder = place.cache / "decoders"
    setup = Setup(model, dataset, evaluation.encoding, folder, place.device, split=plan.split)
    names = [system for system in names_of(plan.systems) if system not in LEARNING]  # those learn each pool
    same = _same_searches(names, setup)
    makers = {name: _maker(name, setup) for name in names if name not in same}
    wanted = [
        (size, [make for name, make in makers.items() if size <= plan.most_built or name not in BUILT])
        for size in sizes
    ]
    inside = _moved(judged, growth, len(pool))
    points = measure_frontier(wanted, growth, questions, inside, say)
    return as_json(
        points,
        [
            *crossovers(points),
            *(c for c in crossovers(points, FLAT) if c.system in OURS and c.system != "exact"),
        ],
        data=data,
        model={"name": name, "fingerprint": model.fingerprint},
        split=plan.split,
        plan={"systems": plan.systems, "queries": plan.queries},
        queries=len(questions),
        real_items=len(pool),
        same=same,
        encoding_milliseconds=_encoding_time(model, evaluation.query_contents),
        beams=_beams(plan.beams, setup, pool, questions, judged, say),
        machine=machine(place.device),
        versions=versions(),
    )


def _maker(name: str, setup: Setup) -> Callable[[], System]:
    return lambda: SYSTEMS[name](setup)


def _same_searches(names: Sequence[str], setup: Setup) -> dict[str, str]:
    """Systems that are another one under a second name, such as the default search: name -> that one."""
    first: dict[str, str] = {}
    found = {}
    for name in sorted(names, key=lambda name: name.startswith("genius+")):
        system = SYSTEMS[name](setup)
        if isinstance(system, CodeSearch):
            settings = str(sorted(system.settings.items()))
            if settings in first:
                found[name] = first[settings]
            first.setdefault(settings, name)
    return found


def _z(model: BenchModel, pool: Pool) -> Floats:
    rows = np.arange(len(pool))
    return np.concatenate([model.z(pool.parts(rows[s : s + CHUNK])) for s in range(0, len(pool), CHUNK)])


def _codes_of(model: BenchModel) -> Callable[[Floats, NDArray[np.uint8]], NDArray[np.uint16]]:
    codes: dict[Modality, int] = dict(getattr(model, "modality_codes", {}))
    level0 = np.array([codes.get(modality, number) for number, modality in enumerate(Modality)])

    def codes_of(z: Floats, modality: NDArray[np.uint8]) -> NDArray[np.uint16]:
        return np.asarray(model.quantizer.codes_of(z, level0[modality]), dtype=np.uint16)

    return codes_of


def _moved(judged: Judgements, growth: Growth, items: int) -> Judgements:
    """The same judgements on the rows of grown pools; items that the pool lacks move out of reach."""
    there = judged.item < items
    item = np.where(there, 0, np.iinfo(np.int32).max + judged.item)
    item[there] = growth.place_of(judged.item[there])
    order = np.lexsort((item, judged.query))
    return Judgements(judged.queries, judged.query[order], item[order], judged.gain[order])


def _beams(
    beams: Sequence[int], setup: Setup, pool: Pool, questions: Questions, judged: Judgements, say: Say
) -> list[dict[str, Any]]:
    """hit@5 and time of decoder and lookup at each beam, no re-ranking by vectors."""
    found = []
    for method, rerank in (("generate", "none"), ("generate", "codes"), ("lookup", "codes")):
        if method == "generate" and setup.model.decoder is None:
            continue
        for beam in beams:
            options = setup.options(method=method, rerank=rerank, beam=beam)
            decoder = setup.model.decoder if method == "generate" else None
            label = "genius" if rerank == "none" else f"decoder+{rerank}"
            label = "lookup+codes" if method == "lookup" else label
            system = CodeSearch(label, setup.codebooks, options, decoder, setup.device)
            point = measure_point(system, pool, len(pool), questions, judged)
            say(f"beam {beam}, {label}: hit@5 {100 * point.hit_at_5:.1f}, {point.milliseconds:.2f} ms")
            found.append(
                {
                    "system": label,
                    "beam": beam,
                    "hit_at_5": point.hit_at_5,
                    "milliseconds": point.milliseconds,
                }
            )
    return found


def _encoding_time(model: BenchModel, queries: Sequence[Contents]) -> float:
    """Median milliseconds of turning one query into z, over a query of each row."""
    spent = []
    for contents in queries:
        image, text = (ABSENT if not len(c) else c[0] for c in (contents.image, contents.text))
        file = contents.sources[image][0] if image != ABSENT else None
        words = contents.sources[image if text == ABSENT else text][1]
        picture = open_or_none(file)
        for _ in range(TIMED):
            start = time.perf_counter()
            model.z(encode_parts(model.encoder, [picture], [words]))
            spent.append(1000 * (time.perf_counter() - start))
    return float(np.median(spent))
