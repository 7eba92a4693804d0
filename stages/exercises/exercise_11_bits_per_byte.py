"""Exercise of stage 11: the number that everything is measured by."""

import math


def bits_per_byte(documents: list[tuple[list[float], float]]) -> float:
    """Bits per byte of documents, each given as what the model said about it.

    A document is (probabilities of its bytes, probability of its end). A token to which the model gave
    probability p costs -log2 p bits. All bits, those of the ends too, over all bytes: the ends do not count
    below the line, as a file of two bytes has two bytes. Add first, divide once.
    """
    raise NotImplementedError
