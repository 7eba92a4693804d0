"""OpenAI's wire: requests of /v1/completions, its chunks and its answers. Pure functions.

Extensions, by the names that other servers use: top_k, min_p, and vLLM's `return_token_ids` (`token_ids` in
every choice, `prompt_token_ids` in the first chunk or the answer). A limit that is absent is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinylm.contract import VOCABULARY_SIZE
from tinylm.serve.answers import BOUNDARY_TEXT, LOWEST, Answer, token_bytes, token_probabilities
from tinylm.serve.fields import Fields, shown
from tinylm.serve.native import NEUTRAL, read_parse_special
from tinylm.serve.prompts import read_prompts
from tinylm.serve.requests import Completion, Limits, make_choices, read_bias, read_constraint, read_sampling

if TYPE_CHECKING:
    from tinylm.generate import Sampled

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "user": NEUTRAL["user"],
    "echo": (False,),
    "suffix": ("",),
}


def read_completion(body: Mapping[str, Any], limits: Limits) -> Completion:
    """A checked request of POST /v1/completions. Raises Refusal 400 with all problems at once."""
    fields = Fields(body)
    prompts = read_prompts(fields.value("prompt")[1], fields.problems, limits.prompts)
    n_predict = fields.integer(
        "max_tokens", "max_completion_tokens", "n_predict", least=-1, most=2**31 - 1, default=-1
    )
    copies = fields.integer("n", least=1, most=limits.prompts, default=1)
    best_of = fields.integer("best_of", least=1, most=limits.prompts, default=copies)
    config = read_sampling(fields, limits)
    bias, constraint = read_bias(fields), read_constraint(fields)
    top = fields.integer("logprobs", least=0, most=VOCABULARY_SIZE, default=-1)
    stream = fields.boolean("stream")
    usage = read_stream_options(fields, stream)
    ids, cached = fields.boolean("return_token_ids"), fields.boolean("cache_prompt", True)
    fields.text("model")
    fields.neutral(UNSUPPORTED)
    read_parse_special(fields)
    if best_of != copies:
        fields.problem("best_of", best_of, f"n, which is {copies}; leave it out")
    if len(prompts) * copies > limits.prompts:
        fields.problems.append(
            f"n is {copies} with {len(prompts)} prompts, expected at most {limits.prompts} choices in all"
        )
    fields.finish()
    return Completion(
        make_choices(prompts, config, n_predict, copies, limits),
        n_predict,
        stream=stream,
        bias=bias,
        top=max(top, 0),
        probabilities=top >= 0,
        return_tokens=ids,
        include_usage=usage,
        cache_prompt=cached,
        constraint=constraint,
    )


def read_stream_options(fields: Fields, stream: bool) -> bool:
    """Whether usage is asked for at the end of a stream."""
    name, value = fields.value("stream_options")
    if value is None:
        return False
    if not isinstance(value, dict) or not stream:
        fields.problem(name, value, "an object, and only with stream true")
        return False
    inner = Fields(value)
    usage = inner.boolean("include_usage")
    inner.boolean("include_obfuscation")
    known = ("include_usage", "include_obfuscation")
    unknown = [
        f"{name}.{shown(key)} is not known, expected include_usage" for key in value if key not in known
    ]
    fields.problems += unknown + [f"{name}.{problem}" for problem in inner.problems]
    return usage


class Encoder:
    """The chunks and the answer of one request; `head` holds id, created, model and system_fingerprint."""

    def __init__(self, request: Completion, head: Mapping[str, Any]) -> None:
        self.request = request
        self.head = {"object": "text_completion", **head}
        self._characters: dict[int, int] = {}

    def chunk(self, answer: Answer, sampled: Sampled) -> dict[str, Any]:
        """The chunk of one sampled token."""
        choice: dict[str, Any] = {"index": answer.index, "text": sampled.event.text, "logprobs": None}
        offset = self._characters.get(answer.index, 0)
        self._characters[answer.index] = offset + len(sampled.event.text)
        if self.request.probabilities:
            choice["logprobs"] = logprobs([sampled], [offset])
        if self.request.return_tokens:
            choice["token_ids"] = list(sampled.event.ids)
            if answer.tokens == 1:
                choice["prompt_token_ids"] = list(answer.choice.prompt.ids)
        choice["finish_reason"] = None
        return self._chunk([choice])

    def last(self, answer: Answer) -> dict[str, Any]:
        """The chunk that ends a choice."""
        choice: dict[str, Any] = {"index": answer.index, "text": "", "logprobs": None}
        if self.request.return_tokens:
            choice["token_ids"] = []
            if not answer.tokens:
                choice["prompt_token_ids"] = list(answer.choice.prompt.ids)
        return self._chunk([{**choice, "finish_reason": answer.finish_reason}])

    def usage_chunk(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The extra chunk after the last choice, where `include_usage` asks for it."""
        return {**self.head, "choices": [], "usage": usage(answers)}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self.head, "choices": choices}
        if self.request.include_usage:
            chunk["usage"] = None
        return chunk

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The answer without a stream."""
        choices = []
        for answer in answers:
            choice: dict[str, Any] = {"index": answer.index, "text": answer.text, "logprobs": None}
            if self.request.probabilities:
                offsets, seen = [], 0
                for sampled in answer.sampled:
                    offsets.append(seen)
                    seen += len(sampled.event.text)
                choice["logprobs"] = logprobs(answer.sampled, offsets)
            if self.request.return_tokens:
                choice["token_ids"] = answer.ids
                choice["prompt_token_ids"] = list(answer.choice.prompt.ids)
            choices.append({**choice, "finish_reason": answer.finish_reason})
        return {**self.head, "choices": choices, "usage": usage(answers)}


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Tokens of all choices; a prompt that several choices share counts once."""
    prompts = {id(answer.choice.prompt): answer for answer in answers}.values()
    prompt, completion = sum(a.prompt_tokens for a in prompts), sum(a.tokens for a in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(a.reused for a in prompts)},
    }


def logprobs(sampled: Sequence[Sampled], offsets: Sequence[int]) -> dict[str, Any]:
    """One entry per sampled token, in OpenAI's shape and (as `content`) in llama-server's.

    `text_offset`: characters of text that were complete before the token.
    """
    return {
        "tokens": [name(one.token) for one in sampled],
        "token_logprobs": [max(one.log_probability, LOWEST) for one in sampled],
        "top_logprobs": [{name(token): max(value, LOWEST) for token, value in one.top} for one in sampled],
        "text_offset": list(offsets),
        "content": [token_probabilities(one, False) for one in sampled],
    }


def name(token: int) -> str:
    """A token as OpenAI writes one that is no character by itself: `bytes:\\xf0`."""
    if not token_bytes(token):
        return BOUNDARY_TEXT
    return chr(token) if token < 0x80 else f"bytes:\\x{token:02x}"
