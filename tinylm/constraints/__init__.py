"""Constraints on what a generation may write: which of the 257 ids may come next, given those drawn.

`compile()` reads a grammar, a regular expression or a JSON schema once; `start()` gives each generation a
constraint of its own. A token is a byte, so every constraint is exact: none has to straddle a token, and
what is drawn is the model's own distribution over what the constraint allows.

At the limit of tokens a text is cut wherever it stands: it is then a prefix of texts that match, which the
end `limit` (not `boundary`) says. With `valid_utf8` it is cut between characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tinylm.constraints.library import Matcher
from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import RequestError
from tinylm.sampling import Mask, allowed_after
from tinylm.tokenizer import Utf8Stream


class Constraint(Protocol):
    """What one generation may draw next; it follows what was drawn."""

    def allowed(self, room: int | None = None) -> Mask:
        """bool [257]: the ids that may be drawn. `room`: how many tokens may still be drawn, this one
        included. Raises RequestError if nothing can follow, or beyond a limit of the library."""
        ...

    def advance(self, token: int) -> None:
        """`token`, one of those allowed, was drawn; 256 ends it."""
        ...


@dataclass(frozen=True)
class Compiled:
    """What was compiled, to be shared by any number of generations and threads."""

    matcher: Matcher | None
    valid_utf8: bool

    def start(self) -> Constraint:
        """A fresh constraint, for one generation."""
        if self.matcher is None:
            return ValidUtf8()
        if self.valid_utf8:
            return Both(self.matcher.copy())
        return Matching(self.matcher.copy())


def compile(
    *,
    grammar: str | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    valid_utf8: bool = False,
) -> Compiled | None:
    """Compile what is asked for; None if nothing is.

    `grammar`: GBNF, llama.cpp's format. `regex`: Rust's syntax without look-around; the whole text has to
    match. `json_schema`: a text, or an object. At most one of the three; each needs the extra `constrain`.
    `valid_utf8`: only well-formed UTF-8, and only characters that still fit the limit. Raises RequestError
    with the place of the mistake, for what no text matches, and beyond the limits.
    """
    given = {"grammar": grammar, "regex": regex, "json_schema": json_schema}
    asked = [name for name, value in given.items() if value is not None]
    if len(asked) > 1:
        raise RequestError(f"{' and '.join(asked)} are given, expected at most one of {', '.join(given)}")
    if isinstance(json_schema, Mapping):
        given["json_schema"] = json.dumps(json_schema)
    matchers = [Matcher(name, given[name]) for name in asked]  # type: ignore[arg-type]
    if not matchers and not valid_utf8:
        return None
    return Compiled(matchers[0] if matchers else None, valid_utf8)


class Matching:
    """Follows a grammar, a regular expression or a schema."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def allowed(self, room: int | None = None) -> Mask:
        return self._matcher.allowed()

    def advance(self, token: int) -> None:
        self._matcher.advance(token)


class ValidUtf8:
    """Only bytes that can continue well-formed UTF-8, and the boundary only between characters."""

    def __init__(self) -> None:
        self._utf8 = Utf8Stream(errors="strict")

    def allowed(self, room: int | None = None) -> Mask:
        return allowed_after(self._utf8.held, room)

    def advance(self, token: int) -> None:
        if token != DOC_BOUNDARY:
            self._utf8.push(bytes((token,)))


class Both:
    """A grammar and whole characters. Where the grammar has no character that still fits the limit, and
    may not end, it goes first, and the text ends inside a character."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._utf8: ValidUtf8 | None = ValidUtf8()

    def allowed(self, room: int | None = None) -> Mask:
        allowed_V = self._matcher.allowed()
        if self._utf8 is None:
            return allowed_V
        both_V: Mask = allowed_V & self._utf8.allowed(room)
        if both_V.any():
            return both_V
        if not (allowed_V & self._utf8.allowed()).any():
            raise RequestError(
                "valid_utf8 and the grammar: no id satisfies both; let the grammar ask for characters only"
            )
        self._utf8 = None
        return allowed_V

    def advance(self, token: int) -> None:
        self._matcher.advance(token)
        if self._utf8 is not None:
            self._utf8.advance(token)
