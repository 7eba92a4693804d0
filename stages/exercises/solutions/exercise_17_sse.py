"""An answer to exercise 17."""

from collections.abc import Iterable


def events(chunks: Iterable[bytes]) -> list[str]:
    """The data of each server-sent event in a body that arrives in pieces, cut anywhere."""
    found: list[str] = []
    data: list[str] = []
    for line in b"".join(chunks).decode().replace("\r\n", "\n").split("\n")[:-1]:
        if not line:
            if data:
                found.append("\n".join(data))
            data = []
        elif line == "data" or line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
    return found
