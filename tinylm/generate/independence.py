"""Linear layers whose rows do not depend on one another, so that a result does not depend on neighbours.

A matrix product may add up in another order when it has another number of rows: kernels are chosen by
shape. Measured on x86 with MKL: rows are equal bit for bit among 4 and more, 2 and 3 differ from these, and
1 from both; with weights in oneDNN's own layout they are equal for every number. Nothing promises either, so
what holds is tried out on the machine, and fewer rows than that are filled up.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tinylm.attention import attend
from tinylm.cache import Slots
from tinylm.model import Transformer

ROWS = 16
"""Most rows of one decoding step. More would gain little, and element-wise kernels might cut them apart."""

PACKED_FROM = 2**20
"""Parameters from which oneDNN's layout is faster for one row than filling up to four; below, its calls cost
more than the arithmetic."""


class RowLinear(nn.Module):
    """`F.linear` without a bias. From `least` rows on, a row of the result depends on its input alone."""

    def __init__(self, weight: Tensor, packed: bool) -> None:
        super().__init__()
        self._weight = weight.detach()
        self._packed: Tensor | None = None
        if packed:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, ROWS)
        self.least = _least_rows(
            weight.shape[1],
            weight.shape[0],
            weight.dtype,
            weight.device.type,
            packed,
            torch.get_num_threads(),
            torch.is_autocast_enabled(weight.device.type),
        )

    def forward(self, x: Tensor) -> Tensor:
        # Always a matrix: with three axes another kernel may be chosen.
        x_RD = x.reshape(-1, x.shape[-1])
        return _product(x_RD, self._weight, self._packed).view(*x.shape[:-1], -1)


def independent_rows(model: Transformer) -> tuple[Transformer, int]:
    """A model of the same weights, as they are now, and the number of rows from which on they do not depend
    on one another, nor on how many there are up to ROWS."""
    weight = model.model.embed_tokens.weight
    packed = (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and sum(parameter.numel() for parameter in model.parameters()) >= PACKED_FROM
    )
    twin = _replaced(model, lambda linear: RowLinear(linear.weight, packed))
    assert isinstance(twin, Transformer)
    if twin.lm_head is None:
        twin._modules["lm_head"] = RowLinear(weight, packed)
    return twin, max(part.least for part in twin.modules() if isinstance(part, RowLinear))


def _replaced(module: nn.Module, make: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    """A module that shares everything with another but its linear layers."""
    if isinstance(module, nn.Linear):
        return make(module)
    twin = copy.copy(module)
    twin._modules = {
        name: None if part is None else _replaced(part, make) for name, part in module._modules.items()
    }
    return twin


def _product(x: Tensor, weight: Tensor, packed: Tensor | None) -> Tensor:
    if packed is None:
        return F.linear(x, weight)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product


@functools.cache
def _least_rows(
    inputs: int, outputs: int, dtype: torch.dtype, device: str, packed: bool, threads: int, autocast: bool
) -> int:
    """The number of rows from which on, up to ROWS, each is what it is among ROWS, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        weight = torch.rand(outputs, inputs, generator=generator).to(device, dtype) - 0.5
        x = torch.rand(ROWS, inputs, generator=generator).to(device, dtype) - 0.5
        layout = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS) if packed else None
        whole = _product(x, weight, layout)
        for rows in range(ROWS - 1, 0, -1):
            first, last = _product(x[:rows], weight, layout), _product(x[-rows:], weight, layout)
            if not (torch.equal(first, whole[:rows]) and torch.equal(last, whole[-rows:])):
                return rows + 1
    return 1


def keys_step(slots: Slots, heads: int) -> int:
    """A number to whose multiples keys may be cut without changing a row's attention; else all of them."""
    _, _, kv_heads, capacity, size = slots.keys_LBHSK.shape
    cuttable = _keys_can_be_cut(
        heads, kv_heads, capacity, size, slots.keys_LBHSK.dtype, slots.keys_LBHSK.device.type,
        torch.get_num_threads(), torch.is_autocast_enabled(slots.keys_LBHSK.device.type),
    )  # fmt: skip
    return slots.KEYS if cuttable else capacity


@functools.cache
def _keys_can_be_cut(
    heads: int,
    kv_heads: int,
    capacity: int,
    size: int,
    dtype: torch.dtype,
    device: str,
    threads: int,
    autocast: bool,
) -> bool:
    """Whether attention over the first keys is, bit for bit, that over all of them with the others hidden."""
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        q, k, v = (
            torch.randn(2, count, length, size, generator=generator).to(device, dtype)
            for count, length in ((heads, 1), (kv_heads, capacity), (kv_heads, capacity))
        )
        positions_B1 = torch.tensor([[Slots.KEYS - 1], [Slots.KEYS // 2]], device=device)
        hidden_BS = torch.arange(capacity, device=device) > positions_B1
        seen = torch.zeros(hidden_BS.shape, dtype=dtype, device=device)
        seen = seen.masked_fill_(hidden_BS, -torch.inf)[:, None, None]
        lengths = range(Slots.KEYS, capacity + 1, Slots.KEYS)
        found = [attend(q, k[:, :, :n], v[:, :, :n], seen[..., :n]) for n in lengths]
        alone = attend(q[1:], k[1:], v[1:], seen[1:])
    return all(torch.equal(one, found[0]) for one in found) and torch.equal(alone, found[0][1:])
