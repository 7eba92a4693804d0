"""How a checkpoint is measured."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config.checked import Checked, Device, booleans, choices, integers, option


@dataclass(frozen=True)
class EvaluateConfig(Checked):
    """How a checkpoint is measured."""

    rows: int = option(32, "rows per forward pass; changes the speed, not the result")
    ladder: bool = option(True, "also show what counting and compressors reach on the same split")
    json: bool = option(False, "print one JSON object instead of tables")
    device: Device = option("auto", "auto takes CUDA, then MPS, then the CPU")

    def problems(self) -> list[str]:
        found = integers(self, ("rows",), 1) + booleans(self, ("ladder", "json"))
        return found + choices(self, device=("auto", "cpu", "cuda", "mps"))
