"""llama-server's wire: requests of /completion, its events and its answers. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.serve.answers import Answer, token_probabilities
from tinylm.serve.fields import Fields
from tinylm.serve.prompts import read_prompts
from tinylm.serve.requests import (
    DEFAULTS,
    SEEDS,
    Choice,
    Completion,
    Limits,
    make_choices,
    read_bias,
    read_constraint,
    read_sampling,
)
from tinylm.tokenizer import debug_decode, encode

if TYPE_CHECKING:
    from tinylm.generate import Sampled

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "typ_p": (1,),
    "top_n_sigma": (-1, 0),
    "dynatemp_range": (0,),
    "dynatemp_exponent": (),
    "xtc_probability": (0,),
    "xtc_threshold": (),
    "dry_multiplier": (0,),
    "dry_base": (),
    "dry_allowed_length": (),
    "dry_penalty_last_n": (),
    "dry_sequence_breakers": (),
    "mirostat": (0,),
    "mirostat_tau": (),
    "mirostat_eta": (),
    "adaptive_target": (-1,),
    "adaptive_decay": (),
    "min_keep": (0, 1),
    "n_keep": (0,),
    "n_discard": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "samplers": (["temperature", "top_k", "top_p", "min_p"],),
    "id_slot": (-1,),
    "slot_id": (-1,),
    "lora": ([],),
    "grammar_lazy": (False,),
    "grammar_triggers": ([],),
    "preserved_tokens": ([],),
    "image_data": ([],),
    "backend_sampling": (False,),
    "input_prefix": ("",),
    "input_suffix": ("",),
    "model": (),
    "user": (),
}
"""Fields that llama-server knows and this server does not support, with the values that change nothing.

An empty entry has an effect only beside another field that is refused.
"""

STOP_TYPES = {"boundary": "eos", "limit": "limit", "stop": "word"}


def read_completion(body: Mapping[str, Any], limits: Limits) -> Completion:
    """A checked request of POST /completion. Raises Refusal 400 with all problems at once."""
    fields = Fields(body)
    prompts = read_prompts(fields.value("prompt")[1], fields.problems, limits.prompts)
    n_predict = fields.integer(
        "n_predict", "max_completion_tokens", "max_tokens", least=-1, most=2**31 - 1, default=-1
    )
    copies = fields.integer("n", "n_cmpl", least=1, most=limits.prompts, default=1)
    config = read_sampling(fields, limits)
    bias, constraint = read_bias(fields), read_constraint(fields)
    ignore_eos = fields.boolean("ignore_eos")
    if ignore_eos:
        bias[DOC_BOUNDARY] = -math.inf
    top = fields.integer("n_probs", "logprobs", least=0, most=VOCABULARY_SIZE, default=0)
    ping = fields.number("sse_ping_interval", least=-1, most=86_400, default=-2)
    stream = fields.boolean("stream")
    post_sampling, cached = fields.boolean("post_sampling_probs"), fields.boolean("cache_prompt", True)
    tokens, timings = fields.boolean("return_tokens"), fields.boolean("timings_per_token")
    progress, shown = fields.boolean("return_progress"), fields.texts("response_fields")
    fields.neutral(NEUTRAL)
    read_parse_special(fields)
    if len(prompts) * copies > limits.prompts:
        fields.problems.append(
            f"n is {copies} with {len(prompts)} prompts, expected at most {limits.prompts} answers in all"
        )
    fields.finish()
    return Completion(
        make_choices(prompts, config, n_predict, copies, limits),
        n_predict,
        stream=stream,
        bias=bias,
        ignore_eos=ignore_eos,
        top=top,
        probabilities=top > 0,
        ping_seconds=None if ping == -2 else ping,
        post_sampling=post_sampling,
        cache_prompt=cached,
        return_tokens=tokens,
        timings_per_token=timings,
        return_progress=progress,
        response_fields=shown,
        constraint=constraint,
    )


def read_parse_special(fields: Fields) -> None:
    """Text never becomes the boundary, so nothing in it is special."""
    if fields.boolean("parse_special"):
        fields.problem("parse_special", True, f"false: text never becomes the boundary {DOC_BOUNDARY}")


def partial(request: Completion, answer: Answer, sampled: Sampled) -> dict[str, Any]:
    """The event of one sampled token: its id, and the text that became complete with it."""
    event: dict[str, Any] = {
        "index": answer.index,
        "content": sampled.event.text,
        "tokens": list(sampled.event.ids),
        "stop": False,
        "id_slot": answer.slot,
        "tokens_predicted": answer.tokens,
        "tokens_evaluated": answer.prompt_tokens,
    }
    if request.timings_per_token:
        event["timings"] = answer.timings()
    if request.probabilities:
        event["completion_probabilities"] = [token_probabilities(sampled, request.post_sampling)]
    return event


def progress(answer: Answer, processed: int, at: float) -> dict[str, Any]:
    """An event that says how much of the prompt has been read. It carries no id."""
    return {
        "index": answer.index,
        "content": "",
        "tokens": [],
        "stop": False,
        "id_slot": answer.slot,
        "tokens_predicted": 0,
        "tokens_evaluated": answer.prompt_tokens,
        "prompt_progress": {
            "total": answer.prompt_tokens,
            "cache": answer.reused,
            "processed": processed,
            "time_ms": round((at - answer.started) * 1e3),
        },
    }


def final(request: Completion, answer: Answer, model: str) -> dict[str, Any]:
    """The last event of a stream (text and ids were sent before it), or the whole answer."""
    assert answer.end is not None
    whole = not request.stream
    body: dict[str, Any] = {
        "index": answer.index,
        "content": answer.text if whole else "",
        "tokens": answer.ids if whole and request.return_tokens else [],
        "id_slot": answer.slot,
        "stop": True,
        "model": model,
        "tokens_predicted": answer.tokens,
        "tokens_evaluated": answer.prompt_tokens,
        "generation_settings": settings(request, answer.choice),
        "prompt": answer.choice.prompt.text,
        "has_new_line": any("\n" in text for text in answer.texts),
        "truncated": answer.truncated,
        "stop_type": STOP_TYPES[answer.end.reason],
        "stopping_word": answer.end.stop,
        "tokens_cached": answer.prompt_tokens + answer.tokens - 1 if answer.tokens else 0,
        "timings": answer.timings(),
    }
    if whole and request.probabilities:
        body["completion_probabilities"] = [
            token_probabilities(sampled, request.post_sampling) for sampled in answer.sampled
        ]
    if request.response_fields:
        return selected(body, request.response_fields)
    return body


def selected(body: dict[str, Any], paths: tuple[str, ...]) -> dict[str, Any]:
    """The fields that were asked for; `a/b` is found in `a` and stands under the key `a/b`."""
    found = {}
    for path in paths:
        value: Any = body
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            found[path] = value
    return found


def settings(request: Completion, choice: Choice) -> dict[str, Any]:
    """`generation_settings`: what was in force, with the seed that was drawn."""
    config = choice.config
    bias = [
        {"bias": None if math.isinf(value) else value, "token": token}
        for token, value in sorted(request.bias.items())
    ]
    return {
        **sampling_settings(config.seed),
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p,
        "repeat_last_n": config.repeat_last_n,
        "repeat_penalty": config.repeat_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "stop": list(config.stop),
        "n_predict": request.n_predict,
        "max_tokens": request.n_predict,
        "ignore_eos": request.ignore_eos,
        "stream": request.stream,
        "logit_bias": bias,
        "n_probs": request.top,
        "post_sampling_probs": request.post_sampling,
        "timings_per_token": request.timings_per_token,
        **request.constraint,
    }


def sampling_settings(seed: int) -> dict[str, Any]:
    """The defaults, under llama-server's names; what is not supported stands at its neutral value."""
    return {
        "seed": seed,
        "temperature": DEFAULTS.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": DEFAULTS.top_k,
        "top_p": DEFAULTS.top_p,
        "min_p": DEFAULTS.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "repeat_last_n": DEFAULTS.repeat_last_n,
        "repeat_penalty": DEFAULTS.repeat_penalty,
        "presence_penalty": DEFAULTS.presence_penalty,
        "frequency_penalty": DEFAULTS.frequency_penalty,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": [],
        "n_predict": -1,
        "max_tokens": -1,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": False,
        "stream": False,
        "logit_bias": [],
        "n_probs": 0,
        "min_keep": 0,
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [],
        "grammar": "",
        "regex": "",
        "json_schema": None,
        "valid_utf8": False,
    }


def default_settings(seed: int) -> dict[str, Any]:
    """`default_generation_settings.params` of /props; a seed of SEEDS means that one is drawn."""
    return sampling_settings(SEEDS if seed < 0 else seed)


def tokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of /tokenize: the bytes of `content`, which never become the boundary."""
    fields = Fields(body)
    name, content = fields.value("content")
    if not isinstance(content, str):
        fields.problem(name, content, "a string")
    special, pieces = fields.boolean("add_special"), fields.boolean("with_pieces")
    read_parse_special(fields)
    fields.finish()
    ids = [DOC_BOUNDARY] * special + list(encode(content))
    if not pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": piece(token)} for token in ids]}


def piece(token: int) -> str | list[int]:
    """A token as text where its byte is a character, else as a list of bytes."""
    if token == DOC_BOUNDARY:
        return debug_decode((token,))
    return chr(token) if token < 0x80 else [token]


def detokenize(body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of /detokenize: for the eye; a boundary shows as `<|doc|>`, ill-formed bytes as U+FFFD."""
    fields = Fields(body)
    _, value = fields.value("tokens")
    problems = fields.problems
    if not isinstance(value, list):
        fields.problem("tokens", value, "a list of ids")
        value = []
    for position, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= DOC_BOUNDARY:
            problems.append(f"tokens[{position}] is {token!r}, expected an id 0..{DOC_BOUNDARY}")
            break
    fields.finish()
    return {"content": debug_decode(value)}
