"""What the benchmarks have in common: the machine and its load, alternating rounds, medians, ratios, JSON.

A result file holds what it is (`benchmark`, `version` of its way of measuring), where and when (`machine`,
`load`, `date`, `commit`), how (`settings`, `short`), what was seen (`rows`), and what it says (`comparisons`:
ours beside a peer, with a ratio above 1 where ours is better). `benchmarks/report.py` reads these files.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
BUSY = 0.3
"""Load of a core from which on others are at work too: absolute numbers then say little."""
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Comparison:
    """One row of the README's table: ours beside its best peer (or beside a limit, where there is none).

    `ratio` is above 1 where ours is better; `target` is the least ratio that is asked for, None for none.
    Where what was asked for was never reached there is no value of ours, and the ratio is 0.
    """

    question: str
    unit: str
    ours: str
    ours_value: float | None
    peer: str
    peer_value: float
    ratio: float
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        return None if self.target is None else self.ratio >= self.target


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle; ValueError of nothing."""
    if not values:
        raise ValueError("a median of no values")
    return statistics.median(values)


def ratio_of(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios round by round: both sides of a round saw the same state of the machine."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def alternate(
    variants: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """What each variant gives (seconds, say) in each round; they take turns, in odd rounds backwards.

    The first `warm_up` rounds are run and not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(warm_up + rounds):
        names = list(variants)
        for name in names if number % 2 == 0 else names[::-1]:
            value = variants[name]()
            if number >= warm_up:
                found[name].append(value)
    return found


def seconds_of(work: Callable[[], object]) -> float:
    """Wall-clock seconds of a call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def load() -> float | None:
    """Processes that wanted to run, over the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(threads: int) -> dict[str, Any]:
    """What must be known of a machine to read its numbers."""
    import torch

    from tinylm.devices import processor

    found: dict[str, Any] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "cores_allowed": cores(),
        "threads": threads,
        "memory_gb": None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    if hasattr(os, "sysconf"):
        found["memory_gb"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    return found


def commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it; None outside a repository."""
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=+"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def matrix_rate(threads: int, sizes: Sequence[int] = (1024, 2048), tries: int = 6) -> float:
    """Floating-point operations a second in the best of some large float32 matrix products."""
    import torch

    from tinylm.devices import cpu_threads

    best = 0.0
    with cpu_threads(threads):
        for size in sizes:
            a_NN = torch.randn(size, size)
            for _ in range(tries):
                best = max(best, 2.0 * size**3 / seconds_of(lambda a=a_NN: a @ a))  # type: ignore[misc]
    return best


def environment(threads: int, **more: str) -> dict[str, str]:
    """The environment of a process that is measured: this one's, so many threads, our tinylm first."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    given = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": path}
    return {**os.environ, **given, **more}


@dataclass
class Session:
    """One run of a benchmark: says the machine and its load at both ends, collects rows, writes JSON."""

    benchmark: str
    version: int
    threads: int
    settings: Mapping[str, Any]
    short: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"))
    load_before: float | None = field(default_factory=load)

    def begin(self) -> Session:
        """Say where and under which load it is measured."""
        told = machine(self.threads)
        print(
            f"{self.benchmark}: {told['processor']}, {told['cores']} cores, {self.threads} threads, "
            f"torch {told['torch']}, {self.date} UTC"
        )
        print(f"load before: {_shown(self.load_before)}", flush=True)
        if warning := busy(self.load_before, os.cpu_count() or 1):
            print(warning, flush=True)
        return self

    def row(self, **values: Any) -> None:
        """Keep one thing that was seen, and say it."""
        self.rows.append(values)
        print("  ".join(f"{name} {_shown(value)}" for name, value in values.items()), flush=True)

    def compare(self, *given: Any, **named: Any) -> None:
        """Keep one `Comparison`."""
        self.comparisons.append(Comparison(*given, **named))

    def compare_fastest(
        self,
        question: str,
        unit: str,
        work: float,
        seconds: Mapping[str, Sequence[float]],
        ours: Sequence[str],
        target: float | None = None,
    ) -> None:
        """Keep our fastest variant beside the fastest of the others, where both are there.

        `seconds`: of each variant, round by round, for `work` of some unit; `unit` is that a second.
        """

        def fastest(names: Sequence[str]) -> str | None:
            return min(names, key=lambda name: median(seconds[name]), default=None)

        mine = fastest([name for name in seconds if name in ours])
        peer = fastest([name for name in seconds if name not in ours])
        if mine is None or peer is None:
            return
        rates = [work / median(seconds[name]) for name in (mine, peer)]
        ratio = ratio_of(seconds[peer], seconds[mine])
        self.compare(question, unit, mine, rates[0], peer, rates[1], ratio, target)

    def result(self) -> dict[str, Any]:
        """The content of the result file."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "version": self.version,
            "short": self.short,
            "command": shell_command(),
            "commit": commit(),
            "date": self.date,
            "seconds": round(time.monotonic() - self.started, 1),
            "machine": machine(self.threads),
            "load": {"before": self.load_before, "after": load()},
            "settings": dict(self.settings),
            "rows": self.rows,
            "comparisons": [dataclasses.asdict(comparison) for comparison in self.comparisons],
        }

    def end(self, path: Path | None) -> dict[str, Any]:
        """Say the comparisons and the load, and write the result where a path is given."""
        from tinylm.walkthrough import render_table

        found = self.result()
        if self.comparisons:
            lines = [
                [
                    each.question,
                    f"{each.ours}: {quantity(each.ours_value, each.unit)}",
                    f"{each.peer}: {quantity(each.peer_value, each.unit)}",
                    f"{each.ratio:.2f}",
                    "" if each.target is None else f"{each.target:.2f} {'met' if each.met else 'missed'}",
                ]
                for each in self.comparisons
            ]
            print(render_table(["question", "ours", "peer", "ratio", "target"], lines))
        print(f"load after: {_shown(found['load']['after'])}; {found['seconds']:.0f} s in all")
        if self.short:
            print("a short form: it shows that the command runs, and is refused by benchmarks/report.py")
        if path is not None:
            write(path, found)
            print(f"written: {path}")
        return found


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result file; values that are not finite are refused (ValueError)."""
    from tinylm.files import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False, default=str)
    write_atomic(path, (text + "\n").encode("utf-8"))


def busy(before: float | None, of_cores: int) -> str | None:
    """A warning where others were at work when a benchmark began, or None."""
    if before is None or before <= BUSY * of_cores:
        return None
    return (
        f"WARNING: the machine was busy (load {before:.2f} on {of_cores} cores, more than {BUSY:g} a core): "
        "ratios of one run may hold, absolute numbers do not"
    )


def amount(value: float) -> str:
    """A number with three digits, or as many as its whole part has."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def quantity(value: float | None, unit: str) -> str:
    """A number with its unit, or that there is none."""
    return "not reached" if value is None else f"{amount(value)} {unit}"


def shell_command() -> str:
    """The command that is running, as one types it in the root of the repository."""
    import shlex

    script = Path(sys.argv[0])
    here = script.resolve()
    name = here.relative_to(ROOT).as_posix() if here.is_relative_to(ROOT) else script.name
    return shlex.join(["python", name, *sys.argv[1:]])


def parser(doc: str | None, name: str, threads: int | None = None) -> argparse.ArgumentParser:
    """The options that all benchmarks share: --threads, --json, --short."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, prog=f"benchmarks/{name}.py"
    )
    made.add_argument(
        "--threads", type=positive, default=threads or cores(), help="CPU threads (default: all cores)"
    )
    made.add_argument("--json", type=Path, help=f"write the result here (benchmarks/results/{name}.json)")
    made.add_argument("--short", action="store_true", help="only show that it runs: tiny sizes, one round")
    return made


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number of at least 1")
    return int(text)


def existing_file(text: str) -> Path:
    """A file that is there, for argparse."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file that exists")
    return Path(text)


def program(text: str) -> str:
    """A Python that can be started, for argparse."""
    import shutil

    if shutil.which(text) is None:
        raise argparse.ArgumentTypeError(f"{text} is not a program that exists")
    return text


def nanogpt_folder(text: str) -> Path:
    """A copy of nanoGPT, for argparse."""
    for needed in ("train.py", "model.py", "config/train_shakespeare_char.py"):
        if not Path(text, needed).is_file():
            raise argparse.ArgumentTypeError(
                f"{text}: {needed} is missing; expected a copy of github.com/karpathy/nanoGPT"
            )
    return Path(text).resolve()


def nanogpt_model(folder: Path) -> Any:
    """The module model.py of a copy of nanoGPT."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nanogpt_model"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    return amount(value) if isinstance(value, float) else str(value)
