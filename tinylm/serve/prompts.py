"""Prompts as they stand in a request, to the ids that the model is fed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinylm.contract import DOC_BOUNDARY
from tinylm.serve.fields import is_integer, shown
from tinylm.tokenizer import debug_decode, encode


@dataclass(frozen=True)
class Prompt:
    """`ids`: as the model is fed. `text`: as it is shown in answers."""

    ids: tuple[int, ...]
    text: str


def read_prompts(value: Any, problems: list[str], most: int) -> tuple[Prompt, ...]:
    """The prompts of a request; what is wrong with them is added to `problems`.

    A text becomes [256, *its bytes]; a list with at least one id is one prompt (ids as they are, texts
    in it as their bytes, the boundary before it where it begins with a text); any other list is several.
    """
    if value is None:
        problems.append('prompt is missing, expected a string or ids ("" begins a document)')
        return ()
    several = isinstance(value, list) and not any(isinstance(item, int | float) for item in value)
    items = value if several else [value]
    if not items:
        problems.append(
            f'prompt is [], which must not be empty, expected at least one id ("" or [{DOC_BOUNDARY}] '
            "begins a document)"
        )
    if len(items) > most:
        problems.append(f"prompt is a list of {len(items)} prompts, expected at most {most} in one request")
        return ()
    found = []
    for number, item in enumerate(items):
        prompt = _read(item, f"prompt[{number}]" if several else "prompt", problems)
        if prompt is not None:
            found.append(prompt)
    return tuple(found)


def _read(value: Any, where: str, problems: list[str]) -> Prompt | None:
    if isinstance(value, dict):
        return _read_object(value, where, problems)
    if isinstance(value, str):
        return Prompt((DOC_BOUNDARY, *encode(value)), value)
    if not isinstance(value, list):
        problems.append(f"{where} is {shown(value)}, expected a string or a list of ids")
        return None
    if not value:
        problems.append(f"{where} is [], which must not be empty, expected at least one id")
        return None
    ids: list[int] = [DOC_BOUNDARY] if isinstance(value[0], str) else []
    for position, item in enumerate(value):
        if isinstance(item, str):
            ids += encode(item)
        elif is_integer(item) and 0 <= item <= DOC_BOUNDARY:
            ids.append(item)
        else:
            problems.append(
                f"{where}[{position}] is {shown(item)}, expected an id 0..{DOC_BOUNDARY} or a string"
            )
            return None
    return Prompt(tuple(ids), debug_decode(ids))


def _read_object(value: dict[str, Any], where: str, problems: list[str]) -> Prompt | None:
    for name in value:
        if name not in ("prompt_string", "multimodal_data"):
            problems.append(f"{where} has the key {shown(name)}, expected prompt_string")
    if value.get("multimodal_data") not in (None, []):
        problems.append(f"{where}.multimodal_data is not supported here: the model reads bytes; leave it out")
    text = value.get("prompt_string")
    if not isinstance(text, str):
        problems.append(f"{where}.prompt_string is {shown(text)}, expected a string")
        return None
    return Prompt((DOC_BOUNDARY, *encode(text)), text)
