"""Check of exercise 14."""

import json
import math
from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

GRADIENTS = [1.0, -2.0, 0.5, 3.0, -1.0, 0.25, 2.0, -0.5]


def walked(corrected: bool = True, rooted: bool = True, forget: int = 0) -> list[float]:
    """The weights of a walk from 1.0; `forget` loses the count before that step."""
    weight, mean, square, t, found = 1.0, 0.0, 0.0, 0, []
    for number, gradient in enumerate(GRADIENTS, 1):
        t = 1 if number == forget else t + 1
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        by = (1 - 0.8**t, 1 - 0.95**t) if corrected else (1, 1)
        below = math.sqrt(square / by[1]) if rooted else square / by[1]
        weight -= 0.1 * (mean / by[0]) / (below + 1e-8)
        found.append(weight)
    return found


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `adam_step`."""
    found: list[float] = []
    weight, state = 1.0, dict[str, float]()
    for gradient in GRADIENTS:
        before = dict(state)
        result = answer.adam_step(weight, gradient, state)
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
            raise Hint(f"expected (weight, state), a number and a dict; yours gives {result!r}")
        if state != before:
            raise Hint(
                "your step changes the state that it was given, which someone may have saved: make a new one"
            )
        weight, state = result
        found.append(weight)
    right = walked()
    expect(
        "the first step from weight 1.0 with gradient 1.0, the new weight",
        found[0],
        right[0],
        {
            "the young averages are not corrected: divide by 1 - a^t and 1 - b^t": walked(corrected=False)[0],
            "the step goes uphill: take it off the weight": 2 - right[0],
            "square is not under a root": walked(rooted=False)[0],
        },
    )
    expect(
        f"the weights after gradients {GRADIENTS[:4]}",
        found[:4],
        right[:4],
        {
            "every step is corrected as if it were the first: t is not counted": corrected_as_first(),
            "square is not under a root": walked(rooted=False)[:4],
        },
    )
    expect(f"the weights after gradients {GRADIENTS}", found, right)
    weight, state = 1.0, {}
    for gradient in GRADIENTS[:4]:
        weight, state = answer.adam_step(weight, gradient, state)
    saved = json.dumps(state)
    answer.adam_step(0.0, 1.0, {})  # another run in the same process must not disturb this one
    for number, gradient in enumerate(GRADIENTS[4:], 5):
        weight, state = answer.adam_step(weight, gradient, json.loads(saved) if number == 5 else state)
    why = "resumed after 4 steps it is another run: something that a step needs is not in the state"
    expect("the weight after all steps, saved and loaded after the 4th", weight, right[-1], {why: weight})


def corrected_as_first() -> list[float]:
    """The first weights of a walk whose count stays at 1."""
    weight, mean, square, found = 1.0, 0.0, 0.0, []
    for gradient in GRADIENTS[:4]:
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        weight -= 0.1 * (mean / 0.2) / (math.sqrt(square / 0.05) + 1e-8)
        found.append(weight)
    return found
