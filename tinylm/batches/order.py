"""The order of an epoch: a keyed permutation of integers, equal on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from tinylm.batches.rows import Integers
from tinylm.shapes import check_shape


def permute(indices: Integers, size: int, key: bytes) -> Integers:
    """Where each index goes under a keyed permutation of range(size); equal on every machine.

    A balanced Feistel network over the next power of four, walked until the result is below `size`
    (format-preserving encryption as in Black and Rogaway, 2002: cycle walking). Raises ShapeError unless
    `indices` is one axis of integers.
    """
    check_shape(indices, "N", name="indices", kind="integer")
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


def key(seed: int, epoch: int, purpose: str) -> bytes:
    """The key of one use of the permutation."""
    return hashlib.blake2b(f"tinylm {purpose} {seed} {epoch}".encode("ascii"), digest_size=32).digest()
