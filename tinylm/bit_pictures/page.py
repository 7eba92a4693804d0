"""The heat map of a text's bits: one HTML file that needs nothing else; equal numbers give equal files."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from tinylm.bit_pictures.style import LEVELS, SCRIPT, STYLE
from tinylm.bit_pictures.tally import Tally
from tinylm.contract import DOC_BOUNDARY

Uint16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Costs = dict[int, tuple[float, int]]
"""Bits and tokens of context by position."""

STEPS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Where one colour ends and the next begins, in bits."""

NEAR = 16
SIGNS = {"\n": "↵", "\t": "⇥", " ": "␣"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Cell:
    """Tokens of a stream that are shown together: a character, a byte that is none, or a boundary.

    `text` is the character, "" for the others.
    """

    start: int
    tokens: tuple[int, ...]
    text: str


def runs(positions: Int64Array, stream: Uint16Array) -> list[tuple[int, int]]:
    """The stretches [begin, end) of a stream that show these positions (rising), in whole characters.

    A stretch takes in what stands between two positions less than NEAR apart, and at the beginning of
    the stream its opening boundary.
    """
    cuts = np.flatnonzero(np.diff(positions) >= NEAR)
    firsts, lasts = positions[np.append(0, cuts + 1)], positions[np.append(cuts, len(positions) - 1)]
    found = []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        begin, end = (0 if first == 1 else first), last + 1
        for _ in range(3):
            begin -= 0x80 <= stream[begin] < 0xC0
            end += end < len(stream) and 0x80 <= stream[end] < 0xC0
        found.append((begin, end))
    return found


def cells(stream: Uint16Array, begin: int, end: int) -> Iterator[Cell]:
    """Some tokens of a stream as cells: every token in exactly one, in order."""
    place = begin
    while place < end:
        token = int(stream[place])
        length = 1 + (token >= 0xC2) + (token >= 0xE0) + (token >= 0xF0) if token != DOC_BOUNDARY else 1
        part = tuple(int(value) for value in stream[place : min(place + length, end)])
        text = ""
        if DOC_BOUNDARY not in part:
            try:
                text = bytes(part).decode("utf-8")
            except UnicodeDecodeError:
                part = part[:1]
        else:
            part = part[:1]
        yield Cell(place, part, text)
        place += len(part)


def level(bits: float) -> int:
    """The colour of a number of bits: an index into LEVELS."""
    return sum(bits >= step for step in STEPS)


def visible(character: str) -> str:
    """What is shown for a character: itself, if that can be seen and moves nothing around it."""
    if character in SIGNS:
        return SIGNS[character]
    code = ord(character)
    kind = unicodedata.category(character)
    selector = 0xFE00 <= code <= 0xFE0F or 0xE0100 <= code <= 0xE01EF
    if kind[0] in "CZ" or selector:
        return f"{code:04X}"
    return f"◌{character}" if kind[0] == "M" else character


def text_page(tally: Tally, title: str, shape: str) -> bytes:
    """The page as UTF-8: the text with its bits, a legend, and the classes as a table."""
    shown, every = min(tally.shown, tally.tokens), len(tally.split.stream) - 1
    of = "the whole text" if shown == every else f"the first {shown:,} tokens of those that were scored"
    html = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}: bits of a text</title>
<style>
{STYLE}{_colours()}</style>
</head>
<body>
<header>
<h1>{escape(title)}: where the bits go</h1>
<p>{escape(shape)}. Shown: {of}. Each character stands over its bytes, in the order of the stream,
left to right. The colour of a byte is what it cost, −log₂ of the probability that the model gave it; the
colour of a character is the sum over its bytes. Point at one, tap it, or use the arrow keys in the text.</p>
</header>
{_legend()}
<main>
<div id="text" class="text" tabindex="0" role="group" aria-label="the text; arrow keys move in it">
{_text(tally)}
</div>
</main>
<section aria-labelledby="sums">
<h2 id="sums">All that was scored</h2>
{_summary(tally)}
{_table(tally)}
</section>
<div id="panel" aria-live="polite" hidden></div>
<script>
{SCRIPT}</script>
</body>
</html>
"""
    return html.encode("utf-8")


def _text(tally: Tally) -> str:
    first, stream = tally.first, tally.split.stream
    costs: Costs = {
        position: (bits, context)
        for position, bits, context in zip(
            first.positions.tolist(), first.bits.tolist(), first.contexts.tolist(), strict=True
        )
    }
    parts, place = [], 0
    for begin, end in runs(first.positions[: tally.shown], stream):
        if begin > place:
            parts.append(f'<p class="gap">… {begin - place:,} tokens that were not scored …</p>\n')
        parts += [_cell(cell, costs) for cell in cells(stream, begin, end)]
        place = end
    return "".join(parts)


def _cell(cell: Cell, costs: Costs) -> str:
    found = [costs.get(cell.start + index, (math.nan, 0)) for index in range(len(cell.tokens))]
    bits, contexts = [cost for cost, _ in found], [context for _, context in found]
    if cell.tokens == (DOC_BOUNDARY,):
        if cell.start == 0:
            return '<span class="c end n" title="boundary: opens the text, context only">boundary</span><br>'
        about = f"boundary: the document ends here\n{_about(bits[0], contexts[0])}"
        label = "boundary" if math.isnan(bits[0]) else f"boundary <i>{bits[0]:.2f}</i>"
        return f'<span class="c end {_class(bits[0])}" title="{escape(about)}">{label}</span><br>\n'
    lines = [_named(cell)]
    for token, cost, context in zip(cell.tokens, bits, contexts, strict=True):
        lines.append(f"{token:02x}  {_about(cost, context)}")
    if len(bits) > 1 and not math.isnan(sum(bits)):
        lines.append(f"together {sum(bits):.2f} bits")
    before = costs.get(cell.start - 1, (math.nan, 0))[1]
    fresh = " w" if contexts[0] == 1 or 0 < contexts[0] <= before else ""
    sign = visible(cell.text) if cell.text else "✗"
    coded = " u" if len(sign) > 2 or not cell.text else ""
    tiles = "".join(
        f'<i class="{_class(cost)}">{token:02x}</i>' for token, cost in zip(cell.tokens, bits, strict=True)
    )
    after = "<br>\n" if cell.text == "\n" else ""
    head = f'<b class="{_class(sum(bits))}{coded}"><bdi>{escape(sign)}</bdi></b>'
    return f'<span class="c{fresh}" title="{escape(chr(10).join(lines))}">{head}<u>{tiles}</u></span>{after}'


def _named(cell: Cell) -> str:
    """A character by its number and its name."""
    if not cell.text:
        return "a byte that is no character"
    name = unicodedata.name(cell.text, "")
    shown = "" if visible(cell.text) != cell.text else f"{cell.text}  "
    return f"{shown}U+{ord(cell.text):04X} {name}".rstrip()


def _about(bits: float, context: int) -> str:
    if math.isnan(bits):
        return "not scored"
    probability = 2.0**-bits
    number = f"{probability:.3f}" if probability >= 0.001 else f"{probability:.1e}"
    return f"{bits:.2f} bits  probability {number}  from {context:,} token{'s' if context != 1 else ''}"


def _class(bits: float) -> str:
    return "n" if math.isnan(bits) else f"l{level(bits)}"


def _colours() -> str:
    """The levels as style, light and dark."""
    light = "".join(
        f".l{index}{{background:{pair[0]};color:{pair[1]}}}\n" for index, (pair, _) in enumerate(LEVELS)
    )
    dark = "".join(
        f".l{index}{{background:{pair[0]};color:{pair[1]}}}\n" for index, (_, pair) in enumerate(LEVELS)
    )
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _legend() -> str:
    ends = (0.0, *STEPS)
    items = []
    for index, low in enumerate(ends):
        text = f"{low:g} – {ends[index + 1]:g} bits" if index + 1 < len(ends) else f"over {low:g} bits"
        items.append(f'<li><span class="swatch l{index}">{low:g}</span> {text}</li>')
    items.append('<li><span class="swatch n">–</span> context only, or not scored</li>')
    items.append('<li><span class="swatch w">a</span> a new window: less of what stood before is seen</li>')
    return (
        '<section aria-labelledby="legend"><h2 id="legend">Colours</h2>\n'
        "<p>1 bit: a fair coin, probability ½. 8 bits: one in 256, no better than guessing.</p>\n"
        f'<ul class="legend">\n{chr(10).join(items)}\n</ul></section>'
    )


def _summary(tally: Tally) -> str:
    return (
        f"<p>{tally.tokens:,} tokens ({tally.bytes:,} bytes) of {escape(tally.split.name)}: "
        f"<strong>{tally.bits_per_byte:.3f} bits per byte</strong>, {tally.bits:,.0f} bits together, "
        f"each token predicted from {tally.mean_context:,.1f} tokens on average.</p>"
    )


def _table(tally: Tally) -> str:
    rows = []
    for found in tally.by_class():
        rows.append(
            f'<tr><th scope="row">{escape(found.name)} <small>{found.place}</small></th>'
            f"<td>{found.tokens:,}</td>"
            f"<td>{found.tokens / tally.tokens:.1%}</td><td>{found.mean:.3f}</td>"
            f"<td>{found.bits / tally.bits:.1%}</td></tr>"
        )
    return (
        '<div class="wide"><table>\n<caption>What each class of byte costs</caption>\n<thead><tr>'
        '<th scope="col">class</th><th scope="col">tokens</th>'
        '<th scope="col">share of tokens</th><th scope="col">bits per token</th>'
        '<th scope="col">share of bits</th></tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody></table></div>"
    )
