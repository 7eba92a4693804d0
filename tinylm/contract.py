"""The tokenizer contract: 256 byte values, one document boundary, and the four values that guard them."""

from __future__ import annotations

from collections.abc import Mapping

from tinylm.errors import ContractError

TOKENIZER_VERSION = "utf8-byte-v1"
VOCABULARY_SIZE = 257
DOC_BOUNDARY = 256
VOCABULARY_SHA256 = "b558ac388ef62a32f778a3518f9c1087c8a8df060f3b312163f32876f471ed74"


def canonical_vocabulary() -> bytes:
    """The vocabulary as 1,699 ASCII bytes: a line `id TAB hex` per byte value, then the boundary's line."""
    lines = [f"{value}\t{value:02x}\n" for value in range(256)]
    lines.append(f"{DOC_BOUNDARY}\tDOC_BOUNDARY\n")
    return "".join(lines).encode("ascii")


def contract() -> dict[str, int | str]:
    """The four values as every artefact carries them (a new dictionary each time)."""
    return {
        "tokenizer_version": TOKENIZER_VERSION,
        "vocabulary_size": VOCABULARY_SIZE,
        "boundary_id": DOC_BOUNDARY,
        "vocabulary_sha256": VOCABULARY_SHA256,
    }


def verify(found: object, where: str) -> None:
    """Raise ContractError unless `found` holds exactly the four values; `where` names the artefact.

    Types must match too: 257.0 and True are not integers of the contract.
    """
    expected = contract()
    if not isinstance(found, Mapping):
        raise ContractError(
            f"{where}: holds no tokenizer contract (expected {_show(expected)}, found {found!r}); "
            "it was not written by tinylm, or its header was lost: use the original file"
        )
    problems = []
    for key, value in expected.items():
        if key not in found:
            problems.append(f"{key}: expected {value!r}, found nothing")
        elif type(found[key]) is not type(value) or found[key] != value:
            problems.append(f"{key}: expected {value!r}, found {found[key]!r}")
    problems.extend(f"{key}: not part of the contract" for key in found if key not in expected)
    if problems:
        raise ContractError(
            f"{where}: another tokenizer contract ({'; '.join(problems)}); "
            f"only artefacts of {TOKENIZER_VERSION} can be used together"
        )


def _show(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value!r}" for key, value in values.items())
