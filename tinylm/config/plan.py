"""What a bigger run is planned for: the run, the devices, the network between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinylm.config.checked import (
    MOST,
    Checked,
    booleans,
    choices,
    fine,
    integers,
    numbers,
    option,
    shares,
)
from tinylm.config.model import ModelConfig, choice_of_model, preset

PlannedDevice = Literal["h100", "h200", "b200", "a100", "l40s", "rtx4090", "here"]
DEVICE_NAMES: tuple[PlannedDevice, ...] = ("h100", "h200", "b200", "a100", "l40s", "rtx4090", "here")
TOKENS_PER_STEP = 2**19
"""Tokens of a step where no number of rows is given, or one row a rank if that is more."""
TOKENS_PER_PARAMETER = 20
"""Where neither tokens nor steps are given (Hoffmann et al., 2022, for tokens of several bytes)."""


@dataclass(frozen=True)
class PlanConfig(Checked):
    """A run that is not started: what it is, and what it would run on."""

    preset: str = option(
        "base", "model preset: nano, micro, mini, small, base or fast; the model's own flags override it"
    )
    model: ModelConfig | None = option(None, "the model; None stands for the preset's")
    gpus: int = option(1, "ranks, one device each")
    tokens: float | None = option(None, "tokens to train on, as 1e11 (default: 20 for each parameter)")
    steps: int | None = option(None, "optimizer steps, instead of tokens")
    batch_rows: int | None = option(
        None, "rows per optimizer step, of all ranks together (default: about 524,288 tokens)"
    )
    micro_rows: int | None = option(None, "rows per forward pass of a rank (default: as many as fit)")
    shard: bool = option(False, "divide parameters, gradients and optimizer over the ranks (FSDP2)")
    muon: bool = option(True, "Muon for the matrices of the layers; off: AdamW for everything")
    precision: Literal["auto", "float32", "bfloat16", "float64"] = option(
        "auto", "auto: bfloat16 autocast on GPUs, float32 on a CPU"
    )
    compile: Literal["auto", "yes", "no"] = option("auto", "torch.compile; auto: on GPUs")
    keep: int = option(2, "newest checkpoints to keep")
    device: PlannedDevice = option(
        "h100", "what a rank computes on: a named GPU, or here: this machine, measured"
    )
    flops: float | None = option(
        None, "floating-point operations a second that a device could do at most, as 989e12"
    )
    utilisation: float | None = option(
        None, "share of that which forward and backward passes reach (default: 0.4)"
    )
    memory: float | None = option(None, "memory of a device, in GB (10^9 bytes)")
    per_node: int = option(8, "devices in one machine, joined by the faster link")
    link: float | None = option(None, "GB/s that a device sends to another one in its machine")
    bandwidth: float = option(50.0, "GB/s that a device sends to one in another machine (50: 400 Gb/s)")
    latency: float | None = option(None, "microseconds until a message arrives (default: 10)")
    json: bool = option(False, "print one JSON object instead of tables")

    def resolved_model(self) -> ModelConfig:
        """The model to plan for: the given one, or the preset's."""
        return self.model if self.model is not None else preset(self.preset)

    def problems(self) -> list[str]:
        found = choice_of_model(self.preset, self.model)
        found += integers(self, ("gpus", "per_node"), 1, MOST) + integers(self, ("keep",), 1)
        for name in ("steps", "batch_rows", "micro_rows"):
            if getattr(self, name) is not None:
                found += integers(self, (name,), 1, None if name == "steps" else 16 * MOST)
        for name in ("tokens", "flops", "memory", "link", "bandwidth"):
            if getattr(self, name) is not None:
                found += numbers(self, (name,), 0.0, above=True)
        if self.latency is not None:
            found += numbers(self, ("latency",), 0.0)
        if self.utilisation is not None and self.utilisation != 1:
            found += shares(self, ("utilisation",))
        found += choices(
            self,
            device=DEVICE_NAMES,
            precision=("auto", "float32", "bfloat16", "float64"),
            compile=("auto", "yes", "no"),
        )
        found += booleans(self, ("shard", "muon", "json"))
        combined = []
        if not found and self.resolved_model().ngrams:
            combined.append(
                f"ngrams is {self.resolved_model().ngrams}: plan has no formulas for tables of "
                "n-grams, which one process trains alone; choose another preset, or --ngrams 0"
            )
        if self.tokens is not None and self.steps is not None:
            combined.append(f"tokens is {self.tokens:g} and steps is {self.steps}, expected one of them")
        if fine(found, "utilisation") and self.utilisation == 0:
            combined.append("utilisation is 0, expected above 0 (a device that computes nothing never ends)")
        if fine(found, "gpus", "batch_rows") and self.batch_rows and self.batch_rows % self.gpus:
            combined.append(
                f"batch_rows is {self.batch_rows}, expected a multiple of the ranks ({self.gpus}), as "
                f"{-(-self.batch_rows // self.gpus) * self.gpus}"
            )
        elif fine(found, "gpus", "batch_rows", "micro_rows") and self.batch_rows and self.micro_rows:
            rows = self.batch_rows // self.gpus
            if rows % self.micro_rows:
                combined.append(
                    f"micro_rows is {self.micro_rows}, expected a divisor of a rank's rows ({rows})"
                )
        if self.device == "here" and self.flops is not None:
            combined.append(f"flops is {self.flops:g}, but --device here measures; name one of the others")
        return found + combined
