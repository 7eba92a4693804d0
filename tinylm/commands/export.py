"""tinylm export."""

from __future__ import annotations

from tinylm import config as options
from tinylm.commands.command import Arguments, Command, fields
from tinylm.flags import flags


def export(given: Arguments) -> int:
    values = fields(given)
    checkpoint, out = values.pop("checkpoint"), values.pop("out")
    config = options.ExportConfig(**values).check()

    from tinylm.interop import export as run

    result = run(checkpoint, config.to, out, kind=config.kind, data=config.data)
    for line in result.checks:
        print(f"check       {line}")
    if result.evaluation is not None:
        bits = result.evaluation.bits_per_byte
        print(f"measured    {bits:.4f} bits per byte on the held-out part of {config.data}")
    print(
        f"done        {result.path.as_posix()}: {result.bytes:,} bytes, from {result.model_file.as_posix()}"
    )
    return 0


EXPORT = Command(
    "Write a checkpoint for transformers or llama.cpp, which checks it where it is installed.",
    lambda words: flags(
        options.ExportConfig,
        positional={
            "checkpoint": (str, "a run folder, a step folder or a model file"),
            "out": (str, "a folder (huggingface) or file (gguf) that does not exist yet"),
        },
    ),
    export,
)
