"""The hit rate that picks the best encoder, against one computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genius.data.training_set import TrainingSet
from genius.encode.train import fuse_towers
from genius.pipeline.validation import hit_rates, task_hits
from genius.quantize import recall

CPU = torch.device("cpu")


def made(queries: int = 40, items: int = 30, seed: int = 0) -> tuple[TrainingSet, torch.Tensor, torch.Tensor]:
    """Queries of two tasks with one to three positives each, and random vectors."""
    random = np.random.default_rng(seed)
    counts = random.integers(1, 4, queries)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    positives = np.concatenate([random.choice(items, count, replace=False) for count in counts])
    rows, none = np.arange(queries), np.full(items, -1)
    data = TrainingSet(
        images=[], texts=[], query_image=np.full(queries, -1), query_texts=np.stack([rows, rows[::-1]], 1),
        query_task=(rows % 4 == 0).astype(np.int64), item_image=np.arange(items),
        item_text=none, item_modality=none, offsets=offsets, positives=positives, tasks=["small", "large"],
        query_ids=list(map(str, rows)), item_ids=list(map(str, range(items))),
    )  # fmt: skip
    return data, torch.randn(queries, 8), torch.randn(items, 8) * torch.rand(items, 1) * 10


@pytest.mark.parametrize("chunk", [7 * 30, 1 << 26])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_hits_by_brute_force(monkeypatch: pytest.MonkeyPatch, chunk: int, k: int) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(recall, "SCORES_AT_ONCE", chunk)
    data, query, item = made()
    cosine = torch.cosine_similarity(query[:, None], item[None], dim=2).numpy()
    hits = [
        bool(
            set(np.argsort(-cosine[row])[:k]) & set(data.positives[data.offsets[row] : data.offsets[row + 1]])
        )
        for row in range(len(query))
    ]
    by_task = {
        name: float(np.mean([hit for hit, task in zip(hits, data.query_task, strict=True) if task == number]))
        for number, name in enumerate(data.tasks)
    }
    found = task_hits(data, query, item, k)
    assert found == pytest.approx({f"hit@{k}": np.mean(list(by_task.values())), **by_task})
    assert k < 100 or found["hit@100"] == 1.0  # a pool smaller than k


def test_vectors_are_asked_for_by_row_in_chunks() -> None:
    torch.manual_seed(0)
    data, query, item = made(queries=70)

    def embed(image_rows: torch.Tensor, text_rows: torch.Tensor) -> torch.Tensor:
        assert len(image_rows) <= 32
        return fuse_towers(image_rows, text_rows, lambda rows: item[rows], lambda rows: query[rows])

    assert hit_rates(data, embed, CPU) == task_hits(data, query, item)  # the first text of each query
