"""tinylm quickstart."""

from __future__ import annotations

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, ended, fields
from tinylm.flags import flags


def quickstart(given: Arguments) -> int:
    from tinylm.progress import console
    from tinylm.quickstart import quickstart as run

    return ended(run(options.QuickstartConfig(**fields(given)), console(stderr=False)).signal)


QUICKSTART = Command(
    "The main job on real text, once through, in about three minutes.",
    lambda words: flags(options.QuickstartConfig),
    quickstart,
)
