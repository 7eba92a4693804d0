"""One input, read once: its bytes with their count and digest; whole, split on a line, or as JSON Lines."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np

from tinylm import files
from tinylm.errors import CorpusError
from tinylm.sources.document import Document, encoding_hint, shown

LONGEST_LINE = 32 << 20
CHUNK = 96 << 10
BOM = b"\xef\xbb\xbf"


class Readable(Protocol):
    """A binary file or pipe."""

    def read(self, size: int = -1, /) -> bytes | None: ...


class Input:
    """An open file or pipe that counts and hashes what is read; OSErrors become CorpusErrors with its name.

    A file whose size is known must hold exactly that many bytes. With `hashing` false the reader of its
    one document hashes the same bytes, and `sha256` is not used.
    """

    def __init__(self, raw: Readable, given: str, size: int | None = None, *, hashing: bool = True) -> None:
        self.raw = raw
        self.given = given
        self.size = size
        self.hashing = hashing
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; none at the end."""
        try:
            data = self.raw.read(size) or b""
        except OSError as error:
            raise unreadable(self.given, error) from error
        self.bytes += len(data)
        if self.size is not None and (self.bytes > self.size or (not data and self.bytes < self.size)):
            raise CorpusError(
                f"{self.given}: changed while it was read (expected {self.size:,} bytes, found "
                f"{self.bytes:,}); build again when nothing writes to it"
            )
        if self.hashing:
            self.sha256.update(data)
        return data

    def seekable(self) -> bool:
        """Inputs are read forward only (asked by gzip)."""
        return False

    def seek(self, offset: int, /) -> int:
        """Refuse: inputs are read forward only."""
        raise io.UnsupportedOperation("seek")

    def chunks(self, *, packed: bool) -> Iterator[bytes]:
        """Everything, in chunks of up to 96 KiB, unpacked if it is gzip."""
        if not packed:
            yield from iter(lambda: self.read(CHUNK), b"")
            return
        try:
            with gzip.GzipFile(fileobj=self, mode="rb") as unpacked:
                yield from iter(lambda: unpacked.read(CHUNK), b"")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorpusError(
                f"{self.given}: damaged gzip data ({error}); copy it again, or test it with: gzip -t"
            ) from None


@contextlib.contextmanager
def regular_file(path: str, given: str) -> Iterator[tuple[io.FileIO, int]]:
    """Open a regular file, and nothing else, without ever waiting; gives it and its size in bytes."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        check_regular(os.stat(path).st_mode, given)
        file = io.FileIO(os.open(path, flags), "r")
    except OSError as error:
        raise unreadable(given, error) from error
    with file:
        status = os.fstat(file.fileno())
        check_regular(status.st_mode, given)
        yield file, status.st_size


def check_regular(mode: int, given: str) -> None:
    """Raise CorpusError for a pipe, socket, device or folder."""
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe (FIFO)",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    raise CorpusError(
        f"{given}: expected a regular file, found {kind}; leave it out, or pipe its text into the source -"
    )


def unreadable(given: str, error: OSError) -> CorpusError:
    """The error for something that the system does not let us read."""
    return CorpusError(
        f"{given}: cannot be read ({error.strerror or error}); make it readable, or leave it out"
    )


def lines(chunks: Iterable[bytes], given: str) -> Iterator[bytes]:
    """The lines of an input, split at LF only and without it. A line above 32 MiB raises CorpusError."""
    number = 1
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        held.append(first)
        size += len(first)
        for following in others:
            if size > LONGEST_LINE:
                break
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [following], len(following)
            number += 1
        if size > LONGEST_LINE:
            raise CorpusError(
                f"{given}:{number}: a line above {LONGEST_LINE:,} bytes; "
                "expected JSON Lines: one object per line, each with the text of one document"
            )
    if size:
        yield b"".join(held)


def json_lines(chunks: Iterable[bytes], given: str, field: str) -> Iterator[Document | None]:
    """One document per line, the text in `field` of its JSON object; None for a blank line."""
    for number, line in enumerate(lines(chunks, given), 1):
        where = f"{given}:{number}"
        if not line.strip(b" \t\r"):
            yield None
            continue
        if number == 1 and line.startswith(BOM):
            raise CorpusError(
                f"{where}: begins with a byte order mark, which JSON does not allow; "
                "remove its 3 bytes, for example with: tail -c +4"
            )
        if 0 in line or line[0] >= 0xFE:
            raise CorpusError(f"{where}: not JSON in UTF-8; {encoding_hint(line[:4096])}")
        yield Document(where, text_chunks(json_text(line, where, field), where))


def json_text(line: bytes, where: str, field: str) -> str:
    """The text that one JSON line holds, or CorpusError."""
    value = files.parse_json(line, where, CorpusError)
    if not isinstance(value, dict):
        raise CorpusError(f"{where}: expected an object with the field {field!r}, found {_kind(value)}")
    if field not in value:
        there = shown(", ".join(list(value)[:8])) or "none"
        raise CorpusError(
            f"{where}: the field {field!r} is missing (fields: {there}); choose one with --field"
        )
    text = value[field]
    if not isinstance(text, str):
        raise CorpusError(f"{where}: expected text in the field {field!r}, found {_kind(text)}")
    return text


def text_chunks(text: str, where: str) -> Iterator[bytes]:
    """The UTF-8 of a text, in chunks. A lone surrogate, which has none, raises CorpusError."""
    for start in range(0, len(text), CHUNK):
        try:
            yield text[start : start + CHUNK].encode("utf-8")
        except UnicodeEncodeError as error:
            position = start + error.start
            raise CorpusError(
                f"{where}: character {position} is the lone surrogate U+{ord(text[position]):04X}, which has "
                "no UTF-8; make the text again from its original bytes"
            ) from None


def split_on(chunks: Iterable[bytes], given: str, separator: bytes) -> Iterator[Document]:
    """The documents between lines equal to `separator` (then LF, CRLF or the end), which are dropped."""
    pieces = _pieces(chunks, separator)
    line, offset = 1, 0
    ended = False

    def one() -> Iterator[bytes]:
        nonlocal line, offset, ended
        for piece, is_separator in pieces:
            line += newlines(piece)
            offset += len(piece)
            if is_separator:
                return
            yield piece
        ended = True

    while not ended:
        yield Document(given, one(), line, offset)


def newlines(data: bytes) -> int:
    """Line feeds in `data` (bytes.count is several times slower on ordinary text)."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == 10))


def _pieces(chunks: Iterable[bytes], separator: bytes) -> Iterator[tuple[bytes, bool]]:
    """The input, cut so that each separator line is a piece of its own (then the second item is True)."""
    line_start = b"\n" + separator
    held = b""  # the beginning of a line that may become a separator
    inside = False  # whether the data begins inside a line
    for chunk in chunks:
        data = held + chunk
        begin = 0
        at = 0 if not inside and data.startswith(separator) else data.find(line_start) + 1 or -1
        while at >= 0:
            end = at + len(separator)
            end += 2 if data.startswith(b"\r\n", end) else 1
            if data[end - 1 : end] != b"\n":
                at = data.find(line_start, at) + 1 or -1
                continue
            if at > begin:
                yield data[begin:at], False
            yield data[at:end], True
            begin = end
            at = begin if data.startswith(separator, begin) else data.find(line_start, begin) + 1 or -1
        last = data.rfind(b"\n", begin) + 1 or begin
        whole_line = last > 0 or not inside
        inside = not (whole_line and (separator + b"\r").startswith(data[last : last + len(separator) + 2]))
        held = b"" if inside else data[last:]
        if len(data) - len(held) > begin:
            yield data[begin : len(data) - len(held)], False
    if held:
        yield held, held == separator


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
