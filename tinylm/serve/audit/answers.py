"""What a server sent for one request, read without trust: ids, text, counts and ends, and what was odd.

Nothing is tokenized here: ids are those received, text is the text received.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinylm.errors import RequestError
from tinylm.files import parse_json
from tinylm.serve.audit.client import Lost, Server
from tinylm.serve.audit.sse import Finding, SseReader, shown


@dataclass(frozen=True)
class Message:
    """One event of a stream, or the whole of an answer without stream."""

    content: str
    tokens: tuple[int, ...]
    predicted: int | None
    final: bool
    progress: bool


@dataclass
class Answer:
    """One generation as a client has it: `ids` and `text` rebuilt from `messages`, and the final's counts.

    `predicted` is tokens_predicted, `timed` timings.predicted_n, `evaluated` tokens_evaluated; None where
    the server did not say. `repeats`: the final event gave all ids again, which count once. Times in ms.
    """

    messages: list[Message] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    ids: tuple[int, ...] = ()
    text: str = ""
    predicted: int | None = None
    timed: int | None = None
    evaluated: int | None = None
    stop_type: str | None = None
    stopping_word: str = ""
    truncated: bool = False
    ended: bool = False
    repeats: bool = False
    first_ms: float | None = None
    total_ms: float | None = None

    def note(self, invariant: str, text: str, broken: bool = True) -> None:
        finding = Finding(invariant, text, broken)
        if finding not in self.findings:
            self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        events = [[message.content, list(message.tokens), message.predicted] for message in self.messages]
        facts = {name: value for name, value in vars(self).items() if name not in ("messages", "findings")}
        return {**facts, "ids": list(self.ids), "events": events}


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error: its status and message."""

    status: int
    message: str


Answers = dict[int, Answer] | Refusal
"""Of each prompt of a request, by its index."""


def ask(server: Server, body: Mapping[str, Any]) -> Answers:
    """Send one request to /completion and read all of its answer.

    What breaks on the way (the connection, the time, the form) is a finding of the answer. Raises Lost
    where no answer began.
    """
    began = time.monotonic()
    reply = server.post("/completion", body)
    if reply.status != 200:
        return Refusal(reply.status, error_message(reply.read()))
    stream = body.get("stream") is True
    prompts = body["prompt"]
    many = isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)
    answers: dict[int, Answer] = {number: Answer() for number in range(len(prompts) if many else 1)}
    if stream and "text/event-stream" in reply.content_type:
        read_stream(reply.content_type, reply.body, answers, began)
    else:
        if stream:
            answers[0].note("I14", f"a stream was asked for, {reply.content_type!r} came")
        read_whole(reply.body, answers, many)
    for answer in answers.values():
        answer.total_ms = round(1000 * (time.monotonic() - began), 3)
        rebuild(answer, stream)
    return answers


def read_stream(content_type: str, body: Iterable[bytes], answers: dict[int, Answer], began: float) -> None:
    """Take a stream of events into `answers`, by their index."""
    first = answers[0]
    if "charset=utf-8" not in content_type.lower().replace(" ", "").replace('"', ""):
        first.note("I14", f"Content-Type is {content_type!r}, without charset=utf-8", broken=False)
    reader = SseReader()
    try:
        for part in body:
            now = round(1000 * (time.monotonic() - began), 3)
            for data in reader.feed(part):
                _take_event(data, answers, now)
        reader.close()
    except (Lost, RequestError) as error:
        for answer in answers.values():
            if not answer.ended:
                answer.note("I7", f"the stream broke off: {error}")
    first.findings.extend(finding for finding in reader.findings if finding not in first.findings)


def _take_event(data: str, answers: dict[int, Answer], now: float) -> None:
    first = answers[0]
    if data == "[DONE]":
        first.note("I14", "[DONE], which belongs to /v1 only", broken=False)
        return
    try:
        value = parse_json(data, "event", RequestError)
    except RequestError as error:
        first.note("I14", f"an event that is not JSON ({error}): {shown(data)}")
        return
    if not isinstance(value, dict):
        first.note("I14", f"`data: {shown(data)[1:-1]}`, expected a JSON object")
        return
    if "error" in value:
        for answer in answers.values():
            if not answer.ended:
                answer.note("I11", f"an error in mid-stream: {shown(error_message(data))}")
        return
    index = value.get("index", 0)
    if not is_count(index) or index not in answers:
        first.note("I14", f"index is {index!r}, expected one of {len(answers)} prompts")
        return
    answer = answers[index]
    message = read_message(value, answer)
    if answer.ended:
        answer.note("I7", "a second final event" if message.final else "an event behind the final one")
    if answer.first_ms is None and message.tokens:
        answer.first_ms = now
    answer.messages.append(message)
    if message.final and not answer.ended:
        _read_end(value, answer)


def read_whole(body: Iterable[bytes], answers: dict[int, Answer], many: bool) -> None:
    """Take an answer without stream: an object, or with several prompts a list of them."""
    first = answers[0]
    try:
        whole = b"".join(body)
        value = parse_json(whole, "answer", RequestError)
    except (Lost, RequestError) as error:
        first.note("I14", f"the answer is not whole JSON: {error}")
        return
    values = value if many and isinstance(value, list) else [value]
    if len(values) != len(answers):
        first.note("I14", f"{len(values)} answers, expected one for each of {len(answers)} prompts")
    for number, one in enumerate(values[: len(answers)]):
        if not isinstance(one, dict):
            answers[number].note("I14", f"the answer is {shown(ascii(one))}, expected a JSON object")
            continue
        answer = answers[number]
        answer.messages.append(read_message(one, answer))
        _read_end(one, answer)
        if one.get("stop") is not True:
            answer.note("I7", f"stop is {one.get('stop')!r} in a whole answer, expected true")


def read_message(value: Mapping[str, Any], answer: Answer) -> Message:
    """The fields that every event has; what is missing or of a wrong type is a finding."""
    content = value.get("content")
    if not isinstance(content, str):
        answer.note("I3", f"content is {shown(ascii(content))}, expected text")
        content = ""
    if any(0xD800 <= ord(character) < 0xE000 for character in content):
        answer.note("I5", f"half of a surrogate pair in content {shown(content)}")
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not all(map(is_count, tokens)):
        answer.note("I1", f"tokens is {shown(ascii(tokens))}, expected a list of ids")
        tokens = []
    stop = value.get("stop")
    if not isinstance(stop, bool):
        answer.note("I7", f"stop is {stop!r}, expected true or false")
    predicted = value.get("tokens_predicted")
    if not is_count(predicted):
        answer.note("I2", f"tokens_predicted is {predicted!r}, expected a count")
        predicted = None
    progress = value.get("prompt_progress") is not None and stop is not True
    if progress and tokens:
        answer.note("I1", f"a progress event with ids {tokens}, which were not sampled")
    return Message(content, tuple(tokens), predicted, stop is True, progress)


def _read_end(value: Mapping[str, Any], answer: Answer) -> None:
    """The counts and the reason, which stand in the final event or the whole answer."""
    answer.ended = True
    answer.predicted = value["tokens_predicted"] if is_count(value.get("tokens_predicted")) else None
    timings = value.get("timings")
    timed = timings.get("predicted_n") if isinstance(timings, dict) else None
    if is_count(timed):
        answer.timed = timed
    else:
        answer.note("I2", f"timings.predicted_n is {timed!r}, expected a count", broken=timed is not None)
    evaluated = value.get("tokens_evaluated")
    if is_count(evaluated):
        answer.evaluated = evaluated
    else:
        answer.note("I2", f"tokens_evaluated is {evaluated!r}, expected a count")
    stop_type = value.get("stop_type")
    if stop_type in ("eos", "limit", "word", "none"):
        answer.stop_type = stop_type
    else:
        answer.note("I7", f"stop_type is {stop_type!r}, expected eos, limit, word or none")
    word = value.get("stopping_word", "")
    answer.stopping_word = word if isinstance(word, str) else ""
    answer.truncated = value.get("truncated") is True


def rebuild(answer: Answer, stream: bool) -> None:
    """Ids and text in the order of arrival; a first final event that repeats everything counts once."""
    if stream and not answer.ended and not any(f.invariant in ("I7", "I11") for f in answer.findings):
        answer.note("I7", "no final event")
    before = [message for message in answer.messages if not message.final]
    finals = [message for message in answer.messages if message.final]
    ids = tuple(token for message in before for token in message.tokens)
    text = "".join(message.content for message in before)
    for final in finals:
        if before and final.tokens and repeats(final.tokens, ids, answer.predicted):
            answer.repeats = True
            ids, text = final.tokens, text if text.endswith(final.content) else final.content
        elif final is finals[0] or not repeats_all(final, finals[0]):
            ids, text = ids + final.tokens, text + final.content
    answer.ids, answer.text = ids, text


def repeats(final: tuple[int, ...], before: tuple[int, ...], predicted: int | None) -> bool:
    """Whether a final's ids are all of the generation again rather than its last ones.

    They are where their number is tokens_predicted and what came before is part of them, in order.
    """
    remaining = iter(final)
    return len(final) == predicted and all(token in remaining for token in before)


def repeats_all(final: Message, other: Message) -> bool:
    """Whether a second final event is the first one again."""
    return final.tokens == other.tokens and final.content == other.content


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def error_message(raw: bytes | str) -> str:
    """The message of an error body, or its beginning where it has none."""
    try:
        value = parse_json(raw, "error", RequestError)
    except RequestError:
        return shown(raw, 100)
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split())[:300] if isinstance(message, str) else shown(raw, 100)
