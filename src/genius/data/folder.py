"""A folder of images and texts as items: `x.jpg` beside `x.txt` is a pair."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from genius.data.images import SUFFIXES
from genius.data.raw import RAW_SUFFIXES
from genius.data.report import Report, printable
from genius.data.texts import REPLACED, UserText, read_text
from genius.errors import BadInput
from genius.types import Item

TEXT_SUFFIX = ".txt"
AnyPath = Any  # a Path or a RemotePath: the same for all arguments


def read_folder(
    root: str | Path, exclude: Sequence[str] = (), report: Report | None = None
) -> Iterator[Item]:
    """The images, texts and pairs under `root`, folder by folder, in the same order on every run.

    The id is the path below `root`, with `/`. Images are not opened. Hidden files are left out, and so is
    what matches a pattern of `exclude` (`*.png`, `drafts`, `2019/*`), by its name or its path below `root`.
    Links are followed, but every folder is walked once. What cannot be read goes to `report`.
    """
    root = Path(root)
    report = Report() if report is None else report
    if not root.is_dir():
        raise BadInput(f"no folder at {printable(root)}")
    for folder, files in _walk(root, exclude, report):
        yield from read_files(root, folder, files, report)


def item_id(path: str) -> str:
    """An id for a file of that relative path: printable, valid UTF-8, and another one for every path."""
    return printable(path.replace(os.sep, "/").replace("\\", "\\\\"))


def _walk(root: Path, exclude: Sequence[str], report: Report) -> Iterator[tuple[Path, list[str]]]:
    """Each folder with the names of its files; linked folders come last, so ids are real paths."""
    seen: set[tuple[int, int]] = set()
    waiting: list[Path] = [root]
    linked: list[Path] = []
    while waiting or linked:
        folder = waiting.pop() if waiting else linked.pop(0)
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            report.unknown += 1
            report.skip(folder, f"folder cannot be read: {error.strerror}")
            continue
        files, inner = [], []
        for entry in entries:
            if entry.name.startswith(".") or _excluded(root, entry, exclude):
                continue
            kind = _kind(entry)
            if kind == "folder":
                inner.append(Path(entry.path))
            elif kind == "linked folder":
                linked.append(Path(entry.path))
            elif _suffix(entry.name) not in SUFFIXES and _suffix(entry.name) != TEXT_SUFFIX:
                report.ignore(entry.name)
                if kind == "other" and entry.is_symlink():  # perhaps a folder, on a disk that is not mounted
                    report.unknown += 1
                    report.skip(entry.path, "a link that leads nowhere")
            elif kind == "file":
                files.append(entry.name)
            else:
                id = item_id(str(Path(entry.path).relative_to(root)))
                report.skip(entry.path, "not a regular file, or a link that leads nowhere", id)
        waiting.extend(reversed(inner))
        yield folder, files


def read_files(root: AnyPath, folder: AnyPath, files: Sequence[str], report: Report) -> Iterator[Item]:
    """The items that the image and text `files` of one folder make; ids are paths below `root`."""
    texts: dict[str, str] = {}  # name without suffix -> file
    for name in files:
        if _suffix(name) == TEXT_SUFFIX and texts.setdefault(Path(name).stem, name) != name:
            report.skip(
                folder / name, f"{texts[Path(name).stem]} has the same name", _id(root, folder / name)
            )
    images = _images(files, report)
    paired = {Path(name).stem for name in images} & texts.keys()
    for name in images:
        stem = Path(name).stem
        text = _text(root, folder / texts[stem], report) if stem in paired else UserText("")
        report.read += 1
        yield _item(root, folder / name, folder / name, text)
    for stem, name in texts.items():
        if stem not in paired:
            text = _text(root, folder / name, report)
            if text.text:
                report.read += 1
                yield _item(root, folder / name, None, text)


def _images(files: Sequence[str], report: Report) -> list[str]:
    """The images among files of one folder; a raw file is left out beside a picture of the same name."""
    names = [name for name in files if _suffix(name) in SUFFIXES]
    developed = {Path(name).stem for name in names if _suffix(name) not in RAW_SUFFIXES}
    images = []
    for name in names:
        if _suffix(name) in RAW_SUFFIXES and Path(name).stem in developed:
            report.ignore(name)
        else:
            images.append(name)
    return images


def _item(root: AnyPath, file: AnyPath, image: AnyPath | None, text: UserText) -> Item:
    meta = {"text_flags": list(text.flags)} if text.flags else {}
    source = image if image is None or isinstance(image, Path) else str(image)
    return Item(_id(root, file), source, text.text or None, meta)


def _id(root: AnyPath, file: AnyPath) -> str:
    return item_id(str(file.relative_to(root)))


def _text(root: AnyPath, file: AnyPath, report: Report) -> UserText:
    """The text in `file`; an unreadable or empty one is reported and "", an image beside it stands alone."""
    try:
        text = read_text(file)
    except BadInput as error:
        report.skip(file, error, _id(root, file))
        return UserText("")
    if not text.text:
        report.skip(file, "empty text", _id(root, file))
    elif REPLACED in text.flags:
        report.note(file, "characters could not be read and were replaced")
    return text


def _excluded(root: Path, entry: os.DirEntry[str], exclude: Sequence[str]) -> bool:
    if not exclude:
        return False
    path = Path(entry.path).relative_to(root).as_posix()
    patterns = [pattern.rstrip("/") for pattern in exclude]
    return any(fnmatchcase(path, pattern) or fnmatchcase(entry.name, pattern) for pattern in patterns)


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _kind(entry: os.DirEntry[str]) -> str:
    """What the entry is, or what it links to."""
    try:
        if entry.is_dir():
            return "linked folder" if entry.is_symlink() else "folder"
        return "file" if entry.is_file() else "other"
    except OSError:  # a link to itself
        return "other"
