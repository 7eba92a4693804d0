"""kill -9 and SIGTERM of one rank at random moments: all ranks end, and the run ends as if nothing had been.

python tests/slow/ranks.py [--short]

Two ranks train a small run, in DDP and sharded. After a random time one of them is killed, or is asked to
stop; the other must end by itself, every step that is listed must verify, and the newest must not be older
than before. Then both start again, until the run has ended: weights, optimizer state and metrics.jsonl must
be those of two ranks that nobody disturbed. Ranks that stop for a signal must do so after the same step.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch.distributed.fsdp
import torch.nn.parallel  # noqa: F401  # loaded once, before ranks are forked

from tests.ranks_support import Started, config
from tests.slow.injection import tiny
from tests.slow.injection.proof import Proof, Row, folder
from tinylm import checkpoint, metrics
from tinylm.errors import TinylmError

OPTIONS: dict[str, Any] = {
    "steps": 30,
    "batch_rows": 4,
    "save_every": 3,
    "evaluate_every": 10,
    "sample_tokens": 0,
    "precision": "float32",
    "rank_timeout": 12.0,
}
RUN = Path("run")
PATIENCE = 40.0
"""Seconds in which a rank must end when another one has ended; in a start it waits up to three times."""


def job(shard: bool) -> dict[str, Any]:
    """Resume the run; start it again where it ended before its first checkpoint."""
    if RUN.is_dir() and checkpoint.list_steps(RUN):
        return {"name": "run", "do": "resume", "run": str(RUN)}
    shutil.rmtree(RUN, ignore_errors=True)
    return {"name": "run", "do": "train", "config": config(Path(), "run", **OPTIONS, shard=shard)}


def attempt(shard: bool, seconds: float | None, chance: random.Random, number: int) -> tuple[list[Any], bool]:
    """What both ranks say of one attempt, and whether they had to be ended because one waited for ever."""
    for path in Path().glob("results-*"):
        path.unlink()
    started = Started(Path.cwd(), 2, [job(shard)])
    if seconds is not None:
        time.sleep(chance.random() * seconds)
        started.tell(chance.randrange(2), number)
    stuck = not started.wait(PATIENCE)
    return started.outcomes(), stuck


def disturbed(row: Row, faults: int, number: int, shard: bool, expected: dict[str, bytes], seconds: float):
    """Disturb runs until there were that many faults; look at each run that has come to its end."""
    chance = random.Random(faults * 100 + number + shard)
    while row.injected < faults:
        shutil.rmtree(RUN, ignore_errors=True)
        newest = -1
        while True:
            said, stuck = attempt(shard, seconds, chance, number)
            found, problem = what_is_left(newest)
            ends = [one and one["run"].get("step") for one in said]
            if stuck:
                problem = f"a rank waited longer than {PATIENCE:.0f} s for one that had ended"
            elif number == signal.SIGTERM and None not in said and ends[0] != ends[1]:
                problem = f"the ranks stopped after the steps {ends}"
            if ends == [OPTIONS["steps"]] * 2:
                break
            row.count(f"fault {row.injected + 1}", problem)
            if problem is not None:
                return
            seconds *= 1.1 if found == newest else 1.0  # a slower machine must not be disturbed for ever
            newest = found
        differ = [name for name, data in ending().items() if expected[name] != data]
        if differ:
            row.losses.append(f"a run after {row.injected} faults: other bytes in {', '.join(differ)}")
            return


def what_is_left(newest: int) -> tuple[int, str | None]:
    """The newest step, and what is wrong with those that are listed; `newest` is what it was before."""
    steps = checkpoint.list_steps(RUN) if RUN.is_dir() else []
    try:
        for _, place in steps:
            checkpoint.verify_step(place)
    except TinylmError as error:
        return newest, f"a partial step is listed: {error}"
    step = steps[0][0] if steps else -1
    return step, f"went back from step {newest} to {step}" if step < newest else None


def ending() -> dict[str, bytes]:
    """What must be the same bytes at the end of a run."""
    last = checkpoint.step_folder(RUN, OPTIONS["steps"])
    places = (RUN / metrics.METRICS, last / checkpoint.MODEL, last / checkpoint.TRAINING)
    return {place.name: place.read_bytes() for place in places}


def main() -> int:
    proof = Proof("one of two ranks is killed, or asked to stop, at random moments")
    os.environ["OMP_NUM_THREADS"] = "1"
    with folder() as place:
        tiny.corpus(place / "corpus")
        for shard in (False, True):
            shutil.rmtree(RUN, ignore_errors=True)
            began = time.monotonic()
            attempt(shard, None, random.Random(0), 0)
            seconds, expected = 0.7 * (time.monotonic() - began), ending()
            shutil.rmtree(RUN)
            attempt(shard, None, random.Random(0), 0)
            if ending() != expected:
                raise RuntimeError("two runs that nobody disturbs differ: this machine proves nothing")
            faults, kind = 5 if proof.short else 50, "sharded" if shard else "DDP"
            row = proof.row(f"kill -9 of one rank, {kind}")
            disturbed(row, faults, signal.SIGKILL, shard, expected, seconds)
            row = proof.row(f"SIGTERM to one rank, {kind}")
            disturbed(row, faults, signal.SIGTERM, shard, expected, seconds)
        with tiny.logs_not_cut():
            row = proof.control("cutting rows after the checkpoint")
            disturbed(row, 20, signal.SIGKILL, True, expected, seconds)
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
