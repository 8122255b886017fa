"""From files in the released formats to a search, by the commands that a user types."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from genius import Engine
from genius.convert.decoder import to_released
from genius.decode.init import initialise
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.encode.clip import ClipEncoder
from genius.errors import BadInput, ModelMismatch
from genius.model import Model

HERE = Path(__file__).parent
openai_names = runpy.run_path(str(HERE / "test_encoders.py"))["openai_names"]
DIM, SIZES = 24, (3, 6, 6)  # the width of the tiny CLIP


def released_quantizer(dim: int = DIM) -> dict[str, torch.Tensor]:
    """As vector-quantize-pytorch before 1.27 and the authors' fusion name their weights."""
    from vector_quantize_pytorch import ResidualVQ

    torch.manual_seed(0)
    sizes = {"text_projection_layer": (512, dim), "image_projection_layer": (512, dim)}
    sizes |= {"combiner_layer": (1024, 1024), "output_layer": (dim, 1024)}
    sizes |= {"dynamic_scalar.0": (1024, 1024), "dynamic_scalar.3": (1, 1024)}
    tensors = {}
    for name, size in sizes.items():
        tensors[f"encoder.{name}.weight"] = 0.02 * torch.randn(size)
        tensors[f"encoder.{name}.bias"] = 0.02 * torch.randn(size[0])
    for name, tensor in ResidualVQ(dim=dim, codebook_size=SIZES, num_quantizers=3).state_dict().items():
        value = tensor.reshape(1) if name.endswith("initted") else tensor
        tensors[f"residual_rq.{name}"] = value
        if name.startswith("layers.0."):
            tensors[f"vq.{name.removeprefix('layers.0.')}"] = value
    return tensors


@pytest.fixture
def published(tmp_path: Path, make_clip: Callable[..., Any]) -> dict[str, Path]:
    """Three files with tiny random weights under the published names."""
    quantizer = released_quantizer()
    shape = DecoderShape(DIM, SIZES, layers=2, width=16, heads=2, head_width=8, feed_forward=32, prefix=4)
    decoder = Decoder(shape)
    initialise(decoder, torch.Generator().manual_seed(0))
    parts = {
        "encoder": {f"clip_model.{name}": value for name, value in openai_names(make_clip()).items()},
        "quantizer": quantizer,
        "decoder": to_released(decoder) | {f"quantizer.{name}": value for name, value in quantizer.items()},
    }
    files = {name: tmp_path / f"{name}.pth" for name in parts}
    for name, tensors in parts.items():
        torch.save({"model": tensors}, files[name])
    return files


def genius(*words: object) -> Any:
    from genius.cli import app

    return CliRunner().invoke(app, [*map(str, words)])


def options(files: dict[str, Path]) -> list[object]:
    return [word for name, file in files.items() for word in (f"--{name}", file)]


def test_from_published_files_to_a_search(
    published: dict[str, Path], clip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    model = tmp_path / "published"
    done = genius("convert", "model", *options(published), "--to", model, "--tokenizer", clip_folder)
    assert done.exit_code == 0, done.output
    loaded = Model.load(model)
    assert loaded.search_defaults == {"method": "generate", "beam": 50}
    assert loaded.decoder is not None
    assert loaded.decoder.shape.normalise == "vocabulary"

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, photo in enumerate(photos):
        photo.save(pictures / f"{number}.png")
    done = genius("index", pictures, "--to", tmp_path / "index", "--model", model)
    assert done.exit_code == 0, done.output
    done = genius("search", "a red dog", "--in", tmp_path / "index", "--want", "image", "--format", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert {Path(hit["id"]).name for hit in found} == {f"{number}.png" for number in range(5)}
    with Engine.open(tmp_path / "index") as engine:
        assert len(engine) == 5

    names = [f"{number}.png" for number in range(5)]
    for file, records in {
        "queries.jsonl": [{"_id": f"q{name}", "text": "a red dog"} for name in names],
        "items.jsonl": [{"_id": name, "image": name} for name in names],
    }.items():
        (pictures / file).write_text("".join(json.dumps(record) + "\n" for record in records))
    (pictures / "qrels.tsv").write_text("".join(f"q{name}\t{name}\t1\n" for name in names))
    wanted = ("--model", model, "--systems", "genius,lookup+codes", "--format", "json")
    done = genius("eval", "--data", pictures, *wanted, "--cache", tmp_path / "cache", "--device", "cpu")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["system"]: row["hit@5"] for row in rows} == {"genius": 1.0, "lookup+codes": 1.0}  # all five


def test_parts_that_do_not_fit_leave_nothing_behind(
    published: dict[str, Path], clip_folder: Path, tmp_path: Path
) -> None:
    torch.save({"model": released_quantizer(DIM + 1)}, published["quantizer"])
    failed = genius(
        "convert", "model", *options(published), "--to", tmp_path / "new", "--tokenizer", clip_folder
    )
    assert isinstance(failed.exception, ModelMismatch)
    assert not (tmp_path / "new").exists()


def test_an_encoder_of_its_own_stays_where_it_is(
    published: dict[str, Path], clip_folder: Path, tmp_path: Path
) -> None:
    published["encoder"] = clip_folder
    done = genius("convert", "model", *options(published), "--to", tmp_path / "new")
    assert done.exit_code == 0, done.output
    assert isinstance(Model.load(tmp_path / "new").encoder, ClipEncoder)
    assert not (tmp_path / "new" / "config.json").exists()


def test_files_that_are_missing_are_named(published: dict[str, Path], tmp_path: Path) -> None:
    for words, error in (
        (("model", "--encoder", "x", "--to", tmp_path / "new"), "give all three"),
        (("quantizer", "--to", tmp_path / "new"), "is made of one file"),
        (("quantizer", "x", "--encoder", "y", "--to", tmp_path / "new"), "leave out --encoder"),
    ):
        failed = genius("convert", *words)
        assert isinstance(failed.exception, BadInput)
        assert error in str(failed.exception)
