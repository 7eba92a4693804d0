"""How ids are drawn and when a generation ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tinylm.config.checked import Checked, booleans, integers, is_number, is_text, numbers, option, seed

MOST_GUESSED = 64
"""The most that `speculate` may be: text is never so predictable that more would pay."""


@dataclass(frozen=True)
class GenerateConfig(Checked):
    """How ids are drawn and when a generation ends."""

    max_tokens: int = option(512, "limit of sampled tokens, the boundary included")
    stop: tuple[str, ...] = option((), "strings that end the generation; not part of the text")
    temperature: float = option(
        0.8, "0 takes the most probable token; 1 leaves the model's distribution as it is"
    )
    top_k: int = option(0, "draw from the k most probable tokens; 0: from all")
    top_p: float = option(1.0, "draw from the smallest set of tokens that holds this share of probability")
    min_p: float = option(0.0, "draw from tokens at least this share as probable as the best")
    seed: int = option(0, "the k-th draw depends on the seed and on k only")
    valid_utf8: bool = option(
        False, "never draw a byte that cannot continue well-formed UTF-8 (changes the distribution)"
    )
    grammar: str | None = option(
        None, "write only what this grammar (GBNF) matches; @FILE reads it from a file"
    )
    regex: str | None = option(
        None, "write only what this regular expression matches as a whole; @FILE reads it from a file"
    )
    json_schema: str | None = option(
        None, "write only JSON that this JSON schema accepts; @FILE reads it from a file"
    )
    repeat_penalty: float = option(
        1.0, "divide the positive logits of recent tokens by this, multiply the negative ones; 1: off"
    )
    presence_penalty: float = option(0.0, "take this off the logits of recent tokens")
    frequency_penalty: float = option(0.0, "take this off for each occurrence among the recent tokens")
    repeat_last_n: int = option(64, "tokens that are recent, prompt included; -1: all that the model sees")

    speculate: int = option(
        0, "most tokens guessed and read at once with the last; changes no id, only the speed; 0: none"
    )

    def problems(self) -> list[str]:
        found = integers(self, ("max_tokens", "top_k"), 0)
        found += seed(self)
        found += numbers(self, ("temperature",), 0.0)
        found += numbers(self, ("repeat_penalty",), 0.0, above=True)
        found += numbers(self, ("presence_penalty", "frequency_penalty"), -math.inf)
        found += integers(self, ("repeat_last_n",), -1)
        found += booleans(self, ("valid_utf8",))
        found += integers(self, ("speculate",), 0, MOST_GUESSED)
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            found.append(f"top_p is {self.top_p!r}, expected a share above 0 and up to 1")
        if not is_number(self.min_p) or not 0 <= self.min_p <= 1:
            found.append(f"min_p is {self.min_p!r}, expected a share from 0 to 1")
        if not isinstance(self.stop, tuple) or not all(map(is_text, self.stop)):
            found.append(f"stop is {self.stop!r}, expected strings that are not empty")
        asked = [name for name in ("grammar", "regex", "json_schema") if getattr(self, name) is not None]
        for name in asked:
            if not isinstance(getattr(self, name), str) or (name != "regex" and not getattr(self, name)):
                found.append(f"{name} is {getattr(self, name)!r}, expected a text that is not empty")
        if len(asked) > 1:
            found.append(f"{' and '.join(asked)} are given, expected at most one of them")
        return found
