"""The figures of the stages: SVG whose text stays text, readable on light and on dark paper.

A few kinds are enough: lines, bars, maps, stacks, grids. Each function returns the bytes of one SVG.
matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinylm.plots import svg_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Each reaches a contrast of 3 on white and on the dark paper of the book.
COLORS = ("#3b82d0", "#c8741b", "#2f9560", "#9a6ad6", "#c8518f", "#7f8790")
INK = "#010203"  # stands for the reader's own text colour; `svg` replaces it
PAPER = (
    "<style>svg{color:#24292f}text{fill:currentColor;font-family:system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){svg{color:#dfe3e8}}</style>"
)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    loose: Sequence[str] = (),
    levels: Mapping[str, float] | None = None,
    log: str = "",
    marks: bool = True,
    ticks: Sequence[str] = (),
) -> bytes:
    """A line for each series of (x, y), its points alone for those in `loose`; level lines at `levels`.

    `log` names the logarithmic axes, "x", "y" or "xy"; one that has to hold a 0 is linear up to the power
    of ten below its smallest other value. `ticks` are what stands at x = 0, 1, 2 and so on in place of
    these numbers, in several lines where it is long.
    """
    from matplotlib.ticker import LogFormatter

    figure, axes = _figure()
    for color, (name, points) in zip(_colors(len(series)), series.items(), strict=True):
        style = "o" if name in loose else "o-" if marks else "-"
        axes.plot(*zip(*points, strict=True), style, color=color, label=name, markersize=4)
    for style, (name, level) in zip(("--", ":", "-."), (levels or {}).items(), strict=False):
        axes.axhline(level, color=INK, linewidth=1, linestyle=style, label=name)
    every = [point for points in series.values() for point in points]
    for axis, values in zip("xy", zip(*every, strict=True), strict=True):
        if axis not in log and all(float(value).is_integer() for value in values):  # no 2.5 tokens
            getattr(axes, f"{axis}axis").get_major_locator().set_params(integer=True)
    for axis in log:
        sizes = {abs(point["xy".index(axis)]) for point in every}
        kind: dict[str, Any] = {"value": "log"}
        if 0 in sizes and len(sizes) > 1:
            least = 10.0 ** np.floor(np.log10(min(sizes - {0})))
            kind = {"value": "symlog", "linthresh": least, "linscale": 2}
        getattr(axes, f"set_{axis}scale")(**kind)
        getattr(axes, f"{axis}axis").set_major_formatter("{x:,g}")
    if ticks:
        wrap = textwrap.TextWrapper(width=72 // len(ticks), break_long_words=False)
        axes.set_xticks(range(len(ticks)), map(wrap.fill, ticks))
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.2, color=INK, axis="y" if ticks else "both")
    axes.legend(frameon=False, labelcolor=INK)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":  # an axis of about one power of ten says 2 and 5, too
            axis.set_minor_formatter(LogFormatter())
    return svg(figure)


def bars(rows: Sequence[tuple[str, float, float, str]], *, x: str) -> bytes:
    """A bar from 0 for each (name, length, of how much, what stands at its end), from top to bottom.

    A bar that is as long as it could be is drawn in another colour than one that stopped before.
    """
    figure, axes = _figure(height=0.42 * len(rows) + 0.9)
    places = np.arange(len(rows))[::-1]
    full = [length == whole for _, length, whole, _ in rows]
    axes.barh(places, [row[2] for row in rows], color=INK, alpha=0.08)
    axes.barh(places, [row[1] for row in rows], color=[COLORS[1] if done else COLORS[0] for done in full])
    for place, (_, length, whole, end) in zip(places, rows, strict=True):
        axes.annotate(end, (max(length, whole), place), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(places, [row[0] for row in rows])
    axes.set(xlabel=x, xlim=(0, 1.4 * max(row[2] for row in rows)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return svg(figure)


def maps(panels: Mapping[str, npt.ArrayLike], *, x: str, y: str, scale: str) -> bytes:
    """A square map for each panel [rows, columns], values from 0; what is exactly 0 stays empty."""
    figure, first = _figure(width=3.4 * len(panels) + 0.6, height=3.6, panels=len(panels))
    values = {name: np.ma.masked_equal(np.asarray(panel, dtype=float), 0) for name, panel in panels.items()}
    top = max(float(panel.max()) for panel in values.values())
    for axes, (name, panel) in zip(figure.axes, values.items(), strict=True):
        drawn = axes.imshow(panel, vmin=0, vmax=top, cmap="plasma", interpolation="none")
        axes.set(xlabel=x, ylabel=y if axes is first else "", title=name)
    bar = figure.colorbar(drawn, ax=figure.axes, label=scale, shrink=0.8)
    bar.outline.set_edgecolor(INK)
    bar.ax.set_facecolor("none")
    return svg(figure)


def grid(rows: Mapping[str, Sequence[bool]], columns: Sequence[str], *, yes: str, no: str) -> bytes:
    """A mark for each row and column, from top to bottom: filled where `yes`, empty where `no`."""
    figure, axes = _figure(height=0.3 * len(rows) + 1.2)
    every = [(place, -at, cell) for at, row in enumerate(rows.values()) for place, cell in enumerate(row)]
    for truth, name, color, fill in ((True, yes, COLORS[1], COLORS[1]), (False, no, COLORS[0], "none")):
        places = [(x, y) for x, y, cell in every if cell is truth]
        axes.scatter(
            *np.reshape(places, (-1, 2)).T, s=70, c=fill, edgecolors=color, linewidths=1.5, label=name
        )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(0, -len(rows), -1), list(rows))
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(0.6 - len(rows), 0.6))
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(axis="y", alpha=0.2, color=INK)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=INK)
    return svg(figure)


def svg(figure: Figure) -> bytes:
    """A figure as SVG, always the same for the same numbers; its ink follows light and dark paper."""
    text = svg_bytes(figure, outlines=False).decode("utf-8")
    text = text.replace(INK, "currentColor").replace("#000000", "currentColor")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    return re.sub(r"(<svg [^>]*>)", lambda found: found[1] + PAPER, text, count=1).encode("utf-8")


def _figure(
    width: float = 7.0, height: float = 3.8, panels: int = 1, across: bool = True
) -> tuple[Figure, Any]:
    """A figure in the style of the house, its panels side by side or one under the other; its first axes."""
    import matplotlib
    from matplotlib.figure import Figure

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = dict.fromkeys(ink, INK) | {"font.size": 10, "axes.titlesize": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        axes: Any = figure.subplots(*((1, panels) if across else (panels, 1)), squeeze=False)
        for one in axes.flat:
            one.set_facecolor("none")
            if panels == 1 or not across:
                one.spines[["top", "right"]].set_visible(False)
        return figure, axes[0][0]


def _colors(number: int) -> list[str]:
    return [COLORS[i % len(COLORS)] for i in range(number)]


def stacks(panels: Mapping[str, Sequence[Sequence[str]]], kinds: Sequence[str], *, x: str, y: str) -> bytes:
    """Columns of cells: a panel for each name, one under the other, and one legend for all.

    A column lists the kinds of its cells from below; a kind has the colour of its place in `kinds`.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    figure, first = _figure(height=1.5 * len(panels) + 0.8, panels=len(panels), across=False)
    corners = np.array([(0.1, 0.1), (0.9, 0.1), (0.9, 0.9), (0.1, 0.9)])
    for axes, (name, columns) in zip(figure.axes, panels.items(), strict=True):
        every = [(i, j, cell) for i, column in enumerate(columns) for j, cell in enumerate(column)]
        for color, kind in zip(_colors(len(kinds)), kinds, strict=True):
            places = np.reshape([(i, j) for i, j, cell in every if cell == kind], (-1, 1, 2))
            cells = Path.make_compound_path_from_polys(places + corners)
            axes.add_patch(PathPatch(cells, facecolor=color, linewidth=0, label=kind))
        axes.set(ylabel=y, title=name, xlim=(0, len(columns)), ylim=(0, max(map(len, columns))))
        axes.locator_params(integer=True)
    axes.set_xlabel(x)
    named = first.get_legend_handles_labels()
    figure.legend(*named, loc="outside upper center", ncols=len(kinds), frameon=False, labelcolor=INK)
    return svg(figure)
