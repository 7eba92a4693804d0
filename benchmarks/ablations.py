"""What does each part of the recipe give? Bits per byte after equal steps, and a step's time, over seeds.

    python benchmarks/ablations.py tinyshakespeare.txt [--steps 150] [--seeds 0,1,2] [--jobs 2] [--only WORD]
                                   [--json FILE] [--short]

Every run trains on the same bytes, `--jobs` of them side by side; the last tenth is held out
and scored once in disjoint windows. The time is the processor's, of a whole step, so that neighbours count
less; it still wanders by a tenth or two.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import measuring

from tinylm.config import PRESETS, CorpusConfig, TrainConfig

VERSION = 1

Change = dict[str, Any]
VARIANTS: dict[str, tuple[Change, Change]] = {
    # name: (what the model is, what the run is)
    "nano": ({}, {}),
    "nano, AdamW alone": ({}, {"muon": False}),
    "nano, rates .04 and .01": ({}, {"muon_rate": 0.04, "adam_rate": 0.01}),
    "nano, rows of 128": ({"window": 128}, {"batch_rows": 16}),
    "nano, 2-grams": ({"ngrams": 2}, {}),
    "nano, n-grams to 6": ({"ngrams": 6}, {}),
    "fast (2 layers, n-grams to 6)": ({"ngrams": 6, "layers": 2}, {}),
    "fast, 1 layer": ({"ngrams": 6, "layers": 1}, {}),
    "fast, no dropout of n-grams": ({"ngrams": 6, "layers": 2}, {"ngram_dropout": 0.0}),
    "fast, dropout of n-grams .4": ({"ngrams": 6, "layers": 2}, {"ngram_dropout": 0.4}),
    "fast, rates .04 and .01": ({"ngrams": 6, "layers": 2}, {"muon_rate": 0.04, "adam_rate": 0.01}),
    "fast, 4 rows, twice the steps": ({"ngrams": 6, "layers": 2}, {"batch_rows": 4}),
}


def job(given: tuple[str, int, int, str, int]) -> tuple[str, int, float, float]:
    """Train one variant with one seed; bits per byte, and seconds of the processor for a step."""
    import torch

    from tinylm import trainer

    name, seed, steps, corpus, threads = given
    torch.set_num_threads(threads)
    shape, run = VARIANTS[name]
    rows = run.get("batch_rows", 8) * shape.get("window", 256)
    steps = round(steps * 2048 / rows)
    with tempfile.TemporaryDirectory() as folder:
        model = dataclasses.replace(PRESETS["nano"], **shape)
        config = TrainConfig(
            data=corpus, out=f"{folder}/run", model=model, seed=seed, steps=steps,
            evaluate_every=steps, sample_tokens=0, threads=threads, device="cpu", **run,
        )  # fmt: skip
        started = time.process_time()
        result = trainer.train(config)
        seconds = time.process_time() - started
    assert result.evaluation is not None
    return name, seed, result.evaluation.bits_per_byte, seconds / steps * 2048 / rows


def main() -> int:
    parser = measuring.parser(__doc__, "ablations", threads=1)
    parser.add_argument("text", type=measuring.existing_file, help="the file tinyshakespeare.txt")
    parser.add_argument("--steps", type=measuring.positive, default=150, help="steps of 2,048 bytes")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=measuring.positive, default=2, help="runs side by side")
    parser.add_argument("--only", default="", help="variants whose name holds this")
    options = parser.parse_args()
    steps, seeds = options.steps, [int(seed) for seed in options.seeds.split(",")]
    if options.short:
        steps, seeds = 10, seeds[:1]
    names = [name for name in VARIANTS if options.only in name]
    if not names:
        parser.error(f"--only {options.only!r} is in none of: {'; '.join(VARIANTS)}")
    settings = {"text": options.text.name, "steps": steps, "seeds": seeds, "jobs": options.jobs}
    session = measuring.Session("ablations", VERSION, options.threads, settings, options.short).begin()
    with tempfile.TemporaryDirectory() as folder:
        from tinylm.corpus import build_corpus

        corpus = build_corpus(options.text, Path(folder) / "corpus", CorpusConfig())
        jobs = [
            (name, seed, steps, str(corpus.path), options.threads)
            for name, seed in itertools.product(names, seeds)
        ]
        found: dict[str, list[tuple[float, float]]] = {}
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
            for name, _seed, bits, seconds in pool.map(job, jobs):
                found.setdefault(name, []).append((bits, seconds))
                if len(found[name]) == len(seeds):
                    every = [bits for bits, _ in found[name]]
                    session.row(
                        variant=name,
                        bits_per_byte=round(statistics.mean(every), 4),
                        spread=round(max(every) - min(every), 4),
                        seconds_per_step=round(statistics.median(each for _, each in found[name]), 3),
                    )
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
