"""Exercise of stage 17: a client rebuilds exactly what the server sent."""

from collections.abc import Iterable


def events(chunks: Iterable[bytes]) -> list[str]:
    """The data of each server-sent event in a body that arrives in pieces, cut anywhere.

    An event is some lines and an empty line. The value of a line `data: value` is what follows the colon,
    without ONE space if there is one; several data lines of an event are joined by a line feed. Other lines
    (`event: x`, and comments, which begin with a colon) do not belong to the data, and an event without a
    data line is none. Lines end in \\n or \\r\\n. An event whose empty line never came is dropped.
    """
    raise NotImplementedError
