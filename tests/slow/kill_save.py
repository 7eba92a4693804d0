"""kill -9 and power cuts at every call of a checkpoint's save: the old step or the new one, never a part.

python tests/slow/kill_save.py [--short]

A run has step 1; step 2 is saved and verified, and step 1 pruned. The process is killed before and after
each call that changes the folder, and under strace at each system call. Then the power is cut after each
call on a model of a disk that keeps only what was synced. Each time the newest step that verifies must be
one of the two, bit-equal, no partial step may be listed, and the next save must succeed.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection import children, power, tiny
from tests.slow.injection.calls import Calls, Fault
from tests.slow.injection.proof import Proof, Row, folder, fresh
from tinylm import checkpoint, files

Steps = dict[int, dict[str, bytes]]


def killed_at_every_call(row: Row, start: Path, run: Path, steps: Steps) -> None:
    """Kill before and after the n-th call of Python code, for every n until the save succeeds."""
    for when in ("before", "after"):
        for number in itertools.count(1):
            fresh(run, start)
            calls = Calls(run, Fault(number, kill=when))  # type: ignore[arg-type]

            def work(calls: Calls = calls) -> None:
                with calls.watched():
                    tiny.save(run, 2)

            outcome = children.run(work)
            if outcome.code == 0:
                break
            problem = f"the save itself failed: {outcome.message}" if outcome.code != -9 else None
            row.count(f"{when} call {number}", problem or left(run, steps))


def killed_at_every_system_call(row: Row, start: Path, run: Path, steps: Steps) -> None:
    """Kill at the n-th system call of each kind, for every n that a save makes."""

    def work() -> None:
        tiny.save(run, 2)

    fresh(run, start)
    for name, count in sorted(children.count_calls(work).items()):
        for number in range(1, count + 1):
            fresh(run, start)
            outcome, _ = children.trace(work, f"inject={name}:signal=SIGKILL:when={number}")
            problem = f"not killed: {outcome.message}" if outcome.code != -9 else None
            row.count(f"{name} {number}", problem or left(run, steps))


def left(run: Path, steps: Steps) -> str | None:
    """What is wrong after a kill, also with the next save."""
    problem = tiny.old_or_new(run, steps)
    if problem is None:
        if checkpoint.newest_step(run).folder == checkpoint.step_folder(run, 1):
            tiny.save(run, 2)
        problem = tiny.old_or_new(run, steps, must="new")
    return problem


def power_cut_at_every_call(
    row: Row, start: Path, run: Path, steps: Steps, mixtures: int, without: str = ""
) -> None:
    """Replay the calls of a save on a disk that forgets; cut the power after each."""
    fresh(run, start)
    disk = power.Disk(run)
    calls = Calls(run, without=without)
    with calls.watched():
        tiny.save(run, 2)
    place = run.with_name("after")
    for number, call in enumerate([None, *calls.log]):
        if call is not None:
            disk.apply(call)
        last = number == len(calls.log)
        for name in disk.cuts(place, mixtures, seed=number):
            # A save that has returned is durable. Before that, a file whose bytes the disk lost may stand
            # under a step's name only if the digest shows it.
            problem = tiny.old_or_new(place, steps, must="new" if last else None)
            row.count(f"after call {number} ({call and call.name}), {name}", problem)


def main() -> int:
    proof = Proof("a checkpoint is being saved")
    with folder() as place:
        start, run = place / "start", place / "run"
        steps = tiny.two_steps(start)
        killed_at_every_call(proof.row("kill -9 before and after each call"), start, run, steps)
        why_not = children.can_trace()
        if why_not is None:
            killed_at_every_system_call(proof.row("kill -9 at each system call"), start, run, steps)
        else:
            proof.note(f"no kill at system calls: {why_not}")
        mixtures = 3 if proof.short else 40
        power_cut_at_every_call(proof.row("power cut after each call"), start, run, steps, mixtures)

        power_cut_at_every_call(proof.control("fsync"), start, run, steps, 3, without="fsync")
        with mock.patch.object(files, "new_folder", tiny.in_place):
            killed_at_every_call(proof.control("rename"), start, run, steps)
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
