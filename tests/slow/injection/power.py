"""A small file system that forgets, at a power cut, what no fsync has made durable.

Replays the recorded calls on a model of folders and files. Each has two contents: what processes see, and
what the disk holds. fsync of a file makes its bytes durable, fsync of a folder the names in it; POSIX
promises no more. A cut leaves any mixture of both; the extremes and random mixtures are laid out.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.slow.injection.calls import Call


@dataclass
class File:
    seen: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Folder:
    seen: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


class Disk:
    """The model of one folder; what is there at first is durable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = _read(folder)

    def apply(self, call: Call) -> None:
        """Do what a call that succeeded has done."""
        if call.name == "mkdir":
            self._parent(call.path).seen[_name(call.path)] = Folder()
        elif call.name == "create":
            self._parent(call.path).seen[_name(call.path)] = File()
        elif call.name in ("unlink", "rmdir"):
            del self._parent(call.path).seen[_name(call.path)]
        elif call.name == "rename":
            node = self._parent(call.path).seen.pop(_name(call.path))
            self._parent(call.target).seen[_name(call.target)] = node
        elif call.name == "write":
            file = self._file(call.path)
            file.seen.extend(bytes(max(0, call.offset - len(file.seen))))
            file.seen[call.offset : call.offset + len(call.data)] = call.data
        elif call.name == "truncate":
            file = self._file(call.path)
            del file.seen[call.offset :]
            file.seen.extend(bytes(call.offset - len(file.seen)))
        elif call.name == "fsync":
            node = self._find(call.path)
            if isinstance(node, File):
                node.durable = bytes(node.seen)
            else:
                node.durable = dict(node.seen)

    def cuts(self, place: Path, mixtures: int, seed: int) -> Iterator[str]:
        """Lay out in `place`, one after the other, what a power cut may leave now; gives a name for each."""
        for name, names_seen, bytes_seen in (
            ("only what was synced", 0.0, 0.0),
            ("all names, synced bytes", 1.0, 0.0),
            ("all bytes, synced names", 0.0, 1.0),
        ):
            _lay_out(self.root, place, names_seen, bytes_seen, random.Random(0))
            yield name
        for number in range(mixtures):
            chance = random.Random(seed * 1000 + number)
            _lay_out(self.root, place, 0.5, 0.5, chance)
            yield f"mixture {number}"

    def _find(self, path: str) -> File | Folder:
        node: File | Folder = self.root
        for part in PurePosixPath(path).relative_to(self.folder.as_posix()).parts:
            assert isinstance(node, Folder), path
            node = node.seen[part]
        return node

    def _parent(self, path: str) -> Folder:
        node = self._find(str(PurePosixPath(path).parent))
        assert isinstance(node, Folder), path
        return node

    def _file(self, path: str) -> File:
        node = self._find(path)
        assert isinstance(node, File), path
        return node


def _name(path: str) -> str:
    return PurePosixPath(path).name


def _read(place: Path) -> Folder:
    found: dict[str, File | Folder] = {}
    for entry in place.iterdir():
        data = b"" if entry.is_dir() else entry.read_bytes()
        found[entry.name] = _read(entry) if entry.is_dir() else File(bytearray(data), data)
    return Folder(dict(found), dict(found))


def _lay_out(
    folder: Folder, place: Path, names_seen: float, bytes_seen: float, chance: random.Random
) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    # A folder's names come from one moment: file systems write the changes of one folder in order.
    entries = folder.seen if chance.random() < names_seen else folder.durable
    for name, node in entries.items():
        if isinstance(node, Folder):
            _lay_out(node, place / name, names_seen, bytes_seen, chance)
        else:
            (place / name).write_bytes(node.seen if chance.random() < bytes_seen else node.durable)
