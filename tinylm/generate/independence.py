"""A model whose rows do not depend on one another, so that a result does not depend on its neighbours.

A matrix product may add up in another order when it has another number of rows: kernels are chosen by
shape. Measured on x86 with MKL, float32: rows are equal bit for bit among 4 and more; 2 and 3 differ from
these, and 1 from both; with weights in oneDNN's own layout they are equal for every number; in two threads
they depend on their place. Attention over more keys, the others hidden, is equal too. Nothing promises any
of that, so what holds is tried out on the machine, and a step with fewer rows than that is filled up.
"""

from __future__ import annotations

import copy
import dataclasses
import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig
from tinylm.devices import cpu_threads
from tinylm.model import Transformer

ROWS = 16
"""Most rows of one decoding step. More would gain little, and element-wise kernels might cut them apart."""

PACKED_FROM = 2**20
"""Parameters from which oneDNN's layout is faster for one row than filling up to four; below, its calls cost
more than the arithmetic."""


class RowLinear(nn.Module):
    """`F.linear` without a bias, always of a matrix: with three axes another kernel may be chosen."""

    def __init__(self, weight: Tensor, packed: bool) -> None:
        super().__init__()
        self._weight = weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS) if packed else None

    def forward(self, x: Tensor) -> Tensor:
        x_RD = x.reshape(-1, x.shape[-1])
        if self._packed is None:
            product = F.linear(x_RD, self._weight)
        else:
            product = torch.ops.mkldnn._linear_pointwise(x_RD, self._packed, None, "none", [], "")
        return product.view(*x.shape[:-1], -1)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What holds on this machine: in `threads` threads a row is the same bit for bit, at any place among
    `least` to `most` rows; and, if `cuttable`, whether keys that are hidden are there or not."""

    least: int
    most: int
    cuttable: bool
    threads: int


def independent_rows(model: Transformer) -> tuple[Transformer, Measured]:
    """A model of the same weights, as they are now, and how many rows it may be given in a step."""
    weight = model.model.embed_tokens.weight
    kind = weight.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    packed = (
        kind == "cpu"
        and weight.dtype == torch.float32
        and autocast is None
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and sum(parameter.numel() for parameter in model.parameters()) >= PACKED_FROM
    )
    shape = dataclasses.replace(model.config, layers=1)
    # Threads share out rows, and with them the place of a row counts: then one thread, if that is better.
    tried: list[tuple[Measured, bool]] = []
    for threads in dict.fromkeys((torch.get_num_threads(), 1)):
        for layout in dict.fromkeys((packed, False)):
            tried.append((_measured(shape, layout, weight.dtype, weight.device, threads, autocast), layout))
    found, packed = min(tried, key=lambda one: (-one[0].most, one[0].least))
    return _by_matrices(model, packed), found


def _by_matrices(model: Transformer, packed: bool) -> Transformer:
    twin = _replaced(model, packed)
    assert isinstance(twin, Transformer)
    if twin.lm_head is None:
        twin._modules["lm_head"] = RowLinear(model.model.embed_tokens.weight, packed)
    return twin


def _replaced(module: nn.Module, packed: bool) -> nn.Module:
    """A module that shares everything with another but its linear layers."""
    if isinstance(module, nn.Linear):
        return RowLinear(module.weight, packed)
    twin = copy.copy(module)
    twin._modules = {
        name: None if part is None else _replaced(part, packed) for name, part in module._modules.items()
    }
    return twin


@functools.cache
def _measured(
    config: ModelConfig,
    packed: bool,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
    autocast: torch.dtype | None,
) -> Measured:
    """Try a shape with random weights: equal rows, in each number, have to give equal rows."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(), cpu_threads(threads):
        model = Transformer(config)
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
        model = _by_matrices(model.to(device, dtype), packed)
        slots = model.new_slots(ROWS)
        for buffer_LBHSK in (slots.keys_LBHSK, slots.values_LBHSK):
            one_LHSK = torch.rand(buffer_LBHSK[:, 0].shape, generator=generator) - 0.5
            buffer_LBHSK.copy_(one_LHSK[:, None])
        place = min(slots.KEYS, config.window) * 3 // 4

        def step(rows: int) -> Tensor:
            ids_B1 = torch.full((rows, 1), 65, device=device)
            logits_B1V: Tensor = model(ids_B1, cache=slots.at(0, [place] * rows))
            return logits_B1V

        row_1V = step(ROWS)[0]
        least = ROWS + 1
        for rows in range(ROWS, 0, -1):
            if not all(torch.equal(other_1V, row_1V) for other_1V in step(rows)):
                break
            least = rows
        most = slots.keys_LBHSK.shape[3] // slots.KEYS
        cuttable = True
        for blocks in {count for count in (2, 3, 5, 9, most) if count <= most}:
            slots.keys_step = blocks * slots.KEYS
            cuttable = cuttable and torch.equal(step(ROWS)[0], row_1V)
    # Where even among ROWS the place counts, each row goes alone.
    rows_at_once = (1, 1) if least > ROWS else (least, ROWS)
    return Measured(*rows_at_once, cuttable, threads)
