"""Bits per byte: what is scored from what context (scoring), how it adds up (measure), and how far it may
be off (uncertainty)."""

from tinylm.evaluate.measure import Comparison, Evaluation, Tally, by_context, compare, evaluate
from tinylm.evaluate.scoring import (
    PROTOCOLS,
    EvaluationProtocol,
    Progress,
    Rows,
    Scored,
    Scorer,
    resolve_stride,
    rows_to_score,
    score,
)
from tinylm.evaluate.uncertainty import Clusters, Difference, paired_difference, ratio_error

__all__ = [
    "PROTOCOLS",
    "Clusters",
    "Comparison",
    "Difference",
    "Evaluation",
    "EvaluationProtocol",
    "Progress",
    "Rows",
    "Scored",
    "Scorer",
    "Tally",
    "by_context",
    "compare",
    "evaluate",
    "paired_difference",
    "ratio_error",
    "resolve_stride",
    "rows_to_score",
    "score",
]
