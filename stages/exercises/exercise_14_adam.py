"""Exercise of stage 14: an optimizer whose whole state can be saved."""

State = dict[str, float]


def adam_step(weight: float, gradient: float, state: State, rate: float = 0.1) -> tuple[float, State]:
    """One step of Adam for a single weight; returns the new weight and the new state.

    The first call gets an empty state. With a = 0.8 and b = 0.95, for the t-th step (t = 1, 2, ...):

        mean    =  a x mean    + (1 - a) x gradient             from 0
        square  =  b x square  + (1 - b) x gradient x gradient  from 0
        weight  =  weight  -  rate x (mean / (1 - a^t)) / (sqrt(square / (1 - b^t)) + 1e-8)

    Everything that the next step needs is in the state that you return (its keys are yours to choose, its
    values numbers), and nowhere else. The state that was given stays as it is: someone may have saved it.
    """
    raise NotImplementedError
