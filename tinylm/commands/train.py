"""tinylm train, and train --resume."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.distributed.launch import launched
from tinylm.errors import ConfigError
from tinylm.flags import ASKED, train_flags
from tinylm.locks import check_unlocked

if TYPE_CHECKING:
    from tinylm.progress import TerminalReport


def train(given: Arguments) -> int:
    values = fields(given)
    run, path, steal = values.pop("resume"), values.pop("config"), values.pop("steal_lock")
    if run is not None:
        changes = changed_options(given)
        if Path(run).is_dir():
            check_unlocked(run)  # before torch is loaded: a second trainer goes away at once
    elif steal:
        raise ConfigError("steal_lock takes over a run that exists; name it with --resume RUN")
    from tinylm import trainer
    from tinylm.distributed.ranks import leave

    leads = launched().rank == 0
    with terminal_report() if leads else nullcontext() as report:
        if run is None and values["data"] is None and path is not None:
            values["data"] = options.read_run_config(path).data
        if run is None and values["data"] is None:
            raise ConfigError(
                "DATA is missing: name a corpus or a source of text, or a run to go on with: --resume RUN"
            )
        if run is not None:
            result = trainer.resume(run, report, steal_lock=steal, **changes)
        else:
            values["model"] = options.ModelConfig(**fields(given.model))
            result = trainer.train(options.TrainConfig(**values), report)
    leave()
    if result.evaluation is not None and leads:
        from tinylm.progress import console, evaluation_table

        console(stderr=False).print(evaluation_table(result.evaluation))
    return ended(result.signal)


def changed_options(given: Arguments) -> dict[str, Any]:
    """The options that stand beside --resume; which of them a run takes is the trainer's to say."""
    asked = getattr(given, ASKED) - {"resume", "steal_lock"}
    changes = {name: getattr(given, name, None) for name in sorted(asked)}
    return {**changes, "data": given.data} if given.data is not None else changes


def terminal_report() -> TerminalReport:
    from tinylm.progress import TerminalReport

    return TerminalReport()


TRAIN = Command(
    "Train a model, or go on with a run. A run is a function of its configuration, corpus and seed.",
    train_flags,
    train,
)
