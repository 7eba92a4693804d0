"""What a completion asks for, whatever wire it came on, and the fields that both wires share."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.serve.fields import Fields, is_integer, is_number, shown
from tinylm.serve.prompts import Prompt
from tinylm.serve.refusals import Refusal, too_long
from tinylm.tokenizer import encode

SEEDS = 2**32 - 1
"""Seeds are 0..SEEDS-1. On llama-server's wire SEEDS itself means, like -1, that one is drawn."""

STOPS = 64
STOP_BYTES = 1024
MOST_BIAS = 1e6

DEFAULTS = GenerateConfig()


@dataclass(frozen=True)
class Limits:
    """What the server allows. `window`: tokens of prompt and answer; `prompts`: generations in one request.

    `prompt_tokens`: the longest prompt. `seed`: of requests that name none; -1 draws one. `speculate`: most
    tokens that are guessed at once.
    """

    window: int
    prompts: int
    prompt_tokens: int = 0
    seed: int = -1
    speculate: int = 0


@dataclass(frozen=True)
class Choice:
    """One generation of a request: its prompt, its configuration, and what may end it early.

    `cut`: the context ends it before the number of tokens that were asked for.
    """

    prompt: Prompt
    config: GenerateConfig
    cut: bool


@dataclass(frozen=True)
class Completion:
    """A checked request. `choices` in the order of their `index`; `n_predict` -1: until it ends by itself."""

    choices: tuple[Choice, ...]
    n_predict: int
    stream: bool = False
    bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    top: int = 0
    probabilities: bool = False
    post_sampling: bool = False
    cache_prompt: bool = True
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: tuple[str, ...] = ()
    include_usage: bool = False
    ping_seconds: float | None = None
    constraint: Mapping[str, Any] = field(default_factory=dict)


def read_sampling(fields: Fields, limits: Limits) -> GenerateConfig:
    """How tokens are drawn and what stops them; the seed is drawn where none was given."""
    seed = fields.integer(
        "seed",
        least=-1,
        most=SEEDS,
        default=limits.seed,
        rule=f"an integer from 0 to {SEEDS - 1}, or -1 for a drawn one",
    )
    return GenerateConfig(
        stop=read_stop(fields),
        temperature=fields.number("temperature", least=0, default=DEFAULTS.temperature),
        top_k=fields.integer("top_k", least=0, most=2**31 - 1, default=DEFAULTS.top_k),
        top_p=fields.number("top_p", least=0, most=1, above=True, default=DEFAULTS.top_p),
        min_p=fields.number("min_p", least=0, most=1, default=DEFAULTS.min_p),
        repeat_penalty=fields.number("repeat_penalty", least=0, above=True, default=DEFAULTS.repeat_penalty),
        presence_penalty=fields.number("presence_penalty", default=DEFAULTS.presence_penalty),
        frequency_penalty=fields.number("frequency_penalty", default=DEFAULTS.frequency_penalty),
        repeat_last_n=fields.integer(
            "repeat_last_n", least=-1, most=2**31 - 1, default=DEFAULTS.repeat_last_n
        ),
        seed=secrets.randbelow(SEEDS) if seed in (-1, SEEDS) else seed,
        speculate=limits.speculate,
    )


def read_stop(fields: Fields) -> tuple[str, ...]:
    """Stop strings: a string or a list of strings, none of them empty."""
    name, value = fields.value("stop")
    if value is None:
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        fields.problem(name, value, "a string or a list of strings")
        return ()
    if "" in words:
        fields.problem(name, value, "strings that are not empty; leave it out")
        return ()
    if len(words) > STOPS:
        fields.problems.append(f"{name} has {len(words)} strings, expected at most {STOPS}")
        return ()
    longest = max((len(encode(word)) for word in words), default=0)
    if longest > STOP_BYTES:
        fields.problems.append(f"{name} has a string of {longest} bytes, expected at most {STOP_BYTES}")
        return ()
    return tuple(words)


def read_constraint(fields: Fields) -> dict[str, Any]:
    """What may be written, as `tinylm.constraints.compile` takes it; empty where nothing is asked for.

    At most one of `grammar` (GBNF), `regex` and `json_schema` (an object), and `valid_utf8`.
    """
    found: dict[str, Any] = {name: text for name in ("grammar", "regex") if (text := fields.text(name))}
    name, schema = fields.value("json_schema")
    if schema is not None and not isinstance(schema, dict):
        fields.problem(name, schema, "an object")
    elif schema is not None:
        found[name] = schema
    if len(found) > 1:
        fields.problems.append(f"{' and '.join(found)} are given, expected at most one of them")
    if fields.boolean("valid_utf8"):
        found["valid_utf8"] = True
    return found


def read_bias(fields: Fields) -> dict[int, float]:
    """`[[id or text, number or false], ...]` or `{"id or text": number or false}`; false forbids an id.

    A key of decimal digits is an id; a text stands for each of its bytes.
    """
    name, value = fields.value("logit_bias")
    if value is None:
        return {}
    pairs: list[Any] | None = None
    if isinstance(value, dict):
        pairs = [[int(key) if key.isascii() and key.isdigit() else key, bias] for key, bias in value.items()]
    elif isinstance(value, list):
        pairs = value
    if pairs is None or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        fields.problem(name, value, "an object of ids and numbers, or a list of [id, number]")
        return {}
    bias: dict[int, float] = {}
    for key, number in pairs:
        ids: Sequence[int] = ()
        if isinstance(key, str) and key:
            ids = encode(key)
        elif is_integer(key) and 0 <= key < VOCABULARY_SIZE:
            ids = (key,)
        else:
            fields.problems.append(
                f"{name} has the token {shown(key)}, expected an id 0..{DOC_BOUNDARY} or a text"
            )
        if number is not False and (not is_number(number) or abs(number) > MOST_BIAS):
            fields.problems.append(
                f"{name} of {shown(key)} is {shown(number)}, expected a number from {-MOST_BIAS:g} to "
                f"{MOST_BIAS:g}, or false"
            )
            continue
        for token in ids:
            wanted = -math.inf if number is False else float(number)
            if bias.setdefault(token, wanted) != wanted:
                fields.problems.append(f"{name} names the id {token} twice, with two values")
    return bias


def make_choices(
    prompts: Sequence[Prompt], config: GenerateConfig, n_predict: int, copies: int, limits: Limits
) -> tuple[Choice, ...]:
    """Each prompt `copies` times, copy k under the seed `seed + k`, and no more tokens than the window has.

    Raises Refusal for a prompt that leaves no room.
    """
    found = []
    for number, prompt in enumerate(prompts):
        tokens = len(prompt.ids)
        where = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if tokens >= limits.window:
            raise too_long(tokens, limits.window, where)
        if 0 < limits.prompt_tokens < tokens:
            raise Refusal(400, f"{where}: {tokens} tokens, this server takes at most {limits.prompt_tokens}")
        room = limits.window - tokens
        cut = n_predict < 0 or n_predict > room
        for copy in range(copies):
            made = dataclasses.replace(
                config, max_tokens=room if cut else n_predict, seed=(config.seed + copy) % SEEDS
            )
            found.append(Choice(prompt, made, cut))
    return tuple(found)
