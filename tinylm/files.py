"""Durable writes, digests and strict JSON: nothing half-written remains, nothing ambiguous is read.

Everything is written whole to a temporary name in the same folder, fsynced, renamed, and the folder
fsynced. An OSError always carries the path that it is about.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tinylm.errors import CheckpointError, TinylmError

Data = bytes | bytearray | memoryview

FORMAT = 1
BLOCK = 1 << 20


def write_atomic(path: str | os.PathLike[str], data: Data) -> str:
    """Write a file whole or not at all; returns the SHA-256 of `data`. An existing file is replaced."""
    path = Path(path)
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(6)}")
    try:
        digest = write_new(temporary, data)
        with named(path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return digest


def write_new(path: str | os.PathLike[str], data: Data) -> str:
    """Write and fsync a file that must not exist yet; returns the SHA-256. For files of a `new_folder`."""
    view = memoryview(data).cast("B")
    digest = hashlib.sha256()
    with named(path), open(path, "xb", buffering=0) as file:
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            digest.update(block)
            write_all(file, block)
        os.fsync(file.fileno())
    return digest.hexdigest()


def write_all(file: IO[bytes], data: Data) -> None:
    """Write every byte to an unbuffered file, however few the system takes at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[file.write(view) or 0 :]


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside `path`; at the end its files are fsynced and it takes that name.

    If the block raises, nothing remains. An existing `path` raises FileExistsError, unless `replace`:
    then the old folder gives way only when the new one is complete.
    """
    path = Path(path)
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{path.name}-{secrets.token_hex(6)}")
    try:
        with named(temporary):
            temporary.mkdir()
        yield temporary
        for file in sorted(temporary.rglob("*")):
            if file.is_file():
                sync_file(file)
        sync_folder(temporary)
        _take_name(temporary, path, replace)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _take_name(temporary: Path, path: Path, replace: bool) -> None:
    with named(path):
        if not replace or not path.exists():
            os.rename(temporary, path)
            return
        aside = path.with_name(f".old-{path.name}-{secrets.token_hex(6)}")
        os.rename(path, aside)
        try:
            os.rename(temporary, path)
        except OSError:
            os.rename(aside, path)
            raise
    shutil.rmtree(aside, ignore_errors=True)


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
def named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give every OSError raised inside a file name (those of write and fsync carry none)."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def sha256_file(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with named(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: object) -> bytes:
    """One byte string per value: sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def readable_json(value: object) -> bytes:
    """JSON for people and tools: indented, sorted, ASCII, a final newline."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False).encode("ascii") + b"\n"


def parse_json(data: bytes | str, where: str, error: Callable[[str], TinylmError] = CheckpointError) -> Any:
    """Parse JSON strictly: duplicate keys, NaN, infinities and ill-formed UTF-8 raise `error`, naming `where`."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            keys = [key for key, _ in items]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise error(f"{where}: the key {twice!r} stands there twice; write it once")
        return result

    def constant(name: str) -> Any:
        raise error(f"{where}: {name} is not JSON; expected a finite number")

    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as problem:
        raise error(f"{where}: byte {problem.start} is not well-formed UTF-8; JSON is UTF-8") from None
    except json.JSONDecodeError as problem:
        raise error(
            f"{where}: not valid JSON ({problem.msg} at line {problem.lineno}, column {problem.colno})"
        ) from None
    except RecursionError:
        raise error(f"{where}: JSON nested too deeply; expected a flat object") from None


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """A copy with `digest`: the SHA-256 of the canonical JSON of everything else."""
    body = {key: item for key, item in value.items() if key != "digest"}
    return {**body, "digest": hashlib.sha256(canonical_json(body)).hexdigest()}


def is_sealed(value: dict[str, Any]) -> bool:
    """Whether `digest` is that of everything else."""
    return value.get("digest") == seal(value)["digest"]
