"""A shape is a contract: every public border states the shape that it takes and checks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from tinylm.errors import ShapeError


class HasShape(Protocol):
    """What check_shape needs of an array or tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> object: ...


KINDS = {
    "integer": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "float": ("float16", "bfloat16", "float32", "float64"),
    "bool": ("bool",),
}


def check_shape(
    value: HasShape, pattern: str, *, name: str, kind: str | None = None, **sizes: int
) -> dict[str, int]:
    """Check an array or tensor against a pattern of shape letters, such as "B T D".

    Each letter binds to the size found there (letters bound by `sizes` must match), the same letter
    twice means equal sizes, a number in the pattern is that number. `kind` is "integer", "float" or
    "bool". Returns the bound sizes. Raises ShapeError naming the axis, expected and found.
    """
    letters = _letters(pattern)
    shape = getattr(value, "shape", None)
    if shape is None:
        raise ShapeError(f"{name}: expected an array [{', '.join(letters)}], found {type(value).__name__}")
    if len(shape) != len(letters):
        raise ShapeError(
            f"{name}: expected {len(letters)} axes {_told(letters, sizes)}, "
            f"found {len(shape)} axes {list(shape)}"
        )
    bound = dict(sizes)
    for axis, (letter, size) in enumerate(zip(letters, shape, strict=True)):
        want = int(letter) if letter.isdigit() else bound.setdefault(letter, size)
        if want != size:
            raise ShapeError(
                f"{name}: axis {axis} ({letter}) is {size}, expected {want}; "
                f"shape {list(shape)}, expected {_told(letters, sizes)}"
            )
    if kind is not None and _kind(value.dtype) != kind:
        raise ShapeError(f"{name}: expected {kind} values, found dtype {_plain(value.dtype)}")
    return bound


@lru_cache
def _letters(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split())


@lru_cache
def _kind(dtype: object) -> str | None:
    """The kind that a dtype of either library belongs to."""
    return next((kind for kind, names in KINDS.items() if _plain(dtype) in names), None)


def _plain(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _told(letters: Sequence[str], sizes: Mapping[str, int]) -> str:
    return f"[{', '.join(f'{x}={sizes[x]}' if x in sizes else x for x in letters)}]"


SHOWN = 3
"""Problems of a state that are written out; the rest are counted."""


def state_problems(found: Mapping[str, HasShape], wanted: Mapping[str, HasShape]) -> list[str]:
    """How a saved state differs from the wanted one, by name, shape and dtype; the order does not matter."""
    for prefix in ("_orig_mod.", "module."):
        if found.keys() != wanted.keys() == {name.replace(prefix, "") for name in found}:
            first = next(name for name in found if prefix in name)
            return [f"{first} was saved from a wrapped module; save the one inside it ({prefix[:-1]})"]
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is not part of this model's state" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(found[name].shape)} {found[name].dtype}, expected {list(value.shape)} {value.dtype}"
        for name, value in wanted.items()
        if name in found and (found[name].shape != value.shape or found[name].dtype != value.dtype)
    ]
    more = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"and {more} more"] if more > 0 else [])
