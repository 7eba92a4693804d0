"""Exercise of stage 03: top-p, with the id that reaches the share."""


def top_p(probabilities: list[float], share: float) -> list[int]:
    """The ids that top-p keeps, in ascending order: the fewest that hold `share` together.

    Go through the ids from the most to the least likely and keep each, until those kept sum to at least
    `share`. The id with which the share is reached is kept. Of equally likely ids the lower one comes first.
    At least one id is always kept.
    """
    raise NotImplementedError
