"""The model card of an export: what the model is, how well it predicts, and code that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinylm.checkpoint import Checkpoint
from tinylm.config import ModelConfig
from tinylm.contract import contract
from tinylm.errors import CheckpointError
from tinylm.evaluate import Evaluation
from tinylm.metrics import METRICS, read_metrics
from tinylm.model import parameter_count


@dataclass(frozen=True)
class Origin:
    """What is known of a model beside its weights; None where nothing was recorded."""

    name: str = "model"
    step: int | None = None
    steps: int | None = None
    """Steps that the run was to have."""
    corpus: str | None = None
    """The digest of the corpus that it was trained on."""
    recorded: dict[str, Any] | None = None
    """The evaluation that the run's metrics hold for this step."""
    measured: Evaluation | None = None
    """An evaluation made for the card."""
    measured_on: str | None = None
    """The digest of the corpus of that evaluation."""
    imported: bool = False
    """Whether the weights were made elsewhere."""


def origin_of(checkpoint: Checkpoint) -> Origin:
    """What the run of a checkpoint recorded; raises CheckpointError for a damaged log."""
    folder, manifest = checkpoint.folder.resolve(), checkpoint.manifest
    if manifest is None:
        lone = checkpoint.model_file.name != "model.safetensors"
        return Origin(checkpoint.model_file.stem if lone else folder.name)
    run, step, config = folder.parent, manifest["step"], manifest.get("config")
    if not isinstance(config, dict):
        return Origin(run.name, imported=True)
    recorded = recorded_at(run, step)
    return Origin(run.name, step, config.get("steps"), manifest.get("corpus"), recorded)


def recorded_at(run: Path, step: int) -> dict[str, Any] | None:
    """The evaluation in a run's metrics that was made at `step`, or None."""
    if not (run / METRICS).is_file():
        return None
    for row in read_metrics(run):
        if not isinstance(row, dict):
            raise CheckpointError(f"{run / METRICS}: holds {row!r:.60}, expected rows; the log was damaged")
        if row.get("step") == step and isinstance(row.get("validation"), dict):
            return dict(row["validation"])
    return None


def model_card(config: ModelConfig, origin: Origin) -> str:
    """README.md, with the front matter that the Hugging Face hub reads."""
    shape = [
        ("parameters", f"{parameter_count(config):,}"),
        ("layers x width", f"{config.layers} x {config.width}"),
        ("width of the MLP", f"{config.mlp_width}"),
        ("heads (query, key/value) and their size", f"{config.heads}, {config.kv_heads}; {config.head_size}"),
        ("window", f"{config.window:,} tokens, which are bytes"),
        ("head", "the embedding (tied)" if config.tied else "a matrix of its own (untied)"),
        ("document policy", f"`{config.policy}`: {POLICY[config.policy]}"),
    ]
    return f"""---
library_name: transformers
pipeline_tag: text-generation
tags:
- byte-level
- tinylm
---

# {origin.name}

A small decoder-only language model that reads and writes UTF-8 bytes, trained with tinylm. There is no
tokenizer to speak of: a token is a byte, and one more token, the document boundary, stands between documents.
The weights are in Qwen3's shape, so transformers runs them as `Qwen3ForCausalLM`.

{table(shape)}

## How well it predicts

{predictions(origin)}

## Tokens

Ids 0 to 255 are the byte values, id 256 is the boundary: a document is `256`, its bytes, `256`. Text never
becomes 256; `<|doc|>`, typed, is seven bytes. There is no other special token.

{table([(name.replace("_", " "), f"`{value}`") for name, value in contract().items()])}

## With transformers (4.57 or 5)

```python
{CODE}```

A prompt begins with the boundary, as every document did in training; generation ends with the next one.

## With tinylm

```bash
tinylm generate . "The "       # this folder is a checkpoint
tinylm import . RUN            # after fine-tuning elsewhere: back to a run that trains on
```

## What to know

- Keep prompt and continuation within {config.window:,} tokens. tinylm re-reads the last half of its window
  when that is full; transformers goes on with positions that the model has never seen.
- Bytes that are not UTF-8 decode to U+FFFD in transformers. The ids keep the truth.
- {SAMPLED}
"""


POLICY = {
    "cross": "attention reads across boundaries",
    "mask": "a document never saw the others of its row, so give the model one document at a time",
    "reset": "a document was always alone in its row, so give the model one document at a time",
}

SAMPLED = """The same prompt samples other text in transformers than in tinylm, whose draws depend on the
  seed and the number of the token alone; the distributions are the same."""

CODE = """\
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # the folder of this file
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = torch.tensor([[256, *tokenizer("The ")["input_ids"]]])
out = model.generate(ids, attention_mask=torch.ones_like(ids))
print(tokenizer.decode(out[0], skip_special_tokens=True))
"""


def predictions(origin: Origin) -> str:
    """Bits per byte with the protocol and the text that they belong to, or that nothing is known of them."""
    parts = []
    if origin.imported:
        parts.append("These weights were imported: what they were last trained on is not recorded.")
    if origin.step is not None:
        of = f" of {origin.steps:,}" if origin.steps is not None else ""
        parts.append(f"These are the weights after step {origin.step:,}{of}.")
    if origin.corpus is not None:
        parts.append(f"They were trained on the corpus with the digest `{origin.corpus}`.")
    if origin.recorded is not None:
        parts.append(measures(origin.recorded, "Recorded by the run, on the held-out part of that corpus:"))
    if origin.measured is not None:
        values = origin.measured.to_dict()
        said = (
            f"Measured for this card on the held-out part of the corpus `{origin.measured_on}`\n"
            f"(digest of that part: `{origin.measured.split_digest}`), in {origin.measured.precision}:"
        )
        window = f"{origin.measured.window}, policy {origin.measured.policy}"
        parts.append(measures({**values, "protocol": f"{values['protocol']}, window {window}"}, said))
    if origin.recorded is None and origin.measured is None:
        parts.append(
            "How well it predicts is not recorded: the checkpoint came without an evaluation of this step.\n"
            "`tinylm evaluate . DATA` measures it, and `tinylm export` writes it here with `--data DATA`."
        )
    return "\n\n".join(parts)


def measures(values: dict[str, Any], said: str) -> str:
    """The numbers of one evaluation as a table under the sentence `said`."""
    end = values.get("bits_per_boundary")
    rows = [
        ("bits per byte", number(values.get("bits_per_byte"))),
        ("without boundaries", number(values.get("bits_per_byte_without_boundaries"))),
        ("bits per boundary", "none ends in it" if end is None else number(end)),
        ("bytes and document ends", f"{values.get('bytes'):,} and {values.get('boundaries'):,}"),
        ("protocol", str(values.get("protocol"))),
    ]
    return f"{said}\n\n{table(rows)}"


def number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float | int) else str(value)


def table(rows: list[tuple[str, str]]) -> str:
    """A Markdown table of two columns without a heading."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
