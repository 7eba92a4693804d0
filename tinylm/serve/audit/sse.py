"""Server-sent events from bytes, as a client reads them that trusts nothing (WHATWG HTML, section 9.2.6).

Bytes may arrive in any pieces. What a correct client copes with and known clients do not is a hazard
(other line ends, raw U+2028, `id:` lines); what is lost to a correct client is broken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tinylm.errors import RequestError

LONGEST = 1 << 24
"""Bytes of one event above which a server is taken to be out of order."""

LINE_BREAKS = {"\u0085": "U+0085", "\u2028": "U+2028", "\u2029": "U+2029"}
"""Characters at which some clients cut lines although SSE does not."""


@dataclass(frozen=True)
class Finding:
    """One departure: the invariant, what was seen, and whether a correct client is harmed by it."""

    invariant: str
    text: str
    broken: bool = True


class SseReader:
    """Takes bytes, gives the data of events; `findings` gathers what was odd about the wire, each once."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.comments = 0
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_return = False
        self._first = True

    def feed(self, data: bytes) -> list[str]:
        """The data of the events that `data` completes. Raises RequestError for an endless event."""
        found = []
        for part in re.split(rb"(\r|\n)", data):
            if part == b"\n" and self._after_return:
                self.note("I14", "lines end with CR LF", broken=False)
            elif part in (b"\r", b"\n"):
                if part == b"\r":
                    self.note("I14", "lines end with CR", broken=False)
                line, self._line = bytes(self._line), bytearray()
                event = self._take(line)
                if event is not None:
                    found.append(event)
            else:
                self._line += part
                self._size += len(part)
            if part:
                self._after_return = part == b"\r"
            if self._size > LONGEST:
                raise RequestError(f"an event of more than {LONGEST:,} bytes; expected one token per event")
        return found

    def close(self) -> None:
        """Say that no byte follows: an event without its blank line is lost, as every client drops it."""
        if self._line or self._data:
            rest = b"\n".join([*self._data, bytes(self._line)])
            self.note("I14", f"the stream ends inside an event, which is dropped: {shown(rest)}")

    def note(self, invariant: str, text: str, broken: bool = True) -> None:
        """Record a departure, unless it was recorded before."""
        finding = Finding(invariant, text, broken)
        if finding not in self.findings:
            self.findings.append(finding)

    def _take(self, line: bytes) -> str | None:
        """One line, without its end; the data of an event where the line is the blank one that closes it."""
        if self._first and line.startswith(b"\xef\xbb\xbf"):
            self.note("I14", "the stream begins with a byte order mark", broken=False)
            line = line[3:]
        self._first = False
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            self.comments += 1
            return None
        name, colon, value = line.partition(b":")
        if name == b"data":
            if colon and not value.startswith(b" "):
                self.note("I14", "no space behind `data:`", broken=False)
            self._data.append(value.removeprefix(b" "))
        elif name in (b"event", b"id", b"retry"):
            self.note("I14", f"a line `{name.decode()}:`, expected `data:` lines only", broken=False)
        else:
            self.note("I14", f"a line that is no field of an event: {shown(line)}")
        return None

    def _dispatch(self) -> str | None:
        lines, self._data, self._size = self._data, [], 0
        if not lines:
            return None
        if len(lines) > 1:
            self.note("I14", f"an event of {len(lines)} data lines, expected one", broken=False)
        raw = b"\n".join(lines)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.note("I5", f"byte 0x{raw[error.start]:02x} is not well-formed UTF-8 in {shown(raw)}")
            return raw.decode("utf-8", "replace")
        if not text.isascii():
            self.note("I14", "JSON that is not ASCII, which depends on the client's charset", broken=False)
        for character, name in LINE_BREAKS.items():
            if character in text:
                self.note("I14", f"raw {name} in an event, at which some clients cut lines", broken=False)
        return text


def shown(raw: bytes | str, length: int = 60) -> str:
    """The beginning of something received, for a message of one line."""
    text = ascii(raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace"))
    return text if len(text) <= length else f"{text[:length]}..."
