"""The model behind slots: tokens go into a slot, logits come out.

Two ways: the compiled step for a Transformer in float32 on the CPU, and PyTorch for everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tinylm.config import ModelConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.devices import cpu_threads
from tinylm.generate import native
from tinylm.generate.independence import ROWS, Measured, independent_rows
from tinylm.model import Transformer
from tinylm.sampling import Floats
from tinylm.shapes import check_shape

CHUNK = 64
"""Tokens of a prompt that are read at once. Part of what a result depends on, as kernels round by shape."""

GAP = 4
"""Idle slots between two rows that are computed along rather than beginning another forward pass."""


class Model(Protocol):
    """What generation needs of a model: Transformer has it, and so has a script of logits.

    `new_slots(n)` gives an object with `at(first, positions)`, the cache of a forward pass in which row b
    reads on in slot first + b from positions[b], or is idle where that is None; `copy(source, target,
    length)`; and `clear(slot, first)`, which forgets what was read from a position on.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def new_cache(self, rows: int = 1) -> Any: ...

    def new_slots(self, slots: int) -> Any: ...

    def __call__(self, ids_BT: Tensor, cache: Any = None) -> Tensor: ...


class Reader:
    """A model and its slots. Weights are taken as they are when it is made.

    Unless `fast`, what a row gives does not depend on the rows beside it, bit for bit. `exact_drafts`:
    whether several ids of one slot, read at once, give bit for bit what they give one by one. `how`: one
    line that says which way tokens are read, and why not the other.
    """

    def __init__(self, model: Model, slots: int, *, fast: bool = False) -> None:
        self._native: native.NativeStep | None = None
        obstacle = native.obstacle(model)
        if obstacle is None:
            assert isinstance(model, Transformer)
            self._native, self.exact_drafts = native.NativeStep(model, slots), True
            self.how = "the compiled step"
            return
        self.how = f"PyTorch ({obstacle})"
        self._model, self._rows = model, Measured(1, ROWS, True, torch.get_num_threads())
        # The kernels of PyTorch round a token among others of its row in another way than one alone.
        self.exact_drafts = not isinstance(model, Transformer)
        if isinstance(model, Transformer) and not fast:
            self._model, self._rows = independent_rows(model)
        # Rows that fill up a step stand behind the last slot, if not in one that is idle.
        self._slots = model.new_slots(slots + self._rows.least - 1)
        if not self._rows.cuttable:
            self._slots.attend_to_all()

    def chunk(self, slot: int, position: int, ids: Sequence[int]) -> Floats:
        """Read tokens into one slot; the logits (float64 [257], on the host) after the last of them."""
        if self._native is not None:
            (last_V,) = self._native.read({slot: (position, ids)}, last=True)[slot]
            return last_V
        if len(ids) < self._rows.least:
            for index, token in enumerate(ids):
                last_V = self.step({slot: (position + index, [token])})[slot][-1]
        else:
            last_V = self._forward(slot, [position], [list(ids)])[0, -1]
        return last_V

    def step(self, tokens: Mapping[int, tuple[int, Sequence[int]]]) -> dict[int, Floats]:
        """Read on in several slots, each given as (first position, ids).

        Gives for each slot the logits (float64 [n, 257], on the host) after each of its n ids.
        """
        if self._native is not None:
            return self._native.read(tokens)
        found: dict[int, Floats] = {}
        single = {slot: (first, ids[0]) for slot, (first, ids) in tokens.items() if len(ids) == 1}
        for rows in spans(sorted(single), self._rows.most):
            filled = range(rows[0], rows[0] + max(len(rows), self._rows.least))
            places = [single.get(slot, (None, 0)) for slot in filled]
            with cpu_threads(self._rows.threads):
                logits_BTV = self._forward(
                    rows[0], [place for place, _ in places], [[token] for _, token in places]
                )
            found.update({slot: logits_BTV[slot - rows[0]] for slot in rows if slot in single})
        for slot, (first, ids) in tokens.items():
            if len(ids) > 1:
                found[slot] = self._forward(slot, [first], [list(ids)])[0]
        return found

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` keys and values of another."""
        (self._native or self._slots).copy(source, target, length)

    def clear(self, slot: int, first: int = 0) -> None:
        """Forget what may not be finite, from a position on."""
        (self._native or self._slots).clear(slot, first)

    def _forward(self, first: int, positions: Sequence[int | None], ids: list[list[int]]) -> Floats:
        """Logits (float64 [B, T, 257], on the host) after each token of each row."""
        ids_BT = torch.tensor(ids, dtype=torch.int64, device=self._model.device)
        # Not around a yield: the mode would reach into the caller's own code.
        with torch.inference_mode():
            logits_BTV = self._model(ids_BT, cache=self._slots.at(first, positions))
        B, T = ids_BT.shape
        check_shape(logits_BTV, "B T V", name="logits_BTV", kind="float", B=B, T=T, V=VOCABULARY_SIZE)
        # First to the host, then to float64, which not every device has.
        found_BTV: Floats = logits_BTV.cpu().to(torch.float64).numpy()
        return found_BTV


def spans(slots: Sequence[int], most: int = ROWS) -> Iterator[range]:
    """Neighbouring slots that go through the model together: at most `most`, at most GAP idle in a row."""
    begin = previous = -1
    for slot in slots:
        if begin >= 0 and (slot - previous > GAP + 1 or slot - begin >= most):
            yield range(begin, previous + 1)
            begin = slot
        begin = slot if begin < 0 else begin
        previous = slot
    if begin >= 0:
        yield range(begin, previous + 1)
