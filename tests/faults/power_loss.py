"""What is on disk after a power loss, from the log of sync_log.c: only what was fsynced is sure to be there.

A file's content is on disk as it was at its last fsync, and a name as it was at the last fsync of its
folder. Of later changes nothing is kept, or (with a `chance`) any part of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """One record of the log."""

    op: str  # create, write, truncate, sync, rename, unlink, mkdir, out
    path: str
    other: str  # of a rename: the new name
    offset: int
    data: bytes


def read_log(file: Path) -> list[Event]:
    events, data, at = [], file.read_bytes(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        op, size, offset, *paths = data[at:end].decode().split(" ")
        at = end + 1 + int(size)
        events.append(Event(op, paths[0], (paths[1:] or [""])[0], int(offset), data[end + 1 : at]))
    return events


@dataclass
class Node:
    """A file or folder: what is on disk of it, and what was done since."""

    folder: bool
    content: bytearray = field(default_factory=bytearray)  # of a file
    names: dict[str, Node] = field(default_factory=dict)  # of a folder
    pending: list[tuple[int, bytes] | tuple[str, Node | None]] = field(default_factory=list)

    def change(self, offset: int, data: bytes | None) -> None:
        """Write `data` into the content, or cut it at `offset`."""
        if data is None:
            del self.content[offset:]
            self.content.extend(bytes(offset - len(self.content)))
        else:
            self.content.extend(bytes(max(0, offset - len(self.content))))
            self.content[offset : offset + len(data)] = data

    def apply(self, what: list) -> None:
        for key, value in what:
            if not self.folder:
                self.change(key, value)
            elif value is None:
                self.names.pop(key, None)
            else:
                self.names[key] = value

    def sync(self) -> None:
        self.apply(self.pending)
        self.pending = []


class Disk:
    """Files below `root`, which is empty and on disk when the log begins."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.now = {self.root: Node(folder=True)}  # what the process sees

    def see(self, event: Event) -> None:
        path = event.path.rstrip("/")
        folder, _, name = path.rpartition("/")
        if event.op in ("create", "mkdir"):
            self.now[path] = Node(folder=event.op == "mkdir")
            self.now[folder].pending.append((name, self.now[path]))
        elif event.op == "write":
            self.now[path].pending.append((event.offset, event.data))
        elif event.op == "truncate":
            self.now[path].pending.append((event.offset, None))
        elif event.op == "sync":
            self.now[path].sync()
        elif event.op == "unlink":
            del self.now[path]
            self.now[folder].pending.append((name, None))
        elif event.op == "rename":
            self._rename(path, event.other)

    def _rename(self, path: str, other: str) -> None:
        moved = [name for name in self.now if name == path or name.startswith(path + "/")]
        nodes = {other + name[len(path) :]: self.now.pop(name) for name in moved}
        self.now.update(nodes)
        for full, node in ((other, nodes[other]), (path, None)):
            folder, _, name = full.rpartition("/")
            self.now[folder].pending.append((name, node))

    def after_power_loss(self, target: Path, chance: random.Random | None = None) -> None:
        """Write what is on disk into `target`; with a `chance`, some of what was not fsynced as well."""
        _write(self.now[self.root], target, chance)


def _write(node: Node, target: Path, chance: random.Random | None) -> None:
    kept = Node(node.folder, bytearray(node.content), dict(node.names))
    if chance is not None and node.folder:  # names change in order
        kept.apply(node.pending[: chance.randrange(len(node.pending) + 1)])
    elif chance is not None:  # pages reach the disk in any order
        kept.apply([change for change in node.pending if chance.random() < 0.5])
    if not node.folder:
        target.write_bytes(kept.content)
        return
    target.mkdir(exist_ok=True)
    for name, inner in kept.names.items():
        _write(inner, target / name, chance)
