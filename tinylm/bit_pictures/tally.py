"""What the pictures show, as numbers: bits by context length and by class of byte. Draws nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.corpus.scripts import SCRIPTS, script_of
from tinylm.errors import RequestError
from tinylm.evaluate import Scored

Uint16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

LETTER, DIGIT, SPACE, OTHER_ASCII, ILL_FORMED, BOUNDARY = range(6)
FIRST_SCRIPT = 6  # from here on: script * 4 + place of the byte in its character
ASCII = ("ASCII letters", "ASCII digits", "ASCII white space", "other ASCII")
NAMES = (*ASCII, "ill-formed bytes", "boundary")
CLASSES = FIRST_SCRIPT + 4 * len(SCRIPTS)
PLACES = ("1st byte", "2nd byte", "3rd byte", "4th byte")
SCRIPT_NAMES = {
    "Latin": "Latin, not ASCII",
    "common": "punctuation, marks",
    "symbols": "symbols, emoji",
    "other": "other scripts",
}

SHOWN = 4000
"""Scored tokens whose bits are kept one by one: the first ones of the split."""

STEP = 2 ** (1 / 4)
LEAST = 100
"""Bytes that a point of the curve stands for, at least."""


@dataclass(frozen=True)
class PositionBits:
    """Targets predicted from `first` to `last` tokens. `context` is their mean number of tokens.

    `bits_per_byte` counts boundary bits above the line, as everywhere; `standard_error` takes the targets
    as independent (NaN where one byte alone stands there).
    """

    first: int
    last: int
    context: float
    tokens: int
    bytes: int
    bits_per_byte: float
    standard_error: float


@dataclass(frozen=True)
class ClassBits:
    """The targets of one class: `place` is that of a byte in its character of several (else "")."""

    name: str
    place: str
    tokens: int
    bits: float

    @property
    def mean(self) -> float:
        """Bits per token."""
        return self.bits / self.tokens


class Tally:
    """Adds up scored targets as they come. Its size depends on the window and `shown`, not on the split.

    `first` holds the `shown` first targets in the order of the stream, however they came, and three more
    to complete a character.
    """

    def __init__(self, split: Split, window: int, shown: int = SHOWN) -> None:
        self.split = split
        self.shown = shown
        nothing: Int64Array = np.zeros(0, dtype=np.int64)
        self.first = Scored(nothing, nothing, np.zeros(0), "")
        # By context length: tokens, bytes, bits, bits of byte targets, squares of bits.
        self._positions: Float64Array = np.zeros((5, window + 1))
        self._class_tokens: Int64Array = np.zeros(CLASSES, dtype=np.int64)
        self._class_bits: Float64Array = np.zeros(CLASSES)

    def add(self, scored: Scored) -> None:
        """Count some targets. None may come twice."""
        contexts, bits = scored.contexts, scored.bits
        is_byte = self.split.stream[scored.positions] != DOC_BOUNDARY
        length = self._positions.shape[1]
        for row, weights in enumerate((None, is_byte, bits, bits * is_byte, bits * bits)):
            self._positions[row] += np.bincount(contexts, weights, length)
        classes = classify(self.split.stream, scored.positions)
        self._class_tokens += np.bincount(classes, minlength=CLASSES)
        self._class_bits += np.bincount(classes, bits, CLASSES)
        self.first = _first(self.first, scored, self.shown + 3)

    @property
    def tokens(self) -> int:
        """Targets counted."""
        return int(self._positions[0].sum())

    @property
    def bytes(self) -> int:
        """Byte targets counted."""
        return int(self._positions[1].sum())

    @property
    def bits(self) -> float:
        """Bits of all targets counted."""
        return float(self._positions[2].sum())

    @property
    def bits_per_byte(self) -> float:
        """Bits of all targets over bytes."""
        return self.bits / self.bytes

    @property
    def mean_context(self) -> float:
        """Tokens from which a target was predicted, on average."""
        tokens: Float64Array = self._positions[0]
        return float((tokens * np.arange(len(tokens))).sum()) / self.tokens

    def by_position(self, least: int = LEAST) -> list[PositionBits]:
        """Groups of like context length, shortest first: each a factor of about 2**(1/4) wide.

        A group with fewer than `least` bytes takes in its neighbour.
        """
        ends = [0]
        groups: list[tuple[int, int]] = []
        while ends[-1] + 1 < self._positions.shape[1]:
            first = ends[-1] + 1
            last = min(max(first, math.floor(first * STEP)), self._positions.shape[1] - 1)
            while self._positions[1, first : last + 1].sum() < least and last + 1 < self._positions.shape[1]:
                last += 1
            ends.append(last)
            groups.append((first, last))
        if len(groups) > 1 and self._positions[1, slice(groups[-1][0], None)].sum() < least:
            (first, _), (_, last) = groups[-2:]
            groups[-2:] = [(first, last)]
        return [found for first, last in groups if (found := self._group(first, last)) is not None]

    def _group(self, first: int, last: int) -> PositionBits | None:
        part = self._positions[:, first : last + 1]
        tokens, size, bits, of_bytes, squares = (float(value) for value in part.sum(axis=1))
        if not size:
            return None
        ratio = bits / size
        # A ratio estimator's error: the sum of (bits - ratio * bytes)**2, bytes being 0 or 1.
        spread = max(0.0, squares - 2 * ratio * of_bytes + ratio * ratio * size)
        error = math.sqrt(spread * tokens / (tokens - 1)) / size if tokens > 1 else math.nan
        context = float((part[0] * np.arange(first, last + 1)).sum()) / tokens
        return PositionBits(first, last, context, int(tokens), int(size), ratio, error)

    def by_class(self) -> list[ClassBits]:
        """The classes that occur: ASCII, scripts (the dearest first), ill-formed bytes, boundaries."""
        scripts = self._class_bits[FIRST_SCRIPT:].reshape(-1, 4).sum(axis=1)
        order = sorted(range(len(SCRIPTS)), key=lambda index: (-scripts[index], SCRIPTS[index]))
        found = [(index, NAMES[index], "") for index in range(ILL_FORMED)]
        for script in order:
            name = SCRIPT_NAMES.get(SCRIPTS[script], SCRIPTS[script])
            found += [(FIRST_SCRIPT + 4 * script + place, name, PLACES[place]) for place in range(4)]
        found += [(index, NAMES[index], "") for index in (ILL_FORMED, BOUNDARY)]
        return [
            ClassBits(name, place, int(self._class_tokens[index]), float(self._class_bits[index]))
            for index, name, place in found
            if self._class_tokens[index]
        ]


def tally(split: Split, window: int, scores: Iterable[Scored], shown: int = SHOWN) -> Tally:
    """Add up all scores of a split. Raises RequestError where no byte was scored."""
    result = Tally(split, window, shown)
    for scored in scores:
        result.add(scored)
    if not result.bytes:
        raise RequestError(f"{split.name}: no byte is scored, and a picture needs at least one")
    return result


def classify(stream: Uint16Array, positions: Int64Array) -> Int64Array:
    """The class (int64 [n]) of the tokens at `positions`; a byte has the script of its character.

    A character is looked for around the byte and never across a boundary; a byte that belongs to no
    well-formed character (Unicode 16.0, table 3-7) is ILL_FORMED.
    """
    reach = positions[:, None] + np.arange(-3, 4)
    around = np.where(
        (reach >= 0) & (reach < len(stream)), stream[np.clip(reach, 0, len(stream) - 1)], DOC_BOUNDARY
    ).astype(np.int64)
    token = around[:, 3]
    classes = np.full(len(positions), ILL_FORMED, dtype=np.int64)
    letter = ((token | 0x20) >= 0x61) & ((token | 0x20) <= 0x7A)
    digit = (token >= 0x30) & (token <= 0x39)
    space = (token == 0x20) | ((token >= 0x09) & (token <= 0x0D))
    classes[token < 0x80] = OTHER_ASCII
    classes[letter], classes[digit], classes[space] = LETTER, DIGIT, SPACE
    classes[token == DOC_BOUNDARY] = BOUNDARY
    continues = (around >= 0x80) & (around < 0xC0)
    for length, low, high, least in ((2, 0xC2, 0xDF, 0x80), (3, 0xE0, 0xEF, 0x800), (4, 0xF0, 0xF4, 0x10000)):
        for place in range(length):
            start = 3 - place
            lead = around[:, start]
            whole = (lead >= low) & (lead <= high) & continues[:, start + 1 : start + length].all(axis=1)
            code = lead & (0xFF >> (length + 1))
            for follower in range(1, length):
                code = code << 6 | (around[:, start + follower] & 0x3F)
            whole &= (code >= least) & (code <= 0x10FFFF) & ((code < 0xD800) | (code > 0xDFFF))
            classes[whole] = FIRST_SCRIPT + 4 * script_of(code[whole]) + place
    return classes


def _first(one: Scored, other: Scored, count: int) -> Scored:
    """The `count` first targets of both, in the order of the stream."""
    positions = np.concatenate([one.positions, other.positions])
    order = np.argsort(positions)[:count]
    bits = np.concatenate([one.bits, other.bits])[order]
    contexts = np.concatenate([one.contexts, other.contexts])[order]
    return Scored(positions[order], contexts, bits, other.precision)
