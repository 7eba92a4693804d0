"""An answer to exercise 10."""


def step_loss(micro_batches: list[list[float]]) -> float:
    """The mean loss of a step whose targets went through the model in several micro-batches."""
    losses = [loss for losses in micro_batches for loss in losses]
    return sum(losses) / len(losses) if losses else 0.0
