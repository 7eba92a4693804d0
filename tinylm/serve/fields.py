"""Strict reading of a JSON object: every field is known, of its type and in its range, or is a problem.

Problems are gathered, so that one answer names all of them: field, value and rule.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinylm.errors import RequestError
from tinylm.files import parse_json
from tinylm.serve.refusals import Refusal

DEPTH = 64
"""How deep a request may nest; a JSON schema is the deepest that is meant."""


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a request. Raises Refusal 400 for anything else.

    Refused: what `parse_json` refuses, a byte order mark, half of a surrogate pair, nesting beyond DEPTH.
    """
    if body.startswith(b"\xef\xbb\xbf"):
        raise Refusal(400, "body: begins with a byte order mark, expected JSON; leave it out")
    try:
        value = parse_json(body, "body", RequestError)
    except RequestError as error:
        raise Refusal(400, str(error)) from None
    if not isinstance(value, dict):
        raise Refusal(400, f"body: {shown(value)}, expected a JSON object")
    _check_strings(value, "body")
    return value


def _check_strings(value: Any, where: str) -> None:
    waiting = [(value, where, 1)]
    while waiting:
        item, place, depth = waiting.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                problem = f"{place}: character {error.start} is half of a surrogate pair, which is no text"
                raise Refusal(400, f"{problem}; send whole characters") from None
        elif isinstance(item, dict | list):
            if depth > DEPTH:
                raise Refusal(400, f"body: nested more than {DEPTH} deep; expected flat fields")
            if isinstance(item, dict):
                for key, inner in item.items():
                    waiting.append((key, f"a key of {place}", depth))
                    waiting.append((inner, f"{place}.{key}" if place != "body" else key, depth + 1))
            else:
                waiting += [(inner, f"{place}[{n}]", depth + 1) for n, inner in enumerate(item)]


def shown(value: object) -> str:
    """A value as JSON, in at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """The fields of a request. Each is asked for once; `null` counts as absent."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body
        self._known: list[str] = []
        self.problems: list[str] = []

    def problem(self, name: str, value: object, rule: str) -> None:
        """Note that a field has a value that it must not have."""
        self.problems.append(f"{name} is {shown(value)}, expected {rule}")

    def value(self, *names: str) -> tuple[str, Any]:
        """The name under which a field stands and its value; None if it is absent under all its names."""
        self._known += [name for name in names if name not in self._known]
        given = [(name, self._body[name]) for name in names if self._body.get(name) is not None]
        if any(shown(value) != shown(given[0][1]) for _, value in given[1:]):
            both = ", ".join(f"{name}: {shown(value)}" for name, value in given)
            self.problems.append(f"{names[0]} stands there under several names with several values ({both})")
        return given[0] if given else (names[0], None)

    def boolean(self, name: str, default: bool = False) -> bool:
        name, value = self.value(name)
        if value is not None and not isinstance(value, bool):
            self.problem(name, value, "true or false")
            return default
        return default if value is None else value

    def integer(self, *names: str, least: int, most: int, default: int, rule: str = "") -> int:
        name, value = self.value(*names)
        if value is None:
            return default
        if not is_integer(value) or not least <= value <= most:
            self.problem(name, value, rule or f"an integer from {least} to {most}")
            return default
        return int(value)

    def number(
        self,
        *names: str,
        least: float = -math.inf,
        most: float = math.inf,
        default: float,
        above: bool = False,
    ) -> float:
        name, value = self.value(*names)
        if value is None:
            return default
        if not is_number(value) or not least <= value <= most or (above and value == least):
            self.problem(name, value, number_rule(least, most, above))
            return default
        return float(value)

    def text(self, name: str, default: str = "") -> str:
        name, value = self.value(name)
        if value is not None and not isinstance(value, str):
            self.problem(name, value, "a string")
            return default
        return default if value is None else value

    def texts(self, name: str) -> tuple[str, ...]:
        name, value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.problem(name, value, "a list of strings")
            return ()
        return tuple(value)

    def neutral(self, rules: Mapping[str, Sequence[Any]]) -> None:
        """Fields that are known and not supported: accepted with a value that changes nothing.

        `rules`: the neutral values of each; none means that the field has no effect of its own.
        """
        for name, neutral in rules.items():
            _, value = self.value(name)
            if value is not None and neutral and not any(same(value, fine) for fine in neutral):
                allowed = " or ".join(shown(fine) for fine in neutral)
                self.problems.append(
                    f"{name} is {shown(value)}, which is not supported here, expected {allowed}; leave it out"
                )

    def finish(self) -> None:
        """Raise Refusal 400 with all problems, those of unknown fields first."""
        unknown = []
        for name in self._body:
            if name in self._known:
                continue
            near = difflib.get_close_matches(name, self._known, 1, 0.75)
            hint = f"did you mean {near[0]}?" if near else "leave it out"
            unknown.append(f"{shown(name)} is not a field of this request; {hint}")
        if found := unknown + self.problems:
            raise Refusal(400, "; ".join(found))


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def same(value: object, other: object) -> bool:
    """Equal, where true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def number_rule(least: float, most: float, above: bool) -> str:
    if math.isinf(least) and math.isinf(most):
        return "a number"
    low = f"{'above' if above else 'of at least' if math.isinf(most) else 'from'} {least:g}"
    return f"a number {low}" + ("" if math.isinf(most) else f" {'and up ' if above else ''}to {most:g}")
