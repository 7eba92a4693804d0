"""Run the stages in order, say how each ended, and keep what they printed and drew."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tinylm.errors import ConfigError
from tinylm.files import write_atomic
from tinylm.walkthrough import utf8_output

TIME_LIMIT = 900
"""Seconds after which a stage is given up."""

BOOK_PARTS = ("markdown_it", "mdit_py_plugins", "pygments")
HOW_TO_GET_THE_BOOK = "book: skipped, its renderer is not installed: pip install -e '.[book]'"


@dataclass(frozen=True)
class Ran:
    """A stage's script after its run: exit code, seconds, what it printed, and the figure that it drew."""

    script: Path
    code: int
    seconds: float
    output: str
    errors: str = ""
    figure: Path | None = None

    @property
    def number(self) -> int:
        """04 of `stage_04_byte_tokenizer.py`."""
        return int(self.script.stem.split("_")[1])

    @property
    def verdict(self) -> str:
        """PASS, SKIP (an extra that the stage needs is not installed) or FAIL, by exit code and last line."""
        ends = {"sanity check: PASS": "PASS", "sanity check: skipped": "SKIP"}
        last = self.output.rstrip().rpartition("\n")[2]
        return "FAIL" if self.code else ends.get(last, "FAIL")

    @property
    def failed(self) -> bool:
        """Whether the verdict is FAIL."""
        return self.verdict == "FAIL"

    def line(self) -> str:
        """Seconds, the verdict, the script, and the last line that it printed."""
        printed = (self.output.strip() or self.errors.strip() or "it printed nothing").splitlines()
        errors = self.errors.strip().splitlines()
        last = errors[-1] if self.failed and errors else printed[-1]
        if self.verdict == "SKIP":
            last = next((line for line in printed if line.startswith("skipped  ")), last)
        compared = (line.split() for line in printed if line.startswith("page  ") and "compared" in line)
        quoted = sum(int(words[1]) for words in compared)
        pages = f"{quoted} numbers of its page agree; " if quoted and not self.failed else ""
        return f"{self.seconds:6.1f} s  {self.verdict}  {self.script.stem:<26}{pages}{last}"

    def reasons(self) -> list[str]:
        """What the stage gave as its reasons to fail, and the end of what it wrote to standard error."""
        if not self.failed:
            return []
        named = [line for line in self.output.splitlines() if line.startswith("failed  ")]
        return named + self.errors.strip().splitlines()[-12:]


def find_scripts(stages: Path, only: Sequence[int] = ()) -> list[Path]:
    """The scripts of the stages in order, or those with the numbers in `only`.

    Raises ConfigError for a number that no stage has.
    """
    found = {int(path.stem.split("_")[1]): path for path in sorted(stages.glob("stage_[0-9][0-9]_*.py"))}
    missing = [number for number in only if number not in found]
    if missing or not found:
        raise ConfigError(
            f"--only {' '.join(map(str, missing))}: {stages} has no such stage; it has "
            f"{', '.join(f'{number:02d}' for number in found) or 'none'}"
        )
    return [path for number, path in found.items() if not only or number in only]


def pages_of(script: Path) -> list[Path]:
    """The page of a stage, then its translations, `stages/<language>/stage_NN_name.md`."""
    name = script.with_suffix(".md").name
    return [script.with_suffix(".md"), *sorted(script.parent.glob(f"[a-z][a-z]/{name}"))]


def run_stage(script: Path, quick: bool, figures: Path, environment: Mapping[str, str]) -> Ran:
    """Run a stage in a process of its own; in full, with its figure, and its pages' numbers are compared."""
    figure = figures / f"{script.stem}.svg"
    in_full = ["--figure", str(figure), "--check-page", *map(str, pages_of(script))]
    command = [sys.executable, str(script), *(["--quick"] if quick else in_full)]
    started = time.perf_counter()
    try:
        ran = subprocess.run(
            command,
            cwd=script.parents[1],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT,
        )
        code, printed, errors = ran.returncode, ran.stdout, ran.stderr
    except subprocess.TimeoutExpired as late:
        code, printed = 1, late.stdout or b""
        errors = (late.stderr or b"") + f"\nstopped after {TIME_LIMIT} s".encode()
    return Ran(
        script,
        code,
        time.perf_counter() - started,
        printed.decode("utf-8", "replace"),
        errors.decode("utf-8", "replace"),
        figure if figure.exists() else None,
    )


def run_stages(
    scripts: Sequence[Path], quick: bool, figures: Path, environment: Mapping[str, str], jobs: int
) -> Iterator[Ran]:
    """Run the scripts, `jobs` at a time, and give each result in the order of the scripts."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda script: run_stage(script, quick, figures, environment), scripts)


def main(stages: Path, environment: Mapping[str, str], arguments: Sequence[str] | None = None) -> int:
    """The command `run_all.py`: 0 if every stage passed and the book is whole, else 1; 2 for bad options."""
    utf8_output()
    root = stages.parent
    parser = argparse.ArgumentParser(
        prog="run_all.py", description="Run the stages in order and bind them into one HTML book."
    )
    parser.add_argument(
        "--quick", action="store_true", help="the 10-second forms, two at a time; pages are not compared"
    )
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="these stages only")
    parser.add_argument("--book", type=Path, metavar="FILE", help="default: build/book.html")
    parser.add_argument("--jobs", type=int, metavar="N", help="stages at a time (default: 2)")
    options = parser.parse_args(arguments)
    jobs: int = 2 if options.jobs is None else options.jobs
    can_bind = all(importlib.util.find_spec(part) for part in BOOK_PARTS)
    if options.book and not can_bind:
        parser.error(HOW_TO_GET_THE_BOOK)
    if jobs < 1:
        parser.error(f"--jobs is {jobs}, expected at least 1")
    try:
        scripts = find_scripts(stages, options.only)
    except ConfigError as error:
        parser.error(str(error))
    if can_bind:  # before the long part, so that nothing is missing after it
        from tinylm.walkthrough.book import bind
    # A console that knows no Unicode is the hardest one, so the stages are always run as if on it.
    environment = {**environment, "PYTHONIOENCODING": "cp1252"}
    if jobs > 1:
        environment["OMP_NUM_THREADS"] = "1"
    started = time.perf_counter()
    every: list[Ran] = []
    with tempfile.TemporaryDirectory(prefix="tinylm-book-") as folder:
        try:
            for ran in run_stages(scripts, options.quick, Path(folder), environment, jobs):
                every.append(ran)
                print("\n          ".join([ran.line(), *ran.reasons()]), flush=True)
        except KeyboardInterrupt:
            print(f"stopped after {len(every)} of {len(scripts)} stages; --only runs some of them")
            return 130
        failed = [ran.script.stem for ran in every if ran.failed]
        skipped = sum(ran.verdict == "SKIP" for ran in every)
        ended = (
            f"FAIL: {', '.join(failed)}" if failed else "all PASS" + f" but {skipped} skipped" * bool(skipped)
        )
        print(f"{len(every)} stages in {time.perf_counter() - started:.0f} s: {ended}")
        problems: list[str] = []
        if can_bind:
            path = options.book or root / "build" / "book.html"
            html, problems = bind(every, stages, quick=options.quick)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, html.encode("utf-8"))
            for problem in problems:
                print(f"book: {problem}")
            print(f"book: {path}, {len(html.encode()) / 1e6:.1f} MB")
        else:
            print(HOW_TO_GET_THE_BOOK)
    return 1 if failed or problems else 0
