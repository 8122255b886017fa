"""The sdist builds a wheel that installs into an empty environment, searches, and has types for its users.

The packages that genius needs are taken from the running environment, which saves downloading torch; with
GENIUS_TEST_INSTALL=1 they are installed from the index, within constraints.txt.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("hatchling", reason="building needs the extra `dev`")
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
MODEL = (
    "model.toml",
    "encoder.safetensors",
    "quantizer.safetensors",
    "decoder.safetensors",
    "tokenizer.json",
)
USER = """\
from genius import Client, Engine, Hit, Item, Modality, Query


def best(folder: str) -> str | None:
    with Engine.open(folder) as engine:
        engine.add([Item("a", text="a red apple")])
        hits: list[Hit] = engine.search(Query(text="fruit", want=Modality.TEXT), k=1)
    return hits[0].text if hits else None


def remote() -> list[Hit]:
    with Client("http://127.0.0.1:8000") as client:
        return client.search("fruit", k=3)
"""


def run(*command: object, cwd: Path, **settings: str) -> str:
    """What a command prints; no variable of this process leads it to the source tree."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GENIUS"))}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env={**clean, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip_for(python: Path) -> tuple[object, ...]:
    """This environment's pip, working on that of another interpreter: a pip of its own would take seconds."""
    return sys.executable, "-m", "pip", "--python", python


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=REPOSITORY)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    """Built from the unpacked sdist, as pip would where there is no wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "src", filter="data")
    (source,) = (folder / "src").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist", cwd=source)
    (file,) = (folder / "dist").iterdir()
    return file


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory) -> Path:
    """The interpreter of a new environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    install = (*pip_for(python), "install", "--quiet", "-c", REPOSITORY / "constraints.txt")
    if os.environ.get("GENIUS_TEST_INSTALL"):
        run(*install, wheel, cwd=folder)
    else:
        run(*install, "--no-deps", wheel, cwd=folder)
        (site,) = folder.glob("lib/python*/site-packages")
        # a path in a .pth file is searched last, and .pth files inside it (an editable install) are not read
        (site / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def test_sdist_holds_what_tests_and_recipes_need(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    needed = {
        "pyproject.toml",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "recipes/mini.toml",
        "tests/docs/test_pages.py",
    }
    assert needed <= names
    assert not [name for name in names if name.startswith((".venv", "runs/", ".git/"))]


def test_wheel_holds_model_page_and_types_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "genius/recipes/mini.toml" in names  # `genius train all mini` works anywhere
    assert {f"genius/models/mini/{name}" for name in (*MODEL, "card.md")} <= names
    assert {"genius/py.typed", "genius/serve/page/index.html"} <= names
    assert {name.split("/")[0] for name in names} == {"genius", wheel.name.rsplit("-", 3)[0] + ".dist-info"}


def test_wheel_has_the_kernel_where_there_is_a_compiler(wheel, tmp_path):
    kernel = "genius/search/kernel/kernel.lib"
    built = shutil.which("cc") is not None
    assert (kernel in zipfile.ZipFile(wheel).namelist()) == built == (not wheel.name.endswith("-any.whl"))
    source = wheel.parents[1] / "src" / wheel.name.split("-py3")[0]
    (source / "src" / kernel).unlink(missing_ok=True)
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    run(*command, cwd=source, CC="no-such-compiler")
    (pure,) = tmp_path.iterdir()
    assert pure.name.endswith("-py3-none-any.whl") and kernel not in zipfile.ZipFile(pure).namelist()


def test_installed_package_answers_a_search(python, tmp_path):
    where = run(python, "-c", "import genius; print(genius.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(python.parents[1])
    photos = tmp_path / "photos"
    photos.mkdir()
    for colour in ("red", "blue"):
        Image.new("RGB", (64, 64), colour).save(photos / f"{colour}.png")
    (photos / "note.txt").write_text("Wash at 40 degrees.")
    genius = python.parent / "genius"
    run(genius, "index", "photos", "--to", "idx", cwd=tmp_path)
    search = (genius, "search", "how do I clean it", "--want", "text", "--in", "idx", "--format", "json")
    assert json.loads(run(*search, cwd=tmp_path))[0]["text"] == "Wash at 40 degrees."
    generated = json.loads(run(*search, "--search", "generate", cwd=tmp_path))
    assert [hit["id"] for hit in generated] == ["note.txt"]


def test_installed_requirements_are_met(python, tmp_path):
    """`pip check` finds nothing wrong with genius; other packages of the environment are not judged."""
    command = [*map(str, pip_for(python)), "check"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert [line for line in found.splitlines() if line.startswith("genius")] == []


def test_users_of_mypy_get_types(python, tmp_path):
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        python,
        "--cache-dir",
        tmp_path / "cache",
    )
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(USER)
    bad.write_text(USER.replace('engine.add([Item("a", text="a red apple")])', "engine.add(3)"))
    # torch, transformers and others behind genius take most of the time, and have no part in its interface
    only_genius = "[mypy]\nfollow_imports = skip\n[mypy-genius.*]\nfollow_imports = silent\n"
    (tmp_path / "mypy.ini").write_text(only_genius)
    command = [*map(str, mypy), str(good), str(bad)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    *errors, summary = found.splitlines()
    assert len(errors) == 1 and errors[0].startswith("bad.py:"), found
    assert 'Argument 1 to "add" of "IndexChanges" has incompatible type "int"' in errors[0]
    assert summary == "Found 1 error in 1 file (checked 2 source files)"
