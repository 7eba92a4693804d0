"""Sampled ids to events: text when it is complete, held bytes, stop strings, counts and ends. Knows no model.

With S the sampled ids in order, B their bytes (ids below 256), K the kept bytes (B up to where a stop
string begins, else all of B), these hold for the events of every generation:

1. The ids of all events, joined, are S: each id in the event of its own token, none missing or invented.
2. One event per sampled token, then one final event; `end.tokens` is the length of S.
3. The bytes of all events, joined, are K; their texts, joined, are K decoded, U+FFFD for what is ill-formed.
4. Text never runs ahead of ids: it is decoded from bytes whose ids were already given.
5. Every text is whole characters. At most 3 bytes wait for a character, and at most the longest stop
   string less one byte waits for a stop.
6. S gives back B whatever the text says.
7. `boundary`: the last id is 256. `stop`: B ends with the stop string, whose ids are in S and whose
   bytes are not in K. `limit`: S has as many ids as were asked for. On one token: boundary, stop, limit.
8. Bytes still held when a generation ends ride on the event of the last token; the final event is empty.
9. Stop strings are found in bytes, in B alone. The earliest to be completed wins; of those completed by
   one byte the one that begins first, then the first in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import ContractError, RequestError
from tinylm.tokenizer import Utf8Stream, encode


@dataclass(frozen=True)
class End:
    """Why a generation ended: the reason, the stop string (else ""), and how many tokens were sampled."""

    reason: Literal["boundary", "limit", "stop"]
    stop: str
    tokens: int


@dataclass(frozen=True)
class Event:
    """One message of a generation: a sampled token, or the end.

    `ids`: the sampled id (none in the final event). `bytes` and `text`: what became complete with it,
    `text == bytes.decode("utf-8", "replace")`; a stop string is in neither. `end`: set in the final event.
    """

    ids: tuple[int, ...]
    bytes: bytes
    text: str
    end: End | None = None


class EventStream:
    """Turns sampled ids into events, one `push` per token, and one `finish` at the end.

    `stop`: strings (matched as UTF-8) or bytes that end the generation. `limit`: tokens that may be
    sampled, the boundary included. Raises RequestError for an empty stop string or a negative limit.
    """

    def __init__(self, stop: Sequence[str | bytes], limit: int) -> None:
        if isinstance(stop, str | bytes):
            raise RequestError(f"stop is {stop!r}, expected a sequence of strings such as [{stop!r}]")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise RequestError(f"limit is {limit!r}, expected an integer of at least 0")
        self.limit = limit
        self.tokens = 0
        self.end: End | None = End("limit", "", 0) if limit == 0 else None
        self._words = [_Word(word) for word in stop]
        self._waiting = b""
        self._utf8 = Utf8Stream(errors="replace")
        self._finished = False

    @property
    def held(self) -> bytes:
        """Sampled bytes that no event has carried yet: part of a character, or of a stop string."""
        return self._utf8.held + self._waiting

    def push(self, token: int) -> Event:
        """The event of the next sampled token; `end` is set once it was the last.

        Raises RequestError after the end, ContractError unless `token` is an integer in 0..256.
        """
        if self.end is not None:
            raise RequestError(
                f"token {token!r} comes after the end ({self.end.reason}, {self.end.tokens} tokens sampled); "
                "stop sampling once `end` is set"
            )
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= DOC_BOUNDARY:
            raise ContractError(f"token is {token!r}, expected an integer 0..{DOC_BOUNDARY}")
        self.tokens += 1
        if token == DOC_BOUNDARY:
            self.end = End("boundary", "", self.tokens)
            return self._event(token, len(self._waiting))
        self._waiting += bytes((token,))
        completed = [word for word in self._words if word.advance(token)]
        if completed:
            # max() keeps the first of equals, so the order of the list decides last.
            word = max(completed, key=lambda word: len(word.raw))
            self.end = End("stop", word.text, self.tokens)
            return self._event(token, len(self._waiting) - len(word.raw))
        if self.tokens == self.limit:
            self.end = End("limit", "", self.tokens)
            return self._event(token, len(self._waiting))
        return self._event(token, len(self._waiting) - max((word.matched for word in self._words), default=0))

    def finish(self) -> Event:
        """The final event, once, after the event of the last token. Raises RequestError otherwise."""
        if self.end is None:
            raise RequestError(
                f"the generation has not ended after {self.tokens} of at most {self.limit} tokens"
            )
        if self._finished:
            raise RequestError("the final event was given already; a generation has one")
        self._finished = True
        return Event((), b"", "", self.end)

    def _event(self, token: int, released: int) -> Event:
        """The event of `token`, in which `released` of the waiting bytes go on to the decoder."""
        fed = self._utf8.held + self._waiting[:released]
        text = self._utf8.push(self._waiting[:released])
        if self.end is not None:
            text += self._utf8.finish()
            self._waiting = b""
        else:
            self._waiting = self._waiting[released:]
        return Event((token,), fed[: len(fed) - len(self._utf8.held)], text)


class _Word:
    """A stop string and how much of it the bytes so far end with (Knuth, Morris and Pratt, 1977)."""

    def __init__(self, word: str | bytes) -> None:
        if not isinstance(word, str | bytes) or not word:
            raise RequestError(
                f"stop string {word!r}: expected text or bytes that are not empty; leave it out"
            )
        self.raw = word if isinstance(word, bytes) else bytes(encode(word))
        self.text = self.raw.decode("utf-8", "backslashreplace")
        self.matched = 0
        self._fallback = [0] * len(self.raw)
        length = 0
        for position in range(1, len(self.raw)):
            length = self._next(length, self.raw[position])
            self._fallback[position] = length

    def advance(self, byte: int) -> bool:
        """Take one more byte; whether the string is complete with it. Must not go on after that."""
        self.matched = self._next(self.matched, byte)
        return self.matched == len(self.raw)

    def _next(self, matched: int, byte: int) -> int:
        while matched and self.raw[matched] != byte:
            matched = self._fallback[matched - 1]
        return matched + (self.raw[matched] == byte)
