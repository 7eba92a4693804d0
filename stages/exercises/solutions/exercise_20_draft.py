"""An answer to exercise 20."""

from collections.abc import Sequence


def emitted(draft: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The tokens that one step of exact speculation emits."""
    tokens = [drawn[0]]
    for guess, following in zip(draft, drawn[1:], strict=True):
        if guess != tokens[-1]:
            break
        tokens.append(following)
    return tokens
