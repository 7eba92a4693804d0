"""The strict border: a document's bytes come in, characters are counted, anything ill-formed is refused."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable

from tinylm.errors import CorpusError
from tinylm.sources import Document, encoding_hint

HEAD = 4096
Piece = tuple[bytes, str | None]
"""Whole characters: their bytes, and their text, which is None if all are ASCII."""


class Characters:
    """Cuts chunks of UTF-8 between characters; `held` is the beginning of one that is not complete."""

    def __init__(self) -> None:
        self.held = b""

    def push(self, chunk: bytes) -> Piece:
        """Take more bytes; gives the complete characters. Raises UnicodeDecodeError for `held + chunk`."""
        if not self.held and chunk.isascii():
            return chunk, None
        data = self.held + chunk
        text, used = codecs.utf_8_decode(data, "strict", False)
        self.held = data[used:]
        return (data[:used] if self.held else data), text


class Checker:
    """Checks one document while its bytes arrive; `characters` counts those that are complete.

    `taken` gives what was taken of the document so far. It is asked only where an error has to name a line:
    counting lines all along would cost more than all other checks together.
    """

    def __init__(self, document: Document, taken: Callable[[], Iterable[bytes]]) -> None:
        self.characters = 0
        self._document = document
        self._taken = taken
        self._complete = Characters()
        self._seen = 0
        self._head = b""

    def push(self, chunk: bytes) -> Piece:
        """Take more bytes; gives the complete characters. Raises CorpusError naming file, line and byte."""
        if not self._seen:
            self._head = chunk[:HEAD]
        zero = chunk.find(b"\0")
        if zero >= 0:
            raise self._refusal(chunk, zero, "a NUL byte, which text does not hold")
        try:
            data, text = self._complete.push(chunk)
        except UnicodeDecodeError as error:
            reason = f"0x{error.object[error.start]:02x} is not well-formed UTF-8 ({error.reason})"
            raise self._refusal(chunk, error.start - len(self._complete.held), reason) from None
        self._seen += len(chunk)
        self.characters += len(data if text is None else text)
        return data, text

    def finish(self) -> None:
        """Say that the document has ended; half a character at its end is refused."""
        held = self._complete.held
        if held:
            reason = f"0x{held[0]:02x} is not well-formed UTF-8 (the document ends inside a character)"
            raise self._refusal(b"", -len(held), reason)

    def _refusal(self, chunk: bytes, position: int, reason: str) -> CorpusError:
        """The error for a position in a chunk (negative: in the bytes before it)."""
        before = sum(data.count(b"\n") for data in self._taken())
        line = self._document.line + before + chunk[: max(0, position)].count(b"\n")
        place = f"{self._document.place}: line {line}, byte {self._document.offset + self._seen + position}"
        return CorpusError(f"{place}: {reason}; {encoding_hint(self._head)}")
