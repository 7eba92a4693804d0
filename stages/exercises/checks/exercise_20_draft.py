"""Check of exercise 20."""

from itertools import product
from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `emitted`."""
    expect(
        "emitted([97, 98], [97, 98, 99])",
        list(answer.emitted([97, 98], [97, 98, 99])),
        [97, 98, 99],
        {"all guesses were right, and the draw after the last of them counts too": [97, 98]},
    )
    expect(
        "emitted([97, 98], [97, 120, 99])",
        list(answer.emitted([97, 98], [97, 120, 99])),
        [97, 120],
        {
            "a wrong guess is not emitted: the draw in its place is": [97, 98, 99],
            "the draw at the wrong guess is what the model says; it must not be lost": [97],
            "after a wrong guess the model has read something that was never emitted": [97, 120, 99],
        },
    )
    expect(
        "emitted([], [97])",
        list(answer.emitted([], [97])),
        [97],
        {"without a guess a step is plain decoding: it emits its one draw": []},
    )

    # A model as a function: whatever was guessed, what comes out is what it would have said by itself.
    def model(text: tuple[int, ...]) -> int:
        return (3 * sum(text) + 5 * len(text) + 1) % 3

    for draft in product(range(3), repeat=3):
        drawn = [model(draft[:place]) for place in range(4)]
        found = list(answer.emitted(list(draft), drawn))
        plain: list[int] = []
        while len(plain) < max(1, len(found)):
            plain.append(model(tuple(plain)))
        call = f"emitted({list(draft)}, {drawn})"
        if found != plain:
            raise Hint(f"{call}: plain decoding says {plain}, yours gives {found}")
        most = next((place for place in range(3) if draft[place] != drawn[place]), 3) + 1
        if len(found) < most:
            raise Hint(f"{call}: {most} tokens are known after this pass, yours gives {len(found)}: {found}")
