"""Small texts that every machine has, for stages that need one and are not about it."""

from __future__ import annotations

from itertools import islice

from tinylm.config import CorpusConfig
from tinylm.corpus import Split
from tinylm.sources import open_sources


def character_names(count: int) -> list[bytes]:
    """The first documents of `builtin:unicode`: a character, a tab and its name, the same everywhere."""
    found = islice(open_sources(["builtin:unicode"], CorpusConfig()).documents(), count)
    return [b"".join(document.chunks) for document in found]


def split_names(count: int) -> tuple[Split, Split]:
    """Names to train on and names held out: every tenth, beginning with the first, is held out."""
    every = character_names(count)
    train = [document for index, document in enumerate(every) if index % 10]
    return Split.of(train, "train"), Split.of(every[::10], "validation")
