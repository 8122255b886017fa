"""The BLIP encoder against transformers' own forward pass, on a tiny random BLIP."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.encode.base import Encoder, TrainableEncoder, load_encoder
from genius.encode.blip import load
from genius.errors import ModelMismatch, ModelNotFound

TEXTS = ["a red dog", "cat", "the blue cat on the mat", "mat " * 500, "unknown"]


def unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_cosines_are_those_of_transformers(blip_folder: Path, photos: list[Image.Image]) -> None:
    from transformers import AutoTokenizer, BlipConfig, BlipForImageTextRetrieval
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    config, tokenizer = BlipConfig.from_pretrained(blip_folder), AutoTokenizer.from_pretrained(blip_folder)
    config.vision_config.layer_norm_eps = 1e-6
    model = BlipForImageTextRetrieval.from_pretrained(blip_folder, config=config)
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=16, return_tensors="pt")
    pixels = BlipImageProcessorPil(size={"height": 32, "width": 32})(photos, return_tensors="pt")[
        "pixel_values"
    ]
    with torch.no_grad():
        expected = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            pixel_values=pixels,
            use_itm_head=False,
        ).itm_score.numpy()

    encoder = load_encoder("blip", blip_folder)
    assert isinstance(encoder, Encoder)
    assert isinstance(encoder, TrainableEncoder)
    assert encoder.dim == 24
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    assert images.shape == texts.shape == (5, 24)
    cosines = unit(images) @ unit(texts).T
    assert np.allclose(cosines, expected, atol=1e-5)
    assert expected.std() > 0.01  # the oracle can tell things apart
    assert not np.allclose(np.linalg.norm(images, axis=1), 1, atol=1e-2)  # raw, not normalised


def test_the_norms_of_the_image_tower_are_the_published_ones(
    blip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    """1e-6; transformers' default of 1e-5 shows where a patch is almost flat."""
    from transformers import BlipForImageTextRetrieval

    encoder = load(blip_folder)
    model = BlipForImageTextRetrieval.from_pretrained(blip_folder)
    assert model.config.vision_config.layer_norm_eps == 1e-5
    model.config.vision_config.layer_norm_eps = 1e-6
    published = BlipForImageTextRetrieval(model.config).eval()
    published.load_state_dict(model.state_dict())
    for towers in (published, model, encoder.module):
        towers.vision_model.embeddings.patch_embedding.weight.data *= 1e-3
        towers.vision_model.embeddings.patch_embedding.bias.data *= 1e-3
        towers.vision_model.embeddings.position_embedding.data *= 1e-3
        towers.vision_model.embeddings.class_embedding.data *= 1e-3
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    with torch.no_grad():
        ours = encoder.image_vectors(pixels)
        theirs, other = (
            towers.vision_proj(towers.vision_model(encoder.scaled(pixels)).last_hidden_state[:, 0])
            for towers in (published, model)
        )
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, other, atol=1e-2)
    encoder.save(tmp_path / "saved")
    saved = BlipForImageTextRetrieval.from_pretrained(tmp_path / "saved")
    assert saved.config.vision_config.layer_norm_eps == 1e-6


def test_the_tokenizer_says_where_texts_are_cut(blip_folder: Path, tmp_path: Path) -> None:
    """UniIR cuts after 100 pieces, the last of which is [SEP]; the model has positions for more."""
    import shutil

    from transformers import AutoTokenizer

    shutil.copytree(blip_folder, tmp_path / "short")
    tokenizer = AutoTokenizer.from_pretrained(blip_folder, model_max_length=6)
    tokenizer.save_pretrained(tmp_path / "short")
    encoder = load(tmp_path / "short")
    ids = encoder.prepare_texts(["mat " * 50])[0] - 1
    assert len(ids) == 6
    assert ids[-1] == tokenizer.sep_token_id
    assert load(blip_folder).prepare_texts(["mat " * 50]).shape[1] == 16


def test_batches_and_padding_do_not_change_vectors(blip_folder: Path, photos: list[Image.Image]) -> None:
    encoder = load(blip_folder)
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    encoder.batch = 2
    assert np.allclose(encoder.encode_images(photos), images, atol=1e-5)
    assert np.allclose(encoder.encode_texts(TEXTS), texts, atol=1e-5)
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, 24)
    token_ids = encoder.prepare_texts(TEXTS[:2])
    wider = torch.cat([token_ids, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    with torch.no_grad():
        assert torch.allclose(encoder.text_vectors(token_ids), encoder.text_vectors(wider), atol=1e-5)


def test_gradients_reach_both_towers(blip_folder: Path, photos: list[Image.Image]) -> None:
    encoder = load(blip_folder)
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    total = encoder.image_vectors(pixels).sum() + encoder.text_vectors(encoder.prepare_texts(TEXTS)).sum()
    total.backward()  # type: ignore[no-untyped-call]
    untouched = {name for name, p in encoder.module.named_parameters() if p.grad is None}
    assert all("crossattention" in name or name.startswith("itm_head") for name in untouched)


def test_saved_and_loaded_again(blip_folder: Path, photos: list[Image.Image], tmp_path: Path) -> None:
    encoder = load(blip_folder)
    encoder.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert np.array_equal(copy.encode_images(photos), encoder.encode_images(photos))
    assert np.array_equal(copy.encode_texts(TEXTS), encoder.encode_texts(TEXTS))
    assert copy.fingerprint == encoder.fingerprint


def test_other_sources_are_refused(clip_folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="Salesforce/blip"):
        load(None)
    with pytest.raises(ModelMismatch):
        load(clip_folder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_vectors_of_the_cpu(blip_folder: Path, photos: list[Image.Image]) -> None:
    cpu, cuda = load(blip_folder), load(blip_folder, "cuda")
    assert np.allclose(unit(cuda.encode_images(photos)), unit(cpu.encode_images(photos)), atol=5e-3)
    assert np.allclose(unit(cuda.encode_texts(TEXTS)), unit(cpu.encode_texts(TEXTS)), atol=5e-3)
