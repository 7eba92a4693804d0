"""How a checkpoint is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tinylm.config.checked import Checked, Device, booleans, choices, fine, integers, is_text, option


@dataclass(frozen=True)
class EvaluateConfig(Checked):
    """How a checkpoint is measured, and what else is done with its probabilities."""

    protocol: Literal["disjoint", "strided"] = option(
        "disjoint", "disjoint: windows one behind the other; strided: overlapping, each target scored once"
    )
    stride: int | None = option(
        None, "tokens from one window to the next under strided (default: half the window)"
    )
    against: str | None = option(
        None, "another checkpoint, scored on the same targets: the paired difference is shown"
    )
    limit: int | None = option(
        None, "score at most this many tokens, in rows spread over the text; with --code, its first ones"
    )
    code: str | None = option(None, "really compress the held-out text into this file, which must not exist")
    decode: str | None = option(None, "decode this file and compare with the held-out text, byte for byte")
    restore: str | None = option(
        None, "write the decoded documents here: .jsonl, or any other name for a single document's bytes"
    )
    pictures: str | None = option(None, "draw where the bits go, into this folder")
    field: str | None = option(
        None, "where DATA is a source: field of a JSON line that holds the text (default: text)"
    )
    rows: int = option(32, "rows per forward pass; changes the speed, not the result")
    ladder: bool = option(True, "also show what counting and compressors reach on the same split")
    json: bool = option(False, "print one JSON object instead of tables")
    device: Device = option("auto", "auto takes CUDA, then MPS, then the CPU")

    def problems(self) -> list[str]:
        found = choices(self, protocol=("disjoint", "strided"), device=("auto", "cpu", "cuda", "mps"))
        found += integers(self, ("rows",), 1) + booleans(self, ("ladder", "json"))
        for name in ("stride", "limit"):
            if getattr(self, name) is not None:
                found += integers(self, (name,), 1)
        for name in ("against", "code", "decode", "restore", "pictures", "field"):
            if getattr(self, name) is not None and not is_text(getattr(self, name)):
                kind = "the name of a field such as text" if name == "field" else "a path"
                found.append(f"{name} is {getattr(self, name)!r}, expected {kind}")
        combined = []
        if fine(found, "protocol", "stride") and self.protocol == "disjoint" and self.stride is not None:
            combined.append(f"stride is {self.stride}, which goes with --protocol strided")
        if self.restore is not None and self.decode is None:
            combined.append("restore needs --decode FILE, whose documents it writes")
        if self.limit is not None and self.decode is not None and self.code is None:
            combined.append(f"limit is {self.limit}, but --decode restores the whole of a file; leave it out")
        coding = [f"--{name}" for name in ("code", "decode") if getattr(self, name) is not None]
        others = [f"--{name}" for name in ("against", "pictures") if getattr(self, name) is not None]
        if self.protocol == "strided":
            others.append("--protocol strided")
        if coding and others:
            combined.append(
                f"{', '.join(others)} cannot stand beside {' and '.join(coding)}, for which one model reads "
                "the text by the disjoint protocol; measure in a command of its own"
            )
        return found + [problem for problem in combined if not found]
