"""Check of exercise 04."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

B = 256


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `stream`."""
    expect(
        'stream([b"ab", b"ba"])',
        answer.stream([b"ab", b"ba"]),
        [B, 97, 98, B, 98, 97, B],
        {
            "two boundaries stand between the documents: one does both": [B, 97, 98, B, B, 98, 97, B],
            "the first document is not opened": [97, 98, B, 98, 97, B],
            "the last document is not ended": [B, 97, 98, B, 98, 97],
            "nothing stands between the documents": [B, 97, 98, 98, 97, B],
            "the last document is ended by 257: there is one boundary, not a BOS and an EOS": [
                *(B, 97, 98, 257, B, 98, 97, 257),
            ],
        },
    )
    expect(
        'stream([b"a", b"", b"b"])',
        answer.stream([b"a", b"", b"b"]),
        [B, 97, B, 98, B],
        {"an empty document leaves a boundary behind: skip it": [B, 97, B, B, 98, B]},
    )
    typed = [60, 124, 100, 111, 99, 124, 62]
    expect(
        'stream([b"<|doc|>"])',
        answer.stream([b"<|doc|>"]),
        [B, *typed, B],
        {"a text became a boundary: whoever types it can end a document": [B, B, B]},
    )
    greeting = "안".encode()
    expect(
        'stream(["안".encode()])',
        answer.stream([greeting]),
        [B, *greeting, B],
        {"this is the character's number, not its bytes": [B, ord("안"), B]},
    )
    ids = answer.stream([bytes(range(256))])
    if ids != [B, *range(256), B]:
        raise Hint("every one of the 256 bytes is its own id: bytes(range(256)) comes back changed")
