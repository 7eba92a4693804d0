"""What a run goes on from, and what may have changed since: the same, or refused by name, or recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinylm import checkpoint, files
from tinylm.checkpoint import Checkpoint
from tinylm.config import INEXACT, RESUMABLE, TrainConfig, read_run_config
from tinylm.corpus import Corpus, open_corpus
from tinylm.devices import Machine, choose_machine, versions
from tinylm.distributed.launch import launched
from tinylm.errors import CheckpointError, ConfigError, CorpusError
from tinylm.locks import LOCK, OWNER, check_unlocked

Deviation = dict[str, Any]
"""{step, name, was, is}: from this step on a run is no longer bit for bit what it would have been."""

KEYS = ("config", "machine", "corpus", "versions", "metrics", "validation", "deviations")
"""What a resume needs of a manifest, besides the files of the step."""


@dataclass(frozen=True)
class Recalled:
    """A verified step, with the configuration and the machine to go on with."""

    found: Checkpoint
    step: int
    config: TrainConfig
    machine: Machine
    deviations: tuple[Deviation, ...]

    def recorded(self, key: str) -> Any:
        """What the manifest of the step says."""
        assert self.found.manifest is not None
        return self.found.manifest[key]


def check_changes(run: Path, changes: Mapping[str, Any]) -> None:
    """Raise ConfigError for every option that a resume cannot change."""
    fixed = [name for name in changes if name not in RESUMABLE + INEXACT]
    if fixed:
        allowed = ", ".join(map(flag, RESUMABLE + INEXACT))
        raise ConfigError(
            f"--resume goes on with a run as it is, and does not take {', '.join(map(flag, fixed))} (only "
            f"{allowed}); leave them out, or start another run from its weights: tinylm train DATA "
            f"--init {run}"
        )


def flag(name: str) -> str:
    """An option as it is written on the command line."""
    return "DATA" if name == "data" else f"--{name.replace('_', '-')}"


def check_is_run(folder: Path) -> None:
    """Raise CheckpointError if a folder holds nothing to go on from."""
    if folder.is_dir() and (checkpoint.list_steps(folder) or checkpoint.is_being_replaced(folder)):
        return
    if (folder / "run.json").is_file():
        raise CheckpointError(
            f"{folder}: this run ended before its first checkpoint, so there is nothing to go on from; start "
            f"it again with: tinylm train --config {folder / 'run.json'} --out ANOTHER-FOLDER"
        )
    raise CheckpointError(f"{folder}: holds no step-00000000 or higher; expected a folder of tinylm train")


def is_begun(folder: Path, config: TrainConfig) -> bool:
    """Whether a folder holds this run, begun before torchrun started it again, with a step to go on from.

    What was begun and has saved nothing is removed. Another run is left alone: its place is not free.
    """
    begun = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if not begun:
        return False
    if begun - {LOCK, OWNER}:
        recorded = read_run_config(str(folder / "run.json"))
        resolved = ("out", "stop_after", "minutes", "device")
        for field in dataclasses.fields(TrainConfig):
            asked = getattr(config, field.name)
            if field.name not in resolved and asked not in (None, getattr(recorded, field.name)):
                return False
    if checkpoint.list_steps(folder) or checkpoint.is_being_replaced(folder):
        return True
    check_unlocked(folder)
    shutil.rmtree(folder)
    return False


def patience_of(folder: Path) -> float:
    """How long the ranks of a run wait for each other, as far as its newest step says."""
    with contextlib.suppress(CheckpointError, OSError, KeyError, IndexError, TypeError, ValueError):
        newest = checkpoint.list_steps(folder)[0][1] / checkpoint.MANIFEST
        return float(files.parse_json(newest.read_bytes(), str(newest))["config"]["rank_timeout"])
    return TrainConfig(data="").rank_timeout


def recall(folder: Path, changes: Mapping[str, Any], note: Callable[[str], None]) -> Recalled:
    """The newest step of a run that verifies, and what to go on with. The caller holds the run's lock.

    Damaged newer steps are kept under another name. What differs from the record in a way that changes
    bits is noted and becomes a deviation; so do those of earlier resumes.
    """
    found = checkpoint.newest_step(folder)
    manifest = found.manifest
    assert manifest is not None
    where = str(found.folder / checkpoint.MANIFEST)
    if "imported" in manifest:
        raise CheckpointError(
            f"{folder}: was imported, so it holds no configuration, corpus or optimizer to go on with; "
            f"train its weights on with: tinylm train DATA --init {folder}"
        )
    if missing := [key for key in KEYS if key not in manifest]:
        raise CheckpointError(
            f"{where}: holds no {', '.join(missing)}: not a step that tinylm train wrote; start a new run "
            f"from its weights: tinylm train DATA --init {found.folder}"
        )
    step = manifest["step"]
    for problem in found.skipped:
        note(f"skipped {problem}")
    tell_otherwise(folder, manifest["config"], note)
    before = TrainConfig.from_dict(manifest["config"], where)
    config = dataclasses.replace(before, **{"stop_after": None, **changes}).check()
    if "micro_rows" in changes:
        config.check_ranks(launched().size)
    if config.stop_after is not None and config.stop_after <= step:
        raise ConfigError(f"stop_after is {config.stop_after}, and the run is at step {step} already")
    was = Machine.from_dict(manifest["machine"], where)
    wanted: dict[str, Any] = {
        "precision": was.precision,
        "device": changes.get("device") or was.device,
        "threads": changes.get("threads") or was.threads,
        "compile": changes.get("compile") or ("yes" if was.compile else "no"),
    }
    machine = choose_machine(dataclasses.replace(config, **wanted))
    deviations = tuple(manifest["deviations"])
    if deviations:
        first = min(deviation["step"] for deviation in deviations)
        names = ", ".join(sorted({deviation["name"] for deviation in deviations}))
        note(f"since step {first} this run is not bit for bit what it would have been ({names} changed)")
    old = {**manifest["versions"], **was.to_dict(), "micro_rows": before.micro_rows}
    new = {
        **versions(machine.device),
        **machine.to_dict(),
        "micro_rows": config.rows_per_pass(machine.ranks),
    }
    for name in (name for name in new if new[name] != old.get(name)):
        note(
            f"{name} was {old.get(name)}, is {new[name]}: from step {step} on the run is no longer bit-equal "
            "to one that was not interrupted"
        )
        deviations += ({"step": step, "name": name, "was": old.get(name), "is": new[name]},)
    return Recalled(found, step, config, machine, deviations)


def tell_otherwise(folder: Path, recorded: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Say so where run.json, which is for people, was edited: nothing in it is obeyed."""
    path = folder / "run.json"
    try:
        written = files.parse_json(path.read_bytes(), str(path))["config"]
        differ = [name for name in recorded if written[name] != recorded[name]]
    except (OSError, CheckpointError, KeyError, TypeError):
        note(f"{path}: cannot be read as the configuration of a run; a resume goes by its checkpoint")
        return
    if names := ", ".join(sorted(set(differ) - {"stop_after", "micro_rows"})):  # these two are resolved later
        note(f"{path}: says otherwise about {names}; a resume goes by its checkpoint and the flags")


def check_same_step(folder: Path, steps: list[int]) -> None:
    """Raise CheckpointError where the ranks do not see the same newest step of a run."""
    if len(set(steps)) > 1:
        raise CheckpointError(
            f"{folder}: its newest step is {steps} on the ranks 0 to {len(steps) - 1}; "
            "all hosts need the run in a folder that they share"
        )


def same_as(path: str, digest: str) -> Corpus:
    """The corpus that rank 0 has verified, as this rank sees it."""
    corpus = open_corpus(path, verify=False)
    if corpus.digest != digest:
        raise CorpusError(
            f"{path}: is another corpus here (digest {corpus.digest[:12]}) than on rank 0 ({digest[:12]}); "
            "all hosts need the same one, in a shared folder or as a copy"
        )
    return corpus


def same_corpus(folder: Path, recalled: Recalled, verify: bool = True) -> Corpus:
    """The corpus of the run, verified whole; ConfigError if another one stands in its place."""
    corpus, digest = open_corpus(recalled.config.data, verify=verify), recalled.recorded("corpus")
    if corpus.digest != digest:
        raise ConfigError(
            f"{recalled.config.data}: is another corpus (digest {corpus.digest[:12]}) than the run's "
            f"({digest[:12]}); bring the old one back, or start a new run with --init {folder}"
        )
    return corpus
