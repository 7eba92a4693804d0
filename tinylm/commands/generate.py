"""tinylm generate."""

from __future__ import annotations

import sys
from pathlib import Path

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.errors import RequestError
from tinylm.flags import flags


def generate(given: Arguments) -> int:
    from tinylm.generate import Engine, Task, events, prompt_ids, why_not_compiled
    from tinylm.interrupts import stop_requests
    from tinylm.language_model import load

    values = fields(given)
    path, prompt = values.pop("checkpoint"), values.pop("prompt") or ""
    for name in ("grammar", "regex", "json_schema"):
        values[name] = told_or_read(name, values[name])
    config = options.GenerateConfig(**values).check()
    engine = Engine(load(path).transformer)
    generation = engine.start(Task(prompt_ids(prompt), config))
    if (reason := why_not_compiled()) is not None:
        print(f"[slower, in PyTorch: {reason}]", file=sys.stderr)
    if config.speculate and engine.unspeculative:
        print(f"[speculate is ignored: {engine.unspeculative}]", file=sys.stderr)
    print(prompt, end="", flush=True)
    end = None
    with stop_requests() as stop:
        for event in events(engine, generation):
            print(event.text, end="", flush=True)
            end = event.end
            if stop.signal is not None:
                break
    print()
    if end is not None:
        how = {"boundary": "the document ended", "limit": "limit", "stop": f"stop string {end.stop!r}"}[
            end.reason
        ]
        guessed = (
            f", {generation.accepted} of {generation.drafted} guesses right" if generation.drafted else ""
        )
        print(f"[{how} after {end.tokens} tokens{guessed}]", file=sys.stderr)
    return ended(stop.signal)


def told_or_read(name: str, value: str | None) -> str | None:
    """The text of an option; where it begins with @, what that file holds (UTF-8), less a last newline."""
    if value is None or not value.startswith("@"):
        return value
    raw = Path(value[1:]).read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{value[1:]}: byte {error.start} is not well-formed UTF-8, expected a {name}"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


GENERATE = Command(
    "Let a model write, from a prompt or from nothing, until its document ends.",
    lambda words: flags(
        options.GenerateConfig,
        positional={
            "checkpoint": (str, "a run folder, a step folder or a model file"),
            "prompt": (str | None, "text to go on from; left out, a document begins"),
        },
    ),
    generate,
)
