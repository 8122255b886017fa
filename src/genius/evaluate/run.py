"""From names to results: load models and encoders, evaluate the systems named, score TREC run files.

Several processes may search side by side (`search_in_parallel`): they only fill the cache of answers, and the
evaluation that follows reads them from there. What a failed job leaves open is searched by the evaluation.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from genius.data.base import Dataset, Row
from genius.encode.base import load_encoder
from genius.errors import BadInput, MissingExtra
from genius.evaluate.baselines.exact import Exact
from genius.evaluate.baselines.faiss import Score, load_faiss
from genius.evaluate.cache import Progress
from genius.evaluate.embeddings import EncoderOnly
from genius.evaluate.evaluator import Evaluator
from genius.evaluate.options import EvalOptions, Workspace
from genius.evaluate.protocol import DEPTH, match_qrels, mean_over_rows, row_metrics
from genius.evaluate.results import Entry, Results
from genius.evaluate.systems import (
    CODE_BASELINES,
    GENERATIVE,
    SystemContext,
    make_systems,
    system_names,
)
from genius.evaluate.trec import Run, match_run, read_run

if TYPE_CHECKING:
    from genius.model import Model

Log = Callable[[str], None]
# name in the tables -> encoder: SF adds image and text embeddings (phi), FF and fusion give one for both
ENCODERS: Mapping[str, str] = {
    "clip-sf": "clip",
    "clip-ff": "clip-ff",
    "clip-fusion": "clip-fusion",
    "blip-sf": "blip",
    "blip-ff": "blip-ff",
    "blip-fusion": "blip-fusion",
}
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}  # as many processes as cores


def split_encoder(word: str) -> tuple[str, str] | None:
    """`clip-sf=FOLDER` as its two halves; None if `word` names no such encoder."""
    name, _, source = (part.strip() for part in word.partition("="))
    if name not in ENCODERS:
        return None
    if not source:
        raise BadInput(f"{name} needs weights: write {name}=FOLDER")
    return name, source


def evaluate(
    dataset: Dataset,
    data: str,
    model: str | Model,
    systems: str,
    options: EvalOptions,
    workspace: Workspace,
    log: Log,
    progress: Progress | None = None,
) -> Results:
    """Results of `systems` (names, sets, `clip-sf=FOLDER`, by comma); `data` is its name in the results."""
    words = [word.strip() for word in systems.split(",") if word.strip()]
    encoders = [found for word in words if (found := split_encoder(word))]
    names = [word for word in words if not split_encoder(word)]
    parts: list[Results] = []
    if names or not encoders:
        wanted = system_names(",".join(names))
        loaded = load_model(model, workspace.device) if isinstance(model, str) else model
        evaluator = _evaluator(dataset, loaded, options, workspace, log, progress)
        context = SystemContext(
            loaded, dataset, evaluator.embedder, workspace.cache / "decoders", workspace.device,
            workspace.generative, options.split, options.beam,
        )  # fmt: skip
        chosen = scores_on_val(dataset, loaded, wanted, options, workspace, log)
        context.scores = {name: best_score(found) for name, found in chosen.items()}
        about = {"data": data, "model": loaded.name, "chosen_on_val": chosen}
        made = make_systems(wanted, context, options.seeds)
        parts.append(evaluator.run(made, names=about, runs=workspace.runs, log=log))
    for name, source in encoders:
        encoder = EncoderOnly(load_encoder(ENCODERS[name], source, workspace.device))
        evaluator = _evaluator(dataset, encoder, options, workspace, log, progress)
        about = {"data": data, "model": name}
        exact = Exact(workspace.device, name)
        parts.append(evaluator.run([exact], names=about, runs=workspace.runs, log=log))
    return replace(
        parts[0],
        entries=[entry for part in parts for entry in part.entries],
        systems_used={name: settings for part in parts for name, settings in part.systems_used.items()},
    )


def scores_on_val(
    dataset: Dataset, model: Model, names: Sequence[str], options: EvalOptions, workspace: Workspace, log: Log
) -> dict[str, dict[str, float]]:
    """The mean on val of each code baseline by each score; empty where there is nothing to choose on."""
    wanted = [name for name in names if name in CODE_BASELINES]
    if not wanted or options.split == "val" or "val" not in dataset.splits():
        return {}
    found: dict[str, dict[str, float]] = {name: {} for name in wanted}
    evaluator = Evaluator(dataset, model, replace(options, split="val"), workspace.cache)
    folder = workspace.cache / "decoders"
    for score in get_args(Score):
        context = SystemContext(
            model, dataset, evaluator.embedder, folder, workspace.device,
            split="val", scores=dict.fromkeys(wanted, score),
        )  # fmt: skip
        results = evaluator.run(make_systems(wanted, context), names={"data": "", "model": ""}, log=log)
        for name in wanted:
            found[name][score] = mean_over_rows(list(results.metrics_of(name).values()))["headline"]
    return found


def best_score(found: Mapping[str, float]) -> Score:
    """The score with the higher figure; of equal ones cosine."""
    return "product" if found["product"] > found["cosine"] else "cosine"


def load_model(name: str, device: str) -> Model:
    """The model called `name`, or in the folder `name`."""
    from genius.model import Model

    return Model.load(name, device)


def pick_device(name: str) -> str:
    """`name`, or for auto the GPU if there is one."""
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _evaluator(
    dataset: Dataset,
    model: Model | EncoderOnly,
    options: EvalOptions,
    workspace: Workspace,
    log: Log,
    progress: Progress | None,
) -> Evaluator:
    log(f"reading queries and {options.setting} pools; cached files are found by their content")
    evaluator = Evaluator(dataset, model, options, workspace.cache, progress)
    log(evaluator.describe())
    return evaluator


def parallel_jobs(systems: str, settings: Sequence[EvalOptions]) -> list[tuple[str, list[EvalOptions]]]:
    """Systems and settings in groups that can be searched side by side, the longest first.

    Generative baselines stay together: the second setting uses what was trained for the first.
    """
    names = system_names(",".join(word for word in systems.split(",") if "=" not in word))
    trained = [name for name in names if name in GENERATIVE]
    alone = [name for name in names if name == "genius"]  # every code is decoded: the longest search
    rest = [name for name in names if name not in (*trained, *alone)]
    jobs = [(trained, list(settings)), *((group, [each]) for group in (alone, rest) for each in settings)]
    return [(",".join(group), each) for group, each in jobs if group]


def search_in_parallel(
    systems: str, settings: Sequence[EvalOptions], arguments: Sequence[str], processes: int, log: Log
) -> None:
    """Fill the cache of answers by several processes of `genius eval` with these arguments.

    Embeddings and codes have to be cached already. The answers are those of `one_thread`. What a failed
    process leaves open is searched later.
    """

    def search(job: tuple[str, Sequence[EvalOptions]]) -> None:
        for each in job[1]:
            own = ["--systems", job[0], "--setting", each.setting, "--split", each.split]
            own += ["--limit", str(each.limit), "--seeds", str(each.seeds), "--format", "json"]
            command = [sys.executable, "-m", "genius", "eval", *arguments, *own]
            done = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, check=False)
            failed = (
                f" failed, and is searched again: {done.stderr[-500:]}" if done.returncode else " is searched"
            )
            log(f"{each.setting}, {job[0]}{failed}")

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(search, parallel_jobs(systems, settings)))


@contextmanager
def one_thread() -> Iterator[None]:
    """In it torch and FAISS compute with one thread each: answers are cached by the number of threads."""
    import torch

    numbers = [(torch.get_num_threads, torch.set_num_threads)]
    with suppress(MissingExtra):
        faiss = load_faiss()
        numbers.append((faiss.omp_get_max_threads, faiss.omp_set_num_threads))
    before = [get() for get, _ in numbers]
    try:
        for _, change in numbers:
            change(1)
        yield
    finally:
        for (_, change), number in zip(numbers, before, strict=True):
            change(number)


def score_runs(dataset: Dataset, files: Sequence[Path], *, setting: str, split: str, data: str) -> Results:
    """Metrics of each TREC run file on the row whose queries it answers; its name is the system's."""
    rows = {row: [query.id for query in dataset.queries(split, row)] for row in dataset.rows(split)}
    pools: dict[Row | None, list[str]] = {}
    entries = []
    for file in files:
        run = read_run(file)
        row = _row_of(run, rows, file)
        pool_row = None if setting == "universal" else row
        if pool_row not in pools:
            pools[pool_row] = [item.id for item in dataset.pool(split, pool_row)]
        pool = pools[pool_row]
        ranked, faults = match_run(run, rows[row], pool, DEPTH)
        row_of = {item: number for number, item in enumerate(pool)}
        matched = match_qrels(row, rows[row], dataset.qrels(split, row), row_of)
        system = file.stem.rpartition(".")[2] or file.stem  # of mscoco_task0_test_local.exact.trec
        metrics = row_metrics(row, setting, system, matched, [ranked], len(pool), faults)
        entries.append(Entry(metrics, "", "", "", 0.0, 0.0))
    return Results(
        setting=setting, split=split, data=data, model="run files", fingerprint="", entries=entries,
        reading=list(dataset.report.lines()), instructions="unknown",
    )  # fmt: skip


def _row_of(run: Run, rows: Mapping[Row, list[str]], file: Path) -> Row:
    """The row that most of the run's queries belong to."""
    shared = {row: sum(query in run for query in queries) for row, queries in rows.items()}
    best = max(shared, key=lambda row: shared[row], default=None)
    if best is None or not shared[best]:
        raise BadInput(f"{file}: none of its {len(run)} queries is in this dataset and split")
    return best
