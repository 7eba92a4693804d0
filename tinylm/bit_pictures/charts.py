"""The two charts of a tally, the same bytes for the same numbers. matplotlib is needed only here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinylm.bit_pictures.tally import BOUNDARY, NAMES, PLACES, ClassBits, Tally
from tinylm.contract import VOCABULARY_SIZE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, LINE, END = "#444444", "#2f6690", "#d1495b"
SHADES = ("#2f6690", "#6f9fc4", "#a3c4dc", "#cfe0ec")
SCRIPTS_SHOWN = 10
UNIFORM = math.log2(VOCABULARY_SIZE)
LABEL: dict[str, Any] = {
    "va": "center",
    "color": INK,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.6},  # lines pass behind it
}
ROW = 0.42  # inches


def position_figure(tally: Tally, title: str) -> Figure:
    """Bits per byte by the number of tokens that a target was predicted from: what context buys."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    points = tally.by_position()
    figure = Figure(figsize=(7, 4), layout="constrained", facecolor="white")
    axes: Any = figure.add_subplot()
    contexts = [point.context for point in points]
    values = [point.bits_per_byte for point in points]
    errors = [0.0 if math.isnan(point.standard_error) else point.standard_error for point in points]
    axes.fill_between(
        contexts,
        [value - error for value, error in zip(values, errors, strict=True)],
        [value + error for value, error in zip(values, errors, strict=True)],
        color=LINE,
        alpha=0.2,
        linewidth=0,
        label="± 1 standard error",
    )
    axes.plot(contexts, values, "o-", color=LINE, markersize=3, linewidth=1.4, label="at this context")
    axes.axhline(tally.bits_per_byte, color=END, linewidth=1, linestyle="--", label="over all targets")
    axes.annotate(
        f"{tally.bits_per_byte:.3f}",
        (0.0, tally.bits_per_byte),
        xycoords=("axes fraction", "data"),
        xytext=(4, 4),
        textcoords="offset points",
        color=END,
    )
    axes.set_xscale("log", base=2)
    ticks = [2**power for power in range(math.ceil(math.log2(points[-1].last)) + 1)]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xlim(0.9, 1.1 * points[-1].last)
    axes.set(xlabel="tokens of context (log scale)", ylabel="bits per byte", title=title)
    _finish(axes)
    axes.legend(frameon=False)
    return figure


def classes_figure(tally: Tally, title: str) -> Figure:
    """Two bars for each class of byte: what one token costs, and what the class adds to all bits."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = chart_rows(tally.by_class())
    total_bits, total_tokens = tally.bits, tally.tokens
    figure = Figure(figsize=(8.5, 1.6 + ROW * len(rows)), layout="constrained", facecolor="white")
    dear: Any
    share: Any
    dear, share = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1))
    most = max(part.mean for row in rows for part in row)
    shares = [(sum(part.bits for part in row), sum(part.tokens for part in row)) for row in rows]
    widest = max(max(bits / total_bits, tokens / total_tokens) for bits, tokens in shares)
    for place, row in enumerate(rows):
        height = 0.8 / len(row)
        left = 0.0
        for index, part in enumerate(row):
            color = END if part.name == NAMES[BOUNDARY] else SHADES[_shade(part)]
            center = place - 0.4 + height * (index + 0.5)
            dear.barh(center, part.mean, height * 0.92, color=color)
            dear.text(part.mean + most * 0.015, center, f"{part.mean:.2f}", fontsize=6.5, **LABEL)
            share.barh(place, part.bits / total_bits, 0.7, left=left, color=color)
            left += part.bits / total_bits
        tokens = shares[place][1] / total_tokens
        share.plot([tokens, tokens], [place - 0.42, place + 0.42], color=INK, linewidth=1.2)
        share.text(left + widest * 0.02, place, f"{left:.1%}", fontsize=7.5, **LABEL)
    if most > UNIFORM:
        dear.axvline(UNIFORM, color=INK, linewidth=0.8, linestyle=":")
        dear.annotate(
            "uniform guess",
            (UNIFORM, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -8),
            textcoords="offset points",
            color=INK,
            fontsize=7,
        )
    dear.set_yticks(range(len(rows)), [row[0].name for row in rows])
    dear.set_ylim(len(rows) - 0.4, -0.6)
    dear.set_xlim(0, most * 1.14)
    share.set_xlim(0, widest * 1.18)
    share.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    dear.set(xlabel="bits per token")
    share.set(xlabel="share of all bits (line: share of all tokens)")
    for axes in (dear, share):
        _finish(axes)
        axes.grid(axis="y", alpha=0)
        axes.tick_params(axis="y", length=0)
    several = any(part.place for row in rows for part in row)
    if several:
        names = ("1st or only byte", *PLACES[1:])
        figure.legend(
            [Patch(color=shade) for shade in SHADES],
            [f"{name} of a character" if not index else name for index, name in enumerate(names)],
            loc="outside lower center",
            ncols=4,
            frameon=False,
            fontsize=8,
        )
    figure.suptitle(title, fontsize=11)
    return figure


def chart_rows(classes: Sequence[ClassBits]) -> list[list[ClassBits]]:
    """The classes of each row of the chart; scripts after the dearest ten share one."""
    rows: dict[str, list[ClassBits]] = {}
    for found in classes:
        rows.setdefault(found.name, []).append(found)
    scripts = [name for name, row in rows.items() if row[0].place]
    rest = scripts[SCRIPTS_SHOWN:] if len(scripts) > SCRIPTS_SHOWN + 1 else []
    if rest:
        parts = []
        for place in PLACES:
            members = [part for name in rest for part in rows[name] if part.place == place]
            tokens, bits = sum(part.tokens for part in members), sum(part.bits for part in members)
            if tokens:
                parts.append(ClassBits(f"{len(rest)} more scripts", place, tokens, bits))
        rows = {
            name: (parts if name == rest[0] else row)
            for name, row in rows.items()
            if name == rest[0] or name not in rest
        }
    return list(rows.values())


def _shade(part: ClassBits) -> int:
    return PLACES.index(part.place) if part.place else 0


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
