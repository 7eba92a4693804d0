"""Save, verify, load, list and prune checkpoints. Nothing is trusted before its contract and digest agree.

A step folder holds `model.safetensors`, `training.safetensors` and, written last, `manifest.json`. It
counts only if it has its name (the temporary folder was renamed) and verifies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
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
GONE = "does not exist; expected a run folder, a step folder or a model file"
LISTINGS = 5
"""How often an empty run is listed: a listing can miss a name that comes and one that goes."""
TRIES = 100
"""How often a reader looks again where a trainer prunes the steps that it was about to read."""


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


def model_bytes(model: Transformer, weights: Mapping[str, Tensor] | None = None) -> bytes:
    """The content of `model.safetensors`; `weights` by name where the model itself is cut over ranks."""
    return _to_bytes(weights or dict(model.named_parameters()), {"model": asdict(model.config)})


def model_info(model: Transformer) -> str:
    """What stands under the `tinylm` key of a model file: shape, format and contract, canonical JSON."""
    return _info({"model": asdict(model.config)})


def save_step(
    run: Path,
    step: int,
    model: Transformer,
    training: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    *,
    replace: bool = False,
    weights: Mapping[str, Tensor] | None = None,
    agree: Callable[[], None] | None = None,
) -> Path:
    """Write the checkpoint of a step: a temporary folder, manifest last, fsync, rename. Returns the folder.

    `training` is the optimizer's state by name; `manifest` is what else a resume needs. An existing step
    raises FileExistsError, unless `replace`. `weights`: those of the model, where it is cut over ranks.
    `agree` is called before the rename; if it raises, nothing takes its name.
    """
    target = step_folder(run, step)
    contents = {MODEL: model_bytes(model, weights), TRAINING: _to_bytes(training, {"step": step})}
    listed = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in contents.items()
    }
    own = {"format": files.FORMAT, "contract": contract.contract(), "step": step, "files": listed}
    with files.new_folder(target, replace=replace) as folder:
        for name, data in contents.items():
            files.write_new(folder / name, data)
        files.write_new(folder / MANIFEST, files.readable_json(files.seal({**manifest, **own})))
        if agree is not None:
            agree()
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
        _check_file(folder / name, *_listed(manifest, name, path))
    return manifest


def _check_file(path: Path, size: int, digest: str) -> None:
    """Raise CheckpointError unless a file has the size and the SHA-256 that the manifest gives."""
    with _readable(path):
        found = path.stat().st_size
        if found != size:
            raise CheckpointError(f"{path}: {found:,} bytes, expected {size:,}; the file was cut or extended")
        if files.sha256_file(path) != digest:
            raise _other_digest(path)


def _other_digest(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: its SHA-256 is not that of the manifest; the file was damaged")


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
    try:
        entries = list(run.iterdir())
    except FileNotFoundError:
        raise CheckpointError(f"{run}: {GONE}") from None
    for entry in entries:
        match = STEP_FOLDER.fullmatch(entry.name)
        if match and entry.is_dir():
            found.append((int(match[1]), entry))
    return sorted(found, reverse=True)


def is_being_replaced(run: Path) -> bool:
    """Whether a process ended while it replaced a step, which `files.clean` will put back."""
    return any(kind == "old" and STEP_FOLDER.fullmatch(name) for _, kind, name in files.left_behind(run))


def newest_step(run: Path) -> Checkpoint:
    """The highest step that verifies, with what was skipped; raises CheckpointError if there is none.

    A trainer may save and prune meanwhile: where a listed step is gone, the steps are listed again.
    """
    listings = 1
    for _ in range(TRIES):
        skipped: list[str] = []
        gone = False
        for _, folder in list_steps(run):
            try:
                return Checkpoint(folder / MODEL, verify_step(folder), tuple(skipped))
            except (CheckpointError, ContractError) as error:
                gone = not folder.exists()
                if gone:
                    break
                skipped.append(str(error))
        if gone:
            continue
        if not skipped and listings < LISTINGS:
            listings += 1  # one can miss both the new name, not there yet, and the old one, just gone
            continue
        if skipped:
            raise CheckpointError(f"{run}: no step verifies ({'; '.join(skipped)})")
        raise CheckpointError(
            f"{run}: no step folder; expected step-00000000 or higher: train first, or name a model file"
        )
    raise CheckpointError(f"{run}: its steps are pruned faster than they can be read; stop its trainer first")


def find(path: str | os.PathLike[str]) -> Checkpoint:
    """What a CHECKPOINT argument means: a run (its newest verified step), a step folder, a model file."""
    path = Path(path)
    if path.is_file():
        beside = path.parent / MANIFEST
        return Checkpoint(path, verify_step(path.parent) if path.name == MODEL and beside.exists() else None)
    if (
        not path.is_dir()
    ):  # asked first: a folder that a trainer prunes meanwhile is gone, not of another kind
        problem = "is not a file or folder; expected a run, a step folder or a model file"
        raise CheckpointError(f"{path}: {problem if path.exists() else GONE}")
    if (path / MANIFEST).exists():
        return Checkpoint(path / MODEL, verify_step(path))
    if (path / "corpus.json").is_file():
        raise CheckpointError(f"{path}: is a corpus, expected a run folder, a step folder or a model file")
    if not list_steps(path) and (path / MODEL).is_file():
        return Checkpoint(path / MODEL, None)
    return newest_step(path)


def load_model(path: str | os.PathLike[str]) -> Transformer:
    """The model of a CHECKPOINT, on the CPU; ContractError or CheckpointError before a tensor is used."""
    return load(path)[1]


def load(path: str | os.PathLike[str]) -> tuple[Checkpoint, Transformer]:
    """What a CHECKPOINT argument means, and its model: a copy, from the bytes that were verified.

    Where a trainer prunes the step of a run before it was read, the next newer one is taken.
    """
    for _ in range(TRIES):
        found = find(path)
        try:
            return found, _load(found)
        except CheckpointError:
            if found.model_file.exists():
                raise
    raise CheckpointError(
        f"{path}: its steps are pruned faster than they can be read; stop its trainer first"
    )


def _load(found: Checkpoint) -> Transformer:
    model_file, manifest = found.model_file, found.manifest
    listed = None if manifest is None else _listed(manifest, MODEL, found.folder / MANIFEST)
    info, tensors = read_tensors(model_file, listed)
    config = ModelConfig.from_dict(info.get("model"), str(model_file))
    model = Transformer(config)
    if any(tensor.dtype == torch.float64 for tensor in tensors.values()):
        model.double()
    try:
        model.load_state(tensors, str(model_file))
    except ShapeError as error:
        raise CheckpointError(str(error)) from None
    return model


def load_training(found: Checkpoint) -> dict[str, Tensor]:
    """The optimizer's state of a verified step, by name; it must be of the step that the manifest says."""
    assert found.manifest is not None
    path = found.folder / TRAINING
    info, tensors = read_tensors(path, _listed(found.manifest, TRAINING, found.folder / MANIFEST))
    if info.get("step") != found.manifest["step"]:
        raise CheckpointError(
            f"{path}: is of step {info.get('step')!r}, expected {found.manifest['step']}; use an earlier step"
        )
    return tensors


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


def best_steps(run: Path) -> list[tuple[float, Path]]:
    """The steps of a run with the lowest recorded `validation` in bits per byte; the newer one where equal.

    Evaluations of different protocols cannot be compared (during a run a part of the held-out text is
    read, at its end all of it), so there is one best step for each protocol among those that are there.
    """
    best: dict[str, tuple[float, Path]] = {}
    for _, folder in list_steps(run):
        try:
            manifest = files.parse_json(_read(folder / MANIFEST), str(folder / MANIFEST))
            if not files.is_sealed(manifest):
                continue
            measured = manifest["validation"]
            bits, protocol = float(measured["bits_per_byte"]), str(measured["protocol"])
        except (CheckpointError, KeyError, TypeError, ValueError, AttributeError):
            continue  # not evaluated, or damaged: neither can be the best
        if protocol not in best or bits < best[protocol][0]:
            best[protocol] = bits, folder
    return list(best.values())


def prune(run: Path, keep: int) -> None:
    """Remove all steps but the newest `keep` and the best; call it after the newest one verified."""
    best = [folder for _, folder in best_steps(run)]
    for _, folder in list_steps(run)[keep:]:
        if folder not in best:
            files.remove_folder(folder)


def read_tensors(
    path: Path, listed: tuple[int, str] | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What stands under the `tinylm` key of a safetensors file, and its tensors (copies, on the CPU).

    Header, duplicates and contract are checked by this room before the tensors are looked at, and size
    and SHA-256 before that, where a manifest has `listed` them.
    """
    data = _read(path)
    if listed is not None and (len(data), hashlib.sha256(data).hexdigest()) != listed:
        raise _other_digest(path)
    info = read_header(data, str(path))
    return info, parse_tensors(data, str(path))


def parse_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file, all finite; its header was checked before."""
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(
            f"{where}: not a whole safetensors file ({error}); use an undamaged copy"
        ) from None
    except (KeyError, RuntimeError) as error:  # a number format that torch does not have
        raise CheckpointError(f"{where}: holds numbers that torch cannot read ({error})") from None
    for name, tensor in tensors.items():
        floats = tensor.is_floating_point() and tensor.dtype.itemsize > 1  # of one byte: refused by dtype
        if floats and not torch.isfinite(tensor).all():
            raise CheckpointError(f"{where}: {name} holds values that are not finite; use an earlier step")
    return tensors


def read_header(data: bytes, where: str) -> dict[str, Any]:
    """Check the header of a safetensors file and the contract in it; returns what the `tinylm` key holds."""
    info: dict[str, Any] = parse_header(data, where)[1]
    contract.verify(info.get("contract") if isinstance(info, dict) else None, where)
    if type(info.get("format")) is not int or info["format"] != files.FORMAT:
        raise CheckpointError(f"{where}: format is {info.get('format')!r}, expected {files.FORMAT}")
    return info


def parse_header(data: bytes, where: str) -> tuple[dict[str, Any], Any]:
    """The header of a safetensors file without duplicates, and what its `tinylm` key holds ({} without).

    Whoever wrote the file: no contract is asked for. Raises CheckpointError where it is not whole.
    """
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
    return header, info


def _to_bytes(tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> bytes:
    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(copies, {KEY: _info(info)})


def _info(info: Mapping[str, Any]) -> str:
    body: dict[str, Any] = {**info, "format": files.FORMAT, "contract": contract.contract()}
    return files.canonical_json(body).decode("ascii")


def _read(path: Path) -> bytes:
    with _readable(path), files.named(path):
        return path.read_bytes()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A file that is not there, is no file, or that its disk cannot read: the checkpoint is not whole."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path}: does not exist; the checkpoint is not whole") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a folder, expected a file; the checkpoint is not whole") from None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); the disk may be failing") from None
