"""Pictures to pixels: in threads, in processes, ahead of time; bad ones are black and named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genius.data.images import open_image
from genius.encode import decoding
from genius.encode.decoding import decode
from genius.encode.pictures import Pictures
from genius.encode.preprocess import Preprocess
from genius.errors import BadData

CPU = torch.device("cpu")
PREPROCESS = Preprocess(16)
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


def test_bad_pictures_are_black_and_named(files: list[Path]) -> None:
    pixels, unread = decode(files, PREPROCESS, workers=2)
    assert np.array_equal(pixels, expected(files))
    assert [(one.row, str(files[one.row]) in one.reason) for one in unread] == [(3, False), (7, False)]
    assert unread[1].reason == "no such file"


def test_processes_give_what_threads_give(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = decode(files, PREPROCESS)
    started: list[Any] = []
    real = subprocess.run

    def run(command: Any, **more: Any) -> Any:
        started.append(command)
        return real(command, **more)

    monkeypatch.setattr(decoding, "MANY", 10)
    monkeypatch.setattr(decoding, "PART", 5)
    monkeypatch.setattr(subprocess, "run", run)
    pixels, unread = decode(files, PREPROCESS, workers=2)
    assert len(started) == 3
    assert np.array_equal(pixels, plain.pixels)
    assert unread == plain.unread
    decode(files, PREPROCESS, workers=1)  # one core: no process is worth its start
    assert len(started) == 3


def test_a_process_that_fails_costs_nothing_but_time(files: list[Path], monkeypatch) -> None:
    monkeypatch.setattr(decoding, "MANY", 10)
    monkeypatch.setattr(decoding, "PART", 5)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pixels, unread = decode(files, PREPROCESS, workers=2)
    assert np.array_equal(pixels, expected(files))
    assert [one.row for one in unread] == [3, 7]


def test_a_decoding_process_does_not_import_torch() -> None:
    code = "import sys, genius.encode.decoding; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_wrong_root_is_told_at_once(tmp_path: Path) -> None:
    absent = [tmp_path / f"{number}.jpg" for number in range(5)]
    with pytest.raises(BadData, match=r"none of 5 pictures can be read, .*0\.jpg first \(no such file\)"):
        decode(absent, PREPROCESS)
    assert decode([], PREPROCESS).pixels.shape == (0, 3, 16, 16)


@pytest.mark.parametrize("resident", [True, False])
def test_pictures_by_row(files: list[Path], resident: bool) -> None:
    pictures = Pictures(files, ENCODER, CPU, resident=resident)
    want = torch.from_numpy(expected(files))
    for rows in ([5, 3, 5], [7], [], [0, 1, 2]):
        pictures.expect(torch.tensor(rows, dtype=torch.long))
        assert torch.equal(pictures[torch.tensor(rows, dtype=torch.long)], want[rows])
        assert torch.equal(pictures[torch.tensor([4, 11])], want[[4, 11]])  # others than expected
    assert len(pictures) == len(files)
    assert pictures.report.skipped == 2  # each is named once, however often it is asked for
    assert [name for name, _ in pictures.report.names] == [str(files[3]), str(files[7])]
