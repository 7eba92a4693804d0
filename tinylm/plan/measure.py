"""How fast this machine trains: a few steps of a few layers. Needs torch, and seconds."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tinylm.config import ModelConfig, TrainConfig, flops_per_token
from tinylm.devices import Machine, synchronize
from tinylm.errors import ConfigError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.plan.tensors import muon_flops, muon_shapes
from tinylm.training_step import compiled

TRIAL_LAYERS, TRIAL_TOKENS, TRIES = 2, 4096, 4
ACCESSES = 16
"""How often an optimizer's step reads or writes each element: gradient, states, weight and temporaries."""


@dataclass(frozen=True)
class Rates:
    """FLOP/s of forward and backward, FLOP/s of Muon's products, bytes/s of element-wise updates."""

    training: float
    muon: float
    memory: float


def measured_rates(
    config: ModelConfig, machine: Machine, rows: int, clock: Callable[[], float] = time.perf_counter
) -> Rates:
    """The rates of this machine for a model like this one: its width and window, up to two of its layers.

    Call it inside `cpu_threads(machine.threads)`. The median of four tries, after one that is not counted.
    """
    config = dataclasses.replace(config, layers=min(config.layers, TRIAL_LAYERS))
    rows = max(1, min(rows, TRIAL_TOKENS // config.window))
    model = Transformer(config).to(device=machine.device, dtype=machine.weight_dtype)
    ids_BT = torch.randint(0, 256, (rows, config.window + 1), device=machine.device)
    inputs_BT, targets_BT = ids_BT[:, :-1].contiguous(), ids_BT[:, 1:].contiguous()
    total = torch.tensor(float(targets_BT.numel()), device=machine.device, dtype=machine.weight_dtype)
    loss = compiled(machine, model)

    def learn() -> None:
        with machine.autocast():
            found = loss(model, inputs_BT, targets_BT, total, 0.0)
        torch.autograd.backward(found)

    def seconds(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(TRIES + 1):
            synchronize(machine.device)
            started = clock()
            work()
            synchronize(machine.device)
            taken.append(clock() - started)
        return statistics.median(taken[1:])

    flops = 3.0 * flops_per_token(config, config.window) * targets_BT.numel()
    training = flops / seconds(learn)
    elements = sum(parameter.numel() for parameter in model.parameters())
    size = machine.weight_dtype.itemsize
    adam = Optimizer(model, TrainConfig(data="none", muon=False))
    element_wise = seconds(lambda: adam.step(0.01))
    muon = Optimizer(model, TrainConfig(data="none"))
    both = seconds(lambda: muon.step(0.01))
    products = max(both - element_wise, 0.1 * both)
    return Rates(
        training=training,
        muon=muon_flops(muon_shapes(config)) / products,
        memory=ACCESSES * size * elements / element_wise,
    )


def memory_of_host() -> float:
    """Bytes of this machine's memory; ConfigError where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        raise ConfigError("memory is unknown on this system; give --memory GB") from None
