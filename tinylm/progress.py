"""What a run looks like in a terminal: facts, a progress line, evaluations with a sample. Uses rich."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from tinylm.baselines import Baseline
from tinylm.coder import CodedFile
from tinylm.distributed.launch import going_on
from tinylm.evaluate import Comparison, Difference, Evaluation
from tinylm.interrupts import LastingStream
from tinylm.reports import Report


def console(stderr: bool = True) -> Console:
    """A console that outlives its reader, never breaks lines of text in a word, nor guesses markup."""
    stream: Any = LastingStream(sys.stderr if stderr else sys.stdout)
    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=True)


class TerminalReport(Report):
    """Shows a training run on standard error; `showing` is left when the run has stopped."""

    def __init__(self) -> None:
        self.console = console()
        self.progress = Progress(
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=8),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task: TaskID | None = None
        self.facts: Mapping[str, Any] = {}
        self.speed = 0.0
        self.building: BuildProgress | None = None

    def read(self, documents: int, read: int) -> None:
        if self.building is None:
            self.building = BuildProgress().__enter__()
        self.building(documents, read)

    def note(self, text: str) -> None:
        self.console.print(f"note        {text}")

    def started(self, facts: Mapping[str, Any], step: int, steps: int) -> None:
        self.stop_building()
        self.facts = facts
        model, machine, corpus = facts["model"], facts["machine"], facts["corpus"]
        say = self.console.print
        say(
            f"corpus      {corpus.path.as_posix()}: {corpus.train.documents:,} documents, "
            f"{corpus.train.bytes:,} bytes "
            f"to train on; {corpus.validation.bytes:,} bytes held out"
        )
        say(
            f"model       {model.layers} layers x {model.width}, window {model.window}, policy "
            f"{model.policy}: "
            f"{facts['parameters']:,} parameters"
        )
        rate = "n/a" if facts["matrix_rate"] is None else f"{facts['matrix_rate'] / 1e9:,.0f} GFLOP/s"
        say(
            f"machine     {machine.device}, {machine.precision}, {machine.threads} threads, "
            f"{'compiled' if machine.compile else 'eager'}; matrix products {rate}"
        )
        epochs = steps * facts["batch_rows"] / facts["epoch_rows"]
        say(
            f"run         {facts['folder'].as_posix()}: {steps:,} steps of {facts['batch_rows']} rows, "
            f"{epochs * facts['epoch_targets']:,.0f} tokens, {epochs:.2f} times the corpus, padding "
            f"{facts['padding']:.2%}"
        )
        self.progress.start()
        self.task = self.progress.add_task("training", total=steps, completed=step, facts="")

    def stepped(self, row: Mapping[str, Any], seconds: float) -> None:
        speed = row["bytes"] / seconds
        self.speed = speed if not self.speed else 0.9 * self.speed + 0.1 * speed
        share = "n/a"
        if self.facts["matrix_rate"]:
            share = f"{self.speed * self.facts['flops_per_target'] / self.facts['matrix_rate']:.0%}"
        bits = row["loss"] / math.log(2)
        facts = f"loss {bits:.3f} bits {self.speed:,.0f} bytes/s {share} matmul"
        if self.task is not None:
            self.progress.update(self.task, completed=row["step"], facts=facts)

    def evaluated(self, step: int, evaluation: Evaluation, sample: str) -> None:
        line = f"step {step:<6} held out {evaluation.bits_per_byte:.3f} bits per byte ({evaluation.protocol})"
        self.console.print(f"{line}  {self.speed:,.0f} bytes/s")
        if sample:
            self.console.print(Text(f"            {visible(sample)}", style="dim"))

    def stopping(self, signal_number: int) -> None:
        name = signal.Signals(signal_number).name
        self.console.print(f"stopping    after this step ({name}); Ctrl-C once more leaves at once")

    def stopped(self, folder: Path, step: int, steps: int) -> None:
        self.progress.stop()
        if step < steps:
            self.console.print(
                f"stopped     after step {step:,} of {steps:,}; go on with: {going_on(folder.as_posix())}"
            )
        else:
            self.console.print(f"done        {folder.as_posix()}, curve in {folder.as_posix()}/curve.svg")

    def stop_building(self) -> None:
        """The corpus is there, or will never be."""
        if self.building is not None:
            self.building.__exit__()
            self.building = None

    def __enter__(self) -> TerminalReport:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop_building()
        self.progress.stop()


class BuildProgress:
    """Shows the building of a corpus: bytes read so far, and their speed."""

    def __init__(self) -> None:
        self.console = console()
        self.progress = Progress(
            TextColumn("reading"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("reading", total=None, facts="")

    def __call__(self, documents: int, read: int) -> None:
        """Called by the builder now and then with its counts so far."""
        elapsed = self.progress.tasks[0].elapsed or 0.0
        speed = f"{read / elapsed / 1e6:,.0f} MB/s" if elapsed > 0.2 else ""
        self.progress.update(self.task, facts=f"{documents:,} documents  {read:,} bytes  {speed}")

    def __enter__(self) -> BuildProgress:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


class CountProgress:
    """Shows how much of something long is done, with its speed and the time left.

    `unit` is what is counted, in the plural. Called with what is done and with the total.
    """

    def __init__(self, label: str, unit: str) -> None:
        self.console, self.unit = console(), unit
        self.progress = Progress(
            TextColumn(label),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[facts]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task(label, total=None, facts="")

    def __call__(self, done: int, total: int) -> None:
        elapsed = self.progress.tasks[0].elapsed or 0.0
        facts = f"{done / elapsed:,.0f} {self.unit}/s" if elapsed > 0.2 else ""
        self.progress.update(self.task, completed=done, total=total, facts=facts)

    def __enter__(self) -> CountProgress:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()


def visible(text: str) -> str:
    """Text on one line: line ends and control characters as escapes, everything else as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def evaluation_table(evaluation: Evaluation) -> Table:
    """The three numbers of an evaluation with their standard error, and what they are numbers of."""
    table = Table(
        title=f"{evaluation.split}: {evaluation.bytes:,} bytes, {evaluation.boundaries:,} document ends"
    )
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, value in measures(evaluation):
        table.add_row(name, value)
    table.add_row("standard error", error_words(evaluation.standard_error))
    table.caption = (
        f"{protocol_words(evaluation)}, {evaluation.precision} on {evaluation.device}, "
        f"standard error over {cluster_words(evaluation)}, split {evaluation.split_digest[:12]}"
    )
    return table


def comparison_tables(compared: Comparison, names: tuple[str, str]) -> list[Table]:
    """Two models on the same targets: their numbers, then the paired difference and what follows from it."""
    ours, other, found = compared.model, compared.against, compared.difference
    both = Table(title=f"{ours.split}: {ours.bytes:,} bytes, {ours.boundaries:,} document ends")
    for name in ("measure", "this model", "against"):
        both.add_column(name, justify="left" if name == "measure" else "right")
    for (name, value), (_, its) in zip(measures(ours), measures(other), strict=True):
        both.add_row(name, value, its)
    both.add_row("standard error", error_words(ours.standard_error), error_words(other.standard_error))
    both.caption = (
        f"this model: {names[0]}, {protocol_words(ours)}\nagainst: {names[1]}, {protocol_words(other)}\n"
        f"{ours.precision} and {other.precision} on {ours.device}, split {ours.split_digest[:12]}"
    )
    table = Table(title="this model minus the other")
    table.add_column("measure")
    table.add_column("bits per byte", justify="right")
    table.add_row("difference", f"{found.difference:+.4f}")
    table.add_row("standard error", error_words(found.standard_error))
    if found.interval is not None:
        table.add_row("95 % interval", f"{found.interval[0]:+.4f} to {found.interval[1]:+.4f}")
    if found.z is not None:
        table.add_row("difference / error", f"{found.z:+.1f}")
    table.caption = f"paired over {cluster_words(found)}: {verdict(found)}"
    return [both, table]


def coding_table(evaluation: Evaluation, coded: CodedFile) -> Table:
    """Bits that were reported, and the bytes that the coder really needed for them."""
    reported = evaluation.bits_per_byte * evaluation.bytes
    table = Table(
        title=f"{evaluation.split}: {evaluation.bytes:,} bytes, {evaluation.boundaries:,} document ends"
    )
    for name in ("measure", "bits", "bytes", "bits per byte"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    for name, bits in (
        ("reported by evaluate", reported),
        ("-log2 p along the coder's path", coded.bits),
        ("the code in the file", 8.0 * coded.payload_bytes),
        ("the file, its header too", 8.0 * coded.file_bytes),
    ):
        table.add_row(name, f"{bits:,.1f}", f"{bits / 8:,.1f}", f"{bits / evaluation.bytes:.4f}")
    table.caption = (
        f"{coded.path}: the code takes {coded.payload_bytes - reported / 8:+,.1f} bytes more than reported\n"
        f"{protocol_words(evaluation)}, {evaluation.precision} on {evaluation.device}, "
        f"split {evaluation.split_digest[:12]}"
    )
    return table


def verdict(found: Difference) -> str:
    """What a paired difference allows to say."""
    if found.interval is None:
        return "too few to tell the models apart"
    if found.better is None:
        return "not distinguishable on this text: the 95 % interval holds 0"
    better = {"model": "this model", "against": "the other model"}[found.better]
    return f"{better} is better, by {abs(found.difference):.4f} bits per byte"


def measures(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The three numbers, with their names."""
    boundary = evaluation.bits_per_boundary
    return [
        ("bits per byte", f"{evaluation.bits_per_byte:.4f}"),
        ("  without boundaries", f"{evaluation.bits_per_byte_without_boundaries:.4f}"),
        ("bits per boundary", "n/a" if boundary is None else f"{boundary:.2f}"),
    ]


def protocol_words(evaluation: Evaluation) -> str:
    """Protocol, window, stride and policy of an evaluation."""
    stride = f", stride {evaluation.stride}" if evaluation.stride != evaluation.window else ""
    return f"{evaluation.protocol}, window {evaluation.window}{stride}, policy {evaluation.policy}"


def cluster_words(found: Evaluation | Difference) -> str:
    """Over how many documents or blocks a standard error is."""
    kind = found.clusters if found.cluster_count != 1 else found.clusters.replace("s", "", 1)
    return f"{found.cluster_count:,} {kind}"


def error_words(error: float | None) -> str:
    """A standard error, or that there is none."""
    return "n/a" if error is None else f"{error:.4f}"


def ladder_table(baselines: Sequence[Baseline], model: Evaluation | None) -> Table:
    """Bits per byte of counting and of compressors, with the model in its place among them."""
    rows = [(baseline.name, baseline.bits_per_byte, False) for baseline in baselines]
    if model is not None:
        rows.append(("this model", model.bits_per_byte, True))
    table = Table(title="bits per byte on the same held-out text")
    table.add_column("method")
    table.add_column("bits per byte", justify="right")
    for name, bits, ours in sorted(rows, key=lambda row: -row[1]):
        table.add_row(name, f"{bits:.3f}", style="bold" if ours else "")
    return table
