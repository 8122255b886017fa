"""`mini`: its towers against outside oracles, its files, its vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional as F

from genius.encode.base import Encoder, TrainableEncoder, load_encoder
from genius.encode.mini.efficientnet import Block, ConvUnit, ImageTower, fold_norms, start_from_imagenet
from genius.encode.mini.encoder import TOKENIZER, WEIGHTS, MiniEncoder, Towers, pack, unpack
from genius.encode.mini.minilm import TextTower, start_from_minilm
from genius.errors import ModelMismatch, ModelNotFound

TRUNK = ("stem.", "blocks.", "head.")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "blue", "dog", "cat", "on", "the", "mat", "."]


def small_tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece({word: row for row, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def stir(tower: ImageTower, seed: int = 0) -> ImageTower:
    """Norms with statistics as after some training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for unit in tower.modules():
            if isinstance(unit, torch.nn.BatchNorm2d):
                for value, low, high in ((unit.weight, 0.8, 1.5), (unit.running_var, 0.2, 0.9)):
                    value.copy_(torch.rand(value.shape, generator=generator) * (high - low) + low)
                for value in (unit.bias, unit.running_mean):
                    value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    return tower


@pytest.fixture(scope="module")
def encoder(photos: list[Image.Image]) -> MiniEncoder:
    """Random towers; the norms have seen some pictures, so that one picture is not like another."""
    torch.manual_seed(0)
    made = MiniEncoder(Towers(norm=True), small_tokenizer(), "untrained")
    for unit in made.module.modules():
        if isinstance(unit, torch.nn.BatchNorm2d):
            unit.momentum = 1.0
    with torch.no_grad():
        made.image_vectors(torch.stack([made.prepare_image(photo) for photo in photos]))
    return made


@pytest.fixture(scope="module")
def folder(encoder: MiniEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mini"
    encoder.save(folder)
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path) -> MiniEncoder:
    return MiniEncoder.open(folder)


# --- the text tower --------------------------------------------------------------------------------------


def test_the_text_tower_is_bert_with_mean_pooling() -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12,
        intermediate_size=1536,
    )  # fmt: skip
    bert = BertModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for value in bert.parameters():
            if value.ndim == 1:  # fresh biases are 0 and norms 1: a mix-up would go unseen
                value += 0.05 * torch.randn(value.shape)
    tower = TextTower(8).eval()
    start_from_minilm(tower, bert.state_dict())
    token_ids = torch.randint(1000, 30000, (4, 12))
    token_ids[1, 5:] = token_ids[3, 1:] = 0
    mask = (token_ids != 0).long()
    with torch.no_grad():
        hidden = bert(token_ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        assert torch.allclose(tower.features(token_ids), mean, atol=1e-4)
        assert torch.allclose(
            tower.features(token_ids[1:2, :5]), mean[1:2], atol=1e-4
        )  # padding changes nothing


# --- the image tower -------------------------------------------------------------------------------------


def test_the_image_tower_has_the_published_size() -> None:
    tower = ImageTower(512, norm=True)
    heads = sum(p.numel() for head in (tower.hidden, tower.out) for p in head.parameters())
    published = 6_092_072 - 1000 * 1281  # EfficientNet-Lite2 without its classifier
    assert sum(p.numel() for p in tower.parameters()) - heads == published


def test_stride_two_pads_as_tensorflow_does() -> None:
    unit = ConvUnit(3, 4, 3, 2, norm=False, act=False)
    picture = torch.randn(1, 3, 8, 8)
    padded = F.pad(picture, (0, 1, 0, 1))  # SAME at an even size: one more on the right and below
    with torch.no_grad():
        expected = F.conv2d(padded, unit.conv.weight, unit.conv.bias, stride=2)
        assert torch.allclose(unit(picture), expected, atol=1e-6)
        assert unit(picture).shape == (1, 4, 4, 4)


def test_folded_norms_change_nothing() -> None:
    torch.manual_seed(0)
    tower = stir(ImageTower(16, norm=True))
    pixels = torch.rand(2, 3, 64, 64) * 2 - 1
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    folded = fold_norms(tower)
    assert tower.training
    assert all(torch.equal(value, before[name]) for name, value in tower.state_dict().items())
    assert not any(isinstance(unit, torch.nn.BatchNorm2d) for unit in folded.modules())
    with torch.no_grad():
        expected = tower.eval()(pixels)
        assert torch.allclose(folded(pixels), expected, atol=1e-4 * float(expected.abs().max()))
        assert torch.equal(fold_norms(folded)(pixels), folded(pixels))  # again: nothing left to fold


class Published(dict[str, torch.Tensor]):
    """Weights under the names of the published file, each tensor filled with a number of its own."""

    def __init__(self, tower: ImageTower) -> None:
        units = {("_conv_stem", "_bn0"): tower.stem, ("_conv_head", "_bn1"): tower.head}
        for row, block in enumerate(tower.blocks):
            assert isinstance(block, Block)
            for place, kind in enumerate(("expand", "depthwise", "project")):  # a block without `expand`
                names = (f"_blocks.{row}._{kind}_conv", f"_blocks.{row}._bn{place}")  # begins with _bn1
                if getattr(block, kind) is not None:
                    units[names] = getattr(block, kind)
        for (conv, norm), unit in units.items():
            self[f"{conv}.weight"] = torch.full_like(unit.conv.weight, float(len(self)))
            for part, value in unit.norm.state_dict().items():
                self[f"{norm}.{part}"] = torch.full_like(value, len(self))


def test_every_published_image_weight_is_taken() -> None:
    tower = ImageTower(16, norm=True)
    published = Published(tower)
    start_from_imagenet(tower, published)
    state = tower.state_dict()
    taken = {float(value.flatten()[0]) for name, value in state.items() if name.startswith(TRUNK)}
    assert taken == {float(value.flatten()[0]) for value in published.values()}
    assert float(state["blocks.0.depthwise.norm.bias"][0]) == float(published["_blocks.0._bn1.bias"][0])


# --- what is stored --------------------------------------------------------------------------------------


def test_packing_loses_little() -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        "text.words.weight": torch.randn(50, 24, generator=generator) * torch.logspace(-6, 2, 50)[:, None],
        "text.norm.bias": torch.randn(24, generator=generator),
        "image.stem.conv.weight": torch.randn(8, 3, 3, 3, generator=generator),
    }
    state["text.words.weight"][7] = 0  # a row that was never used
    packed = pack(state)
    assert packed["text.words.weight"].dtype == torch.int8
    assert sum(value.nbytes for value in packed.values()) < sum(value.nbytes for value in state.values()) / 2
    back = unpack(packed)
    assert back.keys() == state.keys()
    matrix = state["text.words.weight"]
    half_a_step = matrix.abs().amax(dim=1, keepdim=True) / 127 / 2
    assert bool(((back["text.words.weight"] - matrix).abs() <= half_a_step * 1.001 + 1e-10).all())
    for name in ("text.norm.bias", "image.stem.conv.weight"):
        assert torch.allclose(back[name], state[name], rtol=2**-11, atol=1e-7)


def test_saved_and_opened_it_gives_the_same_vectors(encoder, folder, opened, photos, tmp_path) -> None:
    assert isinstance(opened, Encoder)
    assert isinstance(opened, TrainableEncoder)
    texts = ["A red dog.", "The cat on the mat."]
    for mine, theirs in (
        (encoder.encode_images(photos), opened.encode_images(photos)),
        (encoder.encode_texts(texts), opened.encode_texts(texts)),
    ):
        cosine = (mine * theirs).sum(1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosine.min() > 0.999
    opened.save(tmp_path / "again")  # packed a second time, nothing more is lost
    again = load_encoder("mini", tmp_path / "again")
    assert np.allclose(again.encode_texts(texts), opened.encode_texts(texts), atol=1e-5)
    assert {file.name for file in folder.iterdir()} == {WEIGHTS, TOKENIZER}


def test_the_fingerprint_follows_weights_and_words(folder: Path, opened: MiniEncoder, tmp_path: Path) -> None:
    assert MiniEncoder.open(folder).fingerprint == opened.fingerprint
    other = tmp_path / "other"
    other.mkdir()
    tensors = load_file(folder / WEIGHTS)
    tensors["text.out.bias"][0] += 1
    save_file(tensors, other / WEIGHTS)
    (other / TOKENIZER).write_bytes((folder / TOKENIZER).read_bytes())
    changed = MiniEncoder.open(other).fingerprint
    (other / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    words = (folder / TOKENIZER).read_text().replace('"mat"', '"hat"')
    (other / TOKENIZER).write_text(words)
    assert len({opened.fingerprint, changed, MiniEncoder.open(other).fingerprint}) == 3


def test_missing_extra_and_misshaped_keys_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / TOKENIZER).write_bytes((folder / TOKENIZER).read_bytes())

    def refusal(**changes: torch.Tensor | None) -> str:
        tensors = load_file(folder / WEIGHTS)
        for name, value in changes.items():
            if value is None:
                del tensors[name]
            else:
                tensors[name] = value
        save_file(tensors, tmp_path / WEIGHTS)
        with pytest.raises(ModelMismatch) as caught:
            MiniEncoder.open(tmp_path)
        return str(caught.value)

    assert "missing image.stem.conv.weight" in refusal(**{"image.stem.conv.weight": None})
    assert "missing text.words.weight.scale" in refusal(**{"text.words.weight.scale": None})
    assert "extra image.odd" in refusal(**{"image.odd": torch.zeros(3)})
    # scales without a packed matrix would be lost in silence
    assert "extra text.norm.bias.scale" in refusal(**{"text.norm.bias.scale": torch.ones(384)})
    assert "misshaped text.out.bias: (7,) instead of (512,)" in refusal(**{"text.out.bias": torch.zeros(7)})
    assert "mistyped text.out.bias" in refusal(**{"text.out.bias": torch.zeros(512, dtype=torch.int8)})
    assert "NaN or Inf in text.out.bias" in refusal(**{"text.out.bias": torch.full((512,), torch.nan)})


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    words = (folder / TOKENIZER).read_bytes()
    (tmp_path / TOKENIZER).write_bytes(words)
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"\xff" * 8 + whole[8:]):
        (tmp_path / WEIGHTS).write_bytes(damaged)
        with pytest.raises(ModelMismatch, match="damaged or no safetensors"):
            MiniEncoder.open(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"\x80\x04pickle")
    with pytest.raises(ModelMismatch, match="is a pickle"):
        MiniEncoder.open(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(whole)
    for wrong in (b"", b"{}", words[: len(words) // 2]):
        (tmp_path / TOKENIZER).write_bytes(wrong)
        with pytest.raises(ModelMismatch, match="no tokenizer"):
            MiniEncoder.open(tmp_path)
    many = Tokenizer(models.WordLevel({f"w{row}": row for row in range(30_523)}, "w0"))
    many.save(str(tmp_path / TOKENIZER))
    with pytest.raises(ModelMismatch, match="has 30523 tokens, mini knows 30522"):
        MiniEncoder.open(tmp_path)


def test_no_encoder_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="it needs encoder"):
        load_encoder("mini", tmp_path / "nowhere")


# --- its vectors -----------------------------------------------------------------------------------------


def test_vectors_do_not_depend_on_the_batch(opened: MiniEncoder, photos: list[Image.Image]) -> None:
    many = [*photos, *photos, *photos, *photos]  # more than one batch
    images = opened.encode_images(many)
    assert images.shape == (20, 512)
    assert np.array_equal(images, opened.encode_images(many))
    alone = np.concatenate([opened.encode_images([photo]) for photo in photos])
    assert np.allclose(images, np.tile(alone, (4, 1)), atol=1e-5 * np.abs(alone).max())
    assert not np.allclose(images[0], images[1], atol=0.01)

    texts = [" ".join(["a red dog."] * (1 + number % 7)) for number in range(40)]
    vectors = opened.encode_texts(texts)
    assert np.array_equal(vectors, opened.encode_texts(texts))
    alone = np.concatenate([opened.encode_texts([text]) for text in texts[:7]])
    assert np.allclose(vectors, alone[np.arange(40) % 7], atol=1e-5)
    assert not np.allclose(vectors[0], vectors[1], atol=0.01)


def test_nothing_is_encoded_to_nothing(opened: MiniEncoder) -> None:
    assert opened.encode_images([]).shape == (0, 512)
    assert opened.encode_texts([]).shape == (0, 512)


def test_odd_texts_are_read(opened: MiniEncoder) -> None:
    odd = ["", " ", "\0", "\ud800", "🙂" * 50, "dog " * 50_000, "dog " * 126]
    vectors = opened.encode_texts(odd)
    assert np.isfinite(vectors).all()
    assert np.allclose(vectors[-2], opened.encode_texts(["dog " * 200])[0], atol=1e-5)  # cut alike
    token_ids = opened.prepare_texts(odd)
    assert token_ids.shape == (len(odd), 128)
    assert token_ids[-2, -1] == token_ids[-1, -1] == opened.tokenizer.token_to_id("[SEP]")  # cut or not


def test_the_whole_picture_is_seen(opened: MiniEncoder) -> None:
    wide = Image.new("RGB", (600, 100), "white")
    wide.paste((255, 0, 0), (0, 0, 60, 100))  # a red end that a centre crop would lose
    pixels = opened.prepare_image(wide)
    assert (pixels.shape, pixels.dtype) == ((3, 224, 224), torch.uint8)
    assert pixels[:, 112, 5].tolist() == [255, 0, 0]
    assert pixels[:, 112, 200].tolist() == [255, 255, 255]
