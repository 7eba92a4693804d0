"""A corpus folder on the way back in: checked strictly, mapped read-only, and described."""

from __future__ import annotations

import glob
import hashlib
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tinylm import contract, files
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus.split import Corpus, Int64Array, Split, Uint16Array, read_only
from tinylm.errors import CorpusError
from tinylm.sources.document import shown

Result = TypeVar("Result")

MANIFEST = "corpus.json"
WIDTH = 2
SPLITS = ("train", "validation")
REBUILD = "build it again with: tinylm corpus build --replace"


def stream_file(split: str) -> str:
    """The name of a split's token stream."""
    return f"{split}.bin"


def starts_file(split: str) -> str:
    """The name of the file with the starts of a split's documents."""
    return f"{split}.documents.npy"


FILES = frozenset((MANIFEST, *map(stream_file, SPLITS), *map(starts_file, SPLITS)))


def open_corpus(path: str | os.PathLike[str], *, verify: bool = True) -> Corpus:
    """Open a corpus folder. Its streams are mapped read-only.

    Always checked: corpus.json (format, contract, its own digest), the size of each file, the starts.
    With `verify`, all files are hashed and all tokens are checked too. Raises CorpusError, or ContractError
    for a corpus of another tokenizer, naming the file, expected and found.
    """
    path = Path(path)
    info = _manifest(path)
    splits = [_open_split(path, name, info, verify) for name in SPLITS]
    return Corpus(path, info, splits[0], splits[1], info["digest"])


def _manifest(path: Path) -> dict[str, Any]:
    where = shown(str(path / MANIFEST))
    try:
        data = (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        found = "a folder without it" if path.is_dir() else "a file" if path.exists() else "nothing"
        way_out = f"make one with: tinylm corpus build SOURCE --out {shown(str(path))}"
        # A build that was killed between its two renames leaves the old corpus under another name.
        if (
            aside := []
            if os.path.lexists(path)
            else sorted(path.parent.glob(f".old-{glob.escape(path.name)}-*"))
        ):
            way_out = f"a build was killed while it replaced this one: rename {shown(str(aside[0]))} back"
        raise CorpusError(f"{where}: expected a corpus, found {found}; {way_out}") from None
    except OSError as error:
        raise CorpusError(f"{where}: cannot be read ({error.strerror}); make it readable") from error
    info = files.parse_json(data, where, CorpusError)
    if not isinstance(info, dict):
        raise CorpusError(f"{where}: expected an object, found {type(info).__name__}; {REBUILD}")
    if type(info.get("format")) is not int or info["format"] != files.FORMAT:
        raise CorpusError(f"{where}: expected format {files.FORMAT}, found {info.get('format')!r}; {REBUILD}")
    contract.verify(info.get("contract"), where)
    if not files.is_written(data, info):
        raise CorpusError(
            f"{where}: was changed after it was written (its digest is not that of its content); {REBUILD}"
        )
    return info


def _open_split(path: Path, name: str, info: dict[str, Any], verify: bool) -> Split:
    stream_path, starts_path = path / stream_file(name), path / starts_file(name)
    expected = _expected(info, path, stream_path.name)
    _check_size(stream_path, expected["bytes"])
    expected_starts = _expected(info, path, starts_path.name)
    _check_size(starts_path, expected_starts["bytes"])
    if verify and (digest := _read(starts_path, files.sha256_file)) != expected_starts["sha256"]:
        raise _damaged(starts_path, f"SHA-256 {expected_starts['sha256']}", digest)
    if expected["bytes"] < 2 * WIDTH or expected["bytes"] % WIDTH:
        raise _damaged(stream_path, "two tokens or more, of 2 bytes each", f"{expected['bytes']:,} bytes")
    split = Split(name, _mapped(stream_path), _starts(starts_path), expected["sha256"])
    if split.stream[0] != DOC_BOUNDARY:
        raise _damaged(stream_path, f"{DOC_BOUNDARY} as the first token", str(split.stream[0]))
    starts = split.starts
    if not len(starts) or starts[0] != 1 or starts[-1] >= len(split.stream) or (np.diff(starts) < 2).any():
        raise _damaged(starts_path, "rising starts inside the stream, the first of them 1", "others")
    counts = _section(info, path, "splits", name)
    found = {"documents": split.documents, "bytes": split.bytes, "tokens": len(split.stream)}
    if any(counts.get(key) != value for key, value in found.items()):
        raise _damaged(path / MANIFEST, f"the counts of {stream_path.name}, {found}", str(counts))
    if verify:
        _verify_stream(stream_path, split)
    return split


def _verify_stream(path: Path, split: Split) -> None:
    """Hash the file and look at every token, by reading it: what is read of a mapping stays in memory."""
    digest = hashlib.sha256()
    boundaries = []
    position = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(files.BLOCK):
            digest.update(block)
            tokens = np.frombuffer(block[: len(block) // WIDTH * WIDTH], "<u2")
            if tokens.max(initial=0) > DOC_BOUNDARY:
                bad = int(np.argmax(tokens > DOC_BOUNDARY))
                raise _damaged(
                    path, f"tokens 0..{DOC_BOUNDARY}", f"{tokens[bad]} at token {position + bad:,}"
                )
            boundaries.append(np.flatnonzero(tokens == DOC_BOUNDARY) + position)
            position += len(tokens)
    if digest.hexdigest() != split.digest:
        raise _damaged(path, f"SHA-256 {split.digest}", digest.hexdigest())
    expected = split.starts - 1
    if split.stream[-1] == DOC_BOUNDARY:
        expected = np.append(expected, len(split.stream) - 1)
    if not np.array_equal(np.concatenate(boundaries), expected):
        raise _damaged(path, f"boundaries where {starts_file(split.name)} says", "others")


def _expected(info: dict[str, Any], path: Path, name: str) -> dict[str, Any]:
    entry = _section(info, path, "files", name)
    if type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
        raise _damaged(path / MANIFEST, f"size and SHA-256 of {name}", repr(entry))
    return entry


def _section(info: dict[str, Any], path: Path, section: str, name: str) -> dict[str, Any]:
    entries = info.get(section)
    entry = entries.get(name) if isinstance(entries, dict) else None
    if not isinstance(entry, dict):
        raise _damaged(path / MANIFEST, f"{section} of {name}", repr(entry))
    return entry


def _check_size(path: Path, expected: int) -> None:
    size = _read(path, lambda file: os.stat(file).st_size)
    if size != expected:
        raise _damaged(path, f"{expected:,} bytes", f"{size:,}")


def _mapped(path: Path) -> Uint16Array:
    def mapped(file: Path) -> Uint16Array:
        with file.open("rb") as opened:
            return np.frombuffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), "<u2")

    return _read(path, mapped)


def _starts(path: Path) -> Int64Array:
    try:
        starts = np.load(io.BytesIO(_read(path, Path.read_bytes)), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, MemoryError) as error:
        raise _damaged(path, "an array of int64", str(error)) from None
    if not isinstance(starts, np.ndarray) or starts.dtype != np.dtype("<i8") or starts.ndim != 1:
        raise _damaged(
            path, "an array int64 [documents]", f"{getattr(starts, 'dtype', type(starts).__name__)}"
        )
    return read_only(starts)


def _read(path: Path, read: Callable[[Path], Result]) -> Result:
    try:
        return read(path)
    except FileNotFoundError:
        raise _damaged(path, "a file", "nothing") from None
    except OSError as error:
        raise CorpusError(
            f"{shown(str(path))}: cannot be read ({error.strerror}); make it readable"
        ) from error


def _damaged(path: Path, expected: str, found: str) -> CorpusError:
    return CorpusError(f"{shown(str(path))}: expected {expected}, found {found}; {REBUILD}")
