"""What `import tinylm`, with everything that the library's front door needs, adds to `import torch`.

    python benchmarks/import_time.py [--rounds 7]

Alternates fresh processes that import torch alone, and torch, then tinylm and its trainer; prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

NAMES = {
    "torch": "import torch",
    "torch, then tinylm": "import torch, tinylm",
    "torch, then tinylm with train and load": "import torch, tinylm; tinylm.train; tinylm.load",
}


def seconds(code: str) -> float:
    """Wall clock of a fresh interpreter that runs `code`."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for turn in range(rounds + 1):
        for name, code in NAMES.items():
            taken = seconds(code)
            if turn:  # the first round warms the disk cache
                times[name].append(taken)
    base = statistics.median(times["torch"])
    for name, seconds_taken in times.items():
        middle = statistics.median(seconds_taken)
        print(f"{name:<40} {middle:6.3f} s   adds {middle - base:6.3f} s")
    return 0 if statistics.median(times["torch, then tinylm with train and load"]) - base < 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())
