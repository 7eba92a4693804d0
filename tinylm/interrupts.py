"""Signals as requests: the first asks to stop after the step, a second Ctrl-C or SIGTERM leaves at once.

And output whose reader has gone away, which is no reason to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tinylm.distributed.ranks import Ranks

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Ctrl-C, a polite kill, a closed terminal, and Windows' Ctrl-Break and closed console."""

PATIENT = ("SIGHUP",)
"""Sent twice as a matter of course (by the system and by the shell): the second one says nothing new."""


class StopRequest:
    """`signal` is the number of the signal that asked to stop, or None."""

    def __init__(self, heard: Callable[[int], None] | None = None) -> None:
        self.signal: int | None = None
        self._heard = heard

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            if self._heard is not None:
                # What it prints may meet a half-written line (a reentrant write raises); a step must not
                # fail for that.
                with contextlib.suppress(Exception):
                    self._heard(number)
        elif signal.Signals(number).name not in PATIENT:
            leave(number)


class AgreedStop:
    """A request that all ranks know of: `signal` is the same on each, after each look().

    One process alone knows of its own at once.
    """

    def __init__(self, request: StopRequest, ranks: Ranks) -> None:
        self._request, self._ranks = request, ranks
        self._agreed: int | None = None

    @property
    def signal(self) -> int | None:
        """The number of the signal that asked some rank to stop, or None."""
        return self._request.signal if self._ranks.alone else self._agreed

    def look(self) -> int | None:
        """Learn what the other ranks have heard; every rank has to look."""
        if not self._ranks.alone and self._agreed is None:
            self._agreed = self._ranks.most(self._request.signal or 0) or None
        return self.signal


def leave(number: int) -> None:
    """End the process now. Files are whole at every moment, so nothing has to be put in order."""
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            os.write(2, b"\x1b[?25h\n")  # a progress line hides the cursor
    os._exit(128 + number)


@contextmanager
def stop_requests(heard: Callable[[int], None] | None = None) -> Iterator[StopRequest]:
    """Catch NAMES inside (in the main thread only, where Python delivers them); `heard` is told the first.

    SIGHUP stays ignored where it is (nohup).
    """
    request = StopRequest(heard)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {}
    try:
        for number in numbers:
            if signal.Signals(number).name in PATIENT and signal.getsignal(number) is signal.SIG_IGN:
                continue
            before[number] = signal.signal(number, request._received)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LastingStream:
    """A text stream whose reader may go away (head, a closed terminal): then it says no more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._lasting(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._lasting(self._stream.flush)

    def _lasting(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError:  # EPIPE, or EIO of a terminal that is gone
            silence(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def silence(stream: TextIO) -> None:
    """Send what is still written to a stream to nowhere, so that no flush at exit fails."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
