"""One part of a corpus: its token stream, and where its documents start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tinylm.contract import DOC_BOUNDARY

Uint16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Raw = bytes


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a corpus: its token stream [N] (uint16, first token 256) and where its documents start.

    `starts` (int64 [documents]) holds the index of each document's first byte: its opening boundary is
    the token before. `digest` is the SHA-256 of the stream as little-endian uint16.
    """

    name: str
    stream: Uint16Array
    starts: Int64Array
    digest: str

    @property
    def documents(self) -> int:
        """Documents, the last one counted even if the stream ends inside it."""
        return len(self.starts)

    @property
    def bytes(self) -> int:
        """Byte tokens."""
        return len(self.stream) - 1 - self.boundaries

    @property
    def boundaries(self) -> int:
        """Boundary targets: documents that end in this stream."""
        return self.documents - int(self.documents > 0 and self.stream[-1] != DOC_BOUNDARY)

    def document(self, index: int) -> Uint16Array:
        """The byte ids of one document, without boundaries."""
        index = range(self.documents)[index]
        if index + 1 < self.documents:
            end = int(self.starts[index + 1]) - 1
        else:
            end = len(self.stream) - int(self.stream[-1] == DOC_BOUNDARY)
        return self.stream[int(self.starts[index]) : end]

    @classmethod
    def of(cls, documents: Iterable[Raw], name: str = "train") -> Self:
        """A split in memory: `[256, *d0, 256, *d1, 256]`. Empty documents are skipped."""
        kept = [document for document in documents if document]
        lengths = np.array([len(document) for document in kept], dtype=np.int64)
        ends = np.cumsum(lengths + 1)
        stream = np.empty(1 + int(ends[-1]) if kept else 1, dtype="<u2")
        stream[0] = DOC_BOUNDARY
        stream[1:] = np.frombuffer(b"".join(document + b"\0" for document in kept), dtype=np.uint8)
        stream[ends] = DOC_BOUNDARY
        return cls(
            name, read_only(stream), read_only(ends - lengths), hashlib.sha256(stream.tobytes()).hexdigest()
        )


@dataclass(frozen=True, eq=False)
class Corpus:
    """An open corpus folder: both splits, `info` (corpus.json as parsed) and `digest`, its own digest."""

    path: Path
    info: dict[str, Any]
    train: Split
    validation: Split
    digest: str


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, which refuses writes."""
    array.setflags(write=False)
    return array
