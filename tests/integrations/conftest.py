"""An index of texts and pictures whose answers are known, for every integration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PIL import Image

from genius import Engine, Item


@pytest.fixture
def engine(tmp_path, fake) -> Iterator[Engine]:
    with Engine.create(tmp_path / "index", fake.FakeModel()) as opened:
        items = []
        for number, colour in enumerate(fake.COLOURS):
            Image.new("RGB", (16, 16), colour).save(tmp_path / f"{colour}.png")
            meta = {"number": number, "even": number % 2 == 0}
            items.append(Item(colour, image=tmp_path / f"{colour}.png", meta=meta))
            items.append(Item(f"t-{colour}", text=f"something {colour}", meta=meta))
        opened.add(items)
        yield opened
