"""An answer to exercise 03."""


def top_p(probabilities: list[float], share: float) -> list[int]:
    """The ids that top-p keeps, in ascending order: the fewest that hold `share` together."""
    kept: list[int] = []
    total = 0.0
    for i in sorted(range(len(probabilities)), key=lambda i: -probabilities[i]):
        kept.append(i)
        total += probabilities[i]
        if total >= share:
            break
    return sorted(kept)
