"""Attention: what a position may see, and the fastest exact way to compute it on each device.

Without segments a position sees all before it. With segments, the pieces of documents that share a row,
it sees its own piece only. Three forms of that compute the same: a boolean mask (the reference, and what
a compiled graph on a CPU takes), blocks of like length without a mask (CPU), and FlexAttention (CUDA).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.errors import ShapeError
from tinylm.shapes import check_shape

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

FINEST = 16
"""Blocks of up to 8 times this length are rounded up to a multiple of it, longer ones within an eighth."""


@dataclass(frozen=True)
class Blocks:
    """Pieces regrouped into blocks of like length, for causal attention without a mask.

    `order` (int64 [N]): for each place in the blocks its position in the flattened [B x T]; a piece that is
    shorter than its block repeats its last position, which nothing before it can see. `places`
    (int64 [B x T]): where each position stands in the blocks. `shapes`: (pieces, length) of each block.
    """

    order: Tensor
    places: Tensor
    shapes: tuple[tuple[int, int], ...]


Seen: TypeAlias = "Tensor | Blocks | BlockMask | None"
"""What each position may see: bool [B, 1, T, T], a form that does not write it down, or None: all before."""


def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen: Seen = None) -> Tensor:
    """Scaled dot-product attention [B, H, T, K] in which query t sees the keys up to its own position.

    The T queries are the last of the S positions that the keys stand for; the heads of keys and values
    divide those of queries. With `seen`, from `seen_within`, T is S and a query sees only its own piece.
    Raises ShapeError.
    """
    if not torch.compiler.is_compiling():
        _check(q_BHTK, k_BHSK, v_BHSK, seen)
    return _attend(q_BHTK, k_BHSK, v_BHSK, seen)


def _check(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen: Seen) -> None:
    """The contract of `attend`. Each layer of each step passes here, so what is right is seen at a glance."""
    if q_BHTK.ndim == k_BHSK.ndim == 4 and k_BHSK.shape == v_BHSK.shape:
        (B, H, T, K), (rows, heads, S, size) = q_BHTK.shape, k_BHSK.shape
        alike = rows == B and size == K and T <= S and not H % heads
        floats = q_BHTK.is_floating_point() and k_BHSK.is_floating_point() and v_BHSK.is_floating_point()
        if alike and floats and (seen is None or _is_mask(seen, (B, 1, T, S))):
            return
    sizes = check_shape(q_BHTK, "B H T K", name="q_BHTK", kind="float")
    B, H, T, K = sizes.values()
    sizes = check_shape(k_BHSK, "B G S K", name="k_BHSK", kind="float", B=B, K=K)
    check_shape(v_BHSK, "B G S K", name="v_BHSK", kind="float", **sizes)
    heads, S = sizes["G"], sizes["S"]
    if H % heads:
        raise ShapeError(
            f"k_BHSK: axis 1 is {heads}, expected a number of heads that divides the {H} of q_BHTK"
        )
    if T > S:
        raise ShapeError(f"k_BHSK: axis 2 (S) is {S}, expected at least the {T} positions of q_BHTK")
    if isinstance(seen, Tensor):  # bool, or numbers that are added to the scores
        kind = "bool" if seen.dtype == torch.bool else "float"
        check_shape(seen, "B 1 T S", name="seen", kind=kind, B=B, T=T, S=S)
    elif isinstance(seen, Blocks):
        check_shape(seen.places, "N", name="seen.places", kind="integer", N=B * T)


def _is_mask(seen: Seen, shape: tuple[int, ...]) -> bool:
    return (
        isinstance(seen, Tensor)
        and seen.shape == shape
        and (seen.dtype == torch.bool or seen.is_floating_point())
    )


def _attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, seen: Seen) -> Tensor:
    T, S = q_BHTK.shape[2], k_BHSK.shape[2]
    grouped = q_BHTK.shape[1] != k_BHSK.shape[1]
    if isinstance(seen, Blocks):
        return _attend_in_blocks(q_BHTK, k_BHSK, v_BHSK, seen)
    if seen is not None and not isinstance(seen, Tensor):
        return _attend_by_flex(q_BHTK, k_BHSK, v_BHSK, seen, grouped)
    if seen is None and (T == S or T == 1):
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=T == S, enable_gqa=grouped)
    if seen is None:
        seen = torch.ones(T, S, dtype=torch.bool, device=q_BHTK.device).tril(S - T)
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=seen, enable_gqa=grouped)


def seen_within(
    segments_BT: Tensor, *, compiled: bool = False, dtype: torch.dtype = torch.float32
) -> Tensor | Blocks | BlockMask:
    """What each position of packed rows sees, in the form that is fastest where the segments lie.

    `segments_BT`: integers [B, T] that pass `check_segments`, as those of a batch do; it is not called
    here, because a GPU would have to be waited for. `compiled`: whether the model that takes it is; blocks
    have other shapes in each batch.
    """
    kind = segments_BT.device.type
    if kind == "cpu" and not compiled:
        return blocks(segments_BT)
    # FlexAttention has no float64, and without Triton no kernel.
    if kind == "cuda" and dtype != torch.float64 and importlib.util.find_spec("triton") is not None:
        return flex_mask(segments_BT)
    return dense_mask(segments_BT)


def check_segments(segments_BT: Tensor) -> None:
    """Raise ShapeError unless each row says 0, 1, ... for its pieces side by side, then -1 where padded."""
    check_shape(segments_BT, "B T", name="segments", kind="integer")
    before, after = segments_BT[:, :-1], segments_BT[:, 1:]
    goes_on = (before >= 0) & ((after == before) | (after == before + 1))
    good = ((segments_BT[:, :1] == 0) | (segments_BT[:, :1] == -1)).all() & (goes_on | (after == -1)).all()
    if not bool(good):
        raise ShapeError(
            "segments: expected 0, 1, ... along each row, one number for each piece, then -1 where it is "
            "padded; number the pieces in the order in which they stand"
        )


def dense_mask(segments_BT: Tensor) -> Tensor:
    """bool [B, 1, T, T]: whether query t sees key s. Padded positions see each other: none sees nothing."""
    if not torch.compiler.is_compiling():
        check_shape(segments_BT, "B T", name="segments", kind="integer")
    T = segments_BT.shape[1]
    causal_TT = torch.ones(T, T, dtype=torch.bool, device=segments_BT.device).tril()
    same_BTT: Tensor = segments_BT[:, :, None] == segments_BT[:, None, :]
    return (same_BTT & causal_TT)[:, None]


def blocks(segments_BT: Tensor) -> Blocks:
    """The blocks of packed rows on the CPU; a row's padding is one more piece."""
    B, T = check_shape(segments_BT, "B T", name="segments", kind="integer").values()
    segments = segments_BT.numpy()
    begins = np.ones((B, T), dtype=bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, B * T))
    rounded = _rounded(lengths)
    order, shapes, filled = [], [], 0
    places = np.empty(B * T, dtype=np.int64)
    for size in np.unique(rounded):
        chosen = np.flatnonzero(rounded == size)
        longest = int(lengths[chosen].max())
        within = np.arange(longest)
        positions = starts[chosen, None] + np.minimum(within, lengths[chosen, None] - 1)
        real = within < lengths[chosen, None]
        places[positions[real]] = filled + np.flatnonzero(real)
        order.append(positions.reshape(-1))
        shapes.append((len(chosen), longest))
        filled += positions.size
    return Blocks(torch.from_numpy(np.concatenate(order)), torch.from_numpy(places), tuple(shapes))


def flex_mask(segments_BT: Tensor) -> BlockMask:
    """The BlockMask of packed rows for FlexAttention (Dong et al., 2024), which skips what nobody sees."""
    from torch.nn.attention.flex_attention import create_block_mask

    B, T = check_shape(segments_BT, "B T", name="segments", kind="integer").values()

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (segments_BT[b, q] == segments_BT[b, k])

    return create_block_mask(sees, B, None, T, T, device=str(segments_BT.device))


def _attend_in_blocks(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, blocks: Blocks) -> Tensor:
    B, H, T, K = q_BHTK.shape
    sizes = [pieces * length for pieces, length in blocks.shapes]

    def regrouped(x_BHTK: Tensor) -> tuple[Tensor, ...]:
        flat = x_BHTK.transpose(1, 2).reshape(B * T, -1)
        return torch.split(flat.index_select(0, blocks.order), sizes)

    found = []
    for (pieces, length), *parts in zip(
        blocks.shapes, *map(regrouped, (q_BHTK, k_BHTK, v_BHTK)), strict=True
    ):
        q, k, v = (part.view(pieces, length, -1, K).transpose(1, 2) for part in parts)
        found.append(_attend(q, k, v, None).transpose(1, 2).reshape(pieces * length, H * K))
    return torch.cat(found).index_select(0, blocks.places).view(B, T, H, K).transpose(1, 2)


def _attend_by_flex(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, seen: BlockMask, grouped: bool) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    # By itself it writes all scores down, so where it is not part of a compiled graph it is one.
    alone = q_BHTK.is_cuda and not torch.compiler.is_compiling()
    flex: Any = _compiled(flex_attention) if alone else flex_attention
    # Under autocast the norms of queries and keys leave another dtype than the values have.
    q_BHTK, k_BHTK = q_BHTK.to(v_BHTK.dtype), k_BHTK.to(v_BHTK.dtype)
    out_BHTK: Tensor = flex(q_BHTK, k_BHTK, v_BHTK, block_mask=seen, enable_gqa=grouped)
    return out_BHTK


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _rounded(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths rounded up so that few blocks are needed and little is computed for nothing."""
    step = np.maximum(FINEST, 2 ** np.floor(np.log2(lengths)).astype(np.int64) // 8)
    rounded: npt.NDArray[np.int64] = -(-lengths // step) * step
    return rounded
