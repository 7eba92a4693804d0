"""Embeddings of the last 2 to n tokens: what a table of n-grams knows, learned along with the model.

Each n-gram is hashed to a row of a table; the rows of one position are added to its token's embedding. A step
reads, and so changes, a few thousand rows: gradients are sparse. Hash n-grams: Pagnoni et al., 2024 (BLT).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.shapes import check_shape

MULTIPLIER = -0x61C8864680B583EB  # 2**64 over the golden ratio (Knuth), as a signed number
SHIFT = 29


def rows_of(ids_BS: Tensor, count: int, config: ModelConfig, segments_BS: Tensor | None = None) -> Tensor:
    """Rows of the table (int64 [B, count, ngrams - 1]) of the n-grams that end at the last `count` tokens.

    `ids_BS`: int64, with the tokens before them, as far as they are known. Before the first, before a
    boundary and outside the segment of a token stands the boundary: an n-gram never tells of another
    document. The n-grams of each length have `ngram_rows` rows of their own.
    """
    sizes = check_shape(ids_BS, "B S", name="ids_BS", kind="integer")
    if segments_BS is not None:
        check_shape(segments_BS, "B S", name="segments_BS", kind="integer", **sizes)
    S, bits = sizes["S"], config.ngram_rows.bit_length() - 1
    # Only the last `count` places are wanted, but what stands before them is looked at.
    seen = torch.ones(sizes["B"], count, dtype=torch.bool, device=ids_BS.device)
    hashed, rows = torch.zeros_like(seen, dtype=torch.int64), []
    for back in range(config.ngrams):
        place = slice(max(0, S - count - back), max(0, S - back))
        before = (count - (place.stop - place.start), 0)
        token = F.pad(ids_BS[:, place], before, value=DOC_BOUNDARY)
        if segments_BS is not None and back:
            its = F.pad(segments_BS[:, place], before, value=-2)
            seen = seen & (its == segments_BS[:, S - count :])
        hashed = _mixed(hashed ^ torch.where(seen, token, DOC_BOUNDARY))
        seen = seen & (token != DOC_BOUNDARY)
        if back:
            # The upper bits of a product depend on all bits of what was multiplied.
            row = (hashed * MULTIPLIER >> (64 - bits)) & (config.ngram_rows - 1)
            rows.append(row + (back - 1) * config.ngram_rows)
    return torch.stack(rows, dim=-1)


def _mixed(hashed: Tensor) -> Tensor:
    """One round of a multiplicative hash over 64 bits; products wrap around."""
    product = hashed * MULTIPLIER
    return product ^ ((product >> SHIFT) & ((1 << (64 - SHIFT)) - 1))


class NgramEmbedding(nn.Module):
    """The table [(ngrams - 1) x ngram_rows, width]; its gradient holds the rows that were read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty((config.ngrams - 1) * config.ngram_rows, config.width))

    # A compiled graph would make the gradient a dense one, of the whole table.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, rows_BTN: Tensor) -> Tensor:
        """The sum [B, T, D] of the rows of each position."""
        B, T, N = rows_BTN.shape
        sum_RD = F.embedding_bag(rows_BTN.reshape(B * T, N), self.weight, mode="sum", sparse=True)
        return sum_RD.view(B, T, -1)
