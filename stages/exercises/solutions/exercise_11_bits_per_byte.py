"""An answer to exercise 11."""

import math


def bits_per_byte(documents: list[tuple[list[float], float]]) -> float:
    """Bits per byte of documents, each given as what the model said about it."""
    bits = -sum(math.log2(p) for probabilities, end in documents for p in (*probabilities, end))
    return bits / sum(len(probabilities) for probabilities, _ in documents)
