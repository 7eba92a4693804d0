"""The logs of a run: `metrics.jsonl`, whose rows depend on their step alone, and `timings.jsonl`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Self

from tinylm import files
from tinylm.errors import CheckpointError, ConfigError

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


class RunLog:
    """Appends rows; `sync()` makes them durable. With `tensorboard`, numbers also go to its events.

    `step` is the one that the run goes on from.
    """

    def __init__(self, run: Path, step: int = 0, tensorboard: bool = False) -> None:
        self.run = run
        self._board = tensorboard_writer(run, step) if tensorboard else None
        written = (run / METRICS).read_bytes() if (run / METRICS).exists() else b""
        self._bytes, self._digest = len(written), hashlib.sha256(written)
        self._metrics: IO[bytes] = open(run / METRICS, "ab", buffering=0)  # noqa: SIM115
        self._timings: IO[bytes] = open(run / TIMINGS, "ab", buffering=0)  # noqa: SIM115

    def metric(self, row: dict[str, Any]) -> None:
        """A row that the same run always writes again."""
        line = files.canonical_json(row) + b"\n"
        with files.named(self.run / METRICS):
            files.write_all(self._metrics, line)
        self._bytes += len(line)
        self._digest.update(line)
        if self._board is not None:
            held_out = {f"validation/{name}": value for name, value in row.get("validation", {}).items()}
            for name, value in {**row, **held_out}.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, row["step"])

    def timing(self, row: dict[str, Any]) -> None:
        """A row that holds clocks."""
        with files.named(self.run / TIMINGS):
            files.write_all(self._timings, files.canonical_json(row) + b"\n")

    def written(self) -> dict[str, Any]:
        """Size and SHA-256 of `metrics.jsonl` up to now: a checkpoint keeps them, a resume demands them."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def sync(self) -> None:
        """fsync both logs."""
        with files.named(self.run / METRICS):
            os.fsync(self._metrics.fileno())
            os.fsync(self._timings.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._metrics.close()
        self._timings.close()
        if self._board is not None:
            self._board.close()


class NoLog(RunLog):
    """The log of a rank that writes nothing."""

    def __init__(self) -> None:
        pass

    def metric(self, row: dict[str, Any]) -> None:
        pass

    def timing(self, row: dict[str, Any]) -> None:
        pass

    def written(self) -> dict[str, Any]:
        return {}

    def sync(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def check_tensorboard() -> None:
    """Raise ConfigError where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tensorboard is on, but is not installed; pip install tensorboard")


def tensorboard_writer(run: Path, step: int) -> Any:
    """TensorBoard's writer into the run folder; raises ConfigError where the package is missing."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole rows of a run's metrics; a torn last line (a killed run) is left out."""
    rows = []
    for number, line in enumerate((run / METRICS).read_bytes().split(b"\n")[:-1], start=1):
        rows.append(files.parse_json(line, f"{run / METRICS}:{number}"))
    return rows


def cut(run: Path, step: int, written: dict[str, Any], note: Callable[[str], None]) -> None:
    """Bring the logs back to a step, so that a resumed run writes the rows after it again.

    `written` is what `RunLog.written` said at that step. CheckpointError if `metrics.jsonl` does not begin
    with exactly that. The clocks of `timings.jsonl` are no part of the run: lost ones are noted.
    """
    path = run / METRICS
    way_out = "bring back an undamaged copy, or start a new run from the weights with --init"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: does not exist; the run is not whole; {way_out}") from None
    size, digest = written["bytes"], written["sha256"]
    if len(data) < size:
        raise CheckpointError(
            f"{path}: {len(data):,} bytes, expected at least {size:,} at step {step}: rows are missing; "
            f"{way_out}"
        )
    if hashlib.sha256(data[:size]).hexdigest() != digest:
        raise CheckpointError(
            f"{path}: its first {size:,} bytes are not those that step {step} was saved with; the log was "
            f"damaged or edited; {way_out}"
        )
    if len(data) > size:
        files.write_atomic(path, data[:size])
    _cut_timings(run / TIMINGS, step, note)


def _cut_timings(path: Path, step: int, note: Callable[[str], None]) -> None:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    kept = [line for line in lines if 0 < _step(line) <= step]
    if len(kept) != step:
        note(f"{path}: holds {len(kept):,} clock readings of {step:,} steps; the others were lost")
    files.write_atomic(path, b"".join(line + b"\n" for line in kept))


def _step(line: bytes) -> int:
    """The step of a row of clocks, 0 if it is damaged."""
    try:
        return int(files.parse_json(line, "")["step"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return 0
