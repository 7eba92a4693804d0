"""Exercise of stage 01: keep something back for what was never seen."""


def probability(counts: dict[int, int], byte: int, shorter: float) -> float:
    """The probability of `byte` after a context, by the rule of Witten and Bell.

    `counts`: how often each byte came after this context in the counted text; empty for a context that was
    never seen. `shorter`: what the table that looks one byte less far back gives to `byte`.

        (times byte followed  +  kinds that followed  x  shorter)  /  (times anything followed  +  kinds)

    A context that was never seen keeps nothing: the shorter one answers for it.
    """
    raise NotImplementedError
