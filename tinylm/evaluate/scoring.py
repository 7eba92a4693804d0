"""What is scored and from what context: rows by a protocol, and the bits of every target of a split."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tinylm.batches import IGNORED, gather
from tinylm.config import ModelConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.corpus import Split
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.errors import RequestError, TinylmError
from tinylm.shapes import check_shape

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]
EvaluationProtocol = Literal["disjoint", "strided"]

PROTOCOLS = ("disjoint", "strided")


class Scorer(Protocol):
    """What evaluate needs of a model: ids_BT (int64 [B, T]) to logits_BTV, never looking ahead."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def __call__(self, ids_BT: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Scored:
    """Some scored targets, as arrays of one length: those of a group of rows.

    `positions` (int64): the index of each target in split.stream. `contexts` (int64): from how many tokens
    it was predicted. `bits` (float64): -log2 of the probability that it got. `precision`: the dtype in
    which the model computed.
    """

    positions: Int64Array
    contexts: Int64Array
    bits: Float64Array
    precision: str


@dataclass(frozen=True)
class Rows:
    """Rows to score: row i reads `lengths[i]` tokens from `starts[i]`; its first `skips[i]` targets are
    scored by another row, and only give context here. int64 [rows] each."""

    starts: Int64Array
    lengths: Int64Array
    skips: Int64Array

    @property
    def scored(self) -> Int64Array:
        """How many targets each row scores."""
        return self.lengths - self.skips

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chosen: Int64Array) -> Rows:
        return Rows(self.starts[chosen], self.lengths[chosen], self.skips[chosen])


def rows_to_score(split: Split, policy: str, window: int, stride: int) -> Rows:
    """The rows that score every target of a split once, in the order of the stream.

    Windows of `window` tokens, each `stride` tokens after the one before, over the stream under `cross`
    and over each document, from the boundary that opens it, under any other policy. The first window
    scores all its targets, each later one the last `stride`: with at least window - stride tokens before
    them. `stride == window` gives disjoint windows.
    """
    targets = len(split.stream) - 1
    opens = np.zeros(min(1, targets), dtype=np.int64)
    if policy != "cross":
        opens = np.asarray(split.starts, dtype=np.int64) - 1
    lengths = np.diff(np.append(opens, targets))
    counts = np.maximum(1, -(-(lengths - (window - stride)) // stride))
    segment = np.repeat(np.arange(len(opens)), counts)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = number * stride
    return Rows(
        opens[segment] + begins,
        np.minimum(window, lengths[segment] - begins),
        np.where(number > 0, window - stride, 0),
    )


def resolve_stride(protocol: str, stride: int | None, window: int) -> int:
    """The stride of a protocol: the window if disjoint, half of it where none is given."""
    if protocol == "disjoint":
        return window
    return max(1, window // 2) if stride is None else stride


def score(
    model: Scorer,
    split: Split,
    *,
    protocol: EvaluationProtocol = "disjoint",
    stride: int | None = None,
    rows: int = 32,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Score every target of a split exactly once, under the model's policy; `rows` at a time.

    `disjoint`: windows of the model's size, one behind the other. `strided`: overlapping windows, each
    `stride` tokens after the one before (default: half the window), so that a target is predicted from
    at least window - stride tokens, once its stream or document is that long. `limit` scores at most
    this many targets (one row at least): whole rows, spread evenly over the split, always the same.
    `progress` is told the targets done and in all. Groups come in no order to rely on. Raises
    RequestError with all problems of the options, and TinylmError where a target gets no finite bits.
    """
    check_options(model, protocol, stride, rows=rows, limit=limit)
    return score_plan(model, split, Plan.of(model, split, protocol, stride, limit), rows, progress)


def check_options(
    model: Scorer, protocol: str, stride: int | None, who: str = "", **counts: int | None
) -> None:
    """Raise RequestError with everything that is wrong with the options."""
    problems = [
        f"{name} is {value!r}, expected an integer of at least 1"
        for name, value in counts.items()
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
    ]
    if protocol not in PROTOCOLS:
        problems.append(f"protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    if stride is not None:
        window = model.config.window
        if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= window:
            where = f"the window of {window}{who}"
            problems.append(f"stride is {stride!r}, expected an integer from 1 to {where}")
        if protocol == "disjoint":
            problems.append("stride goes with protocol strided; the windows of disjoint follow each other")
    if problems:
        raise RequestError("; ".join(problems))


@dataclass(frozen=True)
class Plan:
    """What is scored: rows, of their targets those that `wanted` (bool [N], over the stream) names, in
    words, and with which stride."""

    rows: Rows
    wanted: npt.NDArray[np.bool_] | None
    targets: int
    protocol: str
    stride: int

    @classmethod
    def of(cls, model: Scorer, split: Split, protocol: str, stride: int | None, limit: int | None) -> Plan:
        every, stride = _every_row(model, split, protocol, stride)
        rows = every[_spread(every.scored, limit)]
        if len(rows) < len(every):
            protocol = f"{protocol}, {len(rows):,} of {len(every):,} rows"
        return cls(rows, None, int(rows.scored.sum()), protocol, stride)

    def for_another(self, model: Scorer, split: Split, protocol: str, stride: int | None) -> Plan:
        """The plan by which another model, of another window or policy perhaps, scores the same targets."""
        every, stride = _every_row(model, split, protocol, stride)
        if self.targets == len(split.stream) - 1:
            return Plan(every, None, self.targets, protocol, stride)
        edges = np.zeros(len(split.stream) + 1, dtype=np.int64)
        np.add.at(edges, self.rows.starts + self.rows.skips + 1, 1)
        np.add.at(edges, self.rows.starts + self.rows.lengths + 1, -1)
        wanted = np.cumsum(edges)[:-1] > 0
        before = np.append(0, np.cumsum(wanted))
        inside = before[every.starts + every.lengths + 1] > before[every.starts + every.skips + 1]
        rows = every[np.flatnonzero(inside)]
        said = f"{protocol}, {len(rows):,} of {len(every):,} rows"
        return Plan(rows, wanted, self.targets, said, stride)


def _every_row(model: Scorer, split: Split, protocol: str, stride: int | None) -> tuple[Rows, int]:
    window = model.config.window
    stride = resolve_stride(protocol, stride, window)
    return rows_to_score(split, model.config.policy, window, stride), stride


def score_plan(
    model: Scorer,
    split: Split,
    plan: Plan,
    rows: int,
    progress: Progress | None,
    ranks: Ranks = ALONE,
) -> Iterator[Scored]:
    done = 0
    # Rows of like length go through together, so that little is padded and few targets are for context.
    order = np.lexsort((plan.rows.skips, -plan.rows.lengths))
    for start in range(0, len(order), rows * ranks.size):
        # Each rank takes the next group. One for which none is left reads a row that another one counts:
        # ranks that share a model have to read as often.
        group = order[start + ranks.rank * rows :][:rows]
        spare = not len(group)
        batch = plan.rows[order[:1] if spare else group]
        padded, first = int(batch.lengths.max()), int(batch.skips.min())
        inputs_BT, targets_BT = gather(split.stream, batch.starts, batch.lengths, padded)
        with _evaluating(model):
            logits_BTV = model(torch.from_numpy(inputs_BT).to(model.device))
            bits_BT, precision = _bits(logits_BTV, targets_BT, first), _precision(model, logits_BTV)
        within_T = np.arange(first, padded)
        scored_BT = (within_T >= batch.skips[:, None]) & (within_T < batch.lengths[:, None])
        positions_BT = batch.starts[:, None] + within_T + 1
        if plan.wanted is not None:
            scored_BT &= plan.wanted[np.minimum(positions_BT, len(plan.wanted) - 1)]
        contexts_BT = np.broadcast_to(within_T + 1, scored_BT.shape)
        found = Scored(positions_BT[scored_BT], contexts_BT[scored_BT], bits_BT[scored_BT], precision)
        if not np.isfinite(found.bits).all():
            raise TinylmError(_not_finite(found, split))
        last = start + rows * ranks.size >= len(order)
        done = plan.targets if last else done + len(found.bits)
        if progress is not None:
            progress(done, plan.targets)
        if not spare:
            yield found


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


def _bits(logits_BTV: Tensor, targets_BT: Int64Array, first: int) -> Float64Array:
    """Bits of each target from position `first` on, as float64 [B, T - first] on the host; 0 at padding."""
    B, T = targets_BT.shape
    check_shape(logits_BTV, "B T V", name="logits", kind="float", B=B, T=T, V=VOCABULARY_SIZE)
    logits_BTV, targets_BT = logits_BTV[:, first:], targets_BT[:, first:]
    if logits_BTV.dtype != torch.float64:
        logits_BTV = logits_BTV.float()
    index_BT1 = torch.from_numpy(np.maximum(targets_BT, 0)).to(logits_BTV.device).unsqueeze(-1)
    chosen_BT = torch.log_softmax(logits_BTV, dim=-1).gather(-1, index_BT1).squeeze(-1)
    bits_BT: Float64Array = -chosen_BT.cpu().numpy().astype(np.float64) / math.log(2)
    return np.where(targets_BT == IGNORED, 0.0, bits_BT)


def _not_finite(found: Scored, split: Split) -> str:
    first = int(found.positions[~np.isfinite(found.bits)].min())
    where = f"{split.name} token {first:,}"
    if np.isnan(found.bits[found.positions == first]).any():
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
