"""Exercises: a function that a reader writes, and a check that names what is still wrong with it.

Three files of one name belong together: `exercises/exercise_NN_name.py` is the reader's,
`exercises/checks/` holds the check, `exercises/solutions/` an answer that passes it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib.util
import json
import linecache
import math
import multiprocessing
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from tinylm.walkthrough import utf8_output, workspace

SHOWN = 160
"""Characters of a value that a hint shows."""

TIME_LIMIT = 20.0
"""Seconds that the check of one answer may take."""

GRACE = 5.0
"""Seconds after which a process that should have ended by itself is killed."""


ENDS = "ends the program; a function gives a value or raises an error"


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
        return ENDS
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(answer)]
        if not own and not isinstance(error, AttributeError | SyntaxError):
            raise
        where = f" (line {own[-1].lineno}: {own[-1].line})" if own else ""
        return f"raises {type(error).__name__}: {error}{where}"
    return None


def judge(answers: Sequence[Path], checks: Path, seconds: float = TIME_LIMIT) -> Iterator[str | None]:
    """`problem` of each answer, in a process that is ended where an answer takes longer than `seconds`.

    One process checks them all; after one that had to be ended, or that ended itself, a new one goes on.
    """
    waiting = list(answers)
    while waiting:
        with workspace() as folder, _worker(folder / "trace", checks, seconds) as asked:
            ended = False
            while waiting and not ended:
                answer = waiting.pop(0)
                asked.send_bytes(str(answer).encode("utf-8", "surrogatepass"))
                late = not asked.poll(seconds + GRACE)
                try:
                    said, bug = (None, "") if late else json.loads(asked.recv_bytes())
                except EOFError:
                    said, bug, ended = None, "", True
                if bug:
                    raise RuntimeError(f"the check of {answer.name} failed:\n{bug}")
                ended = ended or late
                yield _unfinished(answer, folder / "trace", late, seconds) if ended else said


@contextlib.contextmanager
def _worker(trace: Path, checks: Path, seconds: float) -> Iterator[Connection]:
    """The line to a process that checks answers; afterwards it has ended, whatever it was doing."""
    context = multiprocessing.get_context("spawn")  # the same on every system
    here, there = context.Pipe()
    child = context.Process(target=_work, args=(there, trace, checks, seconds), daemon=True)
    child.start()
    there.close()
    try:
        with contextlib.suppress(EOFError):
            here.recv_bytes()  # it has started, which may take long and is not the reader's fault
        yield here
    finally:
        child.kill()
        child.join()
        here.close()


def _work(asked: Connection, trace: Path, checks: Path, seconds: float) -> None:
    """Check answers until nobody asks any more; too late, write where Python stands to `trace`, and end."""
    utf8_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    with trace.open("w", encoding="utf-8") as file, contextlib.suppress(EOFError):
        asked.send_bytes(b"ready")
        while True:
            answer = Path(asked.recv_bytes().decode("utf-8", "surrogatepass"))
            # A thread of its own that needs nothing from Python: it also ends a loop inside one call.
            faulthandler.dump_traceback_later(seconds, file=file, exit=True)
            try:
                said, bug = problem(answer, checks), ""
            except Exception:  # not the reader's: it is raised again where it can be seen
                said, bug = None, traceback.format_exc()
            faulthandler.cancel_dump_traceback_later()
            asked.send_bytes(json.dumps([said, bug]).encode("ascii"))


def _unfinished(answer: Path, trace: Path, late: bool, seconds: float) -> str:
    """What to say of an answer whose process has ended, or had to be, before there was a verdict."""
    told = trace.read_text("utf-8", "replace")
    if not late and not told:
        return ENDS
    # The file as Python writes it there: its folder may be escaped, and a check has the same name.
    own = re.findall(rf'(?<!checks[/\\]){re.escape(answer.name)}", line (\d+)', told)
    line = linecache.getline(str(answer), int(own[0])).strip() if own else ""
    where = f" (it stands at line {own[0]}: {line})" if own else ""
    return f"does not end: stopped after {seconds:g} s{where}; look for a loop whose condition stays true"


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
    place = folder / "solutions" if options.solutions else folder
    paths = [place / every[number].name for number in chosen]
    for path, wrong in zip(paths, judge(paths, folder / "checks"), strict=True):
        right += wrong is None
        print(f"{path.stem.removeprefix('exercise_'):<24}{wrong or 'right'}")
    print(f"{right} of {len(chosen)} right", file=sys.stdout)
    return 0 if right == len(chosen) else 1
