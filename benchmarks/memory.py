"""Peak memory of what one does with tinylm, and how it grows with the size of the work.

    python benchmarks/memory.py [--only import,train,...] [--short] [--json FILE]

Every case runs in a process of its own, which says its peak resident memory when it is done. `above` is what
that is above `import tinylm` with its trainer; `bytes_per_...` is how much more memory a case takes for more
work, from two sizes: bytes of memory a token, a byte of text, a byte of a model's file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring

VERSION = 1
LIMIT = 300.0
"""MB that a corpus build may take, whatever the size of its text."""


def peak_bytes() -> int:
    """Peak resident memory of this process, in bytes."""
    try:
        # On Linux, getrusage would also count what the parent held when it started this process.
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def importing(place: Path, size: int) -> None:
    import tinylm

    _ = tinylm.train, tinylm.load


def training(preset: str, window: int) -> Callable[[Path, int], None]:
    """Two steps of `size` rows of a window, all in one forward pass."""

    def work(place: Path, size: int) -> None:
        import dataclasses

        from tinylm import trainer
        from tinylm.config import PRESETS, TrainConfig
        from tinylm.corpus import open_corpus
        from tinylm.devices import Machine
        from tinylm.model import Transformer
        from tinylm.reports import Report
        from tinylm.training_step import train_step

        shape = dataclasses.replace(PRESETS[preset], window=window)
        config = TrainConfig(data="none", model=shape, steps=10, batch_rows=size, device="cpu")
        machine = Machine("cpu", "float32", False, int(os.environ["OMP_NUM_THREADS"]))
        corpus = open_corpus(place / "corpus")
        run = trainer.prepare(place, config, machine, corpus, Transformer(shape, 0), Report())
        for number in range(2):
            train_step(run, run.plan.batch(number), number, 0.01)

    return work


def generating(place: Path, size: int) -> None:
    import tinylm

    for _ in tinylm.load(place / "mini").generate("Once", max_tokens=size, seed=1):
        pass


def evaluating(place: Path, size: int) -> None:
    import tinylm
    from tinylm.corpus import open_corpus

    tinylm.load(place / "nano").evaluate(open_corpus(place / "corpus"), limit=size)


def building(place: Path, size: int) -> None:
    from tinylm.corpus import build_corpus

    source = place / f"text-{size}.txt"
    build_corpus(source, place / f"built-{size}-{os.getpid()}")


def loading(place: Path, size: int) -> None:
    import tinylm

    tinylm.load(place / SAVED[size])


def serving(place: Path, size: int) -> None:
    """A server that waits: the model, its slots and the application, without a socket."""
    from tinylm.config import ServeConfig
    from tinylm.generate import Engine
    from tinylm.serve.app import create_app
    from tinylm.serve.loading import load_served

    config = ServeConfig(slots=size)
    served, model, _ = load_served(place / "nano", config)
    create_app(Engine(model, size), served, config, None, print)


@dataclass(frozen=True)
class Case:
    """Something to do at two sizes; `unit` is what a size counts, `each` how many of those a size of 1 is."""

    work: Callable[[Path, int], None]
    sizes: tuple[int, int]
    unit: str
    each: int = 1


CASES = {
    "import": Case(importing, (1, 1), ""),
    "train nano, windows of 256": Case(training("nano", 256), (8, 32), "token", 256),
    "train nano, windows of 1,024": Case(training("nano", 1024), (2, 8), "token", 1024),
    "train mini, windows of 256": Case(training("mini", 256), (4, 16), "token", 256),
    "generate, mini": Case(generating, (16, 400), "token"),
    "evaluate, nano": Case(evaluating, (4_096, 32_768), "token"),
    "corpus build": Case(building, (10, 100), "byte", 1_000_000),
    "load": Case(loading, (0, 1), "byte"),
    "serve, idle": Case(serving, (1, 16), "slot"),
}
SAVED = ("mini", "base")
"""The models whose load is measured."""


def prepare(place: Path, names: list[str], short: bool) -> dict[str, int]:
    """Corpus, texts and checkpoints that the cases read; returns the bytes of each model file."""
    import corpus as texts

    from tinylm.checkpoint import save_model
    from tinylm.config import PRESETS, CorpusConfig
    from tinylm.corpus import build_corpus
    from tinylm.model import Transformer

    build_corpus("builtin:unicode", place / "corpus", CorpusConfig(max_documents=4_000, truncate=True))
    sizes = {}
    for name in ("nano", *SAVED):
        if short and name == "base":
            continue
        (place / name).mkdir()
        save_model(place / name / "model.safetensors", Transformer(PRESETS[name], 0))
        sizes[name] = (place / name / "model.safetensors").stat().st_size
    if "corpus build" in names:
        for size in CASES["corpus build"].sizes:
            with open(place / f"text-{size}.txt", "xb") as file:
                for text in texts.texts(1 if short else size):
                    file.write(text)
    return sizes


def peak_of(name: str, size: int, place: Path, threads: int) -> int:
    """Peak bytes of a case in a process of its own."""
    command = [sys.executable, __file__, "--measure", name, str(size), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, env=measuring.environment(threads))
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return int(done.stdout.split()[-1])


def measure(
    name: str, place: Path, files: dict[str, int], base: int, session: measuring.Session, rounds: int
) -> dict[str, Any]:
    """One case: the median peak at each size, and the slope between them."""
    case = CASES[name]
    sizes = sorted(set(case.sizes))
    if name == "load":
        sizes = [size for size in sizes if SAVED[size] in files]
    peaks = [
        measuring.median([peak_of(name, size, place, session.threads) for _ in range(rounds)])
        for size in sizes
    ]
    amounts = [files[SAVED[size]] if name == "load" else size * case.each for size in sizes]
    row: dict[str, Any] = {"case": name, "peak_mb": [round(peak / 1e6, 1) for peak in peaks]}
    row["above_import_mb"] = [round((peak - base) / 1e6, 1) for peak in peaks]
    if len(sizes) > 1:
        row |= {f"{case.unit}s": amounts}
        row[f"bytes_per_{case.unit}"] = round((peaks[-1] - peaks[0]) / (amounts[-1] - amounts[0]), 4)
    session.row(**row)
    return {**row, "amounts": amounts}


def main() -> int:
    if sys.argv[1:2] == ["--measure"]:
        name, size, folder = sys.argv[2:]
        with contextlib.redirect_stdout(sys.stderr):
            CASES[name].work(Path(folder), int(size))
        print(peak_bytes())
        return 0
    parser = measuring.parser(__doc__, "memory")
    parser.add_argument("--only", help="some cases, with commas: parts of their names")
    parser.add_argument("--rounds", type=measuring.positive, default=3)
    options = parser.parse_args()
    wanted = (options.only or "").split(",")
    names = [name for name in CASES if any(part.strip() in name for part in wanted)]
    if unknown := [part for part in wanted if not any(part.strip() in name for name in CASES)]:
        parser.error(f"--only: {', '.join(unknown)}; expected parts of: {'; '.join(CASES)}")
    if importlib.util.find_spec("starlette") is None and "serve, idle" in names:
        names.remove("serve, idle")
        print("without serve: the extra is not installed (pip install 'tinylm[serve]')")
    if options.short:
        options.rounds = 1
    settings = {"cases": names, "rounds": options.rounds}
    short = options.short or options.only is not None
    session = measuring.Session("memory", VERSION, options.threads, settings, short).begin()
    with tempfile.TemporaryDirectory(prefix="tinylm-memory-") as folder:
        place = Path(folder)
        files = prepare(place, names, options.short)
        base = peak_of("import", 1, place, options.threads)
        found = {name: measure(name, place, files, base, session, options.rounds) for name in names}
    if "corpus build" in found:
        peak = found["corpus build"]["peak_mb"][-1]
        session.compare(
            "peak memory of a corpus build of 100 MB", "MB", "tinylm", peak, "limit", LIMIT, LIMIT / peak, 1.0
        )
    if "load" in found:
        above, size = found["load"]["above_import_mb"][-1], found["load"]["amounts"][-1] / 1e6
        question = f"peak memory of a load ({size:,.0f} MB)"
        session.compare(question, "MB", "tinylm", above, "the weights alone", size, size / above)
    session.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
