"""Check of exercise 08."""

import math
from collections.abc import Callable
from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

Rows = list[list[float]]
QUERIES: Rows = [[1.0, 0.0, 2.0, 1.0], [0.5, 1.0, 0.0, -1.0], [1.0, 1.0, 1.0, 0.0]]
KEYS: Rows = [[0.0, 1.0, 1.0, 0.0], [2.0, 0.0, 0.0, 1.0], [1.0, -1.0, 0.5, 0.5]]
VALUES: Rows = [[8.0, 0.0], [4.0, 1.0], [0.0, 3.0]]


def variant(
    sees: Callable[[int, int], bool], root: bool = True, cut_after: bool = False, soft: bool = True
) -> Rows:
    """Attention with other rules: who sees whom, unscaled, or cut after the softmax."""
    out = []
    for t, query in enumerate(QUERIES):
        scores = [sum(q * k for q, k in zip(query, key, strict=True)) / (2 if root else 1) for key in KEYS]
        weights = [
            (math.exp(score) if soft else score) * (cut_after or sees(t, s)) for s, score in enumerate(scores)
        ]
        total = sum(weights) or 1
        weights = [weight / total * sees(t, s) for s, weight in enumerate(weights)]
        out.append([sum(w * row[i] for w, row in zip(weights, VALUES, strict=True)) for i in range(2)])
    return out


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `attention`."""

    def causal(t: int, s: int) -> bool:
        return s <= t

    expect(
        "position 0 of attention(queries, keys, values), which sees itself alone",
        answer.attention([QUERIES[0]], [KEYS[0]], [VALUES[0]]),
        [VALUES[0]],
    )
    expect(
        f"attention({QUERIES}, {KEYS}, {VALUES})",
        answer.attention(QUERIES, KEYS, VALUES),
        variant(causal),
        {
            "every position sees its future: leave out the scores of s > t": variant(lambda t, s: True),
            "the mask comes after the softmax, so the weights of a position do not sum to 1": variant(
                causal, cut_after=True
            ),
            "the scores are not divided by the square root of their length": variant(causal, root=False),
            "each position sees one position too many": variant(lambda t, s: s <= t + 1),
            "the scores themselves are used as weights: softmax comes first": variant(causal, soft=False),
        },
    )
    large = [[1000.0]], [[1.0]], [[3.0]]
    try:
        expect("attention([[1000.0]], [[1.0]], [[3.0]])", answer.attention(*large), [[3.0]])
    except OverflowError:
        raise Hint("exp of a large score overflows: take the largest score off first") from None
