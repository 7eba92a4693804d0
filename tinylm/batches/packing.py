"""Which pieces of documents share a row: first-fit decreasing, by counting lengths."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from tinylm.batches.rows import Integers
from tinylm.shapes import check_shape

Contents = list[tuple[int, int]]
"""What a row holds: (length, how many pieces of it), longest first."""


def pack(lengths: Integers, window: int, shuffled: Integers) -> tuple[Integers, Integers]:
    """Put pieces side by side into rows of at most `window` tokens, none cut, none left out.

    Returns the pieces (int64 [pieces]: indices into `lengths`, row after row) and how many each row holds
    (int64 [rows]). Pieces of equal length are taken in the order `shuffled`, a permutation of them all.

    First-fit decreasing (Johnson, 1973) fills row after row with the longest piece that still fits. Rows
    filled alike are counted instead of filled, so that the loop runs over kinds of rows, not over pieces.
    Raises ShapeError unless `lengths` and `shuffled` are integers, one of each for a piece.
    """
    sizes_P = check_shape(lengths, "P", name="lengths", kind="integer")
    check_shape(shuffled, "P", name="shuffled", kind="integer", **sizes_P)
    sizes, counts = np.unique(lengths, return_counts=True)
    kinds = kinds_of_rows(dict(zip(sizes.tolist(), counts.tolist(), strict=True)), window)
    widths, holds = [], []
    for contents, times in kinds:
        row = np.repeat([length for length, _ in contents], [many for _, many in contents])
        widths.append(np.tile(row, times))
        holds.append(np.full(times, len(row)))
    # 16-bit keys are sorted by counting.
    key = np.min_scalar_type(window)
    places = np.argsort(np.concatenate(widths).astype(key), kind="stable")
    pieces = np.empty(len(lengths), dtype=np.int64)
    pieces[places] = shuffled[np.argsort(lengths[shuffled].astype(key), kind="stable")]
    return pieces, np.concatenate(holds).astype(np.int64)


def kinds_of_rows(counts: dict[int, int], window: int) -> list[tuple[Contents, int]]:
    """The rows that first-fit decreasing makes of `counts` pieces of each length: contents, and how often."""
    counts, sizes = dict(counts), sorted(counts)
    kinds = []
    while sizes:
        room, contents, place = window, [], len(sizes)
        while place := bisect_right(sizes, room, 0, place):
            place -= 1  # of what is left, the longest that fits; then only shorter ones can follow
            length = sizes[place]
            many = min(counts[length], room // length)
            contents.append((length, many))
            room -= many * length
        times = min(counts[length] // many for length, many in contents)
        for length, many in contents:
            counts[length] -= many * times
            if not counts[length]:
                del sizes[bisect_right(sizes, length) - 1]
        kinds.append((contents, times))
    return kinds
