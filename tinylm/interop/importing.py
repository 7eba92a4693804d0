"""Import: a model that was fine-tuned elsewhere becomes the first step of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinylm import checkpoint, files
from tinylm.contract import contract
from tinylm.errors import ConfigError
from tinylm.interop.huggingface_reading import read_huggingface
from tinylm.model import Transformer, parameter_count


@dataclass(frozen=True)
class ImportResult:
    """The run that was made, its model, and what a user should know of it."""

    run: Path
    model: Transformer
    notes: tuple[str, ...]


def import_model(folder: str | Path, run: str | Path) -> ImportResult:
    """Make a run of a Hugging Face folder of Qwen3's shape and our contract: `run`/step-00000000.

    The run can be evaluated and generated from, and training starts from it with `init`; it has no corpus
    and no optimizer, so it cannot be resumed. Raises ConfigError for a `run` that exists, and what
    import_huggingface raises; nothing is left behind then.
    """
    folder, run = Path(folder), Path(run)
    if run.exists() or run.is_symlink():
        raise ConfigError(f"run is {run}, which exists; choose another place, or remove it first")
    found = read_huggingface(folder)
    imported = {"format": "huggingface", "files": dict(found.digests)}
    with files.new_folder(run) as temporary:
        step = checkpoint.save_step(temporary, 0, found.model, {}, {"imported": imported})
        checkpoint.verify_step(step)
        about = {
            "format": files.FORMAT,
            "contract": contract(),
            "imported": {**imported, "from": folder.as_posix()},
            "parameters": parameter_count(found.model.config),
        }
        files.write_new(temporary / "run.json", files.readable_json(about))
    return ImportResult(run, found.model, found.notes)
