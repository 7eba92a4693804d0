"""torchrun itself: a rank that is killed is started again with the others, and SIGTERM saves the run.

python tests/slow/torchrun.py [--short]

Two ranks of `tinylm train` under torchrun with one restart. Rank 1 is killed; torchrun starts both again,
and they go on. Then torchrun is asked to stop: the run is saved, rank 0 alone tells, each step is in
metrics.jsonl once, nothing deviates, and the lock is given back.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.ranks_support import ENVIRONMENT, torchrun
from tests.slow.injection import tiny
from tests.slow.injection.proof import Proof, folder
from tinylm import checkpoint, metrics

WORDS = (
    "-m tinylm train corpus --out run --layers 1 --width 32 --mlp-width 32 --heads 2 --kv-heads 2 "
    "--head-size 16 --window 16 --batch-rows 4 --sample-tokens 0 --device cpu --steps 1000000 "
    "--save-every 5 --evaluate-every 1000000"
)


def attempt(place: Path, restarts: int) -> str | None:
    """What was lost by a killed rank and a SIGTERM after it, if torchrun may start ranks again that often."""
    command = torchrun(2, *WORDS.split(), options=(f"--max-restarts={restarts}",))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, env=ENVIRONMENT, stdout=log, stderr=log)
    try:
        if not passed(0, place / "run", process):
            return "torchrun ended, or took 120 s, before a step was saved"
        os.kill(rank(1, process.pid), signal.SIGKILL)
        killed_at = max(step for step, _ in checkpoint.list_steps(place / "run"))
        if not passed(killed_at + 10, place / "run", process):
            return f"nothing went on after step {killed_at}"
        process.terminate()
        if process.wait(60) == 0:
            return "exit code 0 after SIGTERM"
    finally:
        process.kill()
        process.wait()
    return problem(place)


def problem(place: Path) -> str | None:
    """What is wrong with a run that was stopped."""
    said = (place / "log").read_text("utf-8")
    found = checkpoint.newest_step(place / "run")
    step = found.manifest["step"]
    if found.skipped:
        return f"steps do not verify: {found.skipped}"
    if f"stopped     after step {step:,} of 1,000,000; go on with: torchrun" not in said:
        return f"the way back from step {step} is not told: {said[-400:]}"
    if said.count("stopped ") != 1:
        return "more than rank 0 tells that it stopped"
    rows = [row["step"] for row in metrics.read_metrics(place / "run")]
    if rows != list(range(1, step + 1)):
        return f"metrics.jsonl does not have each of {step} steps once"
    if found.manifest["deviations"]:
        return f"deviations: {found.manifest['deviations']}"
    if (place / "run" / "run.owner.json").exists():
        return "the lock was not given back"
    return None


def passed(step: int, run: Path, process: subprocess.Popen[bytes]) -> bool:
    """Whether a step after this one is saved within two minutes, and before torchrun ends."""
    deadline = time.monotonic() + 120
    while not (run.is_dir() and any(found > step for found, _ in checkpoint.list_steps(run))):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def rank(number: int, parent: int) -> int:
    """The process of a rank that torchrun started."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"\0RANK={number}\0".encode() in (place / "environ").read_bytes():
                status = (place / "status").read_text("utf-8")
                if f"PPid:\t{parent}\n" in status:
                    return int(place.name)
    raise LookupError(f"no rank {number} of {parent}")


def main() -> int:
    proof = Proof("torchrun starts a killed rank again, and SIGTERM saves the run")
    row = proof.row("kill -9 of one rank, then SIGTERM")
    for number in range(1 if proof.short else 5):
        with folder() as place:
            tiny.corpus(place / "corpus")
            row.count(f"attempt {number}", attempt(place, restarts=1))
    with folder() as place:
        tiny.corpus(place / "corpus")
        proof.control("--max-restarts=1").count("once", attempt(place, restarts=0))
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
