"""What a command is, and what all of them use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

Arguments = Any
"""An instance of a dataclass that `flags` made."""


@dataclasses.dataclass(frozen=True)
class Command:
    """How a command is parsed (a dataclass for tyro, from the words given) and run."""

    help: str
    arguments: Callable[[list[str]], type]
    run: Callable[[Arguments], int]


def fields(given: Arguments) -> dict[str, Any]:
    """The values of a parsed dataclass, nested ones as they are."""
    return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}


def ended(signal: int | None) -> int:
    """The exit code of a command that a signal may have ended."""
    return 0 if signal is None else 128 + signal
