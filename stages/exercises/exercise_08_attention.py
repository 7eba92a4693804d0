"""Exercise of stage 08: causal attention, written out."""

import math

Rows = list[list[float]]


def attention(queries: Rows, keys: Rows, values: Rows) -> Rows:
    """What each position takes home: a weighted mean of the values of all positions up to itself.

    The score of position t for position s is the dot product of query t and key s, divided by the square
    root of their length; softmax over s = 0 .. t makes the weights. Later positions have no weight at all.
    """
    raise NotImplementedError
