"""An answer to exercise 07."""


def rows(tokens: list[int], window: int) -> list[tuple[list[int], list[int]]]:
    """Inputs and targets of windows laid over a stream, one behind the other."""
    found = []
    for start in range(0, len(tokens) - 1, window):
        row = tokens[start : start + window + 1]
        found.append((row[:-1], row[1:]))
    return found
