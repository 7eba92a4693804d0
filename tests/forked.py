"""A command in a process of its own that was forked from this one: nothing has to be loaded anew.

To load torch and the rest takes longer than all that a command of the tests does. What concerns the start
of a process (its locale, its standard input) needs a new one: `python -m tinylm`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
import unittest
from typing import IO

import torch

from tinylm import cli

POSIX = unittest.skipUnless(os.name == "posix", "processes are forked")


class Forked:
    """`tinylm WORDS`, with its standard output and error, unbuffered by the parent, in files or a pipe."""

    def __init__(self, *words: str, output: IO[bytes], error: IO[bytes]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os._exit(self._run(words, output.fileno(), error.fileno()))

    @staticmethod
    def _run(words: tuple[str, ...], output: int, error: int) -> int:
        """What the child does; its exit code."""
        try:
            torch.set_num_threads(1)  # the parent's threads are not there after a fork
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(output, 1)
            os.dup2(error, 2)
            sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8", write_through=True)
            sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), encoding="utf-8", write_through=True)
            return cli.main(words)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
        except BaseException:
            os.write(2, traceback.format_exc().encode("utf-8", "replace"))
            return 1

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, negative for a signal that killed it; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """The exit code, once it has ended; one that does not end in time is killed, which is an error."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the command did not end in {seconds:g} seconds")
            time.sleep(0.005)
        return code

    def kill(self) -> None:
        """End it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
