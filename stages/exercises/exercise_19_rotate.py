"""Exercise of stage 19: rotary positions, in the pairing that the other program uses too."""

import math


def rotate(head: list[float], position: int, theta: float = 10_000.0) -> list[float]:
    """A head turned by its position, with pairs of half-split form.

    Of K numbers, i and i + K/2 are a pair (i = 0 .. K/2 - 1), turned by the angle
    position x theta^(-2i / K), in radians: (x, y) becomes (x cos - y sin, x sin + y cos).
    """
    raise NotImplementedError
