"""A stored item, whether an engine or a client gives it."""

from __future__ import annotations

import json

from genius.client import Client, StoredItem
from genius.engine import Engine
from genius.store.records import Record


def stored_item(engine: Engine | Client, id: str) -> StoredItem | None:
    """What is stored of an item; None if it is not there."""
    found = engine.get(id)
    return as_stored(found) if isinstance(found, Record) else found


def as_stored(record: Record) -> StoredItem:
    """A record of the store as the client shows it."""
    codes = tuple(int(code) for code in record.codes)
    return StoredItem(record.id, record.modality, codes, record.text, json.loads(record.meta), record.path)
