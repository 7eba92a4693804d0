"""Arithmetic coding with integer frequencies. Knows nothing of models, files or text."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tinylm.errors import CoderError

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

WORD = 96  # bits of the coder's low end and range
TOP = WORD - 8  # the range never falls below 2**TOP
SCALE = 62  # a table of frequencies sums to about 2**SCALE
REST = (1 << TOP) - 1


class ArithmeticEncoder:
    """Symbols, each with its place in a table of integer frequencies, to bytes.

    The range coder of Martin (1979) with a word of 96 bits. A carry runs back through the bytes written.
    Symbols of b bits together take between b/8 and b/8 + 1 bytes, and each at most 2**-24 bits more for
    rounding while tables sum to at most 2**SCALE and a little.
    """

    def __init__(self) -> None:
        self._low, self._range = 0, 1 << WORD
        self._out = bytearray()

    def encode(self, start: int, size: int, total: int) -> None:
        """The next symbol has the part [start, start + size) of [0, total)."""
        if not 0 <= start < start + size <= total <= 1 << (SCALE + 1):
            raise ValueError(f"[{start}, {start + size}) is no part of [0, {total})")
        step = self._range // total
        self._low += step * start
        self._range = step * size
        self._carry()
        while self._range < 1 << TOP:
            self._out.append(self._low >> TOP)
            self._low = (self._low & REST) << 8
            self._range <<= 8

    def finish(self) -> bytes:
        """The bytes of all symbols. The decoder reads zeros behind them."""
        if self._range < 1 << WORD:
            # A range of at least 2**TOP holds a multiple of 2**TOP: one byte says which.
            self._low = -(-self._low >> TOP) << TOP
            self._carry()
            self._out.append(self._low >> TOP)
        self._low, self._range = 0, 1 << WORD
        return bytes(self._out)

    def _carry(self) -> None:
        if not self._low >> WORD:
            return
        self._low -= 1 << WORD
        place = len(self._out) - 1
        while self._out[place] == 255:
            self._out[place] = 0
            place -= 1
        self._out[place] += 1


class ArithmeticDecoder:
    """The same symbols from the bytes, given the same tables: `find` a symbol's place, then `take` it."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = WORD // 8
        self._value = int.from_bytes(payload[: self._position].ljust(self._position, b"\0"), "big")
        self._range = 1 << WORD

    def find(self, total: int) -> int:
        """A number in [0, total) inside the part of the next symbol. Raises CoderError if there is none."""
        place = self._value // (self._range // total)
        if place >= total:
            raise CoderError("the payload is not the code of these probabilities")
        return place

    def take(self, start: int, size: int, total: int) -> None:
        """Step behind the symbol that has the part [start, start + size) of [0, total)."""
        step = self._range // total
        self._value -= step * start
        self._range = step * size
        while self._range < 1 << TOP:
            byte = self._payload[self._position] if self._position < len(self._payload) else 0
            self._value = self._value << 8 | byte
            self._position += 1
            self._range <<= 8


def frequencies(logits_V: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Logits (float64 [V]) to integer frequencies that sum to 2**62 and a little, and to bits per symbol.

    Every frequency is at least 1, so a symbol less probable than 2**-62 takes 62 bits, fewer than the
    model says. Bits are infinite where the probability is 0; a table of NaN is refused by its caller.
    """
    with np.errstate(invalid="ignore"):
        shifted_V = logits_V - logits_V.max()
        weights_V = np.exp(shifted_V)
        total = weights_V.sum()
        bits_V: Float64Array = (np.log(total) - shifted_V) / math.log(2)
        return (weights_V * (2.0**SCALE / total)).astype(np.int64) + 1, bits_V
