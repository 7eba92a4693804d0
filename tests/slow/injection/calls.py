"""The calls that change a folder, seen from inside this process: counted, recorded, failed, cut short, fatal.

Opened files are replaced by a subclass of FileIO, the functions of `os` by counting ones, so every call
that Python code makes under the folder is met, whatever room makes it. Calls elsewhere pass untouched.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

ONE_PATH = ("mkdir", "rmdir", "unlink", "remove", "truncate")
TWO_PATHS = ("rename", "replace")
DESCRIPTORS = ("fsync", "fdatasync", "ftruncate")


@dataclass
class Call:
    """One call: `target` of a rename, `data` and `offset` of a write, the length of a truncation."""

    name: str
    path: str
    target: str = ""
    data: bytes = b""
    offset: int = 0


@dataclass
class Fault:
    """What happens at the call number `at` (from 1), and with `persistent` at all later ones too.

    `kill` ends the process before or after the call; `error` is an errno; `short` lets writes take half.
    """

    at: int = 0
    kill: Literal["", "before", "after"] = ""
    error: int = 0
    short: bool = False
    persistent: bool = False

    def hits(self, number: int) -> bool:
        return number == self.at or (self.persistent and number > self.at > 0)


@dataclass
class Calls:
    """Meets the calls under `folder` while `watched()` is open. `log` holds those that were made.

    Calls named `without` do nothing and are not counted: a safeguard that is taken out.
    """

    folder: Path
    fault: Fault = field(default_factory=Fault)
    without: str = ""
    log: list[Call] = field(default_factory=list)
    number: int = 0

    @property
    def fired(self) -> bool:
        """Whether there were enough calls for the fault."""
        return 0 < self.fault.at <= self.number

    def inside(self, path: str) -> bool:
        return path == str(self.folder) or path.startswith(f"{self.folder}/")

    def run(self, call: Call, function: Callable[[], Any]) -> Any:
        """Make a call, unless the fault comes first."""
        if not self.inside(call.path):
            return function()
        if call.name == self.without:
            return None
        self.number += 1
        hit = self.fault.hits(self.number)
        if hit and self.fault.kill == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if hit and self.fault.error:
            raise OSError(self.fault.error, os.strerror(self.fault.error), _named(call))
        result = function()
        self.log.append(call)
        if hit and self.fault.kill == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def write(self, call: Call, function: Callable[[bytes], int]) -> int:
        """A write, which a short one lets take half of its bytes (at least one)."""
        if self.fault.short and self.inside(call.path) and self.fault.hits(self.number + 1):
            call.data = call.data[: max(1, len(call.data) // 2)]
        written: int = self.run(call, lambda: function(call.data))
        return written

    @contextlib.contextmanager
    def watched(self) -> Iterator[Calls]:
        with contextlib.ExitStack() as stack:

            def patch(place: Any, name: str, replacement: Any) -> None:
                stack.enter_context(mock.patch.object(place, name, replacement))

            real = {
                name: getattr(os, name) for name in (*ONE_PATH, *TWO_PATHS, *DESCRIPTORS, "open", "write")
            }
            for name in ONE_PATH:
                patch(os, name, self._one_path(name, real[name]))
            for name in TWO_PATHS:
                patch(os, name, self._two_paths(real[name]))
            for name in DESCRIPTORS:
                patch(os, name, self._descriptor(name, real[name]))
            patch(os, "open", self._open(real["open"]))
            patch(os, "write", self._os_write(real["write"]))
            file = self._file()
            patch(io, "FileIO", file)
            for place in (builtins, io):
                patch(place, "open", self._opener(io.open, file))
            yield self

    def _one_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        known = "unlink" if name == "remove" else name

        def called(path: Any, *rest: Any, dir_fd: int | None = None, **options: Any) -> Any:
            given = {} if dir_fd is None else {"dir_fd": dir_fd}
            call = Call(known, _absolute(path, dir_fd), offset=rest[0] if name == "truncate" else 0)
            return self.run(call, lambda: real(path, *rest, **given, **options))

        return called

    def _two_paths(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(source: Any, target: Any, **options: Any) -> Any:
            call = Call("rename", _absolute(source, None), _absolute(target, None))
            return self.run(call, lambda: real(source, target, **options))

        return called

    def _descriptor(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        known = {"fdatasync": "fsync", "ftruncate": "truncate"}.get(name, name)

        def called(descriptor: Any, *rest: Any) -> Any:
            call = Call(known, _path_of(descriptor), offset=rest[0] if rest else 0)
            return self.run(call, lambda: real(descriptor, *rest))

        return called

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def called(path: Any, flags: int, *rest: Any, dir_fd: int | None = None, **options: Any) -> int:
            place = _absolute(path, dir_fd)
            name = "create" if flags & os.O_CREAT and not os.path.exists(place) else "open"
            given = {} if dir_fd is None else {"dir_fd": dir_fd}
            descriptor: int = self.run(
                Call(name, place), lambda: real(path, flags, *rest, **given, **options)
            )
            return descriptor

        return called

    def _os_write(self, real: Callable[..., int]) -> Callable[..., int]:
        def called(descriptor: int, data: Any) -> int:
            try:
                offset = os.lseek(descriptor, 0, os.SEEK_CUR)
            except OSError:
                return real(descriptor, data)
            call = Call("write", _path_of(descriptor), data=bytes(data), offset=offset)
            return self.write(call, lambda some: real(descriptor, some))

        return called

    def _file(self) -> type[io.FileIO]:
        calls, real = self, io.FileIO

        class File(real):  # type: ignore[misc, valid-type]
            def __init__(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> None:
                if isinstance(file, int):
                    super().__init__(file, mode, *rest, **options)
                    return
                place = _absolute(file, None)
                new = not os.path.exists(place)
                name = "open" if not new or set(mode) <= set("rb+") else "create"
                begin = super().__init__
                calls.run(Call(name, place), lambda: begin(file, mode, *rest, **options))
                if "w" in mode and not new:
                    calls.log.append(Call("truncate", place))

            def write(self, data: Any, /) -> int:
                raw = bytes(data)
                offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
                call = Call("write", _path_of(self.fileno()), data=raw, offset=offset)
                return calls.write(call, super().write)

            def truncate(self, size: int | None = None, /) -> int:
                length = self.tell() if size is None else size
                call = Call("truncate", _path_of(self.fileno()), offset=length)
                result: int = calls.run(call, lambda: real.truncate(self, length))
                return result

        return File

    def _opener(self, real: Callable[..., Any], file: type[io.FileIO]) -> Callable[..., Any]:
        def called(path: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            writes = set("wxa+") & set(mode)
            if not writes or isinstance(path, int) or not self.inside(_absolute(path, None)):
                return real(path, mode, buffering, *rest, **options)
            raw = file(path, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

        return called


def _named(call: Call) -> str | None:
    """Calls on descriptors fail without a name."""
    return None if call.name in ("write", "fsync", "truncate") else call.path


def _absolute(path: Any, dir_fd: int | None) -> str:
    text = os.fsdecode(os.fspath(path))
    return os.path.abspath(text if dir_fd is None else os.path.join(_path_of(dir_fd), text))


def _path_of(descriptor: Any) -> str:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    return os.readlink(f"/proc/self/fd/{number}")


def error_name(number: int) -> str:
    """ENOSPC for 28."""
    return errno.errorcode[number]
