"""The loop. A run is a function of (config, corpus, seed): the same three give the same weights."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm import checkpoint, files, metrics
from tinylm.batches import IGNORED, Batch, Plan
from tinylm.config import GenerateConfig, ModelConfig, TrainConfig
from tinylm.contract import VOCABULARY_SIZE, contract
from tinylm.corpus import Corpus, open_corpus
from tinylm.data import corpus_for
from tinylm.devices import (
    Machine,
    choose_device,
    choose_machine,
    cpu_threads,
    is_out_of_memory,
    matrix_rate,
    versions,
)
from tinylm.errors import CheckpointError, ConfigError, TrainingError
from tinylm.evaluate import Evaluation, evaluate
from tinylm.generate import generate
from tinylm.interrupts import StopRequest, stop_requests
from tinylm.model import Transformer, flops_per_token, parameter_count
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.plots import draw_curve
from tinylm.reports import Report

LossFunction = Callable[[nn.Module, Tensor, Tensor, Tensor, float], Tensor]


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


@dataclass
class Run:
    """Everything that a step needs, and nothing else."""

    folder: Path
    config: TrainConfig
    machine: Machine
    corpus: Corpus
    plan: Plan
    model: Transformer
    optimizer: Optimizer
    loss: LossFunction
    micro_rows: int
    steps: int
    report: Report


def train(config: TrainConfig, report: Report | None = None) -> TrainResult:
    """Train a model into a new run folder. Raises ConfigError with all problems before anything is written.

    Interrupted by Ctrl-C or SIGTERM it finishes the step, saves, and returns with `signal` set.
    """
    started = time.monotonic()
    config.check()
    report = report or Report()
    with stop_requests() as stop:
        corpus = corpus_for(config.data)
        model = initial_model(config)
        folder = Path(config.out or f"checkpoints/{corpus.path.name}-{config.preset}")
        if folder.exists():
            raise ConfigError(
                f"out is {folder}, which exists; choose another --out, or go on with it: tinylm train "
                f"--resume {folder}"
            )
        seconds = None if config.steps is not None else 60.0 * (config.minutes or 3.0)
        machine = choose_machine(config)
        config = dataclasses.replace(
            config, data=corpus.path.as_posix(), out=folder.as_posix(), model=model.config
        )
        with cpu_threads(machine.threads):
            run = prepare(folder, config, machine, corpus, model, report)
            if seconds is not None:
                left = seconds - (time.monotonic() - started)
                run = with_steps(run, steps_in(run, left))
            run = with_intervals(run)
            folder.mkdir(parents=True)
            with files.run_lock(folder, report.note):
                files.write_atomic(folder / "run.json", files.readable_json(describe(run)))
                return loop(run, 0, stop)


def resume(folder: str | Path, report: Report | None = None, stop_after: int | None = None) -> TrainResult:
    """Go on with a run from its newest verified step, as if it had never stopped.

    Refuses another corpus, contract, device or precision than those recorded.
    """
    folder = Path(folder)
    report = report or Report()
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is not a run folder; expected one that tinylm train made")
    with stop_requests() as stop, files.run_lock(folder, report.note):
        found = checkpoint.newest_step(folder)
        assert found.manifest is not None
        for problem in found.skipped:
            report.note(f"skipped {problem}")
        for damaged in checkpoint.set_aside_after(folder, found.manifest["step"]):
            report.note(f"kept the damaged step as {damaged}")
        manifest, where = found.manifest, str(found.folder / checkpoint.MANIFEST)
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
            over = step == last or stop.signal is not None
            if step % (config.evaluate_every or run.steps) == 0 or step == run.steps:
                evaluation = evaluate_run(run, whole=step == run.steps)
                log.metric({"step": step, "validation": metrics_of(evaluation)})
                report.evaluated(step, evaluation, sample(run) if config.sample_tokens else "")
            if step % (config.save_every or run.steps) == 0 or over:
                log.sync()
                save(run, step)
                report.saved(step, checkpoint.step_folder(run.folder, step))
    draw_curve(run.folder, run.report.note)
    report.stopped(run.folder, step, run.steps)
    return TrainResult(run.folder, step, run.steps, stop.signal, evaluation if step == run.steps else None)


def train_step(run: Run, batch: Batch, step: int, scale: float) -> tuple[float, float | None]:
    """One optimizer step; returns the mean loss in nats per target and, if clipped, the gradients' norm.

    Micro-batches are halved when memory runs out; the batch of the step stays the same. A loss that is
    not finite raises TrainingError before any weight changes.
    """
    while True:
        try:
            loss = accumulate(run, batch, step)
            break
        except (RuntimeError, MemoryError) as error:
            run.optimizer.zero_grad()
            if not is_out_of_memory(error):
                raise
            halve_micro_rows(run, batch)
    if not math.isfinite(loss):
        run.optimizer.zero_grad()
        raise TrainingError(
            f"step {step + 1}: the loss is {loss}; no weight was changed by it. "
            f"Try lower rates (--muon-rate {run.config.muon_rate / 2:g} --adam-rate "
            f"{run.config.adam_rate / 2:g}), "
            "--clip 1, or --precision float32; the last checkpoint is good"
        )
    norm = None
    if run.config.clip is not None:
        norm = float(nn.utils.clip_grad_norm_(run.optimizer.parameters(), run.config.clip))
    run.optimizer.step(scale)
    run.optimizer.zero_grad()
    return loss, norm


def accumulate(run: Run, batch: Batch, step: int) -> float:
    """Forward and backward over the micro-batches: gradients of the mean loss over the step's targets."""
    device = run.machine.device
    total = torch.tensor(batch.targets, dtype=run.machine.weight_dtype, device=device)
    losses = []
    for index, (inputs_BT, targets_BT) in enumerate(batch.micro_batches(run.micro_rows)):
        inputs = torch.from_numpy(inputs_BT).to(device, non_blocking=True)
        targets = torch.from_numpy(targets_BT).to(device, non_blocking=True)
        with torch.random.fork_rng(enabled=run.config.dropout > 0):
            if run.config.dropout:
                torch.manual_seed(dropout_seed(run.config.seed, step, index * run.micro_rows))
            with run.machine.autocast():
                loss = run.loss(run.model, inputs, targets, total, run.config.dropout)
            loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    return float(torch.stack(losses).sum(dtype=torch.float64).item())


def mean_loss(
    model: nn.Module, inputs_BT: Tensor, targets_BT: Tensor, total: Tensor, dropout: float
) -> Tensor:
    """Cross-entropy in nats, summed over the scored targets and divided by `total`, the step's targets."""
    logits_BTV = model(inputs_BT, None, dropout)
    logits = logits_BTV.reshape(-1, VOCABULARY_SIZE)
    logits = logits.float() if logits.dtype != torch.float64 else logits
    return F.cross_entropy(logits, targets_BT.reshape(-1), ignore_index=IGNORED, reduction="sum") / total


def compiled(machine: Machine) -> LossFunction:
    """The loss of a micro-batch, compiled with static shapes where the machine's record says so."""
    return torch.compile(mean_loss, dynamic=False) if machine.compile else mean_loss


def halve_micro_rows(run: Run, batch: Batch) -> None:
    """Fewer rows per forward pass, the same rows per step."""
    if run.machine.device == "cuda":
        torch.cuda.empty_cache()
    if run.micro_rows == 1:
        raise TrainingError(
            f"no memory for one row of {batch.inputs_BT.shape[1]} tokens on {run.machine.device}; "
            "use a smaller --window or a smaller preset"
        )
    rows = run.micro_rows // 2
    while run.config.batch_rows % rows:
        rows -= 1
    run.micro_rows = rows
    run.report.note(f"memory ran out: {rows} rows per forward pass, still {run.config.batch_rows} per step")


def dropout_seed(seed: int, step: int, row: int) -> int:
    """A seed per micro-batch, from (seed, step, first row) only."""
    return int(np.random.SeedSequence((seed, step, row)).generate_state(1, np.uint64)[0] >> np.uint64(1))


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
        "config": dataclasses.asdict(run.config),
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
