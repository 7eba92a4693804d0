"""How many tokens a second are decoded, one stream and 16 at once?

    python benchmarks/decoding.py [--presets nano,mini --tokens 128 --rounds 5 --threads 1 --json FILE]
                                  [--node-modules FOLDER]

Greedy, random weights, a prompt of 32 ids. Variants take turns in each round; shown are the median of each
and its ratio to the engine as it is by default, round by round, because clocks of a shared machine wander.
Peers where they are installed: transformers' `generate`, and llama.cpp through node-llama-cpp (one stream:
the interface here holds one sequence).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tinylm.config import PRESETS, GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.generate import Engine, Task
from tinylm.generate.engine import sample
from tinylm.interop.llama_cpp import LlamaCpp, LlamaCppMissing
from tinylm.model import Transformer

PROMPT = 32
Decode = Callable[[int, int], None]
"""Decode (streams, tokens of each)."""


def random_model(config: ModelConfig) -> Transformer:
    """Weights drawn everywhere, and a boundary that never is the best id, so that nothing ends early."""
    model = Transformer(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    assert model.lm_head is not None
    model.lm_head.weight[DOC_BOUNDARY] = 0
    return model


def prompt(stream: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(stream).integers(0, 256, PROMPT).tolist())


def in_engine(model: Transformer, fast: bool) -> Decode:
    engines = {streams: Engine(model, streams, fast=fast) for streams in (1, 16)}

    def decode(streams: int, tokens: int) -> None:
        engine = engines[streams]
        for stream in range(streams):
            engine.start(
                Task(prompt(stream), GenerateConfig(temperature=0.0, max_tokens=tokens), reuse=False)
            )
        while engine.running:
            engine.step()

    return decode


def in_transformers(model: Transformer, folder: Path) -> Decode | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    from tinylm.interop.huggingface import write_huggingface

    write_huggingface(model, folder)
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    other = transformers.AutoModelForCausalLM.from_pretrained(folder)

    def decode(streams: int, tokens: int) -> None:
        ids_BT = torch.tensor([prompt(stream) for stream in range(streams)])
        mask = torch.ones_like(ids_BT)
        told = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
        other.generate(ids_BT, attention_mask=mask, **told)

    return decode


def in_llama_cpp(llama: LlamaCpp, model: Transformer, path: Path, tokens: int) -> Decode:
    from tinylm.interop.gguf import write_gguf

    write_gguf(model, path, "f32", path.stem)
    llama.load(path, PROMPT + tokens)

    def decode(streams: int, tokens: int) -> None:
        found = llama.greedy(prompt(0), tokens)
        assert len(found) == tokens, f"{len(found)} tokens, expected {tokens}"

    return decode


def sampling_share(model: Transformer, streams: int, tokens: int) -> float:
    """The share of an engine's time that goes into drawing and events, at temperature 0.8."""
    from unittest import mock

    spent = 0.0

    def timed(*given: Any) -> Any:
        nonlocal spent
        started = time.perf_counter()
        found = sample(*given)
        spent += time.perf_counter() - started
        return found

    engine = Engine(model, streams)
    for stream in range(streams):
        engine.start(Task(prompt(stream), GenerateConfig(max_tokens=tokens)))
    with mock.patch("tinylm.generate.engine.sample", timed):
        started = time.perf_counter()
        while engine.running:
            engine.step()
        return spent / (time.perf_counter() - started)


def measure(
    preset: str, options: argparse.Namespace, llama: LlamaCpp | None, folder: Path
) -> list[dict[str, Any]]:
    config = PRESETS[preset]
    tokens = min(options.tokens, config.window - PROMPT)
    model = random_model(config)
    variants: dict[str, Decode | None] = {
        "engine": in_engine(model, False),
        "engine, fast": in_engine(model, True),
        "transformers": in_transformers(model, folder / preset),
        "llama.cpp": in_llama_cpp(llama, model, folder / f"{preset}.gguf", tokens) if llama else None,
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for number in range(options.rounds + 1):
        for streams in (1, 16):
            for name, decode in variants.items():
                if decode is None or (name == "llama.cpp" and streams > 1):
                    continue
                started = time.perf_counter()
                decode(streams, tokens)
                if number:  # the first round warms up
                    seconds.setdefault((name, streams), []).append(time.perf_counter() - started)
    rows = []
    for (name, streams), taken in sorted(seconds.items(), key=lambda item: item[0][1]):
        ratios = [mine / its for mine, its in zip(seconds["engine", streams], taken, strict=True)]
        rows.append(
            {
                "preset": preset,
                "streams": streams,
                "variant": name,
                "tokens_per_second": streams * tokens / statistics.median(taken),
                "ratio_to_engine": statistics.median(ratios),
                "seconds": taken,
            }
        )
    for streams in (1, 16):
        share = sampling_share(model, streams, tokens)
        rows.append({"preset": preset, "streams": streams, "variant": "share of sampling", "share": share})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", default="nano,mini")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--node-modules", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    llama: LlamaCpp | None = None
    try:
        llama = LlamaCpp(options.node_modules)
    except LlamaCppMissing as missing:
        print(f"without llama.cpp: {missing}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for preset in options.presets.split(","):
            for row in measure(preset, options, llama, Path(folder)):
                rows.append(row)
                told = (
                    f"{row['share']:.0%} of the engine's time"
                    if "share" in row
                    else f"{row['tokens_per_second']:9,.0f} tokens/s  x{row['ratio_to_engine']:.2f}"
                )
                print(f"{preset:<6} {row['streams']:>2} at once  {row['variant']:<18} {told}", flush=True)
    if llama is not None:
        llama.close()
    if options.json:
        machine = {
            "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "cores": os.cpu_count(),
            "threads": options.threads,
            "torch": str(torch.__version__),
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }
        shapes = {name: dataclasses.asdict(PRESETS[name]) for name in options.presets.split(",")}
        written = json.dumps({"machine": machine, "presets": shapes, "rows": rows}, indent=1)
        options.json.write_text(written + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
