"""What a run does at its milestones: evaluate, sample, save, and say from where it goes on if that fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from tinylm import checkpoint, files, metrics
from tinylm.config import GenerateConfig
from tinylm.devices import is_out_of_memory, versions
from tinylm.distributed.launch import going_on
from tinylm.distributed.ranks import company
from tinylm.distributed.sharding import Together, make_whole, one_by_one
from tinylm.errors import TrainingError
from tinylm.evaluate import Evaluation, evaluate
from tinylm.generate import generate
from tinylm.interrupts import AgreedStop
from tinylm.model import Transformer
from tinylm.training_step import Run

Measures = dict[str, Any]
"""Of an evaluation, what a manifest keeps: bits_per_byte and protocol."""


def is_due(run: Run, step: int) -> bool:
    """Whether the held-out text is read after a step."""
    return step > 0 and (step % (run.config.evaluate_every or run.steps) == 0 or step == run.steps)


class Interrupted(Exception):
    """A signal came while the held-out text was read."""


def evaluated(run: Run, step: int, log: metrics.RunLog, stop: AgreedStop) -> Evaluation | None:
    """Read the held-out text after a step, log and report it; None if a signal came in the middle of it.

    A resume reads it again, so nothing is lost. Ranks share the rows.
    """

    def look_up(done: int, total: int) -> None:
        if stop.look() is not None and done < total:
            raise Interrupted

    try:
        evaluation = evaluate_run(run, step == run.steps, look_up)
    except Interrupted:
        return None
    log.metric({"step": step, "validation": metrics_of(evaluation)})
    shown = sample(run, stop) if run.config.sample_tokens else ""
    run.report.evaluated(step, evaluation, shown)
    return evaluation


def evaluate_run(run: Run, whole: bool, progress: Callable[[int, int], None] | None = None) -> Evaluation:
    """Bits per byte of the held-out text: all of it at the end of a run, the same part of it on the way."""
    limit = None if whole else run.config.evaluate_tokens
    with run.machine.autocast():
        return evaluate(reader(run), run.corpus.validation, limit=limit, progress=progress, ranks=run.ranks)


def reader(run: Run) -> Transformer:
    """The model, for reading: where it is cut over ranks, all of them have to read the same way."""
    return cast(Transformer, Together(run.model, run.ranks)) if run.machine.shard else run.model


def metrics_of(evaluation: Evaluation) -> dict[str, Any]:
    """The part of an evaluation that a metrics row keeps."""
    measures = ("bits_per_byte", "bits_per_byte_without_boundaries", "bits_per_boundary")
    values = evaluation.to_dict()
    return {key: values[key] for key in (*measures, "bytes", "boundaries", "protocol")}


def sample(run: Run, stop: AgreedStop) -> str:
    """A sample from the boundary, always with the same draws; a signal ends it early.

    Rank 0 writes it, and the others wait, unless they are needed for it.
    """
    return sampled(run, stop) if run.machine.shard else run.ranks.first(lambda: sampled(run, stop))


def sampled(run: Run, stop: AgreedStop) -> str:
    options = GenerateConfig(max_tokens=run.config.sample_tokens, seed=run.config.seed)
    text = []
    with run.machine.autocast():
        for event in generate(reader(run), "", options):
            text.append(event.text)
            if (stop.look() if run.machine.shard else stop.signal) is not None:
                break
    return "".join(text)


def save(
    run: Run, step: int, log: metrics.RunLog, evaluation: Evaluation | None, *, replace: bool = False
) -> None:
    """Write the checkpoint of a step, verify it, then remove what is older than `keep` allows.

    Rank 0 writes, and of what is cut over ranks no rank holds more than one whole tensor at a time; the
    others are there when it renames, or it does not.
    """
    log.sync()
    measured = None
    if evaluation is not None:
        measured = {"bits_per_byte": evaluation.bits_per_byte, "protocol": evaluation.protocol}
    manifest = {
        "config": dataclasses.asdict(dataclasses.replace(run.config, micro_rows=run.micro_rows)),
        "machine": run.machine.to_dict(),
        "corpus": run.corpus.digest,
        "versions": versions(run.machine.device),
        "metrics": log.written(),
        "validation": measured,
        "deviations": list(run.deviations),
    }
    state = run.optimizer.state()
    order = checkpoint.save_order(run.model, state)

    def write(agree: Callable[[], None]) -> None:
        with one_by_one(order, run.ranks) as whole:
            folder = checkpoint.save_step(
                run.folder, step, run.model, state, manifest, replace=replace, whole=whole, agree=agree
            )
        checkpoint.verify_step(folder)
        checkpoint.prune(run.folder, run.config.keep)
        run.report.saved(step, folder)

    if not run.ranks.leads:
        make_whole(order, run.ranks)
    run.ranks.commit(write)


def tell_best(run: Run) -> None:
    """Say so where held-out text was predicted better at an earlier step than at the last comparable one."""
    rows = [
        row for row in metrics.read_metrics(run.folder) if "validation" in row and row["step"] < run.steps
    ]
    if rows and (best := min(rows, key=lambda row: row["validation"]["bits_per_byte"])) is not rows[-1]:
        there = checkpoint.step_folder(run.folder, best["step"])
        run.report.note(
            f"the best step by held-out text is {best['step']} "
            f"({best['validation']['bits_per_byte']:.3f} bits per byte; step {rows[-1]['step']}: "
            f"{rows[-1]['validation']['bits_per_byte']:.3f})" + (f": {there}" if there.is_dir() else "")
        )


@contextmanager
def way_back(run: Run) -> Iterator[None]:
    """Where disk or memory fail, say what happened and from which step the run goes on.

    Nothing is saved on the way out: weights may be in the middle of a step.
    """
    try:
        with company(run.ranks, lambda: whole_steps(run)):
            yield
    except OSError as error:
        if error.errno is None:
            raise
        raise TrainingError(f"{who(run)}{files.told(error)}; {whole_steps(run)}") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fewer = "" if run.ranks.alone or run.micro_rows == 1 else f"use --micro-rows {run.micro_rows // 2}, "
        raise TrainingError(
            f"{who(run)}memory ran out on {run.machine.device}; {fewer}close other programs, or start a run "
            f"with a smaller --window or preset; {whole_steps(run)}"
        ) from error


def who(run: Run) -> str:
    """Which rank speaks, where there are several and it is not the first."""
    return "" if run.ranks.leads else f"rank {run.ranks.rank}: "


def whole_steps(run: Run) -> str:
    """From where a run that failed goes on."""
    steps = checkpoint.list_steps(run.folder) if run.folder.is_dir() else []
    if not steps:
        return "no checkpoint had been saved yet"
    return f"step {steps[0][0]} is saved; go on with: {going_on(run.folder.as_posix())}"
