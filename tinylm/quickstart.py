"""The main job on real text, once through: corpus, training, picture, numbers, samples that end."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tinylm.baselines import ladder
from tinylm.config import CorpusConfig, QuickstartConfig, TrainConfig
from tinylm.data import corpus_for
from tinylm.language_model import load
from tinylm.progress import BuildProgress, TerminalReport, evaluation_table, ladder_table, visible
from tinylm.trainer import TrainResult, train

SOURCE = "builtin:docs"
QUICK = CorpusConfig(max_bytes=300_000, truncate=True)


def quickstart(config: QuickstartConfig, out: Console) -> TrainResult:
    """Run it; what it finds goes to `out`, progress to standard error."""
    config.check()
    started = time.monotonic()
    out.rule("1 · a corpus: the documentation that comes with Python")
    with BuildProgress() as building:
        corpus = corpus_for(SOURCE, QUICK if config.quick else CorpusConfig(), building)
    out.print(
        f"{corpus.path.as_posix()}: {corpus.train.documents + corpus.validation.documents:,} documents, "
        f"{corpus.train.bytes + corpus.validation.bytes:,} bytes; {corpus.validation.bytes:,} bytes held out"
    )
    out.rule("2 · a model")
    training = TrainConfig(
        data=corpus.path.as_posix(),
        out=free_name("checkpoints/quickstart"),
        steps=16 if config.quick else None,
        minutes=None if config.quick else config.minutes,
        evaluate_every=8 if config.quick else None,
        seed=config.seed,
    )
    with TerminalReport() as report:
        result = train(training, report)
    if result.evaluation is None:
        return result
    out.rule("3 · what a bit per byte is worth")
    out.print(evaluation_table(result.evaluation))
    out.print(ladder_table(ladder(corpus.train, corpus.validation), result.evaluation))
    out.rule("4 · what it writes, until it ends by itself")
    model = load(result.run)
    for number, prompt in enumerate(("", "", "Return the ")):
        events = list(model.generate(prompt, max_tokens=400, seed=config.seed + number))
        end = events[-1].end
        assert end is not None
        text = "".join(event.text for event in events)
        out.print(Text(f"{prompt}{visible_lines(text)}", style="cyan"))
        how = "ended by itself" if end.reason == "boundary" else f"stopped by the {end.reason}"
        out.print(f"[{how} after {end.tokens} tokens; prompt {prompt!r}, seed {config.seed + number}]\n")
    out.rule("5 · what next")
    run = result.run.as_posix()
    out.print(
        f"look at the curve           {run}/curve.svg\n"
        f"let it write                tinylm generate {run} 'Return the ' --seed 7\n"
        f"measure it                  tinylm evaluate {run} {corpus.path.as_posix()}\n"
        f"train longer                tinylm train {corpus.path.as_posix()} --minutes 10 --out "
        "checkpoints/longer\n"
        f"train on your own texts     tinylm train my_texts/ --minutes 10\n"
        "look at a corpus first      tinylm corpus build my_texts/ --out corpora/mine && tinylm corpus show "
        "corpora/mine\n"
        f"how it works                python stages/stage_01_counting.py"
    )
    out.print(f"\n{time.monotonic() - started:.0f} seconds in all")
    return result


def visible_lines(text: str) -> str:
    """A text as it is, except that control characters other than line ends are shown as escapes."""
    return "\n".join(visible(line) for line in text.split("\n"))


def free_name(wanted: str) -> str:
    """`wanted`, or the first of `wanted-2`, `wanted-3`, ... that does not exist: no run is overwritten."""
    number, name = 1, wanted
    while Path(name).exists():
        number += 1
        name = f"{wanted}-{number}"
    return name
