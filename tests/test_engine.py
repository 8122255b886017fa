"""The engine: what was added is found by text, image or both; bad items are skipped, known ones kept."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genius import Client, Hit, Item, Modality, Query
from genius.confidence import Calibration, ConfidenceWeights
from genius.engine import Engine
from genius.errors import BadImage, BadInput, IndexMismatch
from genius.query.result import SearchResult

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR


@pytest.fixture
def model(fake):
    return fake.FakeModel()


@pytest.fixture
def engine(tmp_path, model):
    with Engine.create(tmp_path / "index", model) as opened:
        yield opened


@pytest.fixture
def pictures(tmp_path, fake) -> Path:
    """A folder with one picture of each colour."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for colour in fake.COLOURS:
        Image.new("RGB", (32, 24), colour).save(folder / f"{colour}.png")
    return folder


def images(folder: Path) -> list[Item]:
    return [Item(file.stem, image=file, meta={"file": file.name}) for file in sorted(folder.glob("*.png"))]


def texts(fake) -> list[Item]:
    return [Item(f"t-{colour}", text=f"something {colour}") for colour in fake.COLOURS]


def pairs(folder: Path) -> list[Item]:
    return [Item(f"p-{f.stem}", image=f, text=f"a {f.stem} thing") for f in sorted(folder.glob("*.png"))]


def test_what_was_added_is_found_by_text_image_and_both(engine, pictures, fake):
    added = engine.add([*images(pictures), *texts(fake), *pairs(pictures)])
    assert (added.added, added.updated, added.unchanged, added.report.skipped) == (30, 0, 0, 0)
    (hit, *_) = hits = engine.search("red", want="image")
    assert hit.id == "red" and hit.rank == 1 and hit.modality == IMAGE and hit.meta == {"file": "red.png"}
    assert hit.path == str(pictures / "red.png") and len(hit.codes) == 5
    assert [h.rank for h in hits] == list(range(1, 11))
    assert all(a.score >= b.score for a, b in itertools.pairwise(hits))
    assert engine.search(pictures / "blue.png", want=TEXT)[0].id == "t-blue"
    assert engine.search(Query(image=pictures / "green.png", text="green"), want="pair")[0].id == "p-green"
    assert engine.search(Query(text="cyan", want=IMAGE))[0].id == "cyan"


@pytest.mark.parametrize("rerank", ["none", "codes", "vectors"])
def test_every_way_to_rerank(engine, pictures, rerank):
    engine.add(images(pictures))
    assert engine.search(pictures / "magenta.png", want="image", rerank=rerank)[0].id == "magenta"


def test_a_large_collection_is_searched_with_a_wider_beam(engine, pictures, monkeypatch):
    before = engine.stats()["search"]["beam"]
    monkeypatch.setattr("genius.query.defaults.MANY_ITEMS", 2)
    engine.add(images(pictures))
    assert engine.stats()["search"]["beam"] == 4 * before
    assert engine._options(engine.model, 3, None, None, None).beam == 4 * before
    assert engine._options(engine.model, 3, None, None, 7).beam == 7  # as it was asked for


def test_the_answer_of_vectors_equals_exact_search(engine, pictures, model, fake):
    engine.add([*images(pictures), *texts(fake)])
    (asked,) = model.phi(model.embed_queries([None], ["orange and blue"], ["x"]))
    found = engine.search("orange and blue", want="text", k=10, hybrid=False)
    stored = model.phi(model.embed_items([None] * 10, [f"something {colour}" for colour in fake.COLOURS]))
    exact = sorted(zip(stored @ asked, fake.COLOURS, strict=True), reverse=True)
    assert [hit.id for hit in found] == [f"t-{colour}" for _, colour in exact]
    np.testing.assert_allclose([hit.score for hit in found], [score for score, _ in exact], atol=2e-3)


def test_any_lets_modalities_compete_fairly(engine, pictures, fake):
    """Raw scores favour texts here: they share the word `something` with the query."""
    engine.add([*images(pictures), *texts(fake)])
    hits = engine.search("something red", want="any", k=4)
    assert {hits[0].id, hits[1].id} == {"red", "t-red"}
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    assert all(a.score >= b.score for a, b in itertools.pairwise(hits))
    assert engine.search("something red", k=4) == hits  # no wish means any


def test_the_only_text_of_a_pool_can_stand_out(engine, pictures):
    engine.add([*images(pictures), Item("note", text="red ribbon")])
    assert {hit.id for hit in engine.search("red ribbon", k=2)} == {"red", "note"}
    assert "note" not in [hit.id for hit in engine.search("blue", k=3)]


def test_any_without_vectors_is_fair_by_codes(tmp_path, model, pictures, fake):
    with Engine.create(tmp_path / "small", model, vectors=False) as engine:
        engine.add([*images(pictures), *texts(fake)])
        top = {hit.id for hit in engine.search("something red", k=4)}
        assert {"red", "t-red"} <= top
        with pytest.raises(BadInput, match="no vectors"):
            engine.search("red", want="image", rerank="vectors")
        assert engine.stats()["bytes"]["vectors"] == 0


def test_a_free_instruction_searches_everything_at_once(engine, pictures, fake):
    engine.add([*images(pictures), *texts(fake)])
    found = {hit.id for hit in engine.search("red", want="Find whatever is like this.", k=2)}
    assert found == {"red", "t-red"}
    own = engine.search(Query(text="red", want=IMAGE, instruction="Find a picture."), k=1)
    assert own[0].id == "red"


def test_an_unknown_wish_is_refused(engine):
    with pytest.raises(BadInput, match="image, text, pair, any, or a sentence"):
        engine.search("red", want="video")


def test_images_and_texts_for_texts_ask_without_a_sentence_others_with_one(engine, model, pictures, fake):
    engine.add([*images(pictures), *texts(fake)])

    def asked(query, **how):
        engine.search(query, **how)
        return model.instructions

    blue = pictures / "blue.png"
    assert asked(blue) == ["", ""] and asked(blue, want="text") == [""]  # one query for each modality
    assert asked("blue", want="text") == [""]
    assert all(asked("blue", want="image")) and all(asked(Query(image=blue, text="but green")))
    assert sorted(map(bool, asked("blue"))) == [False, True]
    assert asked(blue, instruction="Find its name.") == ["Find its name."]
    assert asked(blue, want="any", instruction="Find its name.") == ["Find its name."]
    assert asked(Query(image=blue, instruction="Find it."), want="any") == ["Find it."]
    assert asked("blue", instruction="") == ["", ""] == asked(Query(text="blue", instruction=""))
    engine.like("blue", want="image", instruction="Find its twin.")
    assert model.instructions == ["Find its twin."]
    with pytest.raises(BadInput, match="two instructions"):
        engine.search("blue", want="Find this.", instruction="Find that.")


@pytest.fixture
def calibrated(engine, model, pictures, fake):
    """An engine whose model is as sure as an item is similar: 0.5 at a similarity of 0.8."""
    weights = ConfidenceWeights(-16.0, 20.0, 0.0)
    model.calibrations = {"vectors": Calibration({}, weights), "codes": Calibration({}, weights)}
    engine.add([*images(pictures), *texts(fake)])
    return engine


def test_confidence_is_one_scale_for_all_modalities(calibrated):
    for want in ("any", "image", "text", "Find whatever is like this."):
        hits = calibrated.search("something red", want=want, hybrid=False)
        sure = [hit.confidence for hit in hits]
        assert sure == sorted(sure, reverse=True) and 0 < sure[-1] < 0.5 < sure[0] < 1
        expected = [1 / (1 + np.exp(16 - 20 * hit.score)) for hit in hits]
        assert np.allclose(sure, expected, atol=2e-3)  # the score is the similarity, in `any` as well
    uncertain = calibrated.search("something red", rerank="none")[0]
    assert 0.5 < uncertain.confidence < 1


def test_only_sure_answers_or_the_nearest(calibrated):
    every = calibrated.search("something red", want="image")
    some = calibrated.search("something red", want="image", at_least=0.5)
    assert some and some == [hit for hit in every if hit.confidence >= 0.5] and len(some) < len(every)
    (result,) = calibrated.results(["xyzzy"], want="image", at_least=0.99)
    assert result.hits == [] and len(result.nearest) == 10
    like = calibrated.like_result("red", k=9, want="image", at_least=0.9999)
    assert like.hits == [] and "red" not in {hit.id for hit in like.nearest}


def test_a_threshold_is_no_percentage(calibrated):
    with pytest.raises(BadInput, match="from 0 to 1"):
        calibrated.search("something red", at_least=30)


def test_a_later_page_has_no_nearest(calibrated):
    """What was sure came before it, so it is not true that nothing close was found."""
    (last,) = calibrated.results(["something red"], k=3, want="image", offset=3, at_least=0.99)
    assert last.hits == [] and last.nearest == () and last.cursor is None


def test_pages_of_sure_hits_go_on_where_words_count_in_the_order():
    """A hit that has some of the words ranks higher than it is sure: those behind it may be surer."""

    def result(*sure):
        hits = [Hit(str(n), 0.5, n, Modality.TEXT, (), confidence=one) for n, one in enumerate(sure, start=1)]
        return SearchResult(hits, 1, 1, 1, 1, cursor="next").at_least(0.3)

    assert [hit.rank for hit in result(0.9, 0.1, 0.5).hits] == [1, 3]
    assert result(0.9, 0.1, 0.5).cursor == result(0.9, 0.5).cursor == "next"
    assert result(0.9, 0.5, 0.1).cursor is None and result(0.2, 0.1, 0.25).cursor is None


def test_without_a_calibration_there_is_no_confidence(engine, pictures):
    engine.add(images(pictures))
    assert {hit.confidence for hit in engine.search("red")} == {None}
    with pytest.raises(BadInput, match="genius calibrate"):
        engine.search("red", at_least=0.3)


def test_words_that_must_be_there(engine):
    texts = {"a/Oak-17.txt": "a red chair", "b": "a RED sofa, it's new", "c": "blue"}
    engine.add([Item(id, text=text, meta={"n": len(id)}) for id, text in texts.items()])

    def found(words, **options):
        return {hit.id for hit in engine.search("red", match=words, **options)}

    assert found("red") == {"a/Oak-17.txt", "b"} and found("red sofa") == {"b"} == found("it's")
    assert found("oak-17") == {"a/Oak-17.txt"} and found('"chair red"') == set() != found("chair red")
    assert found("red", where="n = 1 or n = 2") == {"b"}
    assert {hit.id for hit in engine.like("c", match="red")} == {"a/Oak-17.txt", "b"}
    for wrong in ("", " ", '"red'):
        with pytest.raises(BadInput, match="leave"):
            engine.search("red", match=wrong)


def test_a_batch_gives_what_single_searches_give(engine, pictures, fake):
    engine.add([*images(pictures), *texts(fake)])
    queries = ["red", pictures / "blue.png", Query(text="green", want=TEXT)]
    single = [engine.search(query, k=3) for query in queries]
    batch = engine.search_batch(queries, k=3)
    assert [[hit.id for hit in hits] for hits in batch] == [[hit.id for hit in hits] for hits in single]
    assert engine.search_batch([]) == []


def test_reopening_loads_the_model_only_when_it_is_needed(tmp_path, model, pictures, monkeypatch):
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add(images(pictures))
        expected = engine.search("red", want="image")
    loaded = []
    monkeypatch.setattr("genius.engine.opening.load_model", lambda name, device: loaded.append(name) or model)
    with Engine.open(tmp_path / "index") as engine:
        assert engine.stats()["items"] == 10 and engine.remove(["blue"]) == 1
        assert loaded == []
        assert [h.id for h in engine.search("red", want="image")] == [
            h.id for h in expected if h.id != "blue"
        ]
        assert loaded == ["fake"]


def test_another_model_is_refused(tmp_path, fake):
    Engine.create(tmp_path / "index", fake.FakeModel(seed=1)).close()
    with pytest.raises(IndexMismatch, match="genius index PATH --to NEW_FOLDER --model fake"):
        Engine.open(tmp_path / "index", model=fake.FakeModel(seed=2))


def test_delta_generation_and_removal_answer_as_one_pool(engine, pictures, fake):
    engine.add(images(pictures)[:5])
    engine.compact()
    engine.add(images(pictures)[5:])
    before = [hit.id for hit in engine.search("red", want="image")]
    engine.remove(["red"])
    assert [hit.id for hit in engine.search("red", want="image")] == before[1:]
    engine.compact()
    assert [hit.id for hit in engine.search("red", want="image")] == before[1:]
    engine.add(images(pictures))
    assert [hit.id for hit in engine.search("red", want="image")] == before


def test_an_interrupted_run_goes_on_where_it_was(engine, pictures, model):
    """Old files are known by their stamp: they are not even opened; fresh ones by their hash."""
    old = time.time() - 3600
    for file in pictures.glob("*.png"):
        os.utime(file, (old, old))

    def until_killed():
        yield from images(pictures)[:6]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.add(until_killed())
    assert engine.stats()["items"] == 0  # the batch in flight is dropped
    engine.add(images(pictures)[:6])
    assert model.encoded == 6
    again = engine.add(images(pictures))
    assert (again.added, again.unchanged) == (4, 6)
    assert model.encoded == 10


def settle(engine, monkeypatch):
    """Make the engine believe that files were read long after they were last touched."""
    monkeypatch.setattr("genius.store.records.SETTLED_NS", -(10**18))


def test_unchanged_files_are_not_opened_again(engine, pictures, model, monkeypatch):
    settle(engine, monkeypatch)
    engine.add(images(pictures))
    monkeypatch.setattr("genius.ingest.item.open_image", lambda *a, **k: pytest.fail("was opened"))
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("was read"))
    assert engine.add(images(pictures)).unchanged == 10


def test_metadata_and_place_change_without_encoding(engine, pictures, model, tmp_path):
    engine.add(images(pictures))
    moved = pictures.rename(tmp_path / "elsewhere")
    changed = [Item(file.stem, image=file, meta={"new": True}) for file in moved.glob("*.png")]
    result = engine.add(changed)
    assert (result.updated, model.encoded) == (10, 10)
    hit = engine.search("red", want="image", k=1)[0]
    assert (hit.meta, hit.path) == ({"new": True}, str(moved / "red.png"))


def test_a_changed_modality_or_text_is_encoded_again(engine, pictures, model):
    engine.add([Item("x", text="red")])
    engine.add([Item("x", image=pictures / "blue.png")])
    assert engine.search("blue", want="image", k=1)[0].id == "x"
    assert engine.search("red", want="text") == []
    engine.add([Item("x", image=pictures / "blue.png", text="sky")])
    assert engine.stats()["modalities"] == {"image": 0, "text": 0, "pair": 1}
    assert model.encoded == 3


def test_images_as_bytes_and_objects_keep_a_thumbnail(engine, pictures):
    data = (pictures / "red.png").read_bytes()
    engine.add([Item("bytes", image=data), Item("object", image=Image.new("RGB", (900, 300), "blue"))])
    engine.add([Item("file", image=pictures / "green.png")])
    assert engine.add([Item("bytes", image=data)]).unchanged == 1
    for id, colour in (("bytes", (254, 0, 0)), ("object", (0, 0, 254)), ("file", (0, 128, 1))):
        small = engine.thumbnail(id)
        assert small is not None and small.startswith(b"\xff\xd8")
        with Image.open(__import__("io").BytesIO(small)) as opened:
            assert max(opened.size) <= 256
            np.testing.assert_allclose(opened.getpixel((3, 3)), colour, atol=6)
    assert engine.thumbnail("nobody") is None


def test_a_picture_that_went_has_no_thumbnail(engine, pictures):
    engine.add(images(pictures))
    (pictures / "red.png").unlink()
    assert engine.thumbnail("red") is None
    with pytest.raises(BadImage, match="no such file"):
        engine.like("red")


def test_bad_items_cost_only_themselves(engine, pictures, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    items = [
        Item("broken", image=broken),
        Item("missing", image=tmp_path / "nowhere.png"),
        Item("empty", text="   "),
        Item("", text="no id"),
        Item("bad\nid", text="line break"),
        Item("meta", text="red", meta={"x": object()}),
        Item("good", image=pictures / "red.png"),
    ]
    result = engine.add(items)
    assert (result.added, result.report.skipped) == (1, 6)
    assert all(reason for _, reason in result.report.names)
    assert engine.search("red", want="image")[0].id == "good"


def test_a_batch_that_fails_is_tried_one_by_one(engine, model, monkeypatch):
    embed = model.embed_items

    def picky(images, texts):
        if "poison" in texts:
            raise RuntimeError("cannot encode poison")
        return embed(images, texts)

    monkeypatch.setattr(model, "embed_items", picky)
    result = engine.add([Item("a", text="red"), Item("b", text="poison"), Item("c", text="blue")])
    assert (result.added, result.report.skipped) == (2, 1)
    assert result.report.names[0].name == "b" and "poison" in result.report.names[0].reason


def test_an_index_is_opened_or_made(tmp_path, model, fake):
    """The same lines run twice."""
    for added in (1, 0):
        with Engine.open_or_create(tmp_path / "index", model) as engine:
            assert engine.add([Item("red", text="red")]).added == added
    with pytest.raises(BadInput, match="with vectors"):
        Engine.open_or_create(tmp_path / "index", model, vectors=False)
    with pytest.raises(IndexMismatch):
        Engine.open_or_create(tmp_path / "index", fake.FakeModel(seed=2))
    with Engine.open_or_create(tmp_path / "small", model, vectors=False) as engine:
        assert engine.stats()["vectors"] is False


def test_what_is_like_a_stored_item_leaves_it_out(engine, pictures, fake):
    engine.add([*images(pictures), *texts(fake), *pairs(pictures)])
    found = engine.like("red", k=3, want="image")
    assert "red" not in [hit.id for hit in found] and [hit.rank for hit in found] == [1, 2, 3]
    assert len(engine.like("red", k=30, want="image")) == 9
    assert engine.like("t-red", k=1, want="image")[0].id == "red"  # of another kind
    assert "t-red" in [hit.id for hit in engine.like("white", but="red red red", k=3, want="text")]
    with pytest.raises(BadInput, match="no item is called 'nobody'"):
        engine.like("nobody")


def test_one_id_is_removed_as_a_whole(engine):
    engine.add([Item(id, text="red") for id in ("sofa", "s", "o", "f", "a")])
    assert engine.remove("sofa") == 1
    assert engine.stats()["items"] == 4
    assert engine.remove(id for id in ("s", "o", "nobody")) == 2
    assert engine.remove(["\ud800", 5, "f"]) == 1  # the first two are ids of nothing
    assert engine.get("\ud800") is None and engine.thumbnail("\ud800") is None


def test_one_and_several_are_told_apart(engine):
    engine.add([Item("red", text="red")])
    with pytest.raises(BadInput, match="search_batch"):
        engine.search(["red", "blue"])
    with pytest.raises(BadInput, match=r"search\(query\)"):
        engine.search_batch("red")
    with pytest.raises(BadInput, match=r"add\(\[item\]\)"):
        engine.add(Item("blue", text="blue"))
    with pytest.raises(BadInput, match=r"Query\(image="):
        engine.search(b"bytes")


def test_a_bad_query_is_refused(engine, tmp_path):
    with pytest.raises(BadInput, match="neither image nor text"):
        engine.search("  ")
    with pytest.raises(BadImage, match="no such file"):
        engine.search(tmp_path / "nowhere.png")
    with pytest.raises(BadInput, match="k 0"):
        engine.search("red", k=0)


def test_pruning_takes_out_what_its_source_no_longer_has(engine, pictures, fake):
    engine.add(images(pictures), source=str(pictures))
    engine.add(texts(fake), source="elsewhere")
    keep = {item.id for item in images(pictures)} - {"red", "blue"}
    assert engine.prune(str(pictures), keep) == 2
    assert engine.stats()["items"] == 18


def test_a_damaged_cache_is_mended_while_searching(engine, pictures):
    engine.add(images(pictures))
    engine.compact()
    expected = [hit.id for hit in engine.search("red", want="image")]
    file = engine.index.folder / "generation-000001" / "vectors.bin"
    data = bytearray(file.read_bytes())
    data[10] ^= 1
    file.write_bytes(data)
    engine.close()
    with Engine.open(engine.index.folder, model=engine.model) as reopened:
        assert [hit.id for hit in reopened.search("red", want="image")] == expected
        assert reopened.stats()["generation"] == 2


def test_level_zero_may_be_something_else_than_the_modality(tmp_path, fake, pictures):
    model = fake.FakeModel()
    model.modality_codes = {}
    model.codes = lambda parts, modalities: np.zeros((len(modalities), 5), np.uint16)
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add([*images(pictures), *texts(fake)])
        engine.compact()
        engine.remove(["green"])
        assert {hit.modality for hit in engine.search("red", want="text")} == {TEXT}
        assert len(engine.search("red", want="image", k=20)) == 9
        assert {hits.id for hits in engine.search("something red", k=2)} == {"red", "t-red"}


def test_the_decoder_generates_the_same_pool(tmp_path, fake, pictures):
    """With few items every one is reached, so generating finds what there is; vectors then rank it."""
    torch = pytest.importorskip("torch")
    from genius.decode.model import Decoder
    from genius.decode.shape import DecoderShape

    torch.manual_seed(0)
    model = fake.FakeModel()
    shape = DecoderShape(48, fake.SIZES, layers=1, width=16, heads=2, head_width=8, feed_forward=16, prefix=2)
    model.decoder = Decoder(shape).eval().requires_grad_(False)
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add(images(pictures))
        engine.compact()
        engine.add(texts(fake))
        for way in ("generate", "both"):
            assert engine.search("red", want="image", search=way)[0].id == "red"
            assert len(engine.search("red", want="image", search=way, rerank="none", k=50)) == 10


def test_a_real_model_with_random_weights(tmp_path, fake, pictures):
    """The same engine on the project's own quantizer and decoder; a query's image is encoded once."""
    torch = pytest.importorskip("torch")
    from genius.decode.model import Decoder
    from genius.decode.shape import DecoderShape
    from genius.model import Model
    from genius.quantize.model import Quantizer

    class Colours:
        dim, fingerprint, seen = 48, "colours", 0

        def encode_images(self, images):
            self.seen += len(images)
            return fake.FakeModel().embed_items(images, [None] * len(images)).image

        def encode_texts(self, texts):
            return fake.FakeModel().embed_items([None] * len(texts), texts).text

    torch.manual_seed(0)
    sizes = (3, 32, 32, 32)
    quantizer = Quantizer(48, sizes, fusion="sum").eval().requires_grad_(False)
    quantizer.residual.vectors.normal_(std=48**-0.5)
    shape = DecoderShape(48, sizes, layers=1, width=16, heads=2, head_width=8, feed_forward=16, prefix=2)
    encoder = Colours()
    model = Model("real", "f" * 16, encoder, quantizer, Decoder(shape).eval(), {"method": "both", "beam": 20})
    with Engine.create(tmp_path / "index", model) as engine:
        engine.add([*images(pictures), *texts(fake), *pairs(pictures)])
        search = {"method": "both", "beam": 20, "rerank": "vectors", "chosen_on": "val"}
        assert engine.stats()["search"] == search
        assert engine.search(pictures / "blue.png", want="image", k=1)[0].id == "blue"
        before = encoder.seen
        hits = engine.search(pictures / "red.png", k=6)
        assert encoder.seen == before + 1
        assert "red" in [hit.id for hit in hits] and {hit.modality for hit in hits} == {IMAGE, TEXT, PAIR}
    with Engine.open(tmp_path / "index", model=model) as engine:
        assert [hit.id for hit in engine.search(pictures / "red.png", k=6)] == [hit.id for hit in hits]


def test_searching_goes_on_while_items_come_and_go(engine, pictures, fake):
    """Answers stay whole: never short, never twice the same item."""
    engine.add(images(pictures))
    red = (pictures / "red.png").read_bytes()
    engine.remove(["red"])
    stop = threading.Event()
    errors: list[BaseException] = []

    def change():
        try:
            for number in range(15):
                engine.add(
                    [Item(f"v{number % 3}", image=red, meta={"n": number}), Item(f"t{number}", text="red")]
                )
                engine.remove([f"v{(number + 1) % 3}"])
                if number % 5 == 0:
                    engine.compact()
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()

    def ask():
        try:
            while not stop.is_set():
                hits = engine.search("red", want="image", k=5)
                assert len(hits) == 5 and len({hit.id for hit in hits}) == 5
                assert hits[0].id.startswith("v") or hits[0].id == "orange"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for work in (change, ask, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_closed_engine_says_so(engine, pictures):
    engine.add(images(pictures))
    engine.close()
    engine.close()
    uses = (
        lambda: engine.search("red"),
        lambda: len(engine),
        lambda: engine.add([Item("a", text="a")]),
        lambda: engine.remove("red"),
    )
    for use in uses:
        with pytest.raises(BadInput, match="was closed: open it again"):
            use()


@pytest.mark.parametrize("files", ["pictures", Path("pictures"), b"pictures"])
def test_files_are_not_added_letter_by_letter(engine, files):
    for method in (engine.add, engine.update, Client().add, Client().update):
        with pytest.raises(BadInput, match="add_from reads files"):
            method(files)


def test_a_reason_does_not_name_the_file_twice(engine, tmp_path):
    (tmp_path / "empty.png").touch()
    ((name, reason),) = engine.add_from(tmp_path / "empty.png").skipped
    assert (name, reason) == ("empty.png", "the file is empty")
