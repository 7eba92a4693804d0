"""How much faster is decoding with guesses, and what are the guesses worth?

    python benchmarks/speculation.py CHECKPOINT CORPUS [--speculate 2,4,8 --temperatures 0,0.8 --tokens 192
                                                        --prompts 12 --prompt-bytes 32 --rounds 3
                                                        --threads 1 --json FILE]

CORPUS is a corpus or any source of texts; prompts are cut from its held-out documents. Plain decoding and
each setting take turns, one stream at a time, all with the same prompts and seeds; the ids must be equal.
Each setting has one engine for all rounds, as a server has, and what that saw in the warm-up round counts:
`cold` is the warm-up round, in which the engine had seen nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import MANIFEST, build_corpus, open_corpus
from tinylm.generate import Engine, Sampled, Task
from tinylm.language_model import load


def prompts(source: str, count: int, size: int, folder: Path) -> list[tuple[int, ...]]:
    """Pieces of the held-out text, at equal distances, each as if a document began there."""
    corpus = (
        open_corpus(source)
        if (Path(source) / MANIFEST).is_file()
        else build_corpus(source, folder / "corpus")
    )
    stream = corpus.validation.stream
    found = []
    for number in range(count):
        begin = number * (len(stream) - size) // count
        found.append((DOC_BOUNDARY, *(int(t) for t in stream[begin : begin + size] if t != DOC_BOUNDARY)))
    return found


def decode(engine: Engine, tasks: list[Task]) -> tuple[list[list[int]], float, int, int, int]:
    """Ids of each, seconds, guesses, right guesses, steps."""
    found, drafted, accepted, steps = [], 0, 0, 0
    started = time.perf_counter()
    for task in tasks:
        ids = []
        generation = engine.start(task)
        while engine.running:
            steps += 1
            for _, outcome in engine.step():
                assert isinstance(outcome, Sampled), outcome
                ids.append(outcome.token)
        drafted, accepted = drafted + generation.drafted, accepted + generation.accepted
        found.append(ids)
    return found, time.perf_counter() - started, drafted, accepted, steps


def measure(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    model = load(options.checkpoint, "cpu").transformer
    asked = prompts(options.corpus, options.prompts, options.prompt_bytes, folder)
    rows = []
    for temperature in map(float, options.temperatures.split(",")):
        settings = [0, *map(int, options.speculate.split(","))]
        engines = {most: Engine(model) for most in settings}
        if engines[0].unspeculative:
            raise SystemExit(f"nothing to measure: {engines[0].unspeculative}")
        config = GenerateConfig(max_tokens=options.tokens, temperature=temperature)
        seconds: dict[int, list[float]] = {most: [] for most in settings}
        told: dict[int, list[tuple[int, int, int]]] = {most: [] for most in settings}
        tokens = []
        for number in range(options.rounds + 1):
            expected: list[list[int]] = []
            for most in settings:
                tasks = [
                    Task(
                        prompt,
                        dataclasses.replace(config, seed=1000 * number + index, speculate=most),
                        reuse=False,
                    )
                    for index, prompt in enumerate(asked)
                ]
                ids, taken, *counts = decode(engines[most], tasks)
                expected = expected or ids
                assert ids == expected, f"other ids with speculate={most}"
                seconds[most].append(taken)
                told[most].append((counts[0], counts[1], counts[2]))
            tokens.append(sum(map(len, expected)))
        for most in settings:
            ratios = [plain / mine for plain, mine in zip(seconds[0], seconds[most], strict=True)]
            drafted, accepted, steps = (sum(column) for column in zip(*told[most][1:], strict=True))
            rows.append(
                {
                    "temperature": temperature,
                    "speculate": most,
                    "tokens_per_second": statistics.median(
                        n / s for n, s in zip(tokens[1:], seconds[most][1:], strict=True)
                    ),
                    "ratio_to_plain": statistics.median(ratios[1:]),
                    "ratio_cold": ratios[0],
                    "accepted_share": accepted / drafted if drafted else None,
                    "tokens_per_step": sum(tokens[1:]) / steps,
                    "tokens_per_row": sum(tokens[1:]) / (steps + drafted),
                    "seconds": seconds[most],
                }
            )
            row = rows[-1]
            share = "" if not drafted else f"  {row['accepted_share']:4.0%} of guesses right"
            print(
                f"temperature {temperature:<4g} speculate {most:>2}  {row['tokens_per_second']:8,.0f}"
                f" tokens/s  x{row['ratio_to_plain']:.2f} (cold x{row['ratio_cold']:.2f})"
                f"  {row['tokens_per_step']:.2f} tokens a step, {row['tokens_per_row']:.2f} a row{share}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint")
    parser.add_argument("corpus")
    parser.add_argument("--speculate", default="2,4,8")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--prompt-bytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(options, Path(folder))
    if options.json:
        machine = {
            "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "cores": os.cpu_count(),
            "threads": options.threads,
            "torch": str(torch.__version__),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }
        told = {name: value for name, value in vars(options).items() if name != "json"}
        written = json.dumps({"machine": machine, "options": told, "rows": rows}, indent=1)
        options.json.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
