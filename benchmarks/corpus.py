"""Speed and memory of building a corpus: `python benchmarks/corpus.py [--megabytes 1000] [--json FILE]`.

Texts: the standard library's source and words in ten scripts, varied, as files of about 1 MB and as one file.
Each run is a process of its own and alternates with a plain peer, which reads, hashes and writes the same
uint16 tokens with NumPy, but checks, counts and splits nothing. MB/s are per second of one core (user and
system time) and per second of the wall, fsync included, of the best round; the peak is that of the whole
process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import measuring
import numpy as np

from tinylm.corpus import build_corpus
from tinylm.sources.builtin import python
from tinylm.walkthrough import utf8_output

FILE = 1_000_000
FOREIGN_SHARE = 0.1
SCRIPTS = ("αω", "ая", "את", "بن", "कह", "กม", "あん", "アン", "一龠", "가힣")
VERSION = 1
TARGET = 150
MOST_MEMORY = 300


def texts(megabytes: int, seed: int = 0) -> Iterator[bytes]:
    """Texts of about 1 MB, no two alike: nine parts source code to one part words in ten scripts."""
    draw = random.Random(seed)
    source = b"".join(text for _, text in python()).decode("utf-8")
    words = [
        "".join(chr(draw.randint(ord(script[0]), ord(script[1]))) for _ in range(draw.randint(2, 9)))
        for script in SCRIPTS
        for _ in range(2000)
    ]
    for number in range(megabytes):
        code = draw.randrange(len(source) - FILE)
        foreign: list[str] = []
        size = 0
        while size < FILE * FOREIGN_SHARE:
            line = " ".join(draw.choices(words, k=12))
            foreign.append(line)
            size += len(line.encode("utf-8"))
        yield f"{number}\n{source[code : code + FILE - size]}\n{chr(10).join(foreign)}\n".encode()


def plain(source: Path, out: Path) -> None:
    """The peer: read, hash each file, write uint16 tokens, hash them, fsync."""
    stream = hashlib.sha256()
    with open(out, "xb", buffering=0) as target:
        for path in sorted(source.rglob("*.txt")) if source.is_dir() else [source]:
            digest = hashlib.sha256()
            with open(path, "rb", buffering=0) as file:
                while data := file.read(1 << 20):
                    digest.update(data)
                    tokens = np.frombuffer(data, np.uint8).astype("<u2")
                    stream.update(tokens.data)
                    target.write(tokens.data)
        os.fsync(target.fileno())


def measure(builder: str, source: Path, out: Path) -> dict[str, float]:
    """Run one builder in this process; seconds of CPU and wall, and peak memory in MB (0 where unknown)."""
    cpu, wall = time.process_time(), time.perf_counter()
    if builder == "tinylm":
        build_corpus(source, out)
    else:
        plain(source, out)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu": cpu, "wall": wall, "peak": peak_megabytes()}


def peak_megabytes() -> float:
    """Peak resident memory of this process; 0 where the system does not say."""
    try:
        # On Linux, getrusage would also count what the parent held when it started this process.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    except OSError:
        pass
    try:
        import resource
    except ImportError:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measure_apart(builder: str, source: Path) -> dict[str, float]:
    """`measure` in a process of its own, whose output is thrown away.

    Before it starts, the disk finishes what the run before left to do: it would count as work of this one.
    """
    if hasattr(os, "sync"):
        os.sync()
    time.sleep(2)
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, __file__, "--measure", builder, str(source), str(Path(folder, "out"))]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    """Make the texts, measure, print; 1 if a target is missed."""
    utf8_output()
    parser = measuring.parser(__doc__, "corpus", threads=1)
    parser.add_argument(
        "--megabytes", type=measuring.positive, default=1000, help="size of the text (default: 1000)"
    )
    parser.add_argument(
        "--rounds", type=measuring.positive, default=3, help="runs of each builder, alternating (default: 3)"
    )
    parser.add_argument("--folder", type=Path, help="where the temporary files go")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        builder, source, out = options.measure
        print(json.dumps(measure(builder, Path(source), Path(out))))
        return 0
    if options.folder is not None and not options.folder.is_dir():
        parser.error(f"--folder: {options.folder} is not a folder that exists")
    if options.short:
        options.megabytes, options.rounds = 4, 1
    settings = {"megabytes": options.megabytes, "rounds": options.rounds}
    session = measuring.Session("corpus", VERSION, options.threads, settings, options.short).begin()
    with tempfile.TemporaryDirectory(prefix="tinylm-corpus-", dir=options.folder) as folder:
        many, one = Path(folder, "many"), Path(folder, "one.txt")
        many.mkdir()
        with open(one, "xb") as whole:
            for number, text in enumerate(texts(options.megabytes)):
                Path(many, f"{number:06}.txt").write_bytes(text)
                whole.write(text)
        for name, source in ((f"{options.megabytes} files", many), ("one file", one)):
            compare(name, source, one.stat().st_size / 1e6, options.rounds, session)
    session.end(options.json)
    peaks = [row["peak_megabytes"] for row in session.rows if row["builder"] == "tinylm"]
    good = all(each.met is not False for each in session.comparisons) and max(peaks) < MOST_MEMORY
    print(f"target: {TARGET} MB/s of a core, peak under {MOST_MEMORY} MB: {'met' if good else 'missed'}")
    return 0 if good or options.short else 1


def compare(name: str, source: Path, size: float, rounds: int, session: measuring.Session) -> None:
    """Build one text of `size` MB with both builders in turn; the best round of each counts."""
    runs: dict[str, list[dict[str, float]]] = {"tinylm": [], "plain": []}
    for _ in range(rounds):
        for builder, found in runs.items():
            found.append(measure_apart(builder, source))
    rates = {}
    for builder, found in runs.items():
        rates[builder] = size / min(run["cpu"] for run in found)
        session.row(
            text=name,
            builder=builder,
            megabytes=size,
            megabytes_per_core_second=rates[builder],
            megabytes_per_second=size / min(run["wall"] for run in found),
            peak_megabytes=max(run["peak"] for run in found),
        )
    # The texts beside a plain peer, and beside the rate that is asked for.
    question, ours = f"corpus build, {name}", rates["tinylm"]
    session.compare(
        question, "MB/s of a core", "tinylm", ours, "read, hash, write", rates["plain"], ours / rates["plain"]
    )
    session.compare(
        f"{question}, rate asked for", "MB/s of a core", "tinylm", ours, "target", TARGET, ours / TARGET, 1.0
    )


if __name__ == "__main__":
    sys.exit(main())
