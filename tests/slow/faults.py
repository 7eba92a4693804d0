"""A full disk, a broken disk, a quota and short writes at every call: old or new, and never without a word.

python tests/slow/faults.py [--short]

A checkpoint is saved beside an older one, a corpus is built anew and over an older one, a file is replaced,
a run is resumed by its command. The n-th call that changes the folder fails, for every n, once and from
then on; the same under strace at each system call. Writes take half of what they are given; the system
claims to have written what it has not; files meet a limit on their size. Each time: the old content or the
new one, whole; an error names file and reason on one line; success means that the new content is there.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection import children, tiny
from tests.slow.injection.calls import Calls, Fault, error_name
from tests.slow.injection.proof import Proof, Row, contents, folder, fresh
from tinylm import checkpoint, files
from tinylm.cli import main as command
from tinylm.corpus import open_corpus
from tinylm.errors import TinylmError

DISK = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
ERRORS = {
    **dict.fromkeys(("write", "pwrite64", "writev", "open", "openat", "creat", "mkdir", "mkdirat"), DISK),
    **dict.fromkeys(("fsync", "fdatasync"), DISK),
    **dict.fromkeys(("rename", "renameat", "renameat2", "ftruncate", "truncate"), (errno.EIO, errno.ENOSPC)),
    **dict.fromkeys(("close", "unlink", "unlinkat", "rmdir", "read", "pread64"), (errno.EIO,)),
}
"""What the system calls can fail with when a disk is full or broken, or a quota is used up."""


@dataclass(frozen=True)
class Scene:
    """Something that is written where something older stands, or nothing.

    `left(must, torn)` says what is wrong with what is there now; `must` demands "old" or "new"; `torn`
    allows parts that the next reader refuses. `traced`: short enough for every system call.
    """

    name: str
    start: Path
    place: Path
    work: Callable[[], None]
    left: Callable[[str | None, bool], str | None]
    traced: bool = True

    def fresh(self) -> None:
        fresh(self.place, self.start)

    def judge(self, outcome: children.Outcome, *, once: bool = True, torn: bool = False) -> str | None:
        """What was lost, or said badly."""
        if outcome.code == 0:
            return self.left("new", torn)
        if outcome.code != 2:
            return f"not an error for people: {outcome.message}"
        said = outcome.message
        if "\n" in said or self.place.name not in said or said.endswith((": ", "None")):
            return f"the message names no file, no reason or has two lines: {said!r}"
        if once and (litter := [path.name for path in self.place.rglob(".tmp-*")]):
            return f"left behind: {litter}"
        return self.left(None, torn)


def scenes(place: Path) -> list[Scene]:
    """Every kind of thing that is written whole or not at all."""
    return [saved_step(place), *built_corpora(place), replaced_file(place), resumed_run(place)]


def saved_step(place: Path) -> Scene:
    start, run = place / "one step", place / "saving"
    steps = tiny.two_steps(start)

    def left(must: str | None, torn: bool) -> str | None:
        return tiny.old_or_new(run, steps, must=must, torn=torn)

    return Scene("checkpoint", start, run, lambda: tiny.save(run, 2), left)


def built_corpora(place: Path) -> Iterator[Scene]:
    tiny.corpus(place / "expected", tiny.OTHER_TEXTS)
    new = open_corpus(place / "expected").digest
    for name, before in (("new corpus", None), ("corpus replaced", tiny.TEXTS)):
        start, home = place / f"{name} before", place / name
        start.mkdir()
        if before is not None:
            tiny.corpus(start / "mine", before)
        old = None if before is None else open_corpus(start / "mine").digest

        def build(home: Path = home, old: str | None = old) -> None:
            tiny.corpus(home / "mine", tiny.OTHER_TEXTS, replace=old is not None)

        def left(must: str | None, torn: bool, home: Path = home, old: str | None = old) -> str | None:
            return tiny.old_or_new_corpus(home / "mine", old, new, must=must)

        yield Scene(name, start, home, build, left)


def replaced_file(place: Path) -> Scene:
    start, home = place / "old file", place / "file"
    start.mkdir()
    data = {"old": b"old" * 1000, "new": b"new!" * 1000}
    (start / "run.json").write_bytes(data["old"])

    def left(must: str | None, torn: bool) -> str | None:
        found = (home / "run.json").read_bytes()
        wanted = data.values() if must is None else [data[must]]
        return None if found in wanted else f"{len(found)} bytes, not the {must or 'old or new'} content"

    def work() -> None:
        files.write_atomic(home / "run.json", data["new"])

    return Scene("file", start, home, work, left)


def resumed_run(place: Path) -> Scene:
    """The last step of a run, by its command; afterwards the run must end as the one without a fault."""
    tiny.corpus(place / "corpus")
    whole, start, run = place / "whole", place / "stopped", place / "run"
    for copy, stop_after in ((whole, None), (start, 3)):
        tiny.new_run(steps=4, stop_after=stop_after)
        run.rename(copy)
    steps = {3: contents(checkpoint.step_folder(start, 3)), 4: contents(checkpoint.step_folder(whole, 4))}

    def work() -> None:
        said = io.StringIO()
        with (
            tiny.quickly(),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            code = command(["train", "--resume", "run"])
        if code == 2:
            raise TinylmError(said.getvalue().rpartition("\ntinylm: ")[2].removesuffix("\n"))
        if code:
            raise RuntimeError(f"exit code {code}: {said.getvalue()}")

    def left(must: str | None, torn: bool) -> str | None:
        problem = tiny.old_or_new(run, steps, must=must, torn=torn)
        if problem is None and must is None:
            outcome = children.run(lambda: tiny.go_on(run))
            problem = f"the next resume fails: {outcome.message}" if outcome.code else None
        if problem is None and (run / "metrics.jsonl").read_bytes() != (whole / "metrics.jsonl").read_bytes():
            problem = "other rows in metrics.jsonl than in the run without a fault"
        return problem or tiny.old_or_new(run, steps, must="new", torn=torn)

    return Scene("tinylm train --resume", start, run, work, left, traced=False)


def failing_calls(row: Row, scene: Scene, error: int, persistent: bool, step: int = 1) -> None:
    """Fail the n-th call of Python code, for every n (every `step`-th) until there is no such call."""
    for number in itertools.count(1, step):
        scene.fresh()
        calls = Calls(scene.place, Fault(number, error=error, persistent=persistent))
        if not inject(row, scene, calls, f"{error_name(error)} at call {number}", once=not persistent):
            return


def short_writes(row: Row, scene: Scene, step: int = 1) -> None:
    """Let the n-th call, if it is a write, take half of its bytes, for every n; and all writes."""
    for number in itertools.count(1, step):
        for persistent in (False, True) if number == 1 else (False,):
            scene.fresh()
            calls = Calls(scene.place, Fault(number, short=True, persistent=persistent))
            if not inject(row, scene, calls, f"short write at call {number}"):
                return


def inject(row: Row, scene: Scene, calls: Calls, fault: str, *, once: bool = True) -> bool:
    """Work in a child with the fault; false if there were too few calls for it."""
    fired = children.Flag()

    def work() -> None:
        with calls.watched():
            try:
                scene.work()
            finally:
                fired.set(calls.fired)

    outcome = children.run(work)
    if fired.seen():
        row.count(f"{scene.name}, {fault}", scene.judge(outcome, once=once))
    return fired.seen()


def failing_system_calls(row: Row, scene: Scene, persistent: bool, most: int) -> None:
    """Fail the n-th system call of each kind, for every n, with at most `most` kinds of error."""
    scene.fresh()
    counts = children.count_calls(scene.work)
    for name in sorted(set(counts) & set(ERRORS)):
        for number, error in itertools.product(range(1, counts[name] + 1), ERRORS[name][:most]):
            scene.fresh()
            when = f"{number}+" if persistent else f"{number}"
            outcome, _ = children.trace(scene.work, f"inject={name}:error={error_name(error)}:when={when}")
            problem = scene.judge(outcome, once=not persistent)
            row.count(f"{scene.name}, {error_name(error)} at {name} {when}", problem)


def lost_writes(row: Row, scene: Scene) -> None:
    """The n-th write claims to have taken 100 bytes and has taken none, for every n.

    Nobody can write around a system that lies; it has to be noticed, by size or digest, before success is
    claimed.
    """
    scene.fresh()
    for number in range(1, children.count_calls(scene.work)["write"] + 1):
        scene.fresh()
        outcome, _ = children.trace(scene.work, f"inject=write:retval=100:when={number}")
        row.count(f"{scene.name}, lost bytes at write {number}", scene.judge(outcome, torn=True))


def limited_sizes(row: Row, scene: Scene, limits: int) -> None:
    """Let files grow to a limit only, where the system first writes short and then fails (EFBIG)."""
    scene.fresh()
    scene.work()
    largest = max(len(data) for data in contents(scene.place).values())
    for number in range(limits):
        limit = largest * number // limits

        def work(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            scene.work()

        scene.fresh()
        row.count(f"{scene.name}, files of at most {limit} bytes", scene.judge(children.run(work)))


def careless_write(path: Path, data: bytes) -> str:
    """A write that trusts the system to take everything, and does not take a new name."""
    with open(path, "wb", buffering=0) as file:
        file.write(data)
    return ""


def main() -> int:
    proof = Proof("a disk is full or broken while something is written")
    with folder() as place:
        found = scenes(place)
        why_not = children.can_trace()
        if why_not is not None:
            proof.note(f"no faults at system calls: {why_not}")
        for scene in found:
            kinds = DISK[:1] if proof.short else DISK
            step = 1 if scene.traced or not proof.short else 4
            for error, persistent in itertools.product(kinds, (False, True)):
                row = proof.row("error at each call" + (" and all later ones" if persistent else ""))
                failing_calls(row, scene, error, persistent, step)
            short_writes(proof.row("short write at each call"), scene, step)
            limited_sizes(proof.row("limit on the size of files"), scene, 3 if proof.short else 40)
            if scene.traced and why_not is None:
                for persistent in (False, True) if not proof.short else (False,):
                    row = proof.row("error at each system call" + (" and later" if persistent else ""))
                    failing_system_calls(row, scene, persistent, 1 if proof.short else 3)
                lost_writes(proof.row("bytes lost by each write"), scene)
        file = next(scene for scene in found if scene.name == "file")
        with mock.patch.object(files, "write_atomic", careless_write):
            failing_calls(proof.control("rename, of a file"), file, errno.EIO, False)
            short_writes(proof.control("care for short writes"), file)
        step = next(scene for scene in found if scene.name == "checkpoint")
        if why_not is None:
            with mock.patch.object(checkpoint, "verify_step"), mock.patch.object(files, "check_length"):
                lost_writes(proof.control("size and digest, after a save"), step)
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
