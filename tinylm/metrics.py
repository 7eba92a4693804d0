"""The logs of a run: `metrics.jsonl`, whose rows depend on their step alone, and `timings.jsonl`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import IO, Any, Self

from tinylm import files
from tinylm.errors import CheckpointError, ConfigError

METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"


class RunLog:
    """Appends rows; `sync()` makes them durable. With `tensorboard`, numbers also go to its events."""

    def __init__(self, run: Path, tensorboard: bool = False) -> None:
        self.run = run
        self._board = tensorboard_writer(run) if tensorboard else None
        self._metrics: IO[bytes] = open(run / METRICS, "ab", buffering=0)  # noqa: SIM115
        self._timings: IO[bytes] = open(run / TIMINGS, "ab", buffering=0)  # noqa: SIM115

    def metric(self, row: dict[str, Any]) -> None:
        """A row that the same run always writes again."""
        with files.named(self.run / METRICS):
            files.write_all(self._metrics, files.canonical_json(row) + b"\n")
        if self._board is not None:
            held_out = {f"validation/{name}": value for name, value in row.get("validation", {}).items()}
            for name, value in {**row, **held_out}.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, row["step"])

    def timing(self, row: dict[str, Any]) -> None:
        """A row that holds clocks."""
        with files.named(self.run / TIMINGS):
            files.write_all(self._timings, files.canonical_json(row) + b"\n")

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


def check_tensorboard() -> None:
    """Raise ConfigError where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError("tensorboard is on, but is not installed; pip install 'tinylm[track]'")


def tensorboard_writer(run: Path) -> Any:
    """TensorBoard's writer into the run folder; raises ConfigError where the package is missing."""
    check_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(run / "tensorboard"))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole rows of a run's metrics; a torn last line (a killed run) is left out."""
    rows = []
    for number, line in enumerate((run / METRICS).read_bytes().split(b"\n")[:-1], start=1):
        rows.append(files.parse_json(line, f"{run / METRICS}:{number}"))
    return rows


def _step(line: bytes, where: str) -> int:
    row = files.parse_json(line, where)
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise CheckpointError(f"{where}: is not a row with a step; the log was damaged or edited")
    return int(row["step"])


def cut_after(run: Path, step: int) -> None:
    """Drop the rows after a step from both logs, so that a resumed run writes them again."""
    for name in (METRICS, TIMINGS):
        if not (run / name).is_file():
            raise CheckpointError(f"{run / name}: does not exist; the run is not whole")
        lines = (run / name).read_bytes().split(b"\n")[:-1]
        kept = [line for i, line in enumerate(lines, 1) if _step(line, f"{run / name}:{i}") <= step]
        files.write_atomic(run / name, b"".join(line + b"\n" for line in kept))
