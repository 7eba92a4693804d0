"""How much faster is decoding with guesses, and what are the guesses worth?

    python benchmarks/speculation.py CHECKPOINT CORPUS [--speculate 2,4,8 --temperatures 0,0.8 --tokens 192
                                                        --prompts 12 --prompt-bytes 32 --rounds 3
                                                        --threads 1 --json FILE --short]

CORPUS is a corpus or any source of texts; prompts are cut from its held-out documents. Plain decoding and
each setting take turns, one stream at a time, all with the same prompts and seeds; the ids must be equal.
Each setting has one engine for all rounds, as a server has, and what that saw in the warm-up round counts:
`cold` is the warm-up round, in which the engine had seen nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import measuring
import torch

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import MANIFEST, build_corpus, open_corpus
from tinylm.generate import Engine, Sampled, Task
from tinylm.language_model import load

VERSION = 1
TARGET = 1.5


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


def measure(session: measuring.Session, options: argparse.Namespace, folder: Path) -> None:
    """Every setting at every temperature, and the best of them beside plain decoding."""
    model = load(options.checkpoint, "cpu").transformer
    asked = prompts(options.corpus, options.prompts, options.prompt_bytes, folder)
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
        rates, gains = {}, {}
        for most in settings:
            ratios = [plain / mine for plain, mine in zip(seconds[0], seconds[most], strict=True)]
            drafted, accepted, steps = (sum(column) for column in zip(*told[most][1:], strict=True))
            rates[most] = statistics.median(n / s for n, s in zip(tokens[1:], seconds[most][1:], strict=True))
            gains[most] = statistics.median(ratios[1:])
            session.row(
                temperature=temperature,
                speculate=most,
                tokens_per_second=rates[most],
                ratio_to_plain=gains[most],
                ratio_cold=ratios[0],
                accepted_share=accepted / drafted if drafted else None,
                tokens_per_step=sum(tokens[1:]) / steps,
                tokens_per_row=sum(tokens[1:]) / (steps + drafted),
                seconds=[round(each, 4) for each in seconds[most]],
            )
        best = max(settings[1:], key=lambda most: gains[most])
        session.compare(
            f"decoding {Path(options.checkpoint).name} with guesses, temperature {temperature:g}",
            "tokens/s",
            f"speculate {best}",
            rates[best],
            "plain",
            rates[0],
            gains[best],
            TARGET,
        )


def main() -> None:
    parser = measuring.parser(__doc__, "speculation", threads=1)
    parser.add_argument("checkpoint")
    parser.add_argument("corpus")
    parser.add_argument("--speculate", default="2,4,8")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--tokens", type=measuring.positive, default=192)
    parser.add_argument("--prompts", type=measuring.positive, default=12)
    parser.add_argument("--prompt-bytes", type=measuring.positive, default=32)
    parser.add_argument("--rounds", type=measuring.positive, default=3)
    options = parser.parse_args()
    if options.short:
        options.speculate, options.tokens, options.prompts, options.rounds = "4", 16, 2, 1
    torch.set_num_threads(options.threads)
    names = ("corpus", "speculate", "temperatures", "tokens", "prompts", "prompt_bytes", "rounds")
    settings = {"checkpoint": Path(options.checkpoint).name} | {
        name: getattr(options, name) for name in names
    }
    session = measuring.Session("speculation", VERSION, options.threads, settings, options.short).begin()
    with tempfile.TemporaryDirectory() as folder:
        measure(session, options, Path(folder))
    session.end(options.json)


if __name__ == "__main__":
    main()
