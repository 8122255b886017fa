"""Recipes: checked, frozen, overridable; fault 24: a wrong key or type is named with what was expected."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from genius.config import load_recipe
from genius.data.base import DATASETS
from genius.errors import BadRecipe

RECIPE = """
name = "small"
seed = 3
[data]
root = "data"
datasets = ["flickr8k", "cub"]
[quantizer]
levels = 5
[decoder_training.optimiser]
steps = 100
batch = 8
rate = 1e-4
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(RECIPE)
    return file


def changed(recipe: Path, old: str, new: str) -> Path:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    return recipe


def test_a_recipe_with_its_defaults(recipe: Path) -> None:
    loaded = load_recipe(recipe)
    assert (loaded.name, loaded.seed, loaded.data.datasets) == ("small", 3, ("flickr8k", "cub"))
    assert (loaded.quantizer.levels, loaded.quantizer.codes) == (5, 4096)
    assert loaded.decoder_training is not None
    assert loaded.decoder_training.optimiser.rate == 1e-4
    assert loaded.encoder_training is None  # this stage is not trained


def test_a_recipe_cannot_be_changed(recipe: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_recipe(recipe).seed = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("old", "new", "key", "expected"),
    [
        ("seed = 3", "sede = 3", "sede", "unknown key"),
        ("levels = 5", "level = 5", "quantizer.level", "unknown key"),
        ("rate = 1e-4", "speed = 1e-4", "decoder_training.optimiser.speed", "unknown key"),
        ("seed = 3", 'seed = "3"', "seed", "valid integer, got '3'"),
        ("seed = 3", "seed = 3.5", "seed", "valid integer"),
        ("levels = 5", "levels = true", "quantizer.levels", "valid integer"),
        ("levels = 5", "levels = 0", "quantizer.levels", "greater than or equal to 1, got 0"),
        ("rate = 1e-4", 'rate = "1e-4"', "decoder_training.optimiser.rate", "valid number"),
        ("batch = 8", "", "decoder_training.optimiser.batch", "missing"),
        ('root = "data"', "", "data.root", "missing"),
        (
            'root = "data"',
            'root = "data"\nformat = "coco"',
            "data.format",
            "choose one of beir, karpathy, mbeir, got 'coco'",
        ),
        ("[quantizer]\nlevels = 5", "quantizer = 5", "quantizer", "got 5"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_expected(
    recipe: Path, old: str, new: str, key: str, expected: str
) -> None:
    if new == "quantizer = 5":  # a value must stand before the tables
        recipe.write_text(new + RECIPE.replace(old, ""))
    else:
        changed(recipe, old, new)
    with pytest.raises(BadRecipe) as caught:
        load_recipe(recipe)
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith(f"  {key}: ")]
    assert expected in line
    assert str(recipe) in str(caught.value)


def test_a_dataset_format_needs_no_more_than_its_line_in_the_registry(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(recipe, 'root = "data"', 'root = "data"\nformat = "mine"')
    monkeypatch.setitem(DATASETS, "mine", "somewhere:Mine")
    assert load_recipe(recipe).data.format == "mine"


def test_all_wrong_keys_are_named_at_once(recipe: Path) -> None:
    changed(recipe, "seed = 3", "sede = 3")
    changed(recipe, "levels = 5", 'levels = "five"')
    with pytest.raises(BadRecipe, match="2 wrong key") as caught:
        load_recipe(recipe)
    assert "sede" in str(caught.value)
    assert "quantizer.levels" in str(caught.value)


def test_no_recipe_and_no_toml(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match=r"no recipe at .*absent\.toml"):
        load_recipe(tmp_path / "absent.toml")
    for data in (b"name = ", b"\xff\xfe", b"a = 1\na = 2"):
        (tmp_path / "bad.toml").write_bytes(data)
        with pytest.raises(BadRecipe, match=r"bad\.toml is not TOML"):
            load_recipe(tmp_path / "bad.toml")


def test_set_overrides_values_of_every_type(recipe: Path) -> None:
    loaded = load_recipe(
        recipe,
        [
            "seed=9",
            "name=another one",
            'device = "cpu"',
            "quantizer.shared_codebooks=true",
            'data.datasets=["ikea"]',
            "decoder_training.optimiser.rate=2e-5",
            "encoder.source=folder/with.dots",
            "quantizer_training.optimiser.steps=7",  # a table that the file does not have
            "quantizer_training.optimiser.batch=2",
        ],
    )
    assert (loaded.seed, loaded.name, loaded.device) == (9, "another one", "cpu")
    assert loaded.quantizer.shared_codebooks is True
    assert loaded.quantizer.levels == 5
    assert loaded.data.datasets == ("ikea",)
    assert loaded.decoder_training is not None
    assert loaded.decoder_training.optimiser.rate == 2e-5
    assert loaded.encoder.source == "folder/with.dots"
    assert loaded.quantizer_training is not None
    assert loaded.quantizer_training.optimiser.steps == 7


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=3", ".a=3", "a.=3", ""])
def test_a_badly_written_override_says_how_to_write_it(recipe: Path, override: str) -> None:
    with pytest.raises(BadRecipe, match=r"write it as a\.b=value"):
        load_recipe(recipe, [override])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("sede=3", "sede: unknown key"),
        ("quantizer.levels=many", "quantizer.levels: Input should be a valid integer, got 'many'"),
        ("seed.deep=3", "seed is a value, not a table"),
    ],
)
def test_a_wrong_override_is_named(recipe: Path, override: str, expected: str) -> None:
    with pytest.raises(BadRecipe, match=expected):
        load_recipe(recipe, [override])


SHIPPED = sorted((Path(__file__).resolve().parents[1] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("file", SHIPPED, ids=[file.name for file in SHIPPED])
def test_every_shipped_recipe_is_right(file: Path) -> None:
    assert load_recipe(file).name


def test_a_shipped_recipe_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("mini", ["data.root=x"]).name == "mini"
    with pytest.raises(BadRecipe, match=r"give a file, or one of .*bench.*mini"):
        load_recipe("nothing")
    with pytest.raises(BadRecipe, match=r"no recipe at nothing\.toml"):
        load_recipe("nothing.toml")
