"""What a DATA argument means: a corpus folder, or any source, from which a corpus is built first."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinylm import files
from tinylm.config import CorpusConfig
from tinylm.corpus import MANIFEST, Corpus, build_corpus, open_corpus
from tinylm.errors import CorpusError

FOLDER = Path("corpora")
DEFAULT = CorpusConfig()


def corpus_for(
    data: str, config: CorpusConfig = DEFAULT, progress: Callable[..., Any] | None = None
) -> Corpus:
    """Open the corpus folder `data`, or build one from the source `data` under corpora/.

    Building is repeated each time (it is fast, and texts change); the same texts give the same corpus,
    which keeps its place, and other texts get a place of their own, so no run loses its corpus. Options
    other than the default are refused with a corpus: it was built with its own.
    """
    if (Path(data) / MANIFEST).is_file():
        if asked := changed(config):
            raise CorpusError(
                f"{data}: is a corpus, built with its own options; leave out {', '.join(asked)}, or name a "
                "source of text"
            )
        return open_corpus(data)
    if (Path(data) / "run.json").is_file():
        raise CorpusError(
            f"{data}: is a run, expected a corpus or a source of text; its corpus stands in run.json"
        )
    name = corpus_name(data)
    building = FOLDER / f".building-{secrets.token_hex(6)}"
    try:
        digest = build_corpus(data, building, config, progress=progress).digest
        for place in (FOLDER / name, FOLDER / f"{name}-{digest[:8]}"):
            if not place.exists():
                building.rename(place)
                return open_corpus(place, verify=False)
            if (place / MANIFEST).is_file():
                found = open_corpus(place)
                if found.digest == digest:
                    return found
        raise CorpusError(f"{place}: exists and is another corpus; remove it, or name it as DATA")
    finally:
        files.discard(building)


def changed(config: CorpusConfig) -> list[str]:
    """The flags of the options that are not the default's."""
    fields = dataclasses.fields(config)
    names = [field.name for field in fields if getattr(config, field.name) != field.default]
    return [f"--{name.replace('_', '-')}" for name in names]


def corpus_name(data: str) -> str:
    """The name under which a source's corpus and runs stand: the last part of the place, without suffixes."""
    if data == "-":
        return "stdin"
    return Path(data.removeprefix("builtin:")).resolve().name.split(".")[0][:80] or "texts"
