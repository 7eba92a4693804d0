"""Rules over characters to a Lark grammar of llguidance over single bytes, with which no byte is ambiguous.

llguidance matches each terminal greedily: `x: /[ab]+/` followed by `"b"` would never find its b. So each
terminal here is one id, and the sets of ids that occur are cut into pieces that do not overlap; the parser
alone decides how they are read. The language is then exactly that of the rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from tinylm.constraints.gbnf import Bytes, Characters, Choice, Node, Ranges, Reference, Repeat
from tinylm.sampling import UTF8_FORMS

Range = tuple[int, int]

ENCODED = tuple(
    (int.from_bytes(bytes(low for low, _ in form)), int.from_bytes(bytes(high for _, high in form)))
    for form in UTF8_FORMS
)


def to_lark(rules: Mapping[str, Node]) -> str:
    """A Lark grammar for what `root` matches, over ids 0..255."""
    names = {name: "start" if name == "root" else f"rule_{i}" for i, name in enumerate(rules)}
    sets: dict[Range, str] = {}
    lines = [f"{names[name]}: {_expression(node, names, sets)}" for name, node in rules.items()]
    cuts = sorted({low for low, _ in sets} | {high + 1 for _, high in sets})
    pieces = {low: f"<[{low}-{following - 1}]>" for low, following in itertools.pairwise(cuts)}
    for (low, high), name in sets.items():
        lines.append(f"{name}: " + " | ".join(pieces[cut] for cut in cuts if low <= cut <= high))
    return "\n".join(lines) + "\n"


def _expression(node: Node, names: Mapping[str, str], sets: dict[Range, str]) -> str:
    if isinstance(node, Reference):
        return names[node.name]
    if isinstance(node, Repeat):
        most = "" if node.most is None else node.most
        times = {"0,": "*", "1,": "+", "0,1": "?"}.get(f"{node.least},{most}", f"{{{node.least},{most}}}")
        return f"({_expression(node.node, names, sets)}{times})"
    if isinstance(node, Bytes):
        return _choice([_set(one, sets) for one in node.ranges])
    if isinstance(node, Characters):
        return _choice([" ".join(_set(one, sets) for one in row) for row in utf8_ranges(node.ranges)])
    if isinstance(node, Choice):
        return _choice([_expression(option, names, sets) for option in node.options])
    return "(" + " ".join(_expression(part, names, sets) for part in node.parts) + ")" if node.parts else '""'


def _choice(options: list[str]) -> str:
    return "(" + " | ".join(options) + ")"


def _set(one: Range, sets: dict[Range, str]) -> str:
    """The name of the rule for a range of ids, noted in `sets`."""
    return sets.setdefault(one, f"ids_{one[0]}_{one[1]}")


def utf8_ranges(ranges: Ranges) -> Iterator[tuple[Range, ...]]:
    """Ranges of code points as rows of byte ranges: a row matches the encodings of some of them, all
    rows together those of all of them and nothing else. Code points must not be surrogates."""
    for low, high in ranges:
        first, last = chr(low).encode(), chr(high).encode()
        if low == high:
            yield tuple((byte, byte) for byte in first)
            continue
        for start, end in ENCODED:
            least = max(int.from_bytes(first), start) if len(first) == _size(start) else start
            most = min(int.from_bytes(last), end) if len(last) == _size(start) else end
            if len(first) <= _size(start) <= len(last) and least <= most:
                yield from _rows(least.to_bytes(_size(start)), most.to_bytes(_size(start)))


def _size(encoded: int) -> int:
    return max(1, (encoded.bit_length() + 7) // 8)


def _rows(low: bytes, high: bytes) -> Iterator[tuple[Range, ...]]:
    """Byte ranges for the encodings from `low` to `high`, all of one length and one form."""
    if len(low) == 1:
        yield ((low[0], high[0]),)
        return
    rest = len(low) - 1
    if low[0] == high[0]:
        for row in _rows(low[1:], high[1:]):
            yield ((low[0], low[0]), *row)
        return
    first, last = low[0], high[0]
    if low[1:] != b"\x80" * rest:
        for row in _rows(low[1:], b"\xbf" * rest):
            yield ((first, first), *row)
        first += 1
    if high[1:] != b"\xbf" * rest:
        for row in _rows(b"\x80" * rest, high[1:]):
            yield ((last, last), *row)
        last -= 1
    if first <= last:
        yield ((first, last), *(((0x80, 0xBF),) * rest))
