"""Print a command of the README: the fenced block that follows `<!-- command: NAME -->`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def readme_command(text: str, name: str) -> str:
    """The text of the block; raises LookupError unless there is exactly one."""
    block = rf"^<!-- command: {re.escape(name)} -->\s*^```(?:bash|sh)\n(.*?)^```$"
    found = re.findall(block, text, re.MULTILINE | re.DOTALL)
    if len(found) != 1:
        raise LookupError(
            f"{README.name}: expected one bash block after '<!-- command: {name} -->', found {len(found)}"
        )
    return str(found[0])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .ci/readme_command.py NAME")
    try:
        print(readme_command(README.read_text(encoding="utf-8"), sys.argv[1]), end="")
    except (LookupError, OSError) as problem:
        sys.exit(f"readme_command: {problem}")
