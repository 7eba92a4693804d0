"""What comes out of a coded file: documents, compared with a split, and written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tinylm import files
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.errors import CoderError, RequestError

Uint16Array = npt.NDArray[np.uint16]


def documents_of(stream: Uint16Array) -> list[bytes]:
    """The documents of a stream [N] whose first token is a boundary; the last may have no end."""
    pieces = np.split(stream, np.flatnonzero(stream == DOC_BOUNDARY))
    return [piece[1:].astype(np.uint8).tobytes() for piece in pieces if len(piece) > 1]


def refuse_difference(stream: Uint16Array, split: Split, path: str) -> None:
    """Raise CoderError unless the stream is the beginning of the split's, token for token."""
    shared = min(len(stream), len(split.stream))
    differing = np.flatnonzero(stream[:shared] != split.stream[:shared])
    if len(differing):
        at = int(differing[0])
        found, expected = int(stream[at]), int(split.stream[at])
        what = f"token {at:,} is {found}, in the held-out text {expected}"
    elif len(stream) > len(split.stream):
        what = f"it holds {len(stream) - 1:,} tokens, the held-out text {len(split.stream) - 1:,}"
    else:
        return
    raise CoderError(f"{path}: decoded, but is not {split.name}: {what}; compare it with the text it is of")


def write_documents(documents: Sequence[bytes], path: str | os.PathLike[str]) -> None:
    """Write documents whole or not at all: `.jsonl` as a line {"text": ...} each, any other name as the
    bytes of the only one. Raises RequestError where the documents do not fit the name."""
    path = Path(path)
    if path.suffix != ".jsonl":
        if len(documents) != 1:
            raise RequestError(
                f"{path}: {len(documents):,} documents were decoded, and a file of raw bytes holds one; name "
                "it something.jsonl"
            )
        files.write_atomic(path, documents[0])
        return
    lines = []
    for number, document in enumerate(documents, 1):
        try:
            lines.append(files.canonical_json({"text": document.decode("utf-8")}))
        except UnicodeDecodeError as error:
            last = " (a limit cut it there)" if number == len(documents) else ""
            raise RequestError(
                f"{path}: document {number:,} is not UTF-8 at its byte {error.start:,}{last}, and JSON holds "
                "nothing else; code whole documents, or restore a single one under another name"
            ) from None
    files.write_atomic(path, b"".join(line + b"\n" for line in lines))
