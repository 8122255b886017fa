"""Dual encoders against transformers' own features and image processors: a tiny random model per family."""

import json
import logging
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.encode.base import Encoder, TrainableEncoder, load_encoder
from genius.encode.dual import DualEncoder, load
from genius.errors import ModelMismatch, ModelNotFound

FAMILY = runpy.run_path(str(Path(__file__).with_name("families.py")))
FAMILIES, CONTEXT, DIM = FAMILY["FAMILIES"], FAMILY["CONTEXT"], FAMILY["DIM"]
image_processor: Callable[[str], Any] = FAMILY["image_processor"]
TEXTS = ["a red dog", "cat", "The BLUE cat on the mat!", "dog " * 100, "a"]
HALF = [0.5, 0.5, 0.5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder per family, saved by transformers."""
    made = {}
    for family, (make, _, tokenizer_class) in FAMILIES.items():
        folder = tmp_path_factory.mktemp(family.replace(" ", "-"))
        torch.manual_seed(0)
        model, tokenizer = make()
        with torch.no_grad():
            for parameter in model.parameters():  # a fresh model's are so small that everything looks alike
                parameter += 0.1 * torch.randn(parameter.shape)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        image_processor(family).save_pretrained(folder)
        if tokenizer_class:
            change(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class)
        made[family] = folder
    return made


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def tensor(features: Any) -> torch.Tensor:
    """transformers 5 gives an output object, earlier versions the tensor."""
    return features if isinstance(features, torch.Tensor) else features.pooler_output


@torch.no_grad()
def own_features(family: str, folder: Path, photos: list[Image.Image]) -> tuple[Any, Any]:
    """What the family's own processor and model make of the photos and TEXTS."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder).eval()
    pixels = image_processor(family)(photos, return_tensors="pt")["pixel_values"].float()
    images = tensor(model.get_image_features(pixel_values=pixels))
    tokenizer = FAMILIES[family][0]()[1]
    siglip = family.startswith("siglip")
    texts = [text.lower() for text in TEXTS] if siglip else TEXTS
    if family == "siglip":  # its class, which needs sentencepiece, removes punctuation and blanks
        texts = [" ".join(text.replace("!", "").split()) for text in texts]
    inputs = tokenizer(
        texts,
        padding="max_length" if siglip else True,
        truncation=True,
        max_length=CONTEXT,
        return_tensors="pt",
    )
    assert ("attention_mask" in inputs) != siglip
    return images.numpy(), tensor(model.get_text_features(**inputs)).numpy()


def test_features_are_the_familys_own(
    family: str, folders: dict[str, Path], photos: list[Image.Image]
) -> None:
    folder = folders[family]
    encoder = load_encoder("transformers", folder)
    assert isinstance(encoder, Encoder)
    assert isinstance(encoder, TrainableEncoder)
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    expected_images, expected_texts = own_features(family, folder, photos)
    assert encoder.dim == DIM
    assert images.shape == texts.shape == (5, DIM)
    assert images.dtype == texts.dtype == np.float32
    assert np.allclose(images, expected_images, atol=2e-4 * np.abs(expected_images).max())
    assert np.allclose(texts, expected_texts, atol=1e-5 * np.abs(expected_texts).max())
    for vectors in (expected_images, expected_texts):  # the oracle tells things apart
        assert vectors.std(axis=0).mean() > 0.01
    assert encoder.encode_images([]).shape == encoder.encode_texts([]).shape == (0, DIM)


def test_batches_do_not_change_vectors(
    family: str, folders: dict[str, Path], photos: list[Image.Image]
) -> None:
    encoder = load(folders[family])
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    encoder.batch = 1
    assert np.allclose(encoder.encode_images(photos), images, atol=1e-4)
    assert np.allclose(encoder.encode_texts(TEXTS), texts, atol=1e-4)


def test_odd_texts_survive(family: str, folders: dict[str, Path]) -> None:
    encoder = load(folders[family])
    assert encoder.prepare_texts(["word " * 1000]).shape == (1, CONTEXT)
    vectors = encoder.encode_texts(["word " * 1000, "😀" * 5, "a\0b", "lone \ud800 surrogate", ""])
    assert np.isfinite(vectors).all()


def test_older_transformers_gave_tensors(
    folders: dict[str, Path], photos: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(folders["clip"])
    images, texts = encoder.encode_images(photos), encoder.encode_texts(TEXTS)
    for name in ("get_image_features", "get_text_features"):
        now = getattr(encoder.module, name)
        monkeypatch.setattr(encoder.module, name, lambda now=now, **named: now(**named).pooler_output)
    assert np.array_equal(encoder.encode_images(photos), images)
    assert np.array_equal(encoder.encode_texts(TEXTS), texts)


def test_clip_has_the_vectors_of_the_clip_encoder(
    folders: dict[str, Path], photos: list[Image.Image]
) -> None:
    dual, clip = load(folders["clip"]), load_encoder("clip", folders["clip"])
    assert isinstance(clip, Encoder)
    assert np.array_equal(dual.encode_images(photos), clip.encode_images(photos))
    assert np.array_equal(dual.encode_texts(TEXTS), clip.encode_texts(TEXTS))


def test_saved_and_loaded_again(
    family: str, folders: dict[str, Path], photos: list[Image.Image], tmp_path: Path
) -> None:
    encoder = load(folders[family])
    encoder.save(tmp_path / "copy")
    copy = load(tmp_path / "copy")
    assert np.allclose(copy.encode_images(photos), encoder.encode_images(photos), atol=1e-5)
    assert np.array_equal(copy.encode_texts(TEXTS), encoder.encode_texts(TEXTS))


@pytest.fixture
def clip(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A CLIP folder that a test may change."""
    return Path(shutil.copytree(folders["clip"], tmp_path / "clip"))


def spoil_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["logit_scale"] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_fingerprint_follows_every_file_that_counts(clip: Path) -> None:
    seen = {load(clip).fingerprint}
    assert load(clip).fingerprint in seen
    (clip / "README.md").write_text("another text")
    assert load(clip).fingerprint in seen
    changes: list[Callable[[], None]] = [
        lambda: change(clip / "config.json", initializer_factor=2.0),
        lambda: change(clip / "preprocessor_config.json", image_mean=HALF),
        lambda: change(clip / "tokenizer_config.json", model_max_length=12),
        lambda: spoil_weights(clip),
    ]
    for number, alter in enumerate(changes):
        alter()
        seen.add(load(clip).fingerprint)
        assert len(seen) == number + 2


def test_weights_in_several_files(clip: Path, photos: list[Image.Image]) -> None:
    from transformers import CLIPModel

    whole = load(clip)
    model = CLIPModel.from_pretrained(clip)
    (clip / "model.safetensors").unlink()
    model.save_pretrained(clip, max_shard_size="50KB")
    assert len(list(clip.glob("model-*.safetensors"))) > 1
    parts = load(clip)
    assert np.array_equal(parts.encode_images(photos), whole.encode_images(photos))
    assert parts.fingerprint != whole.fingerprint
    sorted(clip.glob("model-*.safetensors"))[0].unlink()
    with pytest.raises(ModelMismatch):
        load(clip)


def test_a_tokenizer_that_needs_sentencepiece_alone(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    def missing(*_: object, **__: object) -> None:
        raise ImportError("SiglipTokenizer requires the SentencePiece library")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", missing)
    with pytest.raises(ModelNotFound, match=r"needs sentencepiece: copy the model's tokenizer\.json"):
        load(clip)


def test_texts_of_siglip_are_cleaned_as_in_training(folders: dict[str, Path], tmp_path: Path) -> None:
    first, second = load(folders["siglip"]), load(folders["siglip 2"])
    for encoder in (first, second):
        assert np.array_equal(*encoder.encode_texts(["A Red DOG", "a red dog"]))
    assert np.array_equal(*first.encode_texts(["  a red,  dog!", "a red dog"]))
    assert not np.array_equal(*second.encode_texts(["a red dog!", "a red dog"]))
    cased = Path(shutil.copytree(folders["siglip 2"], tmp_path / "cased"))
    change(cased / "tokenizer_config.json", do_lower_case=False)
    assert not np.array_equal(*load(cased).encode_texts(["A Red DOG", "a red dog"]))


def test_loading_says_nothing_that_does_not_matter(family: str, folders: dict[str, Path]) -> None:
    """transformers warns of token ids that published configs leave open: on each command it was seen."""
    from transformers.utils import logging as of_transformers

    of_transformers.warning_once.cache_clear()
    said: list[logging.LogRecord] = []
    listening = logging.Handler()
    listening.emit = said.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(listening)
    try:
        load(folders[family])
    finally:
        logger.removeHandler(listening)
    assert [record.getMessage() for record in said] == []


def test_a_tokenizer_may_shorten_texts(clip: Path) -> None:
    change(clip / "tokenizer_config.json", model_max_length=12)
    assert load(clip).prepare_texts(["word " * 10]).shape == (1, 12)


def test_weights_beyond_the_model_are_ignored_and_missing_ones_refused(clip: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(clip / "model.safetensors")
    save_file({**tensors, "head.weight": torch.ones(2)}, clip / "model.safetensors", {"format": "pt"})
    assert load(clip).dim == DIM
    del tensors["text_projection.weight"]
    save_file(tensors, clip / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelMismatch, match=r"missing text_projection\.weight"):
        load(clip)


def test_missing_files_are_named(clip: Path) -> None:
    (clip / "preprocessor_config.json").rename(clip / "kept")
    with pytest.raises(ModelNotFound, match=r"no preprocessor_config\.json.*copy the model's own"):
        load(clip)
    (clip / "kept").rename(clip / "preprocessor_config.json")
    (clip / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"no model\.safetensors"):
        load(clip)
    torch.save({"a": torch.ones(1)}, clip / "pytorch_model.bin")
    with pytest.raises(ModelMismatch, match=r"genius convert weights .*pytorch_model\.bin --to"):
        load(clip)


def test_a_missing_tokenizer_is_named(clip: Path) -> None:
    for file in [*clip.glob("*token*"), *clip.glob("vocab*")]:
        file.unlink()
    with pytest.raises(ModelNotFound, match=r"copy the model's tokenizer\.json"):
        load(clip)


def test_a_foreign_tokenizer_is_noticed(clip: Path) -> None:
    """CLIP pools at the end mark: where no text has one, all have the first position's vector."""
    table = json.loads((clip / "config.json").read_text())
    change(clip / "config.json", text_config={**table["text_config"], "eos_token_id": 5})
    with pytest.raises(ModelMismatch, match=r"every text the same vector.*own tokenizer"):
        load(clip)


def test_a_wrong_image_size_is_refused(clip: Path) -> None:
    change(clip / "preprocessor_config.json", crop_size={"height": 48, "width": 48})
    with pytest.raises(ModelMismatch, match="48 pixels, the model wants 32"):
        load(clip)


def test_models_that_are_no_dual_encoders(tmp_path: Path) -> None:
    from transformers import BertConfig, Siglip2Config, ViTConfig

    for config in (BertConfig(), ViTConfig()):
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelMismatch, match="no dual encoder: choose one with"):
            load(tmp_path)
    Siglip2Config().save_pretrained(tmp_path)
    with pytest.raises(ModelMismatch, match=r"NaFlex.*google/siglip2-base-patch16-224"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"model_type": "brand-new", "auto_map": {"AutoModel": "code.Model"}}'
    )
    with pytest.raises(ModelMismatch, match="code in a model's folder is never run"):
        load(tmp_path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_vectors_of_the_cpu(folders: dict[str, Path], photos: list[Image.Image]) -> None:
    for family in FAMILIES:
        cpu, cuda = load(folders[family]), load(folders[family], "cuda")
        assert isinstance(cuda, DualEncoder)
        for one, other in (
            (cpu.encode_images(photos), cuda.encode_images(photos)),
            (cpu.encode_texts(TEXTS), cuda.encode_texts(TEXTS)),
        ):
            assert np.allclose(one, other, atol=1e-2 * np.abs(one).max())
        assert cuda.fingerprint == cpu.fingerprint
