"""What a model must beat on the same split: the uniform guess, n-grams, and general compressors.

N-grams are frozen tables of the training stream, interpolated after Witten and Bell (1991, method C) and
normalised over all 257 ids, so that their bits per byte are those of a model: boundaries are predicted
and charged like bytes.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.corpus import Split
from tinylm.errors import RequestError
from tinylm.shapes import check_shape
from tinylm.tokenizer import Ids, check_ids

Uint16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Compressor = Literal["zlib", "bzip2", "lzma"]

ORDERS = (1, 2, 3, 4, 5, 6)
MAX_ORDER = 7  # 257**7 < 2**63: a gram of up to 7 ids is one exact int64 key
LIMIT = 16_777_216
BLOCK = 1 << 20  # targets that are scored at a time

COMPRESSORS: dict[Compressor, tuple[str, Callable[[bytes], bytes]]] = {
    "zlib": ("zlib -9", lambda data: zlib.compress(data, 9)),
    "bzip2": ("bzip2 -9", lambda data: bz2.compress(data, 9)),
    "lzma": ("lzma -9e", lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
}


@dataclass(frozen=True)
class Baseline:
    """One rung of the ladder; `note` says which part of the text it saw where that is not all of it.

    The two numbers beside `bits_per_byte` are those of an Evaluation; None where a method has no such
    parts (a compressor sees the raw bytes only) or the split has no boundary target.
    """

    name: str
    bits_per_byte: float
    bits_per_byte_without_boundaries: float | None = None
    bits_per_boundary: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Table:
    """The grams of one order that occur, as sorted keys, and what their contexts saw."""

    grams: Int64Array  # sorted keys of context and continuation
    counts: Int64Array  # C(c, x) of each gram
    contexts: Int64Array  # sorted keys of contexts
    totals: Int64Array  # C(c) of each context
    kinds: Int64Array  # U(c): distinct continuations of each context


class Ngrams:
    """Interpolated Witten-Bell n-grams of every order up to `order`, counted on a token stream.

    P_n(x|c) = (C(c,x) + U(c) P_{n-1}(x|c')) / (C(c) + U(c)), c' being c without its oldest token and
    P_0 = 1/257; a context that was never seen leaves P_{n-1} as it is. A context may contain boundaries
    (it reads across documents) and is shorter at the start of a stream.
    """

    def __init__(self, tables: Sequence[_Table]) -> None:
        self._tables = tuple(tables)

    @property
    def order(self) -> int:
        """The longest gram, in tokens."""
        return len(self._tables)

    @classmethod
    def count(cls, stream: Uint16Array, order: int) -> Self:
        """Count a stream [N], whose first token is context only.

        Raises RequestError for another order, ShapeError for anything but one axis of integers.
        """
        check_shape(stream, "N", name="stream", kind="integer")
        return cls([_count(stream, n) for n in range(1, _check_order(order) + 1)])

    def distribution(self, context: Ids = (DOC_BOUNDARY,)) -> Float64Array:
        """The probability of each id after a context, as float64 [257]; only its last tokens are read."""
        tokens = check_ids(context, "context").astype(np.int64)
        every = np.arange(VOCABULARY_SIZE, dtype=np.int64)
        probability = np.full(VOCABULARY_SIZE, 1 / VOCABULARY_SIZE)
        for n, table in enumerate(self._tables, 1):
            if n - 1 > len(tokens):
                break
            key = 0
            for token in tokens[len(tokens) - (n - 1) :]:
                key = key * VOCABULARY_SIZE + int(token)
            probability = _interpolate(table, key * VOCABULARY_SIZE + every, probability)
        return probability


def ngram_bits(train_stream: Uint16Array, stream: Uint16Array, order: int) -> Float64Array:
    """Bits of each target stream[1:] under the n-gram counted on `train_stream`, as float64 [N-1].

    Raises RequestError for another order, ShapeError for streams that are not one axis of integers.
    """
    check_shape(train_stream, "N", name="train_stream", kind="integer")
    check_shape(stream, "N", name="stream", kind="integer")
    for probability in _levels(train_stream, stream, _check_order(order)):
        last = probability
    return -np.log2(last)


def ladder(
    train: Split,
    validation: Split,
    *,
    orders: Sequence[int] = ORDERS,
    compressors: Sequence[Compressor] = ("zlib", "bzip2", "lzma"),
    limit: int = LIMIT,
    progress: Callable[[str], None] | None = None,
) -> list[Baseline]:
    """What `validation` costs, in bits per byte, without any model.

    Uniform over 257; n-grams of `orders`; compressors: the bytes that the held-out text adds to a
    compressed training text. Tables and compressors read the last `limit` tokens of `train` and the
    first `limit` of `validation`, which bounds memory whatever the size; each note says so where that is
    not all. `progress` is told each name before its work. Raises RequestError without held-out bytes.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise RequestError(f"limit is {limit!r}, expected at least 1 token")
    unknown = [name for name in compressors if name not in COMPRESSORS]
    if unknown:
        raise RequestError(f"compressor {unknown[0]!r}, expected one of {', '.join(COMPRESSORS)}")
    seen = train.stream[max(0, len(train.stream) - 1 - limit) :]
    scored = validation.stream[: limit + 1]
    size = int(np.count_nonzero(scored[1:] != DOC_BOUNDARY))
    if not size:
        raise RequestError(f"{validation.name}: holds no byte, and bits per byte need at least one")
    note = _note(train, seen, validation, scored)
    tell = progress or (lambda name: None)

    uniform = math.log2(VOCABULARY_SIZE)
    ends = validation.boundaries
    rungs = [
        Baseline(
            "uniform",
            uniform * (validation.bytes + ends) / validation.bytes,
            uniform,
            uniform if ends else None,
        )
    ]
    if orders:
        is_end = scored[1:] == DOC_BOUNDARY
        tell("1-gram")
        for n, probability in enumerate(_levels(seen, scored, max(map(_check_order, orders))), 1):
            if n in orders:
                rungs.append(_ngram_rung(n, -np.log2(probability), is_end, note))
            if n < max(orders):
                tell(f"{n + 1}-gram")
    before, after = _raw(seen[1:]), _raw(scored[1:])
    for compressor in compressors:
        name, compress = COMPRESSORS[compressor]
        tell(name)
        extra = len(compress(before + after)) - len(compress(before))
        rungs.append(Baseline(name, 8 * extra / size, note=note))
    return rungs


def _ngram_rung(n: int, bits: Float64Array, is_end: BoolArray, note: str) -> Baseline:
    ends = int(np.count_nonzero(is_end))
    size = len(bits) - ends
    end_bits, byte_bits = float(bits[is_end].sum()), float(bits[~is_end].sum())
    return Baseline(
        f"{n}-gram",
        (byte_bits + end_bits) / size,
        byte_bits / size,
        end_bits / ends if ends else None,
        note,
    )


def _levels(train_stream: Uint16Array, stream: Uint16Array, order: int) -> Iterator[Float64Array]:
    """For each order from 1 up, the probability of each target stream[1:]; holds one table at a time."""
    probability = np.full(max(len(stream) - 1, 0), 1 / VOCABULARY_SIZE)
    for n in range(1, order + 1):
        table = _count(train_stream, n)
        probability = probability.copy()
        for start in range(max(n - 1, 1), len(stream), BLOCK):  # from the first target with a whole context
            stop = min(start + BLOCK, len(stream))
            grams = _keys(stream[start - (n - 1) : stop], n)
            probability[start - 1 : stop - 1] = _interpolate(table, grams, probability[start - 1 : stop - 1])
        yield probability


def _check_order(order: int) -> int:
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= MAX_ORDER:
        raise RequestError(f"n-gram order is {order!r}, expected an integer from 1 to {MAX_ORDER}")
    return order


def _keys(stream: Uint16Array, n: int) -> Int64Array:
    """The key of each run of n tokens, as int64 [N-n+1]: base 257, oldest token first."""
    tokens = stream.astype(np.int64)
    size = max(len(tokens) - n + 1, 0)
    keys = np.zeros(size, dtype=np.int64)
    for offset in range(n):
        keys *= VOCABULARY_SIZE
        keys += tokens[offset : offset + size]
    return keys


def _count(stream: Uint16Array, n: int) -> _Table:
    # The first token of a stream is never a continuation; longer grams have it as context.
    keys = _keys(stream[1:] if n == 1 else stream, n)
    keys.sort()
    grams, counts = _runs(keys)
    contexts = grams // VOCABULARY_SIZE
    first = np.flatnonzero(np.diff(contexts, prepend=-1))
    totals = np.add.reduceat(counts, first) if len(first) else np.zeros(0, dtype=np.int64)
    return _Table(grams, counts, contexts[first], totals, np.diff(first, append=len(grams)))


def _runs(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The distinct values of a sorted array and how often each occurs."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return values[starts], np.diff(starts, append=len(values))


def _interpolate(table: _Table, grams: Int64Array, lower: Float64Array) -> Float64Array:
    """One level of the recursion for the targets whose gram keys are given."""
    if not len(table.grams) or not len(grams):
        return lower
    order = np.argsort(grams)  # neighbouring look-ups then read neighbouring memory
    grams, lower_sorted = grams[order], lower[order]
    contexts = grams // VOCABULARY_SIZE
    place, seen = _look_up(table.contexts, contexts)
    at, found = _look_up(table.grams, grams)
    count = np.where(found, table.counts[at], 0)
    total = np.where(seen, table.totals[place], 0)
    kinds = np.where(seen, table.kinds[place], 1)
    result = np.empty_like(lower)
    result[order] = (count + kinds * lower_sorted) / (total + kinds)
    return result


def _look_up(keys: Int64Array, wanted: Int64Array) -> tuple[Int64Array, BoolArray]:
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def _raw(tokens: Uint16Array) -> bytes:
    values: npt.NDArray[np.uint8] = tokens[tokens != DOC_BOUNDARY].astype(np.uint8)
    return values.tobytes()


def _note(train: Split, seen: Uint16Array, validation: Split, scored: Uint16Array) -> str:
    parts = [
        f"{which} {len(part) - 1:,} of {len(split.stream) - 1:,} {split.name} tokens"
        for which, part, split in (("the last", seen, train), ("the first", scored, validation))
        if len(part) < len(split.stream)
    ]
    return " and ".join(parts)
