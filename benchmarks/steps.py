"""How long does a training step take, eager and compiled, on one thread and on all?

    python benchmarks/steps.py [--preset nano --rows 16 --window 256 --rounds 8] [--no-compile] [--profile]

Alternates the variants step by step on the same batch, prints the median and the fastest step, tokens a
second, and the share of the measured matrix rate; compilation is timed apart. With --profile also where the
time of an eager step on all cores goes, by kind of operator.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
import torch.profiler

from tinylm.config import PRESETS, TrainConfig
from tinylm.devices import Machine, cpu_threads, matrix_rate
from tinylm.model import Transformer, flops_per_token
from tinylm.optimizer import Optimizer
from tinylm.training_step import LossFunction, mean_loss

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
"""Operators that are matrix products."""


def kind_of(operator: str) -> str:
    """What kind of work an operator of PyTorch is."""
    if operator in PRODUCTS:
        return "matrix products"
    return "attention" if "attention" in operator else "all other operators, and Python"


def profile(phases: Mapping[str, Callable[[], object]], rounds: int) -> None:
    """Print which share of a step each kind of operator takes in each phase; profiling takes time, too."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for _ in range(rounds):
        for name, phase in phases.items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
                started = time.perf_counter()
                phase()
                whole = 1e6 * (time.perf_counter() - started)
            for event in found.key_averages():
                if (kind := kind_of(event.key)) != kind_of(""):
                    spent[name, kind] += event.self_cpu_time_total
                    whole -= event.self_cpu_time_total
            spent[name, kind_of("")] += whole
    total = sum(spent.values())
    for (name, kind), microseconds in sorted(spent.items(), key=lambda item: -item[1]):
        print(f"{microseconds / total:6.1%}  {name}: {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="nano", choices=PRESETS)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    config = dataclasses.replace(PRESETS[options.preset], window=options.window)
    model = Transformer(config)
    optimizer = Optimizer(model, TrainConfig(data="none"))
    ids_BT = torch.randint(0, 256, (options.rows, options.window + 1))
    total = torch.tensor(float(options.rows * options.window))

    def learn(loss: LossFunction) -> None:
        torch.autograd.backward(loss(model, ids_BT[:, :-1].contiguous(), ids_BT[:, 1:], total, 0.0))

    def step(loss: LossFunction) -> float:
        started = time.perf_counter()
        learn(loss)
        optimizer.step(0.01)
        optimizer.zero_grad()
        return time.perf_counter() - started

    losses: dict[str, LossFunction] = {"eager": mean_loss}
    if not options.no_compile:
        losses["compiled"] = torch.compile(mean_loss, dynamic=False)
    cores = os.cpu_count() or 1
    variants = [(name, threads) for threads in sorted({1, cores}) for name in losses]
    first = {}
    for name, threads in variants:
        with cpu_threads(threads):
            first[name, threads] = step(losses[name])
    times: dict[tuple[str, int], list[float]] = {variant: [] for variant in variants}
    for _ in range(options.rounds):
        for name, threads in variants:
            with cpu_threads(threads):
                times[name, threads].append(step(losses[name]))
    if hasattr(os, "getloadavg"):
        print(f"load {os.getloadavg()[0]:.2f} on {cores} cores")
    tokens = options.rows * options.window
    flops = 3 * flops_per_token(config, options.window)
    for (name, threads), taken in times.items():
        with cpu_threads(threads):
            rate = matrix_rate(Machine("cpu", "float32", False, threads)) or float("nan")
        middle = statistics.median(taken)
        share = flops * tokens / middle / rate
        print(
            f"{name:<9} {threads} threads: first {first[name, threads]:6.1f} s, median {middle:.3f} s, "
            f"fastest {min(taken):.3f} s, {tokens / middle:7,.0f} tokens/s, {share:.0%} of the matrix rate"
        )
    if options.profile:
        optimizer.zero_grad()
        phases = {"forward and backward": lambda: learn(mean_loss), "optimizer": lambda: optimizer.step(0.01)}
        with cpu_threads(cores):
            profile(phases, options.rounds)


if __name__ == "__main__":
    main()
