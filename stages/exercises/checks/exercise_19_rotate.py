"""Check of exercise 19."""

import math
from types import ModuleType

from tinylm.walkthrough.exercises import expect

HEAD = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def turned(
    position: int, neighbours: bool = False, sign: int = 1, power: float = 2.0, unit: float = 1.0
) -> list[float]:
    """The head turned with another pairing, sign, exponent or unit of angle."""
    out = list(HEAD)
    for i in range(4):
        first, second = (2 * i, 2 * i + 1) if neighbours else (i, i + 4)
        angle = sign * unit * position * 10_000.0 ** (-power * i / 8)
        x, y = HEAD[first], HEAD[second]
        out[first] = x * math.cos(angle) - y * math.sin(angle)
        out[second] = x * math.sin(angle) + y * math.cos(angle)
    return out


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `rotate`."""
    expect(f"rotate({HEAD}, 0), where nothing turns,", answer.rotate(list(HEAD), 0), HEAD)
    for position in (1, 7):
        expect(
            f"rotate({HEAD}, {position})",
            answer.rotate(list(HEAD), position),
            turned(position),
            {
                "neighbours are paired: here i and i + K/2 are a pair": turned(position, neighbours=True),
                "it turns the other way round": turned(position, sign=-1),
                "the exponent is -2i / K, yours is -i / K": turned(position, power=1.0),
                "the exponent is -2i / K, yours is twice that": turned(position, power=4.0),
                "all pairs turn by the same angle": turned(position, power=0.0),
                "the angle is in radians, yours is in degrees": turned(position, unit=math.pi / 180),
                "the head does not turn": HEAD,
            },
        )
