"""Check of exercise 05."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect, expect_refusal


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `bind`."""
    bind = answer.bind
    expect(
        'bind((16, 32), "B T", {})',
        bind((16, 32), "B T", {}),
        {"B": 16, "T": 32},
        {"the letters and the sizes are in opposite order": {"B": 32, "T": 16}},
    )
    known = {"B": 16}
    expect(
        'bind((16, 32), "B T", {"B": 16})',
        bind((16, 32), "B T", known),
        {"B": 16, "T": 32},
        {"letters that were known already are missing": {"T": 32}},
    )
    if known != {"B": 16}:
        raise Hint("your function changes the `sizes` that it was given: work on a copy, dict(sizes)")
    said = expect_refusal(
        'bind((32, 16), "B T", {"B": 16})',
        lambda: bind((32, 16), "B T", {"B": 16}),
        "a size that differs from the known one passes",
    )
    if "B" not in said:
        raise Hint(f"your message is {said!r}: it does not name the letter B, which is the one that differs")
    expect_refusal(
        'bind((1, 32), "B T", {"B": 16})',
        lambda: bind((1, 32), "B T", {"B": 16}),
        "a size of 1 passes for 16, as in broadcasting: a contract says equal",
    )
    expect_refusal(
        'bind((16, 32, 2), "B T", {})',
        lambda: bind((16, 32, 2), "B T", {}),
        "an axis too many passes: zip stops at the shorter of the two",
    )
    expect_refusal('bind((16,), "B T", {})', lambda: bind((16,), "B T", {}), "an axis too few passes")
    expect_refusal(
        'bind((3, 4), "T T", {})', lambda: bind((3, 4), "T T", {}), "the same letter twice means equal sizes"
    )
    expect('bind((3, 3), "T T", {})', bind((3, 3), "T T", {}), {"T": 3})
