"""A model whose rows do not depend on one another, so that a result does not depend on its neighbours.

A matrix product may add up in another order when it has another number of rows: kernels are chosen by
shape. Measured on x86 with MKL, float32: rows are equal bit for bit among 4 and more; 2 and 3 differ from
these, and 1 from both; with weights in oneDNN's own layout they are equal for every number. Attention over
more keys, the others hidden, is equal too. Nothing promises any of that, so what holds is tried out on the
machine, and a step with fewer rows than that is filled up.
"""

from __future__ import annotations

import copy
import dataclasses
import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.config import ModelConfig
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


def independent_rows(model: Transformer) -> tuple[Transformer, int, bool]:
    """A model of the same weights, as they are now; the number of rows from which on, up to ROWS, they do
    not depend on one another nor on how many they are; and whether keys that are hidden may be cut off."""
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
    least, cuttable = _measured(
        dataclasses.replace(model.config, layers=1),
        weight.dtype,
        weight.device,
        packed,
        torch.get_num_threads(),
        autocast,
    )
    return _by_matrices(model, packed), least, cuttable


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
    dtype: torch.dtype,
    device: torch.device,
    packed: bool,
    threads: int,
    autocast: torch.dtype | None,
) -> tuple[int, bool]:
    """What `independent_rows` says of a shape here: with random weights, each number of rows is tried."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        model = Transformer(config)
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
        model = _by_matrices(model.to(device, dtype), packed)
        slots = model.new_slots(ROWS)
        for buffer in (slots.keys_LBHSK, slots.values_LBHSK):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) - 0.5)
        positions = [row * 7 % min(slots.KEYS, config.window) for row in range(ROWS)]
        ids_B1 = torch.arange(ROWS, device=device)[:, None]

        def step(first: int, rows: int) -> Tensor:
            cache = slots.at(first, positions[first : first + rows])
            logits_B1V: Tensor = model(ids_B1[first : first + rows], cache=cache)
            return logits_B1V

        whole = step(0, ROWS)
        least = ROWS
        for rows in range(ROWS - 1, 0, -1):
            if not (
                torch.equal(step(0, rows), whole[:rows])
                and torch.equal(step(ROWS - rows, rows), whole[-rows:])
            ):
                break
            least = rows
        most = slots.keys_LBHSK.shape[3] // slots.KEYS
        cuttable = True
        for blocks in {count for count in (2, 3, 5, 9, most) if count <= most}:
            slots.keys_step = blocks * slots.KEYS
            cuttable = cuttable and torch.equal(step(0, ROWS), whole)
    return least, cuttable
