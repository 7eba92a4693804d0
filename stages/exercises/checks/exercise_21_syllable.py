"""Check of exercise 21."""

from types import ModuleType
from typing import Any

from tinylm.walkthrough.exercises import expect

MISTAKES: dict[str, dict[str, Any]] = {
    "the syllables begin at 0xAC00; take it off before you divide": {"start": 0},
    "there are 28 finals, one of which is none": {"finals": 27},
    "there are 21 vowels and 28 finals, not the other way round": {"vowels": 28, "finals": 21},
    "the second byte holds 6 bits of the number, so the first goes up by 12 and the second by 6": {"bits": 8},
    "the first two bits of a byte that goes on, 10, are no part of the number": {"mask": 255},
    "the last byte has the lowest bits": {"turned": True},
}


def places(
    text: str,
    start: int = 0xAC00,
    vowels: int = 21,
    finals: int = 28,
    bits: int = 6,
    mask: int = 63,
    turned: bool = False,
) -> tuple[int, int, int]:
    """The places by arithmetic that may have a mistake."""
    first, second, third = text.encode()
    if turned:
        second, third = third, second
    index = ((first & 15) << 2 * bits) + ((second & mask) << bits) + (third & mask) - start
    return index // (vowels * finals), index // finals % vowels, index % finals


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `places`."""
    for text in "한각갛힣낢":
        right = places(text)
        mistakes: dict[str, object] = {why: places(text, **how) for why, how in MISTAKES.items()}
        mistakes |= {
            "they are counted from 0": tuple(place + 1 for place in right),
            "the order is initial, vowel, final": right[::-1],
            "the vowel begins again with each initial: take it modulo 21": (
                right[0],
                right[0] * 21 + right[1],
                right[2],
            ),
        }
        mistakes = {why: value for why, value in mistakes.items() if value != right}
        expect(f"places({text.encode()!r}), which is {text},", answer.places(text.encode()), right, mistakes)
    every = range(0xAC00, 0xD7A4)
    wrong = next((chr(n) for n in every if answer.places(chr(n).encode()) != places(chr(n))), "")
    if wrong:
        expect(f"places({wrong.encode()!r}), which is {wrong},", answer.places(wrong.encode()), places(wrong))
