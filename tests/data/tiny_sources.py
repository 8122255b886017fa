"""A few made-up entries of each of the benchmark's public sources, in the layout that its builder reads."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOS = 60
COLOURS = ("Red", "Navy Blue", "Green")


def write_sources(to: Path) -> Path:
    """Write all five sources under `to`."""
    for write in (_flickr8k, _fashion, _ikea, _cub, _emoji):
        write(to)
    return to


def picture(file: Path, seed: int, mode: str = "RGB") -> None:
    """A picture of its own for each seed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (40, 60, len(mode)), dtype=np.uint8)
    Image.fromarray(noise, mode).save(file)


def _text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _flickr8k(to: Path) -> None:
    """Photos 0 and 1 share a caption, 2 and 3 look the same, 4 has too few captions."""
    lines = ["image,caption"]
    for n in range(PHOTOS):
        texts = [f"a dog runs over field {n} in {place} ." for place in ("snow", "rain", "June", "May, once")]
        texts = texts[:2] if n == 4 else [*texts, f"dog {n}"]
        if n in (0, 1):
            texts.append("the same words about two photos")
        lines += [f"p{n:03d}.jpg,{text}" for text in sorted(texts)]
        picture(to / f"flickr8k/images/p{n:03d}.jpg", 2 if n == 3 else n)
    _text(to / "flickr8k/captions.txt", "\n".join(lines) + "\n")


def _fashion(to: Path) -> None:
    """Ten shirts in three colours each, forty shoes, a repeated photo and an article that is left out."""
    names = {n: f"Acme Men {COLOURS[n % 3]} Shirt M{n // 3}" for n in range(30)}
    names |= {n: f"Acme Women Shoes S{n}" for n in range(30, 70)}
    names |= {70: "Acme Women Shoes again", 71: "Acme Women Bra B1"}
    folder = to / "fashion_product_44k"
    _text(folder / "names.csv", "id,name\n" + "".join(f"{n},{name}\n" for n, name in names.items()))
    kinds = {n: "Tshirts" if n < 30 else "Casual Shoes" for n in names} | {71: "Bra"}
    _text(folder / "article_type.csv", "f,t\n" + "".join(f"{n}.jpg,{kind}\n" for n, kind in kinds.items()))
    for n in names:
        picture(folder / f"images/{n}.jpg", 1000 + (69 if n == 70 else n))


def _ikea(to: Path) -> None:
    """Forty products in forty rooms; products 0 and 1 have one photo."""
    codes = [f"{n:03d}.000.00" for n in range(40)]
    products = {
        code: {
            "name": "MLA",
            "type": "Table,lamp" if n % 2 else "LED bulb",
            "color": "White,birch",
            "desc": f"A thing for room {n} that stands well. View more product information",
        }
        for n, code in enumerate(codes)
    }
    rooms = {f"x/{code}.jpg": [f"r/room-{n}.jpg", f"r/room-{n - 1}.jpg"] for n, code in enumerate(codes)}
    for n, code in enumerate(codes):
        picture(to / f"ikea/images/x/{code}.jpg", 2000 + max(n, 1))
        picture(to / f"ikea/images/room_scenes/room-{n}.jpg", 2100 + n)
    (to / "ikea/text_data").mkdir()
    for name, content in (("products_dict", products), ("item_to_room", rooms)):
        (to / f"ikea/text_data/{name}.p").write_bytes(pickle.dumps(content, protocol=2))


def _cub(to: Path) -> None:
    """Two species with 32 photos each."""
    features = {"Black-footed Albatross": ["a long beak.", "brown"], "Crow": ["black"]}
    _text(to / "cub200/descriptors_cub_gpt3.json", json.dumps(features))
    for kind, folder in enumerate(("001.Black_footed_Albatross", "002.Crow")):
        for n in range(32):
            part = "train" if n % 2 else "test"
            picture(to / f"cub200/{part}/{folder}/Bird_{n:04d}_{kind}{n:02d}.jpg", 3000 + 100 * kind + n)


def _emoji(to: Path) -> None:
    """Sixty emoji, the first with a skin tone; 5 is drawn as 4 is, 6 has no label."""
    entries, words = [], []
    for n in range(60):
        code = f"1F{n:03X}"
        tone = {"1F3FF": {"image": f"{code}-1f3ff.png", "has_img_google": True, "has_img_twitter": True}}
        entries.append(
            {
                "unified": code,
                "image": f"{code}.png",
                "name": "NAME",
                "added_in": "1.0",
                "category": "Objects",
                "has_img_google": True,
                "has_img_twitter": True,
                "skin_variations": tone if n == 0 else {},
            }
        )
        if n != 6:
            label = f"flag: Land {n}" if n == 7 else f"thing {n}"
            words.append({"hexcode": code, "label": label, "tags": ["use"]})
        for offset, vendor in ((4000, "google"), (5000, "twitter")):
            folder = to / f"emoji/emoji-datasource-{vendor}/img/{vendor}/64"
            picture(folder / f"{code}.png", offset + (4 if n == 5 else n), "RGBA")
            if n == 0:
                picture(folder / f"{code}-1f3ff.png", offset + 100, "RGBA")
    for vendor in ("google", "twitter"):
        _text(to / f"emoji/emoji-datasource-{vendor}/emoji.json", json.dumps(entries))
    _text(to / "emoji/emojibase-data/en/data.json", json.dumps(words))
