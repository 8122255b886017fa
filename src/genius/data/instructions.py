"""Instructions: the sentences that say what is wanted, and how texts are written around them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genius.errors import BadData, BadInput
from genius.types import Modality

if TYPE_CHECKING:
    from genius.data.base import LabelledQuery

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.PAIR

# task id -> (modality of the query, modality of the item it wants); 5 is not in use
TASKS: Mapping[int, tuple[Modality, Modality]] = {
    0: (TEXT, IMAGE),
    1: (TEXT, TEXT),
    2: (TEXT, PAIR),
    3: (IMAGE, TEXT),
    4: (IMAGE, IMAGE),
    6: (PAIR, TEXT),
    7: (PAIR, IMAGE),
    8: (PAIR, PAIR),
}

# what is given -> what is wanted -> the sentence used where no dataset brings its own
DEFAULTS: Mapping[Modality, Mapping[Modality, str]] = {
    TEXT: {
        IMAGE: "Find the picture that this text describes.",
        TEXT: "Find a text that says the same in other words.",
        PAIR: "Find the captioned picture that this text is about.",
    },
    IMAGE: {
        IMAGE: "Find a picture of the same thing.",
        TEXT: "Find a text that describes this picture.",
        PAIR: "Find a picture of the same thing together with its caption.",
    },
    PAIR: {
        IMAGE: "Find the picture that shows this one with the requested change.",
        TEXT: "Find the text that answers the question about this picture.",
        PAIR: "Find the captioned picture that answers the question about this picture.",
    },
}


def clean(text: str | None) -> str:
    """`text` as M-BEIR writes it: no carriage returns, outer blanks or quotes; a capital, a full stop.

    Outer blanks go first, then outer quotes, each once as in UniIR: blanks inside the quotes stay. Nothing,
    or nothing but blanks and quotes, is "".
    """
    text = (text or "").replace("\r", "").strip().strip('"')
    if not text.strip(' \t\n"'):
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def query_text(instruction: str | None, text: str | None) -> str:
    """What the text tower reads of a query: the instruction, then the query's own text if it has one."""
    return clean(f"{clean(instruction)} {text or ''}")


# (given, wanted) that the engine asks without a sentence unless there is one: benchmarks/instructions.py
ASKED_PLAINLY = frozenset({(IMAGE, IMAGE), (IMAGE, TEXT), (IMAGE, PAIR), (TEXT, TEXT)})


def default_instruction(have: Modality, want: Modality) -> str:
    """The sentence for a query of modality `have` that wants `want`, where no dataset brings its own."""
    return DEFAULTS[have][want]


def engine_instruction(have: Modality, want: Modality) -> str:
    """What the engine puts before a query whose user gives no instruction; "" for nothing."""
    return "" if (have, want) in ASKED_PLAINLY else default_instruction(have, want)


class Instruction(NamedTuple):
    """One way to ask: `number` is its column in the table, from 1; `sentence` is the text."""

    number: int
    sentence: str


Key = tuple[str, Modality, Modality]  # dataset id, query modality, target modality


class Instructions:
    """The sentences of a dataset, several for each (dataset, query modality, target modality)."""

    def __init__(
        self, sentences: Mapping[Key, Iterable[Instruction]], names: Mapping[str, str], source: str
    ) -> None:
        self.names = dict(names)  # dataset id -> dataset name
        self._sentences = {key: tuple(several) for key, several in sentences.items()}
        self._source = source

    @classmethod
    def read(cls, file: Path) -> Instructions:
        """The table in M-BEIR's `query_instructions.tsv`; empty cells are left out."""
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadData(
                f"{file}: no instruction table ({error}); copy it from the M-BEIR release"
            ) from None
        sentences: dict[Key, list[Instruction]] = {}
        names: dict[str, str] = {}
        for number, line in enumerate(lines[1:], start=2):
            if not line.strip():
                continue
            have, want, name, dataset, *cells = [cell.strip() for cell in (line + "\t\t\t").split("\t")]
            try:
                key = (dataset, Modality.parse(have), Modality.parse(want))
            except BadInput as error:
                raise BadData(f"{file}:{number}: {error}") from None
            if not dataset:
                raise BadData(f"{file}:{number}: no dataset id; it is the fourth column")
            names[dataset] = name.lower()
            kept = [Instruction(column, cell) for column, cell in enumerate(cells, start=1) if cell]
            sentences.setdefault(key, []).extend(kept)
        return cls(sentences, names, str(file))

    def of(self, query: LabelledQuery) -> tuple[Instruction, ...]:
        """All ways to ask `query`, at least one."""
        several = self._sentences.get((query.dataset_id, query.modality, query.want), ())
        if not several:
            asked = f"dataset {query.dataset_id}, {query.modality} -> {query.want}"
            raise BadData(f"{self._source}: no instruction for {asked} (query {query.id}); add a line for it")
        return several

    def chosen(self, query: LabelledQuery) -> Instruction:
        """The one way that a hash of the query's id picks: the same on every run and machine."""
        several = self.of(query)
        digest = hashlib.blake2b(query.id.encode(errors="surrogatepass"), digest_size=8).digest()
        return several[int.from_bytes(digest, "big") % len(several)]
