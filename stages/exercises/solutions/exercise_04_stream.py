"""An answer to exercise 04."""

DOC_BOUNDARY = 256


def stream(documents: list[bytes]) -> list[int]:
    """The token ids of documents in one line: a boundary before the first, between two, after the last."""
    ids = [DOC_BOUNDARY]
    for document in documents:
        if document:
            ids += [*document, DOC_BOUNDARY]
    return ids
