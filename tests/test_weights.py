"""Weights on disk: what is written is what is read, and the fingerprint follows the content."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from genius.files import write_folder
from genius.weights import (
    fingerprint,
    fingerprint_tensors,
    load_weights,
    read_pickled_weights,
    read_tensors,
    save_weights,
)


def small_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_model_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    saved, loaded = small_model(0), small_model(1)
    save_weights(saved.state_dict(), tmp_path / "new" / "model.safetensors", {"kind": "test"})
    load_weights(loaded, tmp_path / "new" / "model.safetensors")
    for name, value in saved.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name


def test_the_file_is_plain_safetensors_with_metadata_and_usual_rights(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_weights({"a": torch.arange(3.0)}, file, {"kind": "test"})
    beside = tmp_path / "beside"
    beside.touch()
    assert torch.equal(load_file(file)["a"], torch.arange(3.0))
    assert read_tensors(file)[1] == {"kind": "test"}
    assert file.stat().st_mode == beside.stat().st_mode
    assert sorted(tmp_path.iterdir()) == [beside, file]  # no temporary file stays


def test_tied_sliced_transposed_and_empty_tensors_are_written(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "a": shared,
        "tied": shared,
        "slice": shared[1],
        "turned": shared.T,
        "scalar": torch.tensor(7),
        "brain": torch.ones(2, dtype=torch.bfloat16),
        "none": torch.empty(0),
    }
    save_weights(tensors, tmp_path / "w.safetensors")
    back, _ = read_tensors(tmp_path / "w.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], value) for name, value in tensors.items())


def test_half_precision_weights_fill_a_float32_module(tmp_path: Path) -> None:
    saved, loaded = small_model(0), small_model(1)
    save_weights(
        {n: t.half() if t.is_floating_point() else t for n, t in saved.state_dict().items()}, tmp_path / "w"
    )
    load_weights(loaded, tmp_path / "w")
    assert loaded[0].weight.dtype == torch.float32  # type: ignore[union-attr]
    assert torch.allclose(loaded[0].weight, saved[0].weight, atol=1e-3)  # type: ignore[arg-type]


def test_fingerprint_of_files_follows_bytes_names_and_order(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"one")
    b.write_bytes(b"two")
    first = fingerprint(a, b)
    assert first == fingerprint(a, b)
    assert first != fingerprint(b, a)
    b.write_bytes(b"twO")
    assert first != fingerprint(a, b)
    a.write_bytes(b"onetw")
    b.write_bytes(b"o")
    assert first != fingerprint(a, b)  # the border between two files counts


def test_fingerprint_of_tensors_follows_values_names_shapes_and_notes() -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    first = fingerprint_tensors(base)
    assert first == fingerprint_tensors(dict(reversed(base.items())))
    others = [
        fingerprint_tensors(base, ["note"]),
        fingerprint_tensors({"a": torch.zeros(3, 2), "b": torch.ones(1)}),
        fingerprint_tensors({"a": torch.zeros(2, 3), "c": torch.ones(1)}),
        fingerprint_tensors({"a": torch.zeros(2, 3), "b": torch.full((1,), 1.0000001)}),
        fingerprint_tensors({"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.float64)}),
    ]
    assert len({first, *others}) == len(others) + 1


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_weights_are_unwrapped(tmp_path: Path, zipped: bool) -> None:
    state = {"module.net._orig_mod.weight": torch.ones(2), "net.bias": torch.zeros(2)}
    file = tmp_path / "w.pth"
    torch.save({"model": state, "epoch": 3}, file, _use_new_zipfile_serialization=zipped)
    assert read_pickled_weights(file).keys() == {"net.weight", "net.bias"}
    torch.save(state, file, _use_new_zipfile_serialization=zipped)
    assert read_pickled_weights(file).keys() == {"net.weight", "net.bias"}


def test_a_folder_appears_whole_or_not_at_all_and_other_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(RuntimeError), write_folder(folder) as new:
        (new / "a").write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())

    with write_folder(folder) as new:
        (new / "a").write_text("one")
        assert not folder.exists()
    (folder / "card.md").write_text("mine")
    with pytest.raises(RuntimeError), write_folder(folder) as new:
        (new / "a").write_text("half")
        raise RuntimeError
    assert (folder / "a").read_text() == "one"

    with write_folder(folder) as new:
        (new / "a").write_text("two")
        (new / "inner").mkdir()
        (new / "inner" / "b").write_text("three")
    assert [(folder / name).read_text() for name in ("a", "inner/b", "card.md")] == ["two", "three", "mine"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_header_whose_length_starts_like_a_pickle_is_no_pickle(tmp_path):
    for padding in range(256):  # one of these lengths begins with pickle's first byte
        file = tmp_path / "weights.safetensors"
        save_weights({"x" * (padding + 1): torch.ones(1)}, file)
        if file.read_bytes()[0] == 0x80:
            break
    else:
        pytest.fail("no header length began with 0x80")
    assert read_tensors(file)[0]
