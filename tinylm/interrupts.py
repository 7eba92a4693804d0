"""Ctrl-C and SIGTERM as requests: the first asks to stop after the step, the second leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGINT", "SIGTERM")


class StopRequest:
    """`signal` is the number of the signal that asked to stop, or None."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            os._exit(128 + number)
        self.signal = number


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside (in the main thread only, where Python delivers them)."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {number: signal.signal(number, request._received) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
