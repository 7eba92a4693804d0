"""The referee of evaluate: a text, really compressed with a model's probabilities, and restored bit for bit.

A decoder has nothing but the tokens before and the probabilities. If it restores the text, no probability
looked ahead; if the file has the size that the reported bits say, the probabilities sum to one.

A coded file is MAGIC, the length of the header (uint32, little-endian), the header (canonical JSON, sealed
by its own digest) and the payload. Coder and decoder run the same cached path, one token at a time. Floating
point is equal only on equal machines, so the header says where it was written, and elsewhere it is refused.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinylm import contract, files
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.corpus import Split
from tinylm.errors import CoderError, RequestError, TinylmError
from tinylm.generate import Model
from tinylm.shapes import check_shape

Uint16Array = npt.NDArray[np.uint16]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
Progress = Callable[[int, int], None]

MAGIC = b"tinylm coded text\n"
LENGTH = 4  # bytes of the header's length
LONGEST_HEADER = 1 << 16
EVERY = 64  # tokens between two calls of `progress`

WORD = 96  # bits of the coder's low end and range
TOP = WORD - 8  # the range never falls below 2**TOP
SCALE = 62  # a table of frequencies sums to about 2**SCALE
REST = (1 << TOP) - 1


class ArithmeticEncoder:
    """Symbols, each with its place in a table of integer frequencies, to bytes.

    The range coder of Martin (1979) with a word of 96 bits. A carry runs back through the bytes written.
    Symbols of b bits together take between b/8 and b/8 + 1 bytes, and each at most 2**-24 bits more for
    rounding while tables sum to at most 2**SCALE and a little.
    """

    def __init__(self) -> None:
        self._low, self._range = 0, 1 << WORD
        self._out = bytearray()

    def encode(self, start: int, size: int, total: int) -> None:
        """The next symbol has the part [start, start + size) of [0, total)."""
        if not 0 <= start < start + size <= total <= 1 << (SCALE + 1):
            raise ValueError(f"[{start}, {start + size}) is no part of [0, {total})")
        step = self._range // total
        self._low += step * start
        self._range = step * size
        self._carry()
        while self._range < 1 << TOP:
            self._out.append(self._low >> TOP)
            self._low = (self._low & REST) << 8
            self._range <<= 8

    def finish(self) -> bytes:
        """The bytes of all symbols. The decoder reads zeros behind them."""
        if self._range < 1 << WORD:
            # A range of at least 2**TOP holds a multiple of 2**TOP: one byte says which.
            self._low = -(-self._low >> TOP) << TOP
            self._carry()
            self._out.append(self._low >> TOP)
        self._low, self._range = 0, 1 << WORD
        return bytes(self._out)

    def _carry(self) -> None:
        if not self._low >> WORD:
            return
        self._low -= 1 << WORD
        place = len(self._out) - 1
        while self._out[place] == 255:
            self._out[place] = 0
            place -= 1
        self._out[place] += 1


class ArithmeticDecoder:
    """The same symbols from the bytes, given the same tables: `find` a symbol's place, then `take` it."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = WORD // 8
        self._value = int.from_bytes(payload[: self._position].ljust(self._position, b"\0"), "big")
        self._range = 1 << WORD

    def find(self, total: int) -> int:
        """A number in [0, total) inside the part of the next symbol. Raises CoderError if there is none."""
        place = self._value // (self._range // total)
        if place >= total:
            raise CoderError("the payload is not the code of these probabilities")
        return place

    def take(self, start: int, size: int, total: int) -> None:
        """Step behind the symbol that has the part [start, start + size) of [0, total)."""
        step = self._range // total
        self._value -= step * start
        self._range = step * size
        while self._range < 1 << TOP:
            byte = self._payload[self._position] if self._position < len(self._payload) else 0
            self._value = self._value << 8 | byte
            self._position += 1
            self._range <<= 8


def frequencies(logits_V: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Logits (float64 [V]) to integer frequencies that sum to 2**62 and a little, and to bits per symbol.

    Every frequency is at least 1, so a symbol less probable than 2**-62 takes 62 bits, fewer than the
    model says. Bits are infinite where the probability is 0; a table of NaN is refused by its caller.
    """
    shifted_V = logits_V - logits_V.max()
    weights_V = np.exp(shifted_V)
    total = weights_V.sum()
    bits_V: Float64Array = (math.log(total) - shifted_V) / math.log(2)
    return (weights_V * (2.0**SCALE / total)).astype(np.int64) + 1, bits_V


class CodingModel(Model, Protocol):
    """What the coder needs of a model: the cached path of generation, and weights to recognise."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]: ...


@dataclass(frozen=True)
class Header:
    """What a coded file says of itself; readable without a model.

    `tokens` counts the coded targets and `bytes` those of them that are bytes; `bits` is the sum of
    -log2 p over them. `stream_sha256` is that of the tokens from the opening boundary on (uint16,
    little-endian), `split_digest` that of the whole split. The fields from `model_sha256` on must be equal
    where it is decoded.
    """

    split: str
    split_digest: str
    stream_sha256: str
    tokens: int
    bytes: int
    bits: float
    payload_bytes: int
    payload_sha256: str
    model_sha256: str
    policy: str
    window: int
    device: str
    processor: str
    precision: str
    threads: int
    torch: str
    numpy: str


WHERE = tuple(field.name for field in fields(Header))[8:]


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
        here = _here(model, reader.dtype)
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
        **here,
    )
    data = _header_bytes(header) + payload
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
    header, payload = _read(path)
    tokens = array("H", (DOC_BOUNDARY,))
    decoder = ArithmeticDecoder(payload)
    with torch.inference_mode():
        reader = _Reader(model)
        _refuse_elsewhere(header, _here(model, reader.dtype), path)
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


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a coded file says of itself, its payload checked too. Raises CoderError if it is not whole."""
    return _read(Path(path))[0]


def model_sha256(model: CodingModel) -> str:
    """The SHA-256 of a model: its shape, and name, dtype, shape and bytes of each tensor."""
    digest = hashlib.sha256(files.canonical_json(asdict(model.config)))
    for name, tensor in sorted(model.named_parameters(), key=lambda item: item[0]):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(files.canonical_json([name, kind, list(tensor.shape)]))
        flat: Tensor = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
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
        # The dtype in which the model computes, known from one step before the first that counts.
        self.dtype = self._step(DOC_BOUNDARY).dtype
        self._cache.reset()

    def logits(self, token: int) -> Float64Array:
        """Logits (float64 [257], on the host) of the token after `token`."""
        if self._read == self._window or (token == DOC_BOUNDARY and not self._across):
            self._cache.reset()
            self._read = 0
        self._read += 1
        # First to the host, then to float64, which not every device has.
        logits_V: Float64Array = self._step(token)[0, 0].cpu().to(torch.float64).numpy()
        return logits_V

    def _step(self, token: int) -> Tensor:
        logits_BTV = self._model(self._ids_V11[token], cache=self._cache)
        check_shape(logits_BTV, "B T V", name="logits", kind="float", B=1, T=1, V=VOCABULARY_SIZE)
        return logits_BTV


def _here(model: CodingModel, logits_dtype: torch.dtype) -> dict[str, Any]:
    """What must be equal where a file is coded and where it is decoded."""
    device = model.device
    dtypes = sorted({str(tensor.dtype) for _, tensor in model.named_parameters()} or {str(logits_dtype)})
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


def _header_bytes(header: Header) -> bytes:
    body = {"format": files.FORMAT, "contract": contract.contract(), **asdict(header)}
    text = files.canonical_json(files.seal(body))
    return MAGIC + len(text).to_bytes(LENGTH, "little") + text


def _read(path: Path) -> tuple[Header, bytes]:
    """Header and payload of a file of which every byte agrees with its digests."""
    try:
        with files.named(path), open(path, "rb") as file:
            fixed = file.read(len(MAGIC) + LENGTH)
            size = int.from_bytes(fixed[len(MAGIC) :], "little")
            if fixed[: len(MAGIC)] != MAGIC:
                raise CoderError(f"{path}: is not a coded text; expected a file of tinylm evaluate --code")
            if len(fixed) < len(MAGIC) + LENGTH or not 0 < size <= LONGEST_HEADER:
                raise _damaged(path, "its header has no length that it can have")
            header = _parsed(path, file.read(size), size)
            payload = file.read(header.payload_bytes + 1)
    except FileNotFoundError:
        raise CoderError(f"{path}: does not exist; expected a file of tinylm evaluate --code") from None
    if len(payload) != header.payload_bytes:
        more = "more" if len(payload) > header.payload_bytes else f"{len(payload):,}"
        raise _damaged(path, f"expected {header.payload_bytes:,} bytes of payload, found {more}")
    if hashlib.sha256(payload).hexdigest() != header.payload_sha256:
        raise _damaged(path, "the payload has not the SHA-256 that the header gives")
    return header, payload


def _parsed(path: Path, text: bytes, size: int) -> Header:
    if len(text) != size:
        raise _damaged(path, f"expected {size:,} bytes of header, found {len(text):,}")
    info = files.parse_json(text, f"{path} (header)", CoderError)
    if not isinstance(info, dict) or not files.is_sealed(info):
        raise _damaged(path, "the header has not its own digest")
    if type(info.get("format")) is not int or info["format"] != files.FORMAT:
        raise CoderError(f"{path}: format is {info.get('format')!r}, expected {files.FORMAT}; code it again")
    contract.verify(info.get("contract"), str(path))
    values = {name: info.get(name) for name in (field.name for field in fields(Header))}
    kinds = {"str": str, "int": int, "float": float}
    wrong = [f.name for f in fields(Header) if type(values[f.name]) is not kinds[str(f.type)]]
    wrong += [name for name in ("tokens", "payload_bytes") if name not in wrong and values[name] < 0]
    if wrong:
        raise _damaged(path, f"the header says nothing usable of {', '.join(wrong)}")
    return Header(**values)


def _damaged(path: Path, reason: str) -> CoderError:
    return CoderError(f"{path}: the file is damaged ({reason}); use a whole copy, or code the text again")


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
