"""Check of exercise 06."""

import hashlib
from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect

DOCUMENTS = [f"document {i}".encode() for i in range(400)]


def below(document: bytes, order: str, size: int, share: float) -> bool:
    """The rule with another order of bytes or another number of them."""
    data = hashlib.sha256(document).digest()[:size]
    number = int.from_bytes(data if order == "big" else data[::-1], "big")
    return bool(number < share * 2 ** (8 * size))


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `held_out`."""
    found = [answer.held_out(document, 0.25) for document in DOCUMENTS]
    if found != [answer.held_out(document, 0.25) for document in DOCUMENTS]:
        raise Hint("asked twice, your function answers differently: only the bytes of the document decide")
    if not all(isinstance(one, bool) for one in found):
        raise Hint(f"expected True or False, yours gives {found[0]!r}")
    right = [below(document, "big", 8, 0.25) for document in DOCUMENTS]
    if found == [not one for one in right]:
        raise Hint("the sides are exchanged: held out is what lies under the share")
    if found == [below(document, "little", 8, 0.25) for document in DOCUMENTS]:
        raise Hint("the bytes are read in the other order: the first one counts most, so 'big'")
    if not any(found) or all(found):
        raise Hint(f"of 400 documents {sum(found)} are held out at a share of 0.25, expected about 100")
    for document, mine, wanted in zip(DOCUMENTS, found, right, strict=True):
        expect(f"held_out({document!r}, 0.25)", mine, wanted)
    for share, wanted in ((0.0, False), (1.0, True)):
        expect(f"held_out(b'a', {share})", answer.held_out(b"a", share), wanted)
