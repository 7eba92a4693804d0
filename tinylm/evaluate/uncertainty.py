"""How far a measured number may be off: standard errors over documents, and paired differences.

Bytes of one document are alike, so documents, not bytes, are the sample. A split of one document, or of
few, is cut into blocks instead; its standard error then speaks about more text like this one only.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tinylm.corpus import Split
from tinylm.shapes import check_shape

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

FEW = 30
"""Below this number of documents of equal weight, blocks are the sample."""
BLOCK_BYTES = 8192
FEWEST = 5
"""Clusters below which a standard error says too little for an interval."""
NORMAL_975 = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Clusters:
    """The sampling units of a split: `kind` in words, `starts` (int64, rising) the index of each one's
    first byte in the stream. The boundary that ends a document belongs to the document's last unit."""

    kind: str
    starts: Int64Array

    @classmethod
    def of(cls, split: Split) -> Clusters:
        """Documents, where they weigh as much as FEW equal ones; else blocks of 8,192 bytes of each
        (documents that are no longer than a block stay documents).

        n documents of b_i bytes weigh as much as (sum b_i)^2 / (sum b_i^2) equal ones (Kish, 1965).
        """
        ends = np.append(split.starts[1:] - 1, 1 + split.bytes + len(split.starts) - 1)
        sizes = ends - split.starts if len(split.starts) else np.zeros(0, np.int64)
        weight = float(sizes.sum()) ** 2 / max(1.0, float((sizes.astype(np.float64) ** 2).sum()))
        counts = -(-sizes // BLOCK_BYTES)
        if weight >= FEW or counts.max(initial=1) == 1:
            return cls("documents", np.asarray(split.starts, dtype=np.int64))
        document = np.repeat(np.arange(len(sizes)), counts)
        number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        return cls(f"blocks of at most {BLOCK_BYTES:,} bytes", split.starts[document] + number * BLOCK_BYTES)

    def __len__(self) -> int:
        return len(self.starts)

    def of_positions(self, positions: Int64Array) -> Int64Array:
        """The number of the cluster that each position of the stream belongs to."""
        found: Int64Array = np.searchsorted(self.starts, positions, side="right") - 1
        return found


def ratio_error(bits_C: Float64Array, bytes_C: Int64Array) -> float | None:
    """Standard error of sum(bits) / sum(bytes) over clusters C; None where there are fewer than two.

    The ratio estimator (Cochran, 1977): sqrt(sum (L_i - r b_i)^2) / sum b_i. Raises ShapeError unless
    there are as many bits as bytes.
    """
    clusters = check_shape(bytes_C, "C", name="bytes_C", kind="integer")
    check_shape(bits_C, "C", name="bits_C", kind="float", **clusters)
    total = int(bytes_C.sum())
    if len(bits_C) < 2 or not total:
        return None
    residuals_C = bits_C - float(bits_C.sum()) / total * bytes_C
    return math.sqrt(float((residuals_C**2).sum())) / total


@dataclass(frozen=True)
class Difference:
    """Bits per byte of one model minus those of another (`against`), on the same targets, paired by cluster.

    `standard_error` and `interval` (95 %, Student's t) are None where there are too few clusters, `z` also
    where the standard error is 0. `better` is None where the interval holds 0 or does not exist:
    the two are not distinguishable on this text.
    """

    difference: float
    standard_error: float | None
    z: float | None
    interval: tuple[float, float] | None
    better: Literal["model", "against"] | None
    clusters: str
    cluster_count: int

    def to_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


def paired_difference(
    bits_C: Float64Array, against_C: Float64Array, bytes_C: Int64Array, kind: str
) -> Difference:
    """The difference of two models from their bits of the same targets, cluster by cluster.

    Raises ShapeError unless all three have a number for each cluster.
    """
    clusters = check_shape(bytes_C, "C", name="bytes_C", kind="integer")
    for name, found_C in (("bits_C", bits_C), ("against_C", against_C)):
        check_shape(found_C, "C", name=name, kind="float", **clusters)
    paired_C = bits_C - against_C
    difference = float(paired_C.sum()) / int(bytes_C.sum())
    error, count = ratio_error(paired_C, bytes_C), len(bytes_C)
    interval: tuple[float, float] | None = None
    better: Literal["model", "against"] | None = None
    if error is not None and count >= FEWEST:
        reach = student_975(count - 1) * error
        interval = (difference - reach, difference + reach)
        if interval[1] < 0:
            better = "model"
        elif interval[0] > 0:
            better = "against"
    return Difference(difference, error, difference / error if error else None, interval, better, kind, count)


def student_975(degrees: int) -> float:
    """The 97.5 % point of Student's t; within 0.2 % for 4 degrees of freedom and more.

    The expansion in 1/degrees about the normal's point (Abramowitz and Stegun, 26.7.5).
    """
    x = NORMAL_975
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + math.fsum(term / degrees**power for power, term in enumerate(terms, 1))
