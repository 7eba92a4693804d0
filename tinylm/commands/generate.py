"""tinylm generate."""

from __future__ import annotations

import dataclasses
import sys

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.flags import flags


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
