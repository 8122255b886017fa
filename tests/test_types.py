"""Items, queries, hits and modalities."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import genius
from genius import Hit, Item, Modality, Query
from genius.errors import BadInput, GeniusError


@pytest.mark.parametrize(
    ("name", "modality"),
    [
        ("image", Modality.IMAGE),
        (" Text ", Modality.TEXT),
        ("pair", Modality.PAIR),
        ("image,text", Modality.PAIR),
        ("text, image", Modality.PAIR),
    ],
)
def test_modalities_by_name(name: str, modality: Modality) -> None:
    assert Modality.parse(name) is modality


@pytest.mark.parametrize("name", ["", "sound", "image,sound", "image,text,sound", ","])
def test_an_unknown_modality_says_which_there_are(name: str) -> None:
    with pytest.raises(BadInput, match="use image, text or pair"):
        Modality.parse(name)


def test_the_order_of_the_modality_codes() -> None:
    assert [modality.value for modality in Modality] == ["image", "text", "pair"]


@pytest.mark.parametrize("kind", [Item, Query])
def test_the_modality_follows_the_parts(kind: type[Item] | type[Query]) -> None:
    extra = {"id": "a"}
    assert kind(**extra, text="t").modality is Modality.TEXT
    assert kind(**extra, image=Path("x.jpg")).modality is Modality.IMAGE
    assert kind(**extra, image=b"...", text="t").modality is Modality.PAIR
    assert kind(**extra, image=b"...", text="").modality is Modality.IMAGE
    with pytest.raises(BadInput, match="give at least one"):
        _ = kind(**extra, text="").modality


def test_a_query_from_a_string_or_a_path() -> None:
    assert Query.of("a red shoe") == Query(text="a red shoe")
    assert Query.of(Path("shoe.jpg")) == Query(image=Path("shoe.jpg"))
    query = Query(text="t", want=Modality.PAIR)
    assert Query.of(query) is query


def test_values_cannot_be_changed() -> None:
    for value in (Item("a", text="t"), Query("t"), Hit("a", 1.0, 1, Modality.TEXT)):
        with pytest.raises(FrozenInstanceError):
            value.text = "other"  # type: ignore[misc]


def test_every_error_has_a_line_for_people_and_its_own_way_out() -> None:
    errors = [GeniusError, *GeniusError.__subclasses__()]
    assert all(error.__doc__ for error in errors)
    codes = [error.exit_code for error in errors]
    assert all(0 < code < 126 for code in codes)  # above are the shell's own


def test_the_package_names_what_it_offers() -> None:
    assert genius.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = genius.nothing
