"""An answer to exercise 21."""


def places(data: bytes) -> tuple[int, int, int]:
    """Initial, vowel and final of a Hangul syllable, as places in their tables, from its three bytes."""
    first, second, third = data
    index = ((first & 0b1111) << 12 | (second & 0b111111) << 6 | (third & 0b111111)) - 0xAC00
    return index // 28 // 21, index // 28 % 21, index % 28
