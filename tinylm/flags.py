"""From the dataclasses of config.py to the arguments of a command (for tyro)."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tinylm import config as options


def flags(
    source: type,
    *,
    default: object = None,
    positional: Mapping[str, tuple[Any, str]] = {},
    extra: Mapping[str, tuple[Any, Any, str]] = {},
    without: Sequence[str] = (),
) -> type:
    """A dataclass for tyro with the fields of `source`: positional arguments first, `extra` flags last.

    Positional entries are (type, help), extra ones (type, default, help). `default` is an instance of
    `source` that gives the defaults; a nested configuration becomes flags of the same level.
    """
    import tyro

    hints = get_type_hints(source)
    made: list[tuple[str, Any, Any]] = []
    for name, (kind, help) in positional.items():
        optional = type(None) in get_args(kind)
        placeholder = f"[{name.upper()}]" if optional else name.upper()
        kind = annotated(kind, tyro.conf.Positional, described(kind, None, help, placeholder))
        made.append((name, kind, dataclasses.field(default=None) if optional else dataclasses.field()))
    for field in dataclasses.fields(source):
        if field.name in positional or field.name in without:
            continue
        value = field.default if default is None else getattr(default, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            nested = flags(type(value), default=value)
            made.append((field.name, nested, dataclasses.field(default_factory=nested)))
            continue
        kind = annotated(hints[field.name], described(hints[field.name], value, field.metadata["help"]))
        made.append((field.name, kind, dataclasses.field(default=value)))
    for name, (kind, value, help) in extra.items():
        kind = annotated(kind, described(kind, value, help))
        made.append((name, kind, dataclasses.field(default=value)))
    return dataclasses.make_dataclass(source.__name__, made, kw_only=True)


def annotated(kind: Any, *notes: object) -> Any:
    """Annotated[kind, *notes], for a type that is only known when the program runs."""
    return operator.getitem(Annotated, (kind, *notes))


def described(kind: Any, default: object, help: str, metavar: str | None = None) -> object:
    """Help text and placeholder of an argument; what None stands for is said by the text itself."""
    import tyro

    choices = [part for part in get_args(kind) if part is not type(None)]
    if metavar is None and type(None) in get_args(kind):
        metavar = str(choices[0].__name__).upper()
        if get_origin(choices[0]) is Literal:
            metavar = f"{{{','.join(map(str, get_args(choices[0])))}}}"
    hint = "" if default in (None, ()) else None
    return tyro.conf.arg(help=help, metavar=metavar, help_behavior_hint=hint)


def train_flags(words: list[str]) -> type:
    """The flags of `tinylm train`: their defaults depend on --config, --init and --preset."""
    base = options.TrainConfig(data="")
    if path := flag_value(words, "--config"):
        base = options.read_run_config(path)
        if flag_value(words, "--minutes") is not None:
            base = dataclasses.replace(base, steps=None)
    name = flag_value(words, "--preset")
    model = base.model
    if name is not None or model is None:
        model = options.preset(name or base.preset)
    if (init := flag_value(words, "--init")) and name is None:
        from tinylm.checkpoint import load_model

        model = load_model(init).config
    data = "a corpus folder, or any source of text (a corpus is built from it first)"
    return flags(
        options.TrainConfig,
        default=dataclasses.replace(base, model=model),
        positional={"data": (str | None, data)},
        extra={
            "config": (str | None, None, "take defaults from this run.json"),
            "resume": (str | None, None, "go on with this run instead of starting one"),
        },
    )


def flag_value(words: Sequence[str], flag: str) -> str | None:
    """The value of a flag that must be known before the others are parsed."""
    for position, word in enumerate(words):
        if word == flag and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(flag + "="):
            return word[len(flag) + 1 :]
    return None


def one_line(box: str) -> str:
    """What a box of the parser says, on one line."""
    lines = (re.sub(r"[─━│╭╮╰╯┃]+", " ", line).strip() for line in box.splitlines())
    return " ".join(line for line in lines if line)
