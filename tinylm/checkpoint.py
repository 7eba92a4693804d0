"""Save, verify, load, list and prune checkpoints. Nothing is trusted before its contract and digest agree.

A step folder holds `model.safetensors`, `training.safetensors` and, written last, `manifest.json`. It
counts only if it has its name (the temporary folder was renamed) and verifies.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from tinylm import contract, files
from tinylm.config import ModelConfig
from tinylm.errors import CheckpointError, ContractError
from tinylm.model import Transformer
from tinylm.shapes import state_problems
from tinylm.tensor_files import (
    Entry,
    Listed,
    Put,
    header_info,
    in_order,
    load_model_file,
    other_digest,
    pieces,
    read_each,
    read_info,
    read_tensors,
    readable,
    to_bytes,
)

MODEL = "model.safetensors"
TRAINING = "training.safetensors"
MANIFEST = "manifest.json"
STEP_FOLDER = re.compile(r"step-(\d{8})")
GONE = "does not exist; expected a run folder, a step folder or a model file"
LISTINGS = 5
"""How often an empty run is listed: a listing can miss a name that comes and one that goes."""
TRIES = 100
"""How often a reader looks again where a trainer prunes the steps that it was about to read."""

A = TypeVar("A")
B = TypeVar("B")


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
    return to_bytes(dict(model.named_parameters()), {"model": model.config.to_dict()})


def model_info(model: Transformer) -> str:
    """What stands under the `tinylm` key of a model file: shape, format and contract, canonical JSON."""
    return header_info({"model": model.config.to_dict()})


def save_step(
    run: Path,
    step: int,
    model: Transformer,
    training: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    *,
    replace: bool = False,
    whole: Callable[[Tensor], Tensor] = Tensor.detach,
    agree: Callable[[], None] | None = None,
) -> Path:
    """Write the checkpoint of a step: a temporary folder, manifest last, fsync, rename. Returns the folder.

    `training` is the optimizer's state by name; `manifest` is what else a resume needs. An existing step
    raises FileExistsError, unless `replace`. Each tensor is written before the next one is made whole:
    `whole` gets them in the order of `save_order`, and returns them where a rank holds rows only.
    `agree` is called before the rename; if it raises, nothing takes its name.
    """
    target = step_folder(run, step)
    weights = dict(model.named_parameters())
    contents = {
        MODEL: pieces(weights, {"model": model.config.to_dict()}, whole),
        TRAINING: pieces(training, {"step": step}, whole),
    }
    own = {"format": files.FORMAT, "contract": contract.contract(), "step": step}
    with files.new_folder(target, replace=replace) as folder:
        listed = {}
        for name, parts in contents.items():
            size, digest = files.write_pieces(folder / name, parts)
            listed[name] = {"bytes": size, "sha256": digest}
        own["files"] = listed
        files.write_new(folder / MANIFEST, files.readable_json(files.seal({**manifest, **own})))
        if agree is not None:
            agree()
    return target


def save_order(model: Transformer, training: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensors of a step in the order in which `save_step` makes them whole."""
    weights = dict(model.named_parameters())
    return [kept[name] for kept in (weights, training) for name in in_order(kept)]


def verify_step(folder: Path) -> dict[str, Any]:
    """The manifest of a step folder whose every byte agrees with it; a CheckpointError names the file."""
    return _look(folder, _check_file, _check_file)[0]


def _look(
    folder: Path, of_model: Callable[[Path, Listed], A], of_training: Callable[[Path, Listed], B]
) -> tuple[dict[str, Any], A, B]:
    """The manifest of a step folder, and what two functions make of its files while they verify them.

    Each gets a path and the size and SHA-256 that the manifest gives. They work side by side, as hashing
    and reading let another thread go on; what they made is handed on once both files have agreed.
    """
    manifest = _manifest(folder)
    listed = {name: _listed(manifest, name, folder / MANIFEST) for name in (MODEL, TRAINING)}
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(of_training, folder / TRAINING, listed[TRAINING])
        model = of_model(folder / MODEL, listed[MODEL])
        return manifest, model, waiting.result()


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a step folder: sealed, of our format and contract, and of the step of that name."""
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
    return manifest


def _check_file(path: Path, listed: Listed) -> None:
    """Raise CheckpointError unless a file has the size and the SHA-256 that the manifest gives."""
    size, digest = listed
    with readable(path):
        found = path.stat().st_size
        if found != size:
            raise CheckpointError(f"{path}: {found:,} bytes, expected {size:,}; the file was cut or extended")
        if files.sha256_file(path) != digest:
            raise other_digest(path)


def _listed(manifest: Mapping[str, Any], name: str, path: Path) -> Listed:
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
    return _newest(run, lambda folder: (verify_step(folder), None))[0]


def _newest(run: Path, of_step: Callable[[Path], tuple[dict[str, Any], A]]) -> tuple[Checkpoint, A]:
    """As `newest_step`, and what was made of the step, by the function that verifies it."""
    listings = 1
    for _ in range(TRIES):
        skipped: list[str] = []
        gone = False
        for _, folder in list_steps(run):
            try:
                manifest, made = of_step(folder)
                return Checkpoint(folder / MODEL, manifest, tuple(skipped)), made
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
    return _search(path, lambda folder: (verify_step(folder), None), lambda alone: None)[0]


def _search(
    path: str | os.PathLike[str],
    of_step: Callable[[Path], tuple[dict[str, Any], A]],
    of_file: Callable[[Path], A],
) -> tuple[Checkpoint, A]:
    """As `find`, and what was made of the step by the function that verifies it, or of a model file alone."""
    path = Path(path)

    def step(folder: Path, model_file: Path) -> tuple[Checkpoint, A]:
        manifest, made = of_step(folder)
        return Checkpoint(model_file, manifest), made

    if path.is_file():
        if path.name == MODEL and (path.parent / MANIFEST).exists():
            return step(path.parent, path)
        return Checkpoint(path, None), of_file(path)
    if (
        not path.is_dir()
    ):  # asked first: a folder that a trainer prunes meanwhile is gone, not of another kind
        problem = "is not a file or folder; expected a run, a step folder or a model file"
        raise CheckpointError(f"{path}: {problem if path.exists() else GONE}")
    if (path / MANIFEST).exists():
        return step(path, path / MODEL)
    if (path / "corpus.json").is_file():
        raise CheckpointError(f"{path}: is a corpus, expected a run folder, a step folder or a model file")
    if not list_steps(path) and (path / MODEL).is_file():
        return Checkpoint(path / MODEL, None), of_file(path / MODEL)
    return _newest(path, of_step)


def load_model(path: str | os.PathLike[str]) -> Transformer:
    """The model of a CHECKPOINT, on the CPU; ContractError or CheckpointError before a tensor is used."""
    return load(path)[1]


def load(path: str | os.PathLike[str]) -> tuple[Checkpoint, Transformer]:
    """What a CHECKPOINT argument means, and its model: a copy, made of the bytes that were verified.

    Every file is read once. Where a trainer prunes the step of a run before it was read, the next newer
    one is taken; a newest step that does not verify is skipped.
    """

    def of_step(folder: Path) -> tuple[dict[str, Any], Transformer]:
        return _look(folder, load_model_file, _check_file)[:2]

    return _search(path, of_step, load_model_file)


def load_step(folder: Path) -> tuple[Checkpoint, Transformer, dict[str, Tensor]]:
    """A step folder to go on from: its model, and the optimizer's state by name. Every file is read once."""
    manifest, model, (info, training) = _look(folder, load_model_file, read_tensors)
    found = Checkpoint(folder / MODEL, manifest)
    _check_step(found, info)
    return found, model, training


def load_training(found: Checkpoint) -> dict[str, Tensor]:
    """The optimizer's state of a verified step, by name; it must be of the step that the manifest says."""
    assert found.manifest is not None
    path = found.folder / TRAINING
    info, tensors = read_tensors(path, _listed(found.manifest, TRAINING, found.folder / MANIFEST))
    _check_step(found, info)
    return tensors


def _check_step(found: Checkpoint, info: Mapping[str, Any]) -> None:
    """Raise CheckpointError where an optimizer's state is of another step than the manifest."""
    assert found.manifest is not None
    if info.get("step") != found.manifest["step"]:
        raise CheckpointError(
            f"{found.folder / TRAINING}: is of step {info.get('step')!r}, expected "
            f"{found.manifest['step']}; use an earlier step"
        )


def model_config(found: Checkpoint) -> ModelConfig:
    """The shape of a model, as its file says; `fill_model` compares it with what it then reads."""
    info = read_info(found.model_file)
    return ModelConfig.from_dict(info.get("model"), str(found.model_file))


def fill_model(found: Checkpoint, config: ModelConfig, weights: Mapping[str, Tensor], put: Put) -> None:
    """Read the weights of a model of shape `config` one by one, each into its place, or some rows of it.

    For ranks that hold rows only. Refuses what `load` refuses; `weights` may be used once this returns.
    """

    def checked(info: Any, entries: Mapping[str, Entry]) -> Mapping[str, Tensor]:
        where = str(found.model_file)
        if ModelConfig.from_dict(info.get("model"), where) != config:
            raise CheckpointError(f"{where}: was replaced while it was read; start again")
        wide = any(entry.dtype == torch.float64 for entry in entries.values())
        dtype = torch.float64 if wide else torch.float32
        wanted = {name: Entry(tuple(place.shape), dtype) for name, place in weights.items()}
        if problems := state_problems(entries, wanted):
            raise CheckpointError(f"{where}: {'; '.join(problems)}")
        return weights

    listed = None if found.manifest is None else _listed(found.manifest, MODEL, found.folder / MANIFEST)
    read_each(found.model_file, listed, checked, put)


def fill_training(found: Checkpoint, state: Mapping[str, Tensor], put: Put) -> None:
    """Read the optimizer's state of a verified step as `fill_model` reads weights."""
    assert found.manifest is not None
    path = found.folder / TRAINING

    def checked(info: Any, entries: Mapping[str, Entry]) -> Mapping[str, Tensor]:
        _check_step(found, info)
        wanted = {name: Entry(tuple(place.shape), place.dtype) for name, place in state.items()}
        if problems := state_problems(entries, wanted):
            raise CheckpointError(f"{path}: {'; '.join(problems)}")
        return state

    read_each(path, _listed(found.manifest, TRAINING, found.folder / MANIFEST), checked, put)


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


def _read(path: Path) -> bytes:
    with readable(path), files.named(path):
        return path.read_bytes()
