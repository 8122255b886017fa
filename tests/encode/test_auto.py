"""Any encoder by folder or hub name; the hub's client is replaced, nothing is fetched."""

import fnmatch
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from genius import Engine, Item, Query
from genius.encode.auto import identify, load
from genius.encode.base import Encoder, load_encoder
from genius.encode.blip import BlipEncoder
from genius.encode.dual import DualEncoder
from genius.errors import ModelMismatch, ModelNotFound

NAME, COMMIT = "openai/clip-tiny", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def clip(clip_folder: Path, tmp_path: Path) -> Path:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    size = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    folder = Path(shutil.copytree(clip_folder, tmp_path / "clip"))
    CLIPImageProcessorPil(**size).save_pretrained(folder)
    return folder


class Hub:
    """The hub's client: copies what is asked for out of a folder into a cache with one folder per commit."""

    def __init__(self, files: Path, cache: Path) -> None:
        self.files, self.cache = files, cache
        self.asked: list[tuple[str | None, bool]] = []  # revision, whether the cache alone was asked
        self.online = True
        self.looks = True  # whether it notices files that are missing in the cache; older clients do not

    def snapshot_download(
        self, name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        assert name == NAME
        self.asked.append((revision, local_files_only))
        folder = self.cache / COMMIT
        for file in self.files.iterdir():
            wanted = any(fnmatch.fnmatch(file.name, pattern) for pattern in allow_patterns)
            if wanted and not (folder / file.name).is_file():
                if local_files_only and not self.looks:
                    continue
                if local_files_only:
                    raise FileNotFoundError("not in the cache")
                if not self.online:
                    raise ConnectionError("no route to the hub\nmany more lines")
                folder.mkdir(exist_ok=True, parents=True)
                shutil.copy(file, folder)
        return str(folder)


@pytest.fixture
def make_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Hub]:
    import huggingface_hub

    def make(files: Path) -> Hub:
        hub = Hub(files, tmp_path / "cache")
        monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
        return hub

    return make


def test_the_kind_is_read_from_the_folder(
    clip: Path, blip_folder: Path, photos: list[Image.Image], tmp_path: Path
) -> None:
    encoder = load_encoder("auto", clip)
    assert isinstance(encoder, DualEncoder)
    assert encoder.source == str(clip.resolve())
    assert encoder.encode_images(photos).shape == (5, 24)
    assert isinstance(load(blip_folder), BlipEncoder)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "modules.json").write_text("[]")
    assert identify(tmp_path / "text") == ("sentence-transformers", str((tmp_path / "text").resolve()))


def test_a_hub_name_is_pinned_to_its_commit(
    clip: Path, make_hub: Callable[[Path], Hub], photos: list[Image.Image]
) -> None:
    (clip / "pytorch_model.bin").write_bytes(b"a pickle")
    (clip / "open_clip_model.safetensors").write_bytes(b"the same weights in another layout")
    hub = make_hub(clip)
    assert identify(NAME) == ("transformers", f"{NAME}@{COMMIT}")
    assert not list(hub.cache.rglob("*.safetensors"))  # what it is was found out first
    encoder = load(NAME)
    assert isinstance(encoder, DualEncoder)
    assert encoder.source == f"{NAME}@{COMMIT}"
    fetched = {file.name for file in (hub.cache / COMMIT).iterdir()}
    assert "model.safetensors" in fetched
    assert not fetched & {"pytorch_model.bin", "open_clip_model.safetensors"}

    hub.online, hub.asked = False, []
    again = load(encoder.source)  # the commit is in the cache: no network
    assert isinstance(again, Encoder)
    assert again.fingerprint == encoder.fingerprint == load(clip).fingerprint
    assert np.array_equal(again.encode_images(photos), encoder.encode_images(photos))
    assert {local for _, local in hub.asked} == {True}


def test_weights_that_the_cache_lacks_are_fetched(clip: Path, make_hub: Callable[[Path], Hub]) -> None:
    """Older clients give a folder out of the cache even if it has only the configs."""
    from transformers import CLIPModel

    hub = make_hub(clip)
    hub.looks = False
    assert isinstance(load(NAME), DualEncoder)
    shutil.rmtree(hub.cache)
    model = CLIPModel.from_pretrained(clip)
    (clip / "model.safetensors").unlink()
    model.save_pretrained(clip, max_shard_size="300KB")
    pinned = identify(NAME)[1]
    assert isinstance(load(pinned), DualEncoder)
    sorted((hub.cache / COMMIT).glob("model-*.safetensors"))[0].unlink()
    assert isinstance(load(pinned), DualEncoder)


def test_a_branch_or_tag_is_asked_for(clip: Path, make_hub: Callable[[Path], Hub]) -> None:
    hub = make_hub(clip)
    load(f"{NAME}@v1.0")
    assert hub.asked[0] == ("v1.0", False)
    assert {revision for revision, _ in hub.asked[1:]} == {COMMIT}  # all files are of one commit


def test_without_network_it_says_what_to_put_where(clip: Path, make_hub: Callable[[Path], Hub]) -> None:
    make_hub(clip).online = False
    with pytest.raises(ModelNotFound) as caught:
        load(NAME)
    message = str(caught.value)
    for part in (
        "no route to the hub)",
        "put config.json, model.safetensors, preprocessor_config.json, tokenizer.json and",
        "into a folder clip-tiny and give its path",
        f"`hf download {NAME} --local-dir clip-tiny --include",
    ):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("family", ["clip", "blip"])
def test_pickled_weights_are_not_fetched_but_can_be_converted(
    family: str, clip: Path, blip_folder: Path, tmp_path: Path, make_hub: Callable[[Path], Hub]
) -> None:
    folder = clip if family == "clip" else Path(shutil.copytree(blip_folder, tmp_path / "blip"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    hub = make_hub(folder)
    with pytest.raises(
        ModelNotFound, match=r"hf download openai/clip-tiny .*`genius convert weights clip-tiny/"
    ):
        load(NAME)
    assert not list(hub.cache.rglob("*.bin"))


def test_models_of_no_use_are_refused_before_their_weights_are_fetched(
    clip: Path, make_hub: Callable[[Path], Hub]
) -> None:
    from transformers import BertConfig

    BertConfig().save_pretrained(clip)
    hub = make_hub(clip)
    with pytest.raises(ModelMismatch, match="'bert' model, which is no dual encoder"):
        load(NAME)
    assert not list(hub.cache.rglob("*.safetensors"))


def test_sources_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases: list[tuple[Any, str]] = [
        (None, "needs a source: a folder, or a hub name such as"),
        ("/no/such/folder", "no folder /no/such/folder"),
        (tmp_path / "file", "is a file"),
        (tmp_path, r"no config\.json"),
    ]
    for source, message in cases:
        with pytest.raises(ModelNotFound, match=message):
            load(source)
    (tmp_path / "open_clip_config.json").write_text(json.dumps({}))
    with pytest.raises(ModelNotFound, match="open_clip's own layout"):
        load(tmp_path)


def retrained(folder: Path) -> None:
    """The weights of the folder become others, of the same shapes."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: 1.01 * tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def test_an_index_refuses_an_encoder_whose_files_have_changed(
    clip: Path, tmp_path: Path, make_hub: Callable[[Path], Hub], photos: list[Image.Image]
) -> None:
    """Fault 53: a folder, and a commit of the hub in the cache; a branch that moves on changes nothing."""
    hub = make_hub(Path(shutil.copytree(clip, tmp_path / "hub")))
    for name, source in (("folder", clip), ("hub", NAME)):
        with Engine.create(tmp_path / name, encoder=source) as engine:
            engine.add([Item("dog", image=photos[0])])
    hub.online = False
    retrained(hub.files)  # a new commit: the index has the old one
    with Engine.open(tmp_path / "hub") as engine:
        assert engine.search(Query(image=photos[0]))[0].id == "dog"
    for name, place in (("folder", clip), ("hub", hub.cache / COMMIT)):
        retrained(place)
        with Engine.open(tmp_path / name) as engine:
            assert engine.stats()["items"] == 1
            for use in (lambda: engine.search("a dog"), lambda: engine.add([Item("cat", text="a cat")])):
                with pytest.raises(ModelMismatch, match=r"files have changed.*--encoder"):
                    use()


def test_an_encoder_that_has_moved_may_be_linked(
    clip: Path, tmp_path: Path, photos: list[Image.Image]
) -> None:
    with Engine.create(tmp_path / "index", encoder=clip) as engine:
        engine.add([Item("dog", image=photos[0])])
    clip.rename(tmp_path / "elsewhere")
    with Engine.open(tmp_path / "index") as engine:
        with pytest.raises(ModelNotFound, match=r"clip any more: put its folder there again, or a link"):
            engine.search("a dog")
        clip.symlink_to(tmp_path / "elsewhere")
        assert engine.search(Query(image=photos[0]))[0].id == "dog"
