"""The engine: generations in slots, all of them moved on by one token a step, or by a few that were guessed.

One generator for the library and the server: `generate()` is an engine with one slot. A generation's ids
depend on its task alone, never on its neighbours, its slot, how many slots there are, or the order of work:
its prompt is read by itself, in chunks whose borders depend on the prompt alone; tokens are read in rows
that do not depend on one another; and of the keys of others only those of equal whole chunks are used.

Nor do they depend on guesses. Guessed tokens are read together with the last one; then each token is drawn
as ever, by its number, from the logits after the one before, and goes on while the guess was right: draw
s from p, emit s, continue while s is the guess. So each token comes from the model's own distribution
(rejection sampling with a draft that is one point; Leviathan et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from tinylm import constraints
from tinylm.config import GenerateConfig
from tinylm.constraints import Constraint
from tinylm.errors import ConflictError, RequestError, TinylmError
from tinylm.events import End, Event, EventStream
from tinylm.generate.context import Window
from tinylm.generate.drafts import NOTHING, ORDERS, Drafts, Guess, History
from tinylm.generate.reader import CHUNK, Model, Reader
from tinylm.sampling import Floats, distribution, draw, penalized, uniform

INEXACT = (
    "this model's kernels round a token that is read among others in another way than one that is read "
    "alone, so speculation could change ids"
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


@dataclass
class _Slot:
    """A slot: who holds it, when it was taken last, and the tokens whose keys in it may be used again.

    Those are whole chunks from position 0 on, read as chunks. They end before the last position, at which
    a slot that is idle among others writes.
    """

    generation: Generation | None = None
    taken: int = 0
    chunks: list[int] = field(default_factory=list)


class Engine:
    """Generations side by side. Not thread-safe: one thread starts, steps and cancels.

    `slots`: how many run at once; their keys are all the memory that it takes. `chunk`: tokens of a prompt
    that are read at once, and between two tokens of the others. `fast`: rows may depend on their neighbours
    in the last bits, and so an id may where two are as likely. The model's weights are taken as they are now.
    `unspeculative`: why `speculate` has no effect here, or ""; what is guessed never changes a result.
    """

    def __init__(self, model: Model, slots: int = 1, *, chunk: int = CHUNK, fast: bool = False) -> None:
        if slots < 1 or chunk < 2:
            raise RequestError(f"slots is {slots} and chunk {chunk}, expected at least 1 and 2")
        self._config = model.config
        self._reader = Reader(model, slots, fast=fast)
        self.unspeculative = "" if fast or self._reader.exact_drafts else INEXACT
        self._drafts = Drafts()
        self._chunk = chunk
        self._slots = [_Slot() for _ in range(slots)]
        self._taken = 0

    @property
    def running(self) -> list[Generation]:
        """The generations that hold a slot, in order of slots."""
        return [slot.generation for slot in self._slots if slot.generation is not None]

    @property
    def free(self) -> int:
        """Slots that `start` can take."""
        return sum(slot.generation is None for slot in self._slots)

    def start(self, task: Task) -> Generation:
        """Take a slot. Computes nothing yet. Raises RequestError if there is none, or for a wrong task.

        A task that asks for no tokens has ended at once and holds no slot.
        """
        config = task.config.check()
        compiled = task.constraint or constraints.compile(
            grammar=config.grammar,
            regex=config.regex,
            json_schema=config.json_schema,
            valid_utf8=config.valid_utf8,
        )
        window = Window(task.prompt, self._config)
        if config.max_tokens == 0:
            return Generation(task, -1, window, compiled)
        if not self.free:
            raise RequestError(f"all {len(self._slots)} slots are taken; wait until one is free")
        source, length = self._source(window.tokens) if task.reuse else (0, 0)
        held = self._slots[source]
        if length and held.generation is None and window.tokens[: len(held.chunks)] == held.chunks:
            chosen = source  # and nothing of it is lost
        else:
            idle = [index for index, slot in enumerate(self._slots) if slot.generation is None]
            chosen = min(idle, key=lambda index: self._slots[index].taken)
        slot = self._slots[chosen]
        if length and chosen != source:
            self._reader.copy(source, chosen, length)
        slot.chunks = window.tokens[:length]
        slot.generation = Generation(task, chosen, window, compiled)
        slot.generation.reused = window.read = length
        if config.speculate and not self.unspeculative:
            slot.generation.history = History(window.tokens)
        self._taken += 1
        slot.taken = self._taken
        return slot.generation

    def _source(self, tokens: list[int]) -> tuple[int, int]:
        """The slot that holds the most of a prompt in whole chunks, and how many tokens of it.

        The last token is always read, for the logits after it.
        """
        found = (0, 0)
        for index, slot in enumerate(self._slots):
            length = 0
            most = min(len(slot.chunks), len(tokens) - 1)
            for end in range(self._chunk, most + 1, self._chunk):
                if slot.chunks[length:end] != tokens[length:end]:
                    break
                length = end
            if length > found[1]:
                found = (index, length)
        return found

    def cancel(self, generation: Generation) -> None:
        """Free the slot at once; nothing more is sampled. Harmless when it is over already."""
        slot = self._slots[generation.slot]
        if slot.generation is not generation:
            return
        slot.generation = None
        if not generation.finite:
            # It would reach the next generation through a mask: 0 times NaN is NaN.
            self._reader.clear(generation.slot)
            slot.chunks = []

    def step(self) -> list[tuple[Generation, Sampled | TinylmError]]:
        """Move every generation that is not paused on by a token, or several, and free slots that ended.

        Prompts are read first, in the order in which they came, but not more than about a chunk a step.
        Gives the tokens that were sampled, those of one generation in their order: at most one, and as many
        more as `speculate` allows. An error ends the generation that it names and no other.
        """
        active = [generation for generation in self.running if not generation.paused]
        logits: dict[int, Floats] = {}
        budget = self._chunk
        for generation in sorted(active, key=lambda generation: self._slots[generation.slot].taken):
            while budget > 0 and len(ids := generation.window.unread(self._chunk)) > 1:
                logits[generation.slot] = self._read_chunk(generation, ids)[None]
                budget -= len(ids)
        single = [g for g in active if len(g.window.tokens) == g.window.read + 1]
        guesses = {g.slot: self._guess(g) for g in single}
        logits.update(self._read(single, guesses))
        found: list[tuple[Generation, Sampled | TinylmError]] = []
        for generation in active:
            if generation.slot not in logits or generation.window.read < len(generation.window.tokens):
                continue
            guess = guesses.get(generation.slot, NOTHING)
            outcomes = self._sample(generation, guess, logits[generation.slot])
            found += [(generation, outcome) for outcome in outcomes]
            if isinstance(outcomes[-1], TinylmError) or outcomes[-1].end is not None:
                self.cancel(generation)
        return found

    def _guess(self, generation: Generation) -> Guess:
        """Tokens that may come next: none beyond the window or the limit, none where none are asked for."""
        config, window = generation.task.config, generation.window
        room = min(self._config.window - len(window.tokens), config.max_tokens - generation.stream.tokens - 1)
        most = min(config.speculate, room)
        if generation.history is None or most < 1:
            return NOTHING
        return self._drafts.guess(
            generation.history, config, generation.task.bias, generation.stream.tokens, most
        )

    def _read(self, single: Sequence[Generation], guesses: dict[int, Guess]) -> dict[int, Floats]:
        """Read the last token of each of these generations, and after it what was guessed."""
        last = {g.slot: (g.window.read, g.window.tokens[-1]) for g in single}
        logits = self._reader.step(
            {slot: (read, [token, *guesses[slot].tokens]) for slot, (read, token) in last.items()}
        )
        for generation in single:
            slot = generation.slot
            finite = bool(np.isfinite(logits[slot].sum()))
            if not finite and guesses[slot].tokens:
                # Keys of a guess that are not finite reach the token before through the mask.
                read, token = last[slot]
                self._reader.clear(slot, read)
                guesses[slot] = NOTHING
                logits[slot] = self._reader.step({slot: (read, [token])})[slot]
                finite = bool(np.isfinite(logits[slot].sum()))
            generation.finite = finite
            generation.window.read += 1
        return logits

    def _sample(self, generation: Generation, guess: Guess, logits_TV: Floats) -> list[Sampled | TinylmError]:
        """Draw a token from the logits after the last one, and go on while it is the guess."""
        found: list[Sampled | TinylmError] = []
        history, right = generation.history, 0
        if history is not None and generation.finite:
            self._drafts.learn([*history.tokens[-max(ORDERS) :], *guess.tokens], logits_TV)
        for place, logits_V in enumerate(logits_TV):
            try:
                outcome: Sampled | TinylmError = sample(generation, logits_V)
            except TinylmError as error:
                outcome = error
            found.append(outcome)
            if isinstance(outcome, TinylmError):
                break
            if history is not None:
                history.append(outcome.token)
            if place == len(guess.tokens) or outcome.token != guess.tokens[place]:
                break
            right += 1
            if outcome.end is not None:
                break
            generation.window.read += 1
        if history is not None:
            generation.drafted += len(guess.tokens)
            generation.accepted += right
            self._drafts.tell(guess, right)
        return found

    def _read_chunk(self, generation: Generation, ids: list[int]) -> Floats:
        window, slot = generation.window, self._slots[generation.slot]
        if window.read == 0:
            slot.chunks = []
        logits_V = self._reader.chunk(generation.slot, window.read, ids)
        generation.finite = bool(np.isfinite(logits_V.sum()))
        begin, window.read = window.read, window.read + len(ids)
        if len(ids) == self._chunk and len(slot.chunks) == begin and window.read < self._config.window:
            slot.chunks += ids
        return logits_V


def sample(generation: Generation, logits_V: Floats) -> Sampled:
    """Draw the next token of a generation from its logits (float64 [257]) and make its event."""
    task, stream = generation.task, generation.stream
    config = task.config
    if task.bias:
        logits_V = logits_V.copy()
        for token, bias in task.bias.items():
            logits_V[token] += bias
    constraint, room = generation.constraint, config.max_tokens - stream.tokens
    with _failures_of(constraint):
        allowed_V = None if constraint is None else constraint.allowed(room)
    if allowed_V is not None and (logits_V[allowed_V] == -np.inf).all() and task.bias:
        raise ConflictError(
            f"token {stream.tokens + 1}: the constraint leaves only ids that a bias of -inf forbids "
            "(logit_bias, ignore_eos); drop one of the two"
        )
    probabilities_V = distribution(penalized(logits_V, generation.window.tokens, config), config, allowed_V)
    token = draw(probabilities_V, uniform(config.seed, stream.tokens))
    with _failures_of(constraint):
        if constraint is not None:
            constraint.advance(token)
    generation.window.append(token)
    event = stream.push(token)
    return Sampled(token, event, logits_V, probabilities_V, task.top, stream.end)


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
