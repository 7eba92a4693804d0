"""Durable writes, digests and strict JSON: nothing half-written remains, nothing ambiguous is read.

Everything is written whole to a temporary name in the same folder, fsynced, renamed, and the folder
fsynced. An OSError always carries the path that it is about.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tinylm.errors import CheckpointError, TinylmError

Data = bytes | bytearray | memoryview

FORMAT = 1
BLOCK = 1 << 20
LEFT_BEHIND = re.compile(r"\.(tmp|old|pruned)-(.+)-[0-9a-f]{12}")
"""Names that only this room gives: unfinished (tmp), replaced (old) or no longer wanted (pruned)."""


def write_atomic(path: str | os.PathLike[str], data: Data) -> str:
    """Write a file whole or not at all; returns the SHA-256 of `data`. An existing file is replaced."""
    path = Path(path)
    temporary = beside(path, "tmp")
    try:
        with named(path, instead_of=temporary):
            digest = write_new(temporary, data)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return digest


def write_new(path: str | os.PathLike[str], data: Data) -> str:
    """Write and fsync a file that must not exist yet; returns the SHA-256. For files of a `new_folder`."""
    return write_pieces(path, iter((data,)))[1]


def write_pieces(path: str | os.PathLike[str], pieces: Iterator[Data]) -> tuple[int, str]:
    """As `write_new`, of data that is made while it is written; returns its bytes and their SHA-256.

    A piece is forgotten before the next one is asked for.
    """
    digest, length = hashlib.sha256(), 0

    def write(view: memoryview) -> int:
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            digest.update(block)
            write_all(file, block)
        return len(view)

    with named(path), open(path, "xb", buffering=0) as file:
        while (piece := next(pieces, None)) is not None:
            length += write(memoryview(piece).cast("B"))
            del piece
        os.fsync(file.fileno())
    check_length(path, length)
    return length, digest.hexdigest()


def check_length(path: str | os.PathLike[str], length: int) -> None:
    """Raise OSError (EIO) if a file is not as long as what was written to it: the system lost some of it."""
    with named(path):
        found = os.stat(path).st_size
        if found != length:
            raise OSError(errno.EIO, f"{found:,} bytes arrived of {length:,} that were written")


def write_all(file: IO[bytes], data: Data) -> None:
    """Write every byte to an unbuffered file, however few the system takes at a time."""
    view = memoryview(data).cast("B")
    while view:
        written = file.write(view)
        if not written:
            raise OSError(errno.EIO, "the system took none of the bytes to write")
        view = view[written:]


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `path`; at the end its files are fsynced and it takes that name.

    If the block raises, nothing remains. An existing `path` raises FileExistsError, unless `replace`:
    then the old folder gives way only when the new one is complete.
    """
    path = Path(path) if Path(path).name else Path(path).resolve()
    if path.exists() and not (replace and path.is_dir()):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = beside(path, "tmp")
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        with named(path, instead_of=temporary):
            temporary.mkdir(parents=True)
        yield temporary
        for entry in sorted(temporary.rglob("*")):
            if entry.is_dir():
                sync_folder(entry)
            elif entry.is_file():
                sync_file(entry)
        sync_folder(temporary)
        _take_name(temporary, path, replace)
    except BaseException:
        discard(temporary)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise
    for folder in (path, *missing):
        sync_folder(folder.parent)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`, for a file that the block writes; then it is fsynced and named.

    If the block raises, nothing remains. An existing `path` raises FileExistsError.
    """
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    temporary = path.with_name(f".tmp-{secrets.token_hex(6)}-{path.name}")
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        with named(path, instead_of=temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            sync_file(temporary)
            os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise
    for folder in (path, *missing):
        sync_folder(folder.parent)


def _take_name(temporary: Path, path: Path, replace: bool) -> None:
    with named(path, instead_of=temporary):
        if not replace or not path.exists():
            os.rename(temporary, path)
            return
        aside = beside(path, "old")
        try:
            os.rename(path, aside)
            os.rename(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            if aside.exists():
                if path.exists():
                    os.rename(path, temporary)
                os.rename(aside, path)
            raise
    discard(aside)


def beside(path: Path, kind: str) -> Path:
    """A new name in the same folder, of a kind that LEFT_BEHIND knows."""
    return path.with_name(f".{kind}-{path.name}-{secrets.token_hex(6)}")


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder that must not exist yet, and what is missing above it; its name survives a power cut."""
    path = Path(path)
    missing = [folder for folder in path.parents if not folder.exists()]
    with named(path):
        path.mkdir(parents=True)
    for folder in (path, *missing):
        sync_folder(folder.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder for good. It first leaves its name, so that nobody finds half of it there."""
    aside = beside(path, "pruned")
    with named(path):
        os.rename(path, aside)
    try:
        sync_folder(path.parent)  # or a power cut brings the name back, with half of the files behind it
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(aside, path)
        raise
    discard(aside)


def discard(folder: Path) -> None:
    """Remove as much of a folder as can be removed, without a word: what remains has a name of `clean`'s.

    `rmtree` alone lets an error of closing a folder through, which would hide the error that is being told.
    """
    with contextlib.suppress(OSError):
        shutil.rmtree(folder, ignore_errors=True)


def left_behind(folder: Path) -> list[tuple[Path, str, str]]:
    """What killed writers left in a folder, by name: (path, kind, the name that it was meant for)."""
    found = []
    for path in sorted(folder.iterdir()):
        if match := LEFT_BEHIND.fullmatch(path.name):
            found.append((path, match[1], match[2]))
    return found


def clean(folder: Path) -> list[str]:
    """Remove what killed writers left in a folder; a folder that was about to be replaced comes back.

    Call it only where nobody else writes. Returns what was done, a sentence each.
    """
    done = []
    for path, kind, name in left_behind(folder):
        whole = folder / name
        with named(path):
            if kind == "old" and not whole.exists():
                os.rename(path, whole)
                done.append(f"{whole}: put back; a process ended while it replaced it")
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            done.append(f"{path}: removed; a process ended before it was done with it")
    return done


def told(error: OSError) -> str:
    """An error of the operating system as a line: where, what, its code, and what a user can do about it."""
    code = errno.errorcode.get(error.errno or 0, "no code")
    return f"{error.filename or 'a file'}: {error.strerror} ({code}); {way_out(error)}"


def way_out(error: OSError) -> str:
    """What a user can do about an error of the operating system."""
    space = "free some space, or choose a place on another disk; nothing half-written was left"
    return {
        errno.ENOSPC: space,
        errno.EDQUOT: space,
        errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another disk",
        errno.EIO: "the disk may be failing: look at the system's log, copy what is whole to another disk",
        errno.EACCES: "change its permissions, or choose another place",
        errno.ENOENT: "check the path",
        errno.EEXIST: "choose another place",
        errno.EROFS: "choose a place that can be written",
        errno.ENOTDIR: "choose a folder",
        errno.ENOTEMPTY: "choose another place",
    }.get(error.errno or 0, "check the place and try again")


def sync_file(path: str | os.PathLike[str]) -> None:
    """fsync a file that was written and closed."""
    with named(path), open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: str | os.PathLike[str]) -> None:
    """fsync a folder, so that a rename in it survives a power cut (a no-op where folders have no fsync)."""
    if os.name != "posix":
        return
    with named(path):
        descriptor = os.open(path or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def named(path: str | os.PathLike[str], *, instead_of: Path | None = None) -> Iterator[None]:
    """Give every OSError raised inside a file name: those of write and fsync carry none.

    An error about the temporary file `instead_of` is given the name that the user knows.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(instead_of)):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def sha256_file(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with named(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: object) -> bytes:
    """One byte string per value: sorted keys, no spaces, ASCII, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def readable_json(value: object) -> bytes:
    """JSON for people and tools: indented, sorted, ASCII, a final newline."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def parse_json(data: bytes | str, where: str, error: Callable[[str], TinylmError] = CheckpointError) -> Any:
    """Parse JSON strictly; raises `error`, naming `where`.

    Refused: duplicate keys, NaN and infinities (also 1e999), ill-formed UTF-8, anything after the value.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in items:
            if key in result:
                raise error(f"{where}: the key {key!r} stands there twice; write it once")
            result[key] = value
        return result

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise error(f"{where}: {text[:40]} is not a number that JSON can hold; expected a finite number")
        return value

    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_constant=number)
    except TinylmError:
        raise
    except UnicodeDecodeError as problem:
        raise error(f"{where}: byte {problem.start} is not well-formed UTF-8; JSON is UTF-8") from None
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno}, column {problem.colno}"
        raise error(f"{where}: not valid JSON ({problem.msg} at {place})") from None
    except ValueError:
        raise error(f"{where}: an integer of thousands of digits; expected numbers of 64 bits") from None
    except RecursionError:
        raise error(f"{where}: JSON nested too deeply; expected a flat object") from None


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """A copy with `digest`: the SHA-256 of the canonical JSON of everything else."""
    body = {key: item for key, item in value.items() if key != "digest"}
    return {**body, "digest": hashlib.sha256(canonical_json(body)).hexdigest()}


def is_sealed(value: dict[str, Any]) -> bool:
    """Whether `digest` is that of everything else."""
    try:
        digest: object = seal(value)["digest"]
    except RecursionError:  # nested to just what the parser takes; we never write such a thing
        return False
    return value.get("digest") == digest


def is_written(data: bytes, value: dict[str, Any]) -> bool:
    """Whether `data`, which holds `value`, is byte for byte the sealed file that we would write.

    A seal is over the content; a space that became a line feed is damage all the same.
    """
    return is_sealed(value) and data == readable_json(value)
