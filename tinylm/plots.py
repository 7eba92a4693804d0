"""The pictures of a run, the same bytes for the same numbers. matplotlib is needed only here."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinylm import files, metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE = "curve.svg"
INK, TRAIN, HELD_OUT = "#444444", "#8ab6d6", "#d1495b"


def draw_curve(run: Path, note: Callable[[str], None]) -> Path | None:
    """Draw `curve.svg` from the metrics of a run: training loss per step, held-out bits per byte.

    Where matplotlib is missing, says so through `note` and draws nothing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        note("no picture: matplotlib is not installed")
        return None
    rows = metrics.read_metrics(run)
    steps = [row for row in rows if "loss" in row]
    marks = [(row["step"], row["validation"]["bits_per_byte"]) for row in rows if "validation" in row]
    if not steps:
        return None
    figure = _figure(
        [row["step"] for row in steps],
        [row["loss"] / math.log(2) for row in steps],
        marks,
        run.name.encode("utf-8", "replace").decode(),
    )
    files.write_atomic(run / CURVE, svg_bytes(figure, outlines=run.name.isascii()))
    return run / CURVE


def svg_bytes(figure: Figure, *, outlines: bool = True) -> bytes:
    """A figure as SVG without dates or random ids.

    With `outlines` its text is drawn, else it stays text in the reader's own fonts: matplotlib's know few
    scripts.
    """
    import matplotlib

    buffer = io.BytesIO()
    kind: Any = {"svg.hashsalt": "tinylm", "svg.fonttype": "path" if outlines else "none"}
    with matplotlib.rc_context(kind), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "tinylm"})
    return buffer.getvalue()


def smooth(values: Sequence[float], span: int) -> list[float]:
    """Exponentially weighted mean over about `span` values, unbiased at the start."""
    mean, weight, result = 0.0, 0.0, []
    keep = 1 - 1 / max(1, span)
    for value in values:
        mean, weight = keep * mean + (1 - keep) * value, keep * weight + (1 - keep)
        result.append(mean / weight)
    return result


def _figure(steps: list[int], bits: list[float], marks: list[tuple[int, float]], title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained", facecolor="white")
    axes: Any = figure.add_subplot()
    axes.plot(steps, bits, color=TRAIN, alpha=0.45, linewidth=0.8)
    axes.plot(steps, smooth(bits, max(1, len(bits) // 40)), color="#2f6690", label="training, bits per token")
    if marks:
        axes.plot(
            *zip(*marks, strict=True), "o-", color=HELD_OUT, markersize=4, label="held out, bits per byte"
        )
        axes.annotate(
            f"{marks[-1][1]:.3f}",
            marks[-1],
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
            color=HELD_OUT,
        )
    axes.set(xlabel="step", title=title)
    low = min([*(value for _, value in marks), *smooth(bits, max(1, len(bits) // 40))])
    axes.set_ylim(max(0.0, math.floor(2 * low) / 2 - 0.5), 8.3)
    axes.axhline(math.log2(257), color=INK, linewidth=0.8, linestyle=":")
    axes.annotate(
        "uniform",
        (steps[-1], math.log2(257)),
        xytext=(0, -10),
        textcoords="offset points",
        ha="right",
        color=INK,
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure
