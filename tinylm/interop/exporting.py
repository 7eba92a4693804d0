"""Export: find a checkpoint, write it in another program's format, let that program check it, then rename."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from tinylm import checkpoint, files
from tinylm.config import ExportConfig
from tinylm.data import corpus_for
from tinylm.errors import ConfigError
from tinylm.evaluate import Evaluation, evaluate
from tinylm.interop.card import origin_of
from tinylm.interop.shape import check_qwen3_shape


@dataclass(frozen=True)
class ExportResult:
    """Where an export stands, what was exported, and a line per check that the other program made."""

    path: Path
    model_file: Path
    bytes: int
    checks: tuple[str, ...]
    evaluation: Evaluation | None


def export(checkpoint_path: str | Path, out: str | Path, config: ExportConfig) -> ExportResult:
    """Write a CHECKPOINT in the format of `config.to` to `out`, a folder (huggingface) or file (gguf).

    The other program loads and compares it before it takes its name; where that is not installed, the
    checks say so. Raises ConfigError for an `out` that exists and for a model that has no place there,
    CheckpointError where something does not verify; nothing is left behind then.
    """
    config.check()
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise ConfigError(f"out is {out}, which exists; choose another place, or remove it first")
    found = checkpoint.find(checkpoint_path)
    for problem in found.skipped:
        warnings.warn(f"using {found.folder}, because {problem}", stacklevel=2)
    model = checkpoint.load_model(found.model_file).requires_grad_(False)
    check_qwen3_shape(model.config, "transformers" if config.to == "huggingface" else "llama.cpp")
    evaluation = None if config.data is None else evaluate(model, corpus_for(config.data).validation)
    origin = origin_of(found, evaluation)
    if config.to == "huggingface":
        from tinylm.interop.huggingface import verify_huggingface, write_huggingface

        with files.new_folder(out) as folder:
            write_huggingface(model, folder, origin)
            checks = verify_huggingface(model, folder)
        size = sum(path.stat().st_size for path in out.iterdir())
    else:
        from tinylm.interop.gguf import (  # type: ignore[import-not-found, unused-ignore]
            verify_gguf,
            write_gguf,
        )

        with files.new_file(out) as path:
            write_gguf(model, path, config.kind or "f32", origin.name)
            checks = verify_gguf(model, path, config.kind or "f32")
        size = out.stat().st_size
    return ExportResult(out, found.model_file, size, tuple(checks), evaluation)
