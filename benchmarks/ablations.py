"""What does each part of the recipe give? Bits per byte after equal bytes, and a step's time, over seeds.

    python benchmarks/ablations.py tinyshakespeare.txt [--group recipe] [--steps 150] [--seeds 0,1,2]
                                   [--jobs 2] [--only WORD] [--json FILE] [--short]

Every run trains on the same bytes, `--jobs` of them side by side; the last tenth is held out and scored
once in disjoint windows. The time of a step of 2,048 bytes is given twice: the processor's, of a whole
run, so that neighbours count less, and the median that the clock says. Groups: `recipe` is what options of
the library give, `tricks` and `nano` what it does not do (benchmarks/tricks.py), with n-grams and without,
`micro` and `mini` the recipe at larger sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import measuring
import tricks
from tricks import Trick

from tinylm.config import PRESETS, CorpusConfig, TrainConfig
from tinylm.errors import CorpusError

VERSION = 2

Change = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs from `base`: in the model, in the run, in what the library does; times as many steps."""

    base: str
    model: Change = dataclasses.field(default_factory=dict)
    run: Change = dataclasses.field(default_factory=dict)
    trick: Trick | None = None
    times: float = 1.0


RATES = {"muon_rate": 0.04, "adam_rate": 0.01}
RECIPE = {
    "nano": Variant("nano"),
    "nano, AdamW alone": Variant("nano", run={"muon": False}),
    "nano, rates .04 and .01": Variant("nano", run=RATES),
    "nano, rows of 128": Variant("nano", {"window": 128}, {"batch_rows": 16}),
    "nano, 2-grams": Variant("nano", {"ngrams": 2}),
    "nano, n-grams to 6": Variant("nano", {"ngrams": 6}),
    "fast (2 layers, n-grams to 6)": Variant("fast"),
    "fast, 1 layer": Variant("fast", {"layers": 1}),
    "fast, no dropout of n-grams": Variant("fast", run={"ngram_dropout": 0.0}),
    "fast, dropout of n-grams .4": Variant("fast", run={"ngram_dropout": 0.4}),
    "fast, n-grams to 4": Variant("fast", {"ngrams": 4}),
    "fast, n-grams to 8": Variant("fast", {"ngrams": 8}),
    "fast, 2^14 rows for each length": Variant("fast", {"ngram_rows": 2**14}),
    "fast, 2^16 rows for each length": Variant("fast", {"ngram_rows": 2**16}),
    "fast, rates .04 and .01": Variant("fast", run=RATES),
    "fast, 4 rows, twice the steps": Variant("fast", run={"batch_rows": 4}),
}
TRICKS = {
    "fast": Variant("fast"),
    "fast, short rows first": Variant("fast", trick=tricks.short_rows_first),
    "fast, few rows first": Variant("fast", trick=tricks.few_rows_first, times=7 / 4),
    "fast, embedding shortcut": Variant("fast", trick=tricks.embedding_shortcut),
    "fast, two bytes": Variant("fast", trick=tricks.two_bytes),
    "fast, three Newton-Schulz steps": Variant("fast", trick=tricks.three_iterations),
    "fast, Polar Express": Variant("fast", trick=tricks.polar_express),
    "fast, NorMuon": Variant("fast", trick=tricks.normalised_rows),
    "fast, momentum .85": Variant("fast", run={"muon_momentum": 0.85}),
    "fast, weight decay .1": Variant("fast", run={"weight_decay": 0.1}),
    "fast, matrices turned in memory": Variant("fast", trick=tricks.columns_first),
    "fast, heads laid together": Variant("fast", trick=tricks.heads_apart),
    "fast, two products and a softmax": Variant("fast", trick=tricks.two_products),
    "fast, rows of 64": Variant("fast", {"window": 64}, {"batch_rows": 32}),
    "fast, rows of 64, two products": Variant(
        "fast", {"window": 64}, {"batch_rows": 32}, tricks.two_products
    ),
    "fast, compiled": Variant("fast", run={"compile": "yes"}),
}
NANO = {
    name.replace("fast", "nano"): dataclasses.replace(TRICKS[name], base="nano") for name in list(TRICKS)[:8]
}
LARGER = {
    size: {
        size: Variant(size),
        f"{size}, AdamW alone": Variant(size, run={"muon": False}),
        f"{size}, rates .04 and .01": Variant(size, run=RATES),
        f"{size}, n-grams to 6": Variant(size, {"ngrams": 6}),
        f"{size}, 2 layers, n-grams to 6": Variant(size, {"ngrams": 6, "layers": 2}),
    }
    for size in ("micro", "mini")
}
GROUPS = {"recipe": RECIPE, "tricks": TRICKS, "nano": NANO, **LARGER}
VARIANTS = {name: variant for group in GROUPS.values() for name, variant in group.items()}


def job(given: tuple[str, int, int, str, int]) -> tuple[str, float, float, float]:
    """Train one variant with one seed: bits per byte; the processor's and the clock's seconds of a step."""
    import torch

    from tinylm import trainer

    name, seed, steps, corpus, threads = given
    torch.set_num_threads(threads)
    variant = VARIANTS[name]
    model = dataclasses.replace(PRESETS[variant.base], **{"window": 256, **variant.model})
    rows = variant.run.get("batch_rows", 8)
    share = rows * model.window / 2048 / variant.times  # of 2,048 bytes, that a step reads
    steps = round(steps / share)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=corpus, out=f"{folder}/run", model=model, seed=seed, steps=steps,
            evaluate_every=steps, sample_tokens=0, threads=threads, device="cpu",
            **{"batch_rows": rows, **variant.run},
        )  # fmt: skip
        started = time.process_time()
        with tricks.applied(variant.trick):
            result = trainer.train(config)
        seconds = time.process_time() - started
        timings = Path(folder, "run", "timings.jsonl").read_text(encoding="utf-8").splitlines()
    assert result.evaluation is not None
    clock = statistics.median(json.loads(line)["seconds"] for line in timings)
    return name, result.evaluation.bits_per_byte, seconds / steps / share, clock / share


def seeds_of(text: str) -> list[int]:
    """Seeds, for argparse."""
    if not all(seed.isdecimal() for seed in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}, expected whole numbers between commas")
    return [int(seed) for seed in text.split(",")]


def main() -> int:
    parser = measuring.parser(__doc__, "ablations", threads=1)
    parser.add_argument("text", type=measuring.existing_file, help="the file tinyshakespeare.txt")
    parser.add_argument("--group", choices=GROUPS, default="recipe", help="which variants (recipe)")
    parser.add_argument("--steps", type=measuring.positive, default=150, help="steps of 2,048 bytes")
    parser.add_argument("--seeds", type=seeds_of, default="0,1,2", help="whole numbers between commas")
    parser.add_argument("--jobs", type=measuring.positive, default=2, help="runs side by side")
    parser.add_argument("--only", default="", help="variants whose name holds this")
    options = parser.parse_args()
    steps, seeds = options.steps, options.seeds
    if options.short:
        steps, seeds = 10, seeds[:1]
    group = GROUPS[options.group]
    names = [name for name in group if options.only in name]
    if not names:
        parser.error(f"--only {options.only!r} is in none of: {'; '.join(group)}")
    settings = {"text": options.text.name, "group": options.group, "steps": steps, "seeds": seeds}
    settings["jobs"] = options.jobs
    session = measuring.Session("ablations", VERSION, options.threads, settings, options.short).begin()
    with tempfile.TemporaryDirectory() as folder:
        from tinylm.corpus import build_corpus

        try:
            corpus = build_corpus(options.text, Path(folder) / "corpus", CorpusConfig())
        except CorpusError as error:
            parser.error(str(error))
        jobs = [
            (name, seed, steps, str(corpus.path), options.threads)
            for name, seed in itertools.product(names, seeds)
        ]
        found: dict[str, list[tuple[float, float, float]]] = {}
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            for name, *measured in pool.map(job, jobs):
                found.setdefault(name, []).append((measured[0], measured[1], measured[2]))
                if len(found[name]) == len(seeds):
                    bits, processor, clock = zip(*found[name], strict=True)
                    session.row(
                        variant=name,
                        bits_per_byte=round(statistics.mean(bits), 4),
                        spread=round(max(bits) - min(bits), 4),
                        processor_seconds_per_step=round(statistics.median(processor), 3),
                        seconds_per_step=round(statistics.median(clock), 3),
                    )
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
