"""A bigger run, predicted: memory, time, traffic, disk, and what to change where it does not fit."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from tinylm.config import PRESETS, ModelConfig, PlanConfig, TrainConfig, flops_per_token, parameter_count
from tinylm.config.plan import TOKENS_PER_PARAMETER, TOKENS_PER_STEP
from tinylm.plan.advice import advice, divisors
from tinylm.plan.disk import Disk, disk
from tinylm.plan.hardware import Hardware, hardware
from tinylm.plan.memory import BUCKET, RESERVE, Memory, memory
from tinylm.plan.tensors import muon_flops, muon_shapes
from tinylm.plan.traffic import Traffic, all_reduce_seconds, traffic

ACCESSES = 16
"""How often an optimizer's step reads or writes each element: gradient, states, weight and temporaries."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step."""

    compute: float
    """Forward and backward passes."""
    optimizer: float
    communication: float
    hidden: float
    """The part of the communication that runs beside the backward pass."""

    @property
    def waiting(self) -> float:
        """Communication that nothing runs beside."""
        return self.communication - self.hidden

    @property
    def total(self) -> float:
        return self.compute + self.optimizer + self.waiting


@dataclass(frozen=True)
class Prediction:
    """A planned run. Bytes, seconds, FLOP; sizes of one rank, the fullest one, unless the name says more."""

    config: PlanConfig
    model: ModelConfig
    hardware: Hardware
    precision: str
    compiled: bool
    batch_rows: int
    micro_rows: int
    steps: int
    memory: Memory
    traffic: Traffic
    time: StepTime
    alone: StepTime
    """The same step on one rank."""
    disk: Disk

    @property
    def rows(self) -> int:
        """Rows of a rank in a step."""
        return self.batch_rows // self.config.gpus

    @property
    def micro_batches(self) -> int:
        return self.rows // self.micro_rows

    @property
    def tokens_per_step(self) -> int:
        return self.batch_rows * self.model.window

    @property
    def tokens(self) -> int:
        return self.steps * self.tokens_per_step

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.time.total

    @property
    def seconds(self) -> float:
        """Of all steps; evaluations and checkpoints come besides."""
        return self.steps * self.time.total

    @property
    def efficiency(self) -> float:
        """What this many ranks do, as a share of as many times what one does."""
        return self.alone.total / self.time.total / self.config.gpus

    @property
    def limit(self) -> float:
        """Bytes of a device that a run may fill."""
        return (1 - RESERVE) * self.hardware.memory

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.limit

    def command(self, data: str = "DATA") -> str:
        """The command that would start it, on each machine."""
        config = self.config
        start = "tinylm"
        if config.gpus > 1:
            each = next(n for n in divisors(config.gpus) if n <= self.hardware.per_node)
            start = f"torchrun --nproc-per-node {each}"
            if each < config.gpus:
                start += f" --nnodes {config.gpus // each} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
            start += " -m tinylm"
        words = [f"{start} train {data} --preset {config.preset}"]
        usual = dataclasses.asdict(PRESETS[config.preset])
        for name, value in dataclasses.asdict(self.model).items():
            if value != usual[name]:
                flag = name.replace("_", "-")
                words.append(
                    (f"--{flag}" if value else f"--no-{flag}") if name == "tied" else f"--{flag} {value}"
                )
        words.append(f"--steps {self.steps} --batch-rows {self.batch_rows} --micro-rows {self.micro_rows}")
        words += ["--shard"] * config.shard + ["--no-muon"] * (not config.muon)
        for name in ("precision", "compile"):
            if getattr(config, name) != "auto":
                words.append(f"--{name} {getattr(config, name)}")
        words += [f"--keep {config.keep}"] * (config.keep != TrainConfig.keep)
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for machines: also what is computed from the rest."""
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("batch_rows", "rows", "micro_rows", "micro_batches", "steps", "tokens_per_step", "tokens"),
                *("tokens_per_second", "seconds", "efficiency", "precision", "compiled", "fits", "limit"),
            )
        }
        found["parameters"] = parameter_count(self.model)
        found |= {"command": self.command(), "advice": advice(self)}
        for name, computed in {
            "config": (),
            "model": (),
            "hardware": (),
            "memory": ("states", "backward", "update", "peak"),
            "traffic": ("sent", "seconds"),
            "time": ("waiting", "total"),
            "alone": ("waiting", "total"),
            "disk": ("checkpoint",),
        }.items():
            part = getattr(self, name)
            found[name] = {**dataclasses.asdict(part), **{one: getattr(part, one) for one in computed}}
        return found


def predict(config: PlanConfig) -> Prediction:
    """Plan a run. Raises ConfigError with all problems; torch is loaded only to measure (`--device here`)."""
    config = config.check()
    model = config.resolved_model()
    on_gpu = config.device != "here" or _here_is_a_gpu()
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if on_gpu else "float32"
    compiled = on_gpu if config.compile == "auto" else config.compile == "yes"
    batch_rows = config.batch_rows or config.gpus * max(
        1, round(TOKENS_PER_STEP / model.window / config.gpus)
    )
    rows = batch_rows // config.gpus
    found = hardware(config, precision, compiled, config.micro_rows or rows)
    how: dict[str, Any] = {"shard": config.shard, "muon": config.muon}
    kept: dict[str, Any] = {**how, "precision": precision, "compiled": compiled}

    def needed(micro_rows: int) -> Memory:
        return memory(model, config.gpus, micro_rows, micro_batches=rows // micro_rows, **kept)

    micro_rows = config.micro_rows or next(
        (n for n in divisors(rows) if needed(n).peak <= (1 - RESERVE) * found.memory), 1
    )
    tokens = config.tokens if config.tokens is not None else TOKENS_PER_PARAMETER * parameter_count(model)
    steps = config.steps or max(1, math.ceil(tokens / (batch_rows * model.window)))
    size = 8 if precision == "float64" else 4
    sent = traffic(model, config.gpus, rows // micro_rows, found, size=size, **how)
    none = traffic(model, 1, 1, found)
    return Prediction(
        config=config,
        model=model,
        hardware=found,
        precision=precision,
        compiled=compiled,
        batch_rows=batch_rows,
        micro_rows=micro_rows,
        steps=steps,
        memory=needed(micro_rows),
        traffic=sent,
        time=step_time(model, config.gpus, rows, micro_rows, found, sent, size, **how),
        alone=step_time(model, 1, batch_rows, micro_rows, found, none, size, **how),
        disk=disk(
            model,
            steps,
            steps * batch_rows * model.window,
            config.keep,
            muon=config.muon,
            precision=precision,
        ),
    )


def step_time(
    config: ModelConfig, ranks: int, rows: int, micro_rows: int, found: Hardware, sent: Traffic, size: int, *,
    shard: bool, muon: bool,
) -> StepTime:  # fmt: skip
    """The time of one step in which a rank reads `rows` rows.

    Gradients travel during the last backward pass (two thirds of the compute of a micro-batch), all but the
    last piece of them; sharded parameters during all passes. Muon's matrices travel alone.
    """
    compute = 3 * flops_per_token(config, config.window) * rows * config.window
    compute_seconds = compute / (found.flops * found.utilisation)
    divided = ranks if shard else 1
    products = muon_flops(muon_shapes(config, muon)) / found.product_flops / divided
    elements = parameter_count(config) / divided
    optimizer = products + ACCESSES * size * elements / found.memory_rate
    hidden = 0.0
    if found.overlaps and ranks > 1:
        if shard:
            layers = config.layers + 1
            travelling = (sent.gradient_seconds + sent.parameter_seconds) * (layers - 1) / layers
            hidden = min(travelling, compute_seconds)
        else:
            payload = min(BUCKET, size * parameter_count(config))
            last = all_reduce_seconds(payload, ranks, found)
            hidden = min(max(0.0, sent.gradient_seconds - last), compute_seconds * micro_rows / rows * 2 / 3)
    return StepTime(compute_seconds, optimizer, sent.seconds, hidden)


def _here_is_a_gpu() -> bool:
    from tinylm.devices import choose_device

    return choose_device("auto") == "cuda"
