"""Where a run computes: device, precision, compile, threads, chosen by probing, once, and recorded."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch

from tinylm.config import Checked, TrainConfig
from tinylm.errors import ConfigError


@dataclass(frozen=True)
class Machine(Checked):
    """What was chosen for a run. A resume obeys it."""

    device: str
    precision: str
    compile: bool
    threads: int

    def problems(self) -> list[str]:
        found = []
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
    device = choose_device(config.device)
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
    return Machine(device, precision, wanted, threads)


def choose_device(wanted: str) -> str:
    """The device that `auto` stands for, or the wanted one; raises ConfigError if this machine lacks it."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if available[name])
    if not available.get(wanted, False):
        here = ", ".join(name for name, there in available.items() if there)
        raise ConfigError(f"device is {wanted!r}, which this machine does not have; it has {here}")
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


def versions() -> dict[str, str]:
    """What a manifest records of the software; a resume under others warns."""
    return {"python": platform.python_version(), "torch": torch.__version__, "system": sys.platform}
