"""emoji: Noto and Twemoji drawings. Tasks 0 t->i, 4 i->i (Noto to Twemoji), 7 pair->i (another skin tone)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.domain import Domain, source_file
from bench.pictures import Size, content_hash
from bench.splits import Groups, random_for, split_by_group
from bench.texts import comparison_key, enumeration, one_line

SIZE = Size(72, quality=65)  # the source has 64 pixels
VENDORS = NOTO, TWEMOJI = ("google", "twitter")
TONES = {
    "1F3FB": "light", "1F3FC": "medium-light", "1F3FD": "medium", "1F3FE": "medium-dark", "1F3FF": "dark",
}  # fmt: skip
TONE_REQUESTS = (
    "with a {tone} skin tone", "the same with {tone} skin", "the same one with a {tone} skin tone",
    "change the skin tone to {tone}", "but with {tone} skin tone", "in the {tone} skin tone",
)  # fmt: skip
WITH_TAGS = (
    "{label}, as in {tags}", "{label} emoji, used for {tags}", "a small picture of {label}; think of {tags}",
    "{label}; also {tags}",
)  # fmt: skip
WITHOUT_TAGS = ("{label}", "{label} emoji", "a small picture of {label}")
PEOPLE = frozenset({"1F468", "1F469", "1F9D1"})  # man, woman, person
MODIFIERS = frozenset({"FE0F", "200D", "27A1", "2640", "2642"})  # joiners, facing right, female, male


@dataclass(frozen=True, slots=True)
class Emoji:
    """An emoji that both vendors drew."""

    code: str
    file: str
    label: str
    tags: Sequence[str]
    tones: Mapping[str, str]  # code of a skin tone: file


def build(sources: Path, workers: int) -> Domain:
    """The tables of emoji."""
    del workers  # pictures are told apart by their bytes, which takes no time
    chosen = list(_choose(sources))
    groups = Groups()
    groups.join_equal((emoji.code, _family(emoji.code)) for emoji in chosen)
    groups.join_equal((emoji.code, comparison_key(emoji.label) or emoji.code) for emoji in chosen)
    group_of = {emoji.code: groups.find(emoji.code) for emoji in chosen}
    split_of = split_by_group(group_of, "emoji")
    domain = Domain("emoji")
    for emoji in chosen:
        _add_emoji(domain, emoji, group_of[emoji.code], split_of[emoji.code])
    return domain


def _source(vendor: str, file: str) -> str:
    return f"emoji/emoji-datasource-{vendor}/img/{vendor}/64/{file}"


def _choose(sources: Path) -> Iterator[Emoji]:
    """Emoji with a label and two drawings that no earlier one has (some flags are alike); no families."""

    def read(path: str) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = json.loads(source_file(sources, f"emoji/{path}").read_text("utf-8"))
        return content

    words = {_bare(entry["hexcode"]): entry for entry in read("emojibase-data/en/data.json")}
    twitter = {entry["unified"]: entry for entry in read("emoji-datasource-twitter/emoji.json")}
    seen: set[tuple[str, str]] = set()

    def is_new(file: str) -> bool:
        files = {vendor: sources / _source(vendor, file) for vendor in VENDORS}
        if not all(path.exists() for path in files.values()):
            return False
        contents = {(vendor, content_hash(path)) for vendor, path in files.items()}
        if contents & seen:
            return False
        seen.update(contents)
        return True

    entries = read("emoji-datasource-google/emoji.json")
    for entry in sorted(entries, key=lambda e: (float(e["added_in"]), len(e["name"]), e["unified"])):
        known, other = words.get(_bare(entry["unified"])), twitter.get(entry["unified"])
        if not known or not other or entry["category"] == "Component" or known["label"].startswith("family"):
            continue
        if not (entry["has_img_google"] and other["has_img_twitter"] and is_new(entry["image"])):
            continue
        tones = {}
        for tone, drawn in sorted(entry.get("skin_variations", {}).items()):
            other_drawn = other.get("skin_variations", {}).get(tone, {})
            drawn_by_both = drawn["has_img_google"] and other_drawn.get("has_img_twitter")
            if tone in TONES and drawn_by_both and is_new(drawn["image"]):
                tones[tone] = drawn["image"]
        yield Emoji(entry["unified"], entry["image"], _label(known["label"]), known.get("tags", []), tones)


def _bare(code: str) -> str:
    return code.replace("-FE0F", "")


def _family(code: str) -> str:
    """The same for man, woman and person forms of an emoji, and for its forms that face right."""
    first, *rest = code.split("-")
    parts = [first, *(part for part in rest if part not in MODIFIERS)]
    if first in PEOPLE and len(parts) > 1:
        return "people " + "-".join(part for part in parts[1:] if part not in PEOPLE)
    return "-".join(parts)


def _label(label: str) -> str:
    """`flag: Peru` as `flag of Peru`, `man: beard` as `man with beard`, `keycap: 1` as `keycap 1`."""
    label = re.sub(r"^flag: (.*)", r"flag of \1", label)
    label = re.sub(r"^(keycap|family|kiss|couple with heart|person|man|woman): ", r"\1 with ", label)
    return one_line(label.replace("keycap with", "keycap"))


def _add_emoji(domain: Domain, emoji: Emoji, group: str, split: str) -> None:
    images, items = {}, {}
    for file in [emoji.file, *emoji.tones.values()]:
        for vendor in VENDORS:
            name = f"{vendor}/{file.removesuffix('.png')}"
            images[vendor, file] = domain.picture(name, _source(vendor, file), SIZE, group, split)
            items[vendor, file] = domain.item(name, image=images[vendor, file])
        domain.offer(4, split, items[TWEMOJI, file])
        domain.offer(7, split, items[NOTO, file])
    domain.offer(0, split, items[NOTO, emoji.file])
    pick = random_for(f"emoji {emoji.code}")
    domain.ask(0, split, [items[NOTO, emoji.file]], text=_phrase(emoji, pick))
    for file in [emoji.file, *([pick.choice(list(emoji.tones.values()))] if emoji.tones else [])]:
        domain.ask(4, split, [items[TWEMOJI, file]], image=images[NOTO, file])
    for tone, file in emoji.tones.items():
        text = pick.choice(TONE_REQUESTS).format(tone=TONES[tone])
        domain.ask(7, split, [items[NOTO, file]], text=text, image=images[NOTO, emoji.file])


def _phrase(emoji: Emoji, pick: random.Random) -> str:
    """The label with two or three tags that say more than it does; flags go without."""
    words = set(comparison_key(emoji.label).split())
    tags = [t for t in emoji.tags if comparison_key(t) and not words & set(comparison_key(t).split())]
    if not tags or emoji.label.startswith("flag of"):
        return pick.choice(WITHOUT_TAGS).format(label=emoji.label)
    some = pick.sample(tags, min(len(tags), pick.choice([2, 3])))
    return pick.choice(WITH_TAGS).format(label=emoji.label, tags=enumeration(some))
