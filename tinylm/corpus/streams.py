"""Token streams as files: written in blocks, cut back, and copied from each other."""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tinylm import files
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus.scripts import Census, Counts

WIDTH = 2
BLOCK = 1 << 16


class Mark(NamedTuple):
    """Where a stream ended at some time, for going back to it."""

    tokens: int
    documents: int
    counts: Counts
    sha256: hashlib._Hash


class Stream:
    """A stream file that grows at its end. The first token is a boundary; the caller adds documents.

    `starts` holds the index of each document's first byte, `tokens` is the length, `sha256` that of the
    tokens in the file (all of them after `flush`).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.starts = array("q")
        self.tokens = 0
        self.census = Census()
        self.sha256 = hashlib.sha256()
        self._file = io.FileIO(path, "x+")
        self._block = np.empty(BLOCK, "<u2")
        self._filled = 0
        self.boundary()

    def start(self) -> None:
        """A document starts here."""
        self.starts.append(self.tokens)

    def write(self, data: bytes, text: str | None) -> None:
        """Bytes of a document; `text` holds their characters, None if they are ASCII."""
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
        self._append(self._block[: self._filled])
        self._filled = 0

    def mark(self) -> Mark:
        """Where the stream ends: for `cut`."""
        self.flush()
        return Mark(self.tokens, len(self.starts), self.census.counts(), self.sha256.copy())

    def cut(self, mark: Mark) -> None:
        """Go back to a mark."""
        self.flush()
        self.tokens, self.sha256 = mark.tokens, mark.sha256.copy()
        self.census.restore(mark.counts)
        del self.starts[mark.documents :]
        with files.named(self.path):
            self._file.truncate(self.tokens * WIDTH)
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
            self._append(block)
            self.tokens += len(block)

    def move(self, source: Stream, mark: Mark) -> None:
        """Take over the document that `source` holds after a mark of it, and has not ended yet."""
        self.start()
        self.copy(source, mark.tokens, source.tokens)
        self.census.restore(self.census.counts() + source.census.counts() - mark.counts)
        source.cut(mark)

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
        self.sha256.update(block.data)
        with files.named(self.path):
            files.write_all(self._file, block.data)
