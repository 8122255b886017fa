"""A tiny world for the bench: coloured pictures, texts that name colours, an encoder and a model for both."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from genius.data.instructions import TASKS
from genius.encode.base import Parts

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "yellow": (230, 220, 40),
    "black": (10, 10, 10),
    "white": (245, 245, 245),
    "pink": (240, 130, 190),
    "grey": (128, 128, 128),
}


class TinyEncoder:
    """Images by their mean colour, texts by the colours they name; every call is counted."""

    dim = 8

    def __init__(self, fingerprint="tiny-1"):
        self.fingerprint = fingerprint
        self.images = self.texts = 0
        self._axes = np.random.default_rng(0).normal(size=(3, self.dim)).astype(np.float32)

    def _vectors(self, colours):
        return (np.array(colours, dtype=np.float32).reshape(-1, 3) / 127.5 - 1) @ self._axes

    def encode_images(self, images):
        self.images += len(images)
        return self._vectors([np.asarray(image).reshape(-1, 3).mean(axis=0) for image in images])

    def encode_texts(self, texts):
        self.texts += len(texts)
        named = [[COLOURS[w] for w in COLOURS if w in text.lower()] or [(127, 127, 127)] for text in texts]
        return self._vectors([np.mean(colours, axis=0) for colours in named])


class TinyFusing(TinyEncoder):
    """One vector for image and text together."""

    def encode_items(self, images, texts):
        total = np.zeros((len(images), self.dim), dtype=np.float32)
        for row, (image, text) in enumerate(zip(images, texts, strict=True)):
            if image is not None:
                total[row] += super().encode_images([image])[0]
            if text:
                total[row] += super().encode_texts([text])[0]
        return total


class TinyModel:
    """phi is z; codes are the modality and the signs of phi in two halves."""

    name = "tiny"
    sizes = (3, 16, 16)
    decoder = None
    modality_codes: ClassVar = {}
    search_defaults: ClassVar = {"method": "lookup", "beam": 30}

    def __init__(self, encoder=None, fingerprint="model-1"):
        self.encoder = encoder or TinyEncoder()
        self.fingerprint = fingerprint
        self.quantized = 0
        books = np.random.default_rng(1).normal(size=(sum(self.sizes), self.encoder.dim)).astype(np.float32)
        tensors = torch.from_numpy(books).split(self.sizes)
        self.quantizer = SimpleNamespace(residual=SimpleNamespace(codebooks=lambda: list(tensors)))

    def codebooks(self):
        return [book.numpy() for book in self.quantizer.residual.codebooks()]

    def phi(self, parts: Parts):
        return parts.phi()

    z = phi

    def codes(self, parts: Parts, modalities):
        self.quantized += len(modalities)
        bits = (self.phi(parts) > 0).astype(np.uint16)
        powers = np.array([1, 2, 4, 8], dtype=np.uint16)
        level0 = [["image", "text", "pair"].index(str(m)) for m in modalities]
        return np.stack([level0, bits[:, :4] @ powers, bits[:, 4:] @ powers], axis=1).astype(np.uint16)


class Root:
    """A data root in M-BEIR's layout, written row by row."""

    def __init__(self, path: Path):
        self.path = path
        self.instructions = ["query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2"]
        self.pools: list[dict] = []

    def picture(self, colour: str, name: str) -> str:
        file = self.path / "mbeir_images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), COLOURS[colour]).save(file)
        return f"mbeir_images/{name}.png"

    def row(self, dataset: str, number: int, task: int, queries: list[dict], pool: list[dict], qrels=None):
        """Write query, pool and qrels files; queries have id, txt, img, positives; items id, txt, img."""
        have, want = (m.replace("pair", "image,text") for m in TASKS[task])
        self.instructions.append(f"{have}\t{want}\t{dataset}\t{number}\tFind it.\tShow me the match.")
        lines = [
            {
                "qid": q["id"],
                "query_txt": q.get("txt"),
                "query_img_path": q.get("img"),
                "query_modality": have,
                "query_src_content": None,
                "pos_cand_list": q.get("positives", []),
                "neg_cand_list": [],
                "task_id": task,
            }
            for q in queries
        ]
        items = [
            {
                "did": i["id"],
                "txt": i.get("txt"),
                "img_path": i.get("img"),
                "modality": ",".join(
                    m for m, there in (("image", i.get("img")), ("text", i.get("txt"))) if there
                )
                or want,
                "src_content": None,
            }
            for i in pool
        ]
        self.pools += items
        judged = qrels or [f"{q['id']} 0 {item} 1 {task}" for q in queries for item in q.get("positives", [])]
        self._write(f"query/test/mbeir_{dataset}_task{task}_test.jsonl", map(json.dumps, lines))
        self._write(f"cand_pool/local/mbeir_{dataset}_task{task}_cand_pool.jsonl", map(json.dumps, items))
        self._write(f"qrels/test/mbeir_{dataset}_task{task}_test_qrels.txt", judged)
        unique = {item["did"]: item for item in self.pools}
        self._write("cand_pool/global/mbeir_union_test_cand_pool.jsonl", map(json.dumps, unique.values()))
        self._write("instructions/query_instructions.tsv", self.instructions)

    def _write(self, name, lines):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path / "data")


@pytest.fixture
def colours(root):
    """Two rows of eight colours: text -> image and image -> text, all answerable."""
    names = list(COLOURS)
    images = [{"id": f"30:{n}", "img": root.picture(c, c)} for n, c in enumerate(names)]
    texts = [{"id": f"30:{100 + n}", "txt": f"A {c} square"} for n, c in enumerate(names)]
    asked = [
        {"id": f"30:{n}", "txt": f"something {c}", "positives": [f"30:{n}"]} for n, c in enumerate(names)
    ]
    shown = [
        {"id": f"30:{50 + n}", "img": root.picture(c, f"query-{c}"), "positives": [f"30:{100 + n}"]}
        for n, c in enumerate(names)
    ]
    root.row("colours", 30, 0, asked, images)
    root.row("colours", 30, 3, shown, texts)
    return root


@pytest.fixture
def tiny_model():
    return TinyModel


@pytest.fixture
def tiny_encoder():
    return TinyEncoder


@pytest.fixture
def tiny_fusing():
    return TinyFusing


@pytest.fixture(scope="session")
def tiny_world():
    """The tiny classes, for fixtures that live longer than a test."""
    return SimpleNamespace(encoder=TinyEncoder, model=TinyModel)
