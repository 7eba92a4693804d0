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

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tinylm import constraints
from tinylm.errors import RequestError, TinylmError
from tinylm.generate.context import Window
from tinylm.generate.drafts import NOTHING, ORDERS, Drafts, Guess, History
from tinylm.generate.generation import Drawn, Generation, Sampled, Task, draw_together, sample
from tinylm.generate.graphed import GraphedReader
from tinylm.generate.reader import CHUNK, Model, Reader
from tinylm.sampling import Floats

INEXACT = (
    "this model's kernels round a token that is read among others in another way than one that is read "
    "alone, so speculation could change ids"
)


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
    in the last bits, and so an id may where two are as likely. `graphed`: a backend of torch.compile, with
    which steps are compiled whole and on CUDA recorded as graphs (tinylm/generate/graphed.py), which is
    `fast` too; "" does not. The model's weights are taken as they are now.
    `unspeculative`: why `speculate` has no effect here, or ""; what is guessed never changes a result.
    """

    def __init__(
        self, model: Model, slots: int = 1, *, chunk: int = CHUNK, fast: bool = False, graphed: str = ""
    ) -> None:
        if slots < 1 or chunk < 2:
            raise RequestError(f"slots is {slots} and chunk {chunk}, expected at least 1 and 2")
        self._config = model.config
        self._reader: Reader | GraphedReader = (
            GraphedReader(model, slots, backend=graphed) if graphed else Reader(model, slots, fast=fast)
        )
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
        ready = [g for g in active if g.slot in logits and g.window.read == len(g.window.tokens)]
        drawn = draw_together({g: logits[g.slot] for g in ready if g.plain})
        found: list[tuple[Generation, Sampled | TinylmError]] = []
        for generation in ready:
            guess = guesses.get(generation.slot, NOTHING)
            outcomes = self._sample(generation, guess, logits[generation.slot], drawn.get(generation, ()))
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

    def _sample(
        self, generation: Generation, guess: Guess, logits_TV: Floats, drawn: Sequence[Drawn]
    ) -> list[Sampled | TinylmError]:
        """Draw a token after the last one, where it is not `drawn` yet, and go on while it is the guess."""
        found: list[Sampled | TinylmError] = []
        history, right = generation.history, 0
        if history is not None and generation.finite:
            self._drafts.learn([*history.tokens[-max(ORDERS) :], *guess.tokens], logits_TV)
        for place, logits_V in enumerate(logits_TV):
            try:
                outcome: Sampled | TinylmError = sample(generation, logits_V, drawn[place] if drawn else None)
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
