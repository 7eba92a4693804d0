"""The command line, generated from the dataclasses of config.py. Errors are one line, and exit with 2."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tinylm import config as options
from tinylm.errors import ConfigError, TinylmError
from tinylm.flags import flags, one_line, train_flags
from tinylm.walkthrough import utf8_output

if TYPE_CHECKING:
    from tinylm.progress import TerminalReport

Arguments = Any
"""An instance of a dataclass that `flags` made."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 after an error, 130 or 143 after an interrupt."""
    utf8_output()
    # Threads that wait spin by default; where another program wants a core, a step then takes twice as
    # long (LAB.md). Read once, when torch is loaded; the numbers do not depend on it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings(), ended_by_sigterm():
            warnings.showwarning = lambda message, *rest: print(
                f"tinylm: warning: {message}", file=sys.stderr
            )
            return dispatch(words)
    except TinylmError as error:
        return complain(str(error))
    except BrokenPipeError:
        # The reader has gone; Python must not try to flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno is None:
            raise
        return complain(f"{error.filename or 'a file'}: {error.strerror}; {way_out(error)}")
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def dispatch(words: list[str]) -> int:
    """Find the command, parse its arguments, run it."""
    name = " ".join(words[:2]) if words[:1] == ["corpus"] else " ".join(words[:1])
    if not words or words[0] in ("-h", "--help") or words in (["corpus"], ["corpus", "--help"]):
        print(overview())
        return 0
    if words[0] == "--version":
        from tinylm import __version__

        print(f"tinylm {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(
            f"{name!r} is not a command, expected one of {', '.join(COMMANDS)}; see tinylm --help"
        )
    command = COMMANDS[name]
    import tyro

    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            given: Arguments = tyro.cli(
                command.arguments(words),
                args=words[len(name.split()) :],
                prog=f"tinylm {name}",
                description=command.help,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.UseAppendAction),
            )
    except SystemExit as refused:
        if not refused.code:
            return 0
        raise ConfigError(one_line(complaints.getvalue())) from None
    return command.run(given)


def overview() -> str:
    """The text of `tinylm --help`."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  tinylm {name:<{width}}  {command.help.partition('.')[0]}" for name, command in COMMANDS.items()
    ]
    return (
        "tinylm trains small language models straight on UTF-8 bytes.\n\n"
        + "\n".join(lines)
        + "\n\nEach command explains its flags with --help. Start with: tinylm quickstart"
    )


def quickstart(given: Arguments) -> int:
    from tinylm.progress import console
    from tinylm.quickstart import quickstart as run

    return ended(run(options.QuickstartConfig(**fields(given)), console(stderr=False)).signal)


def corpus_build(given: Arguments) -> int:
    from tinylm.corpus import build_corpus, describe
    from tinylm.progress import BuildProgress
    from tinylm.sources import open_sources

    values = fields(given)
    places, out, replace = values.pop("source"), values.pop("out"), values.pop("replace")
    config = options.CorpusConfig(**values).check()
    with BuildProgress() as progress:
        corpus = build_corpus(open_sources(places, config), out, config, replace=replace, progress=progress)
    print(describe(corpus))
    return 0


def corpus_show(given: Arguments) -> int:
    from tinylm.corpus import describe, open_corpus

    print(describe(open_corpus(given.corpus)))
    return 0


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


def evaluate(given: Arguments) -> int:
    from tinylm.baselines import ladder
    from tinylm.data import corpus_for
    from tinylm.language_model import load
    from tinylm.progress import BuildProgress, console, evaluation_table, ladder_table

    values = fields(given)
    config = options.EvaluateConfig(
        **{k: v for k, v in values.items() if k not in ("checkpoint", "data")}
    ).check()
    model = load(given.checkpoint, config.device)
    with BuildProgress() as progress:
        corpus = corpus_for(given.data, progress=progress)
    evaluation = model.evaluate(corpus, rows=config.rows)
    rungs = ladder(corpus.train, corpus.validation) if config.ladder else []
    if config.json:
        print(json.dumps({**evaluation.to_dict(), "ladder": [rung.to_dict() for rung in rungs]}, indent=1))
        return 0
    out = console(stderr=False)
    out.print(evaluation_table(evaluation))
    if rungs:
        out.print(ladder_table(rungs, evaluation))
    return 0


def generate(given: Arguments) -> int:
    from tinylm.interrupts import stop_requests
    from tinylm.language_model import load

    values = fields(given)
    path, prompt = values.pop("checkpoint"), values.pop("prompt") or ""
    config = options.GenerateConfig(**values).check()
    events = load(path).generate(prompt, **dataclasses.asdict(config))
    print(prompt, end="", flush=True)
    end = None
    with stop_requests() as stop:
        for event in events:
            print(event.text, end="", flush=True)
            end = event.end
            if stop.signal is not None:
                break
    print()
    if end is not None:
        how = {"boundary": "the document ended", "limit": "limit", "stop": f"stop string {end.stop!r}"}[
            end.reason
        ]
        print(f"[{how} after {end.tokens} tokens]", file=sys.stderr)
    return ended(stop.signal)


def fields(given: Arguments) -> dict[str, Any]:
    """The values of a parsed dataclass, nested ones as they are."""
    return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}


def ended(signal: int | None) -> int:
    """The exit code of a command that a signal may have ended."""
    return 0 if signal is None else 128 + signal


def terminal_report() -> TerminalReport:
    from tinylm.progress import TerminalReport

    return TerminalReport()


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as an exception does, so that what is half-written is removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def complain(message: str) -> int:
    """Print an error as one line on standard error."""
    print(f"tinylm: {' '.join(message.split())}", file=sys.stderr)
    return 2


def way_out(error: OSError) -> str:
    """What a user can do about an error of the operating system."""
    import errno

    return {
        errno.ENOSPC: "free some space, or choose a place on another disk; nothing half-written was left",
        errno.EDQUOT: "free some space, or choose a place on another disk; nothing half-written was left",
        errno.EACCES: "change its permissions, or choose another place",
        errno.ENOENT: "check the path",
        errno.EEXIST: "choose another place",
        errno.EROFS: "choose a place that can be written",
        errno.ENOTDIR: "choose a folder",
        errno.ENOTEMPTY: "choose another place",
    }.get(error.errno or 0, "check the place and try again")


@dataclasses.dataclass(frozen=True)
class Command:
    """How a command is parsed (a dataclass for tyro, from the words given) and run."""

    help: str
    arguments: Callable[[list[str]], type]
    run: Callable[[Arguments], int]


PLACES = "files, folders, - for standard input, builtin:docs, builtin:python or builtin:unicode"

COMMANDS = {
    "quickstart": Command(
        "The main job on real text, once through, in about three minutes.",
        lambda words: flags(options.QuickstartConfig),
        quickstart,
    ),
    "corpus build": Command(
        "Build a corpus from text: files, folders, JSON Lines, gzip of these, standard input.",
        lambda words: flags(
            options.CorpusConfig,
            positional={"source": (tuple[str, ...], PLACES)},
            extra={
                "out": (str, dataclasses.MISSING, "folder of the corpus"),
                "replace": (bool, False, "replace an existing corpus once the new one is complete"),
            },
        ),
        corpus_build,
    ),
    "corpus show": Command(
        "Show what a corpus holds, after verifying all of it.",
        lambda words: flags(options.Nothing, positional={"corpus": (str, "a corpus folder")}),
        corpus_show,
    ),
    "train": Command(
        "Train a model, or go on with a run. A run is a function of its configuration, corpus and seed.",
        train_flags,
        train,
    ),
    "evaluate": Command(
        "Measure a checkpoint in bits per byte, beside what counting and compressors reach.",
        lambda words: flags(
            options.EvaluateConfig,
            positional={
                "checkpoint": (str, "a run folder, a step folder or a model file"),
                "data": (str, "a corpus folder, or any source of text: its held-out part is measured"),
            },
        ),
        evaluate,
    ),
    "generate": Command(
        "Let a model write, from a prompt or from nothing, until its document ends.",
        lambda words: flags(
            options.GenerateConfig,
            positional={
                "checkpoint": (str, "a run folder, a step folder or a model file"),
                "prompt": (str | None, "text to go on from; left out, a document begins"),
            },
        ),
        generate,
    ),
}
