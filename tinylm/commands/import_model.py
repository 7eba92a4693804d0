"""tinylm import."""

from __future__ import annotations

from tinylm import config as options
from tinylm.commands.command import Arguments, Command
from tinylm.flags import flags


def import_model(given: Arguments) -> int:
    from tinylm.interop import import_model as run
    from tinylm.model import parameter_count

    result = run(given.folder, given.run)
    for note in result.notes:
        print(f"note        {note}")
    shape = result.model.config
    print(
        f"model       {shape.layers} layers x {shape.width}, window {shape.window}, policy {shape.policy}: "
        f"{parameter_count(shape):,} parameters"
    )
    place = result.run.as_posix()
    print(f"done        {place}; train it on with: tinylm train DATA --init {place}")
    return 0


IMPORT = Command(
    "Make a run of a Hugging Face folder, such as an export that was fine-tuned elsewhere.",
    lambda words: flags(
        options.Nothing,
        positional={
            "folder": (str, "a folder that export or save_pretrained wrote"),
            "run": (str, "folder of the run; must not exist"),
        },
    ),
    import_model,
)
