"""Work in a child process that may be killed: forked, so that torch is loaded once; or under strace."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinylm.errors import TinylmError

ROOM = 1 << 16
CALLS = """
open openat creat mkdir mkdirat write pwrite64 writev fsync fdatasync rename renameat renameat2 close unlink
unlinkat rmdir truncate ftruncate
"""
"""System calls that change files (some names exist on some machines only)."""


@dataclass
class Outcome:
    """How a child ended: 0, 2 after an error of the kinds that commands print, 1 after another, -9 killed."""

    code: int
    message: str


class Child:
    """A forked process that runs `work` and leaves without cleaning up. With `stopped` it waits for a tracer.

    What it says comes through shared memory, so that it makes no system call of its own.
    """

    def __init__(self, work: Callable[[], object], *, stopped: bool = False) -> None:
        self._memory = mmap.mmap(-1, ROOM)
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            if stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            work()
            code = 0
        except (TinylmError, OSError) as error:
            self._say(_line(error))
            code = 2
        except BaseException as error:
            self._say(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def _say(self, text: str) -> None:
        data = text.encode("utf-8", "replace")[: ROOM - 1]
        self._memory[: len(data)] = data

    def kill(self) -> None:
        """End it as a power cut ends a process."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Outcome:
        """Wait for its end."""
        _, status = os.waitpid(self.pid, 0)
        message = self._memory[:].split(b"\0", 1)[0].decode("utf-8", "replace")
        self._memory.close()
        return Outcome(os.waitstatus_to_exitcode(status), message)


def run(work: Callable[[], object]) -> Outcome:
    """Do `work` in a child, to its end."""
    return Child(work).wait()


def _line(error: Exception) -> str:
    """As the command prints it: an OSError with the file that it names, or none."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def can_trace() -> str | None:
    """Why strace cannot inject faults here, or None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    try:
        outcome, _ = trace(lambda: os.mkdir("/nowhere/at/all"), "inject=?mkdir,?mkdirat:error=EXDEV")
    except OSError as error:
        return f"strace cannot attach to a process here ({error})"
    return (
        None if "Invalid cross-device" in outcome.message else f"strace does not inject ({outcome.message})"
    )


def trace(work: Callable[[], object], inject: str = "") -> tuple[Outcome, list[str]]:
    """Do `work` in a child under strace, perhaps with faults; gives its end and the lines of the trace."""
    child = Child(work, stopped=True)
    os.waitpid(child.pid, os.WUNTRACED)
    log = Path(f"/tmp/tinylm-trace-{child.pid}")
    words = [
        "strace",
        "-p",
        str(child.pid),
        "-o",
        str(log),
        "-e",
        f"trace={','.join('?' + name for name in CALLS.split())}",
    ]
    tracer = subprocess.Popen(
        [*words, *(["-e", inject] if inject else [])], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if b"attached" not in said:
            raise OSError(f"strace says: {said.decode('utf-8', 'replace').strip()}")
        os.kill(child.pid, signal.SIGCONT)
        outcome = child.wait()
        tracer.communicate(timeout=20)
        return outcome, log.read_text("utf-8", "replace").splitlines()
    except BaseException:
        tracer.kill()
        tracer.communicate()
        child.kill()
        raise
    finally:
        log.unlink(missing_ok=True)


def count_calls(work: Callable[[], object]) -> Counter[str]:
    """How often `work` makes each system call; it must succeed."""
    outcome, lines = trace(work)
    if outcome.code:
        raise RuntimeError(f"the work itself fails: {outcome.message}")
    return Counter(found[1] for line in lines if (found := re.match(r"(\w+)\(", line)))


def killed_after(work: Callable[[], object], seconds: float) -> Outcome:
    """Do `work` in a child and kill it after a time, unless it has ended."""
    child = Child(work)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not _ended(child.pid):
        time.sleep(0.001)
    child.kill()  # a child that has ended takes no notice
    return child.wait()


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class Flag:
    """A truth that a child leaves to its parent."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1)

    def set(self, value: bool) -> None:
        self._memory[0] = int(value)

    def seen(self) -> bool:
        return bool(self._memory[0])
