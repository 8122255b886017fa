"""Feature fusion on tiny towers: masks, saving, gradients, and that it learns."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from genius.encode.base import FusingEncoder, encode_parts, load_encoder
from genius.encode.feature_fusion import FeatureFusionEncoder, FusionShape, FusionTransformer, create
from genius.errors import BadInput, ModelMismatch, ModelNotFound

TEXTS = ["a red dog", None, "the blue cat on the mat", "cat", ""]


@pytest.fixture(params=["clip-fusion", "blip-fusion"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plain(kind: str, clip_folder: Path, blip_folder: Path) -> Path:
    return clip_folder if kind == "clip-fusion" else blip_folder


@pytest.fixture
def encoder(kind: str, plain: Path) -> FeatureFusionEncoder:
    return create(kind, plain, width=32)


def test_one_vector_for_each_thing_whatever_its_parts(
    encoder: FeatureFusionEncoder, photos: list[Image.Image]
) -> None:
    assert isinstance(encoder, FusingEncoder)
    images = [photos[0], photos[1], None, photos[3], None]
    vectors = encoder.encode_items(images, TEXTS)
    assert vectors.shape == (5, 24)
    assert np.isfinite(vectors).all()
    assert not vectors[4].any()  # neither part: zeros, as from score fusion
    for row in range(5):
        alone = encoder.encode_items([images[row]], [TEXTS[row]])
        assert np.allclose(alone, vectors[row], atol=1e-5), row  # company and padding do not matter
    encoder.towers.batch = 2
    assert np.allclose(encoder.encode_items(images, TEXTS), vectors, atol=1e-5)
    assert encoder.encode_items([], []).shape == (0, 24)
    assert np.allclose(encode_parts(encoder, images, TEXTS).image, vectors, atol=1e-5)


def test_both_parts_matter(encoder: FeatureFusionEncoder, photos: list[Image.Image]) -> None:
    pair, other_text, other_image, image, text = encoder.encode_items(
        [photos[0], photos[0], photos[1], photos[0], None],
        ["a red dog", "cat", "a red dog", None, "a red dog"],
    )
    for other in (other_text, other_image, image, text):
        assert np.abs(pair - other).max() > 1e-3
    assert np.abs(image + text - pair).max() > 1e-3  # not a mere sum


def test_an_absent_part_has_no_influence() -> None:
    torch.manual_seed(0)
    fusion = FusionTransformer(FusionShape(image_width=6, text_width=5, dim=3, width=8, heads=2)).eval()
    image, text = torch.randn(2, 4, 6), torch.randn(2, 7, 5)
    no, yes = torch.zeros(2, 4, dtype=torch.bool), torch.ones(2, 7, dtype=torch.bool)
    with torch.no_grad():
        first = fusion(image, no, text, yes)
        assert torch.allclose(first, fusion(torch.randn(2, 4, 6), no, text, yes), atol=1e-6)
        assert torch.allclose(first, fusion(image[:, :0], no[:, :0], text, yes), atol=1e-6)
        assert not torch.allclose(first, fusion(image, ~no, text, yes), atol=1e-3)


def test_training_and_encoding_take_the_same_way(
    encoder: FeatureFusionEncoder, photos: list[Image.Image]
) -> None:
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos[:2]])
    token_ids = encoder.prepare_texts(["cat", "a red dog"])
    rows = torch.tensor([1, 0, -1]), torch.tensor([0, -1, 1])
    vectors = encoder.item_vectors(pixels, rows[0], token_ids, rows[1])
    assert vectors.requires_grad
    expected = encoder.encode_items([photos[1], photos[0], None], ["cat", None, "a red dog"])
    assert np.allclose(vectors.detach().numpy(), expected, atol=1e-5)


def test_gradients_reach_the_fusion_and_both_towers(
    encoder: FeatureFusionEncoder, photos: list[Image.Image]
) -> None:
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    everything = torch.arange(5)
    token_ids = encoder.prepare_texts(["a", "red", "dog", "cat", "mat"])
    (encoder.item_vectors(pixels, everything, token_ids, everything) ** 2).sum().backward()
    grads = {name: p.grad for name, p in encoder.module.named_parameters()}
    assert all(
        grad is not None and bool(grad.abs().sum() > 0)
        for name, grad in grads.items()
        if name.startswith("fusion.")
    )
    for part in (
        "vision_model.encoder",
        "text_model.encoder" if encoder.kind == "clip-fusion" else "text_encoder.encoder",
    ):
        touched = [grad for name, grad in grads.items() if part in name and grad is not None]
        assert any(bool(grad.abs().sum() > 0) for grad in touched), part


def test_contrastive_training_lowers_the_loss_and_finds_the_pairs(
    kind: str, encoder: FeatureFusionEncoder, photos: list[Image.Image]
) -> None:
    """Photo + text is the query, another text the item: the fusion learns which belongs to which."""
    torch.manual_seed(0)
    pixels = torch.stack([encoder.prepare_image(photo) for photo in photos])
    token_ids = encoder.prepare_texts(["a", "red", "dog", "cat", "mat", "on", "the", "blue", "dogs", "cats"])
    query = torch.arange(5)
    image_rows = torch.cat([query, torch.full((5,), -1)])
    text_rows = torch.arange(10)
    optimiser = torch.optim.AdamW(encoder.module.parameters(), lr=2e-3)
    losses = []
    for _ in range(25):
        both = torch.nn.functional.normalize(
            encoder.item_vectors(pixels, image_rows, token_ids, text_rows), dim=1
        )
        loss = torch.nn.functional.cross_entropy(both[:5] @ both[5:].T / 0.1, query)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0], losses
    queries = encoder.encode_items(photos, ["a", "red", "dog", "cat", "mat"])
    items = encoder.encode_items([None] * 5, ["on", "the", "blue", "dogs", "cats"])
    cosines = queries @ (items / np.linalg.norm(items, axis=1, keepdims=True)).T
    assert cosines.argmax(axis=1).tolist() == [0, 1, 2, 3, 4]


def test_saved_and_loaded_again(
    kind: str, encoder: FeatureFusionEncoder, photos: list[Image.Image], tmp_path: Path
) -> None:
    encoder.save(tmp_path / "model")
    names = {str(file.relative_to(tmp_path / "model")) for file in (tmp_path / "model").rglob("*")}
    assert {"fusion.json", "fusion.safetensors", "towers/model.safetensors", "towers/config.json"} <= names
    copy = load_encoder(kind, tmp_path / "model")
    assert isinstance(copy, FusingEncoder)
    texts = ["a", None, "dog", "cat", "mat"]
    assert np.array_equal(copy.encode_items(photos, texts), encoder.encode_items(photos, texts))
    assert copy.fingerprint == encoder.fingerprint
    with torch.no_grad():
        encoder.fusion.out.bias += 1
    encoder.save(tmp_path / "model")
    assert load_encoder(kind, tmp_path / "model").fingerprint != copy.fingerprint


def test_the_seed_alone_decides_a_new_fusion(kind: str, plain: Path) -> None:
    before = torch.get_rng_state()
    prints = [create(kind, plain, seed=seed).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    assert torch.equal(before, torch.get_rng_state())


def test_wrong_folders_are_refused(
    kind: str,
    plain: Path,
    encoder: FeatureFusionEncoder,
    tmp_path: Path,
    clip_folder: Path,
    blip_folder: Path,
) -> None:
    with pytest.raises(ModelNotFound, match=f"genius convert {kind}"):
        load_encoder(kind, plain)
    folder = tmp_path / "model"
    encoder.save(folder)
    other = "blip-fusion" if kind == "clip-fusion" else "clip-fusion"
    with pytest.raises(ModelMismatch, match=f"is a '{kind}' model"):
        load_encoder(other, folder)
    shape = json.loads((folder / "fusion.json").read_text())
    for change, message in (
        ({"layers": 3}, "missing layers.2"),
        ({"heads": 5}, "does not divide into 5 heads"),
        ({"width": "wide"}, "width = 'wide'"),
        ({"surplus": 1}, "surplus"),
        ({"image_width": 7}, "misshaped image_in"),
    ):
        (folder / "fusion.json").write_text(json.dumps(shape | change))
        with pytest.raises(ModelMismatch, match=message):
            load_encoder(kind, folder)
    (folder / "fusion.json").write_text("[]")
    with pytest.raises(ModelMismatch, match="does not describe a fusion"):
        load_encoder(kind, folder)
    (folder / "fusion.json").write_text(json.dumps(shape))
    shutil.rmtree(folder / "towers")
    with pytest.raises(ModelNotFound):
        load_encoder(kind, folder)
    with pytest.raises(BadInput, match="2 images beside 1 texts"):
        encoder.encode_items([None, None], ["a"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_vectors_of_the_cpu(kind: str, plain: Path, photos: list[Image.Image]) -> None:
    cpu, cuda = create(kind, plain), create(kind, plain, "cuda")
    images, texts = [*photos[:4], None], ["a red dog", None, "cat", "", ""]
    assert np.allclose(cuda.encode_items(images, texts), cpu.encode_items(images, texts), atol=1e-2)
