"""An answer to exercise 14."""

import math

State = dict[str, float]


def adam_step(weight: float, gradient: float, state: State, rate: float = 0.1) -> tuple[float, State]:
    """One step of Adam for a single weight; returns the new weight and the new state."""
    t = state.get("steps", 0) + 1
    mean = 0.8 * state.get("mean", 0.0) + 0.2 * gradient
    square = 0.95 * state.get("square", 0.0) + 0.05 * gradient * gradient
    weight -= rate * (mean / (1 - 0.8**t)) / (math.sqrt(square / (1 - 0.95**t)) + 1e-8)
    return weight, {"steps": t, "mean": mean, "square": square}
