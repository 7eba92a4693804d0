"""Check of exercise 03."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

CASES: list[tuple[list[float], float, list[int]]] = [
    ([0.5, 0.3, 0.2], 0.7, [0, 1]),
    ([0.5, 0.25, 0.25], 0.75, [0, 1]),
    ([0.125, 0.125, 0.25, 0.5], 0.7, [2, 3]),
    ([0.125, 0.5, 0.125, 0.25], 0.8, [0, 1, 3]),
    ([0.125, 0.25, 0.5, 0.125], 0.6, [1, 2]),
    ([0.75, 0.25], 0.5, [0]),
    ([0.25, 0.25, 0.25, 0.25], 0.25, [0]),
]


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `top_p`."""
    for probabilities, share, right in CASES:
        ranked = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
        count = len(right)
        in_order = next(
            n for n in range(1, len(ranked) + 1) if sum(probabilities[:n]) >= share or n == len(ranked)
        )
        found = answer.top_p(list(probabilities), share)
        call = f"top_p({probabilities}, {share})"
        if not isinstance(found, list) or not all(isinstance(i, int) for i in found):
            raise Hint(f"expected a list of ids, for {call} {right}, yours gives {found!r}")
        expect(
            call,
            found,
            right,
            {
                "your top-p keeps one id too few: the one that reaches the share belongs to it": sorted(
                    ranked[: count - 1]
                ),
                "your top-p keeps one id too many: a share that is reached exactly is reached": sorted(
                    ranked[: count + 1]
                ),
                "the right ids, but not in ascending order": ranked[:count],
                "your top-p takes the ids as they stand: begin with the likeliest": list(range(in_order)),
            },
        )
    expect(
        "top_p([0.1] * 3 + [0.7], 1.0)",
        answer.top_p([0.1, 0.1, 0.1, 0.7], 1.0),
        [0, 1, 2, 3],
        {"at a share of 1 nothing may be lost": [3]},
    )
