"""The CLIP encoder against transformers' own forward pass, on a tiny random CLIP."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.encode.base import Encoder, TrainableEncoder, encode_parts, load_encoder
from genius.encode.clip import load
from genius.errors import BadInput, ModelMismatch, ModelNotFound

TEXTS = ["a red dog", "cat", "the blue cat on the mat!", "x" * 500, ""]


def oracle_texts(folder: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    from transformers import AutoTokenizer, CLIPModel

    model, tokenizer = CLIPModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")
    pixels = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        out = model(**inputs, pixel_values=pixels)
    return out.text_embeds.numpy()  # normalised  # type: ignore[no-any-return]


def oracle_images(folder: Path, images: list[Image.Image]) -> np.ndarray[Any, Any]:
    from transformers import CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    pixels = CLIPImageProcessorPil(**size)(images, return_tensors="pt")["pixel_values"]
    ids = torch.tensor([[198, 5, 199]])
    with torch.no_grad():
        out = CLIPModel.from_pretrained(folder)(input_ids=ids, pixel_values=pixels)
    return out.image_embeds.numpy()  # normalised  # type: ignore[no-any-return]


def unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_vectors_are_those_of_transformers(clip_folder: Path, photos: list[Image.Image]) -> None:
    encoder = load_encoder("clip", clip_folder)
    assert isinstance(encoder, Encoder)
    assert isinstance(encoder, TrainableEncoder)
    assert encoder.dim == 24
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    assert images.shape == texts.shape == (5, 24)
    assert images.dtype == texts.dtype == np.float32
    assert np.allclose(unit(images), oracle_images(clip_folder, photos), atol=1e-5)
    assert np.allclose(unit(texts), oracle_texts(clip_folder, TEXTS), atol=1e-5)
    assert not np.allclose(np.linalg.norm(images, axis=1), 1, atol=1e-2)  # raw, not normalised
    phi = encode_parts(encoder, [photos[0]], [TEXTS[0]]).phi()
    assert np.allclose(phi, unit(images[:1] + texts[:1]), atol=1e-6)


def test_batches_do_not_change_vectors(clip_folder: Path, photos: list[Image.Image]) -> None:
    encoder = load(clip_folder)
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    encoder.batch = 2
    assert np.allclose(encoder.encode_images(photos), images, atol=1e-5)
    assert np.allclose(encoder.encode_texts(TEXTS), texts, atol=1e-5)
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, 24)


def test_same_input_same_bits(clip_folder: Path, photos: list[Image.Image]) -> None:
    first, second = load(clip_folder), load(clip_folder)
    assert np.array_equal(first.encode_images(photos), second.encode_images(photos))
    assert np.array_equal(first.encode_texts(TEXTS), second.encode_texts(TEXTS))
    assert first.fingerprint == second.fingerprint


def test_long_texts_are_cut_and_odd_ones_survive(clip_folder: Path) -> None:
    encoder = load(clip_folder)
    assert encoder.prepare_texts(["word " * 1000]).shape == (1, 16)
    vectors = encoder.encode_texts(["word " * 1000, "😀" * 5, "a\0b", "lone \ud800 surrogate", ""])
    assert np.isfinite(vectors).all()


def test_the_centre_is_cropped_as_by_torchvision(clip_folder: Path) -> None:
    """Of three pixels too many, two go before the crop: half is rounded to even."""
    encoder = load(clip_folder)
    side = encoder.preprocess.side
    columns = np.arange(side + 3, dtype=np.uint8)[None, :, None].repeat(side, 0).repeat(3, 2)
    assert encoder.prepare_image(Image.fromarray(columns))[0, 0, :2].tolist() == [2, 3]


def test_more_padding_changes_nothing(clip_folder: Path) -> None:
    """0 is padding and nothing else, though CLIP's vocabulary has a word under that number."""
    encoder = load(clip_folder)
    assert encoder.tokenizer.convert_ids_to_tokens(0) == "!"
    token_ids = encoder.prepare_texts(["!! hi !!", "a longer one"])
    assert (token_ids != 0).sum(dim=1).tolist() == [8, 12]
    wider = torch.cat([token_ids, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    with torch.no_grad():
        assert torch.allclose(encoder.text_vectors(token_ids), encoder.text_vectors(wider), atol=1e-5)
    assert not np.allclose(*encoder.encode_texts(["!! hi !!", "hi"]), atol=1e-3)


def test_gradients_reach_both_towers(clip_folder: Path, photos: list[Image.Image]) -> None:
    encoder = load(clip_folder)
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    total = encoder.image_vectors(pixels).sum() + encoder.text_vectors(encoder.prepare_texts(TEXTS)).sum()
    total.backward()  # type: ignore[no-untyped-call]
    untouched = {name for name, p in encoder.module.named_parameters() if p.grad is None}
    assert untouched == {"logit_scale"}


def test_saved_and_loaded_again(clip_folder: Path, photos: list[Image.Image], tmp_path: Path) -> None:
    from transformers import CLIPModel

    encoder = load(clip_folder)
    encoder.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert np.array_equal(copy.encode_images(photos), encoder.encode_images(photos))
    assert np.array_equal(copy.encode_texts(TEXTS), encoder.encode_texts(TEXTS))
    assert copy.fingerprint == encoder.fingerprint
    CLIPModel.from_pretrained(tmp_path / "copy", use_safetensors=True)
    with torch.no_grad():
        copy.module.text_projection.weight += 1e-3
    copy.save(tmp_path / "copy")
    assert load(tmp_path / "copy").fingerprint != encoder.fingerprint


def test_fingerprint_follows_preprocessing(clip_folder: Path, tmp_path: Path) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    shutil.copytree(clip_folder, tmp_path, dirs_exist_ok=True)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    assert load(tmp_path).fingerprint != load(clip_folder).fingerprint
    processor.crop_size = {"height": 36, "width": 36}
    processor.save_pretrained(tmp_path)
    with pytest.raises(ModelMismatch, match="36 pixels, the model wants 32"):
        load(tmp_path)


def test_progress_bars_come_back(clip_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    load(clip_folder)
    assert logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")


def test_sources_that_are_no_models(
    clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    for source, message in (
        (None, "needs a source.*openai/clip"),
        (
            "openai/clip-vit-base-patch16",
            r"no route to the hub.*put config\.json.*into a folder clip-vit-b",
        ),
        ("/no/such/folder", "no folder /no/such/folder"),
        (tmp_path, "no config.json"),
        (clip_folder / "config.json", "is a file"),
    ):
        with pytest.raises(ModelNotFound, match=message):
            load(source)
    with (
        pytest.raises(BadInput, match="no CUDA")
        if not torch.cuda.is_available()
        else pytest.raises(RuntimeError)
    ):
        load(clip_folder, "cuda:99")


def test_hub_ids_are_fetched_without_pickles(
    clip_folder: Path, monkeypatch: pytest.MonkeyPatch, photos: list[Image.Image]
) -> None:
    import fnmatch

    import huggingface_hub

    asked: list[str] = []

    def fetch(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(name)
        wanted = [
            f
            for f in ("pytorch_model.bin", "x.pkl", "tf_model.h5")
            for p in allow_patterns
            if fnmatch.fnmatch(f, p)
        ]
        assert not wanted
        return str(clip_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert load("openai/clip-tiny").encode_images(photos).shape == (5, 24)
    assert asked == ["openai/clip-tiny"]


def damaged_copy(folder: Path, to: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, to, dirs_exist_ok=True)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", {"format": "pt"})
    return to


def test_weights_that_do_not_fit_are_named(clip_folder: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        del tensors["text_projection.weight"]
        tensors["surplus"] = torch.ones(1)
        tensors["visual_projection.weight"] = torch.ones(24, 3)
        tensors["text_model.embeddings.position_ids"] = torch.arange(16)[None]  # in older files: harmless

    with pytest.raises(ModelMismatch) as caught:
        load(damaged_copy(clip_folder, tmp_path, spoil))
    message = str(caught.value)
    for part in (
        "3 key(s)",
        "missing text_projection.weight",
        "extra surplus",
        "misshaped visual_projection.weight",
    ):
        assert part in message


def test_older_files_with_position_ids_load(clip_folder: Path, tmp_path: Path) -> None:
    ids = {"text_model.embeddings.position_ids": torch.arange(16)[None]}
    folder = damaged_copy(clip_folder, tmp_path, lambda tensors: tensors.update(ids))
    assert load(folder).fingerprint == load(clip_folder).fingerprint


def test_spoilt_and_damaged_weights_are_refused(clip_folder: Path, tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["logit_scale"] = torch.tensor(float("nan"))

    folder = damaged_copy(clip_folder, tmp_path, spoil)
    with pytest.raises(ModelMismatch, match="NaN or Inf in logit_scale"):
        load(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelMismatch, match=r"model\.safetensors is damaged"):
        load(folder)
    file.unlink()
    with pytest.raises(ModelNotFound, match=r"no model\.safetensors"):
        load(folder)
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelMismatch, match="genius convert weights"):
        load(folder)


def test_a_foreign_model_or_tokenizer_is_refused(
    clip_folder: Path, blip_folder: Path, tmp_path: Path, make_clip: Callable[..., Any]
) -> None:
    with pytest.raises(ModelMismatch):
        load(blip_folder)
    shutil.copytree(clip_folder, tmp_path, dirs_exist_ok=True)
    make_clip(vocab_size=100, eos_token_id=99, bos_token_id=98, pad_token_id=99).save_pretrained(tmp_path)
    with pytest.raises(ModelMismatch, match="ids up to 199, the model knows 100"):
        load(tmp_path)
    make_clip(eos_token_id=50).save_pretrained(tmp_path)
    with pytest.raises(ModelMismatch, match="ends texts with 199, the model looks for 50"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelMismatch, match="no usable tokenizer"):
        load(tmp_path)
    for file in tmp_path.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        load(tmp_path)


def test_openais_odd_end_mark_still_works(
    clip_folder: Path, tmp_path: Path, make_clip: Callable[..., Any]
) -> None:
    """Their configs say eos_token_id 2; transformers then looks for the highest id."""
    shutil.copytree(clip_folder, tmp_path, dirs_exist_ok=True)
    make_clip(eos_token_id=2).save_pretrained(tmp_path)
    assert np.array_equal(load(tmp_path).encode_texts(TEXTS), load(clip_folder).encode_texts(TEXTS))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_vectors_of_the_cpu(clip_folder: Path, photos: list[Image.Image]) -> None:
    cpu, cuda = load(clip_folder), load(clip_folder, "cuda")
    assert np.allclose(unit(cuda.encode_images(photos)), unit(cpu.encode_images(photos)), atol=5e-3)
    assert np.allclose(unit(cuda.encode_texts(TEXTS)), unit(cpu.encode_texts(TEXTS)), atol=5e-3)
    assert np.array_equal(cuda.encode_images(photos), cuda.encode_images(photos))
    assert cuda.fingerprint == cpu.fingerprint
