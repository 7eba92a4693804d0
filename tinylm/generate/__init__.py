"""Generation: a prompt, a model and a configuration give events.

Seeded with a document boundary, which does not stop it; stops on a newly sampled one, on a stop string
or at the limit. Knows of a model only what `Model` says.
"""

from __future__ import annotations

from collections.abc import Generator

from tinylm.config import GenerateConfig
from tinylm.events import Event
from tinylm.generate.compiled import why_not as why_not_compiled
from tinylm.generate.context import Context, prompt_ids, window_start
from tinylm.generate.engine import Engine
from tinylm.generate.generation import Generation, Sampled, Task
from tinylm.generate.reader import CHUNK, Model
from tinylm.tokenizer import Ids

__all__ = [
    "CHUNK",
    "Context",
    "Engine",
    "Generation",
    "Model",
    "Sampled",
    "Task",
    "events",
    "generate",
    "prompt_ids",
    "why_not_compiled",
    "window_start",
]


def generate(
    model: Model, prompt: str | Ids = "", config: GenerateConfig | None = None
) -> Generator[Event, None, None]:
    """The events of one generation: one per sampled token, then the final one.

    A text prompt is fed as [256, *its bytes], so "" is the boundary alone; ids are fed as they are.
    Draw k uses `uniform(config.seed, k)`. With `config.valid_utf8` the sampled bytes alone are whole
    well-formed UTF-8, also at the limit, near which only characters that still fit may begin. A grammar, a
    regex or a json_schema allows only what it matches (tinylm.constraints). Under the policies `mask` and
    `reset` a prompt counts from its last boundary. Closing the generator stops the work at once. Raises
    RequestError, ConfigError or ContractError before anything is computed.
    """
    engine = Engine(model)
    return events(engine, engine.start(Task(prompt_ids(prompt), config or GenerateConfig())))


def events(engine: Engine, generation: Generation) -> Generator[Event, None, None]:
    """The events of the one generation that runs in an engine, as `generate` gives them."""
    while generation.stream.end is None:
        for _, outcome in engine.step():
            if isinstance(outcome, Sampled):
                yield outcome.event
            else:
                raise outcome
    yield generation.stream.finish()
