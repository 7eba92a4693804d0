"""How fast is a training step at equal shape, and what share of the machine's matrix rate does it reach?

    python benchmarks/throughput.py [--presets nano,mini --window 256 --rows 8] [--nanogpt DIR]
        [--transformers-python PYTHON] [--rounds 5] [--no-compile] [--json FILE]

Forward, backward and optimizer, the batch included: tinylm's own step, eager and compiled, with Muon as by
default and with AdamW alone, which the others have; nanoGPT's model with its optimizer and its clipping,
eager and compiled; Hugging Face's Qwen3ForCausalLM of our config.json in a plain loop with AdamW. Layers,
width, heads, window, rows and the vocabulary of 257 are equal. nanoGPT's MLP is two matrices of four times
the width where ours is three of `mlp_width`, so its operations a token are stated beside ours. Each variant
lives in a process of its own, compiles once, and takes turns with the others. The matrix rate is the best of
large float32 products in the same run, with the same threads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import torch

from tinylm.config import PRESETS, CorpusConfig, ModelConfig, TrainConfig, flops_per_token
from tinylm.contract import VOCABULARY_SIZE

VERSION = 2
TARGET, TARGET_SHARE = 1.3, 0.6
SECONDS = 2.0
"""About how long a variant steps in a round."""
MUON = ("tinylm eager", "tinylm compiled")
ADAMW = ("tinylm eager, AdamW", "tinylm compiled, AdamW")


def nanogpt_flops(config: ModelConfig, length: int) -> int:
    """Operations of a token's forward pass in nanoGPT with these layers and this width, counted as ours."""
    matrices = 4 * config.width**2 + 8 * config.width**2
    attention = 2 * 2 * config.width * (length + 1) // 2
    return config.layers * (2 * matrices + attention) + 2 * VOCABULARY_SIZE * config.width


def tinylm_step(
    config: ModelConfig, rows: int, compiled: bool, muon: bool, threads: int
) -> Callable[[], object]:
    from tinylm import trainer
    from tinylm.corpus import build_corpus
    from tinylm.devices import Machine, reproducible
    from tinylm.model import Transformer
    from tinylm.reports import Report
    from tinylm.training_step import train_step

    folder = tempfile.TemporaryDirectory(prefix="tinylm-throughput-")
    small = CorpusConfig(max_documents=2_000, truncate=True)
    corpus = build_corpus("builtin:unicode", Path(folder.name) / "corpus", small)
    chosen = TrainConfig(data="corpus", model=config, steps=1000, batch_rows=rows, device="cpu", muon=muon)
    machine = Machine("cpu", "float32", compiled, threads)
    run = trainer.prepare(Path(), chosen, machine, corpus, Transformer(config, 0), Report())
    number = 0

    def step(keep: object = folder) -> None:
        nonlocal number
        with reproducible(machine):
            train_step(run, run.plan.batch(number), number, 0.01)
        number += 1

    return step


def batches(config: ModelConfig, rows: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """Rows cut out of a stream of bytes at random, as nanoGPT does it."""
    stream = torch.randint(0, 256, (1_000_000,), generator=torch.Generator().manual_seed(0))

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(stream) - config.window - 1, (rows,)).tolist()
        ids_BT = torch.stack([stream[start : start + config.window + 1] for start in starts])
        return ids_BT[:, :-1].contiguous(), ids_BT[:, 1:].contiguous()

    return batch


def nanogpt_step(config: ModelConfig, rows: int, compiled: bool, folder: Path) -> Callable[[], object]:
    module = measuring.nanogpt_model(folder)
    shape = {"n_layer": config.layers, "n_head": config.heads, "n_embd": config.width}
    more = {"block_size": config.window, "vocab_size": VOCABULARY_SIZE, "dropout": 0.0, "bias": False}
    raw = module.GPT(module.GPTConfig(**shape, **more))
    optimizer = raw.configure_optimizers(0.1, 1e-4, (0.9, 0.99), "cpu")
    model = torch.compile(raw) if compiled else raw
    batch = batches(config, rows)

    def step() -> None:
        _, loss = model(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_step(config: ModelConfig, rows: int) -> Callable[[], object]:
    import importlib

    from tinylm.interop.huggingface import config_json

    transformers: Any = importlib.import_module("transformers")
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config_json(config, "float32"))).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = batches(config, rows)

    def step() -> None:
        inputs_BT, targets_BT = batch()
        logits = model(input_ids=inputs_BT, use_cache=False).logits.reshape(-1, VOCABULARY_SIZE)
        torch.autograd.backward(torch.nn.functional.cross_entropy(logits, targets_BT.reshape(-1)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def work(variant: str, given: dict[str, Any]) -> None:
    """A worker: makes its step, warms it up, then takes as many steps as each line of stdin asks for."""
    sys.stdout.flush()
    told, sys.stdout = sys.stdout, sys.stderr  # nanoGPT prints
    torch.set_num_threads(given["threads"])
    config = ModelConfig(**given["config"])
    who, _, how = variant.partition(" ")
    if who == "tinylm":
        muon = variant in MUON
        step = tinylm_step(config, given["rows"], how.startswith("compiled"), muon, given["threads"])
    elif who == "nanoGPT":
        step = nanogpt_step(config, given["rows"], how == "compiled", Path(given["nanogpt"]))
    else:
        step = transformers_step(config, given["rows"])
    first = measuring.seconds_of(step)
    second = measuring.seconds_of(step)
    print(json.dumps({"first": first, "second": second}), file=told, flush=True)
    for line in sys.stdin:
        count = int(line)
        taken = [measuring.seconds_of(step) for _ in range(count)]
        print(json.dumps(measuring.median(taken)), file=told, flush=True)


class Worker:
    """A variant in a process of its own; `step` gives the median seconds of some steps."""

    def __init__(self, variant: str, python: str, given: dict[str, Any]) -> None:
        command = [python, __file__, "--worker", variant, json.dumps(given)]
        self.variant = variant
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  closed by close()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=measuring.environment(given["threads"]),
        )
        self.ready: dict[str, float] = self.read()
        self.steps = max(2, min(50, round(SECONDS / self.ready["second"])))

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"{self.variant} ended: {self.errors.read().strip()[-2000:]}")
        return json.loads(line)

    def step(self, count: int | None = None) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count or self.steps}\n")
        self.process.stdin.flush()
        return float(self.read())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


def measure(preset: str, options: argparse.Namespace, session: measuring.Session) -> None:
    """One preset: all variants in turn."""
    config = dataclasses.replace(PRESETS[preset], window=options.window)
    given = {"threads": options.threads, "rows": options.rows, "config": dataclasses.asdict(config)}
    ours = 3 * flops_per_token(config, config.window)
    variants = [*MUON, *ADAMW] if options.compile else [MUON[0], ADAMW[0]]
    flops = dict.fromkeys(variants, ours)
    if options.nanogpt:
        given["nanogpt"] = str(options.nanogpt)
        theirs = 3 * nanogpt_flops(config, config.window)
        flops |= dict.fromkeys(
            ("nanoGPT eager", "nanoGPT compiled") if options.compile else ("nanoGPT eager",), theirs
        )
    if options.transformers_python:
        flops["transformers eager"] = ours
    workers: dict[str, Worker] = {}
    try:
        for name in flops:
            python = options.transformers_python if name.startswith("transformers") else sys.executable
            started = time.monotonic()
            workers[name] = Worker(name, python, given)
            print(f"{preset}: {name} ready after {time.monotonic() - started:.0f} s", flush=True)
        count = 1 if options.short else None
        turns: dict[str, Callable[[], float]] = {
            name: partial(worker.step, count) for name, worker in workers.items()
        }
        rates: list[float] = []

        def rate() -> float:
            rates.append(measuring.matrix_rate(options.threads, tries=3))
            return 1.0

        found = measuring.alternate({**turns, "matrix": rate}, options.rounds)
    finally:
        for worker in workers.values():
            worker.close()
    tokens, best = options.rows * options.window, max(rates)
    for name, per_token in flops.items():
        middle = measuring.median(found[name])
        session.row(
            preset=preset,
            variant=name,
            tokens_per_second=tokens / middle,
            gflops_per_second=per_token * tokens / middle / 1e9,
            share_of_matrix_rate=per_token * tokens / middle / best,
            mflops_per_token=per_token / 1e6,
            matrix_gflops=best / 1e9,
            first_step=workers[name].ready["first"],
            ratio_to_eager=measuring.ratio_of(found["tinylm eager"], found[name]),
            step_seconds=[round(each, 5) for each in found[name]],
        )
    compare(preset, session, found, flops, tokens, best)


def compare(
    preset: str,
    session: measuring.Session,
    found: dict[str, list[float]],
    flops: dict[str, int],
    tokens: int,
    best: float,
) -> None:
    """Our fastest with either optimizer beside the fastest peer, and beside the matrix rate.

    The peers have AdamW. Muon's own arithmetic is in no count of operations a token.
    """
    peers = {name: found[name] for name in flops if name not in (*MUON, *ADAMW)}
    for ours, what in ((ADAMW, "AdamW on both sides"), (MUON, "ours with Muon")):
        steps = {name: found[name] for name in flops if name in ours}
        question = f"training {preset}, {what}"
        session.compare_fastest(question, "tokens/s", tokens, steps | peers, ours, TARGET)
        fastest = min(steps, key=lambda name: measuring.median(found[name]))
        reached = flops[fastest] * tokens / measuring.median(found[fastest])
        target = TARGET_SHARE if preset == "mini" else None
        question += ", of the matrix rate"
        given = (fastest, reached / 1e9, "large products", best / 1e9, reached / best, target)
        session.compare(question, "GFLOP/s", *given)


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], json.loads(sys.argv[3]))
        return 0
    parser = measuring.parser(__doc__, "throughput")
    parser.add_argument("--presets", default="nano,mini", help="with commas (default: nano,mini)")
    parser.add_argument("--window", type=measuring.positive, default=256)
    parser.add_argument("--rows", type=measuring.positive, default=8)
    parser.add_argument("--rounds", type=measuring.positive, default=5)
    parser.add_argument("--nanogpt", type=measuring.nanogpt_folder, help="a copy of nanoGPT")
    parser.add_argument(
        "--transformers-python", type=measuring.program, help="a Python that has transformers and torch"
    )
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="eager variants only")
    options = parser.parse_args()
    presets = options.presets.split(",")
    if unknown := [name for name in presets if name not in PRESETS]:
        parser.error(f"--presets: {', '.join(unknown)}; expected some of {', '.join(PRESETS)}")
    if options.short:
        options.window, options.rows, options.rounds = 32, 2, 1
    settings = {"presets": presets, "window": options.window, "rows": options.rows, "rounds": options.rounds}
    settings |= {"nanogpt": bool(options.nanogpt), "transformers": bool(options.transformers_python)}
    session = measuring.Session("throughput", VERSION, options.threads, settings, options.short).begin()
    for preset in presets:
        measure(preset, options, session)
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
