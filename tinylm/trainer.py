"""The loop. A run is a function of (config, corpus, seed): the same three give the same weights."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinylm import checkpoint, files, metrics
from tinylm.batches import Plan
from tinylm.config import ModelConfig, TrainConfig
from tinylm.contract import contract
from tinylm.corpus import Corpus
from tinylm.data import corpus_for
from tinylm.devices import (
    Machine,
    choose_machine,
    cpu_threads,
    matrix_rate,
    reproducible,
)
from tinylm.distributed.launch import going_on, launched
from tinylm.distributed.ranks import ALONE, Ranks, company, join
from tinylm.distributed.sharding import local, spread
from tinylm.errors import ConfigError
from tinylm.evaluate import Evaluation
from tinylm.interrupts import AgreedStop, StopRequest, stop_requests
from tinylm.locks import run_lock
from tinylm.milestones import Measures, evaluated, is_due, save, tell_best, way_back
from tinylm.model import Transformer, flops_per_token, parameter_count
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.plots import draw_curve
from tinylm.reports import Report
from tinylm.resumption import (
    check_changes,
    check_is_run,
    check_same_step,
    is_begun,
    patience_of,
    recall,
    same_as,
    same_corpus,
)
from tinylm.training_step import Run, agree_on_micro_rows, compiled, train_step
from tinylm.weights import first_weights, saved_weights


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: the signal that interrupted it, and the evaluation of all held-out text."""

    run: Path
    step: int
    steps: int
    signal: int | None
    evaluation: Evaluation | None

    @property
    def finished(self) -> bool:
        return self.step >= self.steps


def train(config: TrainConfig, report: Report | None = None) -> TrainResult:
    """Train a model into a new run folder. Raises ConfigError with all problems before anything is written.

    Interrupted by a signal (Ctrl-C, SIGTERM, SIGHUP) it finishes the step, saves, and returns with
    `signal` set. Where the disk or memory fails, TrainingError says from which step the run goes on.
    Under torchrun the ranks share each batch; rank 0 alone reports and writes. One that was started again
    after a failure goes on with the run that it began.
    """
    started = time.monotonic()
    config.check().check_ranks(launched().size)
    machine = choose_machine(config)
    if config.tensorboard:
        metrics.check_tensorboard()
    ranks = join(config.rank_timeout)
    report = (report or Report()) if ranks.leads else Report()
    with company(ranks, lambda: "the first step had not begun"):
        if config.out is not None and not ranks.restarted:
            ranks.first(lambda: check_free(Path(config.out or "")))
        model, fill = ranks.each(lambda: first_weights(config, machine.shard))
        corpus = shared_corpus(config.data, ranks, report)
        folder = Path(config.out or f"checkpoints/{corpus.path.name}-{config.preset}")
        config = dataclasses.replace(
            config, data=corpus.path.as_posix(), out=folder.as_posix(), model=model.config
        )
        if ranks.restarted and ranks.first(lambda: is_begun(folder, config)):
            report.note(f"torchrun started the ranks again: {folder} goes on from its newest checkpoint")
            with stop_requests(report.stopping) as request:
                return go_on(folder, report, ranks, request, False, {"stop_after": config.stop_after})
        ranks.first(lambda: check_free(folder))
        with (
            stop_requests(report.stopping) as request,
            cpu_threads(machine.threads),
            reproducible(machine),
        ):
            run = ranks.each(lambda: prepare(folder, config, machine, corpus, model, report, ranks))
            ranks.each(lambda: fill(run))
            agree_on_micro_rows(run)
            if config.steps is None:
                left = 60.0 * (config.minutes or 3.0) - (time.monotonic() - started)
                run = with_steps(run, steps_in(run, left))
            run = with_intervals(run)
            ranks.first(lambda: files.make_folder(folder))
            try:
                with locked(folder, report, ranks):
                    ranks.first(lambda: write_description(run))
                    return loop(run, 0, AgreedStop(request, ranks))
            except BaseException:
                if ranks.leads and folder.is_dir() and not checkpoint.list_steps(folder):
                    files.discard(folder)  # nothing that a resume could go on from
                raise


def resume(
    folder: str | Path, report: Report | None = None, *, steal_lock: bool = False, **changes: Any
) -> TrainResult:
    """Go on with a run from its newest verified step, as if it had never stopped.

    Refuses another corpus or contract, and `changes` of options that are not in config.RESUMABLE or
    INEXACT. Other versions, another number of ranks, and those in INEXACT, are noted and recorded.
    `steal_lock` takes over a run whose last trainer ran on another machine and is known to be gone.
    """
    folder = Path(folder)
    check_changes(folder, changes)
    check_is_run(folder)
    ranks = join(changes.get("rank_timeout") or patience_of(folder))
    report = (report or Report()) if ranks.leads else Report()
    with (
        stop_requests(report.stopping) as request,
        company(ranks, lambda: f"go on with: {going_on(folder.as_posix())}"),
    ):
        return go_on(folder, report, ranks, request, steal_lock, changes)


def go_on(
    folder: Path,
    report: Report,
    ranks: Ranks,
    request: StopRequest,
    steal_lock: bool,
    changes: Mapping[str, Any],
) -> TrainResult:
    """What `resume` does once the ranks have met."""

    def looked() -> None:
        for sentence in files.clean(folder):
            report.note(sentence)

    def loaded() -> Run:
        corpus = same_corpus(folder, recalled, verify=ranks.leads)
        model, fill = saved_weights(recalled)
        run = prepare(folder, recalled.config, recalled.machine, corpus, model, report, ranks)
        fill(run)
        run.deviations = recalled.deviations
        return run

    def tidied() -> None:
        metrics.cut(folder, recalled.step, recalled.recorded("metrics"), report.note)
        for damaged in checkpoint.set_aside_after(folder, recalled.step):
            report.note(f"kept the damaged step as {damaged}")
        if changes or run.deviations:
            write_description(run)

    with locked(folder, report, ranks, steal_lock):
        ranks.first(looked)
        recalled = ranks.each(lambda: recall(folder, changes, report.note))
        seen = ranks.exchange(recalled.step)
        ranks.each(lambda: check_same_step(folder, seen))
        with cpu_threads(recalled.machine.threads), reproducible(recalled.machine):
            run = ranks.each(loaded)
            ranks.first(tidied)
            return loop(run, recalled.step, AgreedStop(request, ranks), recalled.recorded("validation"))


@contextmanager
def locked(folder: Path, report: Report, ranks: Ranks, steal: bool = False) -> Iterator[None]:
    """Hold a run for one writer: rank 0 takes the lock for all."""
    with ExitStack() as held:
        ranks.first(lambda: held.enter_context(run_lock(folder, report.note, steal=steal)))
        yield


def shared_corpus(data: str, ranks: Ranks, report: Report) -> Corpus:
    """The corpus of a run: rank 0 builds it where DATA is a source, and reads it whole; all open the same."""
    if ranks.alone:
        return corpus_for(data, progress=report.read)
    corpus: list[Corpus] = []

    def found() -> dict[str, str]:
        corpus.append(corpus_for(data, progress=report.read))
        return {"path": corpus[0].path.as_posix(), "digest": corpus[0].digest}

    place = ranks.first(found)
    return ranks.each(lambda: corpus[0] if corpus else same_as(place["path"], place["digest"]))


def check_free(folder: Path) -> None:
    """Raise ConfigError if a new run cannot take this place."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"out is {folder}, which exists; choose another --out, or go on with it: tinylm train "
            f"--resume {folder}"
        )


def prepare(
    folder: Path,
    config: TrainConfig,
    machine: Machine,
    corpus: Corpus,
    model: Transformer,
    report: Report,
    ranks: Ranks = ALONE,
) -> Run:
    """Put the model on its device, or its share of a rank, and everything beside it.

    The rows that a rank holds of a model on the meta device get memory; their content is undefined.
    """
    if model.config.ngrams and (not ranks.alone or machine.device == "mps"):
        where = "on MPS" if ranks.alone else f"by {ranks.size} ranks"
        raise ConfigError(
            f"ngrams is {model.config.ngrams}, whose sparse gradients are not trained {where}; use "
            "--ngrams 0, or one process on a CPU or CUDA device"
        )
    model.to(machine.weight_dtype)
    if model.device.type != "meta":
        model.to(machine.device)
    policy, window = model.config.policy, model.config.window
    plan = Plan(corpus.train, policy, window, config.batch_rows, config.seed)
    if plan.padded_lengths[-1] < window:
        report.note(
            f"every row is shorter than the window of {window}: rows hold {plan.padded_lengths[-1]} tokens"
        )
    trained = None if ranks.alone else spread(model, model.model.layers, machine.device, ranks, machine.shard)
    return Run(
        folder=folder,
        config=config,
        machine=machine,
        corpus=corpus,
        plan=plan,
        model=model,
        optimizer=Optimizer(model, config, ranks),
        loss=compiled(machine, model),
        micro_rows=config.rows_per_pass(ranks.size),
        steps=config.steps or 0,
        report=report,
        ranks=ranks,
        trained=trained,
    )


def loop(run: Run, step: int, stop: AgreedStop, measured: Measures | None = None) -> TrainResult:
    """Train from `step` finished steps on; evaluate, save and draw on the way.

    `measured` is what the evaluation after `step` gave, None if there was none (or it was interrupted).
    """
    config, report, ranks, evaluation = run.config, run.report, run.ranks, None
    save_every = config.save_every or run.steps
    if ranks.leads:
        report.started(run_facts(run), step, run.steps)
    last = min(run.steps, config.stop_after or run.steps)
    saved = ranks.first(lambda: step if checkpoint.step_folder(run.folder, step).is_dir() else -1)
    logged = metrics.RunLog(run.folder, step, config.tensorboard) if ranks.leads else metrics.NoLog()
    with logged as log, way_back(run):
        if stop.look() is None and is_due(run, step) and measured is None:
            evaluation = evaluated(run, step, log, stop)
            if evaluation is not None and (step % save_every == 0 or step == run.steps):
                save(run, step, log, evaluation, replace=True)
        while step < last and stop.look() is None:
            began = time.monotonic()
            batch = run.plan.batch(step)
            scale = rate_scale(step, run.steps, config.warmup, config.decay)
            loss, norm = train_step(run, batch, step, scale)
            step += 1
            row = {"step": step, "loss": loss, "rate": scale, "targets": batch.targets, "bytes": batch.bytes}
            row["epoch"] = batch.epoch
            if norm is not None:
                row["gradient_norm"] = norm
            log.metric(row)
            seconds = time.monotonic() - began
            log.timing({"step": step, "seconds": round(seconds, 6)})
            report.stepped(row, seconds)
            evaluation = evaluated(run, step, log, stop) if is_due(run, step) else None
            if step % save_every == 0 and is_due(run, step) == (evaluation is not None):
                save(run, step, log, evaluation)
                saved = step
        if saved != step:
            save(run, step, log, evaluation)
    if ranks.leads:
        if report.curve:
            draw_curve(run.folder, report.note)
        tell_best(run)
    report.stopped(run.folder, step, run.steps)
    return TrainResult(run.folder, step, run.steps, stop.signal, evaluation if step == run.steps else None)


def steps_in(run: Run, seconds: float) -> int:
    """How many steps fit, measured on the model itself, whose weights are put back: the run has not begun.

    The time of evaluations is kept back: a forward pass costs about a third of a training pass. Ranks go by
    the clock of rank 0.
    """
    trial = dataclasses.replace(run, optimizer=Optimizer(run.model, run.config, run.ranks))
    kept = [local(parameter.detach()).clone() for parameter in run.model.parameters()]
    began = time.monotonic()
    train_step(trial, run.plan.batch(0), 0, 0.0)  # compiles, or warms up
    times: list[float] = []

    def enough() -> bool:
        many = len(times) >= 3 and (sum(times) >= 0.04 * seconds or len(times) >= 20)
        return many or (len(times) > 0 and time.monotonic() - began > seconds / 4)

    while not run.ranks.first(enough):
        started = time.monotonic()
        train_step(trial, run.plan.batch(len(times)), 0, 0.0)
        times.append(time.monotonic() - started)
    with torch.no_grad():
        for parameter, weights in zip(run.model.parameters(), kept, strict=True):
            local(parameter).copy_(weights)
    run.micro_rows = trial.micro_rows
    each = float(np.median(times))
    tokens = len(run.corpus.validation.stream)
    evaluated = (8 * min(run.config.evaluate_tokens, tokens) + tokens) / run.ranks.size
    per_token = each / (run.config.batch_rows / run.ranks.size * run.plan.padded_lengths[-1]) / 2
    left = seconds - evaluated * per_token - (time.monotonic() - began)
    return run.ranks.first(lambda: max(10, int(left / each)))


def with_steps(run: Run, steps: int) -> Run:
    """The run with the number of steps that was measured, recorded in its configuration."""
    config = dataclasses.replace(run.config, steps=steps, minutes=None)
    return dataclasses.replace(run, steps=steps, config=config)


def with_intervals(run: Run) -> Run:
    """The run with its intervals resolved: eight evaluations, a checkpoint at each."""
    every = run.config.evaluate_every or max(1, -(-run.steps // 8))
    config = dataclasses.replace(run.config, evaluate_every=every, save_every=run.config.save_every or every)
    return dataclasses.replace(run, config=config)


def run_facts(run: Run) -> dict[str, Any]:
    """What a run says before it starts."""
    shape: ModelConfig = run.model.config
    return {
        "corpus": run.corpus,
        "model": shape,
        "parameters": parameter_count(shape),
        "machine": run.machine,
        "matrix_rate": matrix_rate(run.machine),
        "flops_per_target": 3 * flops_per_token(shape, run.plan.padded_lengths[-1]),
        "batch_rows": run.config.batch_rows,
        "epoch_rows": run.plan.rows_of_epoch(0),
        "epoch_targets": len(run.corpus.train.stream) - 1,
        "padding": run.plan.padding,
        "folder": run.folder,
    }


def write_description(run: Run) -> None:
    """Write run.json."""
    files.write_atomic(run.folder / "run.json", files.readable_json(describe(run)))


def describe(run: Run) -> dict[str, Any]:
    """The content of run.json: for people, and for `--config`."""
    return {
        "format": files.FORMAT,
        "contract": contract(),
        "config": dataclasses.asdict(run.config),
        "machine": run.machine.to_dict(),
        "parameters": parameter_count(run.model.config),
        "corpus": run.corpus.digest,
        "deviations": list(run.deviations),
    }
