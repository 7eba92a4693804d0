"""The table that a slow proof prints: faults injected, survived, lost (must be 0), and its controls."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 8
EVERY = 20.0
"""Seconds between two lines of progress: a proof that is silent cannot be told from one that hangs."""


@dataclass
class Row:
    """One kind of fault: how many were injected, how many of them lost something, and what."""

    kind: str
    began: float
    injected: int = 0
    losses: list[str] = field(default_factory=list)
    _told: float = field(default_factory=time.monotonic)

    def count(self, where: str, problem: str | None) -> None:
        """Count a fault; `problem` says what was lost by it."""
        self.injected += 1
        if problem is not None:
            self.losses.append(f"{where}: {problem}")
        now = time.monotonic()
        if now - self._told > EVERY:
            self._told = now
            print(f"... {now - self.began:4.0f} s  {self.kind}: {self.injected:,} injected", file=sys.stderr)


class Proof:
    """Counts faults by kind. `short` is the form for every day: fewer faults, the same kinds."""

    def __init__(self, title: str, arguments: Sequence[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description=title)
        parser.add_argument("--short", action="store_true", help="fewer faults of the same kinds")
        self.short: bool = parser.parse_args(arguments).short
        self.title = title
        self.rows: dict[str, Row] = {}
        self.controls: dict[str, Row] = {}
        self.notes: list[str] = []
        self._began = time.monotonic()
        # A closed terminal or a block buffer must not hide how far a long proof has come.
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def row(self, kind: str) -> Row:
        """The counts of a kind of fault."""
        return self.rows.setdefault(kind, Row(kind, self._began))

    def control(self, change: str) -> Row:
        """The counts with a safeguard taken out: something must be lost here."""
        return self.controls.setdefault(change, Row(f"without {change}", self._began))

    def note(self, text: str) -> None:
        """Print a line under the table."""
        self.notes.append(text)

    def finish(self) -> int:
        """Print the table; 0 if faults were injected, none lost anything, and every control fired."""
        width = max(len(kind) for kind in (*self.rows, *self.controls, "taken out (control)")) + 2
        print(f"{self.title} ({'short' if self.short else 'full'} form)\n")
        print(f"{'fault':<{width}}{'injected':>9}{'survived':>9}{'lost':>6}")
        for kind, row in self.rows.items():
            print(
                f"{kind:<{width}}{row.injected:>9,}{row.injected - len(row.losses):>9,}{len(row.losses):>6}"
            )
        injected = sum(row.injected for row in self.rows.values())
        lost = sum(len(row.losses) for row in self.rows.values())
        print(f"{'all':<{width}}{injected:>9,}{injected - lost:>9,}{lost:>6}\n")
        print(f"{'taken out (control)':<{width}}{'injected':>9}{'noticed':>9}")
        for change, row in self.controls.items():
            verdict = "fired" if row.losses else "DID NOT FIRE"
            print(f"{change:<{width}}{row.injected:>9,}{len(row.losses):>9,}  {verdict}")
        for text in self.notes:
            print(f"note: {text}")
        for row in self.rows.values():
            for loss in row.losses[:SHOWN]:
                print(f"lost: {loss}")
        unused = [kind for kind, row in self.rows.items() if not row.injected]
        if unused:
            print(f"nothing was injected: {', '.join(unused)}")
        fired = bool(self.controls) and all(row.losses for row in self.controls.values())
        good = not lost and not unused and injected > 0 and fired
        print(f"{'PASS' if good else 'FAIL'} in {time.monotonic() - self._began:.0f} s")
        return 0 if good else 1


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder under the working place of the system, removed at the end; also the current one."""
    place, before = Path(tempfile.mkdtemp(prefix="tinylm-proof-")).resolve(), Path.cwd()
    os.chdir(place)
    try:
        yield place
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)


def fresh(place: Path, template: Path) -> Path:
    """`place` as a copy of `template`, whatever was there before."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place)
    return place


def contents(place: Path) -> dict[str, bytes]:
    """All files under a folder by their path in it."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }
