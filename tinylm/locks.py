"""One writer per run: a lock that dies with its process, and a file beside it that says whose it is.

The operating system's lock on `run.lock` decides (filelock: flock, LockFileEx). `run.owner.json` only
names its holder; it is written whole, after the lock was taken, and removed before it is given back. So
one that is found by the next holder of the lock belongs to a process that was killed, or to a machine
whose locks do not reach this one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinylm import files
from tinylm.errors import CheckpointError

LOCK = "run.lock"
OWNER = "run.owner.json"
PATIENCE = 0.3
"""Seconds in which another process may finish what it does with the lock (a look takes it for a moment)."""


@dataclass(frozen=True)
class Owner:
    """Who writes a run: process, host, the boot of that host (None where unknown), and since when (UTC)."""

    pid: int
    host: str
    boot: str | None
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"

    def on_this_machine(self) -> bool:
        """Whether its lock and ours meet: the same host, or a container under the same kernel."""
        here = this_process()
        return self.host == here.host or (self.boot is not None and self.boot == here.boot)


def this_process() -> Owner:
    """Ourselves, from now on."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = None
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Owner(os.getpid(), socket.gethostname(), boot, since)


def read_owner(run: Path) -> Owner | None:
    """Whose run it is, as far as its file says; None where it says nothing that can be read."""
    try:
        content = files.parse_json((run / OWNER).read_bytes(), str(run / OWNER))
        owner = Owner(**content)
    except (OSError, CheckpointError, TypeError):
        return None
    return owner if isinstance(owner.pid, int) and isinstance(owner.host, str) else None


@contextlib.contextmanager
def run_lock(
    run: str | os.PathLike[str], note: Callable[[str], None], *, steal: bool = False
) -> Iterator[None]:
    """Hold a run folder for one writer; a second one gets CheckpointError at once, the first is unharmed.

    The lock of a process that was killed is taken over, and `note` says so. One that was last held on
    another machine is refused unless `steal`: from here nobody can see whether that process still runs.
    Where there are no locks (no filelock, or a file system without them), `note` says that.
    """
    run = Path(run)
    with _system_lock(run, note):
        last, us = read_owner(run), this_process()
        if last is not None and not last.on_this_machine() and not steal:
            raise CheckpointError(
                f"{run}: was last written by {last}, which has not given it back, and from {us.host} nobody "
                "can see whether it still runs; if you know that it does not, take the run over with: "
                f"tinylm train --resume {run} --steal-lock"
            )
        if last is not None:
            note(f"took the run over from {last}, which ended without giving it back")
        files.write_atomic(run / OWNER, files.readable_json(asdict(us)))
        try:
            yield
        finally:
            if read_owner(run) == us:
                with contextlib.suppress(OSError):
                    (run / OWNER).unlink()


def check_unlocked(run: str | os.PathLike[str]) -> None:
    """Raise CheckpointError if another process holds the run now. A look before slow imports, no promise."""
    with _system_lock(Path(run), lambda text: None):
        pass


@contextlib.contextmanager
def _system_lock(run: Path, note: Callable[[str], None]) -> Iterator[None]:
    try:
        import filelock
    except ImportError:
        note("filelock is not installed: nothing keeps a second trainer out of this run")
        yield
        return
    lock: Any = filelock.FileLock(run / LOCK)
    try:
        lock.acquire(timeout=PATIENCE, poll_interval=0.02)
    except filelock.Timeout:
        owner = read_owner(run)
        raise CheckpointError(
            f"{run}: is being trained by {owner or 'another process'}; wait for it, or stop it with Ctrl-C "
            "and resume"
        ) from None
    except (OSError, NotImplementedError) as error:
        known = getattr(error, "errno", None)
        if not isinstance(error, NotImplementedError) and known not in (errno.ENOSYS, errno.ENOLCK):
            raise
        note("this file system has no locks: nothing keeps a second trainer out of this run")
        yield
        return
    try:
        yield
    finally:
        lock.release()
