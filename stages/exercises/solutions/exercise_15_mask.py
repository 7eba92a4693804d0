"""An answer to exercise 15."""

DOC_BOUNDARY = 256


def mask(ids: list[int]) -> list[list[bool]]:
    """Who may see whom: row t, column s is True where position t may see position s."""
    segments = [sum(id_ == DOC_BOUNDARY for id_ in ids[: t + 1]) for t in range(len(ids))]
    return [[s <= t and segments[s] == segments[t] for s in range(len(ids))] for t in range(len(ids))]
