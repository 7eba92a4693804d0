"""An audit as people read it: a count while it goes on, tables, averages and the verdict. Uses rich."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tinylm.interrupts import LastingStream
from tinylm.serve.audit.run import Audit, Run

NAME = 40
"""Characters of a case's name that a table shows."""

WIDTH = 120
"""Columns of a table at most; most need fewer than 100."""

GROUPS = {
    "forced": "forced by a grammar",
    "free": "free",
    "constrained": "constrained (grammar without emoji)",
    "chain": "chain (received ids fed back)",
}


class Showing:
    """Counts the runs on a terminal's standard error while they go on; silent elsewhere."""

    def __init__(self) -> None:
        stream: Any = LastingStream(sys.stderr)
        self.console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self.status = self.console.status("asking")
        self.done = 0

    def __enter__(self) -> Showing:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.status.stop()

    def __call__(self, run: Run) -> None:
        self.done += 1
        self.status.update(Text(f"{self.done} runs, {printable(run.name)}"))


def show(audit: Audit) -> None:
    """Print the whole report on standard output."""
    stream: Any = LastingStream(sys.stdout)
    console = Console(file=stream, width=WIDTH, markup=False, highlight=False, emoji=False, soft_wrap=True)
    facts = ", ".join(f"{name} {printable(str(value))}" for name, value in audit.facts.items())
    console.print(f"server      {audit.url}: {facts}")
    for note in audit.notes:
        console.print(f"note        {printable(note)}")
    for group in dict.fromkeys(run.group for run in audit.runs):
        console.print(table(GROUPS[group], [run for run in audit.runs if run.group == group]))
    console.print(averages_table(audit))
    for kind in ("hazard", "broken"):
        for line in summary(audit, broken=kind == "broken"):
            console.print(f"{kind}      {line}")
    console.print(verdict(audit))


def table(title: str, runs: list[Run]) -> Table:
    """One group: the limit asked for, what timings count, what the stream and the whole answer brought."""
    made = plain(title)
    for name in ("case", "limit", "timings", "stream", "whole", "text", "end", "broken"):
        made.add_column(name, justify="right" if name in ("limit", "timings", "stream", "whole") else "left")
    for run in runs:
        made.add_row(short(printable(run.name)), str(run.body["n_predict"]), *cells(run))
    return made


def plain(title: str) -> Table:
    """A table without lines, so that it fits a terminal and can be searched."""
    return Table(title=f"\n{title}", title_justify="left", box=None, padding=(0, 2, 0, 0), title_style="bold")


def cells(run: Run) -> list[str]:
    stream, whole = run.stream, run.whole
    if run.refused is not None:
        return ["", "", "", "", "", "refused"]
    if stream is None:
        return ["", "", "", "", "", "no answer"]
    text = "" if whole is None else "equal" if stream.text == whole.text else "differs"
    return [
        number(stream.timed),
        f"{len(stream.ids)} of {number(run.sampled)}",
        "" if whole is None else str(len(whole.ids)),
        text,
        stream.stop_type or "none came",
        " ".join(sorted({finding.invariant for finding in run.broken}, key=in_order)) or "-",
    ]


def averages_table(audit: Audit) -> Table:
    made = plain("averages, over the runs whose counts agree")
    for name in ("group", "runs", "counted", "ids per run", "ids per character", "ids/s", "ms to first id"):
        made.add_column(name, justify="left" if name == "group" else "right")
    for group, row in audit.averages().items():
        names = ("ids_per_run", "ids_per_character", "ids_per_second", "first_id_ms")
        numbers = ["" if row[name] is None else f"{row[name]:,.2f}" for name in names]
        made.add_row(group, str(row["runs"]), str(row["counted"]), *numbers)
    return made


def summary(audit: Audit, broken: bool) -> list[str]:
    """A line for each invariant not kept (hazards: for each thing seen), with the first example."""
    found: dict[str, list[tuple[Run, str]]] = {}
    for run in audit.runs:
        for finding in run.findings:
            if finding.broken == broken:
                text = printable(finding.text)
                key = finding.invariant if broken else text.removeprefix("without stream: ")
                found.setdefault(key, []).append((run, f"{finding.invariant} {text}"))
    lines = []
    for key in sorted(found, key=in_order) if broken else found:
        run, text = found[key][0]
        runs = counted(len({id(run) for run, _ in found[key]}), "run")
        lines.append(
            f"{text}, in {printable(run.name)} ({runs} with {key})" if broken else f"{text} ({runs})"
        )
    return lines


def in_order(invariant: str) -> int:
    return int(invariant[1:])


def verdict(audit: Audit) -> str:
    refused = sum(run.refused is not None for run in audit.runs)
    asked = counted(len(audit.runs) - refused, "run")
    if refused:
        asked += f" ({refused} refused by the server and not judged)"
    if not audit.broken:
        return f"verdict     exact: {asked}; a client can rebuild everything that was sampled"
    sampled = sum(run.sampled or 0 for run in audit.runs)
    lost = f"{audit.lost:,} of {sampled:,} ids lost" if audit.lost else "no id lost"
    return f"verdict     NOT exact: {len(audit.broken)} of {asked} broken; {lost} in streams"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number(value: int | None) -> str:
    return "?" if value is None else str(value)


def short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 3]}..."


def printable(text: str) -> str:
    """Text on one line whatever it holds: what is not printable stands as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
