"""Where a model's bits go: by length of context, by class of byte, and over a text."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tinylm import files
from tinylm.bit_pictures.page import text_page
from tinylm.bit_pictures.tally import ClassBits, PositionBits, Tally, tally
from tinylm.corpus import Split
from tinylm.evaluate import Scored, Scorer

__all__ = ["CLASSES", "POSITION", "TEXT", "ClassBits", "PositionBits", "Tally", "draw_pictures", "tally"]

POSITION, CLASSES, TEXT = "position.svg", "classes.svg", "text.html"


def draw_pictures(
    model: Scorer,
    split: Split,
    folder: str | os.PathLike[str],
    scores: Iterable[Scored],
    note: Callable[[str], None],
) -> list[Path]:
    """Write `position.svg`, `classes.svg` and `text.html` into a folder; returns those written.

    `scores` are those of `evaluate.score(model, split, ...)`, each target at most once; they are added up
    as they come. Files of these names are replaced. Where matplotlib is missing, says so through `note`
    and writes the page only. Raises RequestError where no byte was scored.
    """
    folder = Path(folder)
    found = tally(split, model.config.window, scores)
    config = model.config
    shape = f"{config.layers} layers x {config.width}, window {config.window}, policy {config.policy}"
    title = split.name.encode("utf-8", "replace").decode()
    pictures = {TEXT: text_page(found, title, shape)}
    if importlib.util.find_spec("matplotlib") is None:
        note(f"no {POSITION} and no {CLASSES}: matplotlib is not installed")
    else:
        from tinylm.bit_pictures.charts import classes_figure, position_figure
        from tinylm.plots import svg_bytes

        pictures[POSITION] = svg_bytes(position_figure(found, f"{title}: {shape}"))
        pictures[CLASSES] = svg_bytes(classes_figure(found, f"{title}: {shape}"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        files.write_atomic(folder / name, data)
    return [folder / name for name in (POSITION, CLASSES, TEXT) if name in pictures]
