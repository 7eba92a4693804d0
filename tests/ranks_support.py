"""Several ranks in tests: forked from the process of the tests, each does what a list of jobs says.

Loading torch on each rank takes longer than all that the ranks do, so they are forked, and do many jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SHAPE = {"layers": 2, "width": 32, "mlp_width": 32, "heads": 2, "kv_heads": 2, "head_size": 16, "window": 16}
POSIX = unittest.skipUnless(os.name == "posix", "gloo between processes, and signals of POSIX")


def config(place: Path, name: str, **changes: Any) -> dict[str, Any]:
    """The options of a small run in float64 over the corpus `corpus` of a place."""
    values = {
        "data": str(place / "corpus"),
        "out": str(place / name),
        "model": SHAPE,
        "steps": 20,
        "batch_rows": 12,
        "precision": "float64",
        "device": "cpu",
        "compile": "no",
        "threads": 1,
        "sample_tokens": 0,
        "evaluate_every": 10,
        "evaluate_tokens": 64,
        "weight_decay": 0.1,
        "rank_timeout": 60.0,
    }
    return {**values, **changes, "model": {**SHAPE, **changes.get("model", {})}}


def torchrun(ranks: int, *arguments: str | Path, options: tuple[str, ...] = ()) -> list[str]:
    """The command that starts ranks on this machine; `arguments` as for python."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*start, *options, *map(str, arguments)]


class Started:
    """Ranks that were forked from this process (torch is loaded already) and do jobs, one after the other."""

    def __init__(self, place: Path, ranks: int, jobs: list[dict[str, Any]]) -> None:
        self.place, self.ranks = place, ranks
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sys.stdout.flush()
        self.children = [self._fork(rank, port, jobs) for rank in range(ranks)]
        self.running = set(self.children)

    def _fork(self, rank: int, port: int, jobs: list[dict[str, Any]]) -> int:
        if child := os.fork():
            return child
        try:
            # The parent's threads are not there after a fork: whoever waits for them waits for ever.
            torch.set_num_threads(1)
            said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.ranks, "MASTER_PORT": port}
            os.environ.update({"MASTER_ADDR": "127.0.0.1", **{k: str(v) for k, v in said.items()}})
            results = {job["name"]: do(job) for job in jobs}
            path = self.place / f"results-{self.ranks}-{rank}.json"
            path.write_text(json.dumps(results), encoding="utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            code = 1
        os._exit(code)

    def tell(self, rank: int, number: int) -> None:
        """Send a rank a signal, if it still runs."""
        if self.children[rank] in self.running:
            os.kill(self.children[rank], number)

    def wait(self, seconds: float) -> bool:
        """Wait until all have ended; those that have not after so long are killed, and it is False."""
        deadline = time.monotonic() + seconds
        while self.running:
            self.running -= {child for child in self.running if os.waitpid(child, os.WNOHANG)[0]}
            if self.running and time.monotonic() > deadline:
                for child in self.running:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                self.running = set()
                return False
            time.sleep(0.01)
        return True

    def results(self) -> dict[str, list[dict[str, Any]]]:
        """What every rank said of every job, by the name of the job."""
        said = self.outcomes()
        if None in said:
            raise AssertionError("a rank ended without a word")
        return {name: [one[name] for one in said if one] for name in said[0] or {}}

    def outcomes(self) -> list[dict[str, dict[str, Any]] | None]:
        """What each rank said, by the name of the job; None for one that was killed."""
        self.wait(300)
        paths = [self.place / f"results-{self.ranks}-{rank}.json" for rank in range(self.ranks)]
        return [json.loads(path.read_bytes()) if path.exists() else None for path in paths]


def do(job: dict[str, Any]) -> dict[str, Any]:
    """One job on one rank: a run that is trained or resumed, and what can be seen of it from inside."""
    from tinylm import trainer, training_step
    from tinylm.config import ModelConfig, TrainConfig
    from tinylm.distributed.sharding import local
    from tinylm.errors import TinylmError

    said: dict[str, Any] = {"ids": [], "sent": 0}
    runs: list[training_step.Run] = []
    prepare, mean_loss = trainer.prepare, training_step.mean_loss

    def prepared(*arguments: Any) -> training_step.Run:
        runs.append(prepare(*arguments))
        return runs[-1]

    def loss(model: Any, inputs: Any, targets: Any, *rest: Any) -> Any:
        said["ids"].append(inputs.tolist())
        return mean_loss(model, inputs, targets, *rest)

    with (
        contextlib.ExitStack() as patches,
        mock.patch("tinylm.trainer.draw_curve"),
        mock.patch("tinylm.trainer.matrix_rate", return_value=None),
        mock.patch("tinylm.trainer.prepare", prepared),
        mock.patch("tinylm.trainer.compiled", return_value=loss),
    ):
        if "fault" in job and os.environ.get("RANK", "0") == str(job["rank"]):
            patches.enter_context(fault(job["fault"]))
        if job.get("measured"):
            measure(patches, said)
        try:
            if job["do"] == "train":
                values = {**job["config"], "model": ModelConfig(**job["config"]["model"])}
                result = trainer.train(TrainConfig(**values))
            else:
                result = trainer.resume(job["run"], **job.get("changes", {}))
            said["step"], said["signal"] = result.step, result.signal
        except TinylmError as error:
            said["error"] = [type(error).__name__, str(error)]
        except ZeroDivisionError as error:
            said["error"] = ["ZeroDivisionError", str(error)]
    if runs:
        parameters = [local(parameter) for parameter in runs[-1].model.parameters()]
        states = [local(tensor) for tensor in runs[-1].optimizer.state().values() if tensor.ndim]
        for name, tensors in (("parameters", parameters), ("optimizer", states)):
            said[name] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return said


def measure(patches: contextlib.ExitStack, said: dict[str, Any]) -> None:
    """Note the most memory, in bytes above what this process had, until it has a model that is cut
    (`built`), until the first step (`loaded`), and in the saves above what it had before each (`saved`)."""
    from tinylm import trainer

    large_blocks = -3  # M_MMAP_THRESHOLD: these go back to the system, so that what is resident is in use
    ctypes.CDLL(None).mallopt(large_blocks, 1 << 16)
    optimizer, loop, save = trainer.Optimizer, trainer.loop, trainer.save
    before = resident()

    def noted(name: str, work: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            said.setdefault(name, resident("VmHWM") - before)
            return work(*given, **options)

        return call

    def saved(*given: Any, **options: Any) -> None:
        start = resident()
        save(*given, **options)
        said["saved"] = max(said.get("saved", 0), resident("VmHWM") - start)

    patches.enter_context(mock.patch.object(trainer, "Optimizer", noted("built", optimizer)))
    patches.enter_context(mock.patch.object(trainer, "loop", noted("loaded", loop)))
    patches.enter_context(mock.patch.object(trainer, "save", saved))


def resident(kind: str = "VmRSS") -> int:
    """Bytes of this process in memory: now (from where the peak, VmHWM, is counted anew), or at the peak."""
    if kind == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(kind):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"no {kind}")


FAULTY = 3
"""The step (from 0) in which a fault happens, or the checkpoint after it."""


def fault(kind: str) -> Any:
    """A patch by which this rank fails in a step, or while the step after it is saved."""
    from tinylm import files, trainer, training_step
    from tinylm.distributed.ranks import Ranks

    accumulate, write_new, commit = training_step.accumulate, files.write_new, Ranks.commit
    steps = 0
    agreed, written, write_all = trainer.check_same_step, 0, files.write_all

    def full_in_a_tensor(file: Any, data: Any) -> None:
        nonlocal written
        if f"{FAULTY + 1:08d}" in file.name and file.name.endswith("training.safetensors"):
            written += 1
            if written == 4:
                write_all(file, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, data)

    def flipped(folder: Path, seen: list[int]) -> None:
        agreed(folder, seen)
        for path in sorted(folder.glob("step-*/training.safetensors")):
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            path.write_bytes(data)

    def faulty_step(run: Any, batch: Any, step: int) -> float:
        if step == FAULTY:
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "memory":
                raise MemoryError
            if kind == "bug":
                raise ZeroDivisionError("a bug of this rank")
            if kind == "hang":
                time.sleep(8)
            if kind == "signal":
                signal.raise_signal(signal.SIGTERM)
            if kind == "nan":
                with mock.patch.object(Ranks, "total", lambda self, loss: total(self, float("nan"))):
                    return accumulate(run, batch, step)
        return accumulate(run, batch, step)

    def full_disk(path: Any, data: Any) -> str:
        if f"{FAULTY + 1:08d}" in str(path) and str(path).endswith("manifest.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write_new(path, data)

    def leaving(self: Ranks, write: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == FAULTY + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, write)

    def dying(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    total = Ranks.total
    if kind == "kill before the store":
        return mock.patch("torch.distributed.rendezvous", dying)
    if kind == "kill before the second group":
        return mock.patch("torch.distributed.new_group", dying)
    if kind == "disk in a tensor":
        return mock.patch.object(files, "write_all", full_in_a_tensor)
    if kind == "flip":
        return mock.patch.object(trainer, "check_same_step", flipped)
    if kind == "disk":
        return mock.patch.object(files, "write_new", full_disk)
    if kind == "kill before the rename":
        return mock.patch.object(Ranks, "commit", leaving)
    return mock.patch.object(training_step, "accumulate", faulty_step)
