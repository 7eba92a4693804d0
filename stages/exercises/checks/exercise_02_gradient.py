"""Check of exercise 02."""

import math
from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `gradient`."""
    logits = [math.log(2), 0.0, 0.0]
    said = [0.5, 0.25, 0.25]
    for target in (1, 0):
        came = [float(i == target) for i in range(3)]
        right = [p - c for p, c in zip(said, came, strict=True)]
        expect(
            f"gradient([log 2, 0, 0], {target})",
            answer.gradient(list(logits), target),
            right,
            {
                "these are the probabilities: take off what came": said,
                "the sign is turned round, so that a step against it would make the loss larger": [
                    -g for g in right
                ],
                "only the target's own entry is right: the other tokens were overrated, each by p": [
                    g * c for g, c in zip(right, came, strict=True)
                ],
                "the logits themselves are not probabilities yet: softmax comes first": [
                    x - c for x, c in zip(logits, came, strict=True)
                ],
            },
        )
    given = [1000.0, 1000.0, -1000.0]
    try:
        found = answer.gradient(list(given), 0)
    except OverflowError:
        raise Hint("exp of a large logit overflows: take the largest off every logit first") from None
    expect(f"gradient({given}, 0)", found, [-0.5, 0.5, 0.0])
    if given != [1000.0, 1000.0, -1000.0]:
        raise Hint("your function changes the list that it was given: make a new one")
