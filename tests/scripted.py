"""A model that follows a script: its logits depend on the position only.

It has the interface that generation needs of a Transformer, so any bytes can be sampled on purpose.
It also counts its forward passes, and refuses tokens that do not fit its window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinylm.config import ModelConfig, Policy
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE

UNLIKELY = -10_000.0
"""A finite logit whose probability is exactly 0 beside a logit of 0, at any usual temperature."""


class ScriptedSlots:
    """Slots that know where each row of a forward pass stands, as `tinylm.generate.Model` has them."""

    def __init__(self) -> None:
        self.copied: list[tuple[int, int, int]] = []
        self.cleared: list[int] = []
        self.positions: tuple[int, ...] = ()

    def at(self, first: int, positions: Sequence[int | None]) -> ScriptedSlots:
        self.positions = tuple(position or 0 for position in positions)
        return self

    def copy(self, source: int, target: int, length: int) -> None:
        self.copied.append((source, target, length))

    def clear(self, slot: int, first: int = 0) -> None:
        self.cleared.append(slot)


class ScriptedModel:
    """Gives row p of `logits_PV` (float [P, 257]) for the token after position p; the last row stays.

    `read` lists the ids of each row of each forward pass.
    """

    def __init__(
        self, logits_PV: npt.NDArray[np.float64], *, window: int = 64, policy: Policy = "cross"
    ) -> None:
        self.config = ModelConfig(
            layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, window=window, policy=policy
        )
        self.device = torch.device("cpu")
        self.read: list[list[int]] = []
        self._logits_PV = torch.from_numpy(np.ascontiguousarray(logits_PV))

    def new_cache(self, rows: int = 1) -> None:
        raise AssertionError("generation reads into slots")

    def new_slots(self, slots: int) -> ScriptedSlots:
        self.slots = ScriptedSlots()
        return self.slots

    def __call__(self, ids_BT: Tensor, cache: ScriptedSlots) -> Tensor:
        B, T = ids_BT.shape
        assert ids_BT.dtype == torch.int64 and T > 0 and len(cache.positions) == B
        positions_BT = torch.tensor(cache.positions)[:, None] + torch.arange(T)
        assert int(positions_BT.max()) < self.config.window, "more tokens than the window holds"
        self.read += ids_BT.tolist()
        return self._logits_PV[positions_BT.clamp(max=len(self._logits_PV) - 1)]


def scripted(
    script: Sequence[int], *, prompt_tokens: int = 1, window: int = 64, policy: Policy = "cross"
) -> ScriptedModel:
    """A model that samples `script` after a prompt of `prompt_tokens` tokens, then boundaries."""
    logits_PV = np.full((prompt_tokens + len(script), VOCABULARY_SIZE), UNLIKELY)
    rows = np.arange(prompt_tokens - 1, prompt_tokens + len(script))
    logits_PV[rows, [*script, DOC_BOUNDARY]] = 0.0
    return ScriptedModel(logits_PV, window=window, policy=policy)
