"""The options of the quickstart."""

from __future__ import annotations

from dataclasses import dataclass

from tinylm.config.checked import Checked, booleans, numbers, option, seed


@dataclass(frozen=True)
class QuickstartConfig(Checked):
    """The main job on real text, once through."""

    quick: bool = option(False, "the form of a few seconds: less text, few steps")
    minutes: float = option(2.0, "how long to train")
    seed: int = option(0, "seed of weights, row order and samples")

    def problems(self) -> list[str]:
        return booleans(self, ("quick",)) + numbers(self, ("minutes",), 0.0, above=True) + seed(self)
