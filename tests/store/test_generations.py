"""Generations: published whole, mapped back, large arrays checked where they are read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from genius.store import generations, large_array
from genius.store.generations import Stream
from genius.store.large_array import BLOCK, OLDER_BLOCK, CacheDamaged, LargeArray

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


@pytest.fixture(params=["in memory", "some rows in memory", "from the file"], autouse=True)
def all_ways(request, monkeypatch):
    """Small arrays stay in memory once they are verified, of large ones the rows that were read last."""
    if request.param != "in memory":
        monkeypatch.setattr(large_array, "IN_MEMORY", 0 if request.param == "from the file" else 70 * 200)


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


def test_verifying_takes_time_in_proportion_to_the_size(tmp_path, monkeypatch):
    """Not to its square: every byte is read and summed once, however many there are."""
    monkeypatch.setattr(large_array, "AT_ONCE", 4 * BLOCK)
    digest, values = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    large = generation.large["vectors"]
    read, summed = [], []
    pread, require_sums = LargeArray._pread, LargeArray._require_sums
    monkeypatch.setattr(
        LargeArray, "_pread", lambda self, size, at: read.append(size) or pread(self, size, at)
    )
    monkeypatch.setattr(
        LargeArray,
        "_require_sums",
        lambda self, blocks, data: (
            summed.append((blocks.tolist(), len(data))) or require_sums(self, blocks, data)
        ),
    )
    generations.verify(generation)
    assert sum(read) == values.nbytes and max(read) <= 4 * BLOCK
    assert [block for blocks, _ in summed for block in blocks] == list(range(len(large.sums)))
    assert sum(size for _, size in summed) == values.nbytes


def test_a_row_that_is_read_first_brings_one_block(tmp_path, monkeypatch):
    """A search among many items reads rows that nobody has read before: each costs its own block alone."""
    digest, values = publish(tmp_path, 1)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    read = []
    real = LargeArray._require_sums
    monkeypatch.setattr(
        LargeArray,
        "_require_sums",
        lambda self, blocks, data: read.extend(blocks.tolist()) or real(self, blocks, data),
    )
    rows = np.array([0, 1500, 2999])
    for _ in range(2):  # verified once
        np.testing.assert_array_equal(generation.large["vectors"][rows], values[rows])
    assert read == sorted({int(row) * 200 // BLOCK for row in rows})


def test_generations_with_larger_blocks_are_read(tmp_path, monkeypatch):
    """Older ones do not say how large their blocks are."""
    with monkeypatch.context() as patch:
        patch.setattr(generations, "BLOCK", OLDER_BLOCK)
        publish(tmp_path, 1)
    file = tmp_path / "generation-000001" / "manifest.json"
    manifest = json.loads(file.read_text())
    assert manifest["arrays"]["vectors"].pop("block") == OLDER_BLOCK
    raw = json.dumps(manifest, sort_keys=True).encode()
    file.write_bytes(raw)
    generation = generations.load(tmp_path, 1, hashlib.sha256(raw).hexdigest(), "test-1")
    assert generation.large["vectors"].block == OLDER_BLOCK
    generations.verify(generation)
    assert len(generation.large["vectors"][np.array([2999, 0])]) == 2
    generation.close()


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
    data[BLOCK] ^= 1  # first byte of block 1; row 20 spans bytes 4,000 to 4,199
    file.write_bytes(data)
    generation = generations.load(tmp_path, 1, digest, "test-1")
    with pytest.raises(CacheDamaged):
        generation.large["vectors"][np.array([20])]
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


def large_of(tmp_path, rows, width, monkeypatch, in_memory):
    """A large array of `rows` rows of `width` bytes, of which so many bytes stay in memory."""
    monkeypatch.setattr(large_array, "IN_MEMORY", in_memory)
    values = np.random.default_rng(0).integers(0, 256, (rows, width), dtype=np.uint8)
    digest = generations.publish(
        tmp_path, 1, FACTS, {}, {"vectors": Stream("|u1", values.shape, iter([values]))}
    )
    return generations.load(tmp_path, 1, digest, "test-1").large["vectors"], values


def test_rows_that_were_read_lately_are_not_read_again(tmp_path, monkeypatch):
    large, values = large_of(tmp_path, 4000, 64, monkeypatch, 320 * 64)
    read = []
    parts = LargeArray._parts
    monkeypatch.setattr(
        LargeArray, "_parts", lambda self, starts, size: read.append(len(starts)) or parts(self, starts, size)
    )
    some, other = np.array([5, 17, 3999, 5]), np.array([5 + 320, 17])  # 325 has the place of 5
    np.testing.assert_array_equal(large[some], values[some])
    assert read == [1, 1, 1]  # the block that holds 5 and 17; the last block, a shorter one; row 3999
    read.clear()
    np.testing.assert_array_equal(large[some], values[some])
    assert read == []
    np.testing.assert_array_equal(large[other], values[other])
    np.testing.assert_array_equal(large[some], values[some])
    assert sum(read) >= 2 and read[-1] == 2  # row 5, twice, since 325 took its place
    read.clear()
    np.testing.assert_array_equal(large[:], values)  # more than a few: all from the file
    np.testing.assert_array_equal(large[np.array([17, 3999])], values[[17, 3999]])
    assert read[-1] == 4000


def test_threads_that_share_recent_rows_get_their_own(tmp_path, monkeypatch):
    """Rows with the same place replace each other while other threads read them."""
    large, values = large_of(tmp_path, 5000, 512, monkeypatch, 64 * 512)

    def reads(seed):
        random = np.random.default_rng(seed)
        for _ in range(300):
            rows = random.integers(0, 5000, 4)
            if not (large[rows] == values[rows]).all():
                return rows
        return None

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(reads, range(8))) == [None] * 8
