"""New codes for every item of an index, with the matching settings, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from genius.errors import BadInput
from genius.failpoints import failpoint
from genius.store import generations
from genius.store.building import LAYOUT, GenerationBuilder
from genius.store.index import Index, fixed_settings
from genius.store.records import Codes, RecordBatch
from genius.store.snapshot import GenerationRef

TOGETHER = 8  # batches that are coded at once: what encoding prepares of the codebooks serves all of them


def recode(
    index: Index,
    encode: Callable[[RecordBatch], Codes],
    sizes: Sequence[int],
    settings: Mapping[str, Any],
) -> None:
    """Give every item the codes that `encode` makes of its vector, and put `settings` in place.

    A new generation is published first; one transaction then changes codes and settings and refers to it. A
    killed process therefore leaves the old state or the new one, and searches continue meanwhile.
    """
    require_vectors(index)
    with index.writing():
        index.refresh()
        truth, through = index.truth, index.truth.last_row()
        coded = [_empty(len(sizes))]
        batches = truth.entries(index.levels, index.dim, through=through)
        while some := list(islice(batches, TOGETHER)):
            batch = RecordBatch.join(some)
            coded.append(RecordBatch(batch.rows, batch.modality, encode(batch), None))
        every = RecordBatch.join(coded)
        arrays = GenerationBuilder(truth, sizes, index.dim).arrays(every)
        # the truth has the old codes still: vectors are read by a builder that knows them
        vectors = GenerationBuilder(truth, index.settings["sizes"], index.dim).vectors(len(every), through)
        changed = {**fixed_settings(index.settings), **settings, "sizes": [int(size) for size in sizes]}
        facts = {"layout": LAYOUT, "last_row": through, "settings": changed}
        number = index.next_generation()
        digest = generations.publish(index.folder, number, facts, arrays, vectors)
        failpoint("before-fit-commit")
        with truth.writing():
            for batch in coded:
                truth.recode(batch.rows, batch.codes)
            failpoint("during-fit-commit")
            truth.put(**changed, generation=GenerationRef(number, digest, through, len(every)))
            truth.forget_removed(through)
        index.refresh()
        generations.delete_others(index.folder, keep=number)


def require_vectors(index: Index) -> None:
    """Raise BadInput, with what to do, unless the index stores the vectors that codes are made from."""
    if index.dim is None:
        raise BadInput(
            f"{index.folder} keeps codes only, and new codes are made from vectors: make an index that keeps "
            "them with `genius index PATH --to NEW_FOLDER --vectors`, then fit that"
        )


def _empty(levels: int) -> RecordBatch:
    return RecordBatch(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, levels), np.uint16), None)
