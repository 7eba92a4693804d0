"""Exercise of stage 18: the same batch on any number of ranks."""


def rows_of(step: int, batch: int, rank: int, ranks: int) -> list[int]:
    """The numbers of the rows that one rank takes in a step.

    A run takes the rows 0, 1, 2, ... in order, `batch` of them a step, on however many ranks. Step s takes
    s x batch to (s + 1) x batch - 1. Of these the rank takes every `ranks`-th, beginning with the one at its
    own number: of a batch of 5 on 2 ranks, rank 0 takes three and rank 1 two. Together the ranks take each
    row of the step once.
    """
    raise NotImplementedError
