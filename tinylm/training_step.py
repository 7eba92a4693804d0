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
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.distributed.sharding import gradients_sent, whole
from tinylm.errors import RankError, TrainingError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, clip_gradients
from tinylm.reports import Report
from tinylm.shapes import check_shape

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
    ranks: Ranks = ALONE
    trained: nn.Module | None = None
    """`model` as it is trained together with other ranks (distributed/sharding.py); None for one alone."""
    deviations: tuple[dict[str, Any], ...] = ()
    """Why the run is no longer bit for bit what it would have been, if so (see tinylm/resumption.py)."""


def train_step(run: Run, batch: Batch, step: int, scale: float) -> tuple[float, float | None]:
    """One optimizer step; returns the mean loss in nats per target and, if clipped, the gradients' norm.

    Micro-batches are halved when memory runs out (one process alone: ranks have agreed before the first
    step); the batch of the step stays the same. A loss that is not finite raises TrainingError before any
    weight changes.
    """
    while True:
        try:
            loss = accumulate(run, batch, step)
            break
        except (RuntimeError, MemoryError) as error:
            run.optimizer.zero_grad()
            if not is_out_of_memory(error) or not run.ranks.alone:
                raise
            halve_micro_rows(run, batch.inputs_BT.shape[1])
    if not math.isfinite(loss):
        run.optimizer.zero_grad()
        if not run.ranks.leads:
            raise RankError(f"step {step + 1}: the loss is {loss}")
        raise TrainingError(
            f"step {step + 1}: the loss is {loss}; no weight was changed by it. "
            f"Try lower rates (--muon-rate {run.config.muon_rate / 2:g} --adam-rate "
            f"{run.config.adam_rate / 2:g}), "
            "--clip 1, or --precision float32; checkpoints before it are good"
        )
    norm = None
    if run.config.clip is not None:
        norm = float(whole(clip_gradients(run.optimizer.parameters(), run.config.clip)))
    run.optimizer.step(scale)
    run.optimizer.zero_grad()
    return loss, norm


def accumulate(run: Run, batch: Batch, step: int) -> float:
    """Forward and backward over the micro-batches: gradients of the mean loss over the step's targets.

    A rank reads its share of the rows. The targets are counted over the whole batch, so that gradients and
    losses of all ranks add up to those of one process.
    """
    device, module = run.machine.device, run.trained or run.model
    total = torch.tensor(batch.targets, dtype=run.machine.weight_dtype, device=device)
    losses = []
    share = run.ranks.share(len(batch.inputs_BT))
    pieces = batch.micro_batches(run.micro_rows, share)
    for index, (inputs_BT, targets_BT, segments_BT) in enumerate(pieces):
        inputs = torch.from_numpy(inputs_BT).to(device, non_blocking=True)
        targets = torch.from_numpy(targets_BT).to(device, non_blocking=True)
        seen, segments = None, None
        if segments_BT is not None:  # outside the compiled graph: what it holds differs in each batch
            segments = torch.from_numpy(segments_BT).to(device, non_blocking=True)
            seen = seen_within(segments, compiled=run.machine.compile, dtype=run.machine.weight_dtype)
        ngrams = run.model.ngram_rows(inputs, segments)
        dropped = 0.0 if ngrams is None else run.config.ngram_dropout
        with torch.random.fork_rng(enabled=run.config.dropout + dropped > 0):
            if run.config.dropout or dropped:
                row = share.start + index * run.micro_rows
                torch.manual_seed(dropout_seed(run.config.seed, step, row))
            with gradients_sent(module, index == len(pieces) - 1):
                with run.machine.autocast():
                    loss = run.loss(module, inputs, targets, total, run.config.dropout, seen, ngrams, dropped)
                torch.autograd.backward(loss)
        losses.append(loss.detach())
    return run.ranks.total(float(torch.stack(losses).sum(dtype=torch.float64).item()))


def agree_on_micro_rows(run: Run) -> None:
    """Find, before the first step, how many rows per forward pass fit into the memory of every rank.

    Each rank tries the longest rows and sends nothing. In a step it would be too late: a rank without
    memory would leave the others in the middle of their exchange. Sharded weights cannot be tried alone.
    """
    if run.ranks.alone or run.machine.shard or run.config.micro_rows is not None:
        return
    module, length = run.trained or run.model, run.plan.padded_lengths[-1]
    seen = None
    while True:
        ids_BT = torch.zeros(run.micro_rows, length, dtype=torch.int64, device=run.machine.device)
        try:
            if run.plan.policy == "mask":
                seen = seen_within(ids_BT, compiled=run.machine.compile, dtype=run.machine.weight_dtype)
            with gradients_sent(module, False), run.machine.autocast():
                loss = run.loss(module, ids_BT, ids_BT, torch.ones_like(ids_BT[0, 0]), 0.0, seen)
            torch.autograd.backward(loss)
            break
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            halve_micro_rows(run, length)
        finally:
            run.optimizer.zero_grad()
    run.micro_rows = min(run.ranks.exchange(run.micro_rows))


def mean_loss(
    model: nn.Module,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    total: Tensor,
    dropout: float,
    seen: Seen = None,
    ngrams_BTN: Tensor | None = None,
    ngram_dropout: float = 0.0,
) -> Tensor:
    """Cross-entropy in nats, summed over the scored targets and divided by `total`, the step's targets.

    `targets_BT` (int64): an id, or IGNORED where nothing is scored. `total`: one number. Raises ShapeError.
    """
    if not torch.compiler.is_compiling():
        sizes = check_shape(inputs_BT, "B T", name="inputs_BT", kind="integer")
        check_shape(targets_BT, "B T", name="targets_BT", kind="integer", **sizes)
        check_shape(total, "", name="total")
    logits_BTV = model(inputs_BT, None, dropout, seen, ngrams_BTN, ngram_dropout)
    logits = logits_BTV.reshape(-1, VOCABULARY_SIZE)
    logits = logits.float() if logits.dtype != torch.float64 else logits
    return F.cross_entropy(logits, targets_BT.reshape(-1), ignore_index=IGNORED, reduction="sum") / total


def compiled(machine: Machine, model: Transformer) -> LossFunction:
    """The loss of a model's micro-batch, compiled with static shapes where the machine's record says so."""
    if not machine.compile:
        return mean_loss
    if (table := model.model.ngrams) is not None:
        # A graph would make its gradient a dense one, of the whole table. Said here and not at the class,
        # for whoever says it loads the compiler, which takes as long as loading torch.
        table.forward = torch.compiler.disable(table.forward)  # type: ignore[method-assign, no-untyped-call]
    return torch.compile(mean_loss, dynamic=False)


def halve_micro_rows(run: Run, length: int) -> None:
    """Fewer rows, of `length` tokens, per forward pass; the same rows per step."""
    if run.machine.device == "cuda":
        torch.cuda.empty_cache()
    if run.micro_rows == 1:
        raise TrainingError(
            f"no memory for one row of {length} tokens on {run.machine.device}; "
            "use a smaller --window or a smaller preset"
        )
    rows = run.micro_rows // 2
    while run.config.rows_of_a_rank(run.ranks.size) % rows:
        rows -= 1
    run.micro_rows = rows
    run.report.note(f"memory ran out: {rows} rows per forward pass, still {run.config.batch_rows} per step")


def dropout_seed(seed: int, step: int, row: int) -> int:
    """A seed per micro-batch, from (seed, step, first row) only."""
    return int(np.random.SeedSequence((seed, step, row)).generate_state(1, np.uint64)[0] >> np.uint64(1))
