"""kill -9 at random moments: a run ends as if nothing had been, a build leaves the old corpus or none.

python tests/slow/kill_run.py [--short]

A small run is started, killed after a random time, resumed, killed again, until it has ended; then weights,
optimizer state and metrics.jsonl must be those of the run that was not killed. After each kill the newest
step must verify and must not be older than the newest one before. Some of the kills meet the command in a
process of its own. Builds of a new corpus and of one in the place of another are killed as well.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection import children, tiny
from tests.slow.injection.proof import Proof, Row, folder, fresh
from tinylm import checkpoint, files, metrics
from tinylm.corpus import open_corpus
from tinylm.errors import TinylmError
from tinylm.optimizer import Optimizer

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"steps": 30, "save_every": 3, "evaluate_every": 10}
RUN = Path("run")


def killed_runs(row: Row, kills: int, expected: dict[str, bytes], seconds: float, seed: int) -> None:
    """Kill and resume runs until there were that many kills; look at each run that has come to its end."""
    chance = random.Random(seed)
    while row.injected < kills:
        shutil.rmtree(RUN, ignore_errors=True)
        newest = -1
        while True:
            outcome = children.killed_after(start_or_go_on, chance.random() * seconds)
            if outcome.code == 0:
                break
            found, problem = what_is_left(newest)
            if outcome.code != -9:
                problem = f"it cannot go on: {outcome.message}"
            row.count(f"kill {row.injected + 1}", problem)
            if problem is not None:
                return
            if found == newest:  # a machine that has become slower must not be killed for ever
                seconds *= 1.05
            newest = found
        ended = ending(RUN)
        differ = [name for name in expected if ended.get(name) != expected[name]]
        if differ:
            row.losses.append(f"a run after {row.injected} kills: other bytes in {', '.join(differ)}")
            return


def start_or_go_on() -> None:
    """Resume the run; start it again where it was killed before its first checkpoint."""
    if RUN.is_dir() and checkpoint.list_steps(RUN):
        tiny.go_on(RUN)
    else:
        shutil.rmtree(RUN, ignore_errors=True)
        tiny.new_run(**OPTIONS)


def what_is_left(newest: int) -> tuple[int, str | None]:
    """The newest step that verifies, and what is wrong; `newest` is what it was before."""
    if not RUN.is_dir() or not checkpoint.list_steps(RUN):
        return -1, None if newest < 0 else f"step {newest} is gone"
    try:
        for _, place in checkpoint.list_steps(RUN):
            checkpoint.verify_step(place)
    except TinylmError as error:
        return newest, f"a partial step is listed: {error}"
    step = int(checkpoint.newest_step(RUN).folder.name.removeprefix("step-"))
    return step, f"went back from step {newest} to {step}" if step < newest else None


def ending(run: Path) -> dict[str, bytes]:
    """What must be the same bytes at the end of a run."""
    last = checkpoint.step_folder(run, OPTIONS["steps"])
    places = (run / metrics.METRICS, last / checkpoint.MODEL, last / checkpoint.TRAINING)
    return {place.name: place.read_bytes() for place in places}


def killed_commands(row: Row, kills: int, expected: dict[str, bytes], seed: int) -> None:
    """The same with `tinylm train --resume` as a process of its own, killed once it has saved a step."""
    chance = random.Random(seed)
    shutil.rmtree(RUN, ignore_errors=True)
    tiny.new_run(**OPTIONS, stop_after=3)
    for number in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-m", "tinylm", "train", "--resume", str(RUN)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = checkpoint.list_steps(RUN)
        deadline = time.monotonic() + 120
        while child.poll() is None and number < kills and checkpoint.list_steps(RUN) == before:
            if time.monotonic() > deadline:
                raise RuntimeError("the command saves no step")
            time.sleep(0.001)
        time.sleep(chance.random() * 0.01)
        if number < kills:
            child.kill()
            if child.wait() == -9:
                row.count(f"kill {number + 1} of the command", what_is_left(-1)[1])
        elif child.wait() or ending(RUN) != expected:
            row.losses.append("the run of the command ends with other bytes")


def killed_builds(row: Row, kills: int, seed: int) -> None:
    """Kill builds at random moments: of a new corpus, and of one that takes the place of another."""
    chance = random.Random(seed)
    new, home = open_corpus("expected").digest, Path("home")
    old = open_corpus("old/mine").digest
    began = time.monotonic()
    children.run(lambda: tiny.corpus(Path(f"timed {seed}"), tiny.OTHER_TEXTS))
    seconds = 1.2 * (time.monotonic() - began)
    works: list[tuple[Path, str | None, Callable[[], None]]] = [
        (Path("none"), None, lambda: tiny.corpus(home / "mine", tiny.OTHER_TEXTS)),
        (Path("old"), old, lambda: tiny.corpus(home / "mine", tiny.OTHER_TEXTS, replace=True)),
    ]
    while row.injected < kills:
        start, before, work = works[row.injected % 2]
        fresh(home, start)
        outcome = children.killed_after(work, chance.random() * seconds)
        if outcome.code == -9:
            row.count(f"build {row.injected + 1}", tiny.old_or_new_corpus(home / "mine", before, new))


def main() -> int:
    proof = Proof("a run, or a build, is killed at random moments")
    with folder() as place:
        tiny.corpus(place / "corpus")
        tiny.corpus(place / "old/mine", tiny.TEXTS)
        tiny.corpus(place / "expected", tiny.OTHER_TEXTS)
        (place / "none").mkdir()
        tiny.new_run(**OPTIONS)
        expected = ending(RUN)
        shutil.rmtree(RUN)
        began = time.monotonic()
        children.run(start_or_go_on)  # of which about half is left to go after a kill
        seconds = 0.6 * (time.monotonic() - began)
        if ending(RUN) != expected:
            raise RuntimeError("two runs that nobody disturbs differ: this machine proves nothing")
        kills = 40 if proof.short else 200
        killed_runs(proof.row("kill -9 of a run"), kills, expected, seconds, seed=1)
        killed_commands(proof.row("kill -9 of tinylm train"), 2 if proof.short else 8, expected, seed=2)
        killed_builds(proof.row("kill -9 of a corpus build"), kills, seed=3)
        with tiny.logs_not_cut():
            killed_runs(proof.control("cutting rows after the checkpoint"), 60, expected, seconds, seed=4)
        with mock.patch.object(Optimizer, "load_state"):
            killed_runs(proof.control("the state of the optimizer"), 60, expected, seconds, seed=5)
        with mock.patch.object(files, "new_folder", tiny.in_place):
            killed_builds(proof.control("rename"), kills, seed=6)
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
