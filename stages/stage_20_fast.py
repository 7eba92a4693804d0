"""Stage 20: from the naive loop to the fast one, one change per row."""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tinylm import checkpoint, metrics, trainer, training_step
from tinylm.config import CorpusConfig, GenerateConfig, ModelConfig, TrainConfig
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import choose_machine
from tinylm.generate import Engine, Task
from tinylm.generate.context import prompt_ids
from tinylm.model import Transformer, flops_per_token
from tinylm.reports import Report
from tinylm.walkthrough import Lab, Stage, workspace

STAGE = Stage(
    number=20,
    title="fast",
    question="Where does the time go, and what takes it back?",
    hypothesis="The naive loop is slow because it makes many small calls. Once rows are computed together, "
    "what is left is arithmetic, and then only less of it helps: a better step for each byte, or a smaller "
    "model that is told more.",
    experiment="train on the same bytes six times, one change after another, and count operators, "
    "FLOPs and bits; then let the last model write 200 tokens in four ways",
    next="Can a model name a character that it never saw?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)
TABLES = dataclasses.replace(SHAPE, ngrams=5, ngram_rows=16_384)
CHANGES: tuple[tuple[str, dict[str, object]], ...] = (
    ("naive: AdamW, row by row", {"muon": False, "micro_rows": 1}),
    ("all rows at once", {"micro_rows": None}),
    ("Muon for the layers", {"muon": True}),
    ("twice the rates", {"muon_rate": 0.04, "adam_rate": 0.012}),
    ("n-grams of 2 to 5 tokens", {"model": TABLES}),
    ("one layer of two", {"model": dataclasses.replace(TABLES, layers=1)}),
)


class Operators(TorchDispatchMode):
    """Counts the operators that are called inside: each costs microseconds, however little it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_a_step(config: TrainConfig, corpus: Corpus, folder: Path) -> int:
    """Operators that one training step calls: forward, backward and the optimizer."""
    model = Transformer(config.resolved_model())
    run = trainer.prepare(folder, config, choose_machine(config), corpus, model, Report())
    with Operators() as operators:
        training_step.train_step(run, run.plan.batch(0), 0, 1.0)
    return operators.count


Write = Callable[[Transformer, tuple[int, ...], int], tuple[list[int], int, int]]
"""(model, prompt, count) to the greedy ids, how many positions were read, and in how many passes."""


def by_hand(kept: bool) -> Write:
    """One token after another: everything is read again for each, or with a cache only what is new."""

    def write(model: Transformer, prompt: tuple[int, ...], count: int) -> tuple[list[int], int, int]:
        cache, ids, unread, read = model.new_cache() if kept else None, list[int](), list(prompt), 0
        for _ in range(count):
            read += len(unread)
            ids.append(int(model(torch.tensor([unread]), cache=cache)[0, -1].argmax()))
            unread = ids[-1:] if kept else [*unread, ids[-1]]
        return ids, read, count

    return write


def in_engine(drafted: int) -> Write:
    """The library's engine, with up to so many drafted tokens a step."""

    def write(model: Transformer, prompt: tuple[int, ...], count: int) -> tuple[list[int], int, int]:
        engine, ids, passes = Engine(model), list[int](), 0
        config = GenerateConfig(temperature=0.0, max_tokens=count, speculate=drafted)
        generation = engine.start(Task(prompt, config))
        while engine.running:
            passes += 1
            ids += [sampled.token for _, sampled in engine.step()]
        return ids, len(prompt) + count + generation.drafted - generation.accepted, passes

    return write


def experiment(lab: Lab) -> None:
    with workspace() as folder:
        limit = CorpusConfig(max_documents=2_000 if lab.quick else 30_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        steps, device = 15 if lab.quick else 120, "cuda" if lab.device == "cuda" else "cpu"
        config = TrainConfig(
            data=str(corpus.path), model=SHAPE, steps=steps, batch_rows=16, evaluate_every=1_000,
            sample_tokens=0, device=device, precision="float32", compile="no",
        )  # fmt: skip
        rows: list[list[object]] = []
        bits, operators, flops = [], [], []
        for number, (name, change) in enumerate(CHANGES):
            config = dataclasses.replace(config, out=str(folder / str(number)), **change)  # type: ignore[arg-type]
            result = trainer.train(config)
            assert result.evaluation is not None
            shape, tokens = config.resolved_model(), config.batch_rows * SHAPE.window
            bits.append(result.evaluation.bits_per_byte)
            operators.append(operators_of_a_step(config, corpus, folder))
            flops.append(3 * flops_per_token(shape, shape.window))
            timings = (result.run / metrics.TIMINGS).read_text(encoding="utf-8").splitlines()
            seconds = statistics.median(json.loads(line)["seconds"] for line in timings)
            rows.append([name, operators[-1], flops[-1] / 1e6, tokens / seconds / 1e3, bits[-1]])
        model = checkpoint.load_model(result.run)
        ways = {
            "everything again": by_hand(False),
            "keys and values kept": by_hand(True),
            "compiled step": in_engine(0),
            "drafts of up to 8": in_engine(8),
        }
        written: list[list[object]] = []
        said, prompt, count = [], prompt_ids("HANGUL SYLLABLE "), 40
        for name, write in ways.items():
            began = time.perf_counter()
            with torch.inference_mode():
                ids, read, passes = write(model, prompt, count)
            said.append(ids)
            written.append([name, read / count, passes / count, 1e3 * (time.perf_counter() - began) / count])
        reads, calls = ([float(str(row[place])) for row in written] for place in (1, 2))
    lab.table(["training", "operators a step", "MFLOP a byte", "kB a second", "bits per byte"], rows)
    lab.table(["writing", "positions a token", "passes a token", "ms a token"], written)
    lab.value("naive_operators", operators[0], tolerance=300)
    lab.value("batched_operators", operators[1], tolerance=60)
    lab.value("naive_flops", flops[0] / 1e6)
    lab.value("last_flops", flops[-1] / 1e6)
    for name, found in zip(("adam", "batched", "muon", "rates", "ngrams", "layer"), bits, strict=True):
        lab.value(f"{name}_bits", found, tolerance=0.06)
    lab.value("again_positions", reads[0])
    lab.value("kept_positions", reads[1])
    lab.value("draft_passes", calls[3], tolerance=0.25)
    lab.otherwise(
        f"The largest gain is no faster computing at all: n-grams take {bits[3]:.3f} bits per byte to "
        f"{bits[4]:.3f} for next to no FLOPs, since a table is looked up and not multiplied. After that half "
        f"of the layers can go, for {bits[5] - bits[4]:+.3f} bits. The compiled step does the same "
        "arithmetic as the one before: it saves the calls of a hundred operators."
    )
    lab.costs(
        "Tables make the model's file larger by far, and no other program can read it: so the exportable "
        "shape is the default. Drafts that are wrong are computed for nothing."
    )
    lab.proves(
        "that the gains add up row by row on the same bytes, and that keeping keys, compiling and drafting "
        "change no token of what is written.",
        does_not_prove="how many seconds it takes: these depend on the machine and its load, so no check "
        "looks at them. Speed against other programs is measured in benchmarks/, in turns.",
    )
    lab.check("rows together call fewer operators", operators[1] < operators[0] / 4)
    lab.check("rows together change no loss", abs(bits[1] - bits[0]) < 0.01)
    lab.check("n-grams gain", lab.quick or bits[4] < bits[3] - 0.05)
    lab.check("keys kept: each position is read once", reads[1] <= reads[0] / 10)
    lab.check("all four ways write the same", all(ids == said[0] for ids in said))
    lab.check("drafts save passes", lab.quick or calls[3] <= calls[2])


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
