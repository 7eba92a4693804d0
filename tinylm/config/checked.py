"""What all configurations share: fields with help texts, checks that list every problem, a strict way
back from JSON."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args, get_type_hints

from tinylm.errors import ConfigError

MOST = 65_536
"""Sizes above this are taken for slips of the finger rather than tried."""

Device = Literal["auto", "cpu", "cuda", "mps"]


def option(default: Any, help: str) -> Any:
    """A field with a default and the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Checked:
    """What all configurations share: problems(), check(), and a strict way back from JSON."""

    def problems(self) -> list[str]:
        """Everything that is wrong, each entry naming the option, its value and what is expected."""
        raise NotImplementedError

    def check(self) -> Self:
        """Return self, or raise ConfigError with all problems."""
        found = self.problems()
        if found:
            raise ConfigError("; ".join(found))
        return self

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """A configuration from parsed JSON; unknown, missing and wrongly typed keys raise ConfigError."""
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{where}: expected an object with the options of {cls.__name__}, found {values!r}"
            )
        names = [field.name for field in dataclasses.fields(cls)]
        hints = get_type_hints(cls)
        problems = [f"{where}: unknown option {name!r}" for name in values if name not in names]
        problems += [f"{where}: option {name!r} is missing" for name in names if name not in values]
        arguments: dict[str, Any] = {}
        for name in names:
            value = values.get(name)
            nested = _nested(hints[name])
            if nested is not None and isinstance(value, Mapping):
                try:
                    value = nested.from_dict(value, f"{where}.{name}")
                except ConfigError as error:
                    problems.append(str(error))
            arguments[name] = tuple(value) if isinstance(value, list) else value
        if problems:
            raise ConfigError("; ".join(problems))
        config = cls(**arguments)
        if found := config.problems():
            raise ConfigError("; ".join(f"{where}: {problem}" for problem in found))
        return config


@dataclass(frozen=True)
class Nothing(Checked):
    """The options of a command that has none."""

    def problems(self) -> list[str]:
        return []


def _nested(hint: Any) -> type[Checked] | None:
    """The configuration in a type such as ModelConfig or ModelConfig | None."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, Checked):
            return kind
    return None


def integers(config: object, names: tuple[str, ...], least: int, most: int | None = None) -> list[str]:
    found = []
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int):
            found.append(f"{name} is {value!r}, expected an integer")
        elif value < least:
            found.append(f"{name} is {value}, expected at least {least}")
        elif most is not None and value > most:
            found.append(f"{name} is {value}, expected at most {most}")
    return found


def numbers(config: object, names: tuple[str, ...], least: float, above: bool = False) -> list[str]:
    found = []
    for name in names:
        value = getattr(config, name)
        if not is_number(value):
            found.append(f"{name} is {value!r}, expected a finite number")
        elif value < least or (above and value == least):
            found.append(f"{name} is {value:g}, expected {'above' if above else 'at least'} {least:g}")
    return found


def seed(config: object) -> list[str]:
    """Problems of the option `seed`."""
    # torch.Generator takes 64 bits; a larger seed would wrap or fail long after the check.
    found = integers(config, ("seed",), 0)
    value = getattr(config, "seed", 0)
    if not found and value >= 2**63:
        found.append(f"seed is {value}, expected below 2**63")
    return found


def shares(config: object, names: tuple[str, ...]) -> list[str]:
    values = ((name, getattr(config, name)) for name in names)
    return [
        f"{name} is {value!r}, expected a number from 0 to below 1"
        for name, value in values
        if not is_number(value) or not 0 <= value < 1
    ]


def choices(config: object, **choices: tuple[str, ...]) -> list[str]:
    return [
        f"{name} is {getattr(config, name)!r}, expected one of {', '.join(allowed)}"
        for name, allowed in choices.items()
        if getattr(config, name) not in allowed
    ]


def booleans(config: object, names: tuple[str, ...]) -> list[str]:
    return [
        f"{name} is {getattr(config, name)!r}, expected true or false"
        for name in names
        if not isinstance(getattr(config, name), bool)
    ]


def fine(found: list[str], *names: str) -> bool:
    """Whether no problem so far begins with one of these options (so that they can be combined)."""
    return not any(problem.partition(" ")[0] in names for problem in found)


def is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max  # false for NaN, and exact for integers of any size
    )


def is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
