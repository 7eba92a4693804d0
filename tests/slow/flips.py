"""Damaged files: every flipped byte of a step or a corpus is refused, and a run falls back and says so.

python tests/slow/flips.py [--short]

Random bytes of the files of a step and of a corpus become other bytes; all bits of headers and manifests
flip; files are cut and extended at every border of their format; manifests are forged, emptied and lost.
Each time: the reader refuses, naming the file and why, before anything of it is used; and a run with an
older step loads that one, bit-equal, with a line about the one that it skipped.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection import tiny
from tests.slow.injection.proof import Proof, Row, contents, folder
from tinylm import checkpoint, files
from tinylm.corpus import open_corpus
from tinylm.errors import TinylmError


class Step:
    """A run of two steps, the newer of which is damaged."""

    def __init__(self, place: Path) -> None:
        self.run = place
        self.run.mkdir()
        tiny.save(self.run, 1, keep=2)
        tiny.save(self.run, 2, keep=2)
        self.folder = checkpoint.step_folder(self.run, 2)
        self.older = checkpoint.step_folder(self.run, 1)

    def problem(self, name: str) -> str | None:
        """What is wrong with the answer to a damaged file `name`."""
        refused = refusal(checkpoint.verify_step, self.folder, name)
        if refused is not None:
            return refused
        found = checkpoint.newest_step(self.run)
        if found.folder != self.older:
            return f"loads {found.folder.name}"
        if len(found.skipped) != 1 or self.folder.name not in found.skipped[0]:
            return f"does not say what was skipped: {found.skipped}"
        return None


class Corpus:
    """A corpus that is damaged."""

    def __init__(self, place: Path) -> None:
        self.folder = place
        tiny.corpus(place)

    def problem(self, name: str) -> str | None:
        return refusal(open_corpus, self.folder, name)


def refusal(load: Callable[[Path], object], place: Path, name: str) -> str | None:
    """What is wrong with how `place` is refused for its damaged file `name`, or None."""
    try:
        load(place)
    except TinylmError as error:
        said = str(error)
        if "\n" in said or not said.startswith(str(place)):
            return f"the message does not begin with the place, or has two lines: {said!r}"
        return None if name in said else f"another file is named: {said!r}"
    except Exception as error:
        return f"{type(error).__name__} instead of an error for people: {error}"
    return "it loads"


def damage(row: Row, target: Step | Corpus, damages: Iterator[tuple[str, str, bytes | None]]) -> None:
    """Give one file after the other another content (None: it is gone), and undo it."""
    whole = contents(target.folder)
    for kind, name, data in damages:
        path = target.folder / name
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        row.count(f"{path.parent.name}/{name}, {kind}", target.problem(name))
        path.write_bytes(whole[name])


def random_bytes(target: Step | Corpus, number: int, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Any byte becomes any other; every file has its share, whatever its size."""
    chance, whole = random.Random(seed), contents(target.folder)
    for index in range(number):
        name = sorted(whole)[index % len(whole)]
        position = chance.randrange(len(whole[name]))
        data = bytearray(whole[name])
        data[position] ^= chance.randrange(1, 256)
        yield f"byte {position} became {data[position]:#04x}", name, bytes(data)


def headers(data: bytes) -> int:
    """How many bytes stand before the tensors of a safetensors file."""
    return 8 + int.from_bytes(data[:8], "little")


def every_bit(target: Step | Corpus, every: int) -> Iterator[tuple[str, str, bytes]]:
    """All eight bits of every byte (every `every`-th) of manifests and headers; of data, the two ends."""
    for name, whole in contents(target.folder).items():
        if name.endswith(".json"):
            places = range(0, len(whole), every)
        elif name.endswith(".safetensors"):
            places = [*range(0, headers(whole), every), headers(whole), len(whole) - 1]
        else:
            places = [*range(0, min(len(whole), 128), every), len(whole) - 1]
        for position in places:
            for bit in range(8):
                data = bytearray(whole)
                data[position] ^= 1 << bit
                yield f"bit {bit} of byte {position}", name, bytes(data)


def lengths(target: Step | Corpus) -> Iterator[tuple[str, str, bytes]]:
    """Cut at the borders of the format and around them; and longer by a few bytes."""
    for name, whole in contents(target.folder).items():
        header = headers(whole) if name.endswith(".safetensors") else 128
        points = {0, 1, 2, 7, 8, header // 2, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1}
        for point in sorted(point for point in points if 0 <= point < len(whole)):
            yield f"cut at {point}", name, whole[:point]
        for more in (b"\0", b"\n", b"  ", whole):
            yield f"longer by {len(more)}", name, whole + more


def manifests(target: Step | Corpus) -> Iterator[tuple[str, str, bytes | None]]:
    """Files lost or exchanged; manifests of another format, contract or kind, with a seal that fits."""
    whole = contents(target.folder)
    for name in whole:
        yield "gone", name, None
        for other in whole:
            if whole[other] != whole[name]:
                yield f"in its place {other}", name, whole[other]
    name = next(name for name in whole if name.endswith(".json"))
    manifest = json.loads(whole[name])

    def sealed(**changes: object) -> bytes:
        return files.readable_json(files.seal({**manifest, **changes}))

    for version in (0, 2, "1", True, 1.0, None):
        yield f"format {version!r}", name, sealed(format=version)
    for key, value in manifest["contract"].items():
        for other in (
            None,
            0,
            f"{value}x",
            258 if value == 257 else 257,
            float(value) if value == 256 else "",
        ):
            yield f"{key} {other!r}", name, sealed(contract={**manifest["contract"], key: other})
        without = {k: v for k, v in manifest["contract"].items() if k != key}
        yield f"no {key}", name, sealed(contract=without)
    yield "a fifth value", name, sealed(contract={**manifest["contract"], "pad_id": 256})
    for listed in manifest["files"]:
        without = {k: v for k, v in manifest["files"].items() if k != listed}
        yield f"does not list {listed}", name, sealed(files=without)
    for text in (b"", b"null", b"[]", b"{}", b"\xff\xfe{\0}\0", b'{"format": 1}', whole[name] + b"{}"):
        yield f"is {text[:12]!r}", name, text
    yield "with CRLF", name, whole[name].replace(b"\n", b"\r\n")
    yield "spaced otherwise", name, json.dumps(manifest).encode()
    yield "a key twice", name, whole[name].replace(b'"format": 1', b'"format": 1,\n "format": 1')
    for depth in (100, 900, *range(970, 1000), 10**5):
        nested = b'{\n "a": ' + b"[" * depth + b"]" * depth + b",\n"
        yield f"nested {depth} deep", name, whole[name].replace(b"{\n", nested, 1)


class NoDigest:
    """A digest that is the same for all content."""

    name = "none"

    def __init__(self, data: bytes = b"") -> None:
        pass

    def update(self, data: bytes) -> None:
        pass

    def copy(self) -> NoDigest:
        return self

    def digest(self) -> bytes:
        return bytes(range(32))

    def hexdigest(self) -> str:
        return self.digest().hex()


def main() -> int:
    proof = Proof("files of a checkpoint and of a corpus are damaged")
    number, every = (300, 29) if proof.short else (2000, 1)
    with folder() as place:
        targets: list[Step | Corpus] = [Step(place / "run"), Corpus(place / "corpus")]
        for target, name in zip(targets, ("step", "corpus"), strict=True):
            damage(proof.row(f"random byte of a {name}"), target, random_bytes(target, number, seed=1))
            damage(proof.row(f"each bit of the headers of a {name}"), target, every_bit(target, every))
            damage(proof.row(f"file of a {name} cut or extended"), target, lengths(target))
            damage(proof.row(f"file of a {name} lost, exchanged, forged"), target, manifests(target))
        whole_file = mock.patch.object(hashlib, "file_digest", lambda *_: NoDigest())
        with mock.patch.object(hashlib, "sha256", NoDigest), whole_file:
            bare: list[Step | Corpus] = [Step(place / "bare run"), Corpus(place / "bare corpus")]
            for target, name in zip(bare, ("step", "corpus"), strict=True):
                damage(proof.control(f"digest of a {name}"), target, random_bytes(target, 100, seed=2))
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
