"""Exercise of stage 15: a wall between documents."""

DOC_BOUNDARY = 256


def mask(ids: list[int]) -> list[list[bool]]:
    """Who may see whom: row t, column s is True where position t may see position s.

    A position sees itself and what came before it in its own document. As an input the boundary opens a
    document, so it belongs to the one after it. What stands before the first boundary of a row is the rest of
    a document that began earlier, a segment like any other.
    """
    raise NotImplementedError
