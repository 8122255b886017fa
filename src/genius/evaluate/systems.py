"""Systems that are evaluated: what one is, and all of them by name.

A new one is one class with the methods of `System` in baselines/ and one line in SYSTEMS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, Row
from genius.errors import BadInput
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries, Floats, Ints
from genius.evaluate.metrics import NO_ITEM
from genius.evaluate.options import GenerativeConfig
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.segment import TrieSegment
from genius.search.trie import Trie
from genius.weights import fingerprint_tensors

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.evaluate.baselines.faiss import Score
    from genius.evaluate.baselines.generative import TrainingExamples
    from genius.model import Model

DECODER_BEAM = 50  # the paper's
LOOKUP_BEAM = 200
TRIE_BITS = 8  # per item around our codes: FAISS's RQ gets no fewer bytes than codes and trie together
TRAIN_ITEMS = 16_384  # of the train split that FAISS learns centroids from
SEARCH_BATCH = 64


class TopK(NamedTuple):
    """Ranked lists of a batch of queries, best first; short lists are padded with NO_ITEM and -inf."""

    rows: Ints  # (queries, k), rows of the pool
    scores: Floats  # (queries, k)

    @classmethod
    def empty(cls, queries: int, k: int) -> TopK:
        """Lists that are all padding."""
        rows = np.full((queries, k), NO_ITEM, dtype=np.int64)
        return cls(rows, np.full((queries, k), -np.inf, dtype=np.float32))

    def fill(self, query: int, rows: NDArray[np.integer], scores: NDArray[np.floating]) -> None:
        """Write the list of one query, best first; what is longer than k is dropped."""
        count = min(len(rows), self.rows.shape[1])
        self.rows[query, :count] = rows[:count]
        self.scores[query, :count] = scores[:count]


class System(ABC):
    """One way to search."""

    name: str  # in tables
    apart = False  # whether its searches are timed in a process of their own (search_times.py)
    _settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def settings(self) -> Mapping[str, Any]:
        """Every value that its answers depend on, beside the model and the pool."""
        return self._settings

    def supports(self, row: Row) -> bool:
        """Whether the system is made for this kind of row; other rows are not run."""
        return True

    @abstractmethod
    def index(self, pool: EncodedPool) -> None:
        """Make `pool` searchable, in place of any pool before."""

    @abstractmethod
    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` best items for each query."""

    @abstractmethod
    def bytes_per_item(self) -> float:
        """What the index takes per item, measured on its arrays: codes, vectors, graphs, ids."""


class CodeSearch(System):
    """The product's own search: by decoder, by lookup or by both, over the trie of codes.

    Vectors for re-ranking are kept as float16, as the store keeps them, and are counted with the trie.
    """

    def __init__(
        self,
        name: str,
        codebooks: Sequence[NDArray[Any]],
        options: SearchOptions,
        decoder: Decoder | None = None,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self.name = name
        self._options = options
        self._settings = asdict(options) | {
            "device": device,
            # a model's fingerprint leaves the decoder out
            "decoder": "" if decoder is None else fingerprint_tensors(decoder.state_dict()),
            **({"precision": precision} if precision != "float32" else {}),
        }
        self._sizes = [book.shape[-2] for book in codebooks]
        self._searcher = Searcher(codebooks, decoder, device, precision)
        self._segments: list[TrieSegment] = []
        self._vectors: NDArray[np.float16] | None = None
        self._items = 0

    def index(self, pool: EncodedPool) -> None:
        """Build the trie of the pool's codes; keep its vectors if they are used."""
        self._segments = [TrieSegment(Trie.build(pool.codes, self._sizes))]
        self._vectors = pool.phi.astype(np.float16) if self._options.rerank == "vectors" else None
        self._items = len(pool)

    def with_options(self, **changes: Any) -> CodeSearch:
        """The same index, searched with other options."""
        other = copy(self)
        other._options = replace(self._options, **changes)
        other._settings = {**self._settings, **changes}
        return other

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The `k` best items by the search's own score, or re-ranked; never more than the beam."""
        top = TopK.empty(len(queries), k)
        options = replace(self._options, k=min(k, self._options.beam))  # a search widens its beam to k
        for start in range(0, len(queries), SEARCH_BATCH):
            part = slice(start, min(start + SEARCH_BATCH, len(queries)))
            answers = self._searcher.search(
                self._segments,
                queries.z[part],
                options,
                phi=queries.phi[part],
                fetch=self._vectors,
            )
            for query, answer in enumerate(answers, start=start):
                top.fill(query, answer.rows, answer.scores)
        return top

    def bytes_per_item(self) -> float:
        """The trie's arrays (codes and item numbers) and, if kept, the vectors."""
        stored = sum(segment.trie.nbytes for segment in self._segments)
        stored += 0 if self._vectors is None else self._vectors.nbytes
        return stored / max(self._items, 1)


@dataclass
class SystemContext:
    """What systems are made from."""

    model: Model
    dataset: Dataset
    embedder: Embedder
    folder: Path  # for decoders that baselines train
    device: str = "cpu"
    generative: GenerativeConfig = GenerativeConfig()  # noqa: RUF009 (frozen)
    split: str = "test"  # whose union pool they memorize
    beam: int = 0  # of every search by a decoder; 0: the model's, or the paper's
    seed: int = 0  # of trained baselines and of FAISS's k-means
    scores: Mapping[str, Score] = field(default_factory=dict)  # of codes, by system; others: cosine
    _examples: dict[int, TrainingExamples] = field(default_factory=dict)
    _train_items: list[Floats] = field(default_factory=list)

    def options(self, method: str | None = None, **changes: Any) -> SearchOptions:
        """The model's default search with some values changed.

        Values chosen for lookup, where a wide beam is cheap, do not serve a decoder, nor the other way round:
        a method of the other kind starts from the paper's beam, or from the usual one of lookup.
        """
        known = {field.name for field in fields(SearchOptions)}
        values = {name: value for name, value in self.model.search_defaults.items() if name in known}
        default = values.get("method", "lookup")
        if method is not None and (method == "lookup") != (default == "lookup"):
            values = {"beam": LOOKUP_BEAM if method == "lookup" else DECODER_BEAM}
        values |= {"method": method or default}
        if self.beam and values["method"] != "lookup":
            values["beam"] = self.beam
        return SearchOptions(**(values | changes))

    def train_items(self) -> Floats:
        """phi of items of the train split, a sample that is encoded once, when it is first needed."""
        if not self._train_items:
            from genius.evaluate.cache import key_of, read_items

            if "train" not in self.dataset.splits():
                raise BadInput("no train split to learn centroids from: leave the systems called …-train out")
            items = sorted(self.dataset.pool("train", None), key=lambda item: key_of(item.id.encode()))
            sample = read_items(items[:TRAIN_ITEMS], fuses=self.embedder.fuses)
            self._train_items.append(self.embedder.pool(sample).phi)
        return self._train_items[0]

    def examples(self, task: int) -> Callable[[], TrainingExamples]:
        """Train queries of a task, read once, when they are first needed."""
        from genius.evaluate.baselines.generative import read_examples

        def read() -> TrainingExamples:
            if task not in self._examples:
                limit = self.generative.queries
                found = read_examples(self.dataset, self.embedder, {task}, limit, self.split)
                self._examples[task] = found
            return self._examples[task]

        return read


Make = Callable[[SystemContext], System]


def _exact(context: SystemContext) -> System:
    from genius.evaluate.baselines.exact import Exact

    return Exact(context.device)


def _code_search(name: str, **changes: Any) -> Make:
    def make(context: SystemContext) -> System:
        options = context.options(**changes)
        decoder = None if options.method == "lookup" else context.model.decoder
        if decoder is None and options.method != "lookup":
            raise BadInput(f"{name} needs a decoder, and this model has none: train one, or leave {name} out")
        return CodeSearch(name, context.model.codebooks(), options, decoder, context.device)

    return make


def _fitted(name: str, rerank: Literal["codes", "vectors"]) -> Make:
    def make(context: SystemContext) -> System:
        from genius.evaluate.baselines.fitted import FittedCodes
        from genius.quantize.fit import FitOptions

        options = SearchOptions(method="lookup", rerank=rerank, beam=LOOKUP_BEAM)
        return FittedCodes(name, options, FitOptions(item_bytes=len(context.model.sizes), seed=context.seed))

    return make


def _faiss(function: str, **values: Any) -> Make:
    def make(context: SystemContext) -> System:
        from genius.evaluate.baselines import faiss

        system: System = getattr(faiss, function)(**values)
        return system

    return make


def _faiss_codes(name: str, **values: Any) -> Make:
    """FAISS's codes under `name`, scored as context says."""

    def make(context: SystemContext) -> System:
        from genius.evaluate.baselines import faiss

        function: Callable[..., System] = getattr(faiss, name.removesuffix("-train").replace("-", "_"))
        known = dict(values, seed=context.seed, score=context.scores.get(name, "cosine"))
        if name.endswith("-train"):
            known["learn_from"] = context.train_items
        if function is faiss.faiss_rq:
            bits = max(context.model.sizes).bit_length() - 1
            own = sum((size - 1).bit_length() for size in context.model.sizes)
            known |= {"bits": bits, "levels": -(-(own + TRIE_BITS) // bits)}
        return function(**known)

    return make


def _generative(name: str) -> Make:
    def make(context: SystemContext) -> System:
        from genius.evaluate.baselines.generative import KINDS, GenerativeBaseline

        config = replace(context.generative, seed=context.seed)
        examples = context.examples(KINDS[name].task)
        return GenerativeBaseline(name, examples, config, context.device, context.folder)

    return make


# genius: the decoder's score alone, the paper's GENIUS. decoder+…: its beams re-ranked, the paper's GENIUS^R.
# lookup+…: the same codes without a decoder. fitted+…: codes learned from the searched pool, by lookup.
OURS: Mapping[str, Make] = {
    "exact": _exact,
    "genius": _code_search("genius", method="generate", rerank="none"),
    "decoder+codes": _code_search("decoder+codes", method="generate", rerank="codes"),
    "decoder+vectors": _code_search("decoder+vectors", method="generate", rerank="vectors"),
    "lookup+codes": _code_search("lookup+codes", method="lookup", rerank="codes"),
    "lookup+vectors": _code_search("lookup+vectors", method="lookup", rerank="vectors"),
    "fitted+codes": _fitted("fitted+codes", "codes"),
    "fitted+vectors": _fitted("fitted+vectors", "vectors"),
}
TRAINED = tuple(name for name in OURS if name != "exact" and not name.startswith("fitted"))  # by a recipe
CODE_BASELINES: Mapping[str, Make] = {
    name: _faiss_codes(name)
    for name in ("ivf-pq", "ivf-pq-train", "pq", "pq-train", "faiss-rq", "faiss-rq-train")
}
FAISS: Mapping[str, Make] = {
    "faiss-flat": _faiss("flat"),
    "flat-float16": _faiss("flat", width="float16"),
    "flat-int8": _faiss("flat", width="int8"),
    "hnsw": _faiss("hnsw"),
    "hnsw-float16": _faiss("hnsw", width="float16"),
    "hnsw-int8": _faiss("hnsw", width="int8"),
    "ivf-pq-best": _faiss("ivf_pq_best"),
    **CODE_BASELINES,
}
GENERATIVE: Mapping[str, Make] = {
    name: _generative(name)
    for name in ("grace-numeric", "grace-string", "grace-semantic", "grace-structured", "irgen", "dsi-nci")
}
SYSTEMS: Mapping[str, Make] = {**OURS, **FAISS, **GENERATIVE}
SEEDED = {*GENERATIVE, *CODE_BASELINES, "fitted+codes", "fitted+vectors"}  # others have one answer
SETS: Mapping[str, Sequence[str]] = {
    "ours": tuple(OURS),
    "faiss": tuple(FAISS),
    "generative": tuple(GENERATIVE),
    "all": (*OURS, *FAISS),  # generative baselines train for hours before their figures mean anything
}


def system_names(text: str) -> list[str]:
    """The systems in a list such as `exact,hnsw` or `ours,faiss`; an unknown name is refused."""
    names: dict[str, None] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word not in SYSTEMS and word not in SETS:
            raise BadInput(f"unknown system {word!r}: choose from {', '.join((*SYSTEMS, *SETS))}")
        names |= dict.fromkeys(SETS.get(word, [word]))
    if not names:
        raise BadInput(f"no system named: choose from {', '.join((*SYSTEMS, *SETS))}")
    return list(names)


def make_systems(names: Sequence[str], context: SystemContext, seeds: int = 1) -> list[System]:
    """The systems called `names`; one that depends on a seed is made once for each of `seeds` seeds."""
    return [
        SYSTEMS[name](replace(context, seed=context.seed + number))
        for name in names
        for number in range(seeds if name in SEEDED else 1)
    ]
