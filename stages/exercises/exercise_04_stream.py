"""Exercise of stage 04: documents become one stream, with one boundary between them."""

DOC_BOUNDARY = 256


def stream(documents: list[bytes]) -> list[int]:
    """The token ids of documents in one line: a boundary before the first, between two, after the last.

    A byte is its own id. [b"ab", b"ba"] becomes [256, 97, 98, 256, 98, 97, 256]. Empty documents are
    skipped. The text b"<|doc|>" is seven bytes like any others.
    """
    raise NotImplementedError
