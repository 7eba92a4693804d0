"""Exercise of stage 20: speculation that changes nothing but the speed."""

from collections.abc import Sequence


def emitted(draft: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The tokens that one step of exact speculation emits.

    `draft`: k tokens that somebody guessed would come next. The model read all of them in one pass, and so a
    token could be drawn at each place: `drawn[j]` is the draw with the number of that place, made from what
    the model says after the text and the first j guesses; there are k + 1 of them. A draw counts only if all
    guesses before it are what was really emitted. Return what plain decoding, one token after another, would
    have emitted by itself, as far as this one pass can tell.
    """
    raise NotImplementedError
