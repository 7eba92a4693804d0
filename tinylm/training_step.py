"""One optimizer step: the batch in micro-batches, the mean over its targets, and what can go wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.attention import Seen, seen_within
from tinylm.batches import IGNORED, Batch, Plan
from tinylm.config import TrainConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.corpus import Corpus
from tinylm.devices import Machine, is_out_of_memory
from tinylm.errors import TrainingError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.reports import Report

LossFunction = Callable[..., Tensor]
"""`mean_loss`, or its compiled form."""


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
    deviations: tuple[dict[str, Any], ...] = ()
    """Why the run is no longer bit for bit what it would have been, if so (see tinylm/resumption.py)."""


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
            "--clip 1, or --precision float32; checkpoints before it are good"
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
    for index, (inputs_BT, targets_BT, segments_BT) in enumerate(batch.micro_batches(run.micro_rows)):
        inputs = torch.from_numpy(inputs_BT).to(device, non_blocking=True)
        targets = torch.from_numpy(targets_BT).to(device, non_blocking=True)
        seen = None
        if segments_BT is not None:  # outside the compiled graph: what it holds differs in each batch
            segments = torch.from_numpy(segments_BT).to(device, non_blocking=True)
            seen = seen_within(segments, compiled=run.machine.compile, dtype=run.machine.weight_dtype)
        with torch.random.fork_rng(enabled=run.config.dropout > 0):
            if run.config.dropout:
                torch.manual_seed(dropout_seed(run.config.seed, step, index * run.micro_rows))
            with run.machine.autocast():
                loss = run.loss(run.model, inputs, targets, total, run.config.dropout, seen)
            torch.autograd.backward(loss)
        losses.append(loss.detach())
    return float(torch.stack(losses).sum(dtype=torch.float64).item())


def mean_loss(
    model: nn.Module,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    total: Tensor,
    dropout: float,
    seen: Seen = None,
) -> Tensor:
    """Cross-entropy in nats, summed over the scored targets and divided by `total`, the step's targets."""
    logits_BTV = model(inputs_BT, None, dropout, seen)
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
