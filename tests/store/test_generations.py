"""Generations: published whole, mapped back, large arrays checked where they are read."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from genius.store import generations, large_array
from genius.store.generations import Stream
from genius.store.large_array import BLOCK, CacheDamaged, LargeArray

FACTS = {"layout": "test-1", "last_row": 7}


def publish(folder, number, **extra):
    values = (np.arange(300_000) % 7).astype(np.float16).reshape(-1, 100)  # 600,000 bytes: several blocks
    stream = Stream(
        "<f2", values.shape, (values[start : start + 999] for start in range(0, len(values), 999))
    )
    digest = generations.publish(
        folder, number, FACTS, {"codes": np.arange(10), **extra}, {"vectors": stream}
    )
    return digest, values


def test_arrays_come_back_as_they_were(tmp_path):
    digest, values = publish(tmp_path, 3, empty=np.zeros((0, 4), np.uint16))
    generation = generations.load(tmp_path, 3, digest, "test-1")
    assert (generation.number, generation.last_row) == (3, 7)
    np.testing.assert_array_equal(generation.arrays["codes"], np.arange(10))
    assert generation.arrays["empty"].shape == (0, 4)
    np.testing.assert_array_equal(generation.large["vectors"][:], values)
    some = np.array([2999, 0, 17, 17])
    np.testing.assert_array_equal(generation.large["vectors"][some], values[some])
    generation.close()


@pytest.fixture(params=["in memory", "from the file"], autouse=True)
def both_ways(request, monkeypatch):
    """Small arrays stay in memory once they are verified, large ones are read from the file each time."""
    if request.param == "from the file":
        monkeypatch.setattr(large_array, "IN_MEMORY", 0)


@pytest.mark.parametrize("cut", [0, 1, 3 * BLOCK + 5, 599_999])
def test_a_file_that_is_cut_under_a_reader_is_an_error(tmp_path, cut):
    """Fault 40: not SIGBUS, which would end the process."""
    digest, _ = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    os.truncate(tmp_path / "generation-000001" / "vectors.bin", cut)
    with pytest.raises(CacheDamaged):
        large[:]
    with pytest.raises(CacheDamaged):
        generations.verify(generation)
    for file in (tmp_path / "generation-000001").iterdir():
        os.truncate(file, 0)
    np.testing.assert_array_equal(generation.arrays["codes"], np.arange(10))
    generation.close()


def test_rows_of_verified_blocks_are_missed_when_the_file_is_cut_later(tmp_path, monkeypatch):
    monkeypatch.setattr(large_array, "IN_MEMORY", 0)
    digest, _ = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    assert large[:].shape == (3000, 100)
    os.truncate(tmp_path / "generation-000001" / "vectors.bin", 599_999)
    with pytest.raises(CacheDamaged):
        large[np.array([2999])]
    generation.close()


def test_a_deleted_generation_is_read_to_the_end(tmp_path):
    digest, values = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    generation.close()
    shutil.rmtree(tmp_path / "generation-000001")
    np.testing.assert_array_equal(large[:], values)


def test_rows_in_any_order_and_shape(tmp_path):
    digest, values = publish(tmp_path, 1)
    large = generations.load(tmp_path, 1, digest, "test-1").large["vectors"]
    for rows in (np.array([], np.int64), np.array([5]), np.array([[1, 2], [2999, 0]]), slice(7, 2900, 13)):
        np.testing.assert_array_equal(large[rows], values[rows])
        assert large[rows].dtype == np.float16


def test_verifying_takes_time_in_proportion_to_the_size(tmp_path):
    """Not to its square: one block is read once, however many there are."""
    digest, _ = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    read = []
    real = LargeArray._block
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LargeArray, "_block", lambda self, block: read.append(block) or real(self, block))
        generations.verify(generation)
    assert read == list(range(len(large.sums)))


def test_a_flipped_bit_in_a_large_array_is_noticed_where_it_is_read(tmp_path):
    digest, values = publish(tmp_path, 1)
    file = tmp_path / "generation-000001" / "vectors.bin"
    data = bytearray(file.read_bytes())
    data[3 * BLOCK + 5] ^= 1
    file.write_bytes(data)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    row = (3 * BLOCK + 5) // 200
    np.testing.assert_array_equal(large[np.array([0, 1])], values[:2])  # another block
    for _ in range(2):
        with pytest.raises(CacheDamaged):
            large[np.array([0, row])]
    with pytest.raises(CacheDamaged):
        generations.verify(generation)
    generation.close()


def test_a_row_across_two_blocks_checks_both(tmp_path):
    digest, _ = publish(tmp_path, 1)
    file = tmp_path / "generation-000001" / "vectors.bin"
    data = bytearray(file.read_bytes())
    data[BLOCK] ^= 1  # first byte of block 1; row 327 spans bytes 65,400 to 65,599
    file.write_bytes(data)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    with pytest.raises(CacheDamaged):
        generation.large["vectors"][np.array([327])]
    generation.close()


def test_another_layout_or_digest_is_not_taken(tmp_path):
    digest, _ = publish(tmp_path, 1)
    with pytest.raises(CacheDamaged, match="layout"):
        generations.load(tmp_path, 1, digest, "test-2")
    with pytest.raises(CacheDamaged, match="not the published one"):
        generations.load(tmp_path, 1, "0" * 64, "test-1")
    with pytest.raises(CacheDamaged, match="no manifest"):
        generations.load(tmp_path, 2, digest, "test-1")


def test_held_generations_are_not_deleted(tmp_path):
    digest, _ = publish(tmp_path, 1)
    publish(tmp_path, 2)
    (tmp_path / "generation-000003.partial").mkdir()
    held = generations.load(tmp_path, 1, digest, "test-1")
    generations.delete_others(tmp_path, keep=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["generation-000001", "generation-000002"]
    held.close()
    generations.delete_others(tmp_path, keep=2)
    assert generations.numbers(tmp_path) == [2]
