"""benchmarks/text_towers.py: the scores of a tower that knows the answers, and of one that does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PHOTOS, DIM = 12, 8


@pytest.fixture
def text_towers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import text_towers

    yield text_towers
    for name in ("text_towers", "_harness"):
        sys.modules.pop(name, None)


@pytest.fixture
def flickr(tmp_path: Path) -> tuple[Path, Path]:
    """A root in M-BEIR's layout with three captions a photo, and vectors of the photos."""
    root = tmp_path / "data"

    def write(file: str, lines: list[dict[str, object]]) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("".join(json.dumps(line) + "\n" for line in lines))

    names, vectors = [], []
    for split, first in (("train", 0), ("val", 10_000)):
        pool: dict[str, list[dict[str, object]]] = {"image": [], "text": []}
        asked: dict[int, list[dict[str, object]]] = {0: [], 1: [], 3: []}
        for photo in range(PHOTOS):
            start = first + 10 * photo
            image, own = f"mbeir_images/flickr8k/{split}{photo}.webp", [f"20:{start + n}" for n in (1, 2)]
            names.append(image)
            vectors.append(np.eye(PHOTOS, dtype=np.float32)[photo] + 0.5)
            pool["image"].append({"did": f"20:{start}", "modality": "image", "txt": None, "img_path": image})
            pool["text"] += [
                {"did": did, "modality": "text", "txt": f"photo {photo} again {did}", "img_path": None}
                for did in own
            ]
            for task, text, picture, right in (
                (0, f"photo {photo} here", None, [f"20:{start}"]),
                (1, f"photo {photo} here", None, own),
                (3, None, image, own),
            ):
                asked[task].append(
                    {"qid": f"20:{start + 3 + task}", "task_id": task, "query_txt": text,
                     "query_modality": "image" if picture else "text", "query_img_path": picture,
                     "pos_cand_list": right, "neg_cand_list": []}
                )  # fmt: skip
        for task, queries in asked.items():
            write(f"query/{split}/mbeir_flickr8k_task{task}_{split}.jsonl", queries)
            kind = "image" if task == 0 else "text"
            if split == "val":
                write(f"cand_pool/local/mbeir_flickr8k_task{task}_val_cand_pool.jsonl", pool[kind])
        write(f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl", [*pool["image"], *pool["text"]])
    (root / "instructions").mkdir()
    header = "query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\n"
    (root / "instructions" / "query_instructions.tsv").write_text(header)
    save_file({"image_embeds": np.stack(vectors)}, tmp_path / "clip.safetensors")
    (tmp_path / "clip.names.txt").write_text("".join(f"{name}\n" for name in names))
    return root, tmp_path / "clip"


def knows(texts: list[str]) -> np.ndarray:
    """A code of the photo's number, and a little of the rest of the text."""
    numbers = [int(text.split()[1]) for text in texts]
    noise = [np.random.default_rng(len(text)).normal(0, 0.01, PHOTOS) for text in texts]
    return (np.roll(np.eye(PHOTOS), 5, axis=1)[numbers] + noise).astype(np.float32)


def guesses(texts: list[str]) -> np.ndarray:
    seeds = [sum(map(ord, text)) for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=PHOTOS) for seed in seeds]).astype(np.float32)


def test_a_tower_that_knows_the_photo_finds_it(text_towers, flickr, monkeypatch) -> None:
    monkeypatch.setattr(text_towers, "STEPS", 20)
    monkeypatch.setattr(text_towers, "BATCH", 8)
    bench = text_towers.Flickr(*flickr, train=100)
    assert len(bench.train_texts) == PHOTOS
    assert len(bench.similar.texts) == PHOTOS
    assert len(bench.asked.texts) == 3 * PHOTOS  # the caption that asks, and the two others
    good, bad = bench.hits(knows), bench.hits(guesses)
    assert {name: found.mean() for name, found in good.items()} == dict.fromkeys(good, 1.0)
    assert all(found.mean() < 0.9 for found in bad.values())
    shown = text_towers.compared(bad, good)["caption to caption, hit@1"]
    missing = bad["caption to caption, hit@1"] - 1
    assert shown["difference"] == round(100 * missing.mean(), 1) < 0
    assert shown["standard error"] == round(100 * missing.std(ddof=1) / PHOTOS**0.5, 1)


def test_the_ridge_is_least_squares_and_the_loss_falls(text_towers, monkeypatch) -> None:
    torch.manual_seed(0)
    features, true = torch.randn(200, DIM), torch.randn(DIM, 5)
    found = text_towers.ridge(features, features @ true, 1e-6)
    assert torch.allclose(found, true, atol=1e-3)
    assert text_towers.ridge(features, features @ true, 1.0).norm() < found.norm()
    images = torch.nn.functional.normalize(features @ true, dim=1)
    start = torch.randn(DIM, 5)
    monkeypatch.setattr(text_towers, "BATCH", 64)

    def closeness(head: torch.Tensor) -> float:
        return float((torch.nn.functional.normalize(features @ head, dim=1) * images).sum(1).mean())

    assert closeness(text_towers.contrastive(start, features, images, torch.arange(200))) > closeness(start)


def test_times_are_shares_of_the_first(text_towers) -> None:
    towers = [
        text_towers.Tower(name, "MIT", 1, (), lambda texts, n=n: sum(range(n)) and knows(texts))
        for name, n in (("MiniLM-L6", 20_000), ("slow", 400_000))
    ]
    found = text_towers.times(towers, ["photo 1 here"] * 2, 3)
    assert found["MiniLM-L6"]["time / MiniLM-L6, batch 2"] == 1.0
    assert found["slow"]["time / MiniLM-L6, batch 2"] > 2
