"""Bits per byte of a model on held-out text: what is scored, from what context, and how it adds up.

Bits per byte = (bits of byte targets + bits of true-end boundary targets) / raw bytes. The boundary is
charged above the line and never counted below it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tinylm.batches import IGNORED, gather, rows_in_order
from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.corpus import Split
from tinylm.errors import RequestError, TinylmError
from tinylm.shapes import check_shape

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class Scorer(Protocol):
    """What evaluate needs of a model: ids_BT (int64 [B, T]) to logits_BTV, never looking ahead."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, ids_BT: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    """Three numbers, and everything that must be equal before two of them may be compared.

    `bytes` and `boundaries` count scored targets, `tokens` both. `bits_per_boundary` is None where no
    document ends. `protocol` says which context a target is scored from, and whether all rows were.
    """

    bits_per_byte: float
    bits_per_byte_without_boundaries: float
    bits_per_boundary: float | None
    bytes: int
    boundaries: int
    tokens: int
    protocol: str
    window: int
    policy: str
    split: str
    split_digest: str
    precision: str
    device: str

    def to_dict(self) -> dict[str, object]:
        """The fields, for JSON."""
        return asdict(self)


def evaluate(
    model: Scorer,
    split: Split,
    *,
    rows: int = 32,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score a split in disjoint windows of the model's size, under the model's policy: every target once.

    `rows` go through the model at a time and do not change the result. `limit` scores at most this many
    targets (one row at least): whole rows, spread evenly over the split, always the same. `progress` is
    told the targets done and in all. Raises RequestError where there is nothing to score, and
    TinylmError where a target gets no finite number of bits.
    """
    for name, value in (("rows", rows), ("limit", limit)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise RequestError(f"{name} is {value!r}, expected an integer of at least 1")
    window, policy = model.config.window, model.config.policy
    starts, lengths = rows_in_order(split, policy, window)
    every = len(starts)
    chosen = _spread(lengths, limit)
    starts, lengths = starts[chosen], lengths[chosen]
    byte_bits, boundary_bits = np.zeros(len(starts)), np.zeros(len(starts))
    boundaries = np.zeros(len(starts), dtype=np.int64)
    total, done, precision = int(lengths.sum()), 0, ""
    with _evaluating(model):
        for batch in _batches(lengths, rows):
            padded = int(lengths[batch].max())
            inputs_BT, targets_BT = gather(split.stream, starts[batch], lengths[batch], padded)
            logits_BTV = model(torch.from_numpy(inputs_BT).to(model.device))
            bits_BT = _bits(logits_BTV, targets_BT)
            if not np.isfinite(bits_BT).all():
                raise TinylmError(_not_finite(bits_BT, starts[batch], split))
            is_end_BT = targets_BT == DOC_BOUNDARY
            byte_bits[batch] = np.where(is_end_BT, 0.0, bits_BT).sum(axis=1)
            boundary_bits[batch] = np.where(is_end_BT, bits_BT, 0.0).sum(axis=1)
            boundaries[batch] = is_end_BT.sum(axis=1)
            precision = precision or _precision(model, logits_BTV)
            done += int(lengths[batch].sum())
            if progress is not None:
                progress(done, total)
    ends = int(boundaries.sum())
    size = total - ends
    if not size:
        raise RequestError(f"{split.name}: no byte is scored, and bits per byte need at least one")
    of_bytes, of_ends = float(byte_bits.sum()), float(boundary_bits.sum())
    return Evaluation(
        bits_per_byte=(of_bytes + of_ends) / size,
        bits_per_byte_without_boundaries=of_bytes / size,
        bits_per_boundary=of_ends / ends if ends else None,
        bytes=size,
        boundaries=ends,
        tokens=total,
        protocol="disjoint" if len(starts) == every else f"disjoint, {len(starts):,} of {every:,} rows",
        window=window,
        policy=policy,
        split=split.name,
        split_digest=split.digest,
        precision=precision,
        device=str(model.device),
    )


def _spread(lengths: Int64Array, limit: int | None) -> Int64Array:
    """Indices of the rows to score: all, or evenly spread ones that hold at most `limit` targets."""
    every = len(lengths)
    total = int(lengths.sum())
    if limit is None or total <= limit:
        return np.arange(every)
    count = max(1, every * limit // total)
    while True:
        # The middle of each of `count` equal parts of the split.
        chosen = (2 * np.arange(count) + 1) * every // (2 * count)
        if count == 1 or int(lengths[chosen].sum()) <= limit:
            return chosen
        count -= max(1, count // 64)


def _batches(lengths: Int64Array, rows: int) -> Iterator[Int64Array]:
    """Row indices in batches of like lengths, so that little is padded; the sums do not depend on it."""
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def _bits(logits_BTV: Tensor, targets_BT: Int64Array) -> Float64Array:
    """Bits of each target, as float64 [B, T] on the host; 0 at padded positions."""
    B, T = targets_BT.shape
    check_shape(logits_BTV, "B T V", name="logits", kind="float", B=B, T=T, V=VOCABULARY_SIZE)
    if logits_BTV.dtype != torch.float64:
        logits_BTV = logits_BTV.float()
    index_BT1 = torch.from_numpy(np.maximum(targets_BT, 0)).to(logits_BTV.device).unsqueeze(-1)
    chosen_BT = torch.log_softmax(logits_BTV, dim=-1).gather(-1, index_BT1).squeeze(-1)
    bits_BT: Float64Array = -chosen_BT.cpu().numpy().astype(np.float64) / math.log(2)
    return np.where(targets_BT == IGNORED, 0.0, bits_BT)


def _not_finite(bits_BT: Float64Array, starts: Int64Array, split: Split) -> str:
    row, position = (int(index[0]) for index in np.nonzero(~np.isfinite(bits_BT)))
    where = f"{split.name} token {int(starts[row]) + position + 1:,}"
    if np.isnan(bits_BT[row, position]):
        return f"{where}: the model's logits hold NaN or infinities; use an earlier checkpoint"
    return f"{where}: the model gives this token the probability 0, which no number of bits can express"


def _precision(model: Scorer, logits_BTV: Tensor) -> str:
    """The dtype in which the model computed: autocast's, else that of its weights, else of its logits."""
    dtype = logits_BTV.dtype
    kind = logits_BTV.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    elif isinstance(model, nn.Module):
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), dtype)
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def _evaluating(model: Scorer) -> Iterator[None]:
    """No gradients; a module is in evaluation mode inside, and each of its parts as it was afterwards."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for part in training:
            part.training = True
