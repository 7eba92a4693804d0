"""tinylm evaluate."""

from __future__ import annotations

import json

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.flags import flags


def evaluate(given: Arguments) -> int:
    from tinylm.baselines import ladder
    from tinylm.data import corpus_for
    from tinylm.language_model import load
    from tinylm.progress import BuildProgress, console, evaluation_table, ladder_table

    values = fields(given)
    config = options.EvaluateConfig(
        **{k: v for k, v in values.items() if k not in ("checkpoint", "data")}
    ).check()
    model = load(given.checkpoint, config.device)
    with BuildProgress() as progress:
        corpus = corpus_for(given.data, progress=progress)
    evaluation = model.evaluate(corpus, rows=config.rows)
    rungs = ladder(corpus.train, corpus.validation) if config.ladder else []
    if config.json:
        print(json.dumps({**evaluation.to_dict(), "ladder": [rung.to_dict() for rung in rungs]}, indent=1))
        return 0
    out = console(stderr=False)
    out.print(evaluation_table(evaluation))
    if rungs:
        out.print(ladder_table(rungs, evaluation))
    return 0


EVALUATE = Command(
    "Measure a checkpoint in bits per byte, beside what counting and compressors reach.",
    lambda words: flags(
        options.EvaluateConfig,
        positional={
            "checkpoint": (str, "a run folder, a step folder or a model file"),
            "data": (str, "a corpus folder, or any source of text: its held-out part is measured"),
        },
    ),
    evaluate,
)
