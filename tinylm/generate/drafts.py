"""Guesses of what a generation draws next, so that a model can read several tokens at once.

What is drawn never depends on a guess: see `Engine.step`. A guess is good if it is often right and costs
little. Two things are known for nothing: the logits after every context that was read lately, whichever
generation it was; and the number that the next draw will use, as draws go by number. So a guess is drawn
as the model would draw, at that very number, from what the model said after the same last bytes before
(common random numbers). Drawn alike from distributions that are alike, it is right more often than the most
probable token would be. A model that copies from its prompt is guessed by copying too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from tinylm.config import GenerateConfig
from tinylm.sampling import Floats, uniform

ORDERS = (6, 5, 4, 3, 2, 1)
"""Lengths of the contexts, in tokens, after which logits are remembered; the longest that is known counts."""

BEST = 8
"""Ids of each context that are remembered: the most probable."""

CONTEXTS = 2**14
"""Contexts of each length that are remembered; the oldest is forgotten first."""

COPIES = (8, 5, 3)
"""Lengths of an earlier occurrence of the last tokens, in the same generation, that may be copied on."""

KEPT = 4096
"""Tokens of a generation in which an earlier occurrence is looked for, at least; at most twice as many."""

RATE = 1 / 16
"""Weight of the newest guess in how often guesses of its kind have been right."""

WORTH = 0.3
"""A token is guessed while it is at least this likely to be read for use, all guesses before it included."""

Remembered = tuple[tuple[int, ...], tuple[float, ...]]
"""Ids, in their order, and their logits."""


class History:
    """The tokens of one generation, and where the last few of them stood before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        self._before: list[tuple[tuple[int, ...], int]] = []
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """One more token is known."""
        tokens = self.tokens
        if len(tokens) == 2 * KEPT:
            kept = tokens[-KEPT:]
            tokens.clear()
            self._after.clear()
            for old in kept:
                self.append(old)
        here = len(tokens)
        for length in COPIES:
            if length <= here:
                self._after[tuple(tokens[-length:])] = here
        tokens.append(token)

    def find(self, last: Sequence[int]) -> tuple[int, int]:
        """Where the newest earlier occurrence of the longest end of `last` goes on, and its length; or 0s."""
        for length in COPIES:
            place = self._after.get(tuple(last[-length:]))
            if place is not None:
                return place, length
        return 0, 0


@dataclass(frozen=True)
class Guess:
    """Guessed tokens, each with the kind of guess that it is."""

    tokens: tuple[int, ...]
    kinds: tuple[tuple[int, int], ...]


NOTHING = Guess((), ())


class Drafts:
    """What an engine has seen its model say, and how well guesses from that did. Its memory is bounded."""

    def __init__(self) -> None:
        self._tables: list[dict[tuple[int, ...], Remembered]] = [{} for _ in ORDERS]
        self._right: dict[tuple[int, int], float] = {}

    def learn(self, tokens: Sequence[int], logits_TV: Floats) -> None:
        """Take what the model said (float64 [T, 257]) after each of the last T of `tokens`."""
        best_TK = np.sort(np.argpartition(logits_TV, -BEST, axis=1)[:, -BEST:], axis=1)
        values_TK = np.take_along_axis(logits_TV, best_TK, axis=1)
        end = len(tokens) - len(logits_TV) + 1
        for ids, values in zip(best_TK.tolist(), values_TK.tolist(), strict=True):
            record = (tuple(ids), tuple(values))
            for length, table in zip(ORDERS, self._tables, strict=True):
                if length <= end:
                    table[tuple(tokens[end - length : end])] = record
                    if len(table) > CONTEXTS:
                        del table[next(iter(table))]
            end += 1

    def guess(
        self, history: History, config: GenerateConfig, bias: Mapping[int, float], number: int, most: int
    ) -> Guess:
        """Up to `most` tokens that draws `number`, `number + 1`, ... will give, as far as it pays."""
        tokens: list[int] = []
        kinds: list[tuple[int, int]] = []
        last = history.tokens[-max(*ORDERS, *COPIES) :]
        likely = 1.0
        place, length = history.find(last)
        for ahead in range(most):
            kind, token = (0, 0), -1
            right = 0.0
            if length:
                kind, token = (0, length), history.tokens[place]
                right = self._right.get(kind, 0.5)
            for order, table in zip(ORDERS, self._tables, strict=True):
                remembered = table.get(tuple(last[-order:]))
                if remembered is not None:
                    drawn, share = draw_alike(remembered, config, bias, uniform(config.seed, number + ahead))
                    drawn_kind = (order, min(int(share * 4), 3))
                    drawn_right = self._right.get(drawn_kind, 0.5)
                    if drawn_right >= right:
                        kind, token, right = drawn_kind, drawn, drawn_right
                    break
            likely *= right
            if token < 0 or likely < WORTH:
                break
            tokens.append(token)
            kinds.append(kind)
            last.append(token)
            if length and token == history.tokens[place] and place + 1 < len(history.tokens):
                place += 1
            else:
                place, length = history.find(last)
        return Guess(tuple(tokens), tuple(kinds))

    def tell(self, guess: Guess, right: int) -> None:
        """How a guess did: so many of its tokens were right, then one was wrong if there was one more."""
        for index, kind in enumerate(guess.kinds[: right + 1]):
            before = self._right.get(kind, 0.5)
            self._right[kind] = before + RATE * ((index < right) - before)


def draw_alike(
    remembered: Remembered, config: GenerateConfig, bias: Mapping[int, float], u: float
) -> tuple[int, float]:
    """The id that remembered logits give at `u`, about as `distribution` and `draw` do, and its share."""
    ids, values = remembered
    if bias:
        values = tuple(value + bias.get(token, 0.0) for token, value in zip(ids, values, strict=True))
    highest = max(values)
    if highest == -np.inf:
        return ids[0], 0.0
    if config.temperature == 0:
        weights = [exp(value - highest) for value in values]
        return ids[values.index(highest)], 1 / sum(weights)
    weights = [exp((value - highest) / config.temperature) for value in values]
    if config.top_k or config.top_p < 1 or config.min_p:
        ranked = sorted(range(len(ids)), key=lambda index: -weights[index])
        total, room = sum(weights), 0.0
        for rank, index in enumerate(ranked):
            cut = (config.top_k and rank >= config.top_k) or room >= config.top_p * total
            room += weights[index]
            if cut or weights[index] < config.min_p:
                weights[index] = 0.0
    total = left = sum(weights)
    left *= u
    place = -1
    while left >= 0 and place + 1 < len(ids):
        place += 1
        left -= weights[place]
    return ids[place], weights[place] / total
