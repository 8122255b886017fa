"""What fitted codes can learn from labelled pairs: code vectors tuned for ranking, and a decoder.

The codes of a collection are fitted without labels. Pairs of a query and an item it should find (clicks,
captions) let the code vectors learn to rank (`genius.quantize.tune`), and a decoder learn the codes of the
collection (stage 2). A part of the pairs, with separate items, is held out: what was learned is kept only
if it finds more for these queries.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from genius.config import OptimiserConfig, TuningConfig
from genius.data.pairs import Pairs, build_pairs
from genius.decode.init import fresh_decoder
from genius.decode.model import Decoder
from genius.decode.shape import DecoderShape
from genius.decode.targets import SoftTargetOptions
from genius.decode.train import DecoderObjective, train_decoder
from genius.decode.validation import CodePool, best_items
from genius.errors import BadInput
from genius.hit_rate import hits
from genius.quantize.model import Quantizer
from genius.quantize.tune import tune
from genius.seeding import seed_for

Floats = NDArray[np.float32]


class VectorsByRow(Protocol):
    """An array of embeddings, or what reads them from a disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The embeddings of these rows, (n, dim)."""


MIN_PAIRS = 100
AT = (1, 5, 10)  # the k of the hit rates; their mean decides
OBJECTIVE = DecoderObjective(plain=0.3, soft=SoftTargetOptions(softness=0.2, toward_query=0.3), indexing=0.5)
QUERIES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class HintOptions:
    """How labelled pairs are used; the defaults take minutes on two cores."""

    held_out: float = 0.2  # share of the items that pairs name, whose pairs decide what is kept
    items: int = 50_000  # of the collection that are looked at, at most; those that pairs name come first
    tuning: TuningConfig = TuningConfig(steps=200)  # noqa: RUF009 (frozen)
    decoder_steps: int = 600
    batch: int = 128  # of the decoder
    beam: int = 50  # of the decoder's search
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HintReport:
    """What was learned from pairs, and what was kept of it."""

    queries: int  # distinct queries learned from
    held_out: int  # queries that decided
    hit_rates: Mapping[
        str, Mapping[str, float]
    ]  # of the held-out queries: exact, codes, tuned codes, decoder
    tuned: bool  # the tuned code vectors are kept
    decoder: bool  # the decoder is kept, and should answer instead of lookup
    why: tuple[str, ...]  # one sentence for each decision

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


class HintResult(NamedTuple):
    """What to use from now on: None where nothing better was learned."""

    quantizer: Quantizer | None  # items have to be encoded again
    decoder: Decoder | None  # for the codes of `quantizer`, or of the one given where that is None
    report: HintReport


def learn_from_pairs(
    quantizer: Quantizer,
    item_vectors: VectorsByRow,
    item_modality: NDArray[np.integer[Any]],
    query_vectors: Floats,
    positives: Sequence[Sequence[int]],
    options: HintOptions = HintOptions(),  # noqa: B008 (frozen)
    *,
    decoder: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> HintResult:
    """Tune the codes of fitted `quantizer` to pairs and, if asked to, train a decoder on the codes.

    `item_vectors` (items, dim), which may be memory-mapped, are the embeddings of the collection,
    `query_vectors` (queries, dim) those of queries, `positives` the rows of the items each should find.
    Raises BadInput when there are too few pairs to learn from and to decide by.
    """
    require_pairs(positives)
    train, held_out = _split(item_vectors, item_modality, query_vectors, positives, options)
    trial = Trial(held_out, options.beam)
    before = trial.by_codes(quantizer)
    rates = {"exact": trial.exact().rates(), "codes": before.rates()}
    progress("tuning the codes with pairs")
    tuned = copy.deepcopy(quantizer)
    plan = options.tuning.model_copy(update={"batch": min(options.tuning.batch, train.queries)})
    tune(tuned, train, plan, options.seed)
    after = trial.by_codes(tuned)
    rates["tuned codes"] = after.rates()
    keep_tuned, why = _decide("tuned codes", after, "the fitted codes", before)
    reasons, kept = [why], tuned if keep_tuned else quantizer
    learned = None
    if decoder:
        progress("training a decoder with pairs")
        learned = _train_decoder(kept, train, options)
        by_decoder = trial.by_decoder(kept, learned)
        rates["decoder"] = by_decoder.rates()
        keep_decoder, why = _decide("the decoder", by_decoder, "lookup", after if keep_tuned else before)
        reasons.append(why)
        learned = learned if keep_decoder else None
    report = HintReport(
        train.queries, held_out.queries, rates, keep_tuned, learned is not None, tuple(reasons)
    )
    return HintResult(tuned if keep_tuned else None, learned, report)


def require_pairs(positives: Sequence[Sequence[int]]) -> None:
    """Raise BadInput when there are too few pairs to learn from."""
    count = sum(map(len, positives))
    if count < MIN_PAIRS:
        raise BadInput(
            f"{count} labelled pairs are too few to learn from: collect at least {MIN_PAIRS}, "
            "or fit without pairs"
        )


class Found(NamedTuple):
    """Which of the first items of held-out queries were right."""

    right: Tensor  # (queries, max(AT)) bool

    def rates(self) -> dict[str, float]:
        """Hit rates."""
        return {f"hit@{k}": round(float(hits(self.right, k).float().mean()), 4) for k in AT}

    def values(self) -> Tensor:
        """One number for each query: the mean of its hits at each k."""
        return torch.stack([hits(self.right, k).double() for k in AT]).mean(0)


class Trial:
    """Searches for the held-out queries."""

    def __init__(self, pairs: Pairs, beam: int) -> None:
        every = torch.arange(pairs.queries)
        self._pairs, self._beam = pairs, beam
        self._queries = F.normalize(torch.add(*pairs.query_parts(every)), dim=1)
        self._items = F.normalize(pairs.images[:-1].float(), dim=1)

    def exact(self) -> Found:
        """By the embeddings of all items."""
        return self._nearest(self._items)

    @torch.no_grad()
    def by_codes(self, quantizer: Quantizer) -> Found:
        """By the codes of all items."""
        return self._nearest(quantizer.directions(quantizer.encode(self._items, self._pairs.item_modality)))

    @torch.no_grad()
    def by_decoder(self, quantizer: Quantizer, decoder: Decoder) -> Found:
        """By the decoder's own score in a beam search."""
        pool = CodePool.build(quantizer.encode(self._items, self._pairs.item_modality), quantizer.sizes)
        parts = torch.split(self._queries, QUERIES_AT_ONCE)
        return self._found([best_items(decoder, pool, part, self._beam, max(AT)) for part in parts])

    def _nearest(self, items: Tensor) -> Found:
        k = min(max(AT), len(items))
        parts = torch.split(self._queries, QUERIES_AT_ONCE)
        return self._found([(part @ items.T).topk(k).indices for part in parts])

    def _found(self, parts: Sequence[Tensor]) -> Found:
        rows = torch.cat(list(parts))
        query = torch.arange(len(rows))[:, None]
        return Found(self._pairs.are_positive(query, rows.clamp_min(0)) & (rows >= 0))


def _decide(new: str, learned: Found, old: str, before: Found) -> tuple[bool, str]:
    """Whether what was learned finds more, by more than chance would explain, and a sentence on it."""
    gain = learned.values() - before.values()
    mean, error = float(gain.mean()), float(gain.std() / len(gain) ** 0.5)
    figures = f"{mean:+.3f} hits a query on {len(gain)} held-out queries, standard error {error:.3f}"
    kept = mean > 2 * error
    return kept, f"{new} {'kept' if kept else 'dropped'}, {old} compared: {figures}"


def _train_decoder(quantizer: Quantizer, train: Pairs, options: HintOptions) -> Decoder:
    shape = DecoderShape.preset("mini", quantizer.dim, quantizer.sizes, prefix=8)
    decoder = fresh_decoder(shape, quantizer.residual.codebooks(), options.seed).to(train.device)
    plan = OptimiserConfig(
        steps=options.decoder_steps, batch=options.batch, rate=1e-3, warmup=options.decoder_steps // 20,
        weight_decay=0.01, check_every=options.decoder_steps,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        train_decoder(
            decoder, quantizer, train, None, plan, OBJECTIVE,
            folder=Path(folder), seed=options.seed, show=False,
        )  # fmt: skip
    return decoder.eval().requires_grad_(False)


def _split(
    item_vectors: VectorsByRow,
    item_modality: NDArray[np.integer[Any]],
    query_vectors: Floats,
    positives: Sequence[Sequence[int]],
    options: HintOptions,
) -> tuple[Pairs, Pairs]:
    """Pairs to learn from and pairs to decide by; no item is a positive in both, nor is any query in both."""
    wanted: dict[bytes, tuple[int, set[int]]] = {}  # equal queries are one, with the items of all of them
    for number, (vector, rows) in enumerate(zip(query_vectors, positives, strict=True)):
        if len(rows):
            wanted.setdefault(vector.tobytes(), (number, set()))[1].update(map(int, rows))
    named = sorted({row for _, rows in wanted.values() for row in rows})
    random = np.random.default_rng(seed_for(options.seed, "hints"))
    held = {row for row in named if random.random() < options.held_out}
    sides: dict[bool, list[tuple[int, set[int]]]] = {True: [], False: []}
    for query in wanted.values():
        sides[not held.isdisjoint(query[1])].append(query)
    if min(map(len, sides.values())) < MIN_PAIRS * options.held_out / 2:
        raise BadInput(
            f"the pairs name {len(named)} items and {len(wanted)} queries: too few differ to hold some out; "
            "collect pairs for more items, or fit without pairs"
        )
    others = np.setdiff1d(np.arange(len(item_vectors)), named)
    room = max(0, options.items - len(named))
    more = random.choice(others, room, replace=False) if len(others) > room else others
    kept = np.sort(np.concatenate([np.array(named, dtype=np.int64), more]))
    place = {int(row): new for new, row in enumerate(kept.tolist())}
    vectors = np.asarray(item_vectors[kept], dtype=np.float32)

    def pairs(side: list[tuple[int, set[int]]]) -> Pairs:
        queries = np.stack([query_vectors[number] for number, _ in side]).astype(np.float32)
        return build_pairs(
            vectors,
            queries,
            query_image=[-1] * len(side),
            query_texts=[[number] for number in range(len(side))],
            positives=[sorted(place[row] for row in rows) for _, rows in side],
            item_image=range(len(kept)),
            item_text=[-1] * len(kept),
            item_modality=item_modality[kept].tolist(),
        )

    return pairs(sides[False]), pairs(sides[True])
