"""BEIR's layout: queries, items and qrels of one's own, with images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from genius.data.base import Dataset, LabelledQuery, Row, find_format, open_dataset
from genius.data.beir import Beir
from genius.data.instructions import default_instruction
from genius.errors import BadData, BadInput
from genius.types import Item, Modality

QUERIES = [
    {"_id": "q1", "text": "a red sofa", "metadata": {}},
    {"_id": "q2", "text": "who wrote it", "instruction": "Answer this."},
    {"_id": "q3", "image": "pictures/q3.png"},
    {"_id": "q4", "text": "asked by nobody"},
    {"_id": "q5", "text": ""},
    {"_id": "q6", "text": "all answers are gone"},
]
ITEMS = [
    {"_id": "d1", "image": "pictures/d1.png"},
    {"_id": "d2", "title": "A book", "text": "by somebody"},
    {"_id": "d3", "text": ""},
    {"_id": "d2", "text": "again"},
]
HEAD = "query-id\tcorpus-id\tscore\n"
ROWS = "q1\td1\t1\nq1\td2\t0\nq2\td2\t2\nq3\td2\t1\nq5\td1\t1\nq6\tgone\t1\n"


def write(root: Path, name: str, records: list[dict[str, object]]) -> None:
    (root / name).write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    write(folder, "queries.jsonl", QUERIES)
    write(folder, "corpus.jsonl", ITEMS)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text(HEAD + ROWS)
    return folder


def test_rows_queries_and_qrels(root: Path) -> None:
    data = open_dataset("auto", root)
    assert isinstance(data, Dataset)
    assert isinstance(data, Beir)
    assert data.splits() == ["test"]
    to_image, to_text, from_image = Row("mine", 0), Row("mine", 1), Row("mine", 3)
    assert data.rows("test") == [to_image, to_text, from_image]
    assert list(data.queries("test", to_image)) == [
        LabelledQuery("q1", to_image, Modality.TEXT, "a red sofa", None, ("d1",))
    ]
    assert [query.id for query in data.queries("test")] == ["q1", "q2", "q3"]
    assert data.qrels("test", to_text) == {"q2": {"d2": 2}}
    assert data.qrels("test") == {"q1": {"d1": 1}, "q2": {"d2": 2}, "q3": {"d2": 1}}
    assert any("q6" in line for line in data.report.lines())


def test_the_pool_is_all_items(root: Path) -> None:
    data = Beir(root)
    expected = [Item("d1", root / "pictures/d1.png"), Item("d2", None, "A book by somebody.")]
    assert list(data.pool("test")) == expected == list(data.pool("test", Row("mine", 0)))
    assert any("d3" in line for line in data.report.lines())


def test_a_query_may_bring_its_instruction(root: Path) -> None:
    data = Beir(root)
    by_id = {query.id: data.instructions.chosen(query).sentence for query in data.queries("test")}
    assert by_id["q2"] == "Answer this."
    assert by_id["q1"] == default_instruction(Modality.TEXT, Modality.IMAGE)


def test_other_names_and_trec_qrels(root: Path) -> None:
    (root / "corpus.jsonl").rename(root / "items.jsonl")
    (root / "qrels" / "test.tsv").unlink()
    (root / "qrels.tsv").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    assert Beir(root).qrels("test") == {"q1": {"d1": 1}, "q2": {"d2": 1}}


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("queries.jsonl", "no json\n", r"queries\.jsonl:1"),
        ("queries.jsonl", '{"text": "x"}\n', "no _id"),
        ("queries.jsonl", '{"_id": "q1", "text": 3}\n', "a string is expected"),
        ("corpus.jsonl", '{"_id": "d1", "image": "../x.png"}\n', "leads out of the folder"),
        ("qrels/test.tsv", "q1\td1\t1\nq1\td1\n", r"test\.tsv:2: expected query-id"),
    ],
)
def test_broken_files_are_named(root: Path, file: str, text: str, complaint: str) -> None:
    (root / file).write_text(text)
    with pytest.raises(BadData, match=complaint):
        list(Beir(root).queries("test"))


def test_what_is_not_there_is_said(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no qrels of 'train'; it has test"):
        Beir(root).rows("train")
    with pytest.raises(BadInput, match="no row mine 8"):
        list(Beir(root).pool("test", Row("mine", 8)))
    with pytest.raises(BadData, match="no BEIR data here"):
        Beir(tmp_path)


def test_the_layout_is_found(root: Path, tmp_path: Path) -> None:
    assert find_format(root) == "beir"
    with pytest.raises(BadData, match=r"M-BEIR.*BEIR.*Karpathy"):
        find_format(tmp_path)
    (tmp_path / "dataset_coco.json").touch()
    assert find_format(tmp_path) == find_format(tmp_path / "dataset_coco.json") == "karpathy"
    (tmp_path / "query").mkdir()
    assert find_format(tmp_path) == "mbeir"
