"""What a rank computes on and sends through: published numbers, or this machine, measured."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from tinylm.config import PlanConfig

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6

UTILISATION = 0.4
"""Share of the peak rate that forward and backward reach. Llama 3 was trained at 0.38 to 0.43 of an H100's
bfloat16 peak (Grattafiori et al., 2024, table 4); small models reach less. Give what you measured."""

PRODUCTS = 0.7
"""Share of the float32 peak that large matrix products reach, as Muon's are."""

LOOPBACK = 1 * GIGA
"""Bytes a second between two processes of one machine over gloo: assumed, not measured."""


@dataclass(frozen=True)
class Hardware:
    """One device and the links from it. Rates per second: FLOP, bytes (one direction); memory in bytes."""

    name: str
    flops: float
    utilisation: float
    product_flops: float
    """What Muon's products reach, in the precision of the weights."""
    memory: float
    memory_rate: float
    link: float
    bandwidth: float
    latency: float
    per_node: int
    overlaps: bool
    """Whether communication runs while the same device computes: on a GPU, not where both need the cores."""
    measured: bool = False
    scatters: bool = True
    """Whether a reduce-scatter sends sums to their owners alone. Gloo makes every sum everywhere: an
    all-reduce, of which a rank keeps its part (8.50 MB seen on the wire where a scatter would send 6.69)."""

    def rate(self, ranks: int) -> float:
        """Bytes a second on the slowest link of a ring through all ranks."""
        return self.link if ranks <= self.per_node else min(self.link, self.bandwidth)


@dataclass(frozen=True)
class Published:
    """FLOP/s in dense bfloat16 and in float32 without tensor cores, bytes, bytes/s of memory, bytes/s to a
    neighbour in the same machine (one direction: half of what the `source` counts, both ways)."""

    title: str
    bfloat16: float
    float32: float
    memory: float
    memory_rate: float
    link: float
    source: str


PUBLISHED: dict[str, Published] = {
    "h100": Published(
        "NVIDIA H100 SXM", 989.4 * TERA, 66.9 * TERA, 80 * GIGA, 3350 * GIGA, 450 * GIGA,
        "NVIDIA H100 datasheet (bfloat16 1,979 TFLOP/s with sparsity, half of it dense; NVLink 900 GB/s)",
    ),
    "h200": Published(
        "NVIDIA H200 SXM", 989.4 * TERA, 66.9 * TERA, 141 * GIGA, 4800 * GIGA, 450 * GIGA,
        "NVIDIA H200 datasheet (bfloat16 1,979 TFLOP/s with sparsity; NVLink 900 GB/s)",
    ),
    "b200": Published(
        "NVIDIA B200 SXM", 2250 * TERA, 75 * TERA, 180 * GIGA, 8000 * GIGA, 900 * GIGA,
        "NVIDIA HGX B200 datasheet, an eighth (bfloat16 36 PFLOP/s with sparsity; NVLink 1.8 TB/s)",
    ),
    "a100": Published(
        "NVIDIA A100 SXM 80 GB", 312 * TERA, 19.5 * TERA, 80 * GIGA, 2039 * GIGA, 300 * GIGA,
        "NVIDIA A100 datasheet (NVLink 600 GB/s)",
    ),
    "l40s": Published(
        "NVIDIA L40S", 362 * TERA, 91.6 * TERA, 48 * GIGA, 864 * GIGA, 32 * GIGA,
        "NVIDIA L40S datasheet (bfloat16 733 TFLOP/s with sparsity; PCIe 4.0 x16, 64 GB/s)",
    ),
    "rtx4090": Published(
        "NVIDIA GeForce RTX 4090", 165.2 * TERA, 82.6 * TERA, 24 * GIGA, 1008 * GIGA, 32 * GIGA,
        "NVIDIA Ada architecture whitepaper, appendix A (bfloat16 with float32 sums; PCIe 4.0 x16)",
    ),
}  # fmt: skip


def hardware(config: PlanConfig, precision: str, compiled: bool, rows: int) -> Hardware:
    """The devices that a configuration names, with what it says of them in place of what is published.

    `rows`: of one forward pass, for a measurement.
    """
    if config.device == "here":
        found = here(config, precision, compiled, rows)
    else:
        known = PUBLISHED[config.device]
        weights = known.float32 / (2 if precision == "float64" else 1)
        found = Hardware(
            name=known.title,
            flops=known.bfloat16 if precision == "bfloat16" else weights,
            utilisation=UTILISATION,
            product_flops=PRODUCTS * weights,
            memory=known.memory,
            memory_rate=known.memory_rate,
            link=known.link,
            bandwidth=config.bandwidth * GIGA,
            latency=10 * MICRO,
            per_node=config.per_node,
            overlaps=True,
        )
    given: dict[str, Any] = {
        "flops": config.flops,
        "utilisation": config.utilisation,
        "memory": None if config.memory is None else config.memory * GIGA,
        "link": None if config.link is None else config.link * GIGA,
        "latency": None if config.latency is None else config.latency * MICRO,
    }
    return dataclasses.replace(found, **{name: value for name, value in given.items() if value is not None})


def here(config: PlanConfig, precision: str, compiled: bool, rows: int) -> Hardware:
    """This machine, measured: one matrix product, then training steps of a few of the model's layers.

    Ranks on a CPU share its cores and its memory: one of them is measured with its share of the threads.
    Takes seconds.
    """
    import torch

    from tinylm.devices import Machine, choose_device, cpu_threads, matrix_rate, processor
    from tinylm.plan.measure import measured_rates, memory_of_host

    device = choose_device("auto")
    on_gpu = device == "cuda"
    threads = torch.get_num_threads() if on_gpu else max(1, (os.cpu_count() or 1) // config.gpus)
    machine = Machine(device, precision, compiled, threads).check()
    with cpu_threads(threads):
        rates = measured_rates(config.resolved_model(), machine, rows)
        peak = matrix_rate(machine) or rates.training
    name = torch.cuda.get_device_name() if on_gpu else f"{processor()}, {threads} threads a rank"
    if on_gpu:
        memory = float(torch.cuda.get_device_properties(0).total_memory)
    else:
        memory = (config.memory * GIGA if config.memory else memory_of_host()) / config.gpus
    return Hardware(
        name=name,
        flops=peak,
        utilisation=rates.training / peak,
        product_flops=rates.muon,
        memory=memory,
        memory_rate=rates.memory,
        link=LOOPBACK,
        bandwidth=config.bandwidth * GIGA,
        latency=100 * MICRO,
        per_node=config.per_node if on_gpu else config.gpus,
        overlaps=on_gpu,
        measured=True,
        scatters=on_gpu,
    )
