"""Check what you wrote: python stages/exercises/check.py 04 (without a number: every exercise)."""

import sys
from pathlib import Path

from tinylm.walkthrough.exercises import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
