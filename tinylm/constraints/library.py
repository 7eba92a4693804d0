"""llguidance over our 257 ids: the one place that knows this library, which the extra `constrain` installs.

Its limits are set here. They bound what a grammar of a stranger can cost: text read, states and items of
a step, and, because items bound time only loosely, the seconds that one generation may spend in it.
"""

from __future__ import annotations

import importlib
import re
import time
from types import ModuleType
from typing import Any

import numpy as np

from tinylm.constraints.gbnf import parse
from tinylm.constraints.lark import to_lark
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import RequestError
from tinylm.files import parse_json
from tinylm.sampling import Mask

MOST_CHARACTERS = {"grammar": 30_000, "regex": 30_000, "json_schema": 100_000}
"""Longest texts: about a second of compiling."""

MOST_ITEMS = 1_000
"""Ways in which a parse may stand after one byte; the time of a step grows with its square and more."""

SECONDS, SECONDS_PER_TOKEN = 5.0, 0.002
"""What a generation may spend on its constraint; usual ones take a hundredth of that per token."""

MOST_REFERENCES = 4_000
"""References of a schema times its depth: the library follows them on the stack, and must not run out."""

WHITESPACE = r"(\x20|\x0A[\x20\x09]{0,20})"
"""Between the parts of JSON: a space, or a new line and its indentation. Bounded, since a model that knows
no JSON would write spaces for ever."""


class Matcher:
    """Where a text stands in a grammar, a regular expression or a schema. `kind` and `text` say which."""

    def __init__(self, kind: str, text: str) -> None:
        if not isinstance(text, str):
            raise RequestError(f"{kind} is {text!r}, expected a string")
        if len(text) > MOST_CHARACTERS[kind]:
            raise RequestError(
                f"{kind}: {len(text)} characters, expected at most {MOST_CHARACTERS[kind]}; make it shorter"
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"{kind}: position {error.start + 1}: half a surrogate pair") from None
        self._kind = kind
        self._tokens = 0
        self._seconds = 0.0
        library = load_library()
        forms = {"grammar": _grammar, "regex": _regex, "json_schema": _json_schema}
        source = forms[kind](library.LLMatcher, text)
        limits = library.LLParserLimits(max_items_in_row=MOST_ITEMS, verbose_errors=False)
        self._matcher = library.LLMatcher(_tokenizer(library), source, log_level=0, limits=limits)
        if self._matcher.is_error():
            raise RequestError(f"{kind}: {_one_line(self._matcher.get_error())}")
        self.allowed()

    def copy(self) -> Matcher:
        """Another one that stands at the same place; what was compiled is shared."""
        twin = object.__new__(Matcher)
        twin.__dict__ = {**self.__dict__, "_matcher": self._matcher.deep_copy()}
        return twin

    def allowed(self) -> Mask:
        """bool [257]: the bytes that can follow, and the boundary where the text may end.

        Raises RequestError if nothing can complete the text, or beyond a limit.
        """
        start = time.perf_counter()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._spent(start)
        return np.unpackbits(bits, bitorder="little")[:VOCABULARY_SIZE].astype(np.bool_)

    def advance(self, token: int) -> None:
        """`token`, one of those allowed, was drawn. Raises RequestError for another, or beyond a limit."""
        start = time.perf_counter()
        taken = self._matcher.consume_token(token)
        self._spent(start)
        if not taken:
            raise RequestError(f"{self._kind}: id {token} does not match after {self._tokens} tokens")
        self._tokens += 1

    def _spent(self, start: float) -> None:
        """Count the time of one call, and look whether it went well."""
        self._seconds += time.perf_counter() - start
        if self._matcher.is_error():
            said = _one_line(self._matcher.get_error())
            if said.startswith("NoExtension"):
                said = "no text matches it; loosen what comes there"
            raise RequestError(f"{self._kind}: after {self._tokens} tokens: {said}")
        most = SECONDS + SECONDS_PER_TOKEN * self._tokens
        if self._seconds > most:
            raise RequestError(
                f"{self._kind}: took {self._seconds:.1f} s for {self._tokens} tokens, expected at most "
                f"{most:.1f} s; it can be read in too many ways, write it with less nesting"
            )


def load_library() -> ModuleType:
    """llguidance. Raises RequestError that names the extra where it is not installed."""
    try:
        return importlib.import_module("llguidance")
    except ImportError as error:
        raise RequestError(
            f"a grammar, a regex or a json_schema needs the package llguidance ({error}); "
            "install it: pip install llguidance"
        ) from None


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    eos_token_id = DOC_BOUNDARY
    bos_token_id = None
    tokens = (*(bytes((byte,)) for byte in range(256)), b"<|doc|>")
    special_token_ids = (DOC_BOUNDARY,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _tokenizer(library: ModuleType) -> Any:
    return library.LLTokenizer(library.TokenizerWrapper(_Vocabulary()), slices=[])


def _grammar(matcher: Any, text: str) -> str:
    return str(matcher.grammar_from_lark(to_lark(parse(text))))


def _regex(matcher: Any, text: str) -> str:
    return str(matcher.grammar_from_regex(text))


def _json_schema(matcher: Any, text: str) -> str:
    schema = parse_json(text, "json_schema", RequestError)
    if not isinstance(schema, dict):
        raise RequestError(
            f'json_schema: expected an object such as {{"type": "object"}}, found {text[:40]!r}'
        )
    references, depth = _references(schema)
    if references * depth > MOST_REFERENCES:
        raise RequestError(
            f"json_schema: {references} references in a schema {depth} deep could all follow one another, "
            f"expected references times depth of at most {MOST_REFERENCES}; write some of them out"
        )
    try:
        return str(matcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": WHITESPACE}))
    except ValueError as error:
        raise RequestError(f"json_schema: {_one_line(str(error))}") from None


def _references(schema: object) -> tuple[int, int]:
    """How many keys are a kind of $ref, and how deep objects and lists are nested."""
    count = depth = 0
    level = [schema]
    while level:
        depth += 1
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                count += sum(key in ("$ref", "$dynamicRef", "$recursiveRef") for key in value)
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner
    return count, depth


def _one_line(message: str) -> str:
    """What the library says, with its position, without its drawing of the source."""
    if caret := re.search(r"regex parse error:\n    .*\n    ( *)\^+\n+error: (.*)", message):
        return f"position {len(caret.group(1)) + 1}: {caret.group(2)}"
    lines = []
    for line in message.partition("<non-verbose/>")[0].splitlines():
        if not re.match(r"\s*\d+ \|| *\^+ *$", line):
            lines.append(line.strip())
    said = " ".join(line for line in lines if line)
    return said if len(said) <= 400 else said[:400] + " ..."
