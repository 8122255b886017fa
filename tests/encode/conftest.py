"""Tiny CLIP and BLIP models with their tokenizers, made and saved by transformers itself."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

CONTEXT = 16
VOCABULARY = 200  # 2 * 94 characters, then the marks
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "red",
    "blue",
    "dog",
    "cat",
    "on",
    "the",
    "mat",
    "##s",
]


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    """No progress bars in the test log; loading must switch them back on by itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


def clip_tokenizer() -> Any:
    from transformers import CLIPTokenizer

    characters = [chr(code) for code in range(33, 127)]
    names = [*characters, *(f"{character}</w>" for character in characters)]
    vocabulary = {name: number for number, name in enumerate(names)}
    vocabulary |= {"<|startoftext|>": VOCABULARY - 2, "<|endoftext|>": VOCABULARY - 1}
    return CLIPTokenizer(vocab=vocabulary, merges=[])


def clip_model(seed: int = 0, width: int = 64, **text: Any) -> Any:
    """A random CLIP whose sizes all differ, so that no mix-up goes unseen."""
    from transformers import CLIPConfig, CLIPModel

    ends = {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    tower = {"projection_dim": 24, "attention_dropout": 0.0}
    config = CLIPConfig(
        text_config={
            **tower,
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": width // 64 or 1,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
            **ends,
            **text,
        },
        vision_config={
            **tower,
            "hidden_size": 2 * width,
            "intermediate_size": 8 * width,
            "num_hidden_layers": 3,
            "num_attention_heads": 2 * width // 64 or 1,
            "image_size": 32,
            "patch_size": 8,
        },
        projection_dim=24,
    )
    torch.manual_seed(seed)
    model = CLIPModel(config).eval()
    spread(model, seed)
    return model


def blip_model(seed: int = 0) -> Any:
    from transformers import BlipConfig, BlipForImageTextRetrieval

    config = BlipConfig(
        text_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 20,
            "max_position_embeddings": CONTEXT,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "sep_token_id": 3,
        },
        vision_config={
            "hidden_size": 40,
            "intermediate_size": 56,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
        },
        image_text_hidden_size=24,
    )
    torch.manual_seed(seed)
    model = BlipForImageTextRetrieval(config).eval()
    spread(model, seed)
    return model


def spread(model: Any, seed: int) -> None:
    """Larger random weights: those of a fresh model are so small that everything looks alike."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip")
    clip_model().save_pretrained(folder)
    clip_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def blip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertTokenizer

    folder = tmp_path_factory.mktemp("blip")
    blip_model().save_pretrained(folder)
    BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def photos() -> list[Image.Image]:
    """Five pictures of different shapes, none like another."""
    noise = np.random.default_rng(0)
    sizes = [(40, 60), (32, 32), (100, 30), (33, 35), (64, 50)]
    return [Image.fromarray(noise.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


@pytest.fixture
def make_clip() -> Callable[..., Any]:
    """`clip_model` for tests that need another one."""
    return clip_model
