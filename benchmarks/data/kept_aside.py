"""General photos that `mini` has never seen, as a folder for benchmarks/photos.py.

    python benchmarks/data/kept_aside.py --sources SOURCES --ids coco_excluded_ids.txt --to KEPT
    python benchmarks/photos.py --photos KEPT --split test --out benchmarks/results/photos_kept_aside.json

The file of ids names photos of COCO that are neither trained on nor chosen with. SOURCES holds what is
public of them:

- `train2017/`: photos by id, as in `train2017` of the GitHub repository hai4h/cnn-edge-detection (256 x 256);
- `coco_val.json`, `coco_test.json`: captions, `data/coco_val.json` of SpartaG117/TRcap and
  `data/coco_test.json` of data-ming-and-application/CVLR-RD;
- `coco128_yolo/`: the repository lightly-ai/coco128_yolo, 256 photos with the kinds of things in them.

KEPT gets the photos and captions.tsv (file, split, kind, text), all of the split "test". A kind that fewer
than three photos show is left out; a photo without any other kind stays, with an empty text. No repository
states a licence; photos belong to their photographers, COCO's annotations are CC BY 4.0. For measuring only.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CAPTIONED = "train2017"
LABELLED = ("train2017", "val2017")  # folders of coco128_yolo
LEAST = 3  # photos of a kind
Line = tuple[str, str, str, str]  # file, split, kind, text


def captioned(sources: Path, ids: set[int]) -> Iterator[tuple[Path, list[str]]]:
    """The photos among `ids` whose picture and captions are known, in the order of their ids."""
    captions = {int(row["id"]): row["captions"] for row in _read(sources / "coco_val.json")}
    for row in _read(sources / "coco_test.json"):
        captions[int(Path(row["image"]).stem[-12:])] = row["caption"]
    for picture in sorted((sources / CAPTIONED).glob("*.jpg")):
        if int(picture.stem) in ids and int(picture.stem) in captions:
            yield picture, [text.strip() for text in captions[int(picture.stem)]]


def labelled(sources: Path, ids: set[int]) -> Iterator[tuple[Path, list[str]]]:
    """The labelled photos among `ids`, each with the kinds of things in it that other photos have, too."""
    root = sources / "coco128_yolo"
    kinds = read_kinds(root / "object_detection" / "config.yaml")
    shown: dict[Path, set[int]] = {}
    for part in LABELLED:
        for picture in sorted((root / "images" / part).glob("*.jpg")):
            if int(picture.stem) in ids:
                table = root / "object_detection" / "labels" / part / f"{picture.stem}.txt"
                lines = table.read_text().splitlines() if table.exists() else []  # no thing, no table
                shown[picture] = {int(line.split()[0]) for line in lines if line.strip()}
    photos_of = Counter(number for numbers in shown.values() for number in numbers)
    for picture, numbers in shown.items():
        yield picture, [kinds[number] for number in sorted(numbers) if photos_of[number] >= LEAST]


def read_kinds(config: Path) -> dict[int, str]:
    """Names by number: the lines `  0: person` of the data set's configuration."""
    pairs = (line.split(":", 1) for line in config.read_text(encoding="utf-8").splitlines() if ":" in line)
    return {int(number): name.strip() for number, name in pairs if number.strip().isdigit()}


def build(sources: Path, ids: set[int], to: Path) -> dict[str, int]:
    """Copy the photos to the new folder `to` and write its table; photos of each kind of text."""
    to.mkdir(parents=True)
    lines: list[Line] = []
    counts = {}
    for kind, found in (("caption", captioned(sources, ids)), ("label", labelled(sources, ids))):
        folder = to / kind
        folder.mkdir()
        for picture, texts in found:
            shutil.copy(picture, folder / picture.name)
            lines += [(f"{kind}/{picture.name}", "test", kind, text) for text in texts or [""]]
        counts[kind] = len(list(folder.iterdir()))
    with (to / "captions.tsv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        table.writerow(("file", "split", "kind", "text"))
        table.writerows((*line[:3], " ".join(line[3].split())) for line in lines)
    return counts


def _read(file: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True, help="the folder with the three sources")
    parser.add_argument("--ids", type=Path, required=True, help="ids of the photos, one a line")
    parser.add_argument("--to", type=Path, required=True, help="the new folder; must not be there yet")
    given = parser.parse_args()
    ids = {int(line) for line in given.ids.read_text().split()}
    print(build(given.sources, ids, given.to))


if __name__ == "__main__":
    main()
