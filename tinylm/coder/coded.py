"""The referee of evaluate: a text, really compressed with a model's probabilities, and restored bit for bit.

A decoder has nothing but the tokens before and the probabilities. If it restores the text, no probability
looked ahead; if the file has the size that the reported bits say, the probabilities sum to one.

Coder and decoder run the same cached path, one token at a time. Floating point is equal only on equal
machines, so the header says where the file was written, and elsewhere it is refused.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinylm import files
from tinylm.coder.arithmetic import ArithmeticDecoder, ArithmeticEncoder, frequencies
from tinylm.coder.header import Header, header_bytes, read_whole
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.corpus import Split
from tinylm.errors import CoderError, RequestError, TinylmError
from tinylm.generate import Model
from tinylm.shapes import check_shape

Uint16Array = npt.NDArray[np.uint16]
Float64Array = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

EVERY = 64  # tokens between two calls of `progress`


class CodingModel(Model, Protocol):
    """What the coder needs of a model: the cached path of generation, and weights to recognise."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]: ...


@dataclass(frozen=True)
class CodedFile:
    """A file that was written: its size, and what the model said that it would cost.

    `bits` is the sum of -log2 p over the `targets` (`bytes` of them are bytes) along the coder's own path.
    """

    path: Path
    payload_bytes: int
    file_bytes: int
    targets: int
    bytes: int
    bits: float


def encode_split(
    model: CodingModel,
    split: Split,
    path: str | os.PathLike[str],
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> CodedFile:
    """Compress a split, or its first `limit` targets, into a file; the opening boundary is not coded.

    Each token is predicted from what the disjoint protocol shows under the model's policy. An existing
    file is replaced. `progress` is told the targets done and in all. Raises RequestError for a limit below
    1 or a place that cannot take a file, and TinylmError where a token gets no finite number of bits.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise RequestError(f"limit is {limit!r}, expected an integer of at least 1")
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder" if path.is_dir() else "a file in a folder that does not exist"
        raise RequestError(f"{path}: is {found}, expected the name of a file to write; choose another place")
    stream = split.stream if limit is None else split.stream[: limit + 1]
    encoder, bits, targets = ArithmeticEncoder(), 0.0, len(stream) - 1
    with torch.inference_mode():
        reader = _Reader(model)
        token = int(stream[0])
        for done, target in enumerate(stream[1:].tolist(), 1):
            sizes_V, bits_V = frequencies(reader.logits(token))
            cost = float(bits_V[target])
            if not math.isfinite(cost):
                raise TinylmError(_not_finite(f"{split.name} token {done:,}", cost))
            bits += cost
            ends_V = sizes_V.cumsum()
            size = int(sizes_V[target])
            encoder.encode(int(ends_V[target]) - size, size, int(ends_V[-1]))
            token = target
            if progress is not None and (done % EVERY == 0 or done == targets):
                progress(done, targets)
    payload = encoder.finish()
    header = Header(
        split=split.name,
        split_digest=split.digest,
        stream_sha256=_stream_sha256(stream),
        tokens=targets,
        bytes=int(np.count_nonzero(stream[1:] != DOC_BOUNDARY)),
        bits=bits,
        payload_bytes=len(payload),
        payload_sha256=hashlib.sha256(payload).hexdigest(),
        **_here(model),
    )
    data = header_bytes(header) + payload
    files.write_atomic(path, data)
    return CodedFile(path, len(payload), len(data), targets, header.bytes, bits)


def decode_file(
    model: CodingModel, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Uint16Array:
    """The tokens of a coded file (uint16 [N]), from the opening boundary on, bit for bit.

    `progress` is told the targets done and in all. Raises CoderError for a file that is damaged, is of
    another kind, or was written by another model or on another machine; and where what was decoded has
    not the digest that the header gives, in which case nothing of it is returned.
    """
    path = Path(path)
    header, payload = read_whole(path)
    _refuse_elsewhere(header, _here(model), path)
    tokens = array("H", (DOC_BOUNDARY,))
    decoder = ArithmeticDecoder(payload)
    with torch.inference_mode():
        reader = _Reader(model)
        try:
            for done in range(1, header.tokens + 1):
                sizes_V, bits_V = frequencies(reader.logits(tokens[-1]))
                if np.isnan(bits_V[0]):
                    raise TinylmError(_not_finite(f"{path}: token {done:,}", math.nan))
                ends_V = sizes_V.cumsum()
                total = int(ends_V[-1])
                token = int(np.searchsorted(ends_V, decoder.find(total), side="right"))
                size = int(sizes_V[token])
                decoder.take(int(ends_V[token]) - size, size, total)
                tokens.append(token)
                if progress is not None and (done % EVERY == 0 or done == header.tokens):
                    progress(done, header.tokens)
        except CoderError:
            raise CoderError(_not_restored(path, f"none after token {len(tokens) - 1:,}")) from None
    stream = np.array(tokens, dtype="<u2")
    found = _stream_sha256(stream)
    if found != header.stream_sha256:
        raise CoderError(_not_restored(path, f"a text of SHA-256 {found}"))
    return stream


def model_sha256(model: CodingModel) -> str:
    """The SHA-256 of a model: its shape, and name, dtype, shape and bytes of each tensor."""
    digest = hashlib.sha256(files.canonical_json(model.config.to_dict()))
    for name, tensor in sorted(model.named_parameters(), key=lambda item: item[0]):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(files.canonical_json([name, kind, list(tensor.shape)]))
        flat: Tensor = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _Reader:
    """The model behind its cache, one row, one token at a time: what it says of the token that follows.

    A row starts where the disjoint protocol starts one: after `window` tokens and, unless documents are
    read across, at each boundary. Call under torch.inference_mode().
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache = model.new_cache(1)
        self._window = model.config.window
        self._across = model.config.policy == "cross"
        self._ids_V11 = torch.arange(VOCABULARY_SIZE, device=model.device).view(-1, 1, 1)
        self._read = 0

    def logits(self, token: int) -> Float64Array:
        """Logits (float64 [257], on the host) of the token after `token`."""
        if self._read == self._window or (token == DOC_BOUNDARY and not self._across):
            self._cache.reset()
            self._read = 0
        self._read += 1
        logits_BTV = self._model(self._ids_V11[token], cache=self._cache)
        check_shape(logits_BTV, "B T V", name="logits", kind="float", B=1, T=1, V=VOCABULARY_SIZE)
        # First to the host, then to float64, which not every device has.
        logits_V: Float64Array = logits_BTV[0, 0].cpu().to(torch.float64).numpy()
        return logits_V


def _here(model: CodingModel) -> dict[str, Any]:
    """What must be equal where a file is coded and where it is decoded."""
    device = model.device
    dtypes = sorted({str(tensor.dtype) for _, tensor in model.named_parameters()})
    precision = "+".join(dtype.removeprefix("torch.") for dtype in dtypes)
    if torch.is_autocast_enabled(device.type):
        precision += f", autocast {str(torch.get_autocast_dtype(device.type)).removeprefix('torch.')}"
    if precision == "float32" and (matmul := torch.get_float32_matmul_precision()) != "highest":
        precision += f", matrix products {matmul}"
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device.type == "cuda":
        processor = torch.cuda.get_device_name(device)
    return {
        "model_sha256": model_sha256(model),
        "policy": model.config.policy,
        "window": model.config.window,
        "device": device.type,
        "processor": processor,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def _refuse_elsewhere(header: Header, here: dict[str, Any], path: Path) -> None:
    """Raise CoderError naming everything that is not as it was when the file was coded."""
    others = {name: value for name, value in here.items() if getattr(header, name) != value}
    if not others:
        return
    differences = "; ".join(f"{k}: expected {getattr(header, k)}, found {v}" for k, v in others.items())
    remedy = "decode it with the model that coded it"
    if set(others) == {"threads"}:
        remedy = f"set OMP_NUM_THREADS={header.threads}"
    elif "model_sha256" not in others:
        remedy = "decode it where it was coded: elsewhere the same model rounds differently"
    raise CoderError(f"{path}: cannot be decoded here ({differences}); {remedy}")


def _not_restored(path: Path, found: str) -> str:
    return (
        f"{path}: the text was not restored (expected the one that was coded, found {found}); "
        "the model does not repeat its own probabilities, or looks ahead: nothing is returned"
    )


def _not_finite(where: str, bits: float) -> str:
    if math.isnan(bits):
        return f"{where}: the model's logits hold NaN or infinities; use an earlier checkpoint"
    return f"{where}: the model gives this token the probability 0, which no number of bits can express"


def _stream_sha256(stream: Uint16Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(stream, dtype="<u2").data).hexdigest()
