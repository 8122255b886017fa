"""Generative systems that memorize their pool: the decoder learns which identifier belongs to which item.

    memorize   an item's own vector    -> its identifier, for all items of the union pool and of train
    retrieve   a train query's vector  -> the identifier of an item it asks for

Unlike GENIUS, whose codes follow from an item's content, such a system has to learn every new item. A row's
own pool is a part of the union pool: one training serves both settings. Searching is our beam search over the
trie of the pool's identifiers, by the decoder's score alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from genius.data.base import Row
from genius.errors import BadInput
from genius.evaluate.baselines.schooling import Schooling
from genius.evaluate.cache import key_of
from genius.evaluate.encoding import Floats, Pool, Questions
from genius.evaluate.examples import Examples
from genius.evaluate.systems import Found, empty, fill
from genius.search.decoder import search_by_decoder
from genius.search.rank import rank
from genius.search.segment import TrieSegment
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.decode.model import Decoder
    from genius.evaluate.baselines.identifiers import Identifiers

Name = Callable[[Floats, Sequence[str]], "Identifiers"]  # vectors and ids of items -> identifiers
AT_ONCE = 64
KEPT_EVERY = 500  # steps between checkpoints, from which a stopped training goes on


class Memorizing:
    """A decoder that learns identifiers of items; made for rows of `tasks` whose items have `modality`."""

    def __init__(
        self,
        name: str,
        identify: Name,
        examples: Callable[[], Examples],
        tasks: Collection[int],
        modality: int,
        schooling: Schooling = Schooling(),  # noqa: B008 (frozen)
        device: str = "cpu",
        folder: Path | None = None,
    ) -> None:
        """`examples` is called when the first pool is learned; `folder` keeps trained decoders by content."""
        self.name = name
        self._identify, self._examples, self._tasks, self._modality = identify, examples, tasks, modality
        self._schooling, self._device, self._folder = schooling, device, folder
        self._decoder: Decoder | None = None
        self._identifiers: Identifiers | None = None
        self._mark = ""
        self._segment: TrieSegment | None = None
        self._rows: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def settings(self) -> Mapping[str, Any]:
        """How it was trained, and on what."""
        return asdict(self._schooling) | {"learned": self._examples().digest}

    def answers(self, row: Row) -> bool:
        """Rows of the tasks it is made for."""
        return row.task in self._tasks

    def index(self, pool: Pool) -> None:
        """Name all items of the right modality and train a decoder on their names.

        A pool all of whose items were memorized before, as a part of the union pool, costs no training.
        """
        self._rows = np.flatnonzero(pool.modality == self._modality)
        if not len(self._rows):
            raise BadInput(f"{self.name}: the pool has no item of the modality it searches")
        learned = self._examples()
        place = {item: number for number, item in enumerate(learned.item_ids)}
        own = [pool.ids[row] for row in self._rows.tolist()]
        new = [number for number, item in enumerate(own) if item not in place]
        place |= {own[number]: len(learned.item_ids) + n for n, number in enumerate(new)}
        mark = key_of(
            learned.digest.encode(), *(own[n].encode(errors="surrogatepass") for n in new),
            pool.digest.encode() if new else b"", f"{self.name} {self._schooling}".encode(),
        ).hex()  # fmt: skip
        if mark != self._mark or self._identifiers is None:
            vectors = np.concatenate([learned.items, pool.phi[self._rows[new]]])
            self._identifiers = self._identify(vectors, list(place))
            asked, wanted = learned.pairs.T
            self._decoder = self._learn(vectors, self._identifiers, learned.queries[asked], wanted, mark)
            self._mark = mark
        codes = self._identifiers.codes[[place[item] for item in own]]
        self._segment = TrieSegment(Trie.build(codes, self._identifiers.sizes))

    def search(self, questions: Questions, k: int) -> Found:
        """The items whose identifiers the decoder finds most likely."""
        assert self._segment is not None
        assert self._decoder is not None
        found = empty(len(questions), k)
        for start in range(0, len(questions), AT_ONCE):
            (answers,) = search_by_decoder(
                [self._segment],
                self._decoder,
                np.ascontiguousarray(questions.phi[start : start + AT_ONCE]),
                None,
                beam=max(self._schooling.beam, k),
                leaves=k,
                stop=len(self._segment.trie.sizes),
                suffixes=True,
                device=self._device,
            )
            for query, best in enumerate(rank(self._segment.trie, answers, k), start=start):
                fill(found, query, self._rows[best.rows], best.scores)
        return found

    def bytes_per_item(self) -> float:
        """The trie of the identifiers; the weights that know the items do not count here."""
        return 0.0 if self._segment is None else self._segment.trie.nbytes / len(self._rows)

    def _learn(
        self,
        vectors: Floats,
        identifiers: Identifiers,
        queries: Floats,
        targets: NDArray[np.int64],
        mark: str,
    ) -> Decoder:
        """A decoder trained on identifiers of all items and on the queries that ask for some of them."""
        import torch

        from genius.config import OptimiserConfig
        from genius.decode.initial import initialise
        from genius.decode.model import Decoder, DecoderShape
        from genius.decode.targets import level_losses
        from genius.seeding import generator_for
        from genius.training.loop import run

        plan = self._schooling
        heads = max(1, plan.width // 64)
        shape = DecoderShape(
            vectors.shape[1], identifiers.sizes, plan.layers, plan.width, heads,
            plan.width // heads, 4 * plan.width, prefix=4, dropout=0.1,
        )  # fmt: skip
        decoder = Decoder(shape)
        initialise(decoder, generator_for("cpu", plan.seed, self.name))
        decoder.to(self._device)
        items = torch.from_numpy(vectors).to(self._device)
        codes = torch.from_numpy(identifiers.codes).to(self._device)
        asked = torch.from_numpy(np.ascontiguousarray(queries)).to(self._device)
        wanted = torch.from_numpy(targets).to(self._device)
        own = round(plan.memorize * plan.batch)

        def step(number: int) -> dict[str, torch.Tensor]:
            generator = generator_for(self._device, plan.seed, "batch", number)
            rows = torch.randint(len(items), (own,), generator=generator, device=self._device)
            pairs = torch.randint(len(asked), (plan.batch - own,), generator=generator, device=self._device)
            noise = torch.randn(own, items.shape[1], generator=generator, device=self._device)
            spread = plan.noise * items.shape[1] ** -0.5
            seen = torch.nn.functional.normalize(items[rows] + spread * noise, dim=1)
            target = codes[torch.cat([rows, wanted[pairs]])]
            return {"loss": level_losses(decoder(torch.cat([seen, asked[pairs]]), target), target).mean()}

        schedule = OptimiserConfig(
            steps=plan.steps,
            batch=plan.batch,
            rate=plan.rate,
            warmup=plan.steps // 20,
            check_every=KEPT_EVERY,
        )
        with tempfile.TemporaryDirectory() as scratch:
            kept = Path(scratch) if self._folder is None else self._folder / mark
            kept.mkdir(parents=True, exist_ok=True)
            settings = {"shape": asdict(shape), "schooling": asdict(plan), "mark": mark}
            run(
                self.name, decoder, step, schedule, folder=kept, seed=plan.seed, settings=settings, show=False
            )
        return decoder.eval()
