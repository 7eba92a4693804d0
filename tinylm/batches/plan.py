"""The order in which a run sees its rows: step s is a function of (corpus, policy, window, seed, s)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from tinylm.batches.order import key, permute
from tinylm.batches.packing import pack
from tinylm.batches.rows import Integers, gather, gather_packed, rows_in_order
from tinylm.config import POLICIES, Policy
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.errors import ConfigError, CorpusError

SHORTEST_BUCKET = 16
GROUP, GROUPS = 256, 16
"""Rows of like length that stay together in a `reset` epoch, at most; and how many groups there are, at least
(unless a batch is larger), so that a small corpus is not read from short rows to long ones."""

MicroBatch = tuple[Integers, Integers, Integers | None]


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step. `inputs_BT`, `targets_BT`: int64 [B, T]; `epoch` of its first row.

    `starts`, `lengths`: int64, its pieces row after row; one piece a row but under `mask`, where
    `segments_BT` (int64 [B, T], else None) numbers the pieces within each row, PADDED where there is none.
    """

    inputs_BT: Integers
    targets_BT: Integers
    starts: Integers
    lengths: Integers
    epoch: int
    segments_BT: Integers | None = None

    @property
    def targets(self) -> int:
        """Scored targets, padding not counted."""
        return int(self.lengths.sum())

    @property
    def bytes(self) -> int:
        """Scored targets that are bytes."""
        return int(np.count_nonzero((self.targets_BT >= 0) & (self.targets_BT < DOC_BOUNDARY)))

    def micro_batches(self, rows: int, share: slice = slice(None)) -> list[MicroBatch]:
        """Inputs, targets and segments in pieces of `rows` rows; those of a `share` of the rows, if given."""
        first, end, _ = share.indices(len(self.inputs_BT))
        cuts = [slice(row, min(row + rows, end)) for row in range(first, end, rows)]
        segments_BT = self.segments_BT
        return [
            (self.inputs_BT[cut], self.targets_BT[cut], None if segments_BT is None else segments_BT[cut])
            for cut in cuts
        ]


class Plan:
    """The order in which a run sees its rows: step s takes the next `batch_rows` rows of epoch 0, 1, ..."""

    def __init__(self, split: Split, policy: Policy, window: int, batch_rows: int, seed: int) -> None:
        if len(split.stream) < 2:
            raise CorpusError(f"the {split.name} stream has no target; train on at least one byte of text")
        if policy not in POLICIES:
            raise ConfigError(f"policy is {policy!r}, expected one of {', '.join(POLICIES)}")
        self.split, self.policy, self.window = split, policy, window
        self.batch_rows, self.seed = batch_rows, seed
        self._ends = [0]
        self._order: tuple[int, Integers] = (-1, np.empty(0, np.int64))
        if policy == "cross":
            return
        # The pieces of the documents, row after row; row r holds _holds[r] of them, from _first[r] on.
        self._starts, self._lengths = rows_in_order(split, policy, window)
        self._holds = np.ones(len(self._starts), dtype=np.int64)
        if policy == "mask":
            count = len(self._starts)
            shuffled = permute(np.arange(count), count, key(seed, 0, "packing"))
            pieces, self._holds = pack(self._lengths, window, shuffled)
            self._starts, self._lengths = self._starts[pieces], self._lengths[pieces]
        self._first = np.cumsum(self._holds) - self._holds
        self._widths = np.add.reduceat(self._lengths, self._first)

    @cached_property
    def padded_lengths(self) -> tuple[int, ...]:
        """Every length T that a batch of this plan can have: compiled graphs are known before step 0."""
        if self.policy == "cross":
            return (min(self.window, len(self.split.stream) - 1),)
        if self.policy == "mask":
            return (int(self._widths.max()),)
        return tuple(int(length) for length in np.unique(_buckets(self._widths, self.window)))

    @cached_property
    def padding(self) -> float:
        """The share of the positions of epoch 0 that hold no token, its last batch left as it is."""
        rows, targets = self.rows_of_epoch(0), len(self.split.stream) - 1
        widths = np.full(rows, self.padded_lengths[-1])
        if self.policy == "reset":
            widths = _buckets(self._widths[self._row_order(0)], self.window)
            widths = np.maximum.reduceat(widths, np.arange(0, rows, self.batch_rows))
            widths = np.repeat(widths, self.batch_rows)[:rows]
        return 1.0 - targets / int(widths.sum())

    def rows_of_epoch(self, epoch: int) -> int:
        """How many rows the epoch has (`cross`: the grid's offset can add one)."""
        if self.policy != "cross":
            return len(self._holds)
        return -((self._grid(epoch) - (len(self.split.stream) - 1)) // self.window)

    def rows(self, step: int) -> tuple[Integers, Integers, int]:
        """Starts and lengths (int64) of the pieces in the rows of a step, and the epoch of the first row.

        One piece a row, but under `mask`.
        """
        starts, lengths, _, epoch = self._step(step)
        return starts, lengths, epoch

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        starts, lengths, holds, epoch = self._step(step)
        stream, padded = self.split.stream, self.padded_lengths[-1]
        if self.policy == "mask":
            inputs_BT, targets_BT, segments_BT = gather_packed(stream, starts, lengths, holds, padded)
            return Batch(inputs_BT, targets_BT, starts, lengths, epoch, segments_BT)
        if self.policy == "reset":
            padded = int(_buckets(lengths, self.window).max())
        inputs_BT, targets_BT = gather(stream, starts, lengths, padded)
        return Batch(inputs_BT, targets_BT, starts, lengths, epoch)

    def _step(self, step: int) -> tuple[Integers, Integers, Integers, int]:
        """Starts and lengths of the pieces of a step, how many each row holds, the epoch of the first row."""
        first = step * self.batch_rows
        found, opening = [], -1
        wanted = self.batch_rows
        while wanted:
            epoch, index = self._locate(first)
            opening = epoch if opening < 0 else opening
            count = min(wanted, self._ends[epoch + 1] - first)
            found.append(self._rows_at(epoch, np.arange(index, index + count)))
            first, wanted = first + count, wanted - count
        starts, lengths, holds = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return starts, lengths, holds, opening

    def _locate(self, row: int) -> tuple[int, int]:
        while self._ends[-1] <= row:
            self._ends.append(self._ends[-1] + self.rows_of_epoch(len(self._ends) - 1))
        epoch = bisect_right(self._ends, row) - 1
        return epoch, row - self._ends[epoch]

    def _grid(self, epoch: int) -> int:
        """Where the epoch's first window begins, counted in targets: 0, or before the stream."""
        offset = int.from_bytes(key(self.seed, epoch, "grid")[:8], "little") % self.window
        return offset - self.window if offset else 0

    def _rows_at(self, epoch: int, indices: Integers) -> tuple[Integers, Integers, Integers]:
        """Starts and lengths of the pieces at some places of an epoch, and how many each row holds."""
        if self.policy == "cross":
            cells = permute(indices, self.rows_of_epoch(epoch), key(self.seed, epoch, "rows"))
            begin = self._grid(epoch) + cells * self.window
            starts = np.maximum(begin, 0)
            lengths = np.minimum(begin + self.window, len(self.split.stream) - 1) - starts
            return starts, lengths, np.ones(len(starts), dtype=np.int64)
        if self._order[0] != epoch:
            self._order = (epoch, self._row_order(epoch))
        rows = self._order[1][indices]
        holds = self._holds[rows]
        within = np.arange(int(holds.sum())) - np.repeat(np.cumsum(holds) - holds, holds)
        pieces = np.repeat(self._first[rows], holds) + within
        return self._starts[pieces], self._lengths[pieces], holds

    def _row_order(self, epoch: int) -> Integers:
        """The rows of an epoch in their order; under `reset`, rows of like length stay together."""
        count = len(self._holds)
        shuffled = permute(np.arange(count), count, key(self.seed, epoch, "rows"))
        if self.policy == "mask":
            return shuffled
        buckets = _buckets(self._widths, self.window)[shuffled]
        alike = shuffled[np.argsort(buckets, kind="stable")]
        size = max(self.batch_rows, min(GROUP, count // GROUPS))
        groups = -(-count // size)
        order = permute(np.arange(groups), groups, key(self.seed, epoch, "groups"))
        return np.concatenate([alike[group * size : (group + 1) * size] for group in order])


def _buckets(lengths: Integers, window: int) -> Integers:
    """The padded length of each row: the window, or it halved as long as the row fits."""
    sizes = [window]
    while sizes[-1] // 2 >= SHORTEST_BUCKET:
        sizes.append(sizes[-1] // 2)
    ladder = np.array(sorted(sizes), dtype=np.int64)
    assert all(a < b for a, b in pairwise(ladder))
    return ladder[np.searchsorted(ladder, lengths)]
