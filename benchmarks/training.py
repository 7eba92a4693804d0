"""How good does a preset get in three minutes? Bits per byte on Tiny Shakespeare against a 5-gram table.

    python benchmarks/training.py tinyshakespeare.txt [--minutes 3] [--preset nano] [--json]

The clock starts before the training process does and stops when it has exited, so that imports,
compilation, evaluations and saving are inside. The last tenth of the text is held out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tinylm.baselines import ladder
from tinylm.config import CorpusConfig
from tinylm.corpus import build_corpus
from tinylm.language_model import load

RESERVED_S = 8.0
"""Time for imports and for leaving, which --minutes of `tinylm train` does not count."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="the file tinyshakespeare.txt")
    parser.add_argument("--minutes", type=float, default=3.0, help="wall clock, everything included")
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("flags", nargs="*", help="further flags of tinylm train, after --")
    options = parser.parse_args()
    load_before = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    with tempfile.TemporaryDirectory() as folder:
        corpus = build_corpus(options.text, Path(folder) / "corpus", CorpusConfig())
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "tinylm", "train", str(corpus.path), "--out", str(run)]
        command += [
            "--preset",
            options.preset,
            "--minutes",
            str(options.minutes - RESERVED_S / 60),
            *options.flags,
        ]
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        evaluation = load(run).evaluate(corpus)
        table = ladder(corpus.train, corpus.validation, orders=(5,), compressors=())
        counted = next(rung.bits_per_byte for rung in table if rung.name.startswith("5-gram"))
        steps = json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]["steps"]
    result = {
        "preset": options.preset,
        "flags": options.flags,
        "seconds": round(seconds, 1),
        "steps": steps,
        "bits_per_byte": round(evaluation.bits_per_byte, 4),
        "protocol": evaluation.protocol,
        "window": evaluation.window,
        "held_out_bytes": evaluation.bytes,
        "five_gram": round(counted, 4),
        "below_the_table": evaluation.bits_per_byte < counted,
        "load_before": load_before,
    }
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print("\n".join(f"{name:<16} {value}" for name, value in result.items()))
    return 0 if evaluation.bits_per_byte < counted and seconds <= 60 * options.minutes else 1


if __name__ == "__main__":
    sys.exit(main())
