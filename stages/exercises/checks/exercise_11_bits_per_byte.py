"""Check of exercise 11."""

import math
from types import ModuleType

from tinylm.walkthrough.exercises import expect

Documents = list[tuple[list[float], float]]


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `bits_per_byte`."""
    one: Documents = [([0.25, 0.5], 0.125)]
    two: Documents = [([0.25, 0.5], 0.125), ([0.5] * 8, 0.5)]
    for documents, right in ((one, 3.0), (two, 1.5)):
        own = [[math.log2(p) for p in probabilities] for probabilities, _ in documents]
        ends = [math.log2(end) for _, end in documents]
        size = sum(map(len, own))
        expect(
            f"bits_per_byte({documents})",
            answer.bits_per_byte(documents),
            right,
            {
                "the ends count below the line": right * size / (size + len(ends)),
                "the ends are free": -sum(map(sum, own)) / size,
                "these are nats: take the logarithm to base 2": right * math.log(2),
                "the sign is turned round": -right,
                "this is the mean of the documents' own numbers: add first, divide once": -sum(
                    (sum(bits) + end) / len(bits) for bits, end in zip(own, ends, strict=True)
                )
                / len(ends),
                "the bits are not divided by the bytes": right * size,
            },
        )
