"""Check of exercise 12."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

B = 256
TEXT = [B, 97, 98, 99, B]  # the model knows one document, abc, by heart


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `generate`."""
    fed: list[list[int]] = []

    def next_id(ids: list[int]) -> int:
        fed.append(list(ids))
        if len(fed) > 50:
            raise Hint("your loop does not end: it has sampled 50 ids at a limit of 8 or less")
        since = len(ids) - 1 - ids[::-1].index(B) if B in ids else 0
        return TEXT[min(len(ids) - since, len(TEXT) - 1)]

    def call(prompt: bytes | list[int], limit: int) -> object:
        fed.clear()
        return answer.generate(next_id, prompt, limit)

    found = call(b"", 8)
    if fed and fed[0] != [B]:
        raise Hint(f'for a prompt of b"" the model is to be fed [256] first, yours feeds {fed[0]}')
    expect(
        'generate(next_id, b"", 8), a model that writes abc,',
        found,
        ([97, 98, 99, B], "boundary"),
        {
            "the boundary that ended it is the last of the sampled ids": ([97, 98, 99], "boundary"),
            "the boundary that was given is not sampled": ([B, 97, 98, 99, B], "boundary"),
            "a sampled boundary does not end it": ([97, 98, 99, B, 97, 98, 99, B], "limit"),
            "the boundary that was given ends it: only a newly sampled one may": ([], "boundary"),
        },
    )
    expect(
        'generate(next_id, b"a", 8)',
        call(b"a", 8),
        ([98, 99, B], "boundary"),
        {"the prompt is given back as if it had been sampled": ([97, 98, 99, B], "boundary")},
    )
    if fed[0] != [B, 97]:
        raise Hint(f'a prompt of b"a" is to be fed as [256, 97], yours feeds {fed[0]}')
    expect(
        "generate(next_id, [256, 97, 98, 99, 256], 8)",
        call([B, 97, 98, 99, B], 8),
        ([97, 98, 99, B], "boundary"),
        {"a boundary in the prompt ends it: nothing that is given may": ([], "boundary")},
    )
    if fed[0] != [B, 97, 98, 99, B]:
        raise Hint(f"a prompt of ids is fed as it is, yours feeds {fed[0]}")
    expect(
        'generate(next_id, b"", 2)',
        call(b"", 2),
        ([97, 98], "limit"),
        {
            "one id too many: the limit is how many may be sampled": ([97, 98, 99], "limit"),
            "one id too few": ([97], "limit"),
        },
    )
    expect(
        'generate(next_id, b"", 4), where the 4th id is the boundary,',
        call(b"", 4),
        ([97, 98, 99, B], "boundary"),
        {"boundary and limit came together, and the boundary counts first": ([97, 98, 99, B], "limit")},
    )
    expect('generate(next_id, b"", 0)', call(b"", 0), ([], "limit"))
    given = [B, 97]
    call(given, 3)
    if given != [B, 97]:
        raise Hint(f"your function changes the prompt that it was given: [256, 97] has become {given}")
