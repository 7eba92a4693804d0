"""The loop. A run is a function of (config, corpus, seed): the same three give the same weights."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinylm import checkpoint, files, metrics
from tinylm.batches import Plan
from tinylm.config import GenerateConfig, ModelConfig, TrainConfig
from tinylm.contract import contract
from tinylm.corpus import Corpus, open_corpus
from tinylm.data import corpus_for
from tinylm.devices import (
    Machine,
    choose_device,
    choose_machine,
    cpu_threads,
    matrix_rate,
    versions,
)
from tinylm.errors import CheckpointError, ConfigError
from tinylm.evaluate import Evaluation, evaluate
from tinylm.generate import generate
from tinylm.interrupts import StopRequest, stop_requests
from tinylm.model import Transformer, flops_per_token, parameter_count
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.plots import draw_curve
from tinylm.reports import Report
from tinylm.training_step import Run, compiled, train_step


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

    Interrupted by Ctrl-C or SIGTERM it finishes the step, saves, and returns with `signal` set.
    """
    started = time.monotonic()
    config.check()
    report = report or Report()
    machine = choose_machine(config)
    if config.tensorboard:
        metrics.check_tensorboard()
    if config.out is not None:
        check_free(Path(config.out))
    model = initial_model(config)
    corpus = corpus_for(config.data, progress=report.read)
    folder = Path(config.out or f"checkpoints/{corpus.path.name}-{config.preset}")
    check_free(folder)
    with stop_requests() as stop:
        seconds = None if config.steps is not None else 60.0 * (config.minutes or 3.0)
        config = dataclasses.replace(
            config, data=corpus.path.as_posix(), out=folder.as_posix(), model=model.config
        )
        with cpu_threads(machine.threads):
            run = prepare(folder, config, machine, corpus, model, report)
            if seconds is not None:
                left = seconds - (time.monotonic() - started)
                run = with_steps(run, steps_in(run, left))
            run = with_intervals(run)
            with files.named(folder):
                folder.mkdir(parents=True)
            try:
                with files.run_lock(folder, report.note):
                    files.write_atomic(folder / "run.json", files.readable_json(describe(run)))
                    return loop(run, 0, stop)
            except BaseException:
                if not checkpoint.list_steps(folder):  # nothing that a resume could go on from
                    shutil.rmtree(folder, ignore_errors=True)
                raise


def check_free(folder: Path) -> None:
    """Raise ConfigError if a new run cannot take this place."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"out is {folder}, which exists; choose another --out, or go on with it: tinylm train "
            f"--resume {folder}"
        )


def resume(folder: str | Path, report: Report | None = None, stop_after: int | None = None) -> TrainResult:
    """Go on with a run from its newest verified step, as if it had never stopped.

    Refuses another corpus, contract, device or precision than those recorded.
    """
    folder = Path(folder)
    report = report or Report()
    if not folder.is_dir() or not checkpoint.list_steps(folder):
        raise CheckpointError(
            f"{folder}: holds no step-00000000 or higher; expected a folder of tinylm train"
        )
    if stop_after is not None and stop_after < 1:
        raise ConfigError(f"stop_after is {stop_after}, expected at least 1")
    with stop_requests() as stop, files.run_lock(folder, report.note):
        found = checkpoint.newest_step(folder)
        assert found.manifest is not None
        for problem in found.skipped:
            report.note(f"skipped {problem}")
        for damaged in checkpoint.set_aside_after(folder, found.manifest["step"]):
            report.note(f"kept the damaged step as {damaged}")
        manifest, where = found.manifest, str(found.folder / checkpoint.MANIFEST)
        if "config" not in manifest:
            raise CheckpointError(
                f"{folder}: was imported, so it holds no configuration, corpus or optimizer to go on with; "
                f"train its weights on with: tinylm train DATA --init {folder}"
            )
        config = TrainConfig.from_dict(manifest["config"], where)
        machine = Machine.from_dict(manifest["machine"], where)
        choose_device(machine.device)
        changed = {k: v for k, v in versions().items() if manifest["versions"].get(k) != v}
        for name, value in changed.items():
            report.note(
                f"{name} was {manifest['versions'].get(name)}, is {value}: the run is no longer bit-equal"
            )
        corpus = open_corpus(config.data)
        if corpus.digest != manifest["corpus"]:
            raise ConfigError(
                f"{config.data}: is another corpus (digest {corpus.digest[:12]}) than the run's "
                f"({manifest['corpus'][:12]}); bring the old one back, or start a new run with --init "
                f"{folder}"
            )
        if stop_after is not None and stop_after <= manifest["step"]:
            raise ConfigError(
                f"stop_after is {stop_after}, and the run is at step {manifest['step']} already"
            )
        model = checkpoint.load_model(found.folder)
        with cpu_threads(machine.threads):
            run = prepare(folder, config, machine, corpus, model, report)
            run.optimizer.load_state(checkpoint.load_training(found.folder), str(found.folder))
            run.config = dataclasses.replace(config, stop_after=stop_after)
            metrics.cut_after(folder, manifest["step"])
            return loop(run, manifest["step"], stop)


def initial_model(config: TrainConfig) -> Transformer:
    """Random weights from the seed, or those of `init`, whose shape must be the configuration's."""
    if config.init is None:
        return Transformer(config.resolved_model(), config.seed)
    model = checkpoint.load_model(config.init)
    wanted = config.model if config.model is not None else model.config
    found, expected = dataclasses.asdict(model.config), dataclasses.asdict(wanted)
    free = ("window", "policy")
    differ = [
        f"{k} is {found[k]}, expected {expected[k]}"
        for k in found
        if k not in free and found[k] != expected[k]
    ]
    if differ:
        raise ConfigError(
            f"init {config.init}: has another shape ({'; '.join(differ)}); leave those flags out"
        )
    changed = Transformer(wanted, config.seed).to(next(model.parameters()).dtype)
    changed.load_state(dict(model.named_parameters()), config.init)
    return changed


def prepare(
    folder: Path, config: TrainConfig, machine: Machine, corpus: Corpus, model: Transformer, report: Report
) -> Run:
    """Put the model on its device and everything beside it."""
    model.to(device=machine.device, dtype=machine.weight_dtype)
    policy, window = model.config.policy, model.config.window
    plan = Plan(corpus.train, policy, window, config.batch_rows, config.seed)
    if plan.padded_lengths[-1] < window:
        report.note(
            f"the corpus is shorter than the window of {window}: rows hold {plan.padded_lengths[-1]} tokens"
        )
    return Run(
        folder=folder,
        config=config,
        machine=machine,
        corpus=corpus,
        plan=plan,
        model=model,
        optimizer=Optimizer(model, config),
        loss=compiled(machine),
        micro_rows=config.micro_rows or config.batch_rows,
        steps=config.steps or 0,
        report=report,
    )


def loop(run: Run, step: int, stop: StopRequest) -> TrainResult:
    """Train from `step` finished steps on; evaluate, save and draw on the way."""
    config, report, evaluation = run.config, run.report, None
    report.started(run_facts(run), step, run.steps)
    last = min(run.steps, config.stop_after or run.steps)
    saved = step if checkpoint.step_folder(run.folder, step).is_dir() else -1

    def keep() -> int:
        log.sync()
        save(run, step)
        report.saved(step, checkpoint.step_folder(run.folder, step))
        return step

    with metrics.RunLog(run.folder, config.tensorboard) as log:
        while step < last and stop.signal is None:
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
            if step % (config.evaluate_every or run.steps) == 0 or step == run.steps:
                evaluation = evaluate_run(run, whole=step == run.steps)
                log.metric({"step": step, "validation": metrics_of(evaluation)})
                report.evaluated(step, evaluation, sample(run) if config.sample_tokens else "")
            if step % (config.save_every or run.steps) == 0:
                saved = keep()
        if saved != step:
            saved = keep()
    draw_curve(run.folder, run.report.note)
    report.stopped(run.folder, step, run.steps)
    return TrainResult(run.folder, step, run.steps, stop.signal, evaluation if step == run.steps else None)


def steps_in(run: Run, seconds: float) -> int:
    """How many steps fit, measured on a copy of the model so that the run itself has not begun.

    The time of evaluations is kept back: a forward pass costs about a third of a training pass.
    """
    trial = dataclasses.replace(run, model=copy.deepcopy(run.model))
    trial.optimizer = Optimizer(trial.model, run.config)
    began = time.monotonic()
    train_step(trial, run.plan.batch(0), 0, 0.0)  # compiles, or warms up
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 0.04 * seconds and len(times) < 20):
        started = time.monotonic()
        train_step(trial, run.plan.batch(len(times)), 0, 0.0)
        times.append(time.monotonic() - started)
        if time.monotonic() - began > seconds / 4:
            break
    run.micro_rows = trial.micro_rows
    each = float(np.median(times))
    tokens = len(run.corpus.validation.stream)
    evaluated = 8 * min(run.config.evaluate_tokens, tokens) + tokens
    per_token = each / (run.config.batch_rows * run.plan.padded_lengths[-1]) / 2
    return max(10, int((seconds - evaluated * per_token - (time.monotonic() - began)) / each))


def with_steps(run: Run, steps: int) -> Run:
    """The run with the number of steps that was measured, recorded in its configuration."""
    config = dataclasses.replace(run.config, steps=steps, minutes=None)
    return dataclasses.replace(run, steps=steps, config=config)


def with_intervals(run: Run) -> Run:
    """The run with its intervals resolved: eight evaluations, a checkpoint at each."""
    every = run.config.evaluate_every or max(1, -(-run.steps // 8))
    config = dataclasses.replace(run.config, evaluate_every=every, save_every=run.config.save_every or every)
    return dataclasses.replace(run, config=config)


def evaluate_run(run: Run, whole: bool) -> Evaluation:
    """Bits per byte of the held-out text: all of it at the end of a run, the same part of it on the way."""
    limit = None if whole else run.config.evaluate_tokens
    with run.machine.autocast():
        return evaluate(run.model, run.corpus.validation, limit=limit)


def metrics_of(evaluation: Evaluation) -> dict[str, Any]:
    """The part of an evaluation that a metrics row keeps."""
    measures = ("bits_per_byte", "bits_per_byte_without_boundaries", "bits_per_boundary")
    values = evaluation.to_dict()
    return {key: values[key] for key in (*measures, "bytes", "boundaries", "protocol")}


def sample(run: Run) -> str:
    """A sample from the boundary, always with the same draws."""
    options = GenerateConfig(max_tokens=run.config.sample_tokens, seed=run.config.seed)
    with run.machine.autocast():
        return "".join(event.text for event in generate(run.model, "", options))


def save(run: Run, step: int) -> None:
    """Write the checkpoint of a step, verify it, then remove what is older than `keep` allows."""
    manifest = {
        "config": dataclasses.asdict(dataclasses.replace(run.config, micro_rows=run.micro_rows)),
        "machine": run.machine.to_dict(),
        "corpus": run.corpus.digest,
        "versions": versions(),
    }
    checkpoint.verify_step(checkpoint.save_step(run.folder, step, run.model, run.optimizer.state(), manifest))
    checkpoint.prune(run.folder, run.config.keep)


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
        "targets_per_step": run.config.batch_rows * run.plan.padded_lengths[-1],
        "batch_rows": run.config.batch_rows,
        "epoch_targets": len(run.corpus.train.stream) - 1,
        "folder": run.folder,
    }


def describe(run: Run) -> dict[str, Any]:
    """The content of run.json: for people, and for `--config`."""
    return {
        "format": files.FORMAT,
        "contract": contract(),
        "config": dataclasses.asdict(run.config),
        "machine": run.machine.to_dict(),
        "parameters": parameter_count(run.model.config),
        "corpus": run.corpus.digest,
    }
