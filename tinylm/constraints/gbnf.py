"""GBNF, the grammar format of llama.cpp, read into rules over Unicode characters and single ids.

The syntax is that of llama.cpp's `grammars/README.md`: rules `name ::= ...`, literals, character classes,
`.`, groups, `|`, `*`, `+`, `?`, `{m,n}`, comments, and ids `<[65]>` or `!<[65]>`. Left recursion is
allowed. What llama.cpp would accept in silence and no text could match is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import RequestError

MOST_NESTED = 100
"""Parentheses inside one another."""

MOST_DEEP = 500
"""Parentheses and rules inside one another: the stack of whoever compiles them grows by about 2 KiB each."""

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
NAME = re.compile(r"[A-Za-z0-9_-]+")
SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
REPEAT = re.compile(r"\{[ \t\r\n]*(\d{1,9})[ \t\r\n]*(?:(,)[ \t\r\n]*(\d{1,9})?[ \t\r\n]*)?\}")
TOKEN = re.compile(r"(!?)<\[(\d{1,9})\]>")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
DIGITS = {"x": 2, "u": 4, "U": 8}

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges, sorted and apart."""


@dataclass(frozen=True)
class Characters:
    """One character whose code point lies in one of the ranges; surrogates are no characters."""

    ranges: Ranges


@dataclass(frozen=True)
class Bytes:
    """One id of 0..255 out of the ranges, whether or not it forms a character."""

    ranges: Ranges


@dataclass(frozen=True)
class Reference:
    """Another rule; `at` is where it stands, for messages."""

    name: str
    at: int = dataclasses.field(compare=False)


@dataclass(frozen=True)
class Series:
    """One behind the other; none at all is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """At least `least` times, at most `most` times (None: any number)."""

    node: Node
    least: int
    most: int | None


Node = Characters | Bytes | Reference | Series | Choice | Repeat


def parse(text: str) -> dict[str, Node]:
    """The rules by name, in their order; `root` is among them, and every rule can be completed.

    Raises RequestError with line and column for what is not GBNF, for a rule that is missing, defined
    twice or can never be completed.
    """
    reader = _Reader(text)
    rules: dict[str, Node] = {}
    places: dict[str, int] = {}
    reader.skip(SPACE_AND_LINES)
    while reader.at < len(text):
        place, (name, node) = reader.at, reader.rule()
        if name in rules:
            raise reader.wrong(f"the rule {name!r} a second time, expected each name once", place)
        rules[name], places[name] = node, place
        reader.skip(SPACE_AND_LINES)
    if "root" not in rules:
        found = f"only {', '.join(list(rules)[:5])}" if rules else "nothing"
        raise reader.wrong(f"{found}, expected a rule root ::= ... that says what the whole text is")
    for node in rules.values():
        for reference in _references(node):
            if reference.name not in rules:
                raise reader.wrong(f"rule {reference.name!r}, expected one that is defined", reference.at)
    ending = _ending(rules)
    for name in rules:
        if name not in ending:
            raise reader.wrong(
                f"the rule {name!r}, expected a way out of its recursion: no text completes it", places[name]
            )
    if deep := _too_deep(rules):
        raise reader.wrong(f"the rule {deep!r} nested {MOST_DEEP} deep, expected less", places[deep])
    return rules


def _too_deep(rules: dict[str, Node]) -> str:
    """The rule that a reader who follows each reference once, depth first, meets too deep, else ""."""

    def follow(node: Node, depth: int, name: str) -> str:
        if depth > MOST_DEEP:
            return name
        if isinstance(node, Reference):
            if node.name in seen:
                return ""
            seen.add(node.name)
            return follow(rules[node.name], depth + 1, node.name)
        if isinstance(node, Repeat):
            return follow(node.node, depth + 1, name)
        parts = node.parts if isinstance(node, Series) else node.options if isinstance(node, Choice) else ()
        return next((found for part in parts if (found := follow(part, depth + 1, name))), "")

    seen = {"root"}
    return follow(rules["root"], 1, "root")


def _references(node: Node) -> Iterator[Reference]:
    if isinstance(node, Reference):
        yield node
    elif isinstance(node, Repeat):
        yield from _references(node.node)
    elif isinstance(node, Series | Choice):
        for part in node.parts if isinstance(node, Series) else node.options:
            yield from _references(part)


def _ending(rules: dict[str, Node]) -> set[str]:
    """The rules that some finite text matches."""

    def ends(node: Node) -> bool:
        if isinstance(node, Reference):
            return node.name in found
        if isinstance(node, Repeat):
            return node.least == 0 or ends(node.node)
        if isinstance(node, Series):
            return all(map(ends, node.parts))
        if isinstance(node, Choice):
            return any(map(ends, node.options))
        return True

    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, node in rules.items():
        for reference in _references(node):
            users[reference.name].append(name)
    found: set[str] = set()
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and ends(rules[name]):
            found.add(name)
            waiting += users[name]
    return found


class _Reader:
    """A place in the text of a grammar, and what can stand there."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def wrong(self, what: str, at: int | None = None) -> RequestError:
        """The error of a place: `what` is "found, expected"."""
        at = self.at if at is None else at
        column = at - self.text.rfind("\n", 0, at)
        return RequestError(f"grammar: line {self.line(at)}, column {column}: found {what}")

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def here(self) -> str:
        """The next characters, for a message."""
        return repr(self.text[self.at : self.at + 12]) if self.at < len(self.text) else "the end"

    def skip(self, what: re.Pattern[str]) -> None:
        if match := what.match(self.text, self.at):
            self.at = match.end()

    def take(self, word: str) -> bool:
        """Whether the text goes on with `word`, which is then passed."""
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def rule(self) -> tuple[str, Node]:
        name = NAME.match(self.text, self.at)
        if name is None:
            raise self.wrong(f"{self.here()}, expected the name of a rule (letters, digits, - and _)")
        self.at = name.end()
        self.skip(SPACE)
        if not self.take("::="):
            raise self.wrong(f"{self.here()}, expected ::= after the name {name.group()!r}")
        self.skip(SPACE_AND_LINES)
        node = self.choice(SPACE)
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            raise self.wrong(f"{self.here()}, expected the end of the rule {name.group()!r}")
        return name.group(), node

    def choice(self, space: re.Pattern[str]) -> Node:
        """Alternatives; `space` is what may stand between symbols: lines end a rule, not a group."""
        options = [self.sequence(space)]
        while self.take("|"):
            self.skip(SPACE_AND_LINES)
            options.append(self.sequence(space))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, space: re.Pattern[str]) -> Node:
        parts: list[Node] = []
        while (symbol := self.symbol()) is not None:
            self.skip(space)
            while (repeated := self.repeated(symbol)) is not None:
                symbol = repeated
                self.skip(space)
            parts.append(symbol)
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def symbol(self) -> Node | None:
        if self.take('"'):
            return self.literal()
        if self.take("["):
            return self.character_class()
        if self.take("."):
            return Characters(_complement([]))
        if self.take("("):
            return self.group()
        if token := TOKEN.match(self.text, self.at):
            return self.token(token)
        if self.text.startswith(("<", "!"), self.at):
            raise self.wrong(
                f"{self.here()}, expected an id such as <[65]> or !<[65]>: "
                "tokens have no other name here, each is a byte"
            )
        if name := NAME.match(self.text, self.at):
            reference = Reference(name.group(), self.at)
            self.at = name.end()
            return reference
        return None

    def literal(self) -> Node:
        start = self.at - 1
        parts: list[Node] = []
        while not self.take('"'):
            if self.at >= len(self.text):
                raise self.wrong("a literal without end, expected a closing quotation mark", start)
            code = self.character()
            if SURROGATES[0] <= code <= SURROGATES[1]:
                raise self.wrong(f"U+{code:04X}, expected a character; half a surrogate pair is none")
            parts.append(Characters(((code, code),)))
        return Series(tuple(parts))

    def character_class(self) -> Node:
        start = self.at - 1
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                raise self.wrong("a character class without end, expected ]", start)
            low = high = self.character()
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                if self.at >= len(self.text):
                    continue
                high = self.character()
                if high < low:
                    raise self.wrong(f"the range U+{low:04X} to U+{high:04X}, expected it upwards", start)
            ranges.append((low, high))
        positive = _complement(ranges)
        if not negated:
            positive = _complement(positive)
        if not positive:
            raise self.wrong("a character class without characters, expected at least one", start)
        return Characters(positive)

    def character(self) -> int:
        """A code point, written as itself or escaped."""
        start = self.at
        if not self.take("\\"):
            self.at += 1
            return ord(self.text[start])
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        if letter in ESCAPES:
            return ord(ESCAPES[letter])
        if letter in DIGITS:
            digits = self.text[self.at : self.at + DIGITS[letter]]
            if re.fullmatch(r"[0-9A-Fa-f]+", digits) and len(digits) == DIGITS[letter]:
                self.at += len(digits)
                if int(digits, 16) <= LAST:
                    return int(digits, 16)
        raise self.wrong(
            rf"{self.text[start : start + 10]!r}, expected \n \r \t \\ \" \[ \] \xHH \uHHHH or \UHHHHHHHH",
            start,
        )

    def group(self) -> Node:
        start = self.at - 1
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.wrong(f"more than {MOST_NESTED} nested parentheses, expected fewer", start)
        self.skip(SPACE_AND_LINES)
        node = self.choice(SPACE_AND_LINES)
        if not self.take(")"):
            raise self.wrong(f"{self.here()}, expected ) for the ( of line {self.line(start)}")
        self.depth -= 1
        return node

    def token(self, match: re.Match[str]) -> Node:
        value = int(match.group(2))
        if value >= DOC_BOUNDARY:
            raise self.wrong(
                f"{match.group()!r}, expected an id of 0..255; the boundary, {DOC_BOUNDARY}, "
                "comes by itself where the grammar ends"
            )
        self.at = match.end()
        if not match.group(1):
            return Bytes(((value, value),))
        return Bytes(tuple(r for r in ((0, value - 1), (value + 1, 255)) if r[0] <= r[1]))

    def repeated(self, node: Node) -> Node | None:
        """`node` under the repetition that stands here, or None if none does."""
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return Repeat(node, least, most)
        if not self.text.startswith("{", self.at):
            return None
        match = REPEAT.match(self.text, self.at)
        if match is None:
            raise self.wrong(f"{self.here()}, expected a repetition such as {{3}}, {{3,}} or {{3,5}}")
        least = int(match.group(1))
        most = least if match.group(2) is None else int(match.group(3)) if match.group(3) else None
        if most is not None and most < least:
            raise self.wrong(f"{match.group()!r}, expected the greater number last")
        self.at = match.end()
        return Repeat(node, least, most)


def _complement(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The characters outside `ranges`; twice, it sorts and joins them and takes the surrogates out."""
    found = []
    start = 0
    for low, high in sorted([*ranges, SURROGATES]):
        if start < low:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= LAST:
        found.append((start, LAST))
    return tuple(found)
