"""Exercises: a function that a reader writes, and a check that names what is still wrong with it.

Three files of one name belong together: `exercises/exercise_NN_name.py` is the reader's,
`exercises/checks/` holds the check, `exercises/solutions/` an answer that passes it.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from tinylm.walkthrough import utf8_output

SHOWN = 160
"""Characters of a value that a hint shows."""


class Hint(Exception):
    """What is still wrong with a reader's function, with the call that shows it."""


def expect(call: str, found: object, wanted: object, mistakes: Mapping[str, object] | None = None) -> None:
    """Raise a Hint unless the values are equal.

    `mistakes` maps what may have gone wrong to the value that it gives: a result that equals one of them
    is named by it.
    """
    if equal(found, wanted):
        return
    why = next((text for text, value in (mistakes or {}).items() if equal(found, value)), "not yet right")
    raise Hint(f"{why}: for {call} expected {shown(wanted)}, yours gives {shown(found)}")


def expect_refusal(call: str, function: Callable[[], object], why: str) -> str:
    """Raise a Hint unless `function` raises ValueError; returns what the error says."""
    try:
        found = function()
    except ValueError as error:
        return str(error)
    raise Hint(f"{why}: {call} has to raise ValueError, yours gives {shown(found)}")


def equal(found: object, wanted: object) -> bool:
    """Equal values: numbers to nine digits, a list and a tuple alike; a truth value is not a number."""
    to_list = getattr(found, "tolist", None)
    if to_list is not None:
        return equal(to_list(), wanted)
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted or math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[key], wanted[key]) for key in wanted)
    return type(found) is type(wanted) and found == wanted


def shown(value: object) -> str:
    """A value as a hint shows it: numbers to six digits, not too long."""
    text = repr(_rounded(value))
    return text if len(text) <= SHOWN else text[: SHOWN - 2] + " …"


def _rounded(value: object) -> object:
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return _rounded(to_list())
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return type(value)(map(_rounded, value))
    return value


def find(folder: Path) -> dict[int, Path]:
    """The exercises of a folder by the number of their stage, in order."""
    return {int(path.stem.split("_")[1]): path for path in sorted(folder.glob("exercise_[0-9][0-9]_*.py"))}


def load(path: Path, kind: str = "exercise") -> ModuleType:
    """A file as a module of its own, loaded anew each time."""
    specification = importlib.util.spec_from_file_location(f"tinylm_{kind}_{path.stem}", path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def problem(answer: Path, checks: Path) -> str | None:
    """What is still wrong with an answer; None if it passes the check of its name in `checks`."""
    check = load(checks / answer.name, "check").check
    try:
        check(load(answer))
    except Hint as hint:
        return str(hint)
    except NotImplementedError:
        here = Path.cwd()
        place = answer.relative_to(here) if answer.is_relative_to(here) else answer
        return f"not written yet: the docstring in {place} says what to write"
    except SystemExit:
        return "ends the program; a function gives a value or raises an error"
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(answer)]
        if not own and not isinstance(error, AttributeError | SyntaxError):
            raise
        where = f" (line {own[-1].lineno}: {own[-1].line})" if own else ""
        return f"raises {type(error).__name__}: {error}{where}"
    return None


def main(folder: Path, arguments: Sequence[str] | None = None) -> int:
    """The command `check.py`: 0 if all exercises asked for are right, else 1; 2 for an unknown number."""
    utf8_output()
    every = find(folder)
    parser = argparse.ArgumentParser(prog="check.py", description="Check what you wrote in the exercises.")
    parser.add_argument("numbers", nargs="*", type=int, metavar="N", help="stages (default: all)")
    parser.add_argument("--solutions", action="store_true", help="check the solutions instead")
    options = parser.parse_args(arguments)
    absent = [number for number in options.numbers if number not in every]
    if absent:
        known = ", ".join(f"{number:02d}" for number in every)
        parser.error(f"no exercise {', '.join(f'{number:02d}' for number in absent)}; there are {known}")
    right = 0
    chosen = options.numbers or list(every)
    for number in chosen:
        path = folder / "solutions" / every[number].name if options.solutions else every[number]
        wrong = problem(path, folder / "checks")
        right += wrong is None
        print(f"{path.stem.removeprefix('exercise_'):<24}{wrong or 'right'}")
    print(f"{right} of {len(chosen)} right", file=sys.stdout)
    return 0 if right == len(chosen) else 1
