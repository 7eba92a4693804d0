"""An answer to exercise 18."""


def rows_of(step: int, batch: int, rank: int, ranks: int) -> list[int]:
    """The numbers of the rows that one rank takes in a step."""
    return list(range(step * batch + rank, (step + 1) * batch, ranks))
