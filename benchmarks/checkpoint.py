"""What do a save and a load of a checkpoint cost, beside the same bytes written and read plainly?

    python benchmarks/checkpoint.py [--presets mini,base] [--rounds 5] [--folder DIR] [--json FILE]

save: `tinylm.checkpoint.save_step` of a model and its optimizer (Muon and AdamW), against the same two files
hashed with SHA-256, written and fsynced, one after the other. load: `tinylm.checkpoint.load` of a step (both
files verified, the model made) and `load_step` (the optimizer's state too, as a resume does), against the
same bytes of both files read and hashed, one after the other. Everything else that a save and a load promise
(folder renamed and synced, manifest, header checked, every number finite, a model made) is ours to pay. The
system's file cache is warm on both sides. They take turns in one process.

A save stops a training loop: `steps` is how many of the preset's training steps one save costs as the trainer
does it, verified once it is written, by the rate of a few steps of it (left out by --no-steps).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import measuring
import torch

from tinylm import checkpoint
from tinylm.config import PRESETS, TrainConfig
from tinylm.files import BLOCK
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.training_step import mean_loss

VERSION = 1
TARGET = 0.7
PEERS = {"save": "plain write", "load": "plain read", "load to resume": "plain read"}


def written_plainly(contents: dict[str, bytes], folder: Path) -> None:
    """The peer of a save: each file hashed, written and fsynced, block by block."""
    folder.mkdir()
    for name, data in contents.items():
        digest, view = hashlib.sha256(), memoryview(data)
        with open(folder / name, "xb", buffering=0) as file:
            for start in range(0, len(view), BLOCK):
                digest.update(view[start : start + BLOCK])
                file.write(view[start : start + BLOCK])
            os.fsync(file.fileno())


def read_plainly(folder: Path) -> None:
    """The peer of a load: each file read into memory, and each block hashed while it is at hand."""
    for path in sorted(folder.iterdir()):
        digest, view = hashlib.sha256(), memoryview(bytearray(path.stat().st_size))
        with open(path, "rb", buffering=0) as file:
            while view:
                count = file.readinto(view[:BLOCK])
                digest.update(view[:count])
                view = view[count:]


def state_of(preset: str) -> tuple[Transformer, Optimizer]:
    """A model and an optimizer whose state is not zero: that of one step with made-up gradients."""
    model = Transformer(PRESETS[preset], 0)
    optimizer = Optimizer(model, TrainConfig(data="none"))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
    optimizer.step(0.01)
    optimizer.zero_grad()
    return model, optimizer


def measure(preset: str, place: Path, options: argparse.Namespace, session: measuring.Session) -> None:
    """One preset: save beside plain write, load beside plain read."""
    model, optimizer = state_of(preset)
    run, plain = place / preset, place / f"{preset}-plain"
    run.mkdir()
    first = checkpoint.save_step(run, 0, model, optimizer.state(), {})
    contents = {name: (first / name).read_bytes() for name in (checkpoint.MODEL, checkpoint.TRAINING)}
    size = sum(map(len, contents.values()))
    written_plainly(contents, plain)

    def save() -> float:
        taken = measuring.seconds_of(lambda: checkpoint.save_step(run, 1, model, optimizer.state(), {}))
        shutil.rmtree(run / "step-00000001")
        return taken

    def write() -> float:
        taken = measuring.seconds_of(lambda: written_plainly(contents, plain / "again"))
        shutil.rmtree(plain / "again")
        return taken

    def save_as_the_trainer() -> float:
        def work() -> None:
            checkpoint.verify_step(checkpoint.save_step(run, 1, model, optimizer.state(), {}))

        taken = measuring.seconds_of(work)
        shutil.rmtree(run / "step-00000001")
        return taken

    turns = {
        "save": save,
        "save and verify": save_as_the_trainer,
        "plain write": write,
        "load": lambda: measuring.seconds_of(lambda: checkpoint.load(first)),
        "load to resume": lambda: measuring.seconds_of(lambda: checkpoint.load_step(first)),
        "plain read": lambda: measuring.seconds_of(lambda: read_plainly(plain)),
    }
    seconds = measuring.alternate(turns, options.rounds)
    step = step_seconds(model, optimizer, options) if options.steps else None
    for name, taken in seconds.items():
        peer = PEERS.get(name)
        more: dict[str, Any] = {}
        if peer is not None:
            more["ratio"] = measuring.ratio_of(seconds[peer], taken)
        if name == "save and verify" and step is not None:
            more["steps"] = measuring.median(taken) / step
        session.row(
            preset=preset,
            what=name,
            megabytes=size / 1e6,
            seconds=measuring.median(taken),
            megabytes_per_second=size / 1e6 / measuring.median(taken),
            rounds=[round(each, 5) for each in taken],
            **more,
        )
        if peer is not None:
            session.compare(
                f"checkpoint {name}, {preset} ({size / 1e6:,.0f} MB)",
                "MB/s",
                "tinylm",
                size / 1e6 / measuring.median(taken),
                "hashed, written, fsynced" if peer == "plain write" else "read and hashed",
                size / 1e6 / measuring.median(seconds[peer]),
                more["ratio"],
                TARGET,
            )


def step_seconds(model: Transformer, optimizer: Optimizer, options: argparse.Namespace) -> float:
    """Seconds of a training step of 8 rows of the preset's window, or 2,048 tokens where that is less."""
    window = min(model.config.window, 256)
    ids_BT = torch.randint(0, 256, (8, window + 1), generator=torch.Generator().manual_seed(1))
    total = torch.tensor(float(8 * window))

    def step() -> None:
        loss = mean_loss(model, ids_BT[:, :-1].contiguous(), ids_BT[:, 1:].contiguous(), total, 0.0)
        torch.autograd.backward(loss)
        optimizer.step(0.0)
        optimizer.zero_grad()

    return measuring.median([measuring.seconds_of(step) for _ in range(3)])


def main() -> int:
    parser = measuring.parser(__doc__, "checkpoint")
    parser.add_argument("--presets", default="mini,base", help="with commas (default: mini,base)")
    parser.add_argument("--rounds", type=measuring.positive, default=5)
    parser.add_argument("--folder", type=Path, help="where the temporary files go: on the disk to measure")
    parser.add_argument("--no-steps", dest="steps", action="store_false", help="measure no training step")
    options = parser.parse_args()
    presets = ["nano"] if options.short else options.presets.split(",")
    if unknown := [name for name in presets if name not in PRESETS]:
        parser.error(f"--presets: {', '.join(unknown)}; expected some of {', '.join(PRESETS)}")
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is not a folder that exists")
    options.rounds = 1 if options.short else options.rounds
    settings = {"presets": presets, "rounds": options.rounds}
    session = measuring.Session("checkpoint", VERSION, options.threads, settings, options.short).begin()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="tinylm-checkpoint-", dir=options.folder) as folder:
        for preset in presets:
            measure(preset, Path(folder), options, session)
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
