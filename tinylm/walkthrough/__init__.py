"""The shape of a stage: question, hypothesis, experiment, what went otherwise, costs, proof, next, check.

A stage file holds one `Stage` (what is said before the numbers) and one function that takes a `Lab`
(what is said with them); this room prints, measures nothing, and decides PASS or FAIL.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import importlib.util
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import textwrap
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinylm.files import write_atomic

WIDTH = 110
INDENT = 12
MARKER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)(?:[ %*`]|[^\W\d])*<!--=(\w+)-->")


@dataclass(frozen=True)
class Value:
    """A number that the stage's page may quote: exact, unless a tolerance is stated."""

    number: float
    tolerance: float = 0.0


@dataclass
class Lab:
    """What an experiment says.

    `quick` asks for the 10-second form, `device` is where tensors live, `picture` where the figure goes.
    """

    quick: bool = False
    device: str = "cpu"
    picture: Path | None = None
    values: dict[str, Value] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def value(self, name: str, number: float, tolerance: float = 0.0) -> float:
        """Register a number under the name by which the page marks it; returns the number."""
        self.values[name] = Value(float(number), tolerance)
        return number

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table; numbers are aligned to the right."""
        self.said.add("table")
        print(textwrap.indent(render_table(headers, rows), " " * INDENT))

    def note(self, text: str) -> None:
        """Print a line of the experiment."""
        print(textwrap.indent(text, " " * INDENT))

    def figure(self, draw: Callable[[], bytes]) -> None:
        """Write the SVG that `draw` makes (`tinylm.walkthrough.figures`), where a figure was asked for.

        It is skipped in one line where nobody asked for it, or matplotlib is not installed.
        """
        if self.picture is None:
            _part("figure", "on the page; --figure FILE draws this run's")
        elif importlib.util.find_spec("matplotlib") is None:
            _part("figure", "skipped: matplotlib is not installed")
        else:
            write_atomic(self.picture, draw())
            _part("figure", str(self.picture))

    def otherwise(self, text: str) -> None:
        """What went otherwise than one would expect."""
        self._say("otherwise", text)

    def costs(self, text: str) -> None:
        """What it costs, and how far a mistake here reaches."""
        self._say("costs", text)

    def proves(self, text: str, does_not_prove: str) -> None:
        """What the numbers prove, and what they do not."""
        self._say("proves", text)
        _part("not proved", does_not_prove)

    def check(self, name: str, passed: bool) -> None:
        """One part of the sanity check; a part that fails is named and fails the stage."""
        self.said.add("check")
        if not passed:
            self.failures.append(name)

    def _say(self, label: str, text: str) -> None:
        self.said.add(label)
        _part(label, text)


@dataclass(frozen=True)
class Stage:
    """What a stage says before its numbers, and the question that it leaves.

    `extra` of the package, with the `needs` that it installs: without them the stage is skipped.
    """

    number: int
    title: str
    question: str
    hypothesis: str
    experiment: str
    next: str
    extra: str = ""
    needs: tuple[str, ...] = ()

    def main(self, experiment: Callable[[Lab], None], arguments: Sequence[str] | None = None) -> int:
        """Run the stage as a program; returns 0 after PASS or where it is skipped, 1 after FAIL."""
        utf8_output()
        atexit.register(gc.freeze)  # or Python searches all of torch for garbage before it ends: a second
        parser = argparse.ArgumentParser(description=f"stage {self.number:02d}: {self.question}")
        parser.add_argument("--quick", action="store_true", help="the 10-second form")
        parser.add_argument("--device", default="cpu", help="where tensors live: cpu (default) or cuda")
        parser.add_argument(
            "--check-page",
            type=Path,
            nargs="+",
            default=[],
            metavar="PAGE",
            help="compare the numbers of these pages with this run",
        )
        parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the stage's figure, as SVG")
        options = parser.parse_args(arguments)
        lab = Lab(quick=options.quick, device=options.device, picture=options.figure)
        print(f"stage {self.number:02d} · {self.title}")
        _part("question", self.question)
        _part("hypothesis", self.hypothesis)
        _part("experiment", self.experiment)
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            have = " and ".join(missing) + (" is" if len(missing) == 1 else " are")
            _part("skipped", f"{have} not installed: pip install -e '.[{self.extra}]'")
            print("sanity check: skipped")
            return 0
        experiment(lab)
        _part("next", self.next)
        failures = lab.failures + [
            f"the stage said nothing under {label!r}"
            for label in ("table", "otherwise", "costs", "proves", "check")
            if label not in lab.said
        ]
        for page in options.check_page:
            problems, quoted = check_page(page.read_text(encoding="utf-8"), lab.values)
            failures += [f"{page}: {problem}" for problem in problems]
            _part("page", f"{quoted} numbers of {page.name} compared with this run, {len(problems)} differ")
        for failure in failures:
            _part("failed", failure)
        print(f"sanity check: {'FAIL' if failures else 'PASS'}")
        return 1 if failures else 0


def check_page(text: str, values: dict[str, Value]) -> tuple[list[str], int]:
    """Compare the numbers that a page marks, as in `8.006<!--=uniform-->`, with those of a run.

    A number agrees if it is within the value's tolerance, or within half a unit of its own last digit.
    Returns the problems and how many numbers were compared; a page that marks none is a problem.
    """
    problems, marked = [], MARKER.findall(text)
    if text.count("<!--=") != len(marked):
        problems.append(f"{text.count('<!--=') - len(marked)} markers do not follow a number")
    for quoted, name in marked:
        if name not in values:
            problems.append(f"marks {name!r}, which the stage does not measure")
            continue
        digits = len(quoted.partition(".")[2])
        allowed = max(values[name].tolerance, 0.5 * 10.0**-digits if digits else 0.0) * (1 + 1e-9)
        if not abs(float(quoted.replace(",", "")) - values[name].number) <= allowed:
            problems.append(f"{name} is quoted as {quoted}, this run gives {values[name].number:.6g}")
    if not marked:
        problems.append("marks no number")
    return problems, len(marked)


def render_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in box-drawing characters; columns that hold only numbers are aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    columns = list(zip(headers, *cells, strict=True))
    widths = [max(map(display_width, column)) for column in columns]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(headers))]

    def line(left: str, middle: str, end: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + end

    def row_text(row: Sequence[str], align: bool) -> str:
        padded = [
            " " * (width - display_width(text)) + text
            if align and right[i]
            else text + " " * (width - display_width(text))
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "│ " + " │ ".join(padded) + " │"

    body = [row_text(row, True) for row in cells]
    return "\n".join(
        [line("┌", "┬", "┐"), row_text(headers, False), line("├", "┼", "┤"), *body, line("└", "┴", "┘")]
    )


def display_width(text: str) -> int:
    """Columns that a terminal uses for a text: two for wide characters, none for combining marks."""
    width = 0
    for character in text:
        joins = unicodedata.category(character) in ("Cf", "Me", "Mn") or "\u1160" <= character <= "\u11ff"
        if joins or unicodedata.combining(character):  # U+1160..11FF: vowels and finals of Hangul syllables
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def utf8_output() -> None:
    """Make standard output and error UTF-8, whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder for a stage's files, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="tinylm-stage-", ignore_cleanup_errors=os.name == "nt") as folder:
        yield Path(folder)


def killed(work: Callable[..., None], *arguments: Any, place: Path, at: int) -> bool:
    """Call `work(say, *arguments)` in a process of its own, in a folder; kill it when it says `at` or more.

    No handler runs, nothing is put in order. It computes with one thread. False if it ended by itself before.
    """
    context = _processes()
    heard, said = context.Pipe(duplex=False)
    child = context.Process(target=_alone, args=(place, heard, said, work, *arguments))
    child.start()
    said.close()  # this end of it: what is read ends with the child
    reached = False
    with heard, contextlib.suppress(EOFError):
        while not reached:
            reached = int(heard.recv_bytes()) >= at
    if reached:
        child.kill()
    child.join()
    return reached and child.exitcode != 0


def _alone(place: Path, heard: Any, said: Any, work: Callable[..., None], *arguments: Any) -> None:
    import torch

    heard.close()
    os.chdir(place)
    torch.set_num_threads(1)  # those of the process that forked it are not there
    work(lambda number: said.send_bytes(b"%d" % number), *arguments)


def together(work: Callable[..., None], *arguments: Any, place: Path, ranks: int) -> None:
    """Call `work(*arguments)` in `ranks` processes at once, in a folder, and wait for all of them.

    `work` is a function of a module. Each process finds in its environment what torchrun would tell it, and
    computes with one thread. Where one fails the others are ended, and RuntimeError says what it said.
    """
    context = _processes()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = (ranks, port, place, work, *arguments)
    children = [context.Process(target=_rank, args=(rank, *given)) for rank in range(ranks)]
    try:
        for child in children:
            child.start()
        while None in (codes := [child.exitcode for child in children]) and not any(codes):
            time.sleep(0.02)
    finally:
        for child in children:
            if child.pid is not None:
                child.kill()
                child.join()
    if failed := [rank for rank, code in enumerate(codes) if code]:
        said = (place / f"rank-{failed[0]}.stderr").read_text("utf-8", "backslashreplace")
        raise RuntimeError(f"rank {failed[0]} failed: {said or codes[failed[0]]}")


def _rank(rank: int, size: int, port: int, place: Path, work: Callable[..., None], *arguments: Any) -> None:
    import torch

    os.chdir(place)
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(size)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)  # two each would wait for one another at every operator
    with Path(f"rank-{rank}.stderr").open("w", 1, encoding="utf-8", errors="backslashreplace") as said:
        os.dup2(said.fileno(), 2)
        try:
            work(*arguments)
        except BaseException:
            traceback.print_exc(file=said)
            raise SystemExit(1) from None


def _processes() -> Any:
    """How processes start. A forked one need not load torch again; it must use one thread, and no GPU."""
    import torch

    forks = sys.platform == "linux" and not torch.cuda.is_available()
    return multiprocessing.get_context("fork" if forks else "spawn")


def _part(label: str, text: str) -> None:
    lines = textwrap.wrap(" ".join(text.split()), WIDTH - INDENT, break_on_hyphens=False)
    print(f"{label:<{INDENT}}" + f"\n{' ' * INDENT}".join(lines))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return str(value)
