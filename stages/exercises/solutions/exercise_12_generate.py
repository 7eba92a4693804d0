"""An answer to exercise 12."""

from collections.abc import Callable

DOC_BOUNDARY = 256


def generate(
    next_id: Callable[[list[int]], int], prompt: bytes | list[int], limit: int
) -> tuple[list[int], str]:
    """The ids that were sampled, at most `limit`, and why it ended: "boundary" or "limit"."""
    ids = [DOC_BOUNDARY, *prompt] if isinstance(prompt, bytes) else list(prompt)
    sampled: list[int] = []
    while len(sampled) < limit:
        sampled.append(next_id(ids + sampled))
        if sampled[-1] == DOC_BOUNDARY:
            return sampled, "boundary"
    return sampled, "limit"
