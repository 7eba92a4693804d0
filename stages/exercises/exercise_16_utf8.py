"""Exercise of stage 16: bytes arrive one by one, and text comes when it is complete."""


def feed(held: bytes, new: bytes) -> tuple[str, bytes]:
    """The text that is complete now, and the bytes that are held because a character is not whole yet.

    `held` is what the call before held, `new` what has arrived since; all of it is well-formed UTF-8, cut
    anywhere. feed(b"", b"a" + "한".encode()[:2]) is ("a", the two bytes), and with the third one the text is
    "한". A first byte tells the length of its character: below 0x80 it is 1, from 0xC0 2, from 0xE0 3, from
    0xF0 4; bytes from 0x80 to 0xBF go on with one that has begun.
    """
    raise NotImplementedError
