"""A run so small that a step takes milliseconds, and what must be left of it after a fault."""

from __future__ import annotations

import contextlib
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # forked children must not wait for the parent's threads

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tests.slow.injection.proof import contents
from tinylm import checkpoint, metrics
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import build_corpus, open_corpus
from tinylm.errors import TinylmError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.trainer import resume, train

torch.set_num_threads(1)

SHAPE = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, head_size=32, window=16)
TEXTS = [f"document {number}: the quick brown fox, {number * number} times.\n" for number in range(12)]
OTHER_TEXTS = [f"another {number}: Zwölf Boxkämpfer jagen Viktor, {number}.\n" for number in range(15)]
BIT_EQUAL = ("metrics.jsonl", "model.safetensors", "training.safetensors")


def config(**changes: Any) -> TrainConfig:
    """Options of a run in this folder over the corpus `corpus`; every step is saved and two are kept."""
    options: dict[str, Any] = {
        "data": "corpus",
        "out": "run",
        "model": SHAPE,
        "batch_rows": 4,
        "micro_rows": 2,
        "steps": 6,
        "save_every": 1,
        "evaluate_every": 3,
        "evaluate_tokens": 64,
        "sample_tokens": 0,
        "device": "cpu",
        "precision": "float32",
        "compile": "no",
        "threads": 1,
    }
    return TrainConfig(**{**options, **changes})


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Without the picture and the measured speed of the machine, which take longer than the run."""
    with mock.patch("tinylm.trainer.draw_curve"), mock.patch("tinylm.trainer.matrix_rate", return_value=1e9):
        yield


def logs_not_cut() -> Any:
    """A resume that leaves the rows after its checkpoint in the logs."""
    return mock.patch.object(metrics, "cut" if hasattr(metrics, "cut") else "cut_after")


def corpus(place: Path, texts: list[str] = TEXTS, *, replace: bool = False) -> None:
    """Build a corpus; with `replace`, in the place of another."""
    build_corpus(texts, place, CorpusConfig(validation=0.2), replace=replace)


def new_run(**changes: Any) -> None:
    """Train a new run to its end or to `stop_after`."""
    with quickly():
        train(config(**changes))


def go_on(run: Path, stop_after: int | None = None) -> None:
    """Resume a run to its end or to `stop_after`."""
    with quickly():
        resume(run, stop_after=stop_after)


def two_steps(run: Path) -> dict[int, dict[str, bytes]]:
    """Save step 1 in a new folder `run`; gives its files, and those that step 2 must have."""
    run.mkdir()
    save(run, 1)
    other = run.with_name("other")
    other.mkdir()
    save(other, 2)
    return {1: contents(checkpoint.step_folder(run, 1)), 2: contents(checkpoint.step_folder(other, 2))}


def save(run: Path, step: int, keep: int = 1) -> None:
    """Save, verify and prune as the trainer does at a step; the weights differ from step to step."""
    model = Transformer(SHAPE, seed=step)
    state = Optimizer(model, TrainConfig(data="x")).state()
    checkpoint.verify_step(checkpoint.save_step(run, step, model, state, {"config": {"step": step}}))
    checkpoint.prune(run, keep)


def old_or_new(
    run: Path, steps: dict[int, dict[str, bytes]], *, must: str | None = None, torn: bool = False
) -> str | None:
    """What is wrong with a run in which the last of `steps` was being saved, or None.

    `steps` are the files of the steps before and of the new one. The newest verified step must be one of
    the last two, bit-equal; and every listed step must verify, unless `torn` allows one that does not.
    `must` demands "old" or "new".
    """
    try:
        found = checkpoint.newest_step(run).folder
    except TinylmError as error:
        return f"nothing loads: {error}"
    old, new = sorted(steps)[-2:]
    step = int(found.name.removeprefix("step-"))
    if step not in (old, new) or contents(found) != steps[step]:
        return f"step {step} loads and is not what was saved"
    if must is not None and step != {"old": old, "new": new}[must]:
        return f"the {must} step was expected, step {step} loads"
    for _, place in checkpoint.list_steps(run):
        try:
            checkpoint.verify_step(place)
        except TinylmError as error:
            if not torn:
                return f"a partial step is listed: {error}"
    return None


def old_or_new_corpus(place: Path, old: str | None, new: str, *, must: str | None = None) -> str | None:
    """What is wrong with a corpus (digest `old`, or none) over which `new` was being built, or None."""
    aside = list(place.parent.glob(f".old-{place.name}-*"))
    if not os.path.lexists(place) and must != "new" and (old is None or aside):
        # Between the two renames of a replacement the old corpus stands under a name that tells.
        return None if old is None else old_or_new_corpus(aside[0], old, new, must="old")
    if not os.path.lexists(place):
        return "no corpus is left"
    try:
        digest = open_corpus(place).digest
    except TinylmError as error:
        return f"a corpus that does not verify: {error}"
    if digest not in (old, new):
        return "a corpus that is neither the old nor the new one"
    if must is not None and digest != {"old": old, "new": new}[must]:
        return f"the {must} corpus was expected"
    return None


@contextlib.contextmanager
def in_place(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Instead of files.new_folder: the folder is written in its own place, without a rename."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    yield path
