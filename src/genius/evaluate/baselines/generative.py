"""Generative baselines that memorize their pool: the decoder learns which identifier belongs to which item.

    memorize   an item's own embedding   -> its identifier, for all items of the union pool and of train
    retrieve   a train query's embedding -> the identifier of one of its positives

Unlike GENIUS, whose codes follow from an item's content, such a system has to learn every new item. A row's
own pool is a part of the union pool: one training serves both settings. Searching is our beam search over the
trie of the pool's identifiers, by the decoder's score alone. The baselines differ in their identifiers only:

    grace-*   images asked for by text (Li et al., ACL 2024), the four kinds of identifiers it compares
    irgen     images as residual codes learned from images alone (Zhang et al., ECCV 2024)
    dsi-nci   texts under paths of hierarchical k-means (Tay et al., 2022; NCI: Wang et al., 2022)

Not kept of the originals: their large pretrained models. The encoder's embeddings stand in for them, and a
decoder as large as ours learns from scratch, from as many samples; so a string identifier is a word of random
letters, IRGen's tokenizer is plain residual k-means, and NCI's generated queries and prefix-aware decoder are
left out. `benchmarks/generative.py` chooses their learning rates and measures them.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Dataset, LabelledQuery, Row
from genius.data.instructions import TASKS
from genius.errors import BadInput, TrainingStopped
from genius.evaluate.baselines import identifiers
from genius.evaluate.baselines.identifiers import Identifiers
from genius.evaluate.cache import MODALITIES, key_of, read_items, read_queries
from genius.evaluate.embeddings import Embedder, EncodedPool, EncodedQueries, Floats
from genius.evaluate.options import GenerativeConfig
from genius.evaluate.systems import System, TopK
from genius.search.decoder import search_by_decoder
from genius.search.rank import rank
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder

Identify = Callable[[Floats, Sequence[str]], Identifiers]  # embeddings and ids of items -> identifiers
TRAIN = "train"
SEARCH_BATCH = 64
CURVE_POINTS = 8  # checkpoints, evenly spread over the steps, at which a training is watched


class Kind(NamedTuple):
    """What tells a generative baseline apart: its identifiers and the task it is made for."""

    identify: Identify
    task: int


KINDS: Mapping[str, Kind] = {
    "grace-numeric": Kind(lambda vectors, ids: identifiers.numbers(len(ids)), 0),
    "grace-string": Kind(lambda vectors, ids: identifiers.strings(ids), 0),
    "grace-semantic": Kind(lambda vectors, ids: identifiers.cluster_paths(vectors), 0),
    "grace-structured": Kind(
        lambda vectors, ids: identifiers.own_codes(identifiers.cluster_paths(vectors)), 0
    ),
    "irgen": Kind(lambda vectors, ids: identifiers.residual_codes(vectors), 0),
    "dsi-nci": Kind(lambda vectors, ids: identifiers.cluster_paths(vectors), 1),
}


@dataclass(frozen=True, slots=True)
class TrainingExamples:
    """Embeddings of train queries and of items, and the positives of each query."""

    queries: Floats  # (queries, dim), phi
    items: Floats  # (items, dim), phi: positives, and others to memorize
    item_ids: list[str]
    pairs: NDArray[np.int64]  # (pairs, 2): query row, item row
    digest: str


def read_examples(
    dataset: Dataset, embedder: Embedder, tasks: Collection[int], limit: int = 0, split: str = ""
) -> TrainingExamples:
    """The train queries of these tasks with their positives; at most `limit` queries of each row.

    Items of the modality that the tasks ask for are added from the union pool of `split`.
    """
    if TRAIN not in dataset.splits():
        raise BadInput(
            f"this system learns from a {TRAIN} split, and the data has none: leave the system out"
        )
    queries: list[LabelledQuery] = []
    for row in dataset.rows(TRAIN):
        if row.task in tasks:
            queries += islice(dataset.queries(TRAIN, row), limit or None)
    if not queries:
        raise BadInput(f"the {TRAIN} split has no queries of task {', '.join(map(str, sorted(tasks)))}")
    wanted = {item for query in queries for item in query.positives}
    modalities = {str(TASKS[task][1]) for task in tasks}
    more = (i for i in dataset.pool(split) if str(i.modality) in modalities) if split else ()
    items = {item.id: item for item in chain((i for i in dataset.pool(TRAIN) if i.id in wanted), more)}
    pool = embedder.pool(read_items(items.values(), fuses=embedder.fuses))
    encoded = embedder.queries(
        read_queries(queries, lambda q: dataset.instructions.chosen(q).sentence, fuses=embedder.fuses)
    )
    row_of = {item: row for row, item in enumerate(pool.ids)}
    pairs = [
        (number, row_of[item])
        for number, query in enumerate(queries)
        if encoded.valid[number]
        for item in query.positives
        if item in row_of
    ]
    if not pairs:
        raise BadInput(f"no {TRAIN} query has a readable positive in the {TRAIN} pool")
    digest = f"{pool.digest} {encoded.digest}"
    return TrainingExamples(encoded.phi, pool.phi, list(pool.ids), np.array(pairs, dtype=np.int64), digest)


class OutOfTime(TrainingStopped):
    """The time for training is spent; the next run goes on at the last checkpoint."""


class Trained(NamedTuple):
    """A decoder and the identifiers it knows."""

    key: str  # of all that it was trained on
    identifiers: Identifiers
    decoder: Decoder


class GenerativeBaseline(System):
    """A decoder that learns identifiers of items; made for rows of one task."""

    def __init__(
        self,
        name: str,
        examples: Callable[[], TrainingExamples],
        config: GenerativeConfig | None = None,
        device: str = "cpu",
        folder: Path | None = None,
        identify: Identify | None = None,
        *,
        watch: Callable[[System], float] | None = None,
        until: float = math.inf,
    ) -> None:
        """`examples` is called when the first pool is indexed; `folder` keeps trained decoders by content.

        `watch` gives the hit rate at each point of the training's `curve`, and the best weights are kept;
        without it the last. Training past `until` (time.monotonic) raises OutOfTime.
        """
        if name not in KINDS:
            raise BadInput(f"unknown generative baseline {name!r}: choose one of {', '.join(KINDS)}")
        self.name, self._task = name, KINDS[name].task
        self._identify = identify or KINDS[name].identify
        self._examples, self._config = examples, config or GenerativeConfig()
        self._device, self._folder, self._watch, self._until = device, folder, watch, until
        self.curve: list[tuple[int, float]] = []  # steps and hit rate, where the training was watched
        self._trained: Trained | None = None
        self._segment: TrieSegment | None = None
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def settings(self) -> Mapping[str, Any]:
        """How it was trained, and on what."""
        return asdict(self._config) | {"learned": self._examples().digest}

    def supports(self, row: Row) -> bool:
        """Rows of the task it is made for."""
        return row.task == self._task

    def index(self, pool: EncodedPool) -> None:
        """Assign identifiers to all items of the right modality and train a decoder on them.

        A pool all of whose items were memorized before, as a part of the union pool, costs no training.
        """
        wanted = [str(modality) for modality in MODALITIES].index(str(TASKS[self._task][1]))
        self._rows = np.flatnonzero(pool.modality == wanted)
        if not len(self._rows):
            raise BadInput(f"{self.name}: the pool has no item of the modality it searches")
        examples = self._examples()
        row_of = {item: number for number, item in enumerate(examples.item_ids)}
        own = [pool.ids[row] for row in self._rows.tolist()]
        new = [number for number, item in enumerate(own) if item not in row_of]
        row_of |= {own[number]: len(examples.item_ids) + n for n, number in enumerate(new)}
        key = key_of(
            examples.digest.encode(), *(own[n].encode(errors="surrogatepass") for n in new),
            pool.digest.encode() if new else b"", f"{self.name} {self._config}".encode(),
        ).hex()  # fmt: skip
        known = self._trained if self._trained is not None and self._trained.key == key else None
        vectors = examples.items
        if known is None:
            vectors = np.concatenate([examples.items, pool.phi[self._rows[new]]])
            assigned = self._identify(vectors, list(row_of))
            self._trained = Trained(key, assigned, self._fresh_decoder(vectors.shape[1], assigned.sizes))
        assert self._trained is not None
        assigned = self._trained.identifiers
        codes = assigned.codes[[row_of[item] for item in own]]
        self._segment = TrieSegment(Trie.build(codes, assigned.sizes))
        if known is None:
            self._train(self._trained, vectors, examples)

    def search(self, queries: EncodedQueries, k: int) -> TopK:
        """The items whose identifiers the decoder finds most likely."""
        assert self._segment is not None
        assert self._trained is not None
        top = TopK.empty(len(queries), k)
        for start in range(0, len(queries), SEARCH_BATCH):
            (leaves,) = search_by_decoder(
                [self._segment],
                self._trained.decoder,
                np.ascontiguousarray(queries.phi[start : start + SEARCH_BATCH]),
                None,
                beam=max(self._config.beam, k),
                leaves=k,
                stop=len(self._segment.trie.sizes),
                suffixes=True,
                device=self._device,
            )
            for query, best in enumerate(rank(self._segment.trie, leaves, k), start=start):
                top.fill(query, self._rows[best.rows], best.scores)
        return top

    def bytes_per_item(self) -> float:
        """The trie of the identifiers; the weights that know the items do not count here."""
        return 0.0 if self._segment is None else self._segment.trie.nbytes / len(self._rows)

    def _fresh_decoder(self, dim: int, sizes: tuple[int, ...]) -> Decoder:
        from genius.decode.init import initialise
        from genius.decode.model import Decoder
        from genius.decode.shape import DecoderShape
        from genius.seeding import generator_for

        config = self._config
        shape = DecoderShape(dim, sizes, *config.network, prefix=config.prefix, dropout=config.dropout)
        decoder = Decoder(shape)
        initialise(decoder, generator_for("cpu", config.seed, self.name))
        return decoder.to(self._device)

    def _train(self, trained: Trained, vectors: Floats, examples: TrainingExamples) -> None:
        """Train the decoder on the identifiers of all items and on the positives of the train queries."""
        import torch

        from genius.config import OptimiserConfig
        from genius.decode.targets import level_losses
        from genius.seeding import generator_for
        from genius.training.compiled import compiled
        from genius.training.log import read_log
        from genius.training.loop import run

        config, device, decoder = self._config, self._device, trained.decoder
        items = torch.from_numpy(vectors).to(device)
        codes = torch.from_numpy(trained.identifiers.codes).to(device)
        query_rows, positives = examples.pairs.T
        queries = torch.from_numpy(np.ascontiguousarray(examples.queries[query_rows])).to(device)
        targets = torch.from_numpy(np.ascontiguousarray(positives)).to(device)
        memorized = round(config.memorize * config.batch)
        spread = config.noise * items.shape[1] ** -0.5

        def loss(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return level_losses(decoder(z, target), target).mean()

        fast = compiled(loss, items.device) if items.is_cuda else loss

        def step(number: int) -> dict[str, torch.Tensor]:
            if time.monotonic() > self._until:
                raise OutOfTime(f"{self.name}: no time is left at step {number}; run again to go on")
            generator = generator_for(device, config.seed, "batch", number)
            rows = torch.randint(len(items), (memorized,), generator=generator, device=device)
            size = (config.batch - memorized,)
            pairs = torch.randint(len(queries), size, generator=generator, device=device)
            noise = torch.randn(memorized, items.shape[1], generator=generator, device=device)
            noisy = torch.nn.functional.normalize(items[rows] + spread * noise, dim=1)
            target = codes[torch.cat([rows, targets[pairs]])]
            return {"loss": fast(torch.cat([noisy, queries[pairs]]), target)}

        plan = OptimiserConfig(
            steps=config.steps,
            batch=config.batch,
            rate=config.rate,
            warmup=min(config.warmup, config.steps // 4),
            weight_decay=config.weight_decay,
            precision=config.precision,
            check_every=max(1, config.steps // CURVE_POINTS),
        )
        settings = {"shape": asdict(decoder.shape), "config": asdict(config), "key": trained.key}

        watch = self._watch
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if self._folder is None else self._folder / trained.key
            folder.mkdir(parents=True, exist_ok=True)
            run(
                self.name, decoder, step, plan, folder=folder, seed=config.seed, settings=settings,
                validate=None if watch is None else lambda: {"hit@5": watch(self)}, show=False,
            )  # fmt: skip
            self.curve = [
                (entry["step"], entry["hit@5"])
                for entry in read_log(folder / "log.jsonl")
                if "hit@5" in entry
            ]
        decoder.eval()
