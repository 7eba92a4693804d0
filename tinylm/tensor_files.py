"""Safetensors files of tinylm: what a header may say, and tensors that are written and read one by one.

A rank that holds only rows of each tensor, and has no memory for all of them, makes one whole tensor at a
time while it writes (`pieces`), and keeps its rows of one at a time while it reads (`read_each`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tinylm import contract, files
from tinylm.config import ModelConfig
from tinylm.errors import CheckpointError, ContractError, TinylmError
from tinylm.model import Transformer, allocate
from tinylm.shapes import HasShape, state_problems

KEY = "tinylm"
KINDS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""Number formats that are written, as the header names them, in the order in which safetensors ranks them."""
RANKS = {kind: rank for rank, kind in enumerate(KINDS)}
DTYPES = {name: kind for kind, name in KINDS.items()}
FINITE = 1 << 18
"""How many numbers are looked at together, so that the look needs little memory."""


@dataclass(frozen=True)
class Entry:
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Listed = tuple[int, str]
"""Size and SHA-256 of a file, as a manifest lists them."""

Put = Callable[[Tensor, Tensor], None]
"""Copy a whole tensor into a place, or the rows of it that the place is for: put(place, whole)."""


def header_info(info: Mapping[str, Any]) -> str:
    """What stands under the `tinylm` key: `info` with format and contract, canonical JSON."""
    body: dict[str, Any] = {**info, "format": files.FORMAT, "contract": contract.contract()}
    return files.canonical_json(body).decode("ascii")


def in_order(tensors: Mapping[str, HasShape]) -> list[str]:
    """The names of tensors in the order of their file, which is that of safetensors: wide numbers first."""
    return sorted(tensors, key=lambda name: (-RANKS[_kind(tensors[name])], name))


def to_bytes(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> bytes:
    """A whole file; equal tensors give equal bytes."""
    return b"".join(pieces(tensors, info))


def pieces(
    tensors: Mapping[str, Tensor],
    info: Mapping[str, Any],
    whole: Callable[[Tensor], Tensor] = torch.Tensor.detach,
) -> Iterator[files.Data]:
    """The bytes of a file, byte for byte what safetensors.torch.save gives: header, then each tensor.

    `whole` makes a tensor from what stands in `tensors` when its turn has come, in the order `in_order`;
    this keeps none.
    """
    entries, end = {}, 0
    for name in in_order(tensors):
        dtype, shape = _kind(tensors[name]), list(tensors[name].shape)
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": KINDS[dtype], "shape": shape, "data_offsets": [begin, end]}
    body = {"__metadata__": {KEY: header_info(info)}, **entries}
    header = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in entries:
        yield _bytes_of(whole(tensors[name]))


def read_each(
    path: Path,
    listed: Listed | None,
    check: Callable[[Any, Mapping[str, Entry]], Mapping[str, Tensor]],
    put: Put,
) -> None:
    """Read a file tensor by tensor, each into its place; all of it is hashed as it goes by.

    `check` gets what stands under the `tinylm` key and what the header says of each tensor, and gives the
    place of each by name, or raises. The places hold nothing that may be used before this has returned:
    size and SHA-256, where a manifest has `listed` them, are compared last. Where they differ, that is
    what CheckpointError tells, whatever else was found.
    """
    with readable(path), files.named(path), open(path, "rb", buffering=0) as file:
        source = _Hashed(file, str(path))
        try:
            header, info = _read_header(source)
            entries = _entries(header, source.where)
            places = check(info, entries)
            for name, entry in entries.items():
                tensor = torch.empty(entry.shape, dtype=entry.dtype)
                source.fill(_bytes_of(tensor))
                check_finite(name, tensor, source.where)
                put(places[name], tensor)
                del tensor
        except TinylmError:
            if listed is not None and source.finished() != listed:
                raise other_digest(path) from None
            raise
        if listed is not None and source.finished() != listed:
            raise other_digest(path)


def load_model_file(path: Path, listed: Listed | None = None) -> Transformer:
    """The model in a file, which must have the size and SHA-256 that a manifest has listed."""
    made: list[Transformer] = []

    def checked(info: Any, entries: Mapping[str, Entry]) -> Mapping[str, Tensor]:
        model = Transformer(ModelConfig.from_dict(info.get("model"), str(path)), None)
        if any(entry.dtype == torch.float64 for entry in entries.values()):
            model.double()
        if problems := state_problems(entries, dict(model.named_parameters())):
            raise CheckpointError(f"{path}: {'; '.join(problems)}")
        allocate(model)
        made.append(model)
        return dict(model.named_parameters())

    read_each(path, listed, checked, _take)
    return made[0]


def read_tensors(path: Path, listed: Listed | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What stands under the `tinylm` key of a file, and its tensors, on the CPU; `listed` as above."""
    kept: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}

    def checked(info: Any, entries: Mapping[str, Entry]) -> Mapping[str, Tensor]:
        kept.update(info)
        tensors.update({name: torch.empty(0, dtype=entry.dtype) for name, entry in entries.items()})
        return tensors

    read_each(path, listed, checked, _take)
    return kept, tensors


def _take(place: Tensor, whole: Tensor) -> None:
    """Give a place the memory of a tensor that was read for it and has no other owner."""
    place.data = whole


def read_info(path: Path) -> Any:
    """What stands under the `tinylm` key of a file; of the tensors nothing is read."""
    with readable(path), files.named(path), open(path, "rb", buffering=0) as file:
        return _read_header(_Hashed(file, str(path)))[1]


class _Hashed:
    """A file that is read from its beginning to its end, and hashed."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self.file, self.where = file, where
        self.size = os.fstat(file.fileno()).st_size
        self.digest, self.done = hashlib.sha256(), 0

    def fill(self, data: files.Data) -> None:
        """Read as many bytes as fit into a buffer."""
        view = memoryview(data)
        while view:
            count = self.file.readinto(view[: files.BLOCK])  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(f"{self.where}: ends after {self.done:,} bytes; the file was cut")
            self.digest.update(view[:count])
            self.done += count
            view = view[count:]

    def finished(self) -> tuple[int, str]:
        """Bytes and SHA-256 of the whole file."""
        while block := self.file.read(files.BLOCK):
            self.digest.update(block)
            self.done += len(block)
        return self.done, self.digest.hexdigest()


def _read_header(source: _Hashed) -> tuple[dict[str, Any], Any]:
    """The header of a file that is read from its beginning, and what the `tinylm` key holds; both checked."""
    start = bytearray(min(8, source.size))
    source.fill(start)
    text = bytearray(min(int.from_bytes(start, "little"), source.size - len(start)))
    source.fill(text)
    header, info = parse_header(bytes(start + text), source.where, source.size)
    check_info(info, source.where)
    return header, info


def _entries(header: Mapping[str, Any], where: str) -> dict[str, Entry]:
    """The tensors of a header in the order of their bytes, which lie side by side and leave no gap."""
    found, end = {}, 0
    listed = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    for name, entry in sorted(listed, key=lambda item: item[1]["data_offsets"][::-1]):
        shape, dtype = entry.get("shape"), DTYPES.get(str(entry.get("dtype")))
        if dtype is None:
            raise CheckpointError(f"{where}: holds numbers that are not read here ({entry.get('dtype')!r})")
        sound = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        begin, end = end, end + (math.prod(shape) * dtype.itemsize if sound else 0)
        if not sound or entry["data_offsets"] != [begin, end]:
            raise CheckpointError(
                f"{where}: {name} has shape {shape!r} and data_offsets {entry['data_offsets']!r}, which do "
                "not agree; not a whole safetensors header"
            )
        found[name] = Entry(tuple(shape), dtype)
    return found


def parse_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file, all finite; its header was checked before."""
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(
            f"{where}: not a whole safetensors file ({error}); use an undamaged copy"
        ) from None
    except (KeyError, RuntimeError) as error:  # a number format that torch does not have
        raise CheckpointError(f"{where}: holds numbers that torch cannot read ({error})") from None
    for name, tensor in tensors.items():
        check_finite(name, tensor, where)
    return tensors


def check_finite(name: str, tensor: Tensor, where: str) -> None:
    """Raise CheckpointError where a tensor holds infinities or NaN."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1:  # of one byte: refused by dtype
        return
    if not all(_finite(part) for part in torch.split(tensor.reshape(-1), FINITE)):
        raise CheckpointError(f"{where}: {name} holds values that are not finite; use an earlier step")


def _finite(part: Tensor) -> bool:
    """Whether all numbers are finite. A sum says it in a tenth of the time: whatever is not finite stays so.

    A sum of large numbers may overflow, so that only a finite one is believed.
    """
    return math.isfinite(float(part.sum())) or bool(torch.isfinite(part).all())


def check_info(info: Any, where: str) -> None:
    """Raise ContractError or CheckpointError unless the `tinylm` key holds our contract and format."""
    contract.verify(info.get("contract") if isinstance(info, dict) else None, where)
    if type(info.get("format")) is not int or info["format"] != files.FORMAT:
        raise CheckpointError(f"{where}: format is {info.get('format')!r}, expected {files.FORMAT}")


def parse_header(data: bytes, where: str, length: int | None = None) -> tuple[dict[str, Any], Any]:
    """The header of a safetensors file without duplicates, and what its `tinylm` key holds ({} without).

    Whoever wrote the file: no contract is asked for. `length` is that of the file where `data` is only its
    beginning. Raises CheckpointError where it is not whole.
    """
    length = len(data) if length is None else length
    size = int.from_bytes(data[:8], "little")
    if length < 8 or size > length - 8 or data[8:9] != b"{":
        raise CheckpointError(
            f"{where}: {length:,} bytes are not a safetensors file, or it was cut; use a whole copy"
        )
    header = files.parse_json(data[8 : 8 + size], f"{where} (header)", ContractError)
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    try:
        offsets = [entry["data_offsets"] for entry in entries]
    except (KeyError, TypeError):
        offsets = [None]
    pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in offsets)
    if not pairs or not all(type(number) is int for pair in offsets for number in pair):
        raise CheckpointError(f"{where}: a tensor has no data_offsets; not a whole safetensors header")
    end = max((pair[1] for pair in offsets), default=0)
    if 8 + size + end != length:
        raise CheckpointError(
            f"{where}: {length:,} bytes, expected {8 + size + end:,}; the file was cut or extended"
        )
    metadata = header.get("__metadata__")
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    info = files.parse_json(text, f"{where} ({KEY})", ContractError) if isinstance(text, str) else {}
    return header, info


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """A file that is not there, is no file, or that its disk cannot read: the checkpoint is not whole."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path}: does not exist; the checkpoint is not whole") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a folder, expected a file; the checkpoint is not whole") from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); the disk may be failing") from None


def other_digest(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: its SHA-256 is not that of the manifest; the file was damaged")


def _kind(tensor: HasShape) -> torch.dtype:
    dtype = tensor.dtype
    if not isinstance(dtype, torch.dtype) or dtype not in KINDS:
        raise TypeError(f"numbers of {dtype} are not written; expected {', '.join(KINDS.values())}")
    return dtype


def _bytes_of(tensor: Tensor) -> files.Data:
    """The memory of a tensor: the same where it lies in one piece on the CPU, a copy elsewhere."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
