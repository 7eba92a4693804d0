"""The two wires, behind one interface: what a client is sent at each moment of a request.

Pure: no HTTP, no torch. `native` and `openai` say what the messages hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinylm.serve import native, openai
from tinylm.serve.answers import DONE, Answer, encode_event
from tinylm.serve.refusals import Refusal
from tinylm.serve.requests import Completion

if TYPE_CHECKING:
    from tinylm.generate import Sampled


class Wire(Protocol):
    """The bytes of a stream at each moment, and the answer without a stream."""

    def begun(self, answer: Answer) -> bytes: ...

    def read(self, answer: Answer, tokens: int, at: float) -> bytes: ...

    def token(self, answer: Answer, sampled: Sampled, at: float) -> bytes: ...

    def ended(self, answer: Answer) -> bytes: ...

    def closed(self, answers: Sequence[Answer]) -> bytes: ...

    def whole(self, answers: Sequence[Answer]) -> object: ...


class NativeWire:
    """llama-server's: a stream ends with the last final event; several prompts are a list."""

    def __init__(self, request: Completion, model: str) -> None:
        self._request = request
        self._model = model

    def begun(self, answer: Answer) -> bytes:
        if not self._request.return_progress:
            return b""
        return self.read(answer, answer.reused, answer.started)

    def read(self, answer: Answer, tokens: int, at: float) -> bytes:
        return encode_event(native.progress(answer, tokens, at))

    def token(self, answer: Answer, sampled: Sampled, at: float) -> bytes:
        event = encode_event(native.partial(self._request, answer, sampled))
        if self._request.return_progress and answer.tokens == 1:
            return self.read(answer, answer.prompt_tokens, at) + event
        return event

    def ended(self, answer: Answer) -> bytes:
        return encode_event(native.final(self._request, answer, self._model))

    def closed(self, answers: Sequence[Answer]) -> bytes:
        return b""

    def whole(self, answers: Sequence[Answer]) -> object:
        found = [native.final(self._request, answer, self._model) for answer in answers]
        return found[0] if len(found) == 1 else found


class OpenAIWire:
    """OpenAI's: chunks, usage where it was asked for, `[DONE]`."""

    def __init__(self, request: Completion, head: Mapping[str, Any]) -> None:
        self._request = request
        self._encoder = openai.Encoder(request, head)

    def begun(self, answer: Answer) -> bytes:
        return b""

    def read(self, answer: Answer, tokens: int, at: float) -> bytes:
        return b""

    def token(self, answer: Answer, sampled: Sampled, at: float) -> bytes:
        return encode_event(self._encoder.chunk(answer, sampled))

    def ended(self, answer: Answer) -> bytes:
        return encode_event(self._encoder.last(answer))

    def closed(self, answers: Sequence[Answer]) -> bytes:
        usage = encode_event(self._encoder.usage_chunk(answers)) if self._request.include_usage else b""
        return usage + DONE

    def whole(self, answers: Sequence[Answer]) -> object:
        return self._encoder.whole(answers)


def encode_refusal(refusal: Refusal) -> bytes:
    """The last event of a stream that broke."""
    return encode_event(refusal.body())
