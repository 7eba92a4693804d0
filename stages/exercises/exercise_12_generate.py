"""Exercise of stage 12: a loop that knows when a document ends."""

from collections.abc import Callable

DOC_BOUNDARY = 256


def generate(
    next_id: Callable[[list[int]], int], prompt: bytes | list[int], limit: int
) -> tuple[list[int], str]:
    """The ids that were sampled, at most `limit`, and why it ended: "boundary" or "limit".

    `next_id(ids)` samples the id that follows `ids`. A prompt of bytes is fed behind a boundary, as
    [256, *prompt]; a prompt of ids is fed as it is, whatever boundaries it holds. Only a newly sampled 256
    ends the document; it is the last of the ids. Where boundary and limit come with the same id, it is the
    boundary that ended it. With a limit of 0 nothing is sampled.
    """
    raise NotImplementedError
