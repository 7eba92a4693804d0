"""Exercise of stage 21: what the model had to find, as you would write it."""


def places(data: bytes) -> tuple[int, int, int]:
    """Initial, vowel and final of a Hangul syllable, as places in their tables, from its three bytes.

    UTF-8 cuts the number of a character into 4, 6 and 6 bits, which stand at the end of the three bytes:
    0b1110xxxx 0b10xxxxxx 0b10xxxxxx. The syllables begin at 0xAC00, in an order in which the final
    (28 of them) changes with each, the vowel (21) after all finals, the initial (19) after all vowels.
    All three are counted from 0: b"\\xea\\xb0\\x80", the first, has (0, 0, 0), and the next (0, 0, 1).
    """
    raise NotImplementedError
