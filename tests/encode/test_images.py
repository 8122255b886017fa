"""Image files to pixels: here, in worker processes, ahead of time; bad ones are black and named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.data.images import open_image
from genius.encode import images
from genius.encode.images import ImageTable, available_workers, decode
from genius.encode.preprocess import Preprocess
from genius.errors import BadData

CPU = torch.device("cpu")
PREPROCESS = Preprocess(16)
# a machine with fewer cores than workers
WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create")
ENCODER: Any = SimpleNamespace(preprocess=PREPROCESS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Twelve pictures; number 3 is damaged, number 7 is missing, one has an odd name."""
    folder = tmp_path_factory.mktemp("pictures")
    noise = np.random.default_rng(0)
    files = [folder / f"{number}.png" for number in range(11)] + [folder / "odd\n\udcff 'name'.png"]
    for number, file in enumerate(files):
        size = (20 + number, 30)
        Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8)).save(file)
    files[3].write_bytes(files[3].read_bytes()[:100])
    files[7].unlink()
    return files


def expected(files: list[Path]) -> np.ndarray:
    return np.stack(
        [
            np.zeros((3, 16, 16), np.uint8) if row in (3, 7) else PREPROCESS.pixels(open_image(file))
            for row, file in enumerate(files)
        ]
    )


def test_bad_images_are_black_and_named(files: list[Path]) -> None:
    pixels, unreadable = decode(files, PREPROCESS)
    assert np.array_equal(pixels, expected(files))
    assert [(row, str(files[row]) in reason) for row, reason in unreadable] == [(3, False), (7, False)]
    assert unreadable[1][1] == "no such file"


@WORKERS
def test_workers_give_what_one_process_gives(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 2)
    pixels, unreadable = decode(files, PREPROCESS, workers=2)
    assert np.array_equal(pixels, expected(files))
    assert [row for row, _ in unreadable] == [3, 7]


def test_workers_are_this_process_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    assert available_workers() == 32
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert available_workers() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert available_workers() == 0  # four cores: threads are faster


def test_a_wrong_root_is_told_at_once(tmp_path: Path) -> None:
    absent = [tmp_path / f"{number}.jpg" for number in range(5)]
    with pytest.raises(BadData, match=r"none of 5 images can be read, .*0\.jpg first \(no such file\)"):
        decode(absent, PREPROCESS)
    assert decode([], PREPROCESS).pixels.shape == (0, 3, 16, 16)


@pytest.mark.parametrize("resident", [True, False])
def test_images_by_row(files: list[Path], resident: bool) -> None:
    table = ImageTable(files, ENCODER, CPU, resident=resident, workers=0)
    want = torch.from_numpy(expected(files))
    for rows in ([5, 3, 5], [7], [], [0, 1, 2]):
        assert torch.equal(table[torch.tensor(rows, dtype=torch.long)], want[rows])
    assert len(table) == len(files)
    assert table.report.skipped == 2  # each is named once, however often it is asked for
    assert [name for name, _ in table.report.names] == [str(files[3]), str(files[7])]


@WORKERS
def test_announced_images_are_decoded_ahead_by_workers(files: list[Path]) -> None:
    table = ImageTable(files, ENCODER, CPU, resident=False, workers=2)
    want = torch.from_numpy(expected(files))
    batches = [torch.tensor(rows, dtype=torch.long) for rows in ([5, 3, 5], [7], [], list(range(12)) * 3)]
    table.prefetch(batches)
    for rows in batches:
        assert torch.equal(table[rows], want[rows])
    table.prefetch(batches[:1])  # another pass
    with pytest.raises(AssertionError, match="other images than announced"):
        table[torch.tensor([1, 2, 3])]
