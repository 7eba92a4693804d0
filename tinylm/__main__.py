"""`python -m tinylm` is the command tinylm."""

import sys

from tinylm.cli import main

if __name__ == "__main__":
    sys.exit(main())
