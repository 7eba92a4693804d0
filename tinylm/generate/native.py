"""Rows through the compiled step: the model's weights in panels, the keys and values of slots, one call.

Every row gives the same bits whatever is computed beside it (step.cpp says why), so a prompt may be cut
anywhere and several tokens of a slot read at once give what they give one by one.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.generate import compiled
from tinylm.generate.compiled import NotCompiled
from tinylm.model import Transformer
from tinylm.ngrams import rows_of_tokens
from tinylm.sampling import Floats

Floats32 = npt.NDArray[np.float32]
ROWS = 64
"""Rows of one call; more are cut, which changes nothing."""
PANEL = 16
WORK_OF_A_THREAD = 2_000_000
"""Multiply-adds that make up for waking one more thread."""
KNOWN = (
    *("layers", "width", "mlp_width", "heads", "kv_heads", "head_size", "window", "policy"),
    *("rope_theta", "norm_eps", "tied", "ngrams", "ngram_rows"),
)
"""Options of a model that the step follows, or that are no concern of it."""
ROW = np.dtype([("slot", np.int32), ("position", np.int32), ("logits", np.int32)])


def _fields(names: str, kind: type) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class _Layer(ctypes.Structure):
    _fields_ = _fields("attention_norm qkv q_norm k_norm o mlp_norm gate_up down", ctypes.c_void_p)


class _Model(ctypes.Structure):
    _fields_ = [
        *_fields("layers width mlp_width heads kv_heads head_size vocabulary", ctypes.c_int64),
        *_fields("capacity slots", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        *_fields("cosines sines layer norm head keys values", ctypes.c_void_p),
    ]


def obstacle(model: object) -> str | None:
    """Why a model cannot go through the compiled step, or None. Builds it if need be."""
    if type(model) is not Transformer:
        return "the model is not a Transformer of this library"
    weights = dict(model.named_parameters())
    kinds = {(weight.device.type, weight.dtype) for weight in weights.values()}
    if kinds != {("cpu", torch.float32)}:
        return "the weights are " + ", ".join(sorted(f"{dtype} on {device}"[6:] for device, dtype in kinds))
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    for field in dataclasses.fields(model.config):
        if field.name not in KNOWN and getattr(model.config, field.name) != field.default:
            return f"the step does not know the option {field.name}"
    others = set(weights) - set(_names(model))
    if others:
        return f"the step does not know {min(others)}"
    try:
        compiled.load()
    except NotCompiled as reason:
        return str(reason)
    return None


def _names(model: Transformer) -> Iterable[str]:
    yield from ("model.embed_tokens.weight", "model.ngrams.weight", "model.norm.weight", "lm_head.weight")
    for layer in range(model.config.layers):
        for part in (
            *("input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
            *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
        ):
            yield f"model.layers.{layer}.{part}.weight"


class NativeStep:
    """A model's weights as they are now, and slots with room for one window each. One thread at a time."""

    def __init__(self, model: Transformer, slots: int) -> None:
        config = model.config
        self._function = compiled.load().tinylm_step
        self._function.restype = None
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._function.argtypes = [pointer, integer, pointer, pointer, pointer, ctypes.c_int]
        self._keep: list[Floats32] = []
        self._embedding_VD = self._plain(model.model.embed_tokens.weight)
        head = model.model.embed_tokens.weight if model.lm_head is None else model.lm_head.weight
        layers = (_Layer * config.layers)()
        parts: Iterable[Any] = model.model.layers
        for place, layer in zip(layers, parts, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            place.attention_norm = self._at(self._plain(layer.input_layernorm.weight))
            place.qkv = self._panels(
                attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
            )
            place.q_norm = self._at(self._plain(attention.q_norm.weight))
            place.k_norm = self._at(self._plain(attention.k_norm.weight))
            place.o = self._panels(attention.o_proj.weight)
            place.mlp_norm = self._at(self._plain(layer.post_attention_layernorm.weight))
            gate_up = torch.stack(
                [
                    w.detach().view(-1, PANEL, config.width)
                    for w in (mlp.gate_proj.weight, mlp.up_proj.weight)
                ],
                dim=1,
            )
            place.gate_up = self._panels(gate_up.view(-1, config.width))
            place.down = self._panels(mlp.down_proj.weight)
        capacity = -(-config.window // PANEL) * PANEL
        heads = (config.layers, slots, config.kv_heads)
        self._keys_LBHSKP = _aligned((*heads, capacity // PANEL, config.head_size, PANEL))
        self._values_LBHKSP = _aligned((*heads, -(-config.head_size // PANEL), capacity, PANEL))
        self._layers = layers
        self._model = _Model(
            config.layers, config.width, config.mlp_width, config.heads, config.kv_heads, config.head_size,
            VOCABULARY_SIZE, capacity, slots, config.norm_eps,
            self._at(self._plain(model.cos_TK)), self._at(self._plain(model.sin_TK)),
            ctypes.addressof(layers), self._at(self._plain(model.model.norm.weight)), self._panels(head),
            self._keys_LBHSKP.ctypes.data, self._values_LBHKSP.ctypes.data,
        )  # fmt: skip
        self._config, self._reach = config, max(0, config.ngrams - 1)
        self._table_RD = None if model.model.ngrams is None else self._plain(model.model.ngrams.weight)
        # The ids that were read, behind boundaries for what n-grams would see before the first of them.
        self._ids_BS = np.full((slots, self._reach + config.window), DOC_BOUNDARY, np.int64)
        tables = 0 if self._table_RD is None else self._table_RD.size
        self._work = sum(parameter.numel() for parameter in model.parameters()) - tables
        self._rows = np.zeros(ROWS, ROW)
        self._x_RD = _aligned((ROWS, config.width))
        self._arguments = (
            ctypes.addressof(self._model), self._rows.ctypes.data, self._x_RD.ctypes.data,
        )  # fmt: skip

    def read(
        self, tokens: Mapping[int, tuple[int, Sequence[int]]], *, last: bool = False
    ) -> dict[int, Floats]:
        """Read on in several slots, each given as (first position, ids), of which all before were read.

        Gives for each slot the logits (float64 [n, 257]) after each of its n ids, or after the `last` alone.
        """
        ids: list[int] = []
        rows: list[tuple[int, int, int]] = []
        wanted = 0
        for slot, (position, more) in tokens.items():
            ids += more
            if len(more) == 1:
                rows.append((slot, position, wanted))
                wanted += 1
                continue
            for place in range(position, position + len(more)):
                want = not last or place == position + len(more) - 1
                rows.append((slot, place, wanted if want else -1))
                wanted += want
        logits_NV = np.empty((wanted, VOCABULARY_SIZE))
        for begin in range(0, len(ids), ROWS):
            self._call(ids[begin : begin + ROWS], rows[begin : begin + ROWS], logits_NV)
        found, begin = {}, 0
        for slot, (_, more) in tokens.items():
            end = begin + (1 if last else len(more))
            found[slot] = logits_NV[begin:end]
            begin = end
        return found

    def _call(self, ids: list[int], rows: list[tuple[int, int, int]], logits_NV: Floats) -> None:
        count = len(ids)
        self._rows[:count] = rows
        self._embedding_VD.take(ids, axis=0, out=self._x_RD[:count])
        if self._table_RD is not None:
            self._x_RD[:count] += self._table_RD[self._ngram_rows(ids)].sum(axis=1)
        model, places, x = self._arguments
        threads = min(torch.get_num_threads(), 1 + count * self._work // WORK_OF_A_THREAD)
        self._function(model, count, places, x, logits_NV.ctypes.data, threads)

    def _ngram_rows(self, ids: list[int]) -> npt.NDArray[np.int64]:
        """Rows of the table [R, ngrams - 1] for the ids of a call, which are remembered."""
        slots, positions = self._rows["slot"][: len(ids)], self._rows["position"][: len(ids)]
        self._ids_BS[slots, self._reach + positions] = ids
        places = positions.astype(np.int64) + self._reach
        back = [self._ids_BS[slots, places - distance] for distance in range(self._reach + 1)]
        return np.stack(rows_of_tokens(back, self._config), axis=-1)

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` keys and values of another."""
        whole = -(-length // PANEL)
        self._keys_LBHSKP[:, target, :, :whole] = self._keys_LBHSKP[:, source, :, :whole]
        self._values_LBHKSP[:, target, :, :, :length] = self._values_LBHKSP[:, source, :, :, :length]
        self._ids_BS[target, : self._reach + length] = self._ids_BS[source, : self._reach + length]

    def clear(self, slot: int, first: int = 0) -> None:
        """Forget what was read from a position on: nothing to do, for a row sees what was read before it."""

    def _plain(self, tensor: Tensor) -> Floats32:
        """A copy, row by row."""
        found = _aligned(tuple(tensor.shape))
        found[...] = tensor.detach().numpy()
        return found

    def _panels(self, *matrices_OI: Tensor) -> int:
        """The address of matrices one below the other, in panels of 16 outputs, zeros below the last."""
        outputs, inputs = sum(len(matrix) for matrix in matrices_OI), matrices_OI[0].shape[1]
        panels_PIO = _aligned((-(-outputs // PANEL), inputs, PANEL))
        row = 0
        for matrix_OI in matrices_OI:
            whole = len(matrix_OI) // PANEL * PANEL
            if row % PANEL:
                raise AssertionError("a matrix in front of another has whole panels")
            first = row // PANEL
            source = matrix_OI.detach().numpy()
            panels_PIO[first : first + whole // PANEL] = (
                source[:whole].reshape(-1, PANEL, inputs).transpose(0, 2, 1)
            )
            if whole < len(source):
                panels_PIO[first + whole // PANEL, :, : len(source) - whole] = source[whole:].T
            row += len(source)
        return self._at(panels_PIO)

    def _at(self, array: Floats32) -> int:
        """The address of an array that lives as long as this."""
        self._keep.append(array)
        return array.ctypes.data


def _aligned(shape: tuple[int, ...]) -> Floats32:
    """Zeros whose first element begins a line of the processor's cache (64 bytes)."""
    size = int(np.prod(shape))
    raw = np.zeros(size + 16, np.float32)
    skip = -raw.ctypes.data // 4 % 16
    return raw[skip : skip + size].reshape(shape)
