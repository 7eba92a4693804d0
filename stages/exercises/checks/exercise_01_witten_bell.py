"""Check of exercise 01."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `probability`."""
    a, b = 97, 98
    cases: list[tuple[dict[int, int], int, float, float]] = [
        ({b: 2}, b, 0.25, 0.75),
        ({b: 3, a: 1}, a, 0.5, 1 / 3),
        ({b: 2}, a, 0.3, 0.1),
    ]
    for counts, byte, shorter, wanted in cases:
        total, kinds, seen = sum(counts.values()), len(counts), counts.get(byte, 0)
        expect(
            f"probability({counts}, {byte}, {shorter})",
            answer.probability(dict(counts), byte, shorter),
            wanted,
            {
                "nothing is kept back for what was never seen": seen / total,
                "you give to the new bytes, but make no room for them: divide by total + kinds": (
                    (seen + kinds * shorter) / total
                ),
                "you add 1 where the rule adds the number of kinds": (seen + shorter) / (total + 1),
                "the kinds are left out below the line only for bytes that were seen": shorter,
            },
        )
    try:
        found = answer.probability({}, a, 0.125)
    except ZeroDivisionError:
        raise Hint(
            "a context that was never seen divides by 0: for probability({}, 97, 0.125) expected 0.125, "
            "what the shorter context says"
        ) from None
    expect("probability({}, 97, 0.125)", found, 0.125, {"a new context makes every byte impossible": 0})
    sums = sum(answer.probability({b: 5, a: 2}, byte, 1 / 257) for byte in range(257))
    expect("the sum over all 257 tokens of probability({98: 5, 97: 2}, token, 1/257)", sums, 1.0)
