"""What two ranks really hold and send in a step: run by `together` in tests/test_plan.py."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from tests.test_plan import SMALL
from tinylm import trainer
from tinylm.config import TrainConfig
from tinylm.corpus import open_corpus
from tinylm.devices import choose_machine, cpu_threads
from tinylm.distributed.ranks import join, leave
from tinylm.distributed.sharding import local
from tinylm.model import Transformer
from tinylm.reports import Report
from tinylm.training_step import train_step


def work() -> None:
    """Two steps replicated and sharded, with one and with two micro-batches; writes down what was seen."""
    ranks = join(120.0)
    said: dict[str, Any] = {}
    with cpu_threads(1):
        for shard in (False, True):
            for micro_batches in (1, 2):
                said[f"{shard} {micro_batches}"] = seen(ranks, shard, micro_batches)
    Path(f"said-{ranks.rank}.json").write_text(json.dumps(said), encoding="utf-8")
    leave()


def seen(ranks: Any, shard: bool, micro_batches: int) -> dict[str, Any]:
    """Bytes that this rank sends in a step, as its collectives say, and bytes that it holds."""
    config = TrainConfig(
        data="corpus", model=SMALL, steps=9, batch_rows=4 * ranks.size, micro_rows=4 // micro_batches,
        shard=shard, device="cpu", precision="float32", threads=1,
    )  # fmt: skip
    machine = dataclasses.replace(choose_machine(config), compile=False)
    model = Transformer(SMALL)
    corpus = open_corpus(Path("corpus"))
    run = trainer.prepare(Path(), config, machine, corpus, model, Report(), ranks)
    others = (ranks.size - 1) / ranks.size
    sent: dict[str, float] = {"gradients": 0.0, "parameters": 0.0, "muon": 0.0}
    gradients = 0

    def all_reduced(tensor: Any) -> None:
        sent["gradients"] += 2 * others * tensor.nbytes

    def gathered(output: Any, tensor: Any) -> None:
        sent["parameters"] += others * output.nbytes

    def scattered(output: Any, tensor: Any) -> None:
        sent["gradients"] += others * tensor.nbytes

    def exchanged(output: Any, tensor: Any, taken: Any, given: Any) -> None:
        elements = sum(count for rank, count in enumerate(given) if rank != ranks.rank)
        sent["muon"] += elements * tensor.element_size()

    counters: dict[str, Callable[..., None]] = {
        "all_reduce": all_reduced,
        "all_gather_into_tensor": gathered,
        "all_gather_single": gathered,  # the name from torch 2.13 on
        "reduce_scatter_tensor": scattered,
        "reduce_scatter_single": scattered,
        "all_to_all_single": exchanged,
    }

    def noticed(name: str, real: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        plain = (*arguments, *(more[key] for key in ("output", "input") if key in more))
        counters[name](*plain)
        return real(*arguments, **more)

    step = run.optimizer.step

    def counted(scale: float) -> None:
        nonlocal gradients
        gradients = sum(local(p.grad).nbytes for p in model.parameters() if p.grad is not None)
        step(scale)

    run.optimizer.step = counted  # type: ignore[method-assign]
    train_step(run, run.plan.batch(0), 0, 0.01)  # after which DDP has its final buckets
    sent.update(dict.fromkeys(sent, 0.0))
    patched = {name: partial(noticed, name, getattr(dist, name)) for name in counters if hasattr(dist, name)}
    with mock.patch.multiple(dist, **patched):
        loss, _ = train_step(run, run.plan.batch(1), 1, 0.01)
    assert math.isfinite(loss)
    states = [tensor for tensor in run.optimizer.state().values() if tensor.ndim]
    return {
        **sent,
        "held": {
            "parameters": sum(local(p).nbytes for p in model.parameters()),
            "optimizer": sum(local(tensor).nbytes for tensor in states),
            "gradients": gradients,
        },
    }
