"""Exercise of stage 06: which documents are held out."""

import hashlib


def held_out(document: bytes, share: float) -> bool:
    """Whether a document is held out, which the first 8 bytes of its SHA-256 decide.

    As a fraction they lie under the share. Read the 8 bytes as one whole number, the first byte counting
    most (big-endian), and divide by 2 to the 64: that is a number from 0 to below 1. So equal documents land
    on the same side, in any order and on any machine, and about `share` of all documents are held out.
    """
    raise NotImplementedError
