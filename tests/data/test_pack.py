"""A training root packed in parts and unpacked again: the same tables, small pictures of the same names."""

from __future__ import annotations

import json
import runpy
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "data" / "pack.py"


@pytest.fixture
def packed(tmp_path):
    root, elsewhere = tmp_path / "data", tmp_path / "photos"
    names = [f"mbeir_images/photos/{number}.png" for number in range(6)]
    queries = [
        {"query_txt": "six", "query_img_path": None, "pos_cand_list": ["1:5"]},
        {"query_txt": None, "query_img_path": names[0], "pos_cand_list": ["1:7"]},
    ]
    pictures = (*names, "mbeir_images/photos/broken.jpg", None)
    items = [{"did": f"1:{number}", "img_path": name} for number, name in enumerate(pictures)]
    for name, rows in (("query/train/a.jsonl", queries), ("cand_pool/global/p.jsonl", items)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elsewhere.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels = rng.integers(0, 255, (90, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(elsewhere / f"{number}.png")
    Image.fromarray(pixels).save(elsewhere / "no item.png")
    (elsewhere / "broken.jpg").write_bytes(b"\xff\xd8 no picture")
    (root / "mbeir_images").mkdir()
    (root / "mbeir_images" / "photos").symlink_to(elsewhere)
    pack = runpy.run_path(str(SCRIPT), run_name="pack")["pack"]
    return root, tmp_path / "parts", pack(root, tmp_path / "parts", 64, 20_000)


def test_what_is_packed_comes_out_again(packed, tmp_path):
    root, parts, (count, pictures, unreadable) = packed
    files = sorted(parts.iterdir())
    assert (len(files), pictures, unreadable) == (count + 1, 7, 1)
    assert count > 1
    assert max(file.stat().st_size for file in files) <= 20_000
    for file in reversed(files):  # in any order
        with tarfile.open(file) as tar:
            tar.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there"
    for table in ("query/train/a.jsonl", "cand_pool/global/p.jsonl"):
        assert (there / table).read_text() == (root / table).read_text()
    names = sorted(file.name for file in (there / "mbeir_images/photos").iterdir())
    assert names == [f"{number}.png" for number in range(6)]
    for name in names:
        with (
            Image.open(there / "mbeir_images/photos" / name) as small,
            Image.open(root / "mbeir_images/photos" / name) as before,
        ):
            assert (small.size, small.format) == ((64, 64), "WEBP")
            wanted = np.asarray(before.convert("RGB").resize((64, 64)), dtype=float)
            assert np.abs(np.asarray(small, dtype=float) - wanted).mean() < 25


def test_pictures_of_queries_and_positives_come_first(packed):
    _, parts, _ = packed
    names = []
    for file in sorted(parts.glob("part-*.tar")):
        with tarfile.open(file) as tar:
            names += [Path(name).stem for name in tar.getnames()]
    assert names == ["0", "5", "1", "2", "3", "4"]
