"""Stage 20: from the naive loop to the fast one, one change per row."""

import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinylm import checkpoint, metrics, trainer, training_step
from tinylm.config import CorpusConfig, GenerateConfig, ModelConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import choose_machine
from tinylm.generate import Engine, Sampled, Task
from tinylm.generate.context import prompt_ids
from tinylm.model import Transformer, flops_per_token
from tinylm.reports import Unseen
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=20,
    title="fast",
    question="Where does the time go, and what takes it back?",
    hypothesis="The naive loop makes too many small calls. Once rows are computed together, arithmetic is "
    "left, and only less of it helps: a better step for each byte, or a smaller model that is told more.",
    experiment="train on the same bytes six times, one change after another, counting operators and bits; "
    "then let the last model go on with four names in four ways",
    next="Can it name what it never saw?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)
PROMPTS = ("LATIN SMALL LETTER ", "LATIN CAPITAL LETTER ", "GREEK SMALL LETTER ", "HANGUL SYLLABLE ")
TABLES = dataclasses.replace(SHAPE, ngrams=5, ngram_rows=16_384)
CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("naive: AdamW, row by row", {"muon": False, "micro_rows": 1}),
    ("all rows at once", {"micro_rows": None}),
    ("Muon for the layers", {"muon": True}),
    ("twice the rates", {"muon_rate": 0.04, "adam_rate": 0.012}),
    ("n-grams of 2 to 5 tokens", {"model": TABLES}),
    ("one layer of two", {"model": dataclasses.replace(TABLES, layers=1)}),
)


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that are called inside: each costs microseconds, however little it computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_a_step(config: TrainConfig, corpus: Corpus, folder: Path) -> int:
    """Operators that one training step calls: forward, backward and the optimizer."""
    model, machine = Transformer(config.resolved_model()), choose_machine(config)
    run = trainer.prepare(folder, config, machine, corpus, model, Unseen())
    with (operators := Operators()):  # type: ignore[no-untyped-call]
        training_step.train_step(run, run.plan.batch(0), 0, 1.0)
    return operators.count


Write = Callable[[Transformer, int], tuple[list[int], int, int]]
"""(model, count) to what follows each of the PROMPTS greedily, positions read, and passes."""


def by_hand(kept: bool) -> Write:
    """One token after another: everything is read again for each, or with a cache only what is new."""

    def write(model: Transformer, count: int) -> tuple[list[int], int, int]:
        ids, read = list[int](), 0
        for prompt in PROMPTS:
            cache, unread = model.new_cache() if kept else None, list(prompt_ids(prompt))
            for _ in range(count):
                read += len(unread)
                logits_V = model(torch.tensor([unread]), cache=cache)[0, -1]
                ids.append(int(logits_V[:DOC_BOUNDARY].argmax()))
                unread = ids[-1:] if kept else [*unread, ids[-1]]
        return ids, read, len(ids)

    return write


def in_engine(drafted: int) -> Write:
    """The library's engine, with up to so many drafted tokens a step."""

    def write(model: Transformer, count: int) -> tuple[list[int], int, int]:
        engine, ids, passes, read = Engine(model), list[int](), 0, 0
        config = GenerateConfig(temperature=0.0, max_tokens=count, speculate=drafted)
        for prompt in PROMPTS:
            generation = engine.start(Task(prompt_ids(prompt), config, bias={DOC_BOUNDARY: -math.inf}))
            while engine.running:
                passes += 1
                ids += [sampled.token for _, sampled in engine.step() if isinstance(sampled, Sampled)]
            read += len(prompt_ids(prompt)) + count - 1 + generation.drafted - generation.accepted
        return ids, read, passes

    return write


def experiment(lab: Lab) -> None:
    with workspace() as folder:
        limit = CorpusConfig(max_documents=2_000 if lab.quick else 30_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        config = TrainConfig(
            data=str(corpus.path), model=SHAPE, steps=4 if lab.quick else 100, sample_tokens=0,
            batch_rows=8 if lab.quick else 16, evaluate_every=1_000, precision="float32",
            device="cuda" if lab.device == "cuda" else "cpu",
        )  # fmt: skip
        rows: dict[str, list[float]] = {}
        for number, (name, change) in enumerate(CHANGES):
            config = dataclasses.replace(config, out=str(folder / str(number)), **change)
            result = trainer.train(config, Unseen())
            assert result.evaluation is not None
            calls_made, learned = operators_of_a_step(config, corpus, folder), result.evaluation.bits_per_byte
            arithmetic = 3e-6 * flops_per_token(config.resolved_model(), SHAPE.window)
            timings = (result.run / metrics.TIMINGS).read_text(encoding="utf-8").splitlines()
            seconds = statistics.median(json.loads(line)["seconds"] for line in timings)
            rows[name] = [calls_made, arithmetic, config.batch_rows * SHAPE.window / seconds / 1e3, learned]
        model = checkpoint.load_model(result.run)
        ways = {"everything again": by_hand(False), "keys and values kept": by_hand(True)}
        ways |= {"compiled step": in_engine(0), "drafts of up to 8": in_engine(8)}
        written, said, count, made = list[list[object]](), [], 24, 24 * len(PROMPTS)
        for name, write in ways.items():
            began = time.perf_counter()
            with torch.inference_mode():
                ids, read, passes = write(model, count)
            said.append(ids)
            written.append([name, read / made, passes / made, 1e3 * (time.perf_counter() - began) / made])
        reads, calls = ([float(str(row[place])) for row in written] for place in (1, 2))
    columns = ["operators a step", "MFLOP a byte", "kB a second", "bits per byte"]
    lab.table(["training", *columns], [[name, *row] for name, row in rows.items()])
    operators, flops, _, bits = zip(*rows.values(), strict=True)
    measured = {"operators a step": operators, "MFLOP a byte": flops, "bits per byte": bits}
    series = {name: [(at, n / found[0]) for at, n in enumerate(found)] for name, found in measured.items()}
    lab.figure(lambda: figures.lines(series, x="change by change", y="naive loop = 1", ticks=list(rows)))
    lab.table(["writing", "positions a token", "passes a token", "ms a token"], written)
    lab.value("naive_operators", operators[0], tolerance=300)
    lab.value("batched_operators", operators[1], tolerance=60)
    lab.value("naive_flops", flops[0])
    lab.value("last_flops", flops[-1])
    for name, found in zip(("adam", "batched", "muon", "rates", "ngrams", "layer"), bits, strict=True):
        lab.value(f"{name}_bits", found, tolerance=0.06)
    lab.value("again_positions", reads[0])
    lab.value("kept_positions", reads[1])
    lab.value("draft_passes", calls[3], tolerance=0.25)
    lab.otherwise(
        f"The largest gain is no faster computing: n-grams take {bits[3]:.3f} bits per byte to {bits[4]:.3f} "
        "for no FLOPs, since a table is looked up, not multiplied. Then half of the layers can go, for "
        f"{bits[5] - bits[4]:+.3f} bits. The compiled step computes the same in one call for hundreds."
    )
    lab.costs("Tables make the file far larger, and no other program reads it. Wrong drafts are for nothing.")
    lab.proves(
        "that the gains add up on the same bytes, and that caching, compiling and drafting change no token.",
        does_not_prove="how many seconds it takes: no check looks at that; benchmarks/ does, in turns.",
    )
    lab.check("rows together: fewer calls", operators[1] < operators[0] / 4 and abs(bits[1] - bits[0]) < 0.01)
    lab.check("n-grams gain, and drafts save passes", lab.quick or (bits[4] < bits[3] and calls[3] < 1))
    lab.check("all four ways write the same", all(ids == said[0] for ids in said))


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
