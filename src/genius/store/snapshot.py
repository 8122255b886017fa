"""One state of an index: what its generation holds, and what was removed and added since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from genius.store.delta import SelectedRows
from genius.store.generations import AnyArray, Generation
from genius.store.records import PassageRows, RecordBatch, RowRuns, Rows, unpack_modality


class GenerationRef(NamedTuple):
    """What the truth says of its generation: number (0: none), digest of the manifest, last row and items."""

    number: int = 0
    digest: str = ""
    through: int = 0
    items: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of the index: the generation, less the rows that are gone, plus the delta."""

    state: tuple[tuple[int, int], int]  # device and inode of the truth, and the number of its last change
    generation: Generation
    removed: tuple[int, int]  # what tells two sets of removed rows apart
    gone: Rows  # rows that are removed, ascending
    delta: RecordBatch  # rows since the generation that are not removed, without vectors
    vectors: SelectedRows | None  # those of the delta
    through: int  # rows up to here are accounted for
    fingerprint: str  # of the model whose codes these are
    sizes: tuple[int, ...]  # codes per level
    passages: PassageRows  # items with more than one passage; removed ones may be among them

    @property
    def change(self) -> int:
        """The number of the last change that is accounted for."""
        return self.state[1]

    def alive(self) -> AnyArray:
        """Which places of the generation are still there, (n,) bool."""
        alive = np.ones(len(self.runs), dtype=bool)
        alive[self.runs.places(self.gone)] = False
        return alive

    @property
    def runs(self) -> RowRuns:
        """Row numbers of the places of the generation."""
        return RowRuns(self.generation.arrays["run_place"], self.generation.arrays["run_row"])

    def modality(self) -> AnyArray:
        """Modalities of the places of the generation, as places in MODALITIES, (n,)."""
        return unpack_modality(self.generation.arrays["modality"], len(self.runs))
