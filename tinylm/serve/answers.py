"""What is known of one generation of a request, as it arrives from the engine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tinylm.contract import DOC_BOUNDARY
from tinylm.events import End
from tinylm.serve.requests import Choice

if TYPE_CHECKING:
    from tinylm.generate import Sampled

BOUNDARY_TEXT = "<|doc|>"
LOWEST = -9999.0
"""Stands for the logarithm of 0, which JSON cannot hold."""


@dataclass
class Answer:
    """One generation. Times in seconds of one clock; `sampled` is kept only where `keep` asks for it."""

    index: int
    choice: Choice
    keep: bool = False
    slot: int = -1
    reused: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    end: End | None = None
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0

    def begin(self, slot: int, reused: int, at: float) -> None:
        """The engine has taken it up."""
        self.slot, self.reused, self.started, self.first, self.last = slot, reused, at, at, at

    def add(self, sampled: Sampled, at: float) -> None:
        """One more token."""
        self.first = self.first if self.tokens else at
        self.last = at
        self.tokens += 1
        self.ids += sampled.event.ids
        if sampled.event.text:
            self.texts.append(sampled.event.text)
        if self.keep:
            self.sampled.append(sampled)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def prompt_tokens(self) -> int:
        return len(self.choice.prompt.ids)

    @property
    def truncated(self) -> bool:
        """Whether the context ended it rather than what was asked for."""
        return self.choice.cut and self.end is not None and self.end.reason == "limit"

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for the end."""
        return "length" if self.end is not None and self.end.reason == "limit" else "stop"

    def timings(self) -> dict[str, float | int]:
        """llama-server's timings. `predicted_ms` counts from the first token on, `prompt_ms` up to it.

        Guesses are counted where there were any, as there.
        """
        prompt, predicted = self.first - self.started, self.last - self.first
        read = self.prompt_tokens - self.reused if self.tokens else 0
        drafts = {"draft_n": self.drafted, "draft_n_accepted": self.accepted} if self.drafted else {}
        return {
            "cache_n": self.reused,
            "prompt_n": read,
            "prompt_ms": round(prompt * 1e3, 3),
            "prompt_per_token_ms": rate(prompt * 1e3, read),
            "prompt_per_second": rate(read, prompt),
            "predicted_n": self.tokens,
            "predicted_ms": round(predicted * 1e3, 3),
            "predicted_per_token_ms": rate(predicted * 1e3, self.tokens - 1),
            "predicted_per_second": rate(self.tokens - 1, predicted),
            **drafts,
        }


def rate(amount: float, per: float) -> float:
    """A quotient that is 0 where there is nothing to divide by."""
    return round(amount / per, 3) if per > 0 and amount > 0 else 0.0


def token_bytes(token: int) -> list[int]:
    """The byte of an id; the boundary has none."""
    return [] if token == DOC_BOUNDARY else [token]


def token_text(token: int) -> str:
    """An id for the eye: a byte that is no character of its own shows as U+FFFD."""
    return BOUNDARY_TEXT if token == DOC_BOUNDARY else bytes((token,)).decode("utf-8", "replace")


def entry(token: int, key: str, value: float) -> dict[str, Any]:
    """An id with its log-probability or probability."""
    value = value if math.isfinite(value) else LOWEST
    return {"id": token, "token": token_text(token), "bytes": token_bytes(token), key: value}


def token_probabilities(sampled: Sampled, post_sampling: bool) -> dict[str, Any]:
    """What the model thought of a sampled token, in llama-server's shape.

    Before sampling: natural logarithms under the model's own distribution. After: probabilities under
    the distribution drawn from.
    """
    if post_sampling:
        top = [entry(token, "prob", value) for token, value in sampled.drawn]
        return {**entry(sampled.token, "prob", sampled.probability), "top_probs": top}
    top = [entry(token, "logprob", value) for token, value in sampled.top]
    return {**entry(sampled.token, "logprob", sampled.log_probability), "top_logprobs": top}


def encode_json(value: object) -> bytes:
    """JSON in ASCII on one line, so that no client splits or misreads it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def encode_event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode_json(value) + b"\n\n"


PING = b":\n\n"
DONE = b"data: [DONE]\n\n"
