"""Instructions: M-BEIR's text rules, the table, and the ways to choose a sentence."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.data.base import LabelledQuery, Row
from genius.data.instructions import (
    TASKS,
    Instruction,
    Instructions,
    clean,
    default_instruction,
    query_text,
)
from genius.errors import BadData
from genius.types import Modality


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ""),
        ("", ""),
        ('  " " ', ""),
        ("a cat", "A cat."),
        ("Is it?", "Is it?"),
        ("stop!", "Stop!"),
        ("done.", "Done."),
        (' "quoted" ', "Quoted."),
        ('" inner blank "', " inner blank ."),
        ('""double"" ', "Double."),
        ('" "twice" "', ' "twice" .'),
        ("line\r\nbreak\r", "Line\nbreak."),
        ('he said "hi" twice', 'He said "hi" twice.'),
        ("éclair", "Éclair."),
        ("42", "42."),
    ],
)
def test_clean(text: str | None, expected: str) -> None:
    assert clean(text) == expected


@given(st.text(st.characters(), max_size=40))
def test_clean_ends_every_text(text: str) -> None:
    once = clean(text)
    assert not once or once[-1] in ".?!"
    assert "\r" not in once


def test_query_text() -> None:
    assert query_text("find the photo", "a cat") == "Find the photo. a cat."
    assert query_text('"what is here?"', "in this room ") == "What is here? in this room."
    assert query_text("Name it.", None) == "Name it."
    assert query_text("Name it.", "") == "Name it."
    assert query_text(None, "a cat") == "A cat."
    assert query_text("", None) == ""


def labelled(qid: str, task: int) -> LabelledQuery:
    return LabelledQuery(qid, Row("some", task), TASKS[task][0])


def test_the_table_skips_empty_cells_and_keeps_column_numbers(mbeir_root: Path) -> None:
    table = Instructions.read(mbeir_root / "instructions" / "query_instructions.tsv")
    assert table.of(labelled("9:1", 0)) == (Instruction(1, "find the picture"), Instruction(3, "show it"))
    assert table.of(labelled("9:1", 3)) == (Instruction(1, '"what is here?"'),)
    assert len(table.of(labelled("5:1", 8))) == 4
    assert table.names == {"9": "mscoco", "5": "oven", "2": "webqa", "77": "empty"}


@pytest.mark.parametrize(("qid", "task"), [("9:1", 4), ("77:1", 0), ("123:1", 0)])
def test_a_query_without_instruction_is_an_error_that_names_it(mbeir_root: Path, qid: str, task: int) -> None:
    table = Instructions.read(mbeir_root / "instructions" / "query_instructions.tsv")
    with pytest.raises(BadData, match=rf"query_instructions\.tsv: no instruction for dataset .*query {qid}"):
        table.of(labelled(qid, task))


@pytest.mark.parametrize(
    ("line", "reason"), [("text\tsound\tx\t1\tHi.", "unknown modality"), ("text\timage", "no dataset id")]
)
def test_a_broken_table_names_its_line(tmp_path: Path, line: str, reason: str) -> None:
    file = tmp_path / "table.tsv"
    file.write_text(f"header\n{line}\n")
    with pytest.raises(BadData, match=rf"table\.tsv:2: {reason}"):
        Instructions.read(file)


def test_the_choice_by_hash_is_stable_and_even(mbeir_root: Path) -> None:
    table = Instructions.read(mbeir_root / "instructions" / "query_instructions.tsv")
    picks = [table.chosen(labelled(f"5:{number}", 8)).number for number in range(4000)]
    assert picks[:12] == [3, 4, 4, 4, 3, 1, 3, 2, 2, 2, 3, 1]  # by `printf 5:0 | b2sum -l 64`, and so on
    assert all(900 < count < 1100 for count in Counter(picks).values())


def test_tasks_and_defaults_cover_everything() -> None:
    assert {task: want.value for task, (_, want) in TASKS.items()} == {
        0: "image", 1: "text", 2: "pair", 3: "text", 4: "image", 6: "text", 7: "image", 8: "pair",
    }  # fmt: skip
    sentences = {default_instruction(have, want) for have in Modality for want in Modality}
    assert len(sentences) == 9
    assert all(clean(sentence) == sentence for sentence in sentences)
