"""Rows: which tokens stand in them, and the rectangle that a model takes in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tinylm.config import Policy
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.shapes import check_shape

Integers = npt.NDArray[np.int64]

IGNORED = -1
"""Target of a padded position: a mask, never an id."""

PADDED = -1
"""Segment of a padded position."""


def rows_in_order(split: Split, policy: Policy, window: int) -> tuple[Integers, Integers]:
    """Starts and lengths (int64 [rows]) of disjoint rows in the order of the stream: every target once.

    `cross`: consecutive windows over the stream. `mask`, `reset`: windows over each document, from the
    boundary that opens it to the one that ends it.
    """
    targets = len(split.stream) - 1
    if policy == "cross":
        starts = np.arange(0, targets, window, dtype=np.int64)
        return starts, np.minimum(starts + window, targets) - starts
    opens = np.asarray(split.starts, dtype=np.int64) - 1
    lengths = np.diff(np.append(opens, targets))
    chunks = -(-lengths // window)
    document = np.repeat(np.arange(len(opens)), chunks)
    within = (np.arange(len(document)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * window
    return opens[document] + within, np.minimum(lengths[document] - within, window)


def gather(
    stream: npt.NDArray[np.uint16], starts: Integers, lengths: Integers, padded: int
) -> tuple[Integers, Integers]:
    """Inputs and targets (int64 [B, padded]) of rows; right padding has the target IGNORED.

    The input of a padded position is a placeholder that no scored position can see.
    """
    check_shape(stream, "N", name="stream", kind="integer")
    sizes = check_shape(starts, "B", name="starts", kind="integer")
    check_shape(lengths, "B", name="lengths", kind="integer", **sizes)
    positions = np.arange(padded + 1)
    reach = np.minimum(starts[:, None] + positions, (starts + lengths)[:, None])
    tokens = stream[reach].astype(np.int64)
    scored = positions[:-1] < lengths[:, None]
    return np.where(scored, tokens[:, :-1], DOC_BOUNDARY), np.where(scored, tokens[:, 1:], IGNORED)


def gather_packed(
    stream: npt.NDArray[np.uint16], starts: Integers, lengths: Integers, holds: Integers, padded: int
) -> tuple[Integers, Integers, Integers]:
    """Inputs, targets and segments (int64 [B, padded]) of rows that hold several pieces side by side.

    `starts`, `lengths`: int64 [pieces], row after row; row b holds the next `holds[b]` of them. The
    segment of a position is the number of its piece in the row, PADDED where there is none.
    """
    check_shape(stream, "N", name="stream", kind="integer")
    sizes = check_shape(starts, "P", name="starts", kind="integer")
    check_shape(lengths, "P", name="lengths", kind="integer", **sizes)
    check_shape(holds, "B", name="holds", kind="integer")
    first = np.cumsum(holds) - holds
    row = np.repeat(np.arange(len(holds)), holds)
    before = np.cumsum(lengths) - lengths
    number = np.arange(len(starts)) - first[row]
    within = np.arange(int(lengths.sum())) - np.repeat(before, lengths)
    sources = np.repeat(starts, lengths) + within
    places = np.repeat(row * padded + before - before[first[row]], lengths) + within
    shape = (len(holds), padded)
    inputs, targets, segments = np.full(shape, DOC_BOUNDARY), np.full(shape, IGNORED), np.full(shape, PADDED)
    inputs.reshape(-1)[places] = stream[sources]
    targets.reshape(-1)[places] = stream[sources + 1]
    segments.reshape(-1)[places] = np.repeat(number, lengths)
    return inputs, targets, segments
