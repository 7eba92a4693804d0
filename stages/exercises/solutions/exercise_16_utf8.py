"""An answer to exercise 16."""


def feed(held: bytes, new: bytes) -> tuple[str, bytes]:
    """The text that is complete now, and the bytes that are held because a character is not whole yet."""
    data = held + new
    for back in range(1, min(3, len(data)) + 1):
        first = data[-back]
        if first >= 0xC0:
            length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            if length > back:
                return data[:-back].decode(), data[-back:]
            break
    return data.decode(), b""
