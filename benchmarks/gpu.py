"""What a GPU reaches: MFU, bits per byte after a minute and after three, decode rate. See benchmarks/gpu.sh.

    python benchmarks/gpu.py --corpora DIR [--all] [--json FILE]
    python benchmarks/gpu.py --short            tiny sizes, on whatever device there is

The parts are a list; each has its share of about five and a half minutes on one H200, and one that fails says
so and lets the others go on (the exit code is then 1).

- mfu: steps of `small` and `base` in bfloat16, compiled, with Muon; operations a second (three forward
  passes, `flops_per_token`) over the published dense bfloat16 peak of the device (tinylm/plan/hardware.py),
  or over the rate of a large product where the device is not in that table.
- quality: `tinylm.train` for a wall-clock budget, compilation and evaluations inside; bits per byte of all
  held-out text, disjoint windows. 60 s on Tiny Shakespeare and 180 s on the speeches; --all: both on both,
  which takes eleven minutes.
- decode: an engine of one slot and of 64, greedy, random weights, tokens a second: with rows that do not
  depend on one another, fast, and with compiled steps in a CUDA graph (tinylm/generate/graphed.py).
- tests: the tests whose names say cuda or gpu.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import measuring
import torch

from tinylm import trainer
from tinylm.config import PRESETS, CorpusConfig, GenerateConfig, TrainConfig, flops_per_token
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import build_corpus
from tinylm.devices import (
    Machine,
    choose_device,
    choose_machine,
    cpu_threads,
    matrix_rate,
    reproducible,
    synchronize,
)
from tinylm.generate import Engine, Task
from tinylm.model import Transformer
from tinylm.plan.hardware import PUBLISHED
from tinylm.reports import Report
from tinylm.training_step import train_step

VERSION = 1
CORPORA = {"tinyshakespeare.txt": ("mini", 64), "speeches.jsonl.gz": ("small", 64)}
"""Each text with the preset and the rows of a step that it is trained with."""
MFU = {"small": (64, 1024), "base": (16, 2048)}
"""Presets with rows and window of a step."""


def peak(machine: Machine) -> tuple[float, str]:
    """FLOP/s that the device could do at most, and where the number is from."""
    if machine.device == "cuda" and machine.precision == "bfloat16":
        name = torch.cuda.get_device_name().lower().replace(" ", "")
        for key, known in PUBLISHED.items():
            if key in name:
                return known.bfloat16, f"published peak of {known.title}"
    rate = matrix_rate(machine)
    if rate is None:
        raise RuntimeError("a large product is too fast to time")
    return rate, "a large product, measured"


def mfu(session: measuring.Session, machine: Machine, short: bool) -> None:
    """Model FLOPs utilisation of training steps."""
    most, of = peak(machine)
    sizes = {"nano": (2, 32)} if short else MFU
    with tempfile.TemporaryDirectory() as folder:
        small = CorpusConfig(max_documents=20_000, truncate=True)
        corpus = build_corpus("builtin:unicode", Path(folder, "corpus"), small)
        for preset, (rows, window) in sizes.items():
            shape = dataclasses.replace(PRESETS[preset], window=window)
            config = TrainConfig(data="corpus", model=shape, steps=1000, batch_rows=rows)
            run = trainer.prepare(Path(folder), config, machine, corpus, Transformer(shape, 0), Report())
            taken = []
            with reproducible(machine):
                for number in range(4 if short else 23):
                    synchronize(machine.device)
                    started = time.perf_counter()
                    train_step(run, run.plan.batch(number), number, 0.01)
                    synchronize(machine.device)
                    taken.append(time.perf_counter() - started)
            seconds = measuring.median(taken[3:])
            flops = 3.0 * flops_per_token(shape, window) * rows * window / seconds
            session.row(
                part="mfu",
                preset=preset,
                rows=rows,
                window=window,
                precision=machine.precision,
                compiled=machine.compile,
                tokens_per_second=rows * window / seconds,
                tflops=flops / 1e12,
                mfu=flops / most,
                first_step=taken[0],
            )
            session.compare(
                f"MFU, {preset}", "TFLOP/s", "tinylm", flops / 1e12, of, most / 1e12, flops / most
            )
            del run
            if machine.device == "cuda":
                torch.cuda.empty_cache()


def quality(session: measuring.Session, corpora: Path | None, short: bool, everything: bool) -> None:
    """Bits per byte after so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        if short or corpora is None:
            plans = [("builtin:unicode", "nano", 4, 1.0)]
        else:
            (first, one), (second, other) = CORPORA.items()
            budgets = [(first, one, 60.0), (second, other, 180.0)]
            if everything:
                budgets = [(first, one, 180.0), *budgets, (second, other, 60.0)]
            plans = [(str(corpora / name), preset, rows, s) for name, (preset, rows), s in budgets]
        for number, (source, preset, rows, seconds) in enumerate(plans):
            small = CorpusConfig(max_documents=300, truncate=True) if short else CorpusConfig()
            corpus = build_corpus(source, Path(folder, f"corpus-{number}"), small)
            config = TrainConfig(
                data=str(corpus.path),
                out=str(Path(folder, f"run-{number}")),
                preset=preset,
                batch_rows=rows,
                sample_tokens=0,
                steps=10 if short else None,
                minutes=None if short else seconds / 60,
            )
            started = time.perf_counter()
            result = trainer.train(config)
            taken = time.perf_counter() - started
            assert result.evaluation is not None
            session.row(
                part="quality",
                text=Path(source).name,
                preset=preset,
                budget=seconds,
                seconds=taken,
                steps=result.steps,
                bits_per_byte=result.evaluation.bits_per_byte,
                protocol=result.evaluation.protocol,
                window=result.evaluation.window,
            )


def decode(session: measuring.Session, machine: Machine, short: bool) -> None:
    """Tokens a second of one stream and of many."""
    shape = PRESETS["nano" if short else "small"]
    model = Transformer(shape, 0).to(machine.device)
    model.requires_grad_(False)
    assert model.lm_head is not None
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.02)
        model.lm_head.weight[DOC_BOUNDARY] = 0  # so that no stream ends early
    tokens = 8 if short else 256
    for streams in (1, 4) if short else (1, 64):
        for reader in ("independent rows", "fast", "graphed"):
            if reader == "graphed" and machine.device != "cuda" and not short:
                continue
            backend = "inductor" if machine.compile else "eager"
            graphed = backend if reader == "graphed" else ""
            engine = Engine(model, streams, fast=reader != "independent rows", graphed=graphed)
            taken = []
            for _ in range(2):
                for stream in range(streams):
                    config = GenerateConfig(temperature=0.0, max_tokens=tokens)
                    engine.start(Task((DOC_BOUNDARY, 65 + stream % 26), config, reuse=False))
                synchronize(machine.device)
                started = time.perf_counter()
                count = 0
                while engine.running:
                    count += len(engine.step())
                taken.append((time.perf_counter() - started) / max(1, count))
            session.row(
                part="decode",
                streams=streams,
                reader=reader,
                tokens=tokens,
                tokens_per_second=1 / taken[-1],
            )


def tests(session: measuring.Session, limit: float = 60.0) -> None:
    """The tests whose names say cuda or gpu, and whether they passed."""
    if importlib.util.find_spec("pytest") is None:
        raise RuntimeError("pytest is not installed: the tests of the CUDA paths did not run")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "cuda or gpu"]
    command += ["tests/test_trainer.py", "tests/test_resume.py", "tests/test_graphed.py"]
    command = [part for part in command if not part.startswith("tests/") or (measuring.ROOT / part).exists()]
    done = subprocess.run(command, cwd=measuring.ROOT, capture_output=True, text=True, timeout=limit)
    said = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr.strip()[-200:]
    session.row(part="tests", said=said)
    if done.returncode:
        raise RuntimeError(f"tests failed: {done.stdout[-2000:]}")


def main() -> int:
    parser = measuring.parser(__doc__, "gpu")
    parser.add_argument("--corpora", type=Path, help="folder of tinyshakespeare.txt and speeches.jsonl.gz")
    parser.add_argument("--all", action="store_true", help="60 s and 180 s on both texts: eleven minutes")
    options = parser.parse_args()
    if not options.short:
        if options.corpora is None:
            parser.error("--corpora is missing: the folder of tinyshakespeare.txt and speeches.jsonl.gz")
        if lost := [name for name in CORPORA if not (options.corpora / name).is_file()]:
            parser.error(f"--corpora {options.corpora}: {', '.join(lost)} is missing there")
        if choose_device("auto") != "cuda":
            parser.error("no CUDA device is here; --short runs the same steps in tiny sizes on a CPU")
    config = TrainConfig(data="none", threads=options.threads)
    machine = choose_machine(config)
    settings = {"machine": machine.to_dict(), "all": options.all}
    session = measuring.Session("gpu", VERSION, options.threads, settings, options.short).begin()
    failed = []
    with cpu_threads(machine.threads):
        parts: list[Callable[[], None]] = [
            lambda: mfu(session, machine, options.short),
            lambda: decode(session, machine, options.short),
            lambda: quality(session, options.corpora, options.short, options.all),
            lambda: tests(session),
        ]
        for part in parts:
            try:
                part()
            except Exception as error:  # the machine is lent for minutes: what can be measured, is
                traceback.print_exc()
                failed.append(f"{type(error).__name__}: {error}")
    session.end(options.json)
    for line in failed:
        print(f"FAILED: {line.splitlines()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
