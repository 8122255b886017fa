"""A tiny M-BEIR root with every oddity of the format, written by hand."""

import json
from pathlib import Path
from typing import Any

import pytest


def write_lines(file: Path, lines: list[Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def query(
    qid: str, task: int, modality: str, text: str | None, image: str | None, *positives: Any
) -> dict[str, Any]:
    return {
        "qid": qid,
        "query_txt": text,
        "query_img_path": image,
        "query_modality": modality,
        "query_src_content": None,
        "pos_cand_list": list(positives),
        "neg_cand_list": [],
        "task_id": task,
    }


def item(did: str, modality: str, text: str | None = None, image: str | None = None) -> dict[str, Any]:
    return {"did": did, "txt": text, "img_path": image, "modality": modality, "src_content": None}


INSTRUCTIONS = """query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2\tprompt_3
text\timage\tMSCOCO\t9\tfind the picture\t\tshow it\t
image\ttext\tMSCOCO\t9\t"what is here?"
image,text\ttext\tOVEN\t5\tName it.\t\t\t
text,image\timage,text\tOVEN\t5\tName and show it.\tWhich one is it?\tSay it.\tTell me.
text\ttext\tWebQA\t2\tAnswer this.\tFind the passage.
text\timage,text\tWebQA\t2\tAnswer this with a picture.
text\timage\tEmpty\t77\t\t\t\t

"""

# of every file: COCO's split pools, tasks missing from names, both modality spellings, objects in lists,
# positives of another dataset, an item in two pools, a blank line, an item that is empty
ROOT: dict[str, list[Any]] = {
    "query/train/mbeir_webqa_train.jsonl": [
        query("2:1", 1, "text", "who?", None, "2:1"),
        query("2:2", 2, "text", "which?", None, "2:2"),
        query("2:3", 1, "text", "when?", None, "2:1"),
    ],
    "query/union_train/mbeir_union_up_train.jsonl": [
        query("2:1", 1, "text", "who?", None, "2:1"),
        query("2:2", 2, "text", "which?", None, "2:2"),
        query("2:2", 2, "text", "which?", None, "2:2"),
    ],
    "query/union_val/mbeir_union_val.jsonl": [
        query("9:50", 0, "text", "a val cat", None, "9:9"),
        query("5:50", 6, "text,image", "what?", "mbeir_images/v.jpg", "5:1"),
    ],
    "query/test/mbeir_mscoco_task0_test.jsonl": [
        query("9:1", 0, "text", "a cat", None, "9:1", "9:2"),
        "\n",
        query("9:2", 0, "text", 'say "hi"\r', None, {"did": "9:2", "score": 1}),
    ],
    "query/test/mbeir_mscoco_task3_test.jsonl": [query("9:3", 3, "image", None, "mbeir_images/a.jpg", "9:3")],
    "query/test/mbeir_oven_task6_test.jsonl": [
        {**query("5:1", 6, "text,image", "what is it?", "mbeir_images/b.jpg", "6:1"), "neg_cand_list": None},
    ],
    "query/test/mbeir_oven_task8_test.jsonl": [
        query("5:2", 8, "image,text", "", "mbeir_images/b.jpg", {"did": "5:2"}) | {"neg_cand_list": ["5:3"]},
    ],
    "cand_pool/local/mbeir_mscoco_task0_test_cand_pool.jsonl": [
        item("9:1", "image", None, "mbeir_images/a.jpg"),
        item("9:2", "image", "a text that does not count", "mbeir_images/b.jpg"),
    ],
    "cand_pool/local/mbeir_mscoco_task0_val_cand_pool.jsonl": [
        item("9:9", "image", None, "mbeir_images/v.jpg")
    ],
    "cand_pool/local/mbeir_mscoco_task3_test_cand_pool.jsonl": [
        item("9:3", "text", ' "a cat\r sits" '),
        item("9:4", "text", ' "" '),
    ],
    "cand_pool/local/mbeir_oven_task6_cand_pool.jsonl": [
        item("5:1", "text", "Cat"),
        item("6:1", "text", "Dog!"),
    ],
    "cand_pool/local/mbeir_oven_task8_cand_pool.jsonl": [
        item("5:2", "image,text", "cat", "mbeir_images/a.jpg"),
        item("5:3", "text,image", "dog", "mbeir_images/b.jpg"),
        item("5:4", "image,text", None, "mbeir_images/b.jpg"),
        item("5:1", "text", "Cat"),
        item("odd id", "text", "Odd"),
        item("odd id", "text", "Odd"),
    ],
    "cand_pool/global/mbeir_union_train_cand_pool.jsonl": [
        item("2:1", "text", "An answer."),
        item("2:2", "image,text", "An answer", "mbeir_images/a.jpg"),
    ],
    "qrels/test/mbeir_mscoco_task0_test_qrels.txt": [
        "9:1 0 9:1 1 0\n",
        "9:1\t0\t9:2  0 0\n",
        "9:2 0 9:2 2 0\n",
        "9:2 0 9:1 0 0\n",
    ],
    "qrels/test/mbeir_mscoco_task3_test_qrels.txt": ["9:3 0 9:3 0 3\n"],
    "qrels/test/mbeir_oven_test_qrels.txt": ["5:1 0 6:1 1 6\n", "5:2 0 5:2 1 8\n", "\n"],
    "instructions/query_instructions.tsv": [INSTRUCTIONS],
}


@pytest.fixture
def mbeir_root(tmp_path: Path) -> Path:
    """The root, fresh for every test, so that a test may break it."""
    for name, lines in ROOT.items():
        write_lines(tmp_path / name, lines)
    return tmp_path
