"""Text to ids and back: encode, four decoders with four responsibilities, and an incremental UTF-8 decoder.

Ids 0..255 are byte values, 256 is the document boundary. Text never becomes 256, and nothing is
normalised, stripped or repaired on the way.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import ContractError

Uint16Array = npt.NDArray[np.uint16]


class _ArrayLike(Protocol):
    """An integer array or tensor: NumPy's, torch's (anything that NumPy can view)."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __array__(self) -> npt.NDArray[np.generic]: ...


Ids = Iterable[int] | _ArrayLike


def encode(text: str) -> tuple[int, ...]:
    """The UTF-8 bytes of `text` as ids. Raises ContractError for a lone surrogate, which has no UTF-8."""
    return tuple(_utf8(text))


def encode_array(text: str) -> Uint16Array:
    """The UTF-8 bytes of `text` as a uint16 array [T], without a Python loop over bytes."""
    return np.frombuffer(_utf8(text), dtype=np.uint8).astype(np.uint16)


def decode_bytes(ids: Ids) -> bytes:
    """Byte ids to raw bytes; 0xFF survives. Raises ContractError for a boundary or anything but 0..256."""
    array = check_ids(ids)
    boundaries = np.flatnonzero(array == DOC_BOUNDARY)
    if boundaries.size:
        raise ContractError(
            f"position {int(boundaries[0])}: {DOC_BOUNDARY} is the document boundary and has no byte; "
            "use decode_document for [256, ..., 256], or debug_decode to look at ids"
        )
    return array.astype(np.uint8).tobytes()


def decode_text(ids: Ids) -> str:
    """Byte ids to text, strictly. Raises ContractError for a boundary and for ill-formed UTF-8."""
    raw = decode_bytes(ids)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ContractError(
            f"byte {error.start} (0x{raw[error.start]:02x}): not well-formed UTF-8 ({error.reason}); "
            "use decode_bytes to keep the raw bytes"
        ) from None


def decode_document(ids: Ids) -> str:
    """`[256, *bytes, 256]` to text: removes exactly the outer boundaries and refuses inner ones."""
    array = check_ids(ids)
    if array.size < 2 or array[0] != DOC_BOUNDARY or array[-1] != DOC_BOUNDARY:
        raise ContractError(
            f"a document begins and ends with {DOC_BOUNDARY}, found {_ends(array)}; "
            "use decode_text for ids without boundaries"
        )
    inner = np.flatnonzero(array[1:-1] == DOC_BOUNDARY)
    if inner.size:
        raise ContractError(
            f"position {int(inner[0]) + 1}: a boundary inside the document; split the ids there, "
            "or use debug_decode to look at them"
        )
    return decode_text(array[1:-1])


def debug_decode(ids: Ids) -> str:
    """Ids for human eyes only: boundaries as `<|doc|>`, ill-formed bytes as U+FFFD. Not reversible."""
    array = check_ids(ids)
    pieces = np.split(array, np.flatnonzero(array == DOC_BOUNDARY))
    documents = [pieces[0], *(piece[1:] for piece in pieces[1:])]
    return "<|doc|>".join(piece.astype(np.uint8).tobytes().decode("utf-8", "replace") for piece in documents)


def check_ids(ids: Ids, where: str = "ids") -> Uint16Array:
    """Ids as a uint16 array [T]; raises ContractError naming the first that is not an integer in 0..256.

    Takes Python ints, or an integer array or tensor of one axis. Nothing wraps: 2**40, -1, 3.0, True
    and text are refused.
    """
    if hasattr(ids, "__array__"):
        array = _as_array(ids, where)
        if array.dtype.kind not in "iu":
            raise ContractError(f"{where}: expected an integer array, found dtype {array.dtype}")
        if array.ndim != 1:
            raise ContractError(f"{where}: expected one axis [T], found shape {list(array.shape)}")
    elif isinstance(ids, str | bytes | bytearray) or not isinstance(ids, Iterable):
        raise ContractError(f"{where}: expected integers 0..{DOC_BOUNDARY}, found {type(ids).__name__}")
    else:
        values = list(ids)
        for position, value in enumerate(values):
            if isinstance(value, bool | np.timedelta64) or not isinstance(value, int | np.integer):
                raise ContractError(
                    f"{where}: position {position} is {value!r} ({type(value).__name__}), "
                    f"expected an integer 0..{DOC_BOUNDARY}"
                )
            if not 0 <= value <= DOC_BOUNDARY:
                raise ContractError(f"{where}: position {position} is {value}, expected 0..{DOC_BOUNDARY}")
        array = np.array(values, dtype=np.int64)
    bad = np.flatnonzero((array < 0) | (array > DOC_BOUNDARY))
    if bad.size:
        raise ContractError(
            f"{where}: position {int(bad[0])} is {int(array[bad[0]])}, expected 0..{DOC_BOUNDARY}"
        )
    return array.astype(np.uint16)


class Utf8Stream:
    """Decodes UTF-8 as bytes arrive: text comes out as soon as it is complete, at most 3 bytes are held.

    With `errors="replace"`, bytes that can never become a character come out as U+FFFD at once (ED A0..BF,
    half of a surrogate, one byte later: so does CPython's decoder); with `errors="strict"` they raise
    ContractError naming the byte offset in the whole stream, and a push that raises takes nothing.
    """

    def __init__(self, errors: Literal["strict", "replace"] = "strict") -> None:
        if errors not in ("strict", "replace"):
            raise ContractError(
                f"errors is {errors!r}, expected strict or replace: no byte is dropped silently"
            )
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._seen = 0

    @property
    def held(self) -> bytes:
        """Bytes that do not yet form a character."""
        return self._decoder.getstate()[0]

    def push(self, data: bytes) -> str:
        """Take more bytes, give the text that is now complete."""
        return self._decode(data, final=False)

    def finish(self) -> str:
        """Say that no byte follows: held bytes are ill-formed and are replaced or refused."""
        return self._decode(b"", final=True)

    def _decode(self, data: bytes, final: bool) -> str:
        before = self._seen - len(self.held)
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            raise ContractError(
                f"byte {before + error.start} (0x{error.object[error.start]:02x}): "
                f"not well-formed UTF-8 ({error.reason})"
            ) from None
        self._seen += len(data)
        return text


def _utf8(text: str) -> bytes:
    if not isinstance(text, str):
        raise ContractError(f"encode takes text, found {type(text).__name__}; ids are fed as they are")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ContractError(
            f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}, which has no "
            "UTF-8; decode the original bytes again instead of keeping halves of a pair"
        ) from None


def _as_array(ids: Ids, where: str) -> npt.NDArray[Any]:
    to_cpu = getattr(ids, "cpu", None)
    try:
        return np.asarray(ids if to_cpu is None else to_cpu())
    except (TypeError, ValueError, RuntimeError) as error:  # a dtype without NumPy's equal, a gradient
        raise ContractError(f"{where}: expected an integer array that NumPy can read: {error}") from None


def _ends(array: Uint16Array) -> str:
    if array.size < 2:
        return f"{array.size} ids"
    return f"{int(array[0])} first and {int(array[-1])} last"
