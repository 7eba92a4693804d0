"""Exercise of stage 02: the line from which every language model is trained."""

import math


def gradient(logits: list[float], target: int) -> list[float]:
    """The gradient of -log softmax(logits)[target] with respect to each logit.

    It is what the model said minus what came: for logits [log 2, 0, 0] and target 1 the model says
    [1/2, 1/4, 1/4], what came is [0, 1, 0], and the gradient is [1/2, -3/4, 1/4].

    Logits may be as large as 1,000, and `math.exp(1000)` overflows. Softmax does not change when the same
    number is taken off every logit.
    """
    raise NotImplementedError
