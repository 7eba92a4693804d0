"""A generation: what was asked for, what it has drawn, and how its next token is drawn from its logits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from tinylm.config import GenerateConfig
from tinylm.constraints import Constraint
from tinylm.errors import ConflictError, RequestError, TinylmError
from tinylm.events import End, Event, EventStream
from tinylm.generate.context import Window
from tinylm.generate.drafts import History
from tinylm.sampling import (
    Floats,
    distribution,
    distributions,
    draw,
    draws,
    penalized,
    penalizes,
    uniform,
)


class Constraints(Protocol):
    """Gives each generation a constraint of its own: what `tinylm.constraints.compile` returns does."""

    def start(self) -> Constraint: ...


@dataclass(frozen=True)
class Task:
    """What one generation asks for.

    `prompt`: ids as the model is fed, at least one. `bias`: added to the logits of ids before anything
    else; -inf forbids an id. `top`: how many of the most probable ids are told with each token. `reuse`:
    whether keys that were computed for an equal prompt may be used, which changes no result.
    `constraint`: what may be drawn, compiled; without it, it is compiled from `config`.
    """

    prompt: tuple[int, ...]
    config: GenerateConfig = field(default_factory=GenerateConfig)
    bias: Mapping[int, float] = field(default_factory=dict)
    top: int = 0
    reuse: bool = True
    constraint: Constraints | None = None


@dataclass(frozen=True)
class Sampled:
    """One sampled token: its event, and what the model thought, worked out where it is asked for.

    `logits_V` (float64 [257]): the model's, bias included. `probabilities_V`: those drawn from. `count`: of
    how many ids `top` and `drawn` tell. `end`: set if it was the last token of its generation.
    """

    token: int
    event: Event
    logits_V: Floats
    probabilities_V: Floats
    count: int
    end: End | None = None

    @cached_property
    def log_probabilities_V(self) -> Floats:
        """Natural logarithms under the model's own distribution: before temperature and cuts."""
        shifted_V = self.logits_V - self.logits_V.max()
        logarithms_V: Floats = shifted_V - np.log(np.exp(shifted_V).sum())
        return logarithms_V

    @property
    def log_probability(self) -> float:
        """Of the token, under the model's own distribution."""
        return float(self.log_probabilities_V[self.token])

    @property
    def probability(self) -> float:
        """Of the token, under the distribution drawn from."""
        return float(self.probabilities_V[self.token])

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """Ids with their log-probabilities under the model's own distribution, best first."""
        return _best(self.log_probabilities_V, self.count)

    @property
    def drawn(self) -> tuple[tuple[int, float], ...]:
        """Ids with their probabilities under the distribution drawn from, best first."""
        return _best(self.probabilities_V, self.count)


def _best(values_V: Floats, count: int) -> tuple[tuple[int, float], ...]:
    ranked = np.argsort(-values_V, kind="stable")[:count]
    return tuple((int(token), float(values_V[token])) for token in ranked)


class Generation:
    """A task in a slot. `stream.end` is set once it is over; then `stream.finish()` gives the final event.

    `reused`: prompt tokens whose keys another generation had computed. `paused`: the engine leaves it alone.
    `finite`: whether the logits after what was read last are, and so all keys and values that they see.
    `drafted`: tokens that were guessed and read. `accepted`: those of them that were then drawn.
    """

    def __init__(self, task: Task, slot: int, window: Window, compiled: Constraints | None) -> None:
        self.task = task
        self.slot = slot
        self.stream = EventStream(task.config.stop, task.config.max_tokens)
        self.paused = False
        self.reused = 0
        self.finite = True
        self.drafted = self.accepted = 0
        self.history: History | None = None
        self.window = window
        self.constraint = None if compiled is None else compiled.start()
        # What it draws depends on its logits, its number and `options` alone, and not on what it wrote.
        config = task.config
        self.options = (config.temperature, config.top_k, config.top_p, config.min_p)
        self.plain = self.constraint is None and not task.bias and not penalizes(config)


Drawn = tuple[int, Floats]
"""A token and the probabilities that it was drawn from."""


def draw_together(logits: Mapping[Generation, Floats]) -> dict[Generation, Sequence[Drawn]]:
    """What plain generations draw next from successive logits (float64 [T, 257]): what `sample` would.

    Generations of equal options are rows of one array, for Python takes as long for many as for one. One
    whose logits are no distribution is left out with the rows beside it: by itself it tells why.
    """
    groups: dict[tuple[float, ...], list[Generation]] = defaultdict(list)
    for generation in logits:
        groups[generation.options].append(generation)
    found: dict[Generation, Sequence[Drawn]] = {}
    for group in groups.values():
        logits_RV = np.concatenate([logits[generation] for generation in group])
        if len(logits_RV) == 1:
            continue
        try:
            probabilities_RV = distributions(logits_RV, group[0].task.config)
        except RequestError:
            continue
        numbers = [
            uniform(generation.task.config.seed, generation.stream.tokens + place)
            for generation in group
            for place in range(len(logits[generation]))
        ]
        drawn = list(zip(draws(probabilities_RV, numbers), probabilities_RV, strict=True))
        begin = 0
        for generation in group:
            end = begin + len(logits[generation])
            found[generation], begin = drawn[begin:end], end
    return found


def sample(generation: Generation, logits_V: Floats, drawn: Drawn | None = None) -> Sampled:
    """The next token of a generation, `drawn` already or from its logits (float64 [257]), and its event."""
    task, stream = generation.task, generation.stream
    if drawn is None:
        logits_V, drawn = _draw(generation, logits_V)
    token, probabilities_V = drawn
    if generation.constraint is not None:
        with _failures_of(generation.constraint):
            generation.constraint.advance(token)
    generation.window.append(token)
    event = stream.push(token)
    return Sampled(token, event, logits_V, probabilities_V, task.top, stream.end)


def _draw(generation: Generation, logits_V: Floats) -> tuple[Floats, Drawn]:
    """The logits, bias included, and what is drawn from them."""
    task, config = generation.task, generation.task.config
    tokens = generation.stream.tokens
    if task.bias:
        logits_V = logits_V.copy()
        for token, bias in task.bias.items():
            logits_V[token] += bias
    allowed_V = None
    if generation.constraint is not None:
        with _failures_of(generation.constraint):
            allowed_V = generation.constraint.allowed(config.max_tokens - tokens)
    if allowed_V is not None and (logits_V[allowed_V] == -np.inf).all() and task.bias:
        raise ConflictError(
            f"token {tokens + 1}: the constraint leaves only ids that a bias of -inf forbids "
            "(logit_bias, ignore_eos); drop one of the two"
        )
    probabilities_V = distribution(penalized(logits_V, generation.window.tokens, config), config, allowed_V)
    return logits_V, (draw(probabilities_V, uniform(config.seed, tokens)), probabilities_V)


@contextmanager
def _failures_of(constraint: Constraint | None) -> Iterator[None]:
    """What a constraint raises, whatever it is, as an error that ends one generation and not the engine."""
    try:
        yield
    except TinylmError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise RequestError(
            f"constraint {type(constraint).__name__}: failed with {told}, expected a mask; ask without it"
        ) from error
