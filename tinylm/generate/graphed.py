"""A decoding step whose buffers never move, so that it can be compiled whole and recorded as a CUDA graph.

At these sizes a GPU is done with a kernel sooner than Python can ask for the next one. A recorded graph asks
once for all of them. For that nothing about a step may change but the content of its buffers: ids and
positions are tensors, every slot is computed whether it is busy or not, and attention goes over the whole
buffer with a mask. Prompts are read as they always are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tinylm.cache import SlotRows, Slots
from tinylm.errors import RequestError
from tinylm.model import Transformer
from tinylm.sampling import Floats

Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Make of a step that takes nothing and gives a tensor one that does the same, into the same memory."""

WARM_UP = 3
"""Steps before the one that is recorded: libraries choose their kernels and take their memory in them."""


class FixedRows(SlotRows):
    """The cache of one token in each of the slots 0 .. B-1, at positions that stand in a tensor."""

    def __init__(self, slots: Slots, positions_B: Tensor) -> None:
        self._slots, self._positions_B = slots, positions_B
        self._rows = slice(0, len(positions_B))
        self._length = slots.keys_LBHSK.shape[3]

    def begin(self, T: int) -> tuple[Tensor, Tensor]:
        """As for any rows of slots; T is 1."""
        buffer = self._slots.keys_LBHSK
        positions_B1 = self._positions_B[:, None]
        rows_B1 = torch.arange(len(positions_B1), device=buffer.device)[:, None]
        self._places = (rows_B1, positions_B1)
        hidden_B1S = torch.arange(self._length, device=buffer.device) > positions_B1[:, :, None]
        seen_B1S = torch.zeros(hidden_B1S.shape, device=buffer.device, dtype=buffer.dtype)
        return positions_B1, seen_B1S.masked_fill(hidden_B1S, -torch.inf)[:, None]


class GraphedReader:
    """A model and its slots, as a `Reader` is, with steps that were compiled and recorded once for each size.

    Sizes are powers of two: a step computes the slots up to the highest busy one, rounded up. `backend` is
    torch.compile's; `record` is a CUDA graph where the model lies on CUDA. Weights are taken as they lie in
    memory: they may change in place, not move. As with a reader that is `fast`, what a row gives may depend
    on the size of the step, in its last digits. Raises RequestError for models that add n-grams.
    """

    def __init__(
        self, model: object, slots: int, *, backend: str = "inductor", record: Record | None = None
    ) -> None:
        if not isinstance(model, Transformer) or model.config.ngrams:
            what = "it adds n-grams" if isinstance(model, Transformer) else "it is no Transformer of tinylm"
            raise RequestError(f"model: {what}, which steps in a CUDA graph do not know; leave graphs out")
        self.exact_drafts, self.how = False, "compiled steps in a CUDA graph"
        room = 1 << (slots - 1).bit_length()  # idle slots up to a power of two
        self._model, self._slots = model, model.new_slots(room)
        self._record = record or (cuda_graph if model.device.type == "cuda" else unrecorded)
        self._backend = backend
        self._idle = model.config.window - 1
        self._ids_B1 = torch.zeros(room, 1, dtype=torch.int64, device=model.device)
        self._positions_B = torch.full((room,), self._idle, device=model.device)
        self._steps: dict[int, Callable[[], Tensor]] = {}

    def chunk(self, slot: int, position: int, ids: Sequence[int]) -> Floats:
        """Read tokens into one slot; the logits (float64 [257], on the host) after the last of them."""
        last_V: Floats = self._read(slot, position, ids)[-1]
        return last_V

    def step(self, tokens: Mapping[int, tuple[int, Sequence[int]]]) -> dict[int, Floats]:
        """Read on in several slots, each given as (first position, ids).

        Gives for each slot the logits (float64 [n, 257], on the host) after each of its n ids. Slots that
        read one id go through the recorded step, those that read several one by one.
        """
        single = {slot: (first, ids[0]) for slot, (first, ids) in tokens.items() if len(ids) == 1}
        found = self._step(single) if single else {}
        for slot, (first, ids) in tokens.items():
            if slot not in single:
                found[slot] = self._read(slot, first, ids)
        return found

    def _read(self, slot: int, first: int, ids: Sequence[int]) -> Floats:
        """Read on in one slot, as any reader does; the logits [n, 257] after each of the n ids."""
        ids_BT = torch.tensor([ids], dtype=torch.int64, device=self._model.device)
        with torch.inference_mode():
            logits_BTV = self._model(ids_BT, cache=self._slots.at(slot, [first]))
        logits_TV: Floats = logits_BTV[0].cpu().to(torch.float64).numpy()
        return logits_TV

    def _step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Floats]:
        """The recorded step: one id in each of several slots, given as (position, id)."""
        size = 1 << max(tokens).bit_length()
        places = [tokens.get(slot, (self._idle, 0)) for slot in range(size)]
        # Not torch.inference_mode: what is made inside it could not be changed in place outside.
        with torch.no_grad():
            if size not in self._steps:
                # A step that is tried out writes at the last place of every window: where idle slots always
                # write, and where a busy one has read nothing yet, or has read all that fits.
                self._positions_B.fill_(self._idle)
                self._steps[size] = self._record(self._made(size))
            self._positions_B[:size].copy_(torch.tensor([place for place, _ in places]))
            self._ids_B1[:size, 0].copy_(torch.tensor([token for _, token in places]))
            logits_BV: Floats = self._steps[size]().cpu().to(torch.float64).numpy()
        return {slot: logits_BV[slot : slot + 1] for slot in tokens}

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` keys and values of another."""
        self._slots.copy(source, target, length)

    def clear(self, slot: int, first: int = 0) -> None:
        """Forget what may not be finite, from a position on."""
        self._slots.clear(slot, first)

    def _made(self, size: int) -> Callable[[], Tensor]:
        """The step of the first `size` slots, on the buffers of this reader."""
        model, slots = self._model, self._slots
        ids_B1, positions_B = self._ids_B1[:size], self._positions_B[:size]

        def forward(ids_B1: Tensor, positions_B: Tensor) -> Tensor:
            last_BV: Tensor = model(ids_B1, cache=FixedRows(slots, positions_B))[:, -1]
            return last_BV

        # Code of its own: torch counts the graphs that it makes of one code, and gives up after a few.
        forward.__code__ = forward.__code__.replace()
        # Compiled, also because the model then leaves out the checks for which a GPU would have to be waited.
        compiled = torch.compile(forward, dynamic=False, fullgraph=True, backend=self._backend)
        return lambda: compiled(ids_B1, positions_B)


def unrecorded(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The step itself: what a CUDA graph does, without one."""
    return step


def cuda_graph(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step, recorded as a CUDA graph: its result lies in memory that the next call writes again."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay
