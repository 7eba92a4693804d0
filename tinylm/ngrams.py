"""Embeddings of the last 2 to n tokens: what a table of n-grams knows, learned along with the model.

Each n-gram is hashed to a row of a table; the rows of one position are added to its token's embedding. A step
reads, and so changes, a few thousand rows: gradients are sparse. Hash n-grams: Pagnoni et al., 2024 (BLT).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.shapes import check_shape

MULTIPLIER = -0x61C8864680B583EB  # 2**64 over the golden ratio (Knuth), as a signed number
SHIFT = 29


Ids = TypeVar("Ids", Tensor, npt.NDArray[np.int64])


def rows_of(ids_BS: Tensor, count: int, config: ModelConfig, segments_BS: Tensor | None = None) -> Tensor:
    """Rows of the table (int64 [B, count, ngrams - 1]) of the n-grams that end at the last `count` tokens.

    `ids_BS`: int64, with the tokens before them, as far as they are known. Before the first, before a
    boundary and outside the segment of a token stands the boundary: an n-gram never tells of another
    document. The n-grams of each length have `ngram_rows` rows of their own.
    """
    if not torch.compiler.is_compiling():
        sizes = check_shape(ids_BS, "B S", name="ids_BS", kind="integer")
        if segments_BS is not None:
            check_shape(segments_BS, "B S", name="segments_BS", kind="integer", **sizes)
    S, back = ids_BS.shape[1], []
    for distance in range(config.ngrams):
        place = slice(max(0, S - count - distance), max(0, S - distance))
        before = (count - (place.stop - place.start), 0)
        token_BT = F.pad(ids_BS[:, place], before, value=DOC_BOUNDARY)
        if segments_BS is not None:
            its_BT = F.pad(segments_BS[:, place], before, value=-2)
            token_BT = torch.where(its_BT == segments_BS[:, S - count :], token_BT, DOC_BOUNDARY)
        back.append(token_BT)
    return torch.stack(rows_of_tokens(back, config), dim=-1)


def rows_of_tokens(back: Sequence[Ids], config: ModelConfig) -> list[Ids]:
    """Rows of the n-grams of 2, 3, ... tokens, given a token and those 1, 2, ... places before it (int64 of
    any shape). What stands before a boundary does not count."""
    bits, rows = config.ngram_rows.bit_length() - 1, []
    hashed, inside = back[0] * 0, back[0] * 0 + 1
    for distance, token in enumerate(back):
        # Without conditions, so that it is the same for tensors and arrays. Products wrap around.
        known = (token - DOC_BOUNDARY) * inside
        product = (hashed ^ (known + DOC_BOUNDARY)) * MULTIPLIER
        hashed = product ^ ((product >> SHIFT) & ((1 << (64 - SHIFT)) - 1))
        inside = inside * (known != 0)
        if distance:
            # The upper bits of a product depend on all bits of what was multiplied.
            row = (hashed * MULTIPLIER >> (64 - bits)) & (config.ngram_rows - 1)
            rows.append(row + (distance - 1) * config.ngram_rows)
    return rows


class NgramEmbedding(nn.Module):
    """The table [(ngrams - 1) x ngram_rows, width]; its gradient holds the rows that were read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((config.ngrams - 1) * config.ngram_rows, config.width))

    def forward(self, rows_BTN: Tensor, dropout: float = 0.0) -> Tensor:
        """The sum [B, T, D] of the rows of each position.

        With `dropout` each n-gram is left out with that probability, and the rest is scaled up to make up for
        it: a row that was read before knows what came next there, and nobody else must rely on that.
        """
        B, T, N = rows_BTN.shape
        rows_RN = rows_BTN.reshape(B * T, N)
        if not dropout:
            sum_RD = F.embedding_bag(rows_RN, self.weight, mode="sum", sparse=True)
            return sum_RD.view(B, T, -1)
        kept_RN = torch.rand(rows_RN.shape, device=rows_RN.device) >= dropout
        counts_R = kept_RN.sum(dim=1)
        first_R = counts_R.cumsum(0) - counts_R
        sum_RD = F.embedding_bag(rows_RN[kept_RN], self.weight, first_R, mode="sum", sparse=True)
        return (sum_RD / (1 - dropout)).view(B, T, -1)
