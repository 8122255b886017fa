"""Files in the formats of UniIR's CLIP-FF and BLIP-FF give the vectors of a forward pass written for them.

The reference below follows the published descriptions of CLIP, T5 and BLIP, and what is known of UniIR's
models (docs/paper.md), in plain torch; it reads the tensors under the names they have in the files.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear
from typer.testing import CliRunner

from genius.convert.uniir import convert_blip_ff, convert_clip_ff
from genius.encode.auto import load as load_any
from genius.encode.base import load_encoder
from genius.encode.uniir import BlipFF, ClipFF
from genius.errors import ModelMismatch, ModelNotFound
from genius.model import Model
from genius.weights import fingerprint_tensors, read_tensors, save_weights

TEXTS = ["a red dog", None, "the blue cat on the mat", None, "cat " * 200]
WEIGHTS = dict[str, Tensor]
HEAD, SIDE, PATCH = 64, 32, 8


def random_weights(shapes: dict[str, tuple[int, ...]]) -> WEIGHTS:
    """Norms near one, all else large enough that every part of the network matters."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in shapes.items():
        value = 0.12 * torch.randn(shape, generator=generator)
        is_norm = name.split(".")[-2:-1] and ("norm" in name.lower() or ".ln_" in f".{name}")
        found[name] = value + 1 if is_norm and name.endswith("weight") else value
    return found


def both(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's weight and bias."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def clip_ff_weights(text_width: int = 64, image_width: int = 128, dim: int = 64) -> WEIGHTS:
    shapes: dict[str, tuple[int, ...]] = {
        "clip_model.logit_scale": (),
        "clip_model.token_embedding.weight": (200, text_width),
        "clip_model.positional_embedding": (16, text_width),
        "clip_model.visual.proj": (image_width, dim),
        "clip_model.visual.class_embedding": (image_width,),
        "clip_model.visual.positional_embedding": ((SIDE // PATCH) ** 2 + 1, image_width),
        "clip_model.visual.conv1.weight": (image_width, 3, PATCH, PATCH),
        **both("clip_model.ln_final", text_width),
        **both("clip_model.visual.ln_pre", image_width),
        **both("clip_model.visual.ln_post", image_width),
    }
    for stem, width, layers in (("", text_width, 2), ("visual.", image_width, 3)):
        for layer in range(layers):
            block = f"clip_model.{stem}transformer.resblocks.{layer}"
            shapes |= {f"{block}.attn.in_proj_weight": (3 * width, width)}
            shapes |= {f"{block}.attn.in_proj_bias": (3 * width,)}
            shapes |= both(f"{block}.attn.out_proj", width, width)
            shapes |= both(f"{block}.ln_1", width) | both(f"{block}.ln_2", width)
            shapes |= both(f"{block}.mlp.c_fc", 4 * width, width)
            shapes |= both(f"{block}.mlp.c_proj", width, 4 * width)
    heads, head_width = 3, 10
    for layer in range(2):
        block = f"t5_layers.block.{layer}.layer"
        for part in "qkv":
            shapes[f"{block}.0.SelfAttention.{part}.weight"] = (heads * head_width, dim)
        shapes[f"{block}.0.SelfAttention.o.weight"] = (dim, heads * head_width)
        shapes[f"{block}.0.layer_norm.weight"] = shapes[f"{block}.1.layer_norm.weight"] = (dim,)
        shapes[f"{block}.1.DenseReluDense.wi.weight"] = (40, dim)
        shapes[f"{block}.1.DenseReluDense.wo.weight"] = (dim, 40)
    shapes["t5_layers.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, heads)
    shapes["t5_layers.final_layer_norm.weight"] = (dim,)
    return random_weights(shapes)


def blip_ff_weights(text_width: int = 64, image_width: int = 128) -> WEIGHTS:
    shapes: dict[str, tuple[int, ...]] = {
        "visual_encoder.cls_token": (1, 1, image_width),
        "visual_encoder.pos_embed": (1, (SIDE // PATCH) ** 2 + 1, image_width),
        **both("visual_encoder.patch_embed.proj", image_width, 3, PATCH, PATCH),
        **both("visual_encoder.norm", image_width),
        "text_encoder.embeddings.word_embeddings.weight": (20, text_width),
        "text_encoder.embeddings.position_embeddings.weight": (110, text_width),
        **both("text_encoder.embeddings.LayerNorm", text_width),
        **both("text_encoder.pooler.dense", text_width, text_width),
        "temp": (),
        "query_queue": (text_width, 8),
        "cand_queue": (text_width, 8),
        "visual_encoder_m.cls_token": (1, 1, image_width),
        **both("text_encoder_m.pooler.dense", text_width, text_width),
    }
    for layer in range(2):
        block = f"visual_encoder.blocks.{layer}"
        shapes |= both(f"{block}.norm1", image_width) | both(f"{block}.norm2", image_width)
        shapes |= both(f"{block}.attn.qkv", 3 * image_width, image_width)
        shapes |= both(f"{block}.attn.proj", image_width, image_width)
        shapes |= both(f"{block}.mlp.fc1", 96, image_width) | both(f"{block}.mlp.fc2", image_width, 96)
        block = f"text_encoder.encoder.layer.{layer}"
        for attention, read in (("attention", text_width), ("crossattention", image_width)):
            shapes |= both(f"{block}.{attention}.self.query", text_width, text_width)
            shapes |= both(f"{block}.{attention}.self.key", text_width, read)
            shapes |= both(f"{block}.{attention}.self.value", text_width, read)
            shapes |= both(f"{block}.{attention}.output.dense", text_width, text_width)
            shapes |= both(f"{block}.{attention}.output.LayerNorm", text_width)
        shapes |= both(f"{block}.intermediate.dense", 80, text_width)
        shapes |= both(f"{block}.output.dense", text_width, 80) | both(
            f"{block}.output.LayerNorm", text_width
        )
    training = {"idx_queue": torch.full((1, 8), -100), "new_ptr_queue": torch.zeros(1, dtype=torch.long)}
    return random_weights(shapes) | training


def dense(weights: WEIGHTS, name: str, x: Tensor) -> Tensor:
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def norm(weights: WEIGHTS, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Any = 0.0, scaled: bool = True
) -> Tensor:
    """Softmax attention of rows (positions, width) by several heads; `bias` is added to the logits."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(0, 1) for x in (query, key, value))
    logits = q @ k.mT / (math.sqrt(q.shape[-1]) if scaled else 1) + bias
    return (logits.softmax(-1) @ v).transpose(0, 1).flatten(1)


def clip_blocks(weights: WEIGHTS, stem: str, x: Tensor, mask: Any = 0.0) -> Tensor:
    """CLIP's transformer: norms first, and x * sigmoid(1.702 x) between the two dense layers."""
    layers = {name[len(stem) :].split(".")[0] for name in weights if name.startswith(stem)}
    for layer in range(len(layers)):
        block = f"{stem}{layer}"
        y = norm(weights, f"{block}.ln_1", x)
        inside = linear(y, weights[f"{block}.attn.in_proj_weight"], weights[f"{block}.attn.in_proj_bias"])
        found = attend(*inside.chunk(3, -1), heads=x.shape[-1] // HEAD, bias=mask)
        x = x + dense(weights, f"{block}.attn.out_proj", found)
        y = dense(weights, f"{block}.mlp.c_fc", norm(weights, f"{block}.ln_2", x))
        x = x + dense(weights, f"{block}.mlp.c_proj", y * torch.sigmoid(1.702 * y))
    return x


def t5_bucket(distance: int, buckets: int = 32, furthest: int = 128) -> int:
    """The bucket of a key that stands `distance` behind the query: half of them for either direction."""
    half = buckets // 2
    start, away = (half if distance > 0 else 0), abs(distance)
    exact = half // 2
    if away < exact:
        return start + away
    share = math.log(away / exact) / math.log(furthest / exact)
    return start + min(half - 1, exact + int(share * (half - exact)))


def t5_encoder(weights: WEIGHTS, x: Tensor) -> Tensor:
    """T5's encoder: RMS norms first, no biases, no scaled logits, relative positions of the first layer."""

    def rms(name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights[f"t5_layers.{name}.weight"]

    def apply(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"t5_layers.{name}.weight"].T

    table = weights["t5_layers.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    count = len(x)
    rows = torch.tensor([[t5_bucket(key - query) for key in range(count)] for query in range(count)])
    bias = table[rows].permute(2, 0, 1)  # (heads, positions, positions)
    for layer in range(2):
        block = f"block.{layer}.layer"
        y = rms(f"{block}.0.layer_norm", x)
        parts = (apply(f"{block}.0.SelfAttention.{part}", y) for part in "qkv")
        x = x + apply(f"{block}.0.SelfAttention.o", attend(*parts, table.shape[1], bias, scaled=False))
        y = apply(f"{block}.1.DenseReluDense.wi", rms(f"{block}.1.layer_norm", x)).relu()
        x = x + apply(f"{block}.1.DenseReluDense.wo", y)
    return rms("final_layer_norm", x)


def patches(pixels: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return conv2d(pixels[None], weight, bias, stride=PATCH)[0].flatten(1).T


def clip_ff(weights: WEIGHTS, pixels: Tensor, ids: list[int]) -> Tensor:
    """The vector of normalised pixels (3, side, side) and the ids of a text, padded with zeros."""
    clip = {name.removeprefix("clip_model."): value for name, value in weights.items()}
    context = len(clip["positional_embedding"])
    x = clip["token_embedding.weight"][ids + [0] * (context - len(ids))] + clip["positional_embedding"]
    future = torch.full((context, context), -torch.inf).triu(1)
    text = norm(clip, "ln_final", clip_blocks(clip, "transformer.resblocks.", x, future))
    x = torch.cat([clip["visual.class_embedding"][None], patches(pixels, clip["visual.conv1.weight"], None)])
    x = norm(clip, "visual.ln_pre", x + clip["visual.positional_embedding"])
    image = norm(clip, "visual.ln_post", clip_blocks(clip, "visual.transformer.resblocks.", x))
    return t5_encoder(weights, torch.cat([text, image @ clip["visual.proj"]])).mean(0)


def blip_ff(weights: WEIGHTS, pixels: Tensor, ids: list[int]) -> Tensor:
    """The vector of normalised pixels (3, side, side) and the ids of a text without padding."""
    stem = "visual_encoder.patch_embed.proj"
    found = patches(pixels, weights[f"{stem}.weight"], weights[f"{stem}.bias"])
    x = torch.cat([weights["visual_encoder.cls_token"][0], found]) + weights["visual_encoder.pos_embed"][0]
    for layer in range(2):
        block = f"visual_encoder.blocks.{layer}"
        y = dense(weights, f"{block}.attn.qkv", norm(weights, f"{block}.norm1", x, 1e-6))
        x = x + dense(weights, f"{block}.attn.proj", attend(*y.chunk(3, -1), heads=x.shape[-1] // HEAD))
        y = dense(weights, f"{block}.mlp.fc1", norm(weights, f"{block}.norm2", x, 1e-6))
        x = x + dense(weights, f"{block}.mlp.fc2", gelu(y))
    image = norm(weights, "visual_encoder.norm", x, 1e-6)

    words = weights["text_encoder.embeddings.word_embeddings.weight"]
    x = words[ids] + weights["text_encoder.embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(weights, "text_encoder.embeddings.LayerNorm", x, 1e-12)
    for layer in range(2):
        block = f"text_encoder.encoder.layer.{layer}"
        for name, read in (("attention", None), ("crossattention", image)):
            source = x if read is None else read
            q = dense(weights, f"{block}.{name}.self.query", x)
            k, v = (dense(weights, f"{block}.{name}.self.{part}", source) for part in ("key", "value"))
            y = dense(weights, f"{block}.{name}.output.dense", attend(q, k, v, x.shape[-1] // HEAD))
            x = norm(weights, f"{block}.{name}.output.LayerNorm", x + y, 1e-12)
        y = gelu(dense(weights, f"{block}.intermediate.dense", x))
        x = norm(weights, f"{block}.output.LayerNorm", x + dense(weights, f"{block}.output.dense", y), 1e-12)
    return dense(weights, "text_encoder.pooler.dense", x[0]).tanh()


Reference = Callable[[WEIGHTS, Tensor, list[int]], Tensor]
CASES: dict[str, tuple[Callable[..., None], WEIGHTS, Reference, type]] = {
    "clip-ff": (convert_clip_ff, clip_ff_weights(), clip_ff, ClipFF),
    "blip-ff": (convert_blip_ff, blip_ff_weights(), blip_ff, BlipFF),
}


def pth(folder: Path, weights: WEIGHTS) -> str:
    torch.save({"model": weights, "epoch": 9}, folder / "uniir.pth")
    return str(folder / "uniir.pth")


@pytest.fixture(params=CASES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(kind: str, clip_folder: Path, blip_folder: Path) -> str:
    return str(clip_folder if kind == "clip-ff" else blip_folder)


@pytest.fixture
def converted(kind: str, tokenizer: str, tmp_path: Path) -> Path:
    convert, weights, _, _ = CASES[kind]
    convert(pth(tmp_path, weights), tmp_path / "converted", tokenizer)
    return tmp_path / "converted"


def test_vectors_are_those_of_the_reference(kind: str, converted: Path, photos: list[Image.Image]) -> None:
    _, weights, reference, encoder_class = CASES[kind]
    encoder: Any = load_any(converted)
    assert isinstance(encoder, encoder_class)
    assert encoder.dim == 64
    images = [photos[0], photos[1], None, None, photos[4]]
    found = encoder.encode_items(images, TEXTS)
    for row, (image, text) in enumerate(zip(images, TEXTS, strict=True)):
        pixels = torch.zeros(3, SIDE, SIDE)  # what stands for an absent image
        if image is not None:
            pixels = encoder.towers.scaled(encoder.prepare_image(image)[None])[0]
        ids = encoder.towers.ids_and_mask(encoder.prepare_texts([text or ""]))[0][0].tolist()
        expected = reference(weights, pixels, ids).numpy()
        assert np.abs(found[row] - expected).max() < 2e-5, row
    assert len(np.unique(found.round(3), axis=0)) == len(found)
    assert found.std(0).min() > 1e-3  # every part of the input matters
    alone = [encoder.encode_items([image], [text])[0] for image, text in zip(images, TEXTS, strict=True)]
    assert np.allclose(found, alone, atol=1e-5)


def test_saved_and_loaded_again_it_is_the_same(kind: str, converted: Path, tmp_path: Path) -> None:
    encoder: Any = load_encoder(kind, converted)
    encoder.save(tmp_path / "again")
    again: Any = load_encoder(kind, tmp_path / "again")
    assert again.fingerprint == encoder.fingerprint
    assert np.array_equal(again.encode_items([None], ["cat"]), encoder.encode_items([None], ["cat"]))


def test_trained_saved_and_loaded_it_is_the_trained_one(kind: str, converted: Path, tmp_path: Path) -> None:
    encoder: Any = load_encoder(kind, converted)
    before = encoder.encode_items([None], ["cat"])
    vectors = encoder.item_vectors(
        torch.zeros(0, 3, SIDE, SIDE), torch.tensor([-1]), encoder.prepare_texts(["cat"]), torch.tensor([0])
    )
    assert np.allclose(vectors.detach().numpy(), before, atol=1e-6)
    vectors.square().sum().backward()
    torch.optim.AdamW(encoder.fusion.parameters(), 0.01).step()  # of the fusion: it is saved, too
    torch.optim.AdamW(encoder.towers.module.parameters(), 0.01, weight_decay=0.2).step()
    encoder.save(tmp_path / "trained")
    found = load_encoder(kind, tmp_path / "trained").encode_items([None], ["cat"])
    assert np.array_equal(found, encoder.encode_items([None], ["cat"]))
    assert np.abs(found - before).max() > 1e-3


def test_the_fingerprint_is_not_that_of_earlier_versions(kind: str, converted: Path) -> None:
    """Whose vectors were others: an index made with those is not searched with these."""
    encoder: Any = load_encoder(kind, converted)
    earlier = fingerprint_tensors(encoder.fusion.state_dict(), [kind, encoder.towers.fingerprint])
    assert encoder.fingerprint != earlier


def test_words_of_the_t5_encoder_are_ignored(clip_folder: Path, tmp_path: Path) -> None:
    encoders = []
    for name, more in (("without", {}), ("with", {"t5_layers.embed_tokens.weight": torch.ones(7, 64)})):
        convert_clip_ff(pth(tmp_path, clip_ff_weights() | more), tmp_path / name, str(clip_folder))
        encoders.append(load_encoder("clip-ff", tmp_path / name))
    assert encoders[0].fingerprint == encoders[1].fingerprint


def test_from_the_file_to_a_search(
    kind: str, tokenizer: str, photos: list[Image.Image], tmp_path: Path
) -> None:
    from genius.cli import app

    def genius(*words: object) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, done.output
        return done.stdout

    file = pth(tmp_path, CASES[kind][1])
    genius("convert", kind, file, "--to", tmp_path / "encoder", "--tokenizer", tokenizer)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, photo in enumerate(photos):
        photo.save(pictures / f"{number}.png")
    genius("index", pictures, "--to", tmp_path / "index", "--encoder", tmp_path / "encoder")
    (settings,) = (tmp_path / "index").rglob("model.toml")
    assert Model.load(settings.parent).encoder_settings["name"] == kind
    hits = json.loads(
        genius("search", "--image", pictures / "2.png", "--in", tmp_path / "index", "--format", "json")
    )
    assert Path(hits[0]["id"]).name == "2.png"
    assert len(json.loads(genius("search", "cat", "--in", tmp_path / "index", "--format", "json"))) == 5


@pytest.mark.parametrize(
    ("wrong", "name", "error"),
    [
        ("clip-ff", "t5_layers.block.0.layer.0.SelfAttention.q.weight", "is no CLIP-FF: missing t5_layers"),
        ("clip-ff", "t5_layers.final_layer_norm.weight", "missing encoder.final_layer_norm.weight"),
        ("clip-ff", "clip_model.ln_final.bias", r"missing text_model\.final_layer_norm\.bias"),
        ("clip-ff", "+t5_layers.odd.weight", r"extra encoder\.odd"),
        ("clip-ff", "+clip_model.text_projection", r"is no CLIP-FF: it has clip_model\.text_projection"),
        ("clip-ff", "clip_model.token_embedding.weight", r"missing token_embedding\.weight"),
        ("clip-ff", "clip_model.visual.proj", r"missing visual_projection\.weight"),
        ("clip-ff", "+head.weight", r"beside clip_model\.\* it holds head\.weight"),
        ("blip-ff", "text_encoder.encoder.layer.1.crossattention.self.key.bias", "missing .*crossattention"),
        ("blip-ff", "+t5_layers.x", r"extra t5_layers\.x"),
        ("blip-ff", "text_encoder.pooler.dense.weight", r"is no BLIP-FF: missing .*pooler\.dense\.weight"),
        ("blip-ff", "text_encoder.pooler.dense.bias", r"is no BLIP-FF: missing .*pooler\.dense\.bias"),
        ("blip-ff", "text_encoder.embeddings.word_embeddings.weight", "is no BLIP-FF: missing .*word_emb"),
        ("blip-ff", "+text_encoder.pooler.dense.odd", r"extra text_encoder\.pooler\.dense\.odd"),
        ("blip-ff", "+text_proj.weight", r"is no BLIP-FF: extra text_proj\.weight"),
        ("blip-ff", "+vision_proj.bias", r"is no BLIP-FF: extra vision_proj\.bias"),
        ("blip-ff", "+itm_head.weight", r"is no BLIP-FF: extra itm_head\.weight"),
    ],
)
def test_what_does_not_fit_is_refused(
    wrong: str, name: str, error: str, clip_folder: Path, blip_folder: Path, tmp_path: Path
) -> None:
    convert, whole, _, _ = CASES[wrong]
    weights = {other: value for other, value in whole.items() if other != name}
    if name.startswith("+"):
        weights[name[1:]] = torch.ones(1)
    folder = clip_folder if wrong == "clip-ff" else blip_folder
    with pytest.raises(ModelMismatch, match=error):
        convert(pth(tmp_path, weights), tmp_path / "new", str(folder))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        (clip_ff_weights(text_width=128), r"of texts have width 128, t5_layers\.\* read 64"),
        (clip_ff_weights() | {"clip_model.visual.proj": torch.ones(128, 24)}, "of images have width 24"),
        (clip_ff_weights(dim=24), "of texts have width 64, .* read 24"),
    ],
    ids=["texts", "images", "both"],
)
def test_features_of_another_width_than_the_t5_encoder_reads_are_refused(
    weights: WEIGHTS, error: str, clip_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelMismatch, match=error):
        convert_clip_ff(pth(tmp_path, weights), tmp_path / "new", str(clip_folder))
    assert not (tmp_path / "new").exists()


def test_a_pooler_of_another_width_is_refused(blip_folder: Path, tmp_path: Path) -> None:
    weights = blip_ff_weights() | {"text_encoder.pooler.dense.weight": torch.ones(24, 64)}
    with pytest.raises(ModelMismatch, match=r"misshaped text_encoder\.pooler\.dense\.weight"):
        convert_blip_ff(pth(tmp_path, weights), tmp_path / "new", str(blip_folder))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["clip-ff"], indirect=True)
@pytest.mark.parametrize("projection", [torch.ones(64, 64), 2 * torch.eye(64)], ids=["full", "diagonal"])
def test_a_clip_ff_folder_of_an_earlier_version_is_refused(converted: Path, projection: Tensor) -> None:
    file = converted / "towers" / "model.safetensors"
    tensors, metadata = read_tensors(file)
    save_weights(tensors | {"text_projection.weight": projection}, file, metadata)
    with pytest.raises(ModelMismatch, match=r"has a text projection.* again: `genius convert clip-ff"):
        load_encoder("clip-ff", converted)


@pytest.mark.parametrize("kind", ["blip-ff"], indirect=True)
def test_a_blip_ff_folder_of_an_earlier_version_is_refused(converted: Path) -> None:
    shutil.rmtree(converted / "fusion")
    with pytest.raises(ModelMismatch, match=r"has no pooler .* again: `genius convert blip-ff"):
        load_encoder("blip-ff", converted)


def test_another_folder_is_refused(kind: str, converted: Path, tokenizer: str) -> None:
    other = "blip-ff" if kind == "clip-ff" else "clip-ff"
    with pytest.raises(ModelMismatch, match=f"is a {kind!r} model"):
        load_encoder(other, converted)
    with pytest.raises(ModelNotFound, match=f"genius convert {kind}"):
        load_encoder(kind, tokenizer)
