"""Parts of a file in one call, compiled and read by Python, give the same bytes and the same errors."""

import os

import numpy as np
import pytest

from genius.search.kernel import load_kernel, parts

SIZE = 1000


@pytest.fixture(params=["compiled", "python"])
def read_parts(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(parts, "load_kernel", lambda: None)
    elif load_kernel() is None:
        pytest.skip("the kernel was not compiled here")
    return parts.read_parts


@pytest.fixture
def opened(tmp_path):
    file = tmp_path / "array.bin"
    data = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
    file.write_bytes(data.tobytes())
    handle = os.open(file, os.O_RDONLY)
    yield handle, data
    os.close(handle)


@pytest.mark.parametrize("starts", [[], [0], [990, 0, 13, 13]])
def test_every_part_is_the_bytes_at_its_start(read_parts, opened, starts):
    handle, data = opened
    found = read_parts(handle, np.array(starts, dtype=np.int64), 10)
    assert found.shape == (len(starts), 10) and found.dtype == np.uint8
    for start, part in zip(starts, found, strict=True):
        np.testing.assert_array_equal(part, data[start : start + 10])


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot be asked to forget a file")
def test_parts_that_are_not_in_memory_come_from_the_disk(read_parts, tmp_path):
    data = np.random.default_rng(1).integers(0, 256, (200, 4096), dtype=np.uint8)
    file = tmp_path / "array.bin"
    file.write_bytes(data.tobytes())
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(handle, 4096, 7 * 4096)  # some are in memory, others are not
        rows = np.array([199, 7, 3, 150, 7])
        np.testing.assert_array_equal(read_parts(handle, rows * 4096, 4096), data[rows])
    finally:
        os.close(handle)


def test_starts_may_be_every_second_number_of_an_array(read_parts, opened):
    handle, data = opened
    found = read_parts(handle, np.array([5, 999, 7, 999])[::2], 3)
    np.testing.assert_array_equal(found, [data[5:8], data[7:10]])


def test_a_part_beyond_the_end_is_an_end_of_file(read_parts, opened):
    with pytest.raises(EOFError):
        read_parts(opened[0], np.array([0, SIZE - 4]), 5)


def test_a_file_that_cannot_be_read_says_why(read_parts, tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)  # a folder
    try:
        with pytest.raises(IsADirectoryError):
            read_parts(handle, np.array([0]), 5)
    finally:
        os.close(handle)
