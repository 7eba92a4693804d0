"""From a checkpoint to what the server serves."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from tinylm import __version__, checkpoint
from tinylm.config import ServeConfig
from tinylm.devices import choose_device
from tinylm.files import sha256_file
from tinylm.model import Transformer, parameter_count
from tinylm.serve.app import Served


def load_served(path: str | os.PathLike[str], config: ServeConfig) -> tuple[Served, Transformer, str]:
    """What answers say of a model, the model on its device, and the device.

    Raises ContractError or CheckpointError before a tensor is used. Warns where newer steps of a run did
    not verify.
    """
    device = choose_device(config.device)
    found, model = checkpoint.load(path)
    for problem in found.skipped:
        warnings.warn(f"using {found.folder}, because {problem}", stacklevel=2)
    step = None if found.manifest is None else found.manifest.get("step")
    folder = found.folder.parent if found.folder.name.startswith("step-") else found.folder
    served = Served(
        name=config.alias or Path(folder).resolve().name,
        config=model.config,
        parameters=parameter_count(model.config),
        size=found.model_file.stat().st_size,
        digest=sha256_file(found.model_file),
        step=step,
        version=__version__,
    )
    return served, model.to(device).requires_grad_(False), device
