"""All systems by name. A new one is one file in baselines/ and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from genius.data.base import Dataset
from genius.errors import BadInput
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.encoding import Embedding, Encoding
from genius.evaluate.systems import System

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from genius.evaluate.examples import Examples
    from genius.search.options import SearchOptions


DECODER_BEAM = 50  # the paper's
LOOKUP_BEAM = 200


class BenchModel(Embedding, Protocol):
    """A whole model: what turns content into codes, and what searches them."""

    @property
    def quantizer(self) -> Any:
        """The quantizer."""

    @property
    def decoder(self) -> Any:
        """The decoder, or None."""

    @property
    def search_defaults(self) -> Mapping[str, Any]:
        """Fields of `genius.search.options.SearchOptions` that served best on validation data."""


@dataclass
class Setup:
    """What systems are made from."""

    model: BenchModel
    dataset: Dataset
    encoding: Encoding
    folder: Path  # for decoders that baselines train
    device: str = "cpu"
    schooling: Schooling = field(default_factory=Schooling)  # of baselines that learn
    split: str = "test"  # whose union pool they memorize
    beam: int = 0  # of every search by a decoder; 0: the model's, or the paper's
    seed: int = 0  # of whatever starts at random: their training, centroids in FAISS
    _read: dict[frozenset[int], Examples] = field(default_factory=dict)

    @cached_property
    def codebooks(self) -> list[NDArray[np.float32]]:
        """The code vectors of each level."""
        return [book.detach().cpu().numpy() for book in self.model.quantizer.residual.codebooks()]

    def options(self, method: str | None = None, **changes: Any) -> SearchOptions:
        """The model's default search with some values changed.

        Values chosen for lookup, where a wide beam is cheap, do not serve a decoder, nor the other way round:
        a method of the other kind starts from the paper's beam, or from the usual one of lookup.
        """
        from genius.search.options import SearchOptions

        known = {field.name for field in fields(SearchOptions)}
        values = {name: value for name, value in self.model.search_defaults.items() if name in known}
        usual = values.get("method", "lookup")
        if method is not None and (method == "lookup") != (usual == "lookup"):
            values = {"beam": LOOKUP_BEAM if method == "lookup" else DECODER_BEAM}
        values |= {"method": method or usual}
        if self.beam and values["method"] != "lookup":
            values["beam"] = self.beam
        return SearchOptions(**(values | changes))

    def examples(self, *tasks: int) -> Callable[[], Examples]:
        """Train queries of these tasks, read once, when they are first needed."""
        from genius.evaluate.examples import read_examples

        def read() -> Examples:
            key, limit = frozenset(tasks), self.schooling.queries
            if key not in self._read:
                self._read[key] = read_examples(self.dataset, self.encoding, key, limit, self.split)
            return self._read[key]

        return read


def _exact(setup: Setup) -> System:
    from genius.evaluate.baselines.exact import Exact

    return Exact(setup.device)


def _codes(name: str, **changes: Any) -> Callable[[Setup], System]:
    def make(setup: Setup) -> System:
        from genius.evaluate.code_search import CodeSearch

        options = setup.options(**changes)
        decoder = None if options.method == "lookup" else setup.model.decoder
        if decoder is None and options.method != "lookup":
            raise BadInput(f"{name} needs a decoder, and this model has none: train one, or leave {name} out")
        return CodeSearch(name, setup.codebooks, options, decoder, setup.device)

    return make


def _faiss(module: str, function: str, *, seeded: bool = False) -> Callable[[Setup], System]:
    def make(setup: Setup) -> System:
        from importlib import import_module

        build = getattr(import_module(f"genius.evaluate.baselines.{module}"), function)
        made: System = build(seed=setup.seed) if seeded else build()
        return made

    return make


def _faiss_rq(setup: Setup) -> System:
    from genius.evaluate.baselines.faiss_rq import faiss_rq

    searched = [size for size in setup.model.sizes if size > 3]  # as many bits as our own codes
    return faiss_rq(len(searched), max(searched).bit_length() - 1, seed=setup.seed)


def _school(setup: Setup) -> dict[str, Any]:
    schooling = replace(setup.schooling, seed=setup.seed)
    return {"schooling": schooling, "device": setup.device, "folder": setup.folder}


def _grace(kind: str) -> Callable[[Setup], System]:
    def make(setup: Setup) -> System:
        from genius.evaluate.baselines.grace import grace

        return grace(kind, setup.examples(0), **_school(setup))

    return make


def _irgen(setup: Setup) -> System:
    from genius.evaluate.baselines.irgen import irgen

    return irgen(setup.examples(0), **_school(setup))


def _dsi(setup: Setup) -> System:
    from genius.evaluate.baselines.dsi import dsi

    return dsi(setup.examples(1), **_school(setup))


# genius: the decoder's score alone, the paper's GENIUS.
# genius+…: the product's default search, by whatever method the model was found to do best with, re-ranked.
# decoder+…: the decoder's beams re-ranked, the paper's GENIUS^R. lookup+…: the same codes without a decoder.
OURS: Mapping[str, Callable[[Setup], System]] = {
    "exact": _exact,
    "genius": _codes("genius", method="generate", rerank="none"),
    "genius+codes": _codes("genius+codes", rerank="codes"),
    "genius+vectors": _codes("genius+vectors", rerank="vectors"),
    "decoder+codes": _codes("decoder+codes", method="generate", rerank="codes"),
    "decoder+vectors": _codes("decoder+vectors", method="generate", rerank="vectors"),
    "lookup+codes": _codes("lookup+codes", method="lookup", rerank="codes"),
    "lookup+vectors": _codes("lookup+vectors", method="lookup", rerank="vectors"),
}
BASELINES: Mapping[str, Callable[[Setup], System]] = {
    "faiss-flat": _faiss("faiss_flat", "faiss_flat"),
    "hnsw": _faiss("hnsw", "hnsw"),
    "ivf-pq": _faiss("ivf_pq", "ivf_pq", seeded=True),
    "ivf-pq-best": _faiss("ivf_pq", "ivf_pq_best", seeded=True),
    "pq": _faiss("ivf_pq", "pq", seeded=True),
    "faiss-rq": _faiss_rq,
    "grace-numeric": _grace("numeric"),
    "grace-string": _grace("string"),
    "grace-semantic": _grace("semantic"),
    "grace-structured": _grace("structured"),
    "irgen": _irgen,
    "dsi-nci": _dsi,
}
SYSTEMS: Mapping[str, Callable[[Setup], System]] = {**OURS, **BASELINES}
LEARNING = frozenset({*(name for name in BASELINES if name.startswith("grace")), "irgen", "dsi-nci"})
SEEDED = LEARNING | {"ivf-pq", "ivf-pq-best", "pq", "faiss-rq"}  # others give one answer, whatever the seed
SETS: Mapping[str, Sequence[str]] = {
    "ours": tuple(OURS),
    "faiss": tuple(name for name in BASELINES if name not in LEARNING),
    "generative": tuple(sorted(LEARNING, key=list(BASELINES).index)),
    "all": tuple(SYSTEMS),
}


def names_of(wanted: str) -> list[str]:
    """The systems in a list such as `exact,hnsw` or `ours,faiss`; an unknown name is refused."""
    found: dict[str, None] = {}
    for word in filter(None, (part.strip() for part in wanted.split(","))):
        if word not in SYSTEMS and word not in SETS:
            raise BadInput(f"unknown system {word!r}: choose from {', '.join((*SYSTEMS, *SETS))}")
        found |= dict.fromkeys(SETS.get(word, [word]))
    if not found:
        raise BadInput(f"no system named: choose from {', '.join((*SYSTEMS, *SETS))}")
    return list(found)


def make_systems(names: Sequence[str], setup: Setup, seeds: int = 1) -> list[System]:
    """The systems called `names`; one that starts at random is made once for each of `seeds` seeds."""
    return [
        SYSTEMS[name](replace(setup, seed=setup.seed + number))
        for name in names
        for number in range(seeds if name in SEEDED else 1)
    ]
