"""MBeir on a root with every oddity of the format, and on the shared benchmark."""

import re
import shutil
import tarfile
from pathlib import Path

import pytest

from genius.data.base import Dataset, LabelledQuery, Row, open_dataset
from genius.data.mbeir import MBeir, Seen
from genius.errors import BadData, BadInput
from genius.types import Item, Modality, Query

COCO, COCO3, OVEN, OVEN8 = Row("mscoco", 0), Row("mscoco", 3), Row("oven", 6), Row("oven", 8)


def test_it_is_a_dataset(mbeir_root: Path) -> None:
    assert isinstance(open_dataset("mbeir", mbeir_root), Dataset)
    assert MBeir(mbeir_root).splits() == ["train", "test", "union_train", "union_val"]


def test_rows_come_from_names_and_from_the_lines_where_names_are_silent(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert data.rows("test") == [COCO, COCO3, OVEN, OVEN8]
    assert data.rows("train") == [Row("webqa", 1), Row("webqa", 2)]
    assert data.rows("val") == [COCO, OVEN]  # only a union file: ids are named by the instruction table
    assert str(COCO) == "mscoco 0"
    assert (COCO.have, COCO.want) == (Modality.TEXT, Modality.IMAGE)


def test_queries(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert list(data.queries("test", COCO)) == [
        LabelledQuery("9:1", COCO, Modality.TEXT, "a cat", None, ("9:1", "9:2")),
        LabelledQuery("9:2", COCO, Modality.TEXT, 'say "hi"', None, ("9:2",)),
    ]
    picture = mbeir_root / "mbeir_images" / "b.jpg"
    both = [*data.queries("test", OVEN), *data.queries("test", OVEN8)]
    assert both == [
        LabelledQuery("5:1", OVEN, Modality.PAIR, "what is it?", picture, ("6:1",)),  # of another dataset
        LabelledQuery("5:2", OVEN8, Modality.PAIR, None, picture, ("5:2",), ("5:3",)),
    ]
    assert [query.id for query in data.queries("test")] == ["9:1", "9:2", "9:3", "5:1", "5:2"]
    assert both[0].asked("Name it.") == Query("what is it?", picture, Modality.TEXT, "Name it.", "5:1")


def test_a_file_of_several_tasks_is_split_into_its_rows(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert [query.id for query in data.queries("train", Row("webqa", 1))] == ["2:1", "2:3"]
    assert [query.id for query in data.queries("train", Row("webqa", 2))] == ["2:2"]
    assert [query.id for query in data.queries("val", OVEN)] == ["5:50"]


def test_a_union_file_beside_the_rows_is_not_read_twice(mbeir_root: Path) -> None:
    folder = mbeir_root / "query" / "test"
    union = "".join(file.read_text() for file in sorted(folder.iterdir()))
    (folder / "mbeir_union_test.jsonl").write_text(union)
    assert len(list(MBeir(mbeir_root).queries("test"))) == 5


def test_the_balanced_union_keeps_its_repetitions(mbeir_root: Path) -> None:
    assert [query.id for query in MBeir(mbeir_root).queries("union_train")] == ["2:1", "2:2", "2:2"]
    assert [item.id for item in MBeir(mbeir_root).pool("union_train")] == ["2:1", "2:2"]


def test_pools_are_those_of_the_split(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert [item.id for item in data.pool("test", COCO)] == ["9:1", "9:2"]
    assert [item.id for item in data.pool("val", COCO)] == ["9:9"]
    assert [item.id for item in data.pool("val", OVEN)] == ["5:1", "6:1"]  # one file for all splits
    shared = mbeir_root / "cand_pool" / "local" / "mbeir_mscoco_task0_cand_pool.jsonl"
    shared.write_text('{"did": "9:7", "txt": "x", "img_path": null, "modality": "text"}\n')
    assert [item.id for item in data.pool("val", COCO)] == ["9:9"]  # the split's own file comes first
    with pytest.raises(BadData, match=r"webqa 1 has no pool of its own for train; read the union"):
        data.pool("train", Row("webqa", 1))


def test_items_have_the_parts_that_their_modality_names(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    images = mbeir_root / "mbeir_images"
    assert list(data.pool("test", OVEN8)) == [
        Item("5:2", images / "a.jpg", "Cat."),
        Item("5:3", images / "b.jpg", "Dog."),
        Item("5:4", images / "b.jpg"),
        Item("5:1", None, "Cat."),
        Item("odd id", None, "Odd."),
    ]
    assert next(iter(data.pool("test", COCO))) == Item("9:1", images / "a.jpg")
    assert [item.text for item in data.pool("test", COCO)] == [None, None]
    assert [item.text for item in data.pool("test", COCO3)] == ["A cat sits."]


def test_an_empty_item_is_left_out_and_named(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert [item.id for item in data.pool("test", COCO3)] == ["9:3"]
    (skipped,) = data.report.names
    assert skipped.name.endswith("mscoco_task3_test_cand_pool.jsonl:2")
    assert "9:4" in skipped.reason


def test_the_union_is_joined_from_local_pools_where_it_has_no_file(mbeir_root: Path) -> None:
    union = [item.id for item in MBeir(mbeir_root).pool("test")]
    assert sorted(union) == sorted(["9:1", "9:2", "9:3", "5:1", "6:1", "5:2", "5:3", "5:4", "odd id"])
    file = mbeir_root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl"
    file.write_text('{"did": "1:1", "txt": "only", "img_path": null, "modality": "text"}\n' * 2)
    assert [item.id for item in MBeir(mbeir_root).pool("test")] == ["1:1"]
    shutil.rmtree(mbeir_root / "cand_pool")
    with pytest.raises(BadData, match="no pools for test to join"):
        MBeir(mbeir_root).pool("test")


def test_qrels_leave_out_what_is_not_relevant(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root)
    assert data.qrels("test", COCO) == {"9:1": {"9:1": 1}, "9:2": {"9:2": 2}}
    assert data.qrels("test", COCO3) == {}
    assert data.qrels("test", OVEN) == {"5:1": {"6:1": 1}}  # one file for two tasks
    assert data.qrels("test") == data.qrels("test", COCO) | {"5:1": {"6:1": 1}, "5:2": {"5:2": 1}}
    assert data.qrels("val", OVEN) == {"5:50": {"5:1": 1}}  # no file: the queries' positives
    assert data.qrels("union_val") == {"9:50": {"9:9": 1}, "5:50": {"5:1": 1}}


def test_datasets_can_be_chosen(mbeir_root: Path) -> None:
    data = MBeir(mbeir_root, ["oven"])
    assert data.rows("test") == [OVEN, OVEN8]
    assert [query.id for query in data.queries("test")] == ["5:1", "5:2"]
    assert [query.id for query in data.queries("val")] == ["5:50"]
    assert len(list(data.pool("test"))) == 9  # the pool stays universal
    with pytest.raises(BadInput, match=r"no dataset 'ovne'.*it holds mscoco, oven"):
        MBeir(mbeir_root, ["ovne"]).rows("test")


def test_a_root_with_a_test_split_alone(mbeir_root: Path) -> None:
    for name in ("query/train", "query/union_train", "query/union_val", "cand_pool/global"):
        shutil.rmtree(mbeir_root / name)
    data = MBeir(mbeir_root)
    assert data.splits() == ["test"]
    assert len(data.rows("test")) == 4
    assert len(list(data.pool("test"))) == 9
    with pytest.raises(BadData, match="this root has test"):
        data.rows("train")
    with pytest.raises(BadInput, match="no row webqa 1 in test"):
        list(data.queries("test", Row("webqa", 1)))


def test_without_an_instruction_table_ids_are_named_as_released(mbeir_root: Path) -> None:
    shutil.rmtree(mbeir_root / "instructions")
    data = MBeir(mbeir_root)
    assert data.rows("val") == [COCO, OVEN]
    with pytest.raises(BadData, match="no instruction table"):
        _ = data.instructions


def test_no_data(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no M-BEIR data here"):
        MBeir(tmp_path)


GOOD = '"qid": "9:8", "query_modality": "text", "task_id": 0, "query_txt": "x"'
PAIR = GOOD.replace('"text"', '"image,text"')


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object is expected"),
        ("\xff", "not UTF-8"),
        ("{" + GOOD.replace('"9:8"', "null") + "}", "qid: a string is expected"),
        ("{" + GOOD.replace('"text"', '"sound"') + "}", "unknown modality 'sound'"),
        ("{" + GOOD.replace("0", "5") + "}", "task_id 5: M-BEIR has 0, 1, 2"),
        ("{" + GOOD.replace("0", "[]") + "}", "task_id"),
        ("{" + GOOD.replace('"text"', '"image"') + "}", "has no query_img_path"),
        ("{" + PAIR + ', "query_img_path": "/etc/passwd"}', "leads out of the data root"),
        ("{" + PAIR + ', "query_img_path": "a/../../x.jpg"}', "leads out of the data root"),
        ("{" + GOOD + ', "pos_cand_list": "9:1"}', "a list is expected"),
        ("{" + GOOD + ', "pos_cand_list": [{"id": 3}]}', "objects with a did"),
    ],
)
def test_a_broken_query_line_is_named(mbeir_root: Path, line: str, reason: str) -> None:
    file = mbeir_root / "query" / "test" / "mbeir_mscoco_task0_test.jsonl"
    with file.open("a", encoding="latin-1") as stream:
        stream.write(line + "\n")
    with pytest.raises(BadData, match=re.escape(f"{file}:4: ") + ".*" + re.escape(reason)):
        list(MBeir(mbeir_root).queries("test", COCO))


@pytest.mark.parametrize("line", ["9:1 0 9:1", "9:1 0 9:1 yes 0", "9:1 0 9:1 1 zero"])
def test_a_broken_qrels_line_is_named(mbeir_root: Path, line: str) -> None:
    file = mbeir_root / "qrels" / "test" / "mbeir_mscoco_task0_test_qrels.txt"
    with file.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(BadData, match=re.escape(f"{file}:5: expected 'query 0 item relevance task'")):
        MBeir(mbeir_root).qrels("test", COCO)


def test_a_broken_item_line_is_named_and_only_when_it_is_reached(mbeir_root: Path) -> None:
    file = mbeir_root / "cand_pool" / "local" / "mbeir_mscoco_task0_test_cand_pool.jsonl"
    with file.open("a") as stream:
        stream.write('{"did": "9:5", "modality": "image", "img_path": 3}\n')
    pool = MBeir(mbeir_root).pool("test", COCO)
    assert [next(pool).id, next(pool).id] == ["9:1", "9:2"]  # nothing behind was read yet
    with pytest.raises(BadData, match=re.escape(f"{file}:3: img_path: a string is expected")):
        next(pool)


def test_pools_and_queries_are_not_held(mbeir_root: Path) -> None:
    file = mbeir_root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl"
    line = '{"did": "1:%d", "txt": "text", "img_path": null, "modality": "text"}\n'
    file.write_text("".join(line % number for number in range(5000)))
    pool = MBeir(mbeir_root).pool("test")
    next(pool)
    with file.open("a") as stream:
        stream.write(line % 777_777)
    assert [item.id for item in pool][-1] == "1:777777"


def test_seen_ids_are_exact_and_small() -> None:
    seen = Seen()
    ids = ["1:1", "1:2", "2:1", "1:01", "1:", "1", "", "x:1", "1:99999999999", "1:-1", "1:²", "1:12345678"]
    assert all(seen.add(id_) for id_ in ids)
    assert not any(seen.add(id_) for id_ in ids)


# the shared benchmark, a folder beside the repository

BENCH = Path(__file__).resolve().parents[2] / ".." / "shared" / "bench"
needs_bench = pytest.mark.skipif(
    not (BENCH / "tables.tar.xz").is_file(), reason="the shared benchmark is not beside the repository"
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> MBeir:
    """Its tables without the images, which no reader opens."""
    root = tmp_path_factory.mktemp("bench")
    with tarfile.open(BENCH / "tables.tar.xz") as archive:
        archive.extractall(root, filter="data")
    return MBeir(root)


def numbers(line: str) -> list[str]:
    return [cell.strip().replace(",", "") for cell in line.strip().strip("|").split("|")]


@needs_bench
def test_every_row_of_the_benchmark_has_the_counts_of_its_readme(bench: MBeir) -> None:
    lines = (BENCH / "README.md").read_text().splitlines()
    table = [numbers(line) for line in lines if re.match(r"\| \w+ \d \|", line)]
    assert len(table) == 15
    for name, _, train, val, test, val_pool, test_pool, positives in table:
        row = Row(name.split()[0], int(name.split()[1]))
        queries = [len(list(bench.queries(split, row))) for split in ("train", "val", "test")]
        assert queries == [int(train), int(val), int(test)], row
        pools = [len(list(bench.pool(split, row))) for split in ("val", "test")]
        assert pools == [int(val_pool), int(test_pool)], row
        qrels = bench.qrels("test", row)
        assert len(qrels) == int(test)
        mean = sum(map(len, qrels.values())) / len(qrels)
        assert f"{mean:.2f}" == positives, row
    assert sorted(str(row) for row in bench.rows("test")) == sorted(name for name, *_ in table)


@needs_bench
def test_the_unions_of_the_benchmark_have_the_counts_of_its_readme(bench: MBeir) -> None:
    readme = (BENCH / "README.md").read_text()
    for split in ("train", "val", "test"):
        pool = int(re.search(rf"union {split} \| ([\d,]+)", readme)[1].replace(",", ""))  # type: ignore[index]
        queries = int(re.search(rf"\| {split} \| ([\d,]+)", readme)[1].replace(",", ""))  # type: ignore[index]
        assert len(list(bench.pool(split))) == pool
        assert len(list(bench.queries(split))) == queries
    (bench.root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl").unlink()
    assert len(list(bench.pool("test"))) == 16_618  # joined from the local pools
    assert bench.report.skipped == 0


@needs_bench
def test_labels_and_images_of_the_benchmark_are_there(bench: MBeir) -> None:
    images: set[str] = set()
    for archive in sorted((BENCH / "images").glob("*.tar")):
        with tarfile.open(archive) as members:
            images.update(members.getnames())
    for split in ("val", "test"):
        pool = {item.id: item for item in bench.pool(split)}
        qrels = bench.qrels(split)
        for query in bench.queries(split):
            assert qrels[query.id].keys() == set(query.positives)
            assert all(pool[id_].modality is query.want for id_ in query.positives)
            assert query.modality is query.row.have
            assert bench.instructions.chosen(query).number in range(1, 5)
            assert query.image is None or query.image.relative_to(bench.root).as_posix() in images
        for item in pool.values():
            if isinstance(item.image, Path):
                assert item.image.relative_to(bench.root).as_posix() in images
