"""Check of exercise 17."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `events`."""
    expect(
        "events([b'data: a\\n\\n', b'data: b\\n\\n'])",
        answer.events([b"data: a\n\n", b"data: b\n\n"]),
        ["a", "b"],
        {"one space after the colon does not belong to the data": [" a", " b"]},
    )
    body = "data: 안녕\n\ndata: b\n\n".encode()
    for size in (1, 2, 4, 9):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        try:
            found = answer.events(pieces)
        except UnicodeDecodeError:
            raise Hint(
                f"a chunk may end inside a character: with pieces of {size} bytes yours decodes one by itself"
            ) from None
        expect(
            f"events of 'data: 안녕, data: b' in pieces of {size} bytes",
            found,
            ["안녕", "b"],
            {
                "an event may come in several chunks, and a chunk is no event": [],
                "half a character became U+FFFD: join the chunks before you decode": ["\ufffd" * 6, "b"],
            },
        )
    expect(
        "events([b'data:   x \\n\\n'])",
        answer.events([b"data:   x \n\n"]),
        ["  x "],
        {
            "only ONE space goes: spaces are what a model may have sampled": ["x"],
            "spaces at the end belong to the data": ["  x"],
            "only ONE space goes: the others belong to the data": ["x "],
        },
    )
    expect(
        "events([b'data: a\\ndata: b\\n\\n'])",
        answer.events([b"data: a\ndata: b\n\n"]),
        ["a\nb"],
        {
            "two data lines of one event are joined by a line feed": ["a", "b"],
            "the line feed between two data lines is missing": ["ab"],
            "the last data line takes the place of the first": ["b"],
        },
    )
    expect(
        "events([b': comment\\n\\nevent: x\\nid: 7\\ndata: a\\n\\n'])",
        answer.events([b": comment\n\nevent: x\nid: 7\ndata: a\n\n"]),
        ["a"],
        {"an event without a data line is none": ["", "a"]},
    )
    expect(
        "events([b'data: a\\r\\n\\r\\n'])",
        answer.events([b"data: a\r\n\r\n"]),
        ["a"],
        {"the \\r of a line end is taken for data": ["a\r"], "lines may end in \\r\\n": []},
    )
    expect(
        "events([b'data: a\\n\\ndata: b\\n'])",
        answer.events([b"data: a\n\ndata: b\n"]),
        ["a"],
        {"the connection broke inside an event, and half of it is given": ["a", "b"]},
    )
    expect("events([b'data:\\n\\n'])", answer.events([b"data:\n\n"]), [""])
