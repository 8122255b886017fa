"""cub: photos of 200 bird species. Tasks 6 pair->t (what it is), 8 pair->pair (another of the species)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from bench.domain import Domain, source_file
from bench.pictures import Size, content_hash, difference_hashes
from bench.splits import HELD_OUT, SHARED, random_for
from genius.errors import BadInput

SIZE = Size(224, quality=60)
PHOTOS = {"train": 22, "val": 2, "test": 3, HELD_OUT: 3}  # of a species
ASKING = {"val": 1, "test": 2, HELD_OUT: 1}  # photos that ask in task 8; the others are candidates
TRAIN_POSITIVES = 4
FOLDER = "cub200"
NAME_QUESTIONS = (
    "Which bird is this?", "What species of bird is shown here?", "Can you name this bird?",
    "What kind of bird am I looking at?", "What is the bird in this photo called?",
    "Which species does this bird belong to?",
)  # fmt: skip
PHOTO_QUESTIONS = (
    "Which bird is this, and what else does it look like?",
    "Show me another bird of this species and its name.",
    "I want to see the same kind of bird again, with its name.",
    "What is this bird called? Show one more like it.",
    "Is there another picture of this species with its name?",
    "Find the same species in another photo and name it.",
)  # fmt: skip


def build(sources: Path, workers: int) -> Domain:
    """The tables of cub."""
    features = json.loads(source_file(sources, f"{FOLDER}/descriptors_cub_gpt3.json").read_text("utf-8"))
    species = _choose(sources, features)
    chosen = [numbers for parts in species.values() for numbers in parts.values()]
    files = {number: sources / file for numbers in chosen for number, file in numbers.items()}
    hashes = difference_hashes(files, workers)
    if len(set(hashes.values())) < len(hashes):
        raise BadInput("two bird photos show the same: this is not the copy that the benchmark is from")

    domain = Domain("cub")
    text_item = {}
    for name in species:
        listed = "; ".join(feature.strip().rstrip(".") for feature in features[name])
        text = f"{name}, a kind of bird. How to tell it: {listed}."
        text_item[name] = domain.item(name, text=text)
        domain.offer(6, SHARED, text_item[name])
    for name, parts in species.items():
        images = {
            number: domain.picture(number, file, SIZE, f"photo {number}", split)
            for split, numbers in parts.items()
            for number, file in numbers.items()
        }
        _add_species(
            domain, name, text_item[name], {s: list(numbers) for s, numbers in parts.items()}, images
        )
    return domain


def _choose(sources: Path, features: Mapping[str, list[str]]) -> dict[str, dict[str, dict[str, str]]]:
    """Species to split to photo number to file; thirty photos of each, no two with the same bytes."""
    names = {_letters(name): name for name in features}
    seen: set[str] = set()
    chosen = {}
    for folder in sorted(f.name for f in source_file(sources, f"{FOLDER}/train").iterdir()):
        files = sorted(str(f.relative_to(sources)) for f in sources.glob(f"{FOLDER}/*/{folder}/*.jpg"))
        random_for(f"cub {folder}").shuffle(files)
        distinct = []
        for file in files:
            content = content_hash(sources / file)
            if content not in seen:
                seen.add(content)
                distinct.append(file)
        waiting = iter(distinct)
        chosen[names[_letters(folder.split(".", 1)[1])]] = {
            split: {_number(file): file for file in islice(waiting, count)} for split, count in PHOTOS.items()
        }
    return chosen


def _letters(name: str) -> str:
    """A species by its letters alone: `Black_footed_Albatross`, `Black footed Albatross`."""
    return re.sub(r"[^a-z]", "", name.lower())


def _number(file: str) -> str:
    return file.removesuffix(".jpg").rpartition("_")[2]


def _add_species(
    domain: Domain, name: str, text_item: str, photos: Mapping[str, list[str]], images: Mapping[str, str]
) -> None:
    """The rows of one species. In task 8 the val and test photos that ask are not candidates."""
    asking = {split: numbers[: ASKING.get(split)] for split, numbers in photos.items()}
    offered = {s: numbers if s == "train" else numbers[ASKING[s] :] for s, numbers in photos.items()}
    pair_item = {}
    for split, numbers in offered.items():
        for number in numbers:
            pair_item[number] = domain.item(number, text=name, image=images[number])
            domain.offer(8, split, pair_item[number])
    for split, numbers in photos.items():
        for number in numbers:
            text = random_for(f"which {number}").choice(NAME_QUESTIONS)
            domain.ask(6, split, [text_item], text=text, image=images[number])
    for split, numbers in asking.items():
        for number in numbers:
            pick = random_for(f"same {number}")
            if split == "train":
                others = [other for other in offered["train"] if other != number]
                targets = pick.sample(others, TRAIN_POSITIVES)
            else:
                targets = offered[split] + (offered["val"] if split == "test" else [])  # pools hold val, too
            positives = [pair_item[target] for target in targets]
            text = pick.choice(PHOTO_QUESTIONS)
            domain.ask(8, split, positives, text=text, image=images[number])
