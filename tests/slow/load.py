"""64 clients at once for two minutes: nobody loses an id, nobody gets a neighbour's, nothing grows.

python tests/slow/load.py [--short]

A real server process serves the sample model. First every request is made alone, then all of them by 64
clients at the same time, in random order: read to the end, slowly, not streamed, or left at a random event.
What each client received must be the ids that the request got alone (a client that left: their beginning).
At the end all slots must be free, the memory of the server flat, and SIGTERM must end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.slow.injection.clients import Told, ask, get
from tests.slow.injection.proof import Proof, Row

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, SLOTS = 64, 16
KINDS = ("streamed", "streamed to a slow reader", "not streamed", "streamed to one that leaves")
SHARES = (45, 15, 20, 20)
GROWTH = 0.05
"""By which share the server's memory may grow from the second quarter of the load to the last."""

HONEST = "import sys; from tinylm.cli import main; sys.exit(main(sys.argv[1:]))"
SHARED_DRAWS = f"""
import itertools
from tinylm.generate import generation
numbers, uniform = itertools.count(), generation.uniform
generation.uniform = lambda seed, number: uniform(seed, next(numbers))
{HONEST}
"""
HELD_IDS_DROPPED = f"""
from tinylm.serve import native, protocol
honest = native.partial
def partial(request, answer, sampled):
    event = honest(request, answer, sampled)
    if not sampled.event.text and answer.end is None:
        event["tokens"] = []
    return event
native.partial = partial
{HONEST}
"""


@contextlib.contextmanager
def served(code: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command `tinylm serve` in a process of its own, changed by `code`, and its port."""
    checkpoint = ROOT / "checkpoints" / "sample-nano"
    command = [sys.executable, "-c", code, "serve", str(checkpoint), "--port", "0", "--device", "cpu"]
    command += ["--slots", str(SLOTS), "--queue", str(2 * CLIENTS), "--quiet"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("http://"):
            raise RuntimeError(f"the server did not start: {line!r}")
        yield process, int(line.split()[0].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def requests() -> list[dict[str, Any]]:
    """Requests that end in every way, with prompts of every length and ids that are held."""
    chance, prompts = random.Random(0), ("", "Return the ", "안녕하세요, ", "class Box:\n    def ", "x" * 150)
    found = []
    for number in range(24):
        prompt: str | list[int] = prompts[number % len(prompts)]
        if number % 4 == 3:
            prompt = [256, *(chance.randrange(256) for _ in range(chance.randrange(1, 120)))]
        request = {"prompt": prompt, "seed": number, "n_predict": chance.randrange(8, 90)}
        request["temperature"] = chance.choice((0.0, 0.8, 1.5))
        request["stop"] = chance.choice(([], [], ["the"], ["\n", " a"]))
        if number % 5 == 4:  # bytes of Korean, so that most of the ids are held
            request["logit_bias"] = [[token, 12] for token in range(0x80, 0xF0)]
            request["temperature"] = 1.5
        found.append(request)
    return found


def compare(told: Told, alone: list[int], left: bool) -> str | None:
    """What is wrong with an answer, given the ids that its request got alone."""
    if told.problem:
        return told.problem
    expected = alone[: len(told.ids)] if left and told.final is None else alone
    if told.ids != expected:
        at = next((i for i, (a, b) in enumerate(zip(told.ids, alone, strict=False)) if a != b), None)
        return (
            f"{len(told.ids)} ids for {len(alone)}" if at is None else f"another id at {at} of {len(alone)}"
        )
    final = told.final
    if final is not None and not final["tokens_predicted"] == len(alone) == final["timings"]["predicted_n"]:
        return f"{final['tokens_predicted']} ids counted by the server, {len(alone)} received"
    return None


@dataclass
class Load:
    """What the clients of one server do, and the memory that it takes meanwhile (bytes, by second)."""

    port: int
    process: subprocess.Popen[str]
    alone: list[list[int]]
    rows: dict[str, Row]
    memory: list[int] = field(default_factory=list)
    ids: int = 0

    async def client(self, number: int, until: float) -> None:
        chance, specs = random.Random(number), requests()
        while time.monotonic() < until:
            which = chance.randrange(len(specs))
            kind = chance.choices(KINDS, SHARES)[0]
            body = {**specs[which], "stream": kind != KINDS[2], "return_tokens": True}
            left = kind == KINDS[3]
            told = await ask(
                self.port,
                body,
                leave_after=chance.randrange(1, 40) if left else None,
                pause=chance.uniform(0.001, 0.03) if kind == KINDS[1] else 0.0,
            )
            self.ids += len(told.ids)
            self.rows[kind].count(f"client {number}, request {which}", compare(told, self.alone[which], left))

    async def watch(self, until: float) -> None:
        while time.monotonic() < until:
            self.memory.append(resident(self.process.pid))
            await asyncio.sleep(1)

    async def run(self, clients: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(number, until) for number in range(clients)), self.watch(until))


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


async def each_alone(port: int) -> list[list[int]]:
    """The ids of every request, made while the server does nothing else."""
    found = []
    for request in requests():
        told = await ask(port, {**request, "stream": True})
        if told.problem or told.final is None:
            raise RuntimeError(f"a request alone fails: {told.problem}")
        found.append(told.ids)
    return found


async def all_free(port: int, seconds: float = 5.0) -> str | None:
    """What is wrong if not every slot is free in time."""
    until = time.monotonic() + seconds
    while True:
        busy = [slot["id"] for slot in await get(port, "/slots") if slot["is_processing"]]
        if not busy or time.monotonic() > until:
            return f"slots {busy} are taken after {seconds:.0f} s" if busy else None
        await asyncio.sleep(0.05)


def grown(memory: list[int]) -> str | None:
    """What is wrong with the memory, in which the first quarter may still grow."""
    quarter = len(memory) // 4
    before, after = median(memory[quarter : 2 * quarter]), median(memory[-quarter:])
    if after > before * (1 + GROWTH):
        return f"memory grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB"
    return None


def controlled(row: Row, code: str, alone: list[list[int]]) -> None:
    """The same clients at a server with a fault."""
    with served(code) as (process, port):
        load = Load(port, process, alone, dict.fromkeys(KINDS, row))
        asyncio.run(load.run(8, 4))


def main() -> int:
    proof = Proof(f"{CLIENTS} clients at {SLOTS} slots (injected: answers)")
    seconds = 15 if proof.short else 120
    with served(HONEST) as (process, port):
        alone = asyncio.run(each_alone(port))
        load = Load(port, process, alone, {kind: proof.row(kind) for kind in KINDS})
        asyncio.run(load.run(CLIENTS, seconds))
        proof.row("all slots are free").count("the end", asyncio.run(all_free(port)))
        if all(load.memory):
            proof.row("memory is flat").count("the end", grown(load.memory))
            low, high = min(load.memory) / 1e6, max(load.memory) / 1e6
            proof.note(f"memory of the server {low:.0f} to {high:.0f} MB, {len(load.memory)} samples")
        again = asyncio.run(each_alone(port))
        proof.row("each alone again").count(
            "after the load", None if again == alone else "other ids than before it"
        )
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(15)
            ended = None if code == 143 else f"it ended with {code}"
        except subprocess.TimeoutExpired:
            ended = "it does not end"
        proof.row("SIGTERM").count("the end", ended)
    held = sum(128 <= token < 256 for ids in alone for token in ids)
    proof.note(
        f"{load.ids:,} ids received, {load.ids / seconds:,.0f} a second; of {sum(map(len, alone)):,} ids "
        f"of the {len(alone)} requests alone {held:,} are parts of longer characters, or of none"
    )
    controlled(proof.control("a draw of its own for each slot"), SHARED_DRAWS, alone)
    controlled(proof.control("the ids of held bytes"), HELD_IDS_DROPPED, alone)
    return proof.finish()


if __name__ == "__main__":
    sys.exit(main())
