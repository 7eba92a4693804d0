"""Token streams as files: written in blocks, cut back, and copied from each other."""

from __future__ import annotations

import hashlib
import io
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tinylm import files
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus.scripts import Census, Counts

WIDTH = 2
BLOCK = 1 << 19
SNAPSHOT = 1 << 20
SETTLED = 1 << 24


class Stream:
    """A stream file that grows at its end. The first token is a boundary; the caller adds documents.

    `starts` holds the index of each document's first byte, `tokens` is the length. The SHA-256 grows with
    the file; snapshots of it, a million tokens apart, save hashing all again when the end is cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts = array("q")
        self.tokens = 0
        self.census = Census()
        self._file = io.FileIO(path, "x+")
        self._block = np.empty(BLOCK, "<u2")
        self._filled = 0
        self._settled = 0
        self._sha256 = hashlib.sha256()
        self._snapshots = [(0, self._sha256.copy())]
        self.boundary()

    def start(self) -> None:
        """A document starts here."""
        self.starts.append(self.tokens)

    def write(self, data: bytes, text: str | None) -> None:
        """Whole characters of a document: their bytes, and their text (None if all are ASCII)."""
        self.census.add(data, text)
        values = np.frombuffer(data, np.uint8)
        while len(values):
            part = values[: BLOCK - self._filled]
            self._block[self._filled : self._filled + len(part)] = part
            self._add(len(part))
            values = values[len(part) :]

    def boundary(self) -> None:
        """The document ends here, and the next may start."""
        self._block[self._filled] = DOC_BOUNDARY
        self._add(1)

    def flush(self) -> None:
        """Put everything into the file."""
        if self._filled:
            filled, self._filled = self._filled, 0
            self._append(self._block[:filled])

    def digest(self) -> str:
        """The SHA-256 of all tokens as little-endian uint16."""
        self.flush()
        return self._sha256.hexdigest()

    def cut(self, tokens: int, counts: Counts) -> None:
        """Go back to a length and to the census that the stream had, or is to have, there."""
        self.flush()
        while self._snapshots[-1][0] > tokens:
            self._snapshots.pop()
        position, sha256 = self._snapshots[-1]
        self._sha256 = sha256.copy()
        for block in self.read(position, tokens):
            self._sha256.update(block.data)
        self.tokens = tokens
        self._settled = min(self._settled, tokens)
        self.census.restore(counts)
        while self.starts and self.starts[-1] >= tokens:
            self.starts.pop()
        with files.named(self.path):
            self._file.truncate(tokens * WIDTH)
            self._file.seek(0, io.SEEK_END)

    def read(self, begin: int, end: int) -> Iterator[npt.NDArray[np.uint16]]:
        """The tokens from `begin` to `end`, block by block."""
        self.flush()
        with files.named(self.path), open(self.path, "rb", buffering=0) as file:
            file.seek(begin * WIDTH)
            while begin < end:
                block = file.read(min(BLOCK, end - begin) * WIDTH)
                if not block or len(block) % WIDTH:
                    raise OSError(f"{self.path}: ends before token {end}")
                begin += len(block) // WIDTH
                yield np.frombuffer(block, "<u2")

    def read_bytes(self, begin: int, end: int) -> Iterator[bytes]:
        """The same for byte tokens only, as bytes."""
        for block in self.read(begin, end):
            yield block.astype(np.uint8).tobytes()

    def copy(self, source: Stream, begin: int, end: int) -> None:
        """Append tokens of another stream; starts and census stay as they are."""
        self.flush()
        for block in source.read(begin, end):
            self.tokens += len(block)
            self._append(block)

    def move(self, source: Stream, begin: int, counts: Counts) -> None:
        """Take the document that `source` began at `begin`, with that census before it, and has not ended."""
        self.start()
        self.copy(source, begin, source.tokens)
        self.census.restore(self.census.counts() + source.census.counts() - counts)
        source.cut(begin, counts)

    def close(self) -> None:
        """Put everything into the file and close it."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _add(self, tokens: int) -> None:
        self.tokens += tokens
        self._filled += tokens
        if self._filled == BLOCK:
            self.flush()

    def _append(self, block: npt.NDArray[np.uint16]) -> None:
        self._sha256.update(block.data)
        if self.tokens - self._snapshots[-1][0] >= SNAPSHOT:
            self._snapshots.append((self.tokens, self._sha256.copy()))
        files.write_all(self._file, block.data)
        if self.tokens - self._settled >= SETTLED:
            self._settle()

    def _settle(self) -> None:
        """Let the disk begin, and give back memory of what it has.

        Otherwise a large corpus would push everything else out of the page cache, and the fsync at the end
        would wait for all of it at once.
        """
        self._settled = self.tokens
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
