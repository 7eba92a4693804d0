"""Check of exercise 15."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

B = 256


def picture(rows: object) -> list[str]:
    """A mask as rows of x and dots."""
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(isinstance(cell, bool) for cell in row) for row in rows
    ):
        raise Hint(f"expected a list of rows of True and False, yours gives {rows!r}")
    return ["".join("x" if cell else "." for cell in row) for row in rows]


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `mask`."""
    ids = [B, 97, 98, B, 99]
    right = ["x....", "xx...", "xxx..", "...x.", "...xx"]
    causal = ["x" * t + "." * (5 - t) for t in range(1, 6)]
    expect(
        f"mask({ids}), x where it is True",
        picture(answer.mask(ids)),
        right,
        {
            "documents see each other: a boundary is no wall by itself": causal,
            "the future is seen": ["xxx..", "xxx..", "xxx..", "...xx", "...xx"],
            "everything is seen": ["xxxxx"] * 5,
            "the boundary is put to the document before it; as an input it opens the one after it": [
                *("x....", ".x...", ".xx..", ".xxx.", "....x"),
            ],
            "a position does not see itself": [".....", "x....", "xx...", ".....", "...x."],
            "rows and columns are exchanged: row t is the position that looks": [
                *("xxx..", ".xx..", "..x..", "...xx", "....x"),
            ],
        },
    )
    rest = [97, B, B, 98]
    expect(
        f"mask({rest}), a row that begins inside a document,",
        picture(answer.mask(rest)),
        ["x...", ".x..", "..x.", "..xx"],
        {"what stands before the first boundary is seen behind it": ["x...", "xx..", "..x.", "..xx"]},
    )
    expect("mask([])", picture(answer.mask([])), [])
