"""What a coded file is: MAGIC, the length of the header (uint32, little-endian), the header and the payload.

The header is canonical JSON, sealed by its own digest, and holds the digest of the payload.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tinylm import contract, files
from tinylm.errors import CoderError

MAGIC = b"tinylm coded text\n"
LENGTH = 4  # bytes of the header's length
LONGEST_HEADER = 1 << 16


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


def read_header(path: str | os.PathLike[str]) -> Header:
    """What a coded file says of itself. Raises CoderError if not every byte agrees with its digests."""
    return read_whole(Path(path))[0]


def header_bytes(header: Header) -> bytes:
    body = {"format": files.FORMAT, "contract": contract.contract(), **asdict(header)}
    text = files.canonical_json(files.seal(body))
    return MAGIC + len(text).to_bytes(LENGTH, "little") + text


def read_whole(path: Path) -> tuple[Header, bytes]:
    """Header and payload of a file. Raises CoderError if not every byte agrees with its digests."""
    try:
        with files.named(path), open(path, "rb") as file:
            fixed = file.read(len(MAGIC) + LENGTH)
            size = int.from_bytes(fixed[len(MAGIC) :], "little")
            if fixed[: len(MAGIC)] != MAGIC:
                raise CoderError(f"{path}: is not a coded text; expected a file of tinylm evaluate --code")
            if len(fixed) < len(MAGIC) + LENGTH or not 0 < size <= LONGEST_HEADER:
                raise _damaged(path, "its header has no length that it can have")
            header = _parsed(path, file.read(size), size)
            there = os.fstat(file.fileno()).st_size - file.tell()
            if there != header.payload_bytes:
                reason = f"expected {header.payload_bytes:,} bytes of payload, found {there:,}"
                raise _damaged(path, reason)
            payload = file.read()
    except FileNotFoundError:
        raise CoderError(f"{path}: does not exist; expected a file of tinylm evaluate --code") from None
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
    values: dict[str, Any] = {field.name: info.get(field.name) for field in fields(Header)}
    kinds = {"str": str, "int": int, "float": float}
    wrong = [f.name for f in fields(Header) if type(values[f.name]) is not kinds[str(f.type)]]
    wrong += [name for name in ("tokens", "payload_bytes") if name not in wrong and values[name] < 0]
    if wrong:
        raise _damaged(path, f"the header says nothing usable of {', '.join(wrong)}")
    return Header(**values)


def _damaged(path: Path, reason: str) -> CoderError:
    return CoderError(f"{path}: the file is damaged ({reason}); use a whole copy, or code the text again")
