"""Check of exercise 10."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `step_loss`."""
    cut = [[1.0] * 9, [2.0]]
    expect(
        "step_loss([[1.0] * 9, [2.0]])",
        answer.step_loss(cut),
        1.1,
        {
            "this is a mean of means: a micro-batch of one target counts as much as one of nine": 1.5,
            "this is the sum of the means: it grows with the number of micro-batches": 3.0,
            "this is the sum of all losses: divide by the targets of the whole step": 11.0,
            "this is the sum, divided by the number of micro-batches": 5.5,
        },
    )
    try:
        expect(
            "step_loss([[1.0, 3.0], []])",
            answer.step_loss([[1.0, 3.0], []]),
            2.0,
            {"an empty micro-batch counts as one with a loss of 0": 1.0},
        )
        expect("step_loss([[], []])", answer.step_loss([[], []]), 0.0)
    except ZeroDivisionError:
        raise Hint("a micro-batch of padding alone divides by 0: it adds nothing to sum and count") from None
    expect("step_loss([[4.0], [1.0, 1.0]])", answer.step_loss([[4.0], [1.0, 1.0]]), 2.0)
