"""What ranks send each other in a step, and how long that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinylm.config import ModelConfig
from tinylm.plan.hardware import Hardware
from tinylm.plan.memory import BUCKET
from tinylm.plan.tensors import muon_groups, muon_shapes, tensor_shapes


@dataclass(frozen=True)
class Traffic:
    """Of one rank and one step: bytes that it sends, and seconds until all have arrived.

    `gradients`: all-reduce, or reduce-scatter where sharded. `parameters`: all-gather where sharded.
    `muon`: matrices to their owners and back.
    """

    gradients: float
    parameters: float
    muon: float
    gradient_seconds: float
    parameter_seconds: float
    muon_seconds: float

    @property
    def sent(self) -> float:
        return self.gradients + self.parameters + self.muon

    @property
    def seconds(self) -> float:
        return self.gradient_seconds + self.parameter_seconds + self.muon_seconds


def traffic(
    config: ModelConfig, ranks: int, micro_batches: int, found: Hardware, *,
    shard: bool = False, muon: bool = True, size: int = 4,
) -> Traffic:  # fmt: skip
    """The traffic of one step; gradients and parameters have `size` bytes each.

    DDP: gradients in buckets, once a step. Sharded: FSDP2 gathers each layer for the forward and again for
    the backward pass of every micro-batch, what belongs to no layer once; gradients are scattered once a
    step; Muon sends each matrix's rows to its owner and back, one exchange each way for each shape.
    """
    shapes = tensor_shapes(config)
    total = size * sum(map(math.prod, shapes.values()))
    if ranks == 1:
        return Traffic(0, 0, 0, 0, 0, 0)
    if not shard:
        buckets = -(-total // BUCKET)
        seconds = sum(all_reduce_seconds(total / buckets, ranks, found) for _ in range(buckets))
        return Traffic(all_reduce_bytes(total, ranks), 0, 0, seconds, 0, 0)
    layers = size * sum(math.prod(s) for name, s in shapes.items() if ".layers." in name)
    layer, rest = layers / config.layers, total - layers
    gathered = config.layers * gather_seconds(layer, ranks, found) + gather_seconds(rest, ranks, found)
    fetched = gathered + config.layers * gather_seconds(layer, ranks, found)
    summed, scattered = gather_bytes(total, ranks), gathered
    if not found.scatters:
        summed = all_reduce_bytes(total, ranks)
        scattered = config.layers * all_reduce_seconds(layer, ranks, found)
        scattered += all_reduce_seconds(rest, ranks, found)
    matrices = muon_shapes(config, muon)
    exchanged = size * sum(map(math.prod, matrices.values())) / ranks
    exchanges = 2 * len(muon_groups(matrices))
    return Traffic(
        gradients=summed,
        parameters=micro_batches * gather_bytes(2 * layers + rest, ranks),
        muon=2 * gather_bytes(exchanged, ranks),
        gradient_seconds=scattered,
        parameter_seconds=micro_batches * fetched,
        muon_seconds=exchanges * found.latency + 2 * gather_bytes(exchanged, ranks) / found.rate(ranks),
    )


def all_reduce_bytes(payload: float, ranks: int) -> float:
    """Bytes that a rank sends in a ring all-reduce: all pieces but its own, to be summed, then as sums."""
    return 2 * gather_bytes(payload, ranks)


def gather_bytes(payload: float, ranks: int) -> float:
    """Bytes that a rank sends in an all-gather or a reduce-scatter of `payload` bytes in all."""
    return (ranks - 1) / ranks * payload


def all_reduce_seconds(payload: float, ranks: int, found: Hardware) -> float:
    """The shorter of a ring and of two binary trees, as NCCL chooses (Sanders et al., 2009, for the trees).

    Ring: 2 (N - 1) messages one behind the other, 2 (N - 1) / N of the payload through each link. Trees:
    2 log2 N messages, twice the payload.
    """
    rate = found.rate(ranks)
    ring = 2 * (ranks - 1) * found.latency + all_reduce_bytes(payload, ranks) / rate
    trees = 2 * math.ceil(math.log2(ranks)) * found.latency + 2 * payload / rate
    return min(ring, trees)


def gather_seconds(payload: float, ranks: int, found: Hardware) -> float:
    """An all-gather or a reduce-scatter around a ring."""
    return (ranks - 1) * found.latency + gather_bytes(payload, ranks) / found.rate(ranks)
