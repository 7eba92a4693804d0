"""Check of exercise 16."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

TEXT = "a한é🙂, b"


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `feed`."""
    expect('feed(b"", b"abc")', answer.feed(b"", b"abc"), ("abc", b""))
    half = "한".encode()[:2]
    try:
        found = answer.feed(b"", b"a" + half)
    except UnicodeDecodeError:
        raise Hint('a character is decoded before it is whole: feed(b"", b"a\\xed\\x95") holds it') from None
    expect(
        f"feed(b'', {b'a' + half!r})",
        found,
        ("a", half),
        {
            "a character became U+FFFD before it was whole: hold its bytes": ("a\ufffd", b""),
            "the begun character is dropped": ("a", b""),
            "everything is held, the complete 'a' too": ("", b"a" + half),
        },
    )
    expect(
        f"feed({half!r}, {'한'.encode()[2:]!r})",
        answer.feed(half, "한".encode()[2:]),
        ("한", b""),
        {"what was held is forgotten": ("", "한".encode()[2:])},
    )
    for size in (1, 2, 3, 5):
        data, held, text = TEXT.encode(), b"", ""
        for start in range(0, len(data), size):
            try:
                more, held = answer.feed(held, data[start : start + size])
            except UnicodeDecodeError as error:
                raise Hint(f"{TEXT!r}, {size} bytes at a time, is cut in a character: {error}") from None
            text += more
        expect(f"{TEXT!r} in pieces of {size} bytes, text and held", (text, held), (TEXT, b""))
