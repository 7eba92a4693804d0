"""How tests find, load and run the stage scripts."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
STAGES = ROOT / "stages"
SHARED = ROOT.parent / "shared"


def stage_path(number: int) -> Path:
    """The script of a stage; there is exactly one for each number."""
    found = sorted(STAGES.glob(f"stage_{number:02d}_*.py"))
    if len(found) != 1:
        raise LookupError(f"{STAGES}: expected one script stage_{number:02d}_*.py, found {len(found)}")
    return found[0]


def load_stage(number: int) -> ModuleType:
    """The script of a stage as a module, loaded from its path."""
    path = stage_path(number)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise LookupError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


def run_stage(module: ModuleType, *arguments: str) -> tuple[int, str]:
    """Run `STAGE.main(experiment, arguments)`; returns the exit code and what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code: int = module.STAGE.main(module.experiment, list(arguments))
    return code, printed.getvalue()


def page_arguments(number: int) -> Sequence[str]:
    """The arguments that compare a stage's page with the run."""
    return ("--check-page", str(stage_path(number).with_suffix(".md")))
