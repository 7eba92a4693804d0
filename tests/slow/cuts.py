"""Every cut point of two epochs: a run that stops at any step and resumes ends as the run that did not stop.

python tests/slow/cuts.py [--short]

A run of two epochs is stopped after k steps and resumed, for every k, in plain form and with accumulation,
dropout, clipping and the other policy; stopped twice; and cut at the last step and at the border of the
epochs. Weights, optimizer state and metrics.jsonl must be the same bytes.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection import tiny
from tests.slow.injection.proof import Proof, Row, folder
from tinylm import checkpoint, metrics
from tinylm.batches import Plan
from tinylm.corpus import open_corpus
from tinylm.errors import TinylmError
from tinylm.optimizer import Optimizer

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation, dropout, clipping": {"micro_rows": 2, "dropout": 0.2, "clip": 0.5},
    "documents apart, AdamW alone": {
        "model": dataclasses.replace(tiny.SHAPE, policy="reset", tied=True),
        "muon": False,
        "weight_decay": 0.1,
    },
}


def two_epochs(changes: dict[str, Any]) -> int:
    """Steps until every row was read twice."""
    config = tiny.config(**changes)
    model = config.resolved_model()
    plan = Plan(open_corpus("corpus").train, model.policy, model.window, config.batch_rows, config.seed)
    return -(-(plan.rows_of_epoch(0) + plan.rows_of_epoch(1)) // config.batch_rows)


def cut_at_every_step(row: Row, name: str, changes: dict[str, Any], every: int = 1) -> None:
    """Stop after each step (every `every`-th) and resume; then stop twice."""
    steps = two_epochs(changes)
    options = {**changes, "steps": steps, "save_every": steps, "evaluate_every": steps // 2}
    tiny.new_run(**options)
    expected = outcome(Path("run"), steps)
    for cut in range(1, steps, every):
        for again in (None, (cut + steps + 1) // 2) if cut % 5 == 1 and cut + 1 < steps else (None,):
            shutil.rmtree("run")
            tiny.new_run(**options, stop_after=cut)
            where = f"{name}, step {cut} of {steps}" + (f" and {again}" if again else "")
            try:
                if again is not None:
                    tiny.go_on(Path("run"), stop_after=again)
                tiny.go_on(Path("run"))
            except TinylmError as error:
                row.count(where, f"it cannot go on: {error}")
                continue
            found = outcome(Path("run"), steps)
            differ = [file for file in expected if found[file] != expected[file]]
            row.count(where, f"other bytes in {', '.join(differ)}" if differ else None)
    shutil.rmtree("run")


def outcome(run: Path, step: int) -> dict[str, bytes]:
    """What must be the same bytes."""
    last = checkpoint.step_folder(run, step)
    places = (run / metrics.METRICS, last / checkpoint.MODEL, last / checkpoint.TRAINING)
    return {place.name: place.read_bytes() for place in places}


def forgetful(part: str) -> Callable[..., None]:
    """A resume that lets a part of the optimizer's state begin anew."""
    real = Optimizer.load_state

    def load_state(self: Optimizer, tensors: Any, where: str) -> None:
        fresh = self.state()
        fresh = {name: tensor.clone() for name, tensor in fresh.items()}
        real(self, {k: fresh[k] if k.startswith(part) else v for k, v in tensors.items()}, where)

    return load_state


def controls() -> Iterator[tuple[str, Any]]:
    """What a resume must not leave out."""
    for part in ("muon.", "adam.first.", "adam.second.", "steps_done"):
        yield (
            f"{part.strip('.')} of the optimizer",
            mock.patch.object(Optimizer, "load_state", forgetful(part)),
        )
    yield "cutting rows after the checkpoint", tiny.logs_not_cut()


def main() -> int:
    proof = Proof("a run is stopped at every step of two epochs and resumed")
    with folder() as place:
        tiny.corpus(place / "corpus")
        for name, changes in VARIANTS.items():
            every = 3 if proof.short and changes else 1
            cut_at_every_step(proof.row(name), name, changes, every)
        for name, without in controls():
            with without:
                if name.startswith("cutting"):
                    killed_after_the_checkpoint(proof.control(name))
                else:
                    cut_at_every_step(proof.control(name), name, {}, every=4)
        killed_after_the_checkpoint(proof.row("rows after the checkpoint"))
    return proof.finish()


def killed_after_the_checkpoint(row: Row) -> None:
    """A log that is ahead of its checkpoint, as a kill leaves it, also in the middle of a row."""
    tiny.new_run(steps=6)
    expected = outcome(Path("run"), 6)
    shutil.rmtree("run")
    for ahead in (b'{"step":3,"loss":1.0}\n', b'{"step":3,"loss":1.0}\n{"st', b'{"step"', b"\0" * 40):
        tiny.new_run(steps=6, stop_after=2)
        for log in (metrics.METRICS, metrics.TIMINGS):
            with open(Path("run") / log, "ab") as file:
                file.write(ahead)
        lost = None
        try:
            tiny.go_on(Path("run"))
        except TinylmError as error:
            lost = f"it cannot go on: {error}"
        if lost is None and outcome(Path("run"), 6) != expected:
            lost = "other bytes"
        row.count(f"the log ends with {ahead!r}", lost)
        shutil.rmtree("run")


if __name__ == "__main__":
    sys.exit(main())
