"""What a stage learns of a model by changing what it reads, one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from tinylm.attention import seen_within
from tinylm.model import Transformer


def moved(model: Transformer, ids_T: Tensor, segments_T: Tensor | None = None) -> Tensor:
    """How far the logits at each position move when one token is changed: [T changed, T], the farthest.

    With `segments_T`, each position sees its own segment only.
    """
    changed_TT = ids_T.repeat(len(ids_T), 1)
    changed_TT.diagonal().copy_((ids_T + 1) % 256)
    seen = None if segments_T is None else seen_within(segments_T.repeat(len(ids_T), 1))
    with torch.inference_mode():
        before_TTV = model(ids_T.expand_as(changed_TT), segments=seen)
        moves_TTV: Tensor = model(changed_TT, segments=seen) - before_TTV
    return moves_TTV.abs().amax(dim=-1)
