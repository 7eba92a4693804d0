"""Stage 05: the same wrong calls with and without a checked shape, and how far each mistake travels."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.baselines import Ngrams
from tinylm.batches import gather, rows_in_order
from tinylm.contract import DOC_BOUNDARY
from tinylm.contract import VOCABULARY_SIZE as V
from tinylm.corpus import Split
from tinylm.errors import ShapeError
from tinylm.shapes import check_shape
from tinylm.walkthrough import Lab, Stage, figures
from tinylm.walkthrough.texts import character_names

STAGE = Stage(
    number=5,
    title="shape_contracts",
    question="Is a shape a comment or a contract?",
    hypothesis="Array libraries are made to accept: they broadcast, flatten, convert and wrap. So most wrong "
    "calls fail not where they are made but some steps later, or never. A shape that is checked at the "
    "border stops every one of them on entry, with a message that names the axis.",
    experiment="make six wrong calls that people really make; follow each through the steps after it, until "
    "something raises or a number comes out; then make the same call with the shape checked on entry",
    next="Who may insert a boundary, and how much text is too much?",
)
B, T = 16, 32
KEYS = ("turned", "square", "ratio", "rows", "float", "narrow")
Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Call:
    """A value as it should be and as it is, the contract at the border, and the steps behind it."""

    right: Any
    wrong: Any
    border: Callable[[Any], object]
    steps: tuple[Step, ...]


def travel(value: Any, steps: tuple[Step, ...]) -> tuple[int, str]:
    """Pass a value through the steps: how many it survives, and the number or the error at the end."""
    for survived, step in enumerate(steps):
        try:
            value = step(value)
        except Exception as error:
            return survived, type(error).__name__
    return len(steps), f"{float(value):.3f}"


def refusal(call: Call, value: Any) -> str:
    """What the border says to a value; empty if it lets it in."""
    try:
        call.border(value)
    except ShapeError as error:
        return str(error)
    return ""


def calls() -> dict[str, Call]:
    """The six calls, on one batch of names of characters."""
    split = Split.of(character_names(2_000))
    starts, lengths = rows_in_order(split, "cross", T)
    rows_BT, targets_BT = map(torch.from_numpy, gather(split.stream, starts[:B], lengths[:B], T))
    square_TT = torch.from_numpy(gather(split.stream, starts[:T], lengths[:T], T)[0])
    counted = Ngrams.count(split.stream, 2)
    table_VV = torch.from_numpy(np.log([counted.distribution([token]) for token in range(V)]))
    logits_BV = table_VV[rows_BT[:, -1]].numpy()

    def model(ids: Tensor) -> Tensor:
        return F.embedding(ids, table_VV)

    def loss(targets: Tensor) -> Step:
        return lambda logits: F.cross_entropy(logits.reshape(-1, V), targets.reshape(-1).long())

    def ids(rows: int) -> Callable[[Any], object]:
        return lambda value: check_shape(value, "B T", name="ids_BT", kind="integer", B=rows, T=T)

    losses_BT = F.cross_entropy(model(rows_BT).mT, targets_BT, reduction="none")
    bits_B = losses_BT.sum(dim=1) / np.log(2)
    bytes_B = (rows_BT != DOC_BOUNDARY).sum(dim=1)
    narrow = split.stream.astype(np.uint8)
    windows = (torch.from_numpy, lambda x: x[: B * T].reshape(B, T), Tensor.int, model, loss(targets_BT))
    draw = (
        lambda logits: np.exp(logits - logits.max()),
        lambda weights: np.cumsum(weights) / weights.sum(),
        lambda sums: int(np.searchsorted(sums, 0.75, side="right")),
        lambda token: bytes([token])[0],
    )
    return {
        "ids [T, B] for [B, T]": Call(rows_BT, rows_BT.T, ids(B), (model, loss(targets_BT))),
        "the same where B = T": Call(square_TT, square_TT.T, ids(T), (model, loss(square_TT.roll(-1, 1)))),
        "bytes [B, 1] for [B]": Call(
            bytes_B,
            bytes_B[:, None],
            lambda value: check_shape(value, "B", name="bytes_B", kind="integer", B=B),
            (lambda value: bits_B / value, lambda ratio: ratio.mean()),
        ),
        "logits [B, V] for [V]": Call(
            logits_BV[0],
            logits_BV,
            lambda value: check_shape(value, "V", name="logits_V", V=V),
            draw,
        ),
        "ids as float32": Call(rows_BT, rows_BT.float(), ids(B), (model, loss(targets_BT))),
        "ids as uint8": Call(
            split.stream.astype(np.int64),
            narrow,
            lambda value: check_shape(value, "N", name="stream", kind="integer"),
            windows,
        ),
    }


def experiment(lab: Lab) -> None:
    every = calls()
    rows: list[list[object]] = []
    messages = {name: refusal(call, call.wrong) for name, call in every.items()}
    bars: list[tuple[str, float, float, str]] = []
    unseen = 0
    for (name, call), key in zip(every.items(), KEYS, strict=True):
        right, (survived, end) = travel(call.right, call.steps)[1], travel(call.wrong, call.steps)
        if survived == len(call.steps):
            unseen += 1
            lab.value(key, float(end), tolerance=0.001)
            lab.value(f"{key}_right", float(right), tolerance=0.001)
        bars.append((name, survived, len(call.steps), end))
        caught = "refused on entry" if messages[name] else "let in"
        rows.append([name, f"{survived} of {len(call.steps)}", end, right, caught])
        lab.check(f"{name}: the right call is let in", not refusal(call, call.right))
    lab.table(["wrong call", "steps survived", "ends as", "right", "with the contract"], rows)
    lab.figure(lambda: figures.bars(bars, x="steps that the mistake survives"))
    lab.note("\n".join(filter(None, messages.values())))
    stream = every["ids as uint8"]
    ends = [int((tokens == DOC_BOUNDARY).sum()) for tokens in (stream.right, stream.wrong)]
    lab.note(f"boundaries in the stream: {ends[0]:,}; in the same stream as uint8: {ends[1]}")
    refused = sum(map(bool, messages.values()))
    for key, number in {"calls": len(every), "unseen": unseen, "refused": refused, "ends": ends[0]}.items():
        lab.value(key, number)
    lab.otherwise(
        f"{unseen} of {len(every)} wrong calls never fail: they end as a number like any other. The contract "
        f"refuses {refused} and lets two in. Where B happens to equal T, a transposed batch has the right "
        "shape; and bytes are integers, only that 256 has become 0 and every end of a document with it. The "
        "one wants tests with unequal sizes, the other a check of what values mean."
    )
    lab.costs(
        "Microseconds per check. It saves the time between a mistake and its symptom, which has no upper "
        "bound for a number that only looks plausible."
    )
    lab.proves(
        "that wrong shapes travel, and that a checked border stops those of wrong rank, size or kind.",
        does_not_prove="that what has the right shape is right: a shape has no unit and no meaning.",
    )
    lab.check("four of six are refused on entry", refused == 4)
    lab.check("most would never have been noticed", unseen == 4)
    lab.check("uint8 loses every boundary", ends[0] == 2_001 and ends[1] == 0)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
