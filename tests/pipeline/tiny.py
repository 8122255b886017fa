"""A dataset in M-BEIR's layout, a CLIP and a toy encoder, all tiny: flags of two colours to be found.

python tiny.py DATA RUN [DIE_AT]      trains the toy by stage 0, killed at a step (also under torchrun)
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 180, 40),
    "blue": (40, 50, 230),
    "white": (245, 245, 245),
    "black": (15, 15, 15),
    "yellow": (240, 220, 30),
}
PLACES = [(above, below) for above in COLOURS for below in COLOURS if above != below]  # 30 kinds of pictures
INSTRUCTIONS = """query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2
text\timage\tFlags\t50\tShow this flag\tWhich flag is it?
image\ttext\tFlags\t50\tName this flag\tWhat flag is this?
text\timage,text\tFlags\t50\tShow and name this flag\t
"""
MARKS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
WORDS = [*MARKS, *".,?", "above", "and", "it", "flag", "is", "name", "show", "this", "what", "which"]
SIDE = 32


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_mbeir(root: Path, copies: int = 2) -> Path:
    """Each kind of flag `copies` times in train and once in val, as image, as text and as pair."""
    noise = np.random.default_rng(0)
    for split, count in (("train", copies), ("val", 1), ("test", 1)):
        items: list[dict[str, Any]] = []
        queries: list[dict[str, Any]] = []
        for number, (above, below) in enumerate(place for place in PLACES for _ in range(count)):
            picture = f"mbeir_images/{split}{number}.png"
            pixels = np.empty((SIDE, SIDE, 3))
            pixels[: SIDE // 2], pixels[SIDE // 2 :] = COLOURS[above], COLOURS[below]
            pixels += noise.normal(0, 12, pixels.shape)
            (root / picture).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(root / picture)
            name, first = f"{above} above {below}", 3 * number
            ids = [f"50:{first + part + 10_000 * len(split)}" for part in range(3)]
            parts = [("image", None, picture), ("text", name, None), ("image,text", name, picture)]
            items += [
                {"did": did, "modality": modality, "txt": text, "img_path": image, "src_content": None}
                for did, (modality, text, image) in zip(ids, parts, strict=True)
            ]
            asked = [(0, "text", name, None), (3, "image", None, picture), (2, "text", name, None)]
            queries += [
                {"qid": did, "task_id": task, "query_modality": modality, "query_txt": text,
                 "query_img_path": image, "pos_cand_list": [did], "neg_cand_list": []}
                for did, (task, modality, text, image) in zip(ids, asked, strict=True)
            ]  # fmt: skip
        for task in (0, 2, 3):
            own = [query for query in queries if query["task_id"] == task]
            for query in own:  # every item of the same kind answers the query
                kind = {0: 0, 3: 1, 2: 2}[task]
                first = int(query["qid"].split(":")[1]) - 10_000 * len(split)
                flag = first // 3 // count
                rows = range(flag * count, (flag + 1) * count)
                query["pos_cand_list"] = [items[3 * row + kind]["did"] for row in rows]
            write_lines(root / f"query/{split}/mbeir_flags_task{task}_{split}.jsonl", own)
        write_lines(root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl", items)
    table = root / "instructions/query_instructions.tsv"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(INSTRUCTIONS)
    return root


def word_tokenizer() -> Any:
    """One piece for each word that the flags need."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [*WORDS, *COLOURS]
    made = Tokenizer(models.WordLevel({word: row for row, word in enumerate(words)}, "[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [("[BOS]", words.index("[BOS]")), ("[EOS]", words.index("[EOS]"))]
    made.post_processor = processors.TemplateProcessing("[BOS] $A [EOS]", special_tokens=marks)
    return made


def write_clip(folder: Path, dim: int = 32) -> Path:
    """A random CLIP with this tokenizer, as transformers saves it."""
    import torch
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    tower = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "projection_dim": dim,
    }  # fmt: skip
    ends = {"bos_token_id": WORDS.index("[BOS]"), "eos_token_id": WORDS.index("[EOS]"), "pad_token_id": 0}
    config = CLIPConfig(
        text_config={**tower, **ends, "vocab_size": 40, "max_position_embeddings": 24},
        vision_config={**tower, "image_size": SIDE, "patch_size": 8},
        projection_dim=dim,
    )
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    marks = {"bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=word_tokenizer(), **marks).save_pretrained(folder)
    return folder


class Toy:
    """Two linear towers, enough to learn the flags."""

    def __init__(self, seed: int = 0) -> None:
        import torch
        from torch import nn

        from genius.encode.preprocess import Preprocess

        torch.manual_seed(seed)
        self.preprocess = Preprocess(8, keep_ratio=False)
        self.words = {word: row for row, word in enumerate([*WORDS, *COLOURS])}
        text = nn.ModuleList([nn.Embedding(40, 32, padding_idx=0), nn.Embedding(24, 32), nn.Linear(32, 16)])
        self.module = nn.ModuleDict({"image": nn.Linear(3 * 8 * 8, 16), "text": text})

    def prepare_image(self, image: Any) -> Any:
        import torch

        return torch.from_numpy(self.preprocess.pixels(image))

    def prepare_texts(self, texts: Any) -> Any:
        import torch

        rows = [[self.words.get(word.strip(".?,").lower(), 1) for word in text.split()] for text in texts]
        token_ids = torch.zeros(len(rows), 24, dtype=torch.long)
        for row, ids in enumerate(rows):
            token_ids[row, : len(ids)] = torch.tensor(ids)
        return token_ids

    def image_vectors(self, pixels: Any) -> Any:
        return self.module["image"](pixels.float().flatten(1) / 128 - 1)

    def text_vectors(self, token_ids: Any) -> Any:
        words, places, out = self.module["text"]
        there = (token_ids != 0).unsqueeze(-1)
        read = words(token_ids) * (1 + places.weight[: token_ids.shape[1]])
        return out((read * there).sum(1))

    def save(self, folder: Path) -> None:
        from genius.weights import save_weights

        save_weights(self.module.state_dict(), folder / "toy.safetensors")


def shrink_mini(patch: Any) -> None:
    """Make `mini` a tenth as deep, its words few and its pictures small, for tests of how it is trained."""
    from genius.encode.mini import efficientnet, minilm
    from genius.encode.mini import encoder as mini

    patch.setattr(efficientnet, "STAGES", efficientnet.STAGES[:2])
    patch.setattr(minilm, "LAYERS", 1)
    patch.setattr(minilm, "VOCABULARY", 100)
    patch.setattr(mini, "VOCABULARY", 100)
    patch.setattr(mini, "SIDE", 32)


def start_mini() -> Any:
    """An untrained `mini` that reads the words of the flags."""
    import torch

    from genius.encode.mini.encoder import MiniEncoder, Towers

    torch.manual_seed(0)
    return MiniEncoder(Towers(norm=True), word_tokenizer(), "untrained")


def main(data: str, folder: str, die_at: str = "-1") -> None:
    """12 steps with random views, checked every 4."""
    from genius.config import OptimiserConfig
    from genius.data.base import open_dataset
    from genius.data.training_set import read_training_set
    from genius.encode.images import ImageTable
    from genius.encode.train import train_encoder
    from genius.pipeline.encoder import validator
    from genius.training.distributed import process_group, rank

    dataset = open_dataset("mbeir", data)
    train, val = read_training_set(dataset, "train"), read_training_set(dataset, "val", chosen=True)
    with process_group("cpu") as device:
        toy = Toy(seed=rank())  # weights differ until the loop makes them the same
        plain, calls = toy.text_vectors, iter(range(10**6))

        def dying(token_ids: Any) -> Any:
            if toy.module.training and next(calls) == int(die_at):
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(token_ids)

        toy.text_vectors = dying  # type: ignore[method-assign]
        views = {} if "WORLD_SIZE" in os.environ or "PLAIN" in os.environ else {"smallest_view": 0.8}
        images = ImageTable(train.images, toy, device, resident=False)
        config = OptimiserConfig(steps=12, batch=32, rate=5e-3, check_every=4)
        train_encoder(
            toy, train, images, config, folder=Path(folder), seed=3, device=device,
            temperature=0.05, validate=validator(toy, val, device), show=False, **views,
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
