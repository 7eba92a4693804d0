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


class ScriptedCache:
    """Counts the tokens read; `resets` says how often it was emptied."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.position = 0
        self.resets = 0

    def reset(self) -> None:
        self.position = 0
        self.resets += 1


class ScriptedModel:
    """Gives row p of `logits_PV` (float [P, 257]) for the token after position p; the last row stays.

    `read` lists the ids of each forward pass.
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

    def new_cache(self, rows: int = 1) -> ScriptedCache:
        assert rows == 1
        return ScriptedCache(self.config.window)

    def __call__(self, ids_BT: Tensor, cache: ScriptedCache | None = None) -> Tensor:
        assert ids_BT.dtype == torch.int64 and ids_BT.shape[0] == 1 and ids_BT.shape[1] > 0
        start = 0 if cache is None else cache.position
        positions = torch.arange(start, start + ids_BT.shape[1])
        assert positions[-1] < self.config.window, "more tokens than the window holds"
        if cache is not None:
            cache.position = int(positions[-1]) + 1
        self.read.append(ids_BT[0].tolist())
        return self._logits_PV[positions.clamp(max=len(self._logits_PV) - 1)][None]


def scripted(
    script: Sequence[int], *, prompt_tokens: int = 1, window: int = 64, policy: Policy = "cross"
) -> ScriptedModel:
    """A model that samples `script` after a prompt of `prompt_tokens` tokens, then boundaries."""
    logits_PV = np.full((prompt_tokens + len(script), VOCABULARY_SIZE), UNLIKELY)
    rows = np.arange(prompt_tokens - 1, prompt_tokens + len(script))
    logits_PV[rows, [*script, DOC_BOUNDARY]] = 0.0
    return ScriptedModel(logits_PV, window=window, policy=policy)
