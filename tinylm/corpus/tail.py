"""Holding out the tail of the largest document, where holding out whole documents misses the share."""

from __future__ import annotations

import contextlib
import hashlib
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tinylm.corpus.scripts import Census, Counts
from tinylm.corpus.streams import Stream
from tinylm.corpus.utf8 import Characters
from tinylm.errors import CorpusError


@dataclass
class Largest:
    """The largest document, the first of equals: its index over all documents, its bytes, its SHA-256."""

    index: int = -1
    size: int = 0
    digest: bytes = b""


@dataclass(frozen=True)
class Written:
    """A document in a stream: its byte tokens are `begin` to `end`, and its closing boundary follows."""

    index: int
    stream: Stream
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.begin


def misses(held: int, total: int, share: float) -> bool:
    """Whether `held` of `total` bytes misses the share by more than half of it."""
    return 2 * abs(held - share * total) > share * total


def hold_out_tail(
    folder: Path, train: Stream, validation: Stream, order: bytearray, largest: Largest, share: float
) -> tuple[Stream, Stream, int]:
    """Write both streams again: all other documents with the head of the largest, and its tail.

    `order` says of each document whether it stands in `validation`. The head comes last, without closing
    boundary. The tail begins at a character, follows a boundary that is context only, and has at least the
    share of all bytes, or is the whole document where that has less. Exact duplicates of the document are
    left out. Returns both streams (the given ones, or new ones with other files) and the number of
    duplicates. Raises CorpusError for a single character.
    """
    duplicates, total, left_out, whole = 0, 0, bytearray(len(order)), None
    for document in _documents(train, validation, order):
        if document.index == largest.index:
            whole = document
        elif document.size == largest.size and _sha256(document) == largest.digest:
            duplicates += 1
        else:
            total += document.size
            continue
        left_out[document.index] = True
    assert whole is not None
    wanted = math.ceil(Fraction(str(float(share))) * (total + whole.size))
    cut = whole.begin + _cut(whole, wanted, others=total > 0)
    tail = _counts(whole.stream, cut, whole.end)
    counts = train.census.counts() + validation.census.counts() - tail
    if duplicates:
        counts -= duplicates * _counts(whole.stream, whole.begin, whole.end)

    if not duplicates and not validation.starts and whole.end + 1 == train.tokens:
        validation.start()
        validation.copy(train, cut, whole.end)
        validation.boundary()
        validation.census.restore(tail)
        train.cut(cut, counts)
        return train, validation, 0
    with contextlib.ExitStack() as opened:
        new_train = opened.enter_context(contextlib.closing(Stream(folder / "train.tail.bin")))
        new_validation = opened.enter_context(contextlib.closing(Stream(folder / "validation.tail.bin")))
        kept = (document for document in _documents(train, validation, order) if not left_out[document.index])
        for stream, begin, end in _ranges(kept, new_train.starts):
            new_train.copy(stream, begin, end)
        if cut > whole.begin:
            new_train.start()
            new_train.copy(whole.stream, whole.begin, cut)
        new_validation.start()
        new_validation.copy(whole.stream, cut, whole.end)
        new_validation.boundary()
        new_train.census.restore(counts)
        new_validation.census.restore(tail)
    return new_train, new_validation, duplicates


def _documents(train: Stream, validation: Stream, order: bytearray) -> Iterator[Written]:
    """All documents of both streams in the order in which they were read."""
    readers = [_in_stream(train), _in_stream(validation)]
    for index, held_out in enumerate(order):
        stream, begin, end = next(readers[held_out])
        yield Written(index, stream, begin, end)


def _in_stream(stream: Stream) -> Iterator[tuple[Stream, int, int]]:
    for number, begin in enumerate(stream.starts):
        following = stream.starts[number + 1] if number + 1 < len(stream.starts) else stream.tokens
        yield stream, begin, following - 1


def _ranges(documents: Iterator[Written], starts: array[int]) -> Iterator[tuple[Stream, int, int]]:
    """The fewest ranges of tokens that hold the documents and their boundaries; notes their starts."""
    position = 1
    stream, begin, end = None, 0, 0
    for document in documents:
        starts.append(position)
        position += document.size + 1
        if stream is not document.stream or end != document.begin:
            if stream is not None:
                yield stream, begin, end
            stream, begin = document.stream, document.begin
        end = document.end + 1
    if stream is not None:
        yield stream, begin, end


def _cut(whole: Written, wanted: int, *, others: bool) -> int:
    """Where the tail begins: the last character with `wanted` bytes from it on, never 0 without others."""

    def inside_character(position: int) -> bool:
        token = next(whole.stream.read(whole.begin + position, whole.begin + position + 1))
        return int(token[0]) & 0xC0 == 0x80

    cut = max(0, whole.size - wanted)
    while cut and inside_character(cut):
        cut -= 1
    if cut or others:
        return cut
    cut = 1
    while cut < whole.size and inside_character(cut):
        cut += 1
    if cut == whole.size:
        raise CorpusError(
            "all text is one character, of which nothing can be held out; give at least two characters"
        )
    return cut


def _counts(stream: Stream, begin: int, end: int) -> Counts:
    census = Census()
    characters = Characters()
    for data in stream.read_bytes(begin, end):
        census.add(*characters.push(data))
    return census.counts()


def _sha256(document: Written) -> bytes:
    digest = hashlib.sha256()
    for data in document.stream.read_bytes(document.begin, document.end):
        digest.update(data)
    return digest.digest()
