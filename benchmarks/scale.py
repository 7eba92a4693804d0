"""What do DDP and FSDP2 cost at two CPU ranks, beside one process at the same work and the plan's prediction?

    python benchmarks/scale.py [--preset nano --rows 8 --window 256 --rounds 12] [--json]

Two processes of one thread each are started once and hold all variants; step after step they take turns, so
that what else the machine does hits all alike. Each rank reads --rows rows in a step. `side by side` is the
work of a rank without a word to the other, both at once: what the others are compared with. `two threads` is
one process with the rows of both. Then the rates of this machine are measured as `tinylm plan` needs them
(forward and backward, optimizer, all-reduce), its step is predicted, and, on Linux, the bytes that really
crossed the loopback device are counted.
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tinylm import trainer
from tinylm.config import PRESETS, CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import build_corpus, open_corpus
from tinylm.devices import Machine, cpu_threads
from tinylm.distributed.ranks import ALONE, Ranks, join, leave
from tinylm.distributed.sharding import local
from tinylm.model import Transformer
from tinylm.plan import amount, memory
from tinylm.plan.hardware import Hardware
from tinylm.plan.measure import measured_rates
from tinylm.plan.predict import step_time
from tinylm.plan.traffic import traffic
from tinylm.reports import Report
from tinylm.training_step import Run, train_step
from tinylm.walkthrough import render_table, together

RANKS = 2
COUNTERS = Path("/proc/net/dev")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="nano", choices=PRESETS)
    parser.add_argument("--rows", type=int, default=8, help="rows of a rank in a step")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        build_corpus("builtin:unicode", place / "corpus", CorpusConfig(max_documents=1_000, truncate=True))
        together(work, options, place=place, ranks=RANKS)
        said = [json.loads((place / f"said-{rank}.json").read_bytes()) for rank in range(RANKS)]
    result = compared(options, said, load)
    print(json.dumps(result, indent=1) if options.json else told(result))
    return 0


def work(options: argparse.Namespace) -> None:
    """What a rank does: all variants in turn, then the rates, then what it sent."""
    shape = dataclasses.replace(PRESETS[options.preset], window=options.window)
    ranks = join(600.0)
    with cpu_threads(1):
        runs = {
            "alone": prepared(shape, options.rows, ALONE, False),
            "DDP": prepared(shape, options.rows * RANKS, ranks, False),
            "FSDP2": prepared(shape, options.rows * RANKS, ranks, True),
            "both": prepared(shape, options.rows * RANKS, ALONE, False),
        }
        # name: (run, threads, whether both ranks take part)
        variants = {
            "one process": ("alone", 1, False),
            "side by side": ("alone", 1, True),
            "DDP": ("DDP", 1, True),
            "FSDP2": ("FSDP2", 1, True),
            "two threads": ("both", RANKS, False),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for turn in range(options.rounds + 2):
            for name, (key, threads, together) in variants.items():
                ranks.exchange(None)
                if together or ranks.leads:
                    with cpu_threads(threads):
                        seconds = timed(partial(one_step, runs[key], turn))
                    if turn > 1:  # the first two warm up
                        times[name].append(seconds)
        machine = Machine("cpu", "float32", False, 1)
        ranks.exchange(None)
        rates = measured_rates(shape, machine, options.rows)
        said: dict[str, Any] = {"times": times, "rates": dataclasses.asdict(rates), "network": network(ranks)}
        said["sent"] = {name: sent(runs[name], ranks) for name in ("DDP", "FSDP2")}
        said["held"] = {name: held(run) for name, run in runs.items()}
    Path(f"said-{ranks.rank}.json").write_text(json.dumps(said), encoding="utf-8")
    leave()


def prepared(shape: ModelConfig, rows: int, ranks: Ranks, shard: bool) -> Run:
    """A run over the corpus, ready for its first step."""
    corpus = open_corpus(Path("corpus"))
    config = TrainConfig(data="corpus", model=shape, steps=1000, batch_rows=rows, device="cpu", shard=shard)
    machine = Machine("cpu", "float32", False, 1, ranks=ranks.size, shard=shard)
    model = Transformer(shape, config.seed)
    return trainer.prepare(Path(), config, machine, corpus, model, Report(), ranks)


def one_step(run: Run, turn: int) -> None:
    """A whole step, its batch too, at a low rate."""
    train_step(run, run.plan.batch(turn), turn, 0.01)


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def network(ranks: Ranks) -> dict[str, float]:
    """Seconds of a message, and bytes a second through a link, from all-reduces of 4 bytes and of 16 MB."""
    found = {}
    for name, count in (("short", 1), ("long", 4_000_000)):
        values = torch.zeros(count)
        taken = []
        for _ in range(12):
            ranks.exchange(None)
            taken.append(timed(partial(dist.all_reduce, values)))
        found[name] = statistics.median(taken[2:])
    messages = 2 * (ranks.size - 1)
    through = messages / ranks.size * 16e6
    return {"latency": found["short"] / messages, "rate": through / max(found["long"] - found["short"], 1e-9)}


def sent(run: Run, ranks: Ranks, steps: int = 4) -> float | None:
    """Bytes a rank and step over the loopback device, all of this machine; None without counters."""
    if not COUNTERS.exists():
        return None
    ranks.exchange(None)
    before = loopback()
    for turn in range(steps):
        one_step(run, turn)
    ranks.exchange(None)
    return (loopback() - before) / steps / ranks.size


def loopback() -> int:
    """Bytes that the loopback device has sent since the machine started."""
    lines = COUNTERS.read_text(encoding="ascii").splitlines()
    return int(next(line.split(":")[1].split()[8] for line in lines if line.strip().startswith("lo:")))


def held(run: Run) -> int:
    """Bytes of weights and optimizer on this rank."""
    states = [tensor for tensor in run.optimizer.state().values() if tensor.ndim]
    return sum(local(tensor).nbytes for tensor in (*run.model.parameters(), *states))


def compared(options: argparse.Namespace, said: list[dict[str, Any]], load: float | None) -> dict[str, Any]:
    """Medians, ratios, and the plan's numbers beside them."""
    shape = dataclasses.replace(PRESETS[options.preset], window=options.window)
    medians = {}
    for name in said[0]["times"]:
        taken = [one["times"][name] for one in said if one["times"][name]]
        medians[name] = statistics.median(max(each) for each in zip(*taken, strict=True))
    rates = {key: statistics.fmean(s["rates"][key] for s in said) for key in said[0]["rates"]}
    wire = {key: statistics.fmean(s["network"][key] for s in said) for key in said[0]["network"]}
    at = Hardware(
        name="this machine",
        flops=rates["training"],
        utilisation=1.0,
        product_flops=rates["muon"],
        memory=1.0,
        memory_rate=rates["memory"],
        link=wire["rate"],
        bandwidth=wire["rate"],
        latency=wire["latency"],
        per_node=RANKS,
        overlaps=False,
        measured=True,
        scatters=False,
    )
    results = {}
    for name, median in medians.items():
        entry: dict[str, Any] = {"seconds": median, "ratio": median / medians["side by side"]}
        if name in ("side by side", "DDP", "FSDP2"):
            size, shard = (1 if name == "side by side" else RANKS), name == "FSDP2"
            passing = traffic(shape, size, 1, at, shard=shard)
            entry["planned_seconds"] = step_time(
                shape, size, options.rows, options.rows, at, passing, 4, shard=shard, muon=True
            ).total
            entry["held"] = said[0]["held"]["alone" if size == 1 else name]
            entry["planned_held"] = memory(shape, size, options.rows, shard=shard).kept
            entry["sent"] = None if size == 1 else said[0]["sent"][name]
            entry["planned_sent"] = passing.sent
        results[name] = entry
    facts = {
        "preset": options.preset,
        "rows": options.rows,
        "window": options.window,
        "rounds": options.rounds,
    }
    return {**facts, "load_before": load, "rates": rates, "network": wire, "variants": results}


def told(result: dict[str, Any]) -> str:
    """The result as lines for people."""
    rows = []
    for name, entry in result["variants"].items():
        planned = entry.get("planned_seconds")
        cells = [f"{entry['seconds'] * 1e3:.1f} ms", f"{entry['ratio']:.3f}"]
        cells += (
            [f"{planned * 1e3:.1f} ms", f"{planned / entry['seconds'] - 1:+.0%}"] if planned else ["", ""]
        )
        for what in ("sent", "held"):
            cells += [amount(entry[key]) if entry.get(key) else "" for key in (what, f"planned_{what}")]
        rows.append([name, *cells])
    headers = ["variant", "step", "ratio", "planned", "off", "sent", "planned", "held", "planned"]
    rates, wire = result["rates"], result["network"]
    load = "unknown" if result["load_before"] is None else f"{result['load_before']:.2f}"
    return "\n".join(
        (
            f"{result['preset']}, {result['rows']} rows a rank of {result['window']} tokens, "
            f"{result['rounds']} rounds, load before {load} on {os.cpu_count()} cores",
            render_table(headers, rows),
            f"rates: training {rates['training'] / 1e9:.1f} GFLOP/s, Muon {rates['muon'] / 1e9:.1f} GFLOP/s, "
            f"updates {rates['memory'] / 1e9:.2f} GB/s; all-reduce {wire['rate'] / 1e9:.2f} GB/s, "
            f"{wire['latency'] * 1e6:.0f} us a message",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
