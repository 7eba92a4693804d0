"""Keys and values of tokens that were read: of rows that move together, and of slots that do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import ShapeError
from tinylm.shapes import check_shape


class Cache:
    """Keys and values of the tokens read so far: fixed size, `position` tokens filled."""

    def __init__(self, config: ModelConfig, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self.capacity = config.window
        self.position = 0
        shape = (config.layers, rows, config.kv_heads, config.window, config.head_size)
        self.keys_LBHTK = torch.zeros(shape, device=device, dtype=dtype)
        self.values_LBHTK = torch.zeros(shape, device=device, dtype=dtype)
        self._ids_BT = torch.zeros(
            rows, config.window if config.ngrams else 0, dtype=torch.int64, device=device
        )

    def remember(self, ids_BT: Tensor) -> Tensor:
        """Store the ids to be read next, for n-grams that reach back; gives all so far [B, S]."""
        end = self.position + ids_BT.shape[1]
        self._ids_BT[:, self.position : end] = ids_BT
        return self._ids_BT[:, :end]

    def reset(self) -> None:
        """Forget everything that was read."""
        self.position = 0

    def append(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of one layer behind those before; gives all of them [B, H, S, K].

        Raises ShapeError unless they are [B, H, T, K] of this cache and fit behind its position.
        """
        if not torch.compiler.is_compiling():
            _, B, H, _, K = self.keys_LBHTK.shape
            _check(keys_BHTK, values_BHTK, (B, H, K), self.capacity - self.position)
        end = self.position + keys_BHTK.shape[2]
        self.keys_LBHTK[layer, :, :, self.position : end] = keys_BHTK
        self.values_LBHTK[layer, :, :, self.position : end] = values_BHTK
        return self.keys_LBHTK[layer, :, :, :end], self.values_LBHTK[layer, :, :, :end]


class Slots:
    """Keys and values of generations side by side: a slot has room for one window, and a length of its own.

    Kept apart from `Cache`, whose rows all stand at one position: there nothing is read beyond the last
    key, here all rows are attended to over one length, with a mask. The buffers [L, slots, H, S, K] hold
    nothing but finite numbers, so that what a mask hides adds an exact 0.
    """

    KEYS = 64
    """The length over which a row attends is a multiple of it."""

    def __init__(self, config: ModelConfig, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.window = config.window
        self.keys_step = self.KEYS
        capacity = -(-config.window // self.KEYS) * self.KEYS
        shape = (config.layers, slots, config.kv_heads, capacity, config.head_size)
        self.keys_LBHSK = torch.zeros(shape, device=device, dtype=dtype)
        self.values_LBHSK = torch.zeros(shape, device=device, dtype=dtype)
        self.reach = max(0, config.ngrams - 1)
        shape_BS = (slots, config.window if config.ngrams else 0)
        self.ids_BS = torch.full(shape_BS, DOC_BOUNDARY, dtype=torch.int64, device=device)

    def at(self, first: int, positions: Sequence[int | None]) -> SlotRows:
        """The slots from `first` on, one for each position, as the cache of one forward pass.

        None: the slot is idle, and only computed along; it writes in the last place of its window.
        """
        return SlotRows(self, first, positions)

    def attend_to_all(self) -> None:
        """Attend over the whole buffer, however few keys are seen."""
        self.keys_step = self.keys_LBHSK.shape[3]

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` keys and values of another."""
        for buffer_LBHSK in (self.keys_LBHSK, self.values_LBHSK):
            buffer_LBHSK[:, target, :, :length] = buffer_LBHSK[:, source, :, :length]
        self.ids_BS[target, :length] = self.ids_BS[source, :length]

    def clear(self, slot: int, first: int = 0) -> None:
        """Zeros from a position on, where something that is not finite may have been written."""
        self.keys_LBHSK[:, slot, :, first:] = 0
        self.values_LBHSK[:, slot, :, first:] = 0


class SlotRows:
    """The cache of one forward pass over neighbouring slots: row b reads on from `positions[b]`."""

    def __init__(self, slots: Slots, first: int, positions: Sequence[int | None]) -> None:
        self.positions = tuple(slots.window - 1 if place is None else place for place in positions)
        self._last = max(place for place in positions if place is not None)
        self._slots = slots
        self._rows = slice(first, first + len(self.positions))
        self._places: tuple[Tensor, Tensor]
        self._length = 0

    def remember(self, ids_BT: Tensor) -> Tensor:
        """Store the ids to be read next; gives them after those before that n-grams can reach [B, S]."""
        reach, ids_BS = self._slots.reach, self._slots.ids_BS[self._rows]
        first_B1 = torch.tensor(self.positions, device=ids_BT.device)[:, None]
        places_BT = first_B1 + torch.arange(-reach, ids_BT.shape[1], device=ids_BT.device)
        ids_BS.scatter_(1, places_BT[:, reach:], ids_BT)
        return ids_BS.gather(1, places_BT.clamp(min=0)).masked_fill_(places_BT < 0, DOC_BOUNDARY)

    def begin(self, T: int) -> tuple[Tensor, Tensor]:
        """Positions (int64 [B, T]) of the tokens to be read, and what their queries see, 0 or -inf
        [B, 1, T, S], to be added to the scores."""
        buffer = self._slots.keys_LBHSK
        step = self._slots.keys_step
        self._length = -(-(self._last + T) // step) * step
        first_B1 = torch.tensor(self.positions, device=buffer.device)[:, None]
        positions_BT = first_B1 + torch.arange(T, device=buffer.device)
        rows_B1 = torch.arange(len(self.positions), device=buffer.device)[:, None]
        self._places = (rows_B1, positions_BT)
        hidden_BTS = torch.arange(self._length, device=buffer.device) > positions_BT[:, :, None]
        seen_BTS = torch.zeros(hidden_BTS.shape, device=buffer.device, dtype=buffer.dtype)
        return positions_BT, seen_BTS.masked_fill_(hidden_BTS, -torch.inf)[:, None]

    def append(self, layer: int, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of one layer; gives those of all positions [B, H, S, K].

        Raises ShapeError unless they are [B, H, T, K] of these slots, with the T that `begin` was given.
        """
        rows, positions = self._places
        if not torch.compiler.is_compiling():
            (B, T), (_, _, H, _, K) = positions.shape, self._slots.keys_LBHSK.shape
            _check(keys_BHTK, values_BHTK, (B, H, K), T, T)
        found = []
        for buffer_LBHSK, new_BHTK in (
            (self._slots.keys_LBHSK, keys_BHTK),
            (self._slots.values_LBHSK, values_BHTK),
        ):
            buffer_BHSK = buffer_LBHSK[layer, self._rows]
            buffer_BHSK[rows, :, positions] = new_BHTK.transpose(1, 2).to(buffer_BHSK.dtype)
            found.append(buffer_BHSK[:, :, : self._length])
        return found[0], found[1]


def _check(
    keys_BHTK: Tensor, values_BHTK: Tensor, sizes_BHK: tuple[int, int, int], most: int, least: int = 0
) -> None:
    """What may be stored: floats [B, H, T, K] of these sizes, for `least` to `most` positions."""
    (B, H, K), found = sizes_BHK, keys_BHTK.shape
    if len(found) == 4 and found == values_BHTK.shape and least <= found[2] <= most:
        floats = keys_BHTK.is_floating_point() and values_BHTK.is_floating_point()
        if floats and found[0] == B and found[1] == H and found[3] == K:
            return
    sizes = check_shape(keys_BHTK, "B H T K", name="keys_BHTK", kind="float", B=B, H=H, K=K)
    check_shape(values_BHTK, "B H T K", name="values_BHTK", kind="float", **sizes)
    expected = f"the {most} of this step" if least else f"at most {most}, which still fit the window"
    raise ShapeError(f"keys_BHTK: axis 2 (T) is {sizes['T']}, expected {expected}")
