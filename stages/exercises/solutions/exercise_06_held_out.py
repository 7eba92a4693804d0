"""An answer to exercise 06."""

import hashlib


def held_out(document: bytes, share: float) -> bool:
    """Whether a document is held out, which the first 8 bytes of its SHA-256 decide."""
    digest = hashlib.sha256(document).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
