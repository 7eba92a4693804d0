"""An answer to exercise 02."""

import math


def gradient(logits: list[float], target: int) -> list[float]:
    """The gradient of -log softmax(logits)[target] with respect to each logit."""
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) - (i == target) for i, weight in enumerate(weights)]
