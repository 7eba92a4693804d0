"""What a source gives: documents as chunks of bytes, each with the place that it comes from."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

LISTED = 10_000
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass
class Document:
    """One document, read once: `chunks` are its bytes in order, cut anywhere.

    `place`, `line` and `offset` (bytes) say where it begins; `known_bytes` is its size where the source
    knows it beforehand. Whoever reads it updates `sha256` and `size` (bytes): the source records both.
    """

    place: str
    chunks: Iterable[bytes]
    line: int = 1
    offset: int = 0
    known_bytes: int = 0
    size: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)


class Place:
    """One place that the caller named, as a source of documents and as an entry of corpus.json.

    `given` is the name for messages, `name` the one to record (no absolute path: the same texts make the
    same corpus anywhere). `size` is its size in bytes if that is known before reading. `options` are the
    options of CorpusConfig that it uses. `complete` says whether it was read to its end.
    """

    kind = ""

    def __init__(self, given: str, name: str) -> None:
        self.given = shown(given)
        self.name = shown(name)
        self.size: int | None = None
        self.options: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.blank_lines = 0
        self.complete = False
        self._documents = 0
        self._bytes = 0
        self._files: list[str] = []
        self._listing = hashlib.sha256()
        self._counted = 0

    def documents(self) -> Iterator[Document]:
        """The documents in order; the caller reads each to its end before it asks for the next."""
        raise NotImplementedError

    def count(self, document: Document) -> None:
        """Record a document that was read to its end; empty ones do not count."""
        if document.size:
            self._documents += 1

    def count_file(self, path: str, size: int, sha256: str) -> None:
        """Record a file that was read to its end."""
        self._counted += 1
        self._bytes += size
        path = shown(path)
        self._listing.update(f"{sha256}  {path}\n".encode())
        if self._counted <= LISTED:
            self._files.append(f"{sha256}  {size}  {path}")

    def count_text(self, document: Document) -> None:
        """Record a document that comes from no file."""
        self.count(document)
        self._bytes += document.size
        self._listing.update(document.sha256.digest())

    def record(self) -> dict[str, Any]:
        """The entry in corpus.json, for what has been read.

        `sha256` is that of a single file; of a folder, that of its list as sha256sum prints it (`listed`
        holds SHA-256, bytes and path of the first 10,000 files); of text from no file, that of its
        documents' SHA-256 in a row. Files that were not read to their end do not count.
        """
        entry: dict[str, Any] = {"place": self.name, "kind": self.kind, "complete": self.complete}
        entry |= {"documents": self._documents, "bytes": self._bytes}
        if self.kind in ("file", "standard input") and self._files:
            return {**entry, "sha256": self._files[0].partition(" ")[0]}
        entry["sha256"] = self._listing.hexdigest()
        if self._counted:
            entry |= {"files": self._counted, "listed": self._files}
        return entry


def shown(text: str) -> str:
    """A name on one line: control characters, line separators and bytes that are not UTF-8 are escaped."""
    return UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def counted(number: int, things: str) -> str:
    """A number and what it counts: `1 document`, `2,000 documents`."""
    return f"{number:,} {things.removesuffix('s') if number == 1 else things}"


def encoding_hint(head: bytes) -> str:
    """What the first bytes of something that is not UTF-8 text look like, and the way out."""
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return _convert(name)
    zeros = [head[offset::4].count(0) / max(1, len(head[offset::4])) for offset in range(4)]
    if not any(zeros):
        return "convert it to UTF-8 first, for example with: iconv -f LATIN1 -t UTF-8"
    if zeros[3] == 1 and zeros[2] > 0.5:
        return _convert("UTF-32LE")
    if zeros[0] == 1 and zeros[1] > 0.5:
        return _convert("UTF-32BE")
    even, odd = zeros[0] + zeros[2], zeros[1] + zeros[3]
    if head.count(0) >= 4 and odd > 20 * even and odd > 0.04:
        return _convert("UTF-16LE")
    if head.count(0) >= 4 and even > 20 * odd and even > 0.04:
        return _convert("UTF-16BE")
    return "this looks like a binary file: leave it out"


BYTE_ORDER_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32LE"),
    (b"\x00\x00\xfe\xff", "UTF-32BE"),
    (b"\xff\xfe", "UTF-16LE"),
    (b"\xfe\xff", "UTF-16BE"),
)


def _convert(name: str) -> str:
    return f"this looks like {name}: convert it first, for example with: iconv -f {name} -t UTF-8"
