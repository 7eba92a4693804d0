"""Check of exercise 07."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

Row = tuple[list[int], list[int]]


def laid(tokens: list[int], window: int, stride: int, shift: int = 1) -> list[Row]:
    """Rows of full and shorter windows, `stride` apart."""
    found = []
    for start in range(0, len(tokens) - 1, stride):
        row = tokens[start : start + window + 1]
        found.append((row[:-1], row[shift:] if shift else row[:-1]))
    return found


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `rows`."""
    for tokens, window in (
        ([256, 97, 98, 256, 99, 256], 3),
        ([256, 1, 2, 3, 4, 5, 256], 3),
        ([256, 1, 2, 3, 4, 5, 6, 7, 256], 4),
        ([256, 1, 256], 8),
    ):
        found = answer.rows(list(tokens), window)
        right = laid(tokens, window, window)
        in_rows = [token for _, targets in found for token in targets]
        call = f"rows({tokens}, {window})"
        if any(not inputs for inputs, _ in found):
            raise Hint(f"a row without inputs: for {call} expected {right}, yours ends with {found[-1]}")
        expect(
            call,
            found,
            right,
            {
                "the targets are the inputs: they begin one place later": laid(tokens, window, window, 0),
                "rows must share one token, the last target of one and the first input of the next; yours "
                "lose a target at each cut": laid(tokens, window, window + 1),
                "the last row, shorter than the window, is dropped": [
                    row for row in right if len(row[0]) == window
                ],
                "a row begins at every token, so that most tokens are targets again and again": laid(
                    tokens, window, 1
                ),
            }
            if len(right) > 1
            else {},
        )
        expect(f"all targets of {call}", in_rows, tokens[1:])
