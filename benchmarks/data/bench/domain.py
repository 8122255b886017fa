"""One dataset of the benchmark while it is built: items, pools, queries and pictures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from bench.pictures import Picture, Size
from bench.splits import PUBLIC, SHARED
from genius.errors import BadInput

NUMBERS = {"flickr8k": 20, "fashion": 21, "ikea": 22, "cub": 23, "emoji": 24}  # M-BEIR's own are 0 to 9
TASKS = {
    0: ("text", "image"),
    1: ("text", "text"),
    2: ("text", "image,text"),
    3: ("image", "text"),
    4: ("image", "image"),
    6: ("image,text", "text"),
    7: ("image,text", "image"),
    8: ("image,text", "image,text"),
}  # modality of the query, of the item: M-BEIR's numbers


class Domain:
    """The tables of one dataset. Ids are given out in the order of the calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: dict[str, dict[str, Any]] = {}  # by id
        self.pools: dict[int, dict[str, str]] = defaultdict(dict)  # task: id: split
        self.queries: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)  # (task, split)
        self.pictures: dict[str, Picture] = {}  # by path
        self._ids: dict[tuple[str, str], str] = {}
        self._asked = 0

    def picture(self, name: str, source: str, size: Size, group: str, split: str) -> str:
        """The path of a new picture."""
        path = f"mbeir_images/{self.name}/{name}.webp"
        self.pictures[path] = Picture(source, size, group, split)
        return path

    def item(self, key: str, text: str | None = None, image: str | None = None) -> str:
        """The id of an item; the same key and modality are the same item."""
        modality = _modality(text, image)
        id = self._ids.setdefault((modality, key), f"{NUMBERS[self.name]}:{len(self._ids) + 1}")
        if id not in self.items:
            fields = {"did": id, "txt": text, "img_path": image, "modality": modality, "src_content": None}
            self.items[id] = fields
        return id

    def offer(self, task: int, split: str, id: str) -> None:
        """Put an item into the pool of a task, in one split or SHARED by all."""
        assert self.items[id]["modality"] == TASKS[task][1]
        assert self.pools[task].setdefault(id, split) == split, f"{self.name} {task}: {id} is in two splits"

    def ask(
        self,
        task: int,
        split: str,
        positives: Sequence[str],
        text: str | None = None,
        image: str | None = None,
    ) -> None:
        """A new query with its relevant items."""
        modality = _modality(text, image)
        assert modality == TASKS[task][0]
        assert positives
        self._asked += 1
        self.queries[task, split].append(
            {
                "qid": f"{NUMBERS[self.name]}:{self._asked}",
                "query_txt": text,
                "query_img_path": image,
                "query_modality": modality,
                "query_src_content": None,
                "pos_cand_list": list(dict.fromkeys(positives)),
                "neg_cand_list": [],
                "task_id": task,
            }
        )

    def pool(self, task: int, splits: Collection[str]) -> list[str]:
        """The ids of a task's pool in these splits, with those that all splits share."""
        return [id for id, split in self.pools[task].items() if split in splits or split == SHARED]

    def public_pictures(self) -> dict[str, Picture]:
        """The pictures of items and queries outside the held-out part, by path."""
        items = [self.items[id] for task in self.pools for id in self.pool(task, PUBLIC)]
        used = {item["img_path"] for item in items}
        for (_, split), queries in self.queries.items():
            if split in PUBLIC:
                used |= {query["query_img_path"] for query in queries}
        return {path: picture for path, picture in self.pictures.items() if path in used}


def source_file(sources: Path, path: str) -> Path:
    """A file or folder that the builder cannot do without."""
    if not (sources / path).exists():
        raise BadInput(f"{sources / path} is missing: benchmarks/data/README.md says how to get it")
    return sources / path


def _modality(text: str | None, image: str | None) -> str:
    return "image,text" if text and image else "text" if text else "image"
