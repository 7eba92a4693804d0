"""What a run writes: the two tensor files of a checkpoint, byte for byte, and what is kept of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from tinylm import files
from tinylm.config import ModelConfig
from tinylm.contract import contract
from tinylm.plan.tensors import Shape, muon_shapes, tensor_shapes

MANIFEST = 2_100
"""Bytes of a manifest, about: configuration, digests, versions."""
ROWS = 135
"""Bytes that a step adds to metrics.jsonl and timings.jsonl, about."""

KINDS = {"I64": 8, "F64": 8, "F32": 4}
"""Bytes of a number, in the order in which safetensors lays the kinds down."""


@dataclass(frozen=True)
class Disk:
    """Bytes on disk. `model` and `training` are exact, for a step of this number of digits."""

    model: int
    training: int
    run: int
    most: int
    """While a checkpoint is written before an older one is removed."""
    corpus: int
    """The tokens of the training part, if each is read once: two bytes each."""

    @property
    def checkpoint(self) -> int:
        return self.model + self.training + MANIFEST


def disk(config: ModelConfig, steps: int, tokens: float, keep: int, *, muon: bool, precision: str) -> Disk:
    """The disk of a run that keeps its newest `keep` checkpoints and the best one."""
    kind = "F64" if precision == "float64" else "F32"
    model = model_bytes(config, kind)
    training = training_bytes(config, muon, kind, steps)
    one = model + training + MANIFEST
    rows = ROWS * steps
    return Disk(model, training, (keep + 1) * one + rows, (keep + 2) * one + rows, int(2 * tokens))


def model_bytes(config: ModelConfig, kind: str = "F32") -> int:
    """The size of `model.safetensors`."""
    tensors = {name: (kind, shape) for name, shape in tensor_shapes(config).items()}
    return safetensors_bytes(tensors, {"model": config.to_dict()})


def training_bytes(config: ModelConfig, muon: bool, kind: str, step: int) -> int:
    """The size of `training.safetensors` at a step: momenta, averages, the count of steps."""
    matrices = muon_shapes(config, muon)
    tensors: dict[str, tuple[str, Shape]] = {f"muon.{name}": (kind, s) for name, s in matrices.items()}
    for name, shape in tensor_shapes(config).items():
        if name not in matrices:
            tensors[f"adam.first.{name}"] = tensors[f"adam.second.{name}"] = (kind, shape)
    tensors["steps_done"] = ("I64", ())
    return safetensors_bytes(tensors, {"step": step})


def safetensors_bytes(tensors: dict[str, tuple[str, Shape]], info: dict[str, object]) -> int:
    """The size of a safetensors file of these tensors (kind, shape) under the library's one metadata key.

    Eight bytes for the header's length, the header (JSON, padded to eight bytes; tensors ordered by
    kind, then by name), the numbers. Layout: the README of safetensors.
    """
    body = {**info, "format": files.FORMAT, "contract": contract()}
    header: dict[str, object] = {"__metadata__": {"tinylm": files.canonical_json(body).decode("ascii")}}
    order, end = list(KINDS), 0
    for name, (kind, shape) in sorted(tensors.items(), key=lambda item: (order.index(item[1][0]), item[0])):
        begin, end = end, end + KINDS[kind] * math.prod(shape)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-length // 8) * 8 + end
