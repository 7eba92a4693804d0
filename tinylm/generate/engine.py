"""The engine: generations in slots, all of them moved on by one token a step.

One generator for the library and the server: `generate()` is an engine with one slot. A generation's ids
depend on its task alone, never on its neighbours, its slot or the order of work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import RequestError, TinylmError
from tinylm.events import Event, EventStream
from tinylm.generate.context import Context, Model
from tinylm.sampling import Floats, allowed_after, distribution, draw, uniform
from tinylm.tokenizer import Utf8Stream


@dataclass(frozen=True)
class Task:
    """What one generation asks for.

    `prompt`: ids as the model is fed, at least one. `bias`: added to the logits of ids before anything
    else; -inf forbids an id. `top`: how many of the most probable ids are told with each token.
    """

    prompt: tuple[int, ...]
    config: GenerateConfig = field(default_factory=GenerateConfig)
    bias: Mapping[int, float] = field(default_factory=dict)
    top: int = 0
    reuse: bool = True


@dataclass(frozen=True)
class Sampled:
    """One sampled token: its event, and what the model thought.

    `log_probability` and `top` (ids with their log-probabilities, best first): natural logarithms under the
    model's own distribution, bias included, before temperature and cuts. `probability` and `drawn` (as many
    ids as `top`, best first): under the distribution drawn from.
    """

    token: int
    event: Event
    log_probability: float
    probability: float
    top: tuple[tuple[int, float], ...]
    drawn: tuple[tuple[int, float], ...] = ()


class Generation:
    """A task in a slot. `stream.end` is set once it is over; then `stream.finish()` gives the final event.

    `reused`: prompt tokens whose keys another generation had computed. `paused`: the engine leaves it alone.
    """

    def __init__(self, task: Task, slot: int, context: Context) -> None:
        self.task = task
        self.slot = slot
        self.stream = EventStream(task.config.stop, task.config.max_tokens)
        self.paused = False
        self.reused = 0
        self.context = context
        self.utf8 = Utf8Stream(errors="strict")


class Engine:
    """Generations side by side. Not thread-safe: one thread starts, steps and cancels."""

    def __init__(self, model: Model, slots: int = 1) -> None:
        self._model = model
        self._slots: list[Generation | None] = [None] * slots

    @property
    def running(self) -> list[Generation]:
        """The generations that hold a slot, in order of slots."""
        return [generation for generation in self._slots if generation is not None]

    @property
    def free(self) -> int:
        """Slots that `start` can take."""
        return self._slots.count(None)

    def start(self, task: Task) -> Generation:
        """Take a slot. Computes nothing yet. Raises RequestError if there is none, or for a wrong task.

        A task that asks for no tokens has ended at once and holds no slot.
        """
        task = dataclasses.replace(task, config=task.config.check())
        if task.config.max_tokens == 0:
            return Generation(task, -1, Context(self._model, task.prompt))
        if None not in self._slots:
            raise RequestError(f"all {len(self._slots)} slots are taken; wait until one is free")
        slot = self._slots.index(None)
        generation = self._slots[slot] = Generation(task, slot, Context(self._model, task.prompt))
        return generation

    def cancel(self, generation: Generation) -> None:
        """Free the slot at once; nothing more is sampled. Harmless when it is over already."""
        if generation in self._slots:
            self._slots[generation.slot] = None

    def step(self) -> list[tuple[Generation, Sampled | TinylmError]]:
        """Move every generation that is not paused on by at most one token, and free slots that ended.

        Gives the tokens that were sampled; an error ends the generation that it names and no other.
        """
        found: list[tuple[Generation, Sampled | TinylmError]] = []
        for generation in self.running:
            if generation.paused:
                continue
            try:
                outcome: Sampled | TinylmError = sample(generation, generation.context.logits())
            except TinylmError as error:
                outcome = error
            found.append((generation, outcome))
            if isinstance(outcome, TinylmError) or generation.stream.end is not None:
                self.cancel(generation)
        return found


def sample(generation: Generation, logits_V: Floats) -> Sampled:
    """Draw the next token of a generation from its logits (float64 [257]) and make its event."""
    task, stream = generation.task, generation.stream
    config = task.config
    room = config.max_tokens - stream.tokens
    allowed_V = allowed_after(generation.utf8.held, room) if config.valid_utf8 else None
    if task.bias:
        logits_V = logits_V.copy()
        for token, bias in task.bias.items():
            logits_V[token] += bias
    probabilities_V = distribution(logits_V, config, allowed_V)
    token = draw(probabilities_V, uniform(config.seed, stream.tokens))
    generation.context.append(token)
    if config.valid_utf8 and token != DOC_BOUNDARY:
        generation.utf8.push(bytes((token,)))
    shifted_V = logits_V - logits_V.max()
    logarithms_V = shifted_V - np.log(np.exp(shifted_V).sum())
    best = np.argsort(-logarithms_V, kind="stable")[: task.top]
    likely = np.argsort(-probabilities_V, kind="stable")[: task.top]
    return Sampled(
        token,
        stream.push(token),
        float(logarithms_V[token]),
        float(probabilities_V[token]),
        tuple((int(other), float(logarithms_V[other])) for other in best),
        tuple((int(other), float(probabilities_V[other])) for other in likely),
    )
