"""Results as files that MTEB's tools read: one JSON a task, with the fields of its TaskResult.

They lie as in MTEB's own cache, FOLDER/results/genius__SYSTEM/FINGERPRINT/TASK.json with model_meta.json
beside, so that `mteb.ResultCache(FOLDER).load_results()` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from genius.evaluate.protocol import CUTOFFS, DEPTH, RowMetrics
from genius.evaluate.results import Results
from genius.files import storage_errors, write_file

MAIN = "ndcg_at_10"  # MTEB's main score of retrieval
UNKNOWN: dict[str, Any] = {  # what model_meta.json must have and an evaluation does not know
    **dict.fromkeys(("loader", "release_date", "languages", "n_parameters", "memory_usage_mb", "max_tokens")),
    **dict.fromkeys(("embed_dim", "license", "open_weights", "public_training_code", "public_training_data")),
    **dict.fromkeys(("similarity_fn_name", "use_instructions", "training_datasets")),
    "framework": ["PyTorch"],
    "modalities": ["image", "text"],
}


def write_mteb(results: Results, folder: Path) -> None:
    """Write every row of every system; files of an earlier evaluation are replaced."""
    for entry in results.entries:
        metrics = entry.metrics
        model = f"genius/{metrics.system}"  # MTEB's names have an owner
        path = model.replace("/", "__").replace(" ", "_")
        own = folder / "results" / path / (entry.fingerprint or "no_revision_available")
        with storage_errors(own):
            own.mkdir(parents=True, exist_ok=True)
        name = f"{metrics.row.dataset}_task{metrics.row.task}_{results.setting}"
        task = {
            "dataset_revision": entry.pool_hash or "unknown",
            "task_name": name,
            "mteb_version": None,
            "scores": {results.split: [_scores(metrics)]},
            "evaluation_time": entry.seconds,
            "kg_co2_emissions": None,
        }
        meta = {**UNKNOWN, "name": model, "revision": own.name}
        for file, value in ((f"{name}.json", task), ("model_meta.json", meta)):
            write_file(own / file, [json.dumps(value, indent=2).encode(), b"\n"])


def _scores(metrics: RowMetrics) -> dict[str, Any]:
    """The metrics under MTEB's names."""
    named = {f"hit_rate_at_{k}": metrics.mean(f"hit@{k}") for k in CUTOFFS}
    named |= {f"recall_at_{k}": metrics.mean(f"recall@{k}") for k in CUTOFFS}
    named |= {MAIN: metrics.mean("ndcg@10"), f"mrr_at_{DEPTH}": metrics.mean("mrr")}
    return {**named, "main_score": named[MAIN], "hf_subset": "default", "languages": ["eng-Latn"]}
