"""Folders of sentence-transformers: a tiny BERT, with pooling and layers computed by hand as the oracle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from genius.encode.base import Encoder, load_encoder
from genius.encode.dual import DualEncoder
from genius.encode.sentence import SentenceEncoder, load
from genius.errors import BadInput, ModelMismatch, ModelNotFound

TEXTS = ["a red dog", "cat", "the blue cat on the mat", "dog " * 100, "a"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "dog", "cat", "on", "the", "mat"]
WIDTH, CONTEXT = 32, 16
PREFIX = "sentence_transformers.models"


def write(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def write_modules(folder: Path, *kinds: str) -> None:
    """modules.json as sentence-transformers writes it."""
    rows = []
    for number, kind in enumerate(kinds):
        path = "" if kind == "Transformer" else f"{number}_{kind}"
        rows.append({"idx": number, "name": str(number), "path": path, "type": f"{PREFIX}.{kind}"})
    write(folder / "modules.json", rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT with mean pooling, as sentence-transformers saves it."""
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=len(WORDS),
            max_position_embeddings=40,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    model.save_pretrained(tmp_path)
    BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(tmp_path)
    write_modules(tmp_path, "Transformer", "Pooling")
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": CONTEXT, "do_lower_case": False})
    pool(tmp_path, pooling_mode_mean_tokens=True)
    return tmp_path


def pool(folder: Path, **modes: Any) -> None:
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **modes})


def states(folder: Path, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """The last layer of each text by itself, (its length, WIDTH): nothing is padded."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        inputs = [tokenizer(text, truncation=True, max_length=CONTEXT, return_tensors="pt") for text in texts]
        return [model(**row).last_hidden_state[0].numpy() for row in inputs]


def weighted_mean(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1))


POOLED: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "mean": ({"pooling_mode_mean_tokens": True}, lambda rows: rows.mean(axis=0)),
    "mean, newer files": ({"pooling_mode": "mean"}, lambda rows: rows.mean(axis=0)),
    "cls": ({"pooling_mode_cls_token": True}, lambda rows: rows[0]),
    "max": ({"pooling_mode_max_tokens": True}, lambda rows: rows.max(axis=0)),
    "last": ({"pooling_mode_lasttoken": True}, lambda rows: rows[-1]),
    "root": ({"pooling_mode_mean_sqrt_len_tokens": True}, lambda rows: rows.sum(axis=0) / len(rows) ** 0.5),
    "weighted": ({"pooling_mode_weightedmean_tokens": True}, weighted_mean),
    "two": (
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        lambda rows: np.concatenate([rows[0], rows.mean(axis=0)]),
    ),
}


def test_every_pooling(folder: Path) -> None:
    rows = states(folder, TEXTS)
    for name, (settings, by_hand) in POOLED.items():
        pool(folder, **settings)
        encoder = load(folder)
        expected = np.stack([by_hand(row) for row in rows])
        assert encoder.dim == expected.shape[1], name
        assert np.allclose(encoder.encode_texts(TEXTS), expected, atol=1e-4), name


def test_dense_and_normalize(folder: Path) -> None:
    write_modules(folder, "Transformer", "Pooling", "Dense", "Normalize")
    activation = "torch.nn.modules.activation.Tanh"
    write(
        folder / "2_Dense" / "config.json",
        {"in_features": WIDTH, "out_features": 8, "bias": True, "activation_function": activation},
    )
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(8, WIDTH, generator=generator), torch.randn(8, generator=generator)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    encoder = load_encoder("sentence-transformers", folder)
    assert isinstance(encoder, Encoder)
    mean = np.stack([row.mean(axis=0) for row in states(folder, TEXTS)])
    dense = np.tanh(mean @ weight.numpy().T + bias.numpy())
    expected = dense / np.linalg.norm(dense, axis=1, keepdims=True)
    assert encoder.dim == 8
    assert np.allclose(encoder.encode_texts(TEXTS), expected, atol=1e-5)

    before = encoder.fingerprint
    save_file({"linear.weight": weight, "linear.bias": bias + 1}, folder / "2_Dense" / "model.safetensors")
    assert load(folder).fingerprint != before
    (folder / "2_Dense" / "model.safetensors").unlink()
    torch.save({"linear.weight": weight}, folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelMismatch, match=r"genius convert weights .*2_Dense"):
        load(folder)


def test_settings_that_change_texts(folder: Path) -> None:
    plain = load(folder)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": True})
    prompts = {"prompts": {"query": "the blue ", "other": "x"}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    prompted = load(folder)
    assert np.allclose(prompted.encode_texts(["CAT"]), plain.encode_texts(["the blue cat"]), atol=1e-5)
    assert np.array_equal(*prompted.encode_texts(["cat on the mat", "cat on a dog"]))  # cut after six tokens
    assert prompted.fingerprint != plain.fingerprint


def test_a_model_without_its_own_pooler_loads(folder: Path) -> None:
    from safetensors.torch import load_file

    before = load(folder).encode_texts(TEXTS)
    tensors = load_file(folder / "model.safetensors")
    without = {name: value for name, value in tensors.items() if not name.startswith("pooler.")}
    assert len(without) < len(tensors)
    save_file(without, folder / "model.safetensors", {"format": "pt"})
    assert np.array_equal(load(folder).encode_texts(TEXTS), before)


def test_of_an_encoder_decoder_only_the_encoder_is_read(folder: Path) -> None:
    from transformers import T5Config, T5EncoderModel

    shape = {"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 2}
    model = T5EncoderModel(T5Config(**shape, vocab_size=len(WORDS), dropout_rate=0)).eval()
    model.save_pretrained(folder)
    encoder = load(folder)
    assert isinstance(encoder, SentenceEncoder)
    ids = encoder.prepare_texts(TEXTS[:1]) - 1
    with torch.no_grad():
        expected = model(input_ids=ids).last_hidden_state.mean(dim=1).numpy()
    assert np.allclose(encoder.encode_texts(TEXTS[:1]), expected, atol=1e-5)


def test_images_are_refused(folder: Path, photos: list[Image.Image]) -> None:
    with pytest.raises(BadInput, match="texts only: index pictures with a dual encoder such as openai/clip"):
        load(folder).encode_images(photos)


def test_a_wrapped_clip_is_a_dual_encoder(
    clip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    import shutil

    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    shutil.copytree(clip_folder, tmp_path / "0_CLIPModel")
    CLIPImageProcessorPil(**size).save_pretrained(tmp_path / "0_CLIPModel")
    write_modules(tmp_path, "CLIPModel")
    encoder = load(tmp_path)
    assert isinstance(encoder, DualEncoder)
    assert encoder.encode_images(photos).shape == (5, 24)


def test_folders_that_are_not_understood(folder: Path) -> None:
    pool(folder, pooling_mode="attention")
    with pytest.raises(ModelMismatch, match=r"pooling.*attention.*mean"):
        load(folder)
    pool(folder)
    with pytest.raises(ModelMismatch, match="pooling"):
        load(folder)
    pool(folder, pooling_mode="mean")
    for kinds, message in (
        (("Transformer", "Pooling", "LSTM"), "LSTM are not supported"),
        (("Pooling", "Transformer"), "a Transformer, then a Pooling is wanted"),
        (("Transformer",), "a Transformer, then a Pooling is wanted"),
        (("Transformer", "Pooling", "Dense"), "describes no Dense layer"),
    ):
        write_modules(folder, *kinds)
        with pytest.raises(ModelMismatch, match=message):
            load(folder)
    for content in ("{", "[]", "[1]", '[{"idx": 0, "path": "../..", "type": "x.Transformer"}]'):
        (folder / "modules.json").write_text(content)
        with pytest.raises(ModelMismatch, match=r"modules\.json"):
            load(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(ModelNotFound, match=r"no modules\.json.*sentence-transformers"):
        load(folder)
