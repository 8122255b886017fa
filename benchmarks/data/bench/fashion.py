"""fashion: photos of products with names. Tasks 0 t->i, 3 i->t, 7 pair->i (the same in another colour)."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.colours import article, colour_key, split_colour
from bench.domain import Domain, source_file
from bench.pictures import Size, content_hash, difference_hashes
from bench.splits import Groups, random_for, split_by_group
from bench.texts import comparison_key, one_line

SIZE = Size(192, quality=62)
MOST_PHOTOS = 12_000
MOST_COPIES = 3  # photos that share a name
TARGETS_PER_PHOTO = 2
FOLDER = "fashion_product_44k"
LEFT_OUT = frozenset(
    (
        "Bra", "Briefs", "Innerwear Vests", "Trunk", "Boxers", "Camisoles", "Nightdress", "Baby Dolls",
        "Swimwear", "Shapewear", "Stockings", "Bath Robe", "Robe", "Free Gifts",
    )
)  # fmt: skip
REQUESTS = (
    "the same in {new}", "the same {type} in {new}", "but in {new}", "this one in {new} please",
    "change the colour to {new}", "the {new} version of this", "{new} instead of {old}",
    "same design, {new} colour", "I like it, but I would rather have it in {new}",
    "is there a {new} one like this",
)  # fmt: skip


def build(sources: Path, workers: int) -> Domain:
    """The tables of fashion."""
    names, types = _read_tables(sources)
    usable = list(_usable(sources, names, types))
    parsed = {photo: found for photo in usable if (found := split_colour(names[photo]))}
    variants = _variants(parsed)
    photos = _choose(usable, names, variants)
    hashes = difference_hashes({photo: sources / _source(photo) for photo in photos}, workers)
    groups = Groups()
    groups.join_equal((photo, parsed[photo][0]) for photo in photos if photo in parsed)
    groups.join_equal((photo, comparison_key(names[photo])) for photo in photos)
    groups.join_equal(hashes.items())
    group_of = {photo: groups.find(photo) for photo in photos}
    split_of = split_by_group(group_of, "fashion")

    domain = Domain("fashion")
    photo_item, name_item, named = {}, {}, defaultdict(list)
    images = {p: domain.picture(p, _source(p), SIZE, group_of[p], split_of[p]) for p in photos}
    for photo in photos:
        key = comparison_key(names[photo])
        photo_item[photo] = domain.item(photo, image=images[photo])
        name_item[photo] = domain.item(key, text=names[photo])
        named[key].append(photo)
        domain.offer(0, split_of[photo], photo_item[photo])
        domain.offer(7, split_of[photo], photo_item[photo])
        domain.offer(3, split_of[photo], name_item[photo])
    for same in named.values():
        domain.ask(0, split_of[same[0]], [photo_item[photo] for photo in same], text=names[same[0]])
    for photo in photos:
        domain.ask(3, split_of[photo], [name_item[photo]], image=images[photo])
    for line in sorted(variants):
        for photo in variants[line]:
            others = [other for other in variants[line] if other != photo]
            pick = random_for(f"recolour {photo}")
            for target in pick.sample(others, min(TARGETS_PER_PHOTO, len(others))):
                words = {"new": parsed[target][1], "old": parsed[photo][1], "type": article(types[photo])}
                text = pick.choice(REQUESTS).format(**words)
                domain.ask(7, split_of[photo], [photo_item[target]], text=text, image=images[photo])
    return domain


def _source(photo: str) -> str:
    return f"{FOLDER}/images/{photo}.jpg"


def _read_tables(sources: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Names and article types by the number of the photo."""
    with source_file(sources, f"{FOLDER}/names.csv").open(encoding="utf-8", errors="replace") as file:
        rows = list(csv.reader(file))[1:]
        names = {number: one_line(",".join(part for part in parts if part)) for number, *parts in rows}
    with source_file(sources, f"{FOLDER}/article_type.csv").open(encoding="utf-8") as file:
        types = {row[0].removesuffix(".jpg"): row[1] for row in list(csv.reader(file))[1:]}
    return names, types


def _usable(sources: Path, names: Mapping[str, str], types: Mapping[str, str]) -> Iterator[str]:
    """Photos that are there, of articles not left out, with names of three words; a repeated photo once."""
    seen = set()
    for photo in sorted(names, key=int):
        file = sources / _source(photo)
        if file.exists() and types.get(photo) not in LEFT_OUT and len(names[photo].split()) >= 3:
            content = content_hash(file)
            if content not in seen:
                seen.add(content)
                yield photo


def _variants(parsed: Mapping[str, tuple[str, str]]) -> dict[str, list[str]]:
    """Photos of one product in several colours, by the name without its colour.

    Every colour must have exactly one photo: then it is one product, and not a brand's whole line.
    """
    by_name: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for photo, (name, colour) in parsed.items():
        by_name[name][colour_key(colour)].append(photo)
    return {
        name: [photo for photos in colours.values() for photo in photos]
        for name, colours in by_name.items()
        if len(colours) >= 2 and all(len(photos) == 1 for photos in colours.values())
    }


def _choose(
    usable: Sequence[str], names: Mapping[str, str], variants: Mapping[str, Sequence[str]]
) -> list[str]:
    """All colour variants, then photos at random of products whose name few photos share."""
    chosen = {photo for photos in variants.values() for photo in photos}
    copies = Counter(comparison_key(names[photo]) for photo in usable)
    others = [p for p in usable if p not in chosen and copies[comparison_key(names[p])] <= MOST_COPIES]
    random_for("fashion others").shuffle(others)
    return sorted(chosen.union(others[: max(0, MOST_PHOTOS - len(chosen))]), key=int)
