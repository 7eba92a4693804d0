"""What does it cost and gain to keep documents apart? Time and bits per byte of cross, mask and reset.

    python benchmarks/documents.py multilingual.jsonl speeches.jsonl.gz [--steps 300 | --minutes 2] [--json]

For each text and seed three models of one shape are trained in lockstep: step s of each policy, then step
s + 1, so that what else the machine does hits all alike. Each step scores the same number of targets on
average: under `reset`, whose rows hold one piece, it has more rows. A step is timed whole, with its batch.
Each model is scored by its own protocol (cross: windows over the stream; mask, reset: windows over each
document) and, so that the numbers compare, each with every document alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tinylm import trainer
from tinylm.config import POLICIES, CorpusConfig, ModelConfig, Policy, TrainConfig, preset
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import choose_machine, cpu_threads, synchronize
from tinylm.evaluate import evaluate
from tinylm.model import Transformer
from tinylm.optimizer import rate_scale
from tinylm.reports import Report
from tinylm.training_step import Run, train_step


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", nargs="+", type=Path, help="multilingual.jsonl, speeches.jsonl.gz or others")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=300, help="steps of each policy")
    length.add_argument("--minutes", type=float, help="instead: as many steps as fit this time, a policy")
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--window", type=int, help="instead of the preset's")
    parser.add_argument("--rows", type=int, default=8, help="rows of a step of cross and mask")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each policy")
    parser.add_argument("--limit", type=int, help="held-out tokens to score (default: all)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument("--compile", default="auto", choices=("auto", "yes", "no"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shape = preset(options.preset)
    shape = dataclasses.replace(shape, window=options.window or shape.window)
    results: dict[str, Any] = {
        "preset": options.preset,
        "window": shape.window,
        "device": options.device,
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "texts": {},
    }
    for text in options.texts:
        with tempfile.TemporaryDirectory() as folder:
            corpus = build_corpus(text, Path(folder) / "corpus", CorpusConfig())
            results["texts"][text.name] = compare(corpus, shape, options)
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        show(results)
    return 0


def compare(corpus: Corpus, shape: ModelConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Train and score the three policies on one corpus."""
    found: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for seed in range(options.seeds):
        runs = {policy: prepared(corpus, shape, policy, seed, options) for policy in POLICIES}
        with cpu_threads(runs["cross"].machine.threads):
            steps = options.steps
            if options.minutes is not None:
                steps = min(trainer.steps_in(run, 60 * options.minutes) for run in runs.values())
            times = train_in_lockstep(runs, steps)
            for policy, run in runs.items():
                measured = measure(run, times[policy], steps, options.limit)
                found[policy].append(measured)
    policies: dict[str, dict[str, Any]] = {
        policy: {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
        | {"bits_alone_of_each_seed": [row["bits_alone"] for row in rows]}
        for policy, rows in found.items()
    }
    for values in policies.values():
        values["time_to_cross"] = (
            values["microseconds_per_target"] / (policies["cross"]["microseconds_per_target"])
        )
    return {
        "documents": corpus.train.documents,
        "bytes": corpus.train.bytes,
        "held_out_bytes": corpus.validation.bytes,
        "policies": policies,
    }


def prepared(
    corpus: Corpus, shape: ModelConfig, policy: Policy, seed: int, options: argparse.Namespace
) -> Run:
    """A run of one policy whose steps have as many targets, on average, as `rows` full windows."""
    model = dataclasses.replace(shape, policy=policy)
    config = TrainConfig(
        data=str(corpus.path),
        model=model,
        steps=options.steps,
        batch_rows=options.rows,
        seed=seed,
        device=options.device,
        compile=options.compile,
    )
    machine = choose_machine(config)
    run = trainer.prepare(corpus.path, config, machine, corpus, Transformer(model, seed), Report())
    if policy == "reset":
        each = (len(corpus.train.stream) - 1) / run.plan.rows_of_epoch(0)
        rows = max(1, round(options.rows * shape.window / each))
        config = dataclasses.replace(config, batch_rows=rows)
        run = trainer.prepare(corpus.path, config, machine, corpus, run.model, Report())
    return run


def train_in_lockstep(runs: dict[Policy, Run], steps: int) -> dict[str, list[tuple[float, int]]]:
    """Train all runs, a step of each in turn; the seconds and the targets of each step."""
    times: dict[str, list[tuple[float, int]]] = {policy: [] for policy in runs}
    for step in range(steps):
        for policy, run in runs.items():
            started = time.perf_counter()
            scale = rate_scale(step, steps, run.config.warmup, run.config.decay)
            batch = run.plan.batch(step)
            train_step(run, batch, step, scale)
            synchronize(run.machine.device)
            times[policy].append((time.perf_counter() - started, batch.targets))
    return times


def measure(run: Run, times: list[tuple[float, int]], steps: int, limit: int | None) -> dict[str, float]:
    """What a trained run is worth, and what it cost; the first steps, which warm up, are not counted."""
    held_out = run.corpus.validation
    counted = times[min(5, steps // 2) :]
    with run.machine.autocast():
        own = evaluate(run.model, held_out, limit=limit)
        run.model.config = dataclasses.replace(run.model.config, policy="reset")
        alone = evaluate(run.model, held_out, limit=limit)
    return {
        "steps": steps,
        "rows": run.config.batch_rows,
        "targets_per_step": statistics.mean(targets for _, targets in times),
        "padding": run.plan.padding,
        "median_step_ms": 1e3 * statistics.median(seconds for seconds, _ in counted),
        # Steps of `reset` differ in length and targets: each weighs what it cost.
        "microseconds_per_target": 1e6 * statistics.median(seconds / targets for seconds, targets in counted),
        "bits_own_protocol": own.bits_per_byte,
        "bits_alone": alone.bits_per_byte,
    }


def show(results: dict[str, Any]) -> None:
    """Print the results as tables."""
    print(
        f"{results['preset']}, window {results['window']}, {results['device']}, load {results['load_before']}"
    )
    names = (
        "steps",
        "rows",
        "targets_per_step",
        "padding",
        "median_step_ms",
        "microseconds_per_target",
        "time_to_cross",
        "bits_own_protocol",
        "bits_alone",
    )
    for text, values in results["texts"].items():
        print(f"\n{text}: {values['documents']:,} documents, {values['bytes']:,} bytes; ", end="")
        print(f"{values['held_out_bytes']:,} held out")
        print(f"{'':<26}" + "".join(f"{policy:>12}" for policy in values["policies"]))
        for name in names:
            cells = [row[name] for row in values["policies"].values()]
            shape = ".2%" if name == "padding" else ",.4f" if "bits" in name else ",.2f"
            print(f"{name:<26}" + "".join(f"{format(cell, shape):>12}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
