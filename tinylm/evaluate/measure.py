"""Bits per byte of a model on held-out text: how the bits of targets add up, and what two models differ by.

Bits per byte = (bits of byte targets + bits of true-end boundary targets) / raw bytes. The boundary is
charged above the line and never counted below it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch

from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.errors import RequestError
from tinylm.evaluate.scoring import (
    EvaluationProtocol,
    Plan,
    Progress,
    Scored,
    Scorer,
    check_options,
    score,
    score_plan,
)
from tinylm.evaluate.uncertainty import Clusters, Difference, paired_difference, ratio_error


@dataclass(frozen=True)
class Evaluation:
    """Three numbers, and everything that must be equal before two of them may be compared.

    `bytes` and `boundaries` count scored targets, `tokens` both. `bits_per_boundary` is None where no
    document ends. `standard_error` is that of `bits_per_byte` over `cluster_count` clusters, None for one
    alone. `protocol` says from which context a target is scored, and whether all rows were; `stride` is
    how far a window lies behind the one before.
    """

    bits_per_byte: float
    bits_per_byte_without_boundaries: float
    bits_per_boundary: float | None
    standard_error: float | None
    clusters: str
    cluster_count: int
    bytes: int
    boundaries: int
    tokens: int
    protocol: str
    window: int
    stride: int
    policy: str
    split: str
    split_digest: str
    precision: str
    device: str

    def to_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate(
    model: Scorer,
    split: Split,
    *,
    protocol: EvaluationProtocol = "disjoint",
    stride: int | None = None,
    rows: int = 32,
    limit: int | None = None,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """Bits per byte of a split; the options are those of `score`, and `rows` does not change the result.

    `ranks` that all evaluate share the rows, and get the same result.

    Raises RequestError where there is nothing to score.
    """
    check_options(model, protocol, stride, rows=rows, limit=limit)
    plan = Plan.of(model, split, protocol, stride, limit)
    tally = Tally(split)
    for scored in score_plan(model, split, plan, rows, progress, ranks):
        tally.add(scored)
    tally.add_up(ranks)
    return tally.evaluation(model, plan.protocol, plan.stride)


def by_context(model: Scorer, split: Split, group: int = 1) -> list[tuple[float, float]]:
    """(tokens before a target, bits per byte) of disjoint windows: targets with as much context, together.

    `group` neighbouring contexts share a point, at their mean. A group without a byte has none. Weighted by
    their bytes, the points average to what `evaluate` says.
    """
    groups = -(-model.config.window // group)
    bits, sizes = np.zeros(groups), np.zeros(groups)
    for scored in score(model, split):
        place = (scored.contexts - 1) // group
        bits += np.bincount(place, scored.bits, groups)
        sizes += np.bincount(place, split.stream[scored.positions] != DOC_BOUNDARY, groups)
    middle = np.arange(groups) * group + (group + 1) / 2
    return [(float(middle[i]), float(bits[i] / sizes[i])) for i in np.flatnonzero(sizes)]


@dataclass(frozen=True)
class Comparison:
    """Two evaluations over the same targets, and their paired difference (`model` minus `against`)."""

    model: Evaluation
    against: Evaluation
    difference: Difference


def compare(
    model: Scorer,
    against: Scorer,
    split: Split,
    *,
    protocol: EvaluationProtocol = "disjoint",
    stride: int | None = None,
    rows: int = 32,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Score two models on the same targets, each in its own windows and under its own policy.

    The options are those of `score`; a limit picks targets by the rows of `model`.
    """
    check_options(model, protocol, stride, rows=rows, limit=limit)
    check_options(against, protocol, stride, " of the other model")
    plan = Plan.of(model, split, protocol, stride, limit)
    plans = ((model, plan), (against, plan.for_another(against, split, protocol, stride)))
    tallies: list[Tally] = []
    for scorer, its_plan in plans:
        tally, done = Tally(split), len(tallies) * plan.targets

        def both(now: int, total: int, done: int = done) -> None:
            if progress is not None:
                progress(done + now, 2 * total)

        for scored in score_plan(scorer, split, its_plan, rows, both):
            tally.add(scored)
        tallies.append(tally)
    evaluations = [
        tally.evaluation(scorer, its_plan.protocol, its_plan.stride)
        for tally, (scorer, its_plan) in zip(tallies, plans, strict=True)
    ]
    return Comparison(evaluations[0], evaluations[1], tallies[0].difference(tallies[1]))


class Tally:
    """Bits and counts of scored targets by cluster of a split; sums are float64 and exact integers."""

    def __init__(self, split: Split) -> None:
        self.split, self.clusters = split, Clusters.of(split)
        count = len(self.clusters)
        self.byte_bits_C, self.end_bits_C = np.zeros(count), np.zeros(count)
        self.bytes_C, self.ends_C = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.precision = ""

    def add(self, scored: Scored) -> None:
        """Count some targets, each of which must be new."""
        is_end = self.split.stream[scored.positions] == DOC_BOUNDARY
        cluster, count = self.clusters.of_positions(scored.positions), len(self.clusters)
        for bits_C, counts_C, chosen in (
            (self.byte_bits_C, self.bytes_C, ~is_end),
            (self.end_bits_C, self.ends_C, is_end),
        ):
            bits_C += np.bincount(cluster[chosen], scored.bits[chosen], count)
            counts_C += np.bincount(cluster[chosen], minlength=count)
        self.precision = scored.precision

    def add_up(self, ranks: Ranks) -> None:
        """Count what the other ranks have counted, too."""
        for sums_C in (self.byte_bits_C, self.end_bits_C, self.bytes_C, self.ends_C):
            ranks.add_up(torch.from_numpy(sums_C))

    @property
    def seen_C(self) -> npt.NDArray[np.bool_]:
        """Which clusters hold a target that was scored."""
        seen_C: npt.NDArray[np.bool_] = self.bytes_C + self.ends_C > 0
        return seen_C

    def evaluation(self, model: Scorer, protocol: str, stride: int) -> Evaluation:
        """What the sums amount to. Raises RequestError where no byte was scored."""
        size, ends = int(self.bytes_C.sum()), int(self.ends_C.sum())
        if not size:
            raise RequestError(f"{self.split.name}: no byte is scored, and bits per byte need at least one")
        of_bytes, of_ends = float(self.byte_bits_C.sum()), float(self.end_bits_C.sum())
        bits_C = (self.byte_bits_C + self.end_bits_C)[self.seen_C]
        return Evaluation(
            bits_per_byte=(of_bytes + of_ends) / size,
            bits_per_byte_without_boundaries=of_bytes / size,
            bits_per_boundary=of_ends / ends if ends else None,
            standard_error=ratio_error(bits_C, self.bytes_C[self.seen_C]),
            clusters=self.clusters.kind,
            cluster_count=len(bits_C),
            bytes=size,
            boundaries=ends,
            tokens=size + ends,
            protocol=protocol,
            window=model.config.window,
            stride=stride,
            policy=model.config.policy,
            split=self.split.name,
            split_digest=self.split.digest,
            precision=self.precision,
            device=str(model.device),
        )

    def difference(self, against: Tally) -> Difference:
        """This model minus another; raises RequestError unless both scored the same targets."""
        if not (
            np.array_equal(self.bytes_C, against.bytes_C) and np.array_equal(self.ends_C, against.ends_C)
        ):
            raise RequestError(f"{self.split.name}: the two have not scored the same targets; pair those")
        seen_C = self.seen_C
        bits_C, other_C = ((tally.byte_bits_C + tally.end_bits_C)[seen_C] for tally in (self, against))
        return paired_difference(bits_C, other_C, self.bytes_C[seen_C], self.clusters.kind)
