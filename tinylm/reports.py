"""What a run tells while it works. The base says nothing; the command line shows it (progress.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinylm.evaluate import Evaluation


class Report:
    """Called by the trainer; override what you want to see."""

    curve = True
    """Whether `curve.svg` is drawn at the end."""

    def note(self, text: str) -> None:
        """Something that a user should know."""

    def read(self, documents: int, read: int) -> None:
        """While a corpus is built from a source: documents and bytes so far."""

    def started(self, facts: Mapping[str, Any], step: int, steps: int) -> None:
        """Before the first step."""

    def stepped(self, row: Mapping[str, Any], seconds: float) -> None:
        """After each step, with its metrics row."""

    def evaluated(self, step: int, evaluation: Evaluation, sample: str) -> None:
        """After each evaluation, with a sample of the model's text."""

    def saved(self, step: int, folder: Path) -> None:
        """After each checkpoint, when it verified."""

    def stopping(self, signal_number: int) -> None:
        """A signal asked to stop (called from its handler): the step is finished and saved first."""

    def stopped(self, folder: Path, step: int, steps: int) -> None:
        """After the last step, finished or interrupted."""


class Unseen(Report):
    """Of a run whose folder nobody will look into: nothing is told, nothing drawn."""

    curve = False
