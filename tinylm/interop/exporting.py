"""Export: find a checkpoint, write it in another program's format, let that program check it, then rename."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path

from tinylm import checkpoint, files
from tinylm.config import ExportConfig, Format, Kind
from tinylm.data import corpus_for
from tinylm.errors import ConfigError
from tinylm.evaluate import Evaluation, evaluate
from tinylm.interop.card import origin_of
from tinylm.interop.shape import check_qwen3_shape

PROGRAMS = {"huggingface": "transformers", "gguf": "llama.cpp"}


@dataclass(frozen=True)
class ExportResult:
    """Where an export stands, what was exported, and a line per check that the other program made."""

    path: Path
    model_file: Path
    bytes: int
    checks: tuple[str, ...]
    evaluation: Evaluation | None


def export(
    path: str | Path, to: Format, out: str | Path, *, kind: Kind | None = None, data: str | None = None
) -> ExportResult:
    """Write a CHECKPOINT in another program's format to `out`: a folder (huggingface) or a file (gguf).

    `kind`: the numbers of a gguf file. `data`: also measure the model on this corpus, for the model card.
    The other program loads and compares the export before it takes its name; where that is not installed,
    the checks say so. Raises ConfigError for an `out` that exists and for a model that has no place there,
    CheckpointError where something does not verify; nothing is left behind then.
    """
    config = ExportConfig(to, kind, data).check()
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise ConfigError(f"out is {out}, which exists; choose another place, or remove it first")
    found, model = checkpoint.load(path)
    model.requires_grad_(False)
    for problem in found.skipped:
        warnings.warn(f"using {found.folder}, because {problem}", stacklevel=2)
    check_qwen3_shape(model.config, PROGRAMS[config.to])
    corpus = None if config.data is None else corpus_for(config.data)
    evaluation = None if corpus is None else evaluate(model, corpus.validation)
    origin = dataclasses.replace(
        origin_of(found), measured=evaluation, measured_on=None if corpus is None else corpus.digest
    )
    if config.to == "huggingface":
        from tinylm.interop.huggingface import verify_huggingface, write_huggingface

        with files.new_folder(out) as folder:
            write_huggingface(model, folder, origin)
            checks = verify_huggingface(model, folder)
        size = sum(file.stat().st_size for file in out.iterdir())
    else:
        from tinylm.interop.gguf import verify_gguf, write_gguf

        with files.new_file(out) as file:
            write_gguf(model, file, config.kind or "f32", origin.name)
            checks = verify_gguf(model, file, config.kind or "f32")
        size = out.stat().st_size
    return ExportResult(out, found.model_file, size, tuple(checks), evaluation)
