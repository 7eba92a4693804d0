"""How many tokens a second does a server give to 1, 4, 16 and 64 streams, and how soon the first one?

    python benchmarks/serving.py [--streams 1,4,16,64 --tokens 96 --rounds 3 --threads N]
        [--node-modules DIR] [--json FILE]

Three programs generate with the weights of sample-nano, as many streams at once as the row says, each from
the same 33 tokens of prompt and as many tokens long, drawn at temperature 1 without an early end:

- serve: `tinylm serve` in a process of its own, one HTTP stream of events per generation, read here;
- engine: the same engine in this process, without HTTP or JSON;
- llama.cpp: node-llama-cpp in a process of its own, as many sequences in one context, without HTTP or JSON
  either. The same weights in float32, keys and values too; its samplers and ours draw different tokens.

They take turns, several rounds; the table holds medians, and ratios of programs of the same round. The rate
counts from the first request to the last token of all. `--node-modules` names the folder that holds
node-llama-cpp; where it is not found, llama.cpp is left out, which is said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinylm import checkpoint
from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.generate import Engine, Sampled, Task
from tinylm.interop.gguf import write_gguf
from tinylm.model import Transformer
from tinylm.tokenizer import encode
from tinylm.walkthrough import render_table, utf8_output

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "checkpoints" / "sample-nano"
PROMPT = (DOC_BOUNDARY, *encode("Return the string as an integer."))


@dataclass
class Timed:
    """One run: seconds from the first request to the last token, and to the first token of each stream."""

    seconds: float
    first: list[float]


Program = Callable[[int, int], Timed]
"""Generates in so many streams, so many tokens in each."""


def in_engine(model: Transformer, slots: int) -> Program:
    """The library's engine in this process."""

    def run(streams: int, tokens: int) -> Timed:
        engine = Engine(model, slots)
        first: dict[int, float] = {}
        began = time.perf_counter()
        for seed in range(streams):
            config = GenerateConfig(max_tokens=tokens, temperature=1.0, seed=seed)
            engine.start(Task(PROMPT, config, bias={DOC_BOUNDARY: float("-inf")}, reuse=False))
        while engine.running:
            for generation, outcome in engine.step():
                if not isinstance(outcome, Sampled):
                    raise outcome
                first.setdefault(generation.slot, time.perf_counter() - began)
        return Timed(time.perf_counter() - began, list(first.values()))

    return run


def in_server(stack: ExitStack, slots: int, threads: int) -> Program:
    """`tinylm serve`, and streams of events read over HTTP."""
    sys.path.insert(0, str(ROOT))
    from tests.slow.injection.clients import ask

    command = [sys.executable, "-m", "tinylm", "serve", str(SAMPLE), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(
        [*command, "--slots", str(slots), "--quiet"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    port = int(process.stdout.readline().split()[0].rpartition(":")[2])

    def run(streams: int, tokens: int) -> Timed:
        body = {"prompt": list(PROMPT), "n_predict": tokens, "temperature": 1, "ignore_eos": True}
        body |= {"stream": True, "cache_prompt": False}

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(ask(port, {**body, "seed": seed}) for seed in range(streams)))

        began = time.perf_counter()
        told = asyncio.run(all_of_them())
        seconds = time.perf_counter() - began
        if problems := [one for one in told if one.problem or len(one.ids) != tokens]:
            raise RuntimeError(problems[0])
        return Timed(seconds, [one.first for one in told])

    return run


def in_llama_cpp(
    stack: ExitStack, model: Transformer, node_modules: Path, threads: int
) -> tuple[str, Program]:
    """llama.cpp's name, and what generates with it."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    write_gguf(model, folder / "model.gguf", "f32", "sample")
    script = Path(__file__).with_suffix(".mjs")
    arguments = [str(node_modules), str(folder / "model.gguf"), str(threads), str(model.config.window)]
    process = subprocess.Popen(
        ["node", str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdin is not None and process.stdout is not None
    found = json.loads(process.stdout.readline())

    def run(streams: int, tokens: int) -> Timed:
        assert process.stdin is not None and process.stdout is not None
        request = {"sequences": streams, "prompt": list(PROMPT), "limit": tokens}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp ended at {streams} sequences")
        return Timed(**json.loads(line))

    return f"llama.cpp {found['release']} (node-llama-cpp {found['version']})", run


def node_modules_here(given: Path | None) -> Path | None:
    """The folder that holds node-llama-cpp: the given one, else node_modules here or above."""
    here = Path.cwd()
    places = [given] if given else [folder / "node_modules" for folder in (here, *here.parents)]
    usable = shutil.which("node") is not None
    return next((place for place in places if usable and (place / "node-llama-cpp").is_dir()), None)


def load() -> str:
    return f"load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else "load unknown"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,4,16,64", help="how many at once, separated by commas")
    parser.add_argument("--tokens", type=int, default=96, help="per stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each program")
    parser.add_argument("--node-modules", type=Path, help="folder that holds node-llama-cpp")
    parser.add_argument("--json", type=Path, help="also write every measurement to this file")
    options = parser.parse_args()
    utf8_output()
    counts = [int(part) for part in options.streams.split(",")]
    torch.set_num_threads(options.threads)
    model = checkpoint.load_model(SAMPLE).requires_grad_(False)
    before, names = load(), {"serve": "tinylm serve, over HTTP", "engine": "tinylm's engine in this process"}
    measured: list[dict[str, Any]] = []
    with ExitStack() as stack:
        programs = {"serve": in_server(stack, max(counts), options.threads)}
        programs["engine"] = in_engine(model, max(counts))
        node_modules = node_modules_here(options.node_modules)
        if node_modules is None:
            print("llama.cpp is left out: node or node-llama-cpp was not found (--node-modules)")
        else:
            found = in_llama_cpp(stack, model, node_modules, options.threads)
            names["llama.cpp"], programs["llama.cpp"] = found
        for streams in counts:
            for program in programs.values():  # contexts, threads and caches come up here
                program(streams, 8)
            for number in range(options.rounds):
                for name, program in programs.items():
                    timed = program(streams, options.tokens)
                    rate = streams * options.tokens / timed.seconds
                    measured.append(
                        {"program": name, "streams": streams, "round": number, "tokens_per_second": rate}
                        | {"first_token_s": statistics.median(timed.first)}
                    )
    machine = f"{options.threads} threads each on {os.cpu_count()} cores, {before} before, {load()} after"
    print(f"{options.tokens} tokens per stream, {options.rounds} rounds, {machine}")
    for name, text in names.items():
        print(f"{name:<10} {text}")
    print(table(measured, list(programs), counts))
    if options.json is not None:
        result = {"programs": names, "machine": machine, "tokens": options.tokens, "measured": measured}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def table(measured: list[dict[str, Any]], programs: list[str], counts: list[int]) -> str:
    """Medians over the rounds; ratios are medians of the ratios within a round."""
    rows: list[list[object]] = []
    for streams in counts:
        rates = {
            name: [
                m["tokens_per_second"] for m in measured if (m["program"], m["streams"]) == (name, streams)
            ]
            for name in programs
        }
        for name in programs:
            ratios = [one / other for one, other in zip(rates[name], rates[programs[-1]], strict=True)]
            first = statistics.median(
                m["first_token_s"] for m in measured if (m["program"], m["streams"]) == (name, streams)
            )
            rate = statistics.median(rates[name])
            numbers = (f"{rate:,.0f}", f"{rate / streams:,.0f}", f"{1e3 * first:,.0f} ms")
            rows.append([streams, name, *numbers, f"{statistics.median(ratios):.2f}"])
    headers = ["streams", "program", "tokens/s", "each", "first token", f"to {programs[-1]}"]
    return render_table(headers, rows)


if __name__ == "__main__":
    sys.exit(main())
