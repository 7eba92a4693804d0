"""Exercise of stage 07: a stream becomes training examples."""


def rows(tokens: list[int], window: int) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of windows laid over a stream, one behind the other.

    A row has up to `window` inputs, and its targets are the same tokens, one place further on. The last row
    may be shorter. Every token but the first is a target exactly once:

        rows([256, 97, 98, 256, 99, 256], 3)
            == [([256, 97, 98], [97, 98, 256]), ([256, 99], [99, 256])]
    """
    raise NotImplementedError
