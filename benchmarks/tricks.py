"""Changes to a run that the library does not make, for `ablations.py`: what is praised elsewhere, and here?

A trick is a function `(model, config)` that may change a model before its optimizer is made, and gives a
function that may change the run made of it, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm import attention, optimizer, trainer
from tinylm import model as architecture
from tinylm.batches import IGNORED, Batch, Plan
from tinylm.config import TrainConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.model import Transformer
from tinylm.training_step import Run, mean_loss

Trick = Callable[[Transformer, TrainConfig], Callable[[Run], None] | None]


@contextmanager
def applied(trick: Trick | None) -> Iterator[None]:
    """Runs that `trainer.train` makes in here are changed by the trick."""
    if trick is None:
        yield
        return
    prepare = trainer.prepare

    def prepared(folder: Any, config: TrainConfig, machine: Any, corpus: Any, model: Any, *rest: Any) -> Run:
        change = trick(model, config)
        run = prepare(folder, config, machine, corpus, model, *rest)
        if change is not None:
            change(run)
        return run

    with ExitStack() as stack:
        replaced.append(stack)
        instead(trainer, "prepare", prepared)
        try:
            yield
        finally:
            replaced.pop()


replaced: list[ExitStack] = []


def instead(room: ModuleType, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of the library's, until `applied` ends."""
    replaced[-1].enter_context(mock.patch.object(room, name, function))


# What is read when


class Growing:
    """A plan whose first steps are those of others: `phases` are (steps, plan, its step to begin at)."""

    def __init__(self, whole: Plan, phases: list[tuple[int, Plan, int]]) -> None:
        self.whole, self.phases = whole, phases

    def batch(self, step: int) -> Batch:
        for steps, plan, begin in self.phases:
            if step < steps:
                return plan.batch(begin + step)
            step -= steps
        raise IndexError("past the last phase")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


def short_rows_first(model: Transformer, config: TrainConfig) -> Callable[[Run], None]:
    """Window warm-up: a third of the steps each with a quarter, a half and the whole of the window.

    Every step reads as many tokens as before; the rows of a third are those of a plan of its own.
    """

    def change(run: Run) -> None:
        plan, third, phases = run.plan, run.steps // 3, list[tuple[int, Plan, int]]()
        for parts in (4, 2, 1):
            rows, window = config.batch_rows * parts, plan.window // parts
            steps = third if parts > 1 else run.steps - 2 * third
            of_this = Plan(plan.split, plan.policy, window, rows, plan.seed)
            phases.append((steps, of_this, sum(count for count, _, _ in phases)))
        run.plan = Growing(plan, phases)  # type: ignore[assignment]
        run.micro_rows = 4 * config.batch_rows

    return change


def few_rows_first(model: Transformer, config: TrainConfig) -> Callable[[Run], None]:
    """Batch warm-up: a quarter of the bytes in batches of a quarter, a quarter in halves, the rest whole.

    The run must have 7/4 of its steps: it then reads as many bytes as one without.
    """

    def change(run: Run) -> None:
        plan, quarter, phases, first = run.plan, run.steps // 7, list[tuple[int, Plan, int]](), 0
        counts = (4 * quarter, 2 * quarter, run.steps - 6 * quarter)
        for parts, steps in zip((4, 2, 1), counts, strict=True):
            rows = config.batch_rows // parts
            of_this = Plan(plan.split, plan.policy, plan.window, rows, plan.seed)
            phases.append((steps, of_this, first // rows))
            first += steps * rows
        run.plan = Growing(plan, phases)  # type: ignore[assignment]

    return change


# What the model is, and what it is asked


def embedding_shortcut(model: Transformer, config: TrainConfig) -> None:
    """Each layer reads its input and a learned multiple, zero at first, of what the first layer read."""
    first, multiples = list[Tensor](), dict[nn.Module, nn.Parameter]()

    def add(layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BTD, *rest = arguments
        if layer is model.model.layers[0]:
            first[:] = [x_BTD]
            return arguments
        return (x_BTD + multiples[layer] * first[0], *rest)

    for layer in model.model.layers:
        if layer is not model.model.layers[0]:
            multiples[layer] = nn.Parameter(torch.zeros(1))
            layer.register_parameter("shortcut", multiples[layer])
        layer.register_forward_pre_hook(add)


def two_bytes(model: Transformer, config: TrainConfig) -> Callable[[Run], None]:
    """Multi-byte targets: a second head names the byte after the next; its loss counts half, less with time.

    The head goes into no file and no evaluation.
    """
    head_VD = nn.Parameter(torch.zeros(VOCABULARY_SIZE, model.config.width))
    hidden: list[Tensor] = []
    model.model.norm.register_forward_hook(
        lambda norm, inputs, output: hidden.__setitem__(slice(None), [output])
    )

    def change(run: Run) -> None:
        seen = 0
        run.optimizer.others["second_head"] = head_VD
        run.optimizer.first["second_head"] = torch.zeros_like(head_VD)
        run.optimizer.second["second_head"] = torch.zeros_like(head_VD)
        state = run.optimizer.state
        run.optimizer.state = lambda: {  # type: ignore[method-assign]
            name: tensor for name, tensor in state().items() if "second_head" not in name
        }

        def loss(module: Any, inputs_BT: Tensor, targets_BT: Tensor, total: Tensor, *rest: Any) -> Tensor:
            nonlocal seen
            first = mean_loss(module, inputs_BT, targets_BT, total, *rest)
            later_BT = F.pad(targets_BT[:, 1:], (0, 1), value=IGNORED)
            logits = F.linear(hidden[0], head_VD).reshape(-1, VOCABULARY_SIZE)
            second = F.cross_entropy(logits, later_BT.reshape(-1), ignore_index=IGNORED, reduction="sum")
            weight, seen = 0.5 * max(0.0, 1 - seen / run.steps), seen + 1
            return first + weight * second / total

        run.loss = loss

    return change


# What the optimizer does


def three_iterations(model: Transformer, config: TrainConfig) -> None:
    """Muon with three Newton-Schulz steps instead of five."""
    instead(optimizer, "orthogonalize", iterated([optimizer.NEWTON_SCHULZ] * 3))


POLAR = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
"""Coefficients of five steps, each the best after those before it (Amsel et al., 2025: Polar Express)."""


def polar_express(model: Transformer, config: TrainConfig) -> None:
    """Muon with other coefficients in each of the five steps."""
    smaller = [(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in POLAR]
    instead(optimizer, "orthogonalize", iterated(smaller))


def iterated(coefficients: list[tuple[float, float, float]]) -> Callable[[Tensor], Tensor]:
    """`optimizer.orthogonalize` with the coefficients of each step."""

    def orthogonalize(matrices_NMK: Tensor) -> Tensor:
        x: Tensor = matrices_NMK / (matrices_NMK.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for a, b, c in coefficients:
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x

    return orthogonalize


def normalised_rows(model: Transformer, config: TrainConfig) -> None:
    """NorMuon (Li et al., 2025): each row of an orthogonal update by the running size of that row.

    The whole update keeps its norm.
    """
    orthogonal, squares, call = optimizer.orthogonal, dict[tuple[Any, ...], Tensor](), [0]
    shapes = {
        tuple(sorted(p.shape)) for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name
    }

    def normalised(updates: list[Tensor]) -> list[Tensor]:
        call[0] += 1
        correction = 1 - 0.95 ** math.ceil(call[0] / len(shapes))
        changed = []
        for index, update in enumerate(orthogonal(updates)):
            key = (index, *sorted(update.shape))
            size_M1 = update.square().mean(dim=1, keepdim=True)
            squares[key] = squares.get(key, torch.zeros_like(size_M1)).lerp(size_M1, 0.05)
            scaled = update / (squares[key] / correction).sqrt().add(1e-8)
            changed.append(scaled * (update.norm() / (scaled.norm() + 1e-12)))
        return changed

    instead(optimizer, "orthogonal", normalised)


# Where numbers lie, and how attention is computed


def columns_first(model: Transformer, config: TrainConfig) -> None:
    """Memory layout: the layers' matrices lie in memory turned, inputs before outputs."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and ".layers." in name:
            parameter.data = parameter.detach().t().contiguous().t()


def heads_apart(model: Transformer, config: TrainConfig) -> None:
    """Memory layout: queries, keys and values of a head are laid together before attention reads them."""

    def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen: Any = None) -> Tensor:
        return attention.attend(q_BHTK.contiguous(), k_BHSK.contiguous(), v_BHSK.contiguous(), seen)

    instead(architecture, "attend", attend)


def two_products(model: Transformer, config: TrainConfig) -> None:
    """Attention as two products and a softmax, with a mask that is made once."""
    masks: dict[int, Tensor] = {}

    def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen: Any = None) -> Tensor:
        T, S = q_BHTK.shape[2], k_BHSK.shape[2]
        if seen is not None or T != S:
            return attention.attend(q_BHTK, k_BHSK, v_BHSK, seen)
        if T not in masks:
            masks[T] = torch.full((T, T), -math.inf).triu(1)
        scores_BHTT = (q_BHTK / math.sqrt(q_BHTK.shape[3])) @ k_BHSK.mT + masks[T]
        return scores_BHTT.softmax(-1) @ v_BHSK

    instead(architecture, "attend", attend)
