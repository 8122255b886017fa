"""flickr8k: photos with up to five captions each. Tasks 0 t->i, 1 t->t, 2 t->pair, 3 i->t."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

from bench.domain import Domain, source_file
from bench.pictures import Size, difference_hashes
from bench.splits import Groups, random_for, split_by_group
from bench.texts import comparison_key, one_line

SIZE = Size(224, quality=58)
LEAST_WORDS, LEAST_CAPTIONS = 4, 3


def build(sources: Path, workers: int) -> Domain:
    """The tables of flickr8k."""
    captions = _read_captions(sources)
    hashes = difference_hashes({p: sources / _source(p) for p in captions}, workers)
    groups = Groups()
    groups.join_equal((p, comparison_key(text)) for p, texts in captions.items() for text in texts)
    groups.join_equal(hashes.items())
    group_of = {photo: groups.find(photo) for photo in captions}
    split_of = split_by_group(group_of, "flickr8k")
    domain = Domain("flickr8k")
    images = {
        photo: domain.picture(photo, _source(photo), SIZE, group_of[photo], split_of[photo])
        for photo in captions
    }
    _add_rows(domain, captions, images, split_of)
    return domain


def _source(photo: str) -> str:
    return f"flickr8k/images/{photo}.jpg"


def _read_captions(sources: Path) -> dict[str, list[str]]:
    """Photo to captions, without the short ones and repetitions; photos need three.

    The source lists the captions of a photo alphabetically, so they are shuffled.
    """
    listed: dict[str, list[str]] = defaultdict(list)
    with source_file(sources, "flickr8k/captions.txt").open(encoding="utf-8") as file:
        for name, *caption in list(csv.reader(file))[1:]:  # commas in a caption are not quoted
            listed[name].append(",".join(caption))
    captions = {}
    for name in sorted(listed):
        photo = name.removesuffix(".jpg")
        long_enough = [t for t in listed[name] if len(comparison_key(t).split()) >= LEAST_WORDS]
        by_key = {comparison_key(text): _sentence(text) for text in long_enough}
        kept = [by_key[key] for key in sorted(by_key)]
        random_for(f"captions {name}").shuffle(kept)
        if len(kept) >= LEAST_CAPTIONS and (sources / _source(photo)).exists():
            captions[photo] = kept
    return captions


def _sentence(caption: str) -> str:
    """`a dog runs .` as `A dog runs.`"""
    text = re.sub(r"\s+([.,!?;:'])", r"\1", one_line(caption.replace('"', " ")))
    return text[0].upper() + text[1:]


def _add_rows(
    domain: Domain, captions: dict[str, list[str]], images: dict[str, str], split_of: dict[str, str]
) -> None:
    """Caption 1 asks and is never a text item; captions 2 to 5 are text items."""
    photo_item, pair_item, text_items = {}, {}, {}
    for photo, texts in captions.items():
        split = split_of[photo]
        photo_item[photo] = domain.item(photo, image=images[photo])
        pair_item[photo] = domain.item(photo, text=texts[1], image=images[photo])
        text_items[photo] = [domain.item(comparison_key(text), text=text) for text in texts[1:]]
        domain.offer(0, split, photo_item[photo])
        domain.offer(2, split, pair_item[photo])
        for item in text_items[photo]:
            domain.offer(1, split, item)
            domain.offer(3, split, item)

    item_keys = {comparison_key(text) for texts in captions.values() for text in texts[1:]}
    with_caption, with_first = defaultdict(list), defaultdict(list)  # key: photos
    for photo, texts in captions.items():
        with_first[comparison_key(texts[0])].append(photo)
        for text in texts:
            with_caption[comparison_key(text)].append(photo)
    asked = set()
    for photo, texts in captions.items():
        split = split_of[photo]
        domain.ask(3, split, text_items[photo], image=images[photo])
        for text in texts if split == "train" else texts[:1]:  # training also asks with captions 2 to 5
            key = comparison_key(text)
            if key not in asked and (split == "train" or key not in item_keys):
                asked.add(key)
                domain.ask(0, split, [photo_item[other] for other in with_caption[key]], text=text)
        key = comparison_key(texts[0])
        same = with_first[key]
        if key not in item_keys and same[0] == photo:
            domain.ask(1, split, [item for other in same for item in text_items[other]], text=texts[0])
            domain.ask(2, split, [pair_item[other] for other in same], text=texts[0])
