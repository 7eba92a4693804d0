"""How many tokens a second are decoded, one stream and 16 at once?

    python benchmarks/decoding.py [--presets nano,mini --tokens 128 --rounds 3 --threads 2 --json FILE]
                                  [--node-modules FOLDER]

Greedy, random weights, a prompt of 32 ids. Variants take turns in each round; shown are the median of each
and its ratio to the engine as it is by default, round by round, because clocks of a shared machine wander.
`engine` is the compiled step, `engine in PyTorch` what a machine without a compiler has. Peers where they are
installed: transformers' `generate`, and llama.cpp through node-llama-cpp (one stream: the interface here
holds one sequence). Beside each rate: the bytes of weights, keys and values that a step must read, over the
seconds it took, as a share of what a plain read of memory reaches in the same threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import measuring
import numpy as np
import torch

from tinylm.config import PRESETS, GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.generate import Engine, Task, native, why_not_compiled
from tinylm.generate.generation import draw_together, sample
from tinylm.interop.llama_cpp import LlamaCpp, LlamaCppMissing
from tinylm.model import Transformer, parameter_count

VERSION = 2
PROMPT = 32
STREAMS = (1, 16)
TARGETS = {
    ("mini", 1, "llama.cpp"): 1.0,
    ("nano", 1, "llama.cpp"): 0.5,
    ("nano", 1, "transformers"): 5.0,
    ("mini", 16, "llama.cpp"): 1.0,
}
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


def in_engine(model: Transformer) -> Decode:
    engines = {streams: Engine(model, streams) for streams in STREAMS}

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


def in_llama_cpp(llama: LlamaCpp, model: Transformer, path: Path, tokens: int, threads: int) -> Decode:
    from tinylm.interop.gguf import write_gguf

    write_gguf(model, path, "f32", path.stem)
    llama.load(path, PROMPT + tokens, threads)

    def decode(streams: int, tokens: int) -> None:
        found = llama.greedy(prompt(0), tokens)
        assert len(found) == tokens, f"{len(found)} tokens, expected {tokens}"

    return decode


def in_pytorch(model: Transformer) -> Decode:
    with mock.patch.object(native, "obstacle", return_value="to compare"):
        return in_engine(model)


def sampling_share(model: Transformer, streams: int, tokens: int) -> float:
    """The share of an engine's time that goes into drawing and events, at temperature 0.8."""
    spent = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            nonlocal spent
            started = time.perf_counter()
            found = function(*given)
            spent += time.perf_counter() - started
            return found

        return call

    engine = Engine(model, streams)
    for stream in range(streams):
        engine.start(Task(prompt(stream), GenerateConfig(max_tokens=tokens)))
    with (
        mock.patch("tinylm.generate.engine.sample", timed(sample)),
        mock.patch("tinylm.generate.engine.draw_together", timed(draw_together)),
    ):
        started = time.perf_counter()
        while engine.running:
            engine.step()
        return spent / (time.perf_counter() - started)


def bytes_of_step(config: ModelConfig, streams: int, tokens: int) -> int:
    """Bytes that one step has to read: the weights once, and of each stream the keys and values so far.

    The embedding is a look-up. Keys and values on average over a generation.
    """
    weights = parameter_count(config) - VOCABULARY_SIZE * config.width
    cached = 2 * config.layers * config.kv_heads * config.head_size * (PROMPT + tokens // 2)
    return 4 * (weights + streams * cached)


def bandwidth(threads: int, megabytes: int = 512) -> float:
    """Bytes a second of a plain read of a buffer that no cache holds: the sum of it, best of five."""
    buffer = torch.ones(megabytes * 250_000)
    buffer.sum()
    return buffer.nbytes / min(measuring.seconds_of(buffer.sum) for _ in range(5))


def measure(
    session: measuring.Session,
    preset: str,
    options: argparse.Namespace,
    llamas: dict[int, LlamaCpp],
    folder: Path,
) -> None:
    config = PRESETS[preset]
    tokens = min(options.tokens, config.window - PROMPT)
    model = random_model(config)
    variants: dict[str, Decode | None] = {
        "engine": in_engine(model),
        "engine in PyTorch": in_pytorch(model),
        "transformers": in_transformers(model, folder / preset),
    }
    for (
        threads,
        llama,
    ) in llamas.items():  # its own threads may get in each other's way: the better number counts
        path = folder / f"{preset}-{threads}.gguf"
        variants[f"llama.cpp, {threads} threads"] = in_llama_cpp(llama, model, path, tokens, threads)
    reads = bandwidth(options.threads)
    for streams in STREAMS:

        def timed(decode: Decode, streams: int = streams) -> Callable[[], float]:
            return lambda: measuring.seconds_of(lambda: decode(streams, tokens))

        tried = {
            name: timed(decode)
            for name, decode in variants.items()
            if decode is not None and not (name.startswith("llama.cpp") and streams > 1)
        }
        seconds = measuring.alternate(tried, options.rounds)
        for name, taken in seconds.items():
            step = measuring.median(taken) / tokens
            session.row(
                preset=preset,
                streams=streams,
                variant=name,
                tokens_per_second=streams / step,
                engine_is_times=measuring.ratio_of(taken, seconds["engine"]),
                memory_share=bytes_of_step(config, streams, tokens) / step / reads,
                seconds=taken,
            )
        at = "one stream" if streams == 1 else f"{streams} at once"
        rates = {name: streams * tokens / measuring.median(taken) for name, taken in seconds.items()}
        for program in ("transformers", "llama.cpp"):
            tries = [name for name in seconds if name.startswith(program)]
            if tries:
                peer = max(tries, key=lambda name: rates[name])
                session.compare(
                    f"decoding {preset}, {at}",
                    "tokens/s",
                    "engine",
                    rates["engine"],
                    peer,
                    rates[peer],
                    measuring.ratio_of(seconds[peer], seconds["engine"]),
                    TARGETS.get((preset, streams, program)),
                )
        session.row(
            preset=preset,
            streams=streams,
            share_of_sampling=sampling_share(model, streams, tokens),
            plain_read_gb_per_second=reads / 1e9,
            step_mb=bytes_of_step(config, streams, tokens) / 1e6,
        )


def main() -> None:
    parser = measuring.parser(__doc__, "decoding")
    parser.add_argument("--presets", default="nano,mini")
    parser.add_argument("--tokens", type=measuring.positive, default=128)
    parser.add_argument("--rounds", type=measuring.positive, default=3)
    parser.add_argument("--node-modules", type=Path)
    options = parser.parse_args()
    if options.short:
        options.presets, options.tokens, options.rounds = "nano", 8, 1
    torch.set_num_threads(options.threads)
    llamas: dict[int, LlamaCpp] = {}
    try:
        for threads in sorted({1, options.threads}):
            llamas[threads] = LlamaCpp(options.node_modules)
    except LlamaCppMissing as missing:
        print(f"without llama.cpp: {missing}")
    settings = {"presets": options.presets, "tokens": options.tokens, "rounds": options.rounds}
    session = measuring.Session("decoding", VERSION, options.threads, settings, options.short).begin()
    with tempfile.TemporaryDirectory() as folder:
        for preset in options.presets.split(","):
            measure(session, preset, options, llamas, Path(folder))
    if reason := why_not_compiled():
        print(f"engine is in PyTorch too: {reason}")
    for llama in llamas.values():
        llama.close()
    session.end(options.json)


if __name__ == "__main__":
    main()
