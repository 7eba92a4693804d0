"""The strict border: a document's bytes come in, characters are counted, anything ill-formed is refused."""

from __future__ import annotations

import codecs

from tinylm.errors import CorpusError
from tinylm.sources import Document, encoding_hint
from tinylm.sources.reading import newlines

HEAD = 4096


class Checker:
    """Checks one document while its bytes arrive; `characters` counts those that are complete."""

    def __init__(self, document: Document) -> None:
        self.characters = 0
        self._document = document
        self._held = b""
        self._seen = 0
        self._lines = 0
        self._last = b""
        self._head = b""

    def push(self, chunk: bytes) -> str | None:
        """Take more bytes; gives the characters that they complete, or None if all bytes are ASCII."""
        if self._last:
            self._lines += newlines(self._last)
        else:
            self._head = chunk[:HEAD]
        self._last = chunk
        zero = chunk.find(b"\0")
        if zero >= 0:
            raise self._refusal(zero, "a NUL byte, which text does not hold")
        if not self._held and chunk.isascii():
            self._seen += len(chunk)
            self.characters += len(chunk)
            return None
        data = self._held + chunk
        try:
            text, used = codecs.utf_8_decode(data, "strict", False)
        except UnicodeDecodeError as error:
            reason = f"0x{data[error.start]:02x} is not well-formed UTF-8 ({error.reason})"
            raise self._refusal(error.start - len(self._held), reason) from None
        self._held = data[used:]
        self._seen += len(chunk)
        self.characters += len(text)
        return text

    def finish(self) -> None:
        """Say that the document has ended; half a character at its end is refused."""
        if self._held:
            self._seen -= len(self._last)
            reason = f"0x{self._held[0]:02x} is not well-formed UTF-8 (the document ends inside a character)"
            raise self._refusal(len(self._last) - len(self._held), reason)

    def _refusal(self, position: int, reason: str) -> CorpusError:
        """The error for a position in the last chunk (negative: in the bytes held before it)."""
        line = self._document.line + self._lines + self._last[: max(0, position)].count(b"\n")
        offset = self._document.offset + self._seen + position
        place = f"{self._document.place}: line {line}, byte {offset}"
        return CorpusError(f"{place}: {reason}; {encoding_hint(self._head)}")
