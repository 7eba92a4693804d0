"""An answer to exercise 01."""


def probability(counts: dict[int, int], byte: int, shorter: float) -> float:
    """The probability of `byte` after a context, by the rule of Witten and Bell."""
    total, kinds = sum(counts.values()), len(counts)
    if not total:
        return shorter
    return (counts.get(byte, 0) + kinds * shorter) / (total + kinds)
