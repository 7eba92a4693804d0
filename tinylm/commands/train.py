"""tinylm train, and train --resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.errors import ConfigError
from tinylm.flags import train_flags

if TYPE_CHECKING:
    from tinylm.progress import TerminalReport


def train(given: Arguments) -> int:
    from tinylm import trainer

    values = fields(given)
    run, path = values.pop("resume"), values.pop("config")
    with terminal_report() as report:
        if run is None and values["data"] is None and path is not None:
            values["data"] = options.read_run_config(path).data
        if run is None and values["data"] is None:
            raise ConfigError(
                "DATA is missing: name a corpus or a source of text, or a run to go on with: --resume RUN"
            )
        if run is not None:
            refuse_new_options(given)
            result = trainer.resume(run, report, given.stop_after)
        else:
            values["model"] = options.ModelConfig(**fields(given.model))
            result = trainer.train(options.TrainConfig(**values), report)
    if result.evaluation is not None:
        from tinylm.progress import console, evaluation_table

        console(stderr=False).print(evaluation_table(result.evaluation))
    return ended(result.signal)


def refuse_new_options(given: Arguments) -> None:
    """A resumed run goes on as it was configured; raise ConfigError for every flag that asks for more."""
    usual = fields(type(given)())
    asked = [
        f"--{name.replace('_', '-')}"
        for name, value in fields(given).items()
        if name not in ("resume", "stop_after", "model", "data") and value != usual[name]
    ]
    asked += ["DATA"] if given.data is not None else []
    if given.model != type(given.model)():
        asked.append("the model's flags")
    if asked:
        raise ConfigError(
            f"--resume goes on with a run as it is, and does not take {', '.join(asked)}; leave them out, "
            f"or start another run from its weights: tinylm train DATA --init {given.resume}"
        )


def terminal_report() -> TerminalReport:
    from tinylm.progress import TerminalReport

    return TerminalReport()


TRAIN = Command(
    "Train a model, or go on with a run. A run is a function of its configuration, corpus and seed.",
    train_flags,
    train,
)
