"""What one training example is: rows and batches as pure functions of (corpus, policy, window, seed, step).

A row (start, length) reads `stream[start : start + length + 1]`: the first `length` tokens are its
inputs, the last `length` its targets. Over an epoch every byte is a target exactly once, and the
boundary is a target exactly where a document ends.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tinylm.config import Policy
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.errors import ConfigError, CorpusError
from tinylm.shapes import check_shape

Integers = npt.NDArray[np.int64]

IGNORED = -1
"""Target of a padded position: a mask, never an id."""

SHORTEST_BUCKET = 16
GROUP = 256
"""Rows of like length that stay together in a `reset` epoch."""


@dataclass(frozen=True)
class Batch:
    """The rows of one optimizer step. `inputs_BT`, `targets_BT`: int64 [B, T]; `epoch` of its first row."""

    inputs_BT: Integers
    targets_BT: Integers
    starts: Integers
    lengths: Integers
    epoch: int

    @property
    def targets(self) -> int:
        """Scored targets, padding not counted."""
        return int(self.lengths.sum())

    @property
    def bytes(self) -> int:
        """Scored targets that are bytes."""
        return int(np.count_nonzero((self.targets_BT >= 0) & (self.targets_BT < DOC_BOUNDARY)))

    def micro_batches(self, rows: int) -> list[tuple[Integers, Integers]]:
        """Inputs and targets in pieces of `rows` rows."""
        count = len(self.inputs_BT)
        return [(self.inputs_BT[i : i + rows], self.targets_BT[i : i + rows]) for i in range(0, count, rows)]


class Plan:
    """The order in which a run sees its rows: step s takes the next `batch_rows` rows of epoch 0, 1, ..."""

    def __init__(self, split: Split, policy: Policy, window: int, batch_rows: int, seed: int) -> None:
        if len(split.stream) < 2:
            raise CorpusError(f"the {split.name} stream has no target; train on at least one byte of text")
        if policy not in ("cross", "reset"):
            raise ConfigError(f"policy is {policy!r}, expected one of cross, reset")
        self.split, self.policy, self.window = split, policy, window
        self.batch_rows, self.seed = batch_rows, seed
        self._chunks = None if policy == "cross" else rows_in_order(split, policy, window)
        self._ends = [0]
        self._order: tuple[int, Integers] = (-1, np.empty(0, np.int64))

    @property
    def padded_lengths(self) -> tuple[int, ...]:
        """Every length T that a batch of this plan can have: compiled graphs are known before step 0."""
        if self._chunks is None:
            return (min(self.window, len(self.split.stream) - 1),)
        found = np.unique(_buckets(self._chunks[1], self.window))
        return tuple(int(length) for length in found)

    def rows_of_epoch(self, epoch: int) -> int:
        """How many rows the epoch has (`cross`: the grid's offset can add one)."""
        if self._chunks is not None:
            return len(self._chunks[0])
        return -((self._grid(epoch) - (len(self.split.stream) - 1)) // self.window)

    def rows(self, step: int) -> tuple[Integers, Integers, int]:
        """Starts and lengths of the rows of a step (int64 [B] each), and the epoch of the first."""
        first = step * self.batch_rows
        starts, lengths, opening = [], [], -1
        wanted = self.batch_rows
        while wanted:
            epoch, index = self._locate(first)
            opening = epoch if opening < 0 else opening
            count = min(wanted, self._ends[epoch + 1] - first)
            some_starts, some_lengths = self._rows_at(epoch, np.arange(index, index + count))
            starts.append(some_starts)
            lengths.append(some_lengths)
            first, wanted = first + count, wanted - count
        return np.concatenate(starts), np.concatenate(lengths), opening

    def batch(self, step: int) -> Batch:
        """The batch of a step."""
        starts, lengths, epoch = self.rows(step)
        padded = self.padded_lengths[0] if self._chunks is None else _buckets(lengths, self.window).max()
        inputs_BT, targets_BT = gather(self.split.stream, starts, lengths, int(padded))
        return Batch(inputs_BT, targets_BT, starts, lengths, epoch)

    def _locate(self, row: int) -> tuple[int, int]:
        while self._ends[-1] <= row:
            self._ends.append(self._ends[-1] + self.rows_of_epoch(len(self._ends) - 1))
        epoch = bisect_right(self._ends, row) - 1
        return epoch, row - self._ends[epoch]

    def _grid(self, epoch: int) -> int:
        """Where the epoch's first window begins, counted in targets: 0, or before the stream."""
        offset = int.from_bytes(_key(self.seed, epoch, "grid")[:8], "little") % self.window
        return offset - self.window if offset else 0

    def _rows_at(self, epoch: int, indices: Integers) -> tuple[Integers, Integers]:
        if self._chunks is not None:
            if self._order[0] != epoch:
                self._order = (epoch, self._reset_order(epoch))
            chosen = self._order[1][indices]
            return self._chunks[0][chosen], self._chunks[1][chosen]
        cells = permute(indices, self.rows_of_epoch(epoch), _key(self.seed, epoch, "rows"))
        begin = self._grid(epoch) + cells * self.window
        starts = np.maximum(begin, 0)
        return starts, np.minimum(begin + self.window, len(self.split.stream) - 1) - starts

    def _reset_order(self, epoch: int) -> Integers:
        assert self._chunks is not None
        count = len(self._chunks[0])
        shuffled = permute(np.arange(count), count, _key(self.seed, epoch, "rows"))
        buckets = _buckets(self._chunks[1], self.window)[shuffled]
        alike = shuffled[np.argsort(buckets, kind="stable")]
        groups = -(-count // GROUP)
        order = permute(np.arange(groups), groups, _key(self.seed, epoch, "groups"))
        return np.concatenate([alike[group * GROUP : (group + 1) * GROUP] for group in order])


def rows_in_order(split: Split, policy: Policy, window: int) -> tuple[Integers, Integers]:
    """Starts and lengths (int64 [rows]) of disjoint rows in the order of the stream: every target once.

    `cross`: consecutive windows over the stream. `reset`: windows over each document, from the
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
    check_shape(lengths, "B", name="lengths", kind="integer", **check_shape(starts, "B", name="starts"))
    positions = np.arange(padded + 1)
    reach = np.minimum(starts[:, None] + positions, (starts + lengths)[:, None])
    tokens = stream[reach].astype(np.int64)
    scored = positions[:-1] < lengths[:, None]
    return np.where(scored, tokens[:, :-1], DOC_BOUNDARY), np.where(scored, tokens[:, 1:], IGNORED)


def permute(indices: Integers, size: int, key: bytes) -> Integers:
    """Where each index goes under a keyed permutation of range(size); equal on every machine.

    A balanced Feistel network over the next power of four, walked until the result is below `size`
    (format-preserving encryption as in Black and Rogaway, 2002: cycle walking).
    """
    half = max(1, -(-max(1, (size - 1).bit_length()) // 2))
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = np.frombuffer(hashlib.blake2b(key, digest_size=48).digest(), dtype="<u8")
    result = np.asarray(indices, dtype=np.uint64).copy()
    walking = np.arange(len(result))
    while len(walking):
        left, right = result[walking] >> shift, result[walking] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        result[walking] = (left << shift) | right
        walking = walking[result[walking] >= size]
    return result.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _key(seed: int, epoch: int, purpose: str) -> bytes:
    return hashlib.blake2b(f"tinylm {purpose} {seed} {epoch}".encode("ascii"), digest_size=32).digest()


def _buckets(lengths: Integers, window: int) -> Integers:
    """The padded length of each row: the window, or it halved as long as the row fits."""
    sizes = [window]
    while sizes[-1] // 2 >= SHORTEST_BUCKET:
        sizes.append(sizes[-1] // 2)
    ladder = np.array(sorted(sizes), dtype=np.int64)
    assert all(a < b for a, b in pairwise(ladder))
    return ladder[np.searchsorted(ladder, lengths)]
