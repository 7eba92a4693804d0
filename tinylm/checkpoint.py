"""Save, verify, load, list and prune checkpoints. Nothing is trusted before its contract and digest agree.

A step folder holds `model.safetensors`, `training.safetensors` and, written last, `manifest.json`. It
counts only if it has its name (the temporary folder was renamed) and verifies.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tinylm import contract, files
from tinylm.config import ModelConfig
from tinylm.errors import CheckpointError, ContractError, ShapeError
from tinylm.model import Transformer

MODEL = "model.safetensors"
TRAINING = "training.safetensors"
MANIFEST = "manifest.json"
KEY = "tinylm"
STEP_FOLDER = re.compile(r"step-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """A place with verified weights: the model file, and the manifest if it stands in a step folder."""

    model_file: Path
    manifest: dict[str, Any] | None
    skipped: tuple[str, ...] = ()
    """Newer steps of the run that did not verify, each with the reason."""

    @property
    def folder(self) -> Path:
        return self.model_file.parent


def step_folder(run: Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return run / f"step-{step:08d}"


def save_model(path: Path, model: Transformer) -> None:
    """Write a model file that stands alone: weights, contract and shape; equal states give equal bytes."""
    files.write_atomic(path, model_bytes(model))


def model_bytes(model: Transformer) -> bytes:
    """The content of `model.safetensors`."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return _to_bytes(tensors, {"model": asdict(model.config)})


def save_step(
    run: Path, step: int, model: Transformer, training: Mapping[str, Tensor], manifest: Mapping[str, Any]
) -> Path:
    """Write the checkpoint of a step: a temporary folder, manifest last, fsync, rename. Returns the folder.

    `training` is the optimizer's state by name; `manifest` is what else a resume needs.
    """
    target = step_folder(run, step)
    contents = {MODEL: model_bytes(model), TRAINING: _to_bytes(training, {"step": step})}
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in contents.items()
    }
    own = {"format": files.FORMAT, "contract": contract.contract(), "step": step, "files": listed}
    with files.new_folder(target) as folder:
        for name, data in contents.items():
            files.write_new(folder / name, data)
        files.write_new(folder / MANIFEST, files.readable_json(files.seal({**manifest, **own})))
    return target


def verify_step(folder: Path) -> dict[str, Any]:
    """The manifest of a step folder whose every byte agrees with it; a CheckpointError names the file."""
    path = folder / MANIFEST
    data = _read(path)
    manifest = files.parse_json(data, str(path))
    if not isinstance(manifest, dict) or not files.is_written(data, manifest):
        raise CheckpointError(
            f"{path}: its digest does not match its content; the file was damaged or edited"
        )
    if type(manifest.get("format")) is not int or manifest["format"] != files.FORMAT:
        raise CheckpointError(f"{path}: format is {manifest.get('format')!r}, expected {files.FORMAT}")
    contract.verify(manifest.get("contract"), str(path))
    if type(manifest.get("step")) is not int or step_folder(folder.parent, manifest["step"]) != folder:
        raise CheckpointError(f"{path}: is of step {manifest.get('step')!r}; the folder was renamed")
    for name in (MODEL, TRAINING):
        data, (size, digest) = _read(folder / name), _listed(manifest, name, path)
        if len(data) != size:
            raise CheckpointError(
                f"{folder / name}: {len(data):,} bytes, expected {size:,}; the file was cut or extended"
            )
        if hashlib.sha256(data).hexdigest() != digest:
            raise CheckpointError(
                f"{folder / name}: its SHA-256 is not that of the manifest; the file was damaged"
            )
    return manifest


def _listed(manifest: Mapping[str, Any], name: str, path: Path) -> tuple[int, str]:
    """Size and SHA-256 that a manifest gives for a file."""
    listed = manifest.get("files")
    entry = listed.get(name) if isinstance(listed, dict) else None
    if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or "sha256" not in entry:
        raise CheckpointError(f"{path}: lists no size and SHA-256 of {name}; it is not a whole manifest")
    return entry["bytes"], entry["sha256"]


def list_steps(run: Path) -> list[tuple[int, Path]]:
    """Step folders of a run that have their name, newest first; whether they verify is not looked at."""
    found = []
    for entry in run.iterdir():
        match = STEP_FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            found.append((int(match[1]), entry))
    return sorted(found, reverse=True)


def newest_step(run: Path) -> Checkpoint:
    """The highest step that verifies, with what was skipped; raises CheckpointError if there is none."""
    skipped: list[str] = []
    for _, folder in list_steps(run):
        try:
            return Checkpoint(folder / MODEL, verify_step(folder), tuple(skipped))
        except (CheckpointError, ContractError) as error:
            skipped.append(str(error))
    if skipped:
        raise CheckpointError(f"{run}: no step verifies ({'; '.join(skipped)})")
    raise CheckpointError(
        f"{run}: no step folder; expected step-00000000 or higher: train first, or name a model file"
    )


def find(path: str | os.PathLike[str]) -> Checkpoint:
    """What a CHECKPOINT argument means: a run (its newest verified step), a step folder, a model file."""
    path = Path(path)
    if path.is_file():
        beside = path.parent / MANIFEST
        return Checkpoint(path, verify_step(path.parent) if path.name == MODEL and beside.exists() else None)
    if not path.exists():
        raise CheckpointError(f"{path}: does not exist; expected a run folder, a step folder or a model file")
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: is not a file or folder; expected a run, a step folder or a model file"
        )
    if (path / MANIFEST).exists():
        return Checkpoint(path / MODEL, verify_step(path))
    if (path / "corpus.json").is_file():
        raise CheckpointError(f"{path}: is a corpus, expected a run folder, a step folder or a model file")
    if not list_steps(path) and (path / MODEL).is_file():
        return Checkpoint(path / MODEL, None)
    return newest_step(path)


def load_model(path: str | os.PathLike[str]) -> Transformer:
    """The model of a CHECKPOINT, on the CPU; ContractError or CheckpointError before a tensor is used."""
    model_file = find(path).model_file
    info, tensors = read_tensors(model_file)
    config = ModelConfig.from_dict(info.get("model"), str(model_file))
    model = Transformer(config)
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
        model.double()
    try:
        model.load_state(tensors, str(model_file))
    except ShapeError as error:
        raise CheckpointError(str(error)) from None
    return model


def load_training(folder: Path) -> dict[str, Tensor]:
    """The optimizer's state of a step folder, by name."""
    return read_tensors(folder / TRAINING)[1]


def set_aside_after(run: Path, step: int) -> list[Path]:
    """Give the step folders after `step`, which did not verify, other names; returns those.

    A resumed run will write these steps again; what is left of the damaged ones is not thrown away.
    """
    moved = []
    for _, folder in [entry for entry in list_steps(run) if entry[0] > step]:
        aside = folder.with_name(f"damaged-{folder.name}-{secrets.token_hex(3)}")
        with files.named(folder):
            os.rename(folder, aside)
        moved.append(aside)
    return moved


def prune(run: Path, keep: int) -> None:
    """Remove all but the newest `keep` steps; call it after the newest one verified.

    A folder first leaves its name, for good, so that neither a reader nor a power cut finds half of a step.
    """
    aside = []
    for _, folder in list_steps(run)[keep:]:
        aside.append(folder.with_name(f".old-{folder.name}-{secrets.token_hex(3)}"))
        with files.named(folder):
            os.rename(folder, aside[-1])
    if aside:
        files.sync_folder(run)
    for folder in aside:
        shutil.rmtree(folder, ignore_errors=True)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What stands under the `tinylm` key of a safetensors file, and its tensors (copies, on the CPU).

    Header, duplicates and contract are checked by this room before the tensors are looked at.
    """
    data = _read(path)
    info = read_header(data, str(path))
    try:
        tensors = safetensors.torch.load(data)
    except (SafetensorError, KeyError, RuntimeError) as error:  # the latter two: dtypes unknown to torch
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({error}); use an undamaged copy"
        ) from None
    for name, tensor in tensors.items():
        floats = tensor.is_floating_point() and tensor.dtype.itemsize > 1  # of one byte: refused by dtype
        if floats and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds values that are not finite; use an earlier step")
    return info, tensors


def read_header(data: bytes, where: str) -> dict[str, Any]:
    """Check the header of a safetensors file and the contract in it; returns what the `tinylm` key holds."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8 or data[8:9] != b"{":
        raise CheckpointError(
            f"{where}: {len(data):,} bytes are not a safetensors file, or it was cut; use a whole copy"
        )
    header = files.parse_json(data[8 : 8 + size], f"{where} (header)", ContractError)
    entries = [entry for name, entry in header.items() if name != "__metadata__"]
    try:
        ends = [entry["data_offsets"][1] for entry in entries]
    except (KeyError, IndexError, TypeError):
        ends = [None]
    if not all(type(end) is int for end in ends):
        raise CheckpointError(f"{where}: a tensor has no data_offsets; not a whole safetensors header")
    end = max(ends, default=0)
    if 8 + size + end != len(data):
        raise CheckpointError(
            f"{where}: {len(data):,} bytes, expected {8 + size + end:,}; the file was cut or extended"
        )
    metadata = header.get("__metadata__")
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    info = files.parse_json(text, f"{where} ({KEY})", ContractError) if isinstance(text, str) else {}
    contract.verify(info.get("contract") if isinstance(info, dict) else None, where)
    if type(info.get("format")) is not int or info["format"] != files.FORMAT:
        raise CheckpointError(f"{where}: format is {info.get('format')!r}, expected {files.FORMAT}")
    return info


def _to_bytes(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> bytes:
    body: dict[str, Any] = {**info, "format": files.FORMAT, "contract": contract.contract()}
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies, {KEY: files.canonical_json(body).decode("ascii")})


def _read(path: Path) -> bytes:
    try:
        with files.named(path):
            return path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: does not exist; the checkpoint is not whole") from None
