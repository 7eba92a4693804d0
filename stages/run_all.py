"""Run the stages in order, compare the numbers of their pages, and bind everything into one HTML book.

python stages/run_all.py [--quick] [--only 4 6] [--book FILE]
"""

import os
import sys
from pathlib import Path

from tinylm.walkthrough.runs import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent, os.environ))
