"""The cache of vectors and codes: found by content, safe to stop, never stale."""

from __future__ import annotations

import numpy as np
import pytest

from genius.errors import BadInput
from genius.evaluate.cache import ArrayCache, key_of


def keys(*names):
    return [key_of(name.encode()) for name in names]


def rows(*values):
    return np.array([[value, value + 0.5] for value in values], dtype=np.float32)


def open_cache(folder, fingerprint="model-1"):
    return ArrayCache(folder, fingerprint, 2, "float32")


def test_rows_come_back_in_the_order_asked_over_segments_and_runs(tmp_path):
    first = open_cache(tmp_path)
    first.add(keys("a", "b"), rows(1, 2))
    first.add(keys("c"), rows(3))
    again = open_cache(tmp_path)
    assert len(again) == 3
    assert again.gather(keys("c", "a", "c", "b")).tolist() == rows(3, 1, 3, 2).tolist()
    assert again.gather([]).shape == (0, 2)


def test_missing_names_each_absent_key_once(tmp_path):
    cache = open_cache(tmp_path)
    cache.add(keys("a"), rows(1))
    assert cache.missing(keys("a", "x", "x", "y")) == [1, 3]


def test_another_model_or_shape_shares_nothing(tmp_path):
    open_cache(tmp_path).add(keys("a"), rows(1))
    assert len(open_cache(tmp_path, "model-2")) == 0
    assert len(ArrayCache(tmp_path, "model-1", 2, "uint16")) == 0
    assert len(open_cache(tmp_path)) == 1


def test_a_segment_of_another_model_that_was_copied_in_is_not_believed(tmp_path):
    open_cache(tmp_path).add(keys("a"), rows(1))
    mine = next(tmp_path.rglob("*.safetensors"))
    open_cache(tmp_path, "model-2").add(keys("a"), rows(9))
    other = next(f for f in tmp_path.rglob("*.safetensors") if f != mine)
    (mine.parent / "000009-copied.safetensors").write_bytes(other.read_bytes())
    assert open_cache(tmp_path).gather(keys("a")).tolist() == rows(1).tolist()
    assert (mine.parent / "000009-copied.damaged").exists()


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip"])
def test_damage_is_noticed_and_the_rest_is_kept(tmp_path, damage):
    cache = open_cache(tmp_path)
    cache.add(keys("a"), rows(1))
    cache.add(keys("b"), rows(2))
    file = next(tmp_path.rglob("000000-*"))
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-3] ^= 1
    file.write_bytes({"truncate": data[:-4], "empty": b"", "flip": data}[damage])
    again = open_cache(tmp_path)
    assert again.missing(keys("a", "b")) == [0]
    again.add(keys("a"), rows(1))
    assert open_cache(tmp_path).gather(keys("a", "b")).tolist() == rows(1, 2).tolist()


def test_two_that_write_to_one_folder_see_each_other(tmp_path):
    first, second = (ArrayCache(tmp_path, "model", 2, "float32") for _ in range(2))
    keys = [key_of(name) for name in (b"a", b"b", b"c")]
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    first.add(keys[:2], rows[:2])
    second.add(keys[:1], rows[:1])  # it had not looked: another file, not the first one's
    assert (first.gather(keys[:2]) == rows[:2]).all()
    assert second.missing(keys) == [2]
    second.add(keys[2:], rows[2:])
    assert first.missing(keys) == []
    assert (first.gather(keys) == rows).all()


def test_parts_of_a_key_do_not_run_together():
    assert key_of(b"ab", b"c") != key_of(b"a", b"bc") != key_of(b"abc")
    assert key_of(b"", b"a") != key_of(b"a", b"")


def test_rows_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(BadInput, match="do not fit"):
        open_cache(tmp_path).add(keys("a"), rows(1, 2))
    with pytest.raises(BadInput, match="do not fit"):
        open_cache(tmp_path).add(keys("a"), np.zeros((1, 2)))
