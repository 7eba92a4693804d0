"""The README's table of ratios, made of the result files of the benchmarks.

    python benchmarks/report.py [RESULTS_DIR] [--readme README.md] [--allow-missing]

Prints the table; with --readme it replaces what stands between <!--benchmarks--> and <!--/benchmarks-->.
Refused, with the command that makes a good one: a file that is missing, that a short form wrote, or that was
measured in another way than its benchmark measures now (its VERSION was raised since).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import measuring

BEGIN, END = "<!--benchmarks-->", "<!--/benchmarks-->"
COMMANDS = {
    "time_to_quality": "TINYSHAKESPEARE --nanogpt DIR --steps ...",
    "throughput": "--nanogpt DIR --transformers-python PYTHON",
    "decoding": "--node-modules DIR",
    "speculation": "checkpoints/sample-nano builtin:docs",
    "corpus": "",
    "checkpoint": "",
    "memory": "",
    "gpu": "--corpora DIR",
}
"""The benchmarks of the table, in its order, and what their commands need."""
BORROWED = ("gpu",)
"""What needs a machine that is only lent now and then: the table is made without it, and says so."""
FIELDS = {
    "question": str,
    "unit": str,
    "ours": str,
    "ours_value": (int, float, type(None)),
    "peer": str,
    "peer_value": (int, float),
    "ratio": (int, float),
    "target": (int, float, type(None)),
}
"""What a comparison holds."""


class Refused(Exception):
    """A result file that no table may be made of."""


def command_of(name: str) -> str:
    """The command that writes a result file."""
    return f"python benchmarks/{name}.py {COMMANDS[name]} --json benchmarks/results/{name}.json".replace(
        "  ", " "
    )


def version_of(name: str) -> int | None:
    """The VERSION that a benchmark's source states; None if it states none."""
    source = (measuring.ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8")
    found = re.search(r"^VERSION = (\d+)$", source, re.MULTILINE)
    return int(found[1]) if found else None


def read(path: Path, name: str, version: int | None) -> dict[str, Any]:
    """A result file, whole and up to date; Refused names the command that makes one."""
    again = f"; make it with: {command_of(name)}"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{path}: is missing{again}") from None
    except ValueError as error:
        raise Refused(f"{path}: is not JSON ({error}){again}") from None
    if not isinstance(result, dict) or result.get("format") != measuring.FORMAT:
        raise Refused(f"{path}: is not a result of format {measuring.FORMAT}{again}")
    if result.get("benchmark") != name:
        raise Refused(f"{path}: is a result of {result.get('benchmark')!r}, expected {name!r}{again}")
    if result.get("short") is not False:
        raise Refused(f"{path}: was written by a short form{again}")
    if result.get("version") != version:
        raise Refused(
            f"{path}: was measured as version {result.get('version')} of {name} did, which is at version "
            f"{version} now{again}"
        )
    comparisons, machine = result.get("comparisons"), result.get("machine")
    if not isinstance(comparisons, list) or not comparisons:
        raise Refused(f"{path}: compares nothing{again}")
    for comparison in comparisons:
        if problem := problem_of(comparison):
            raise Refused(f"{path}: {problem}{again}")
    if not isinstance(machine, dict) or not {"processor", "cores", "threads", "torch"} <= machine.keys():
        raise Refused(f"{path}: does not say which machine{again}")
    if not isinstance(result.get("load"), dict) or not isinstance(result.get("date"), str):
        raise Refused(f"{path}: says no load or date{again}")
    return result


def problem_of(comparison: object) -> str | None:
    """What is wrong with a comparison, or None."""
    if not isinstance(comparison, dict) or comparison.keys() != FIELDS.keys():
        return f"a comparison does not hold {', '.join(FIELDS)}"
    for name, kinds in FIELDS.items():
        value = comparison[name]
        if isinstance(value, bool) or not isinstance(value, kinds):  # type: ignore[arg-type]
            return f"{name} of a comparison is {value!r}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} of a comparison is {value!r}"
    return None


def table(results: Sequence[Mapping[str, Any]], missing: Sequence[str] = ()) -> str:
    """The Markdown between the markers: machines, a row for each comparison, what was not measured."""
    machines = list(dict.fromkeys(machine_of(result) for result in results))
    numbered = len(machines) > 1
    lines = [f"Measured on {'; '.join(_numbered(machines))}. Above 1, tinylm is better.", ""]
    lines += ["| question | tinylm | best peer | ratio | measured |", "|---|---|---|---|---|"]
    for result in results:
        when = f"{result['date'][:10]}, load {load_of(result)}"
        if numbered:
            when += f", ({machines.index(machine_of(result)) + 1})"
        for each in result["comparisons"]:
            cells = [
                each["question"],
                f"{each['ours']}: {measuring.quantity(each['ours_value'], each['unit'])}",
                f"{each['peer']}: {measuring.quantity(each['peer_value'], each['unit'])}",
                ratio_cell(each["ratio"], each["target"]),
                when,
            ]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if missing:
        lines += ["", f"Not measured here: {', '.join(missing)}."]
    return "\n".join(lines)


def ratio_cell(ratio: float, target: float | None) -> str:
    """A ratio, bold where it is at least 1, and the target where it was missed."""
    # Cut, not rounded: 0.999 is not 1.00, and 1.299 has not reached 1.30.
    shown = f"{math.floor(ratio * 100 + 1e-9) / 100:.2f}" if ratio < 100 else f"{ratio:.0f}"
    told = f"**{shown}**" if ratio >= 1 else shown
    return told if target is None or ratio >= target else f"{told} (target {target:g})"


def machine_of(result: Mapping[str, Any]) -> str:
    """A machine in words."""
    machine = result["machine"]
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
    return f"{machine['processor']}{gpu}, {machine['cores']} cores, {threads}, torch {machine['torch']}"


def load_of(result: Mapping[str, Any]) -> str:
    """The load before a benchmark, and that the machine was busy where it was."""
    before = result["load"].get("before")
    if before is None:
        return "unknown"
    note = " (busy)" if measuring.busy(before, result["machine"]["cores"]) else ""
    return f"{before:.2f}{note}"


def _numbered(machines: Sequence[str]) -> list[str]:
    return [f"({i}) {each}" for i, each in enumerate(machines, 1)] if len(machines) > 1 else list(machines)


def between_markers(page: str, content: str) -> str:
    """A page with `content` between its markers; Refused unless it has each of them once, in order."""
    begin, end = page.find(BEGIN), page.find(END)
    if page.count(BEGIN) != 1 or page.count(END) != 1 or end < begin:
        raise Refused(f"the page needs {BEGIN} and {END}, once each, in this order")
    return f"{page[: begin + len(BEGIN)]}\n{content}\n{page[end:]}"


def collect(folder: Path, allow_missing: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """The results of a folder in the order of the table, and the benchmarks that are missing."""
    results, missing = [], []
    for name in COMMANDS:
        path = folder / f"{name}.json"
        if (allow_missing or name in BORROWED) and not path.exists():
            missing.append(name)
            continue
        known = (measuring.ROOT / "benchmarks" / f"{name}.py").is_file()
        results.append(read(path, name, version_of(name) if known else None))
    if not results:
        raise Refused(f"{folder}: holds no results; make the first with: {command_of(next(iter(COMMANDS)))}")
    return results, missing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=measuring.RESULTS)
    parser.add_argument("--readme", type=measuring.existing_file, help="write the table into this page")
    parser.add_argument(
        "--allow-missing", action="store_true", help="say below the table what is missing, do not refuse"
    )
    options = parser.parse_args()
    try:
        content = table(*collect(options.results, options.allow_missing))
        if options.readme is not None:
            page = options.readme.read_bytes().decode("utf-8")
            options.readme.write_bytes(between_markers(page, content).encode("utf-8"))
    except Refused as refused:
        print(f"report.py: {refused}", file=sys.stderr)
        return 2
    print(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
