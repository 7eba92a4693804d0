"""How a checkpoint is exported."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from tinylm.config.checked import Checked, choices, fine, is_text, option

Format = Literal["huggingface", "gguf"]
Kind = Literal["f32", "f16", "q8_0"]


@dataclass(frozen=True)
class ExportConfig(Checked):
    """The format of another program, and what goes with the weights."""

    to: Format = dataclasses.field(
        metadata={"help": "huggingface: a folder for transformers; gguf: a file for llama.cpp"}
    )
    kind: Kind | None = option(None, "numbers of a gguf file (default: f32); q8_0 is the smallest")
    data: str | None = option(
        None, "also measure the model on the held-out part of this corpus or source, for the model card"
    )

    def problems(self) -> list[str]:
        found = choices(self, to=("huggingface", "gguf"))
        if self.kind is not None:
            found += choices(self, kind=("f32", "f16", "q8_0"))
        if fine(found, "kind") and self.kind is not None and self.to == "huggingface":
            found.append(f"kind is {self.kind!r}, and only gguf has kinds; leave it out")
        if self.data is not None and not is_text(self.data):
            found.append(f"data is {self.data!r}, expected a corpus or a source of text")
        if fine(found, "data") and self.data is not None and self.to == "gguf":
            found.append(f"data is {self.data!r}, and a gguf file has no model card; leave it out")
        return found
