"""An answer to exercise 19."""

import math


def rotate(head: list[float], position: int, theta: float = 10_000.0) -> list[float]:
    """A head turned by its position, with pairs of half-split form."""
    half = len(head) // 2
    angles = [position * theta ** (-2 * i / len(head)) for i in range(half)]
    turned = list(zip(head[:half], head[half:], angles, strict=True))
    return [x * math.cos(a) - y * math.sin(a) for x, y, a in turned] + [
        x * math.sin(a) + y * math.cos(a) for x, y, a in turned
    ]
