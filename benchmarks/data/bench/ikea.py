"""ikea: products and rooms they stand in. Tasks 2 t->pair, 4 i->i (room to products), 8 pair->pair."""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bench.domain import Domain, source_file
from bench.pictures import Size, content_hash, difference_hashes
from bench.splits import SHARED, Groups, random_for, split_by_group
from bench.texts import comparison_key, one_line

PRODUCT_SIZE, ROOM_SIZE = Size(192, quality=60), Size(224, quality=62)
LEAST_WORDS = 6  # of a description
MOST_PRODUCTS = 4  # of a description; one of more is too vague
BOILERPLATE = (
    "View more product information",
    r"\d+ year guarantee\. Read about the terms in the guarantee brochure\.?",
)
QUESTIONS = (
    "Find the {type}.", "Which {type} is used here?", "Show me the {type} in this room.",
    "I like this {type}, which one is it?", "Where can I get the {type} from this picture?",
    "The {type} seen in this room.",
)  # fmt: skip
Product = Mapping[str, str]  # name, type, color, desc


def build(sources: Path, workers: int) -> Domain:
    """The tables of ikea."""
    products = _read_pickle(source_file(sources, "ikea/text_data/products_dict.p"))
    item_to_room = _read_pickle(source_file(sources, "ikea/text_data/item_to_room.p"))
    files = _product_files(sources)
    merged = _merge_same_photo(sources, products, files)
    domain = Domain("ikea")
    photo_item, pair_item = {}, {}
    for code in sorted(set(merged.values())):
        image = domain.picture(code, files[code], PRODUCT_SIZE, f"product {code}", SHARED)
        photo_item[code] = domain.item(code, image=image)
        pair_item[code] = domain.item(code, text=_title(products[code]), image=image)
        domain.offer(4, SHARED, photo_item[code])
        domain.offer(2, SHARED, pair_item[code])
        domain.offer(8, SHARED, pair_item[code])
    _ask_by_description(domain, products, merged, pair_item)
    rooms = _rooms(sources, item_to_room, merged)
    hashes = difference_hashes({room: sources / _room_source(room) for room in rooms}, workers)
    _ask_by_room(domain, products, rooms, hashes, photo_item, pair_item)
    return domain


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, strings and numbers; refuses whatever would run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"refused: {module}.{name}")


def _read_pickle(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        content: dict[str, Any] = _PlainUnpickler(opened, encoding="latin1").load()
    return content


def _product_files(sources: Path) -> dict[str, str]:
    """The photo of each product code, in the first of its category folders."""
    files: dict[str, str] = {}
    for file in sorted(str(f.relative_to(sources)) for f in sources.glob("ikea/images/*/*.jpg")):
        files.setdefault(_stem(file), file)
    return files


def _merge_same_photo(
    sources: Path, products: Mapping[str, Product], files: Mapping[str, str]
) -> dict[str, str]:
    """Product code to the first code with the same photo, byte for byte."""
    first: dict[str, str] = {}
    merged = {}
    for code in sorted(products):
        if code in files and products[code]["name"] and products[code]["type"]:
            merged[code] = first.setdefault(content_hash(sources / files[code]), code)
    return merged


def _rooms(
    sources: Path, item_to_room: Mapping[str, Collection[str]], merged: Mapping[str, str]
) -> dict[str, list[str]]:
    """Room scenes that are there, to the codes of the products in them."""
    found: dict[str, set[str]] = defaultdict(set)
    for item, rooms in item_to_room.items():
        code = merged.get(_stem(item))
        for room in map(_stem, rooms):
            if code is not None and (sources / _room_source(room)).exists():
                found[room].add(code)
    return {room: sorted(found[room]) for room in sorted(found)}


def _stem(file: str) -> str:
    return PurePosixPath(file).name.removesuffix(".jpg")


def _room_source(room: str) -> str:
    return f"ikea/images/room_scenes/{room}.jpg"


def _ask_by_description(
    domain: Domain, products: Mapping[str, Product], merged: Mapping[str, str], pair_item: Mapping[str, str]
) -> None:
    """Task 2: a query for each description; descriptions of one product go to one split."""
    described: dict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = {}
    for code, kept in merged.items():
        text = products[code]["desc"]
        for pattern in BOILERPLATE:
            text = re.sub(pattern, " ", text)
        text = one_line(text)
        if len(text.split()) >= LEAST_WORDS:
            described[comparison_key(text)].add(kept)
            texts.setdefault(comparison_key(text), text)
    clear = {key: sorted(described[key]) for key in sorted(described) if len(described[key]) <= MOST_PRODUCTS}
    groups = Groups()
    groups.join_equal((key, code) for key, codes in clear.items() for code in codes)
    split_of = split_by_group({key: groups.find(key) for key in clear}, "ikea descriptions")
    for key, codes in clear.items():
        domain.ask(2, split_of[key], [pair_item[code] for code in codes], text=texts[key])


def _ask_by_room(
    domain: Domain,
    products: Mapping[str, Product],
    rooms: Mapping[str, list[str]],
    hashes: Mapping[str, str],
    photo_item: Mapping[str, str],
    pair_item: Mapping[str, str],
) -> None:
    """Tasks 4 and 8: a room asks for all its products, and for those of each type."""
    groups = Groups()
    groups.join_equal((room, re.sub(r"[-_.]+\d{6,}(-s\d)?$", "", room)) for room in rooms)  # shots of a room
    groups.join_equal(hashes.items())
    group_of = {room: groups.find(room) for room in rooms}
    split_of = split_by_group(group_of, "ikea rooms")
    for number, (room, codes) in enumerate(rooms.items()):
        split = split_of[room]
        image = domain.picture(f"room_{number:03d}", _room_source(room), ROOM_SIZE, group_of[room], split)
        domain.ask(4, split, [photo_item[code] for code in codes], image=image)
        by_type = defaultdict(list)
        for code in codes:
            by_type[_type(products[code])].append(code)
        for kind in sorted(by_type):
            text = random_for(f"find {room} {kind}").choice(QUESTIONS).format(type=kind)
            domain.ask(8, split, [pair_item[code] for code in by_type[kind]], text=text, image=image)


def _title(product: Product) -> str:
    """`NAME type, colour`."""
    colour = _with_slashes(product["color"]).lower()
    return one_line(f"{product['name']} {_type(product)}" + (f", {colour}" if colour else ""))


def _type(product: Product) -> str:
    """The type, not capitalised unless it is an abbreviation."""
    text = _with_slashes(product["type"])
    return text[0].lower() + text[1:] if len(text) > 1 and not text[1].isupper() else text


def _with_slashes(text: str) -> str:
    """`white,birch` as `white/birch`: the source lost the slashes."""
    return re.sub(r",(?=\S)", "/", text)
