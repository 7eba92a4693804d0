"""tinylm corpus build and corpus show."""

from __future__ import annotations

import dataclasses

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.flags import flags


def corpus_build(given: Arguments) -> int:
    from tinylm.corpus import build_corpus, describe
    from tinylm.progress import BuildProgress
    from tinylm.sources import open_sources

    values = fields(given)
    places, out, replace = values.pop("source"), values.pop("out"), values.pop("replace")
    config = options.CorpusConfig(**values).check()
    with BuildProgress() as progress:
        corpus = build_corpus(open_sources(places, config), out, config, replace=replace, progress=progress)
    print(describe(corpus))
    return 0


def corpus_show(given: Arguments) -> int:
    from tinylm.corpus import describe, open_corpus

    print(describe(open_corpus(given.corpus)))
    return 0


PLACES = "files, folders, - for standard input, builtin:docs, builtin:python or builtin:unicode"

CORPUS_BUILD = Command(
    "Build a corpus from text: files, folders, JSON Lines, gzip of these, standard input.",
    lambda words: flags(
        options.CorpusConfig,
        positional={"source": (tuple[str, ...], PLACES)},
        extra={
            "out": (str, dataclasses.MISSING, "folder of the corpus"),
            "replace": (bool, False, "replace an existing corpus once the new one is complete"),
        },
    ),
    corpus_build,
)

CORPUS_SHOW = Command(
    "Show what a corpus holds, after verifying all of it.",
    lambda words: flags(options.Nothing, positional={"corpus": (str, "a corpus folder")}),
    corpus_show,
)
