"""Where a run computes: device, precision, compile, threads, chosen by probing, once, and recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy
import torch

from tinylm.config import Checked, TrainConfig
from tinylm.config.checked import booleans, integers
from tinylm.distributed.launch import launched
from tinylm.errors import ConfigError, TrainingError


@dataclass(frozen=True)
class Machine(Checked):
    """What was chosen for a run. A resume obeys it."""

    device: str
    precision: str
    compile: bool
    threads: int
    deterministic: bool = False
    ranks: int = 1
    shard: bool = False

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """As for every configuration; a record that names no ranks is that of one process."""
        given = {"ranks": 1, "shard": False, **values} if isinstance(values, Mapping) else values
        return super().from_dict(given, where)

    def problems(self) -> list[str]:
        found = integers(self, ("threads", "ranks"), 1)
        found += booleans(self, ("compile", "deterministic", "shard"))
        if self.device not in ("cpu", "cuda", "mps"):
            found.append(f"device is {self.device!r}, expected cpu, cuda or mps")
        if self.precision not in ("float32", "bfloat16", "float64"):
            found.append(f"precision is {self.precision!r}, expected float32, bfloat16 or float64")
        return found

    @property
    def weight_dtype(self) -> torch.dtype:
        """Weights are float32 also under bfloat16 autocast."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which forward passes run."""
        if self.precision == "bfloat16":
            return torch.autocast(self.device, dtype=torch.bfloat16)
        return nullcontext()

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def choose_machine(config: TrainConfig) -> Machine:
    """Resolve every `auto` of a configuration.

    `compile` is on by itself only on CUDA: on a CPU it took over a minute and made steps no faster (LAB.md).
    """
    launch = launched()
    device = choose_device(config.device)
    if device == "cuda" and not launch.alone and launch.local_rank >= torch.cuda.device_count():
        raise TrainingError(
            f"rank {launch.rank} needs a GPU of its own, and this machine has {torch.cuda.device_count()}; "
            f"use --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    if device == "mps" and not launch.alone:
        raise ConfigError("device is mps, where ranks cannot meet; use --device cpu, or one process")
    precision = config.precision
    if precision == "auto":
        precision = "bfloat16" if device == "cuda" and torch.cuda.is_bf16_supported(False) else "float32"
    if precision == "float64" and device == "mps":
        raise ConfigError("precision is float64, which MPS does not have; use float32, or --device cpu")
    wanted = {"yes": True, "no": False}.get(config.compile)
    obstacle = compile_obstacle(device)
    if wanted and obstacle:
        raise ConfigError(f"compile is yes, but {obstacle}; use --compile no")
    if wanted is None:
        wanted = device == "cuda" and obstacle is None
    threads = config.threads if config.threads is not None else torch.get_num_threads()
    shard = config.shard and not launch.alone
    return Machine(device, precision, wanted, threads, config.deterministic, launch.size, shard)


def choose_device(wanted: str) -> str:
    """The device that `auto` stands for, or the wanted one; raises ConfigError if this machine lacks it."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if available[name])
    if not available.get(wanted, False):
        here = ", ".join(name for name, there in available.items() if there)
        raise ConfigError(
            f"device is {wanted!r}, which this machine does not have; it has {here}: name one with --device"
        )
    return wanted


def compile_obstacle(device: str) -> str | None:
    """Why torch.compile cannot work here, or None."""
    if device == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton is not installed"
    if device == "mps":
        return "it is not reliable on MPS"
    compiler = os.environ.get("CXX") or next((c for c in ("g++", "clang++", "cl") if shutil.which(c)), None)
    return None if compiler and shutil.which(compiler) else "no C++ compiler was found"


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Use `count` CPU threads inside, and as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def reproducible(machine: Machine) -> Iterator[None]:
    """Inside, only operations that give the same bits every time are used, or torch raises.

    On CUDA where the record asks for it: cuBLAS reads its setting from the environment when it starts, so
    it is put there (and taken back). On a CPU where the step is compiled: compiled code would add up the
    gradients of the embedding in the order in which its threads happen to arrive. Eager operations of ours
    are deterministic there, for a given number of threads.
    """
    if machine.device == "cpu" and machine.compile:
        with _deterministic_operations():
            yield
        return
    if not (machine.deterministic and machine.device == "cuda"):
        yield
        return
    cudnn, given = torch.backends.cudnn, os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    flags = cudnn.benchmark, cudnn.deterministic
    if given not in (":4096:8", ":16:8"):  # the two that NVIDIA documents as deterministic
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        with _deterministic_operations():
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic = flags
        if given is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG")
        else:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = given


@contextmanager
def _deterministic_operations() -> Iterator[None]:
    strict, lenient = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=lenient)


def matrix_rate(machine: Machine) -> float | None:
    """Floating-point operations a second in one large matrix product; None where that is too fast to tell."""
    size = 4096 if machine.device == "cuda" else 1024
    dtype = torch.bfloat16 if machine.precision == "bfloat16" else machine.weight_dtype
    a = torch.ones(size, size, device=machine.device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        synchronize(machine.device)
        started = time.perf_counter()
        a @ a
        synchronize(machine.device)
        best = min(best, time.perf_counter() - started)
    return 2.0 * size**3 / best if best > 1e-5 else None


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of a forward or backward pass says that memory ran out, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def versions(device: str = "cpu") -> dict[str, str]:
    """What a manifest records of software and hardware; a resume under others warns."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": sys.platform,
        "processor": processor(),
    }
    if device == "cuda":
        found["gpu"] = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return found


def processor() -> str:
    """The CPU's name where the system tells it, and the instructions that torch uses of it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        names = [
            line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")
        ]
        name = names[0] if names else name
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
