"""What must hold of answers: the invariants I1 to I8 and I14, of one answer and of a stream and its twin.

With S the ids sampled, N their number and T their text:

I1  the ids of all events, joined, are S        I5  text is whole characters
I2  running counts, final count and timings agree   I6  ids give back every byte
I3  text and ids of a stream are those without one  I7  one final event, last, with the right reason
I4  text never comes before its ids             I8  nothing is kept back at the end
I14 events are single lines of ASCII JSON objects
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinylm.serve.audit.answers import Answer
from tinylm.serve.audit.sse import Finding, shown

REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Request:
    """What was asked for, as far as the checks need it. `data`: the bytes that a grammar forces, if any.

    `bytes_vocabulary`: ids 0..255 are the bytes, and others have none (learned from a forced answer).
    """

    n_predict: int
    stop: tuple[str, ...] = ()
    data: bytes | None = None
    bytes_vocabulary: bool = False
    empty_prompt: bool = False


def check(answer: Answer, request: Request, stream: bool) -> list[Finding]:
    """The departures of one answer, those found while reading included."""
    found = list(answer.findings)
    found += _counts(answer, stream)
    if answer.ended:
        found += _end(answer, request)
        if stream:
            found += _final(answer)
    if request.bytes_vocabulary:
        found += _bytes(answer, request)
    if request.data is not None:
        found += _forced(answer, request)
    return found


def _counts(answer: Answer, stream: bool) -> list[Finding]:
    found: list[Finding] = []
    received = len(answer.ids)
    if answer.predicted is not None and answer.predicted != received:
        lost = answer.predicted - received
        words = f"{lost} lost" if lost > 0 else f"{-lost} that were not sampled"
        found.append(Finding("I1", f"{received} of {answer.predicted} ids received: {words}"))
    if None not in (answer.timed, answer.predicted) and answer.timed != answer.predicted:
        text = f"timings.predicted_n is {answer.timed}, tokens_predicted {answer.predicted}"
        found.append(Finding("I2", text))
    if not stream:
        return found
    so_far = 0
    for number, message in enumerate(answer.messages):
        if message.final:
            break
        so_far += len(message.tokens)
        if message.predicted is not None and message.predicted != so_far:
            text = f"event {number} says tokens_predicted {message.predicted} where {so_far} ids have come"
            found.append(Finding("I2", text))
            break
    found += _order(answer)
    return found


def _order(answer: Answer) -> list[Finding]:
    """Text that no id has come for, and events with nothing in them."""
    seen, empty = 0, 0
    for message in answer.messages:
        seen += len(message.tokens)
        if message.content and not seen:
            return [Finding("I4", f"text {shown(message.content)} before any id")]
        empty += not (message.tokens or message.content or message.final or message.progress)
    if empty:
        return [Finding("I1", f"{empty} events with neither id nor text", broken=False)]
    return []


def _end(answer: Answer, request: Request) -> list[Finding]:
    found: list[Finding] = []
    predicted, limit, reason = answer.predicted, request.n_predict, answer.stop_type
    if predicted is not None and predicted > limit:
        found.append(Finding("I7", f"{predicted} tokens where n_predict is {limit}"))
    elif predicted is not None and reason == "limit" and predicted < limit and not answer.truncated:
        found.append(Finding("I7", f"stop_type limit after {predicted} tokens where n_predict is {limit}"))
    if reason == "none" and not request.empty_prompt:
        found.append(Finding("I7", "stop_type none, which belongs to an empty prompt only"))
    if reason == "word":
        if answer.stopping_word not in request.stop:
            text = f"stopping_word {shown(answer.stopping_word)} is none of the stop strings"
            found.append(Finding("I7", text))
        elif answer.stopping_word in answer.text:
            found.append(Finding("I7", f"the text holds the stop string {shown(answer.stopping_word)}"))
    elif answer.stopping_word:
        text = f"stopping_word {shown(answer.stopping_word)} with stop_type {reason}"
        found.append(Finding("I7", text, broken=False))
    if reason is not None and reason != "word":
        # A stop string of replacement characters may arise from bytes that it does not match.
        for word in request.stop:
            if word in answer.text and REPLACEMENT not in word:
                found.append(Finding("I7", f"went on behind the stop string {shown(word)}"))
    return found


def _final(answer: Answer) -> list[Finding]:
    """A final event carries counts, and neither text nor ids: some clients do not look there for them."""
    final = next(message for message in answer.messages if message.final)
    found = []
    if answer.repeats:
        found.append(Finding("I8", "the final event repeats all ids (counted once)", broken=False))
    elif final.tokens or final.content:
        text = f"the final event carries {len(final.tokens)} ids and text {shown(final.content)}"
        found.append(Finding("I8", f"{text}, expected on an event before it", broken=False))
    return found


def _bytes(answer: Answer, request: Request) -> list[Finding]:
    """Where ids are bytes: the text is that of the ids, and never ahead of them."""
    found: list[Finding] = []
    raw = raw_bytes(answer.ids)
    if answer.ended and answer.predicted == len(answer.ids):
        kept = raw
        word = answer.stopping_word.encode("utf-8", "surrogatepass")
        if answer.stop_type == "word":
            if not raw.endswith(word):
                found.append(Finding("I7", f"the ids do not end with the stop string {shown(word)}"))
            kept = raw[: len(raw) - len(word)]
        expected = kept.decode("utf-8", "replace")
        if answer.text != expected:
            text = f"text {shown(answer.text)}, but the ids are {shown(expected)}"
            found.append(Finding("I3", text))
        if answer.stop_type == "eos" and answer.ids and answer.ids[-1] < 256:
            found.append(Finding("I7", f"stop_type eos, but the last id is the byte {answer.ids[-1]}"))
    text, ids = "", b""
    for number, message in enumerate(answer.messages):
        text, ids = text + message.content, ids + raw_bytes(message.tokens)
        if not ids.decode("utf-8", "replace").startswith(text) and not message.final:
            found.append(Finding("I4", f"event {number} brings text that its ids so far do not give"))
            break
    return found


def _forced(answer: Answer, request: Request) -> list[Finding]:
    """Where a grammar leaves one sentence: the text is it, up to a stop string or a limit."""
    assert request.data is not None
    sentence = request.data.decode("utf-8", "replace")
    if not answer.ended:
        return []
    if answer.stop_type == "eos" or (answer.stop_type == "word" and request.stop):
        cuts = [sentence.find(word) for word in request.stop if word in sentence]
        expected = sentence
        if answer.stop_type == "word" and answer.stopping_word in sentence:
            expected = sentence[: sentence.find(answer.stopping_word)]
        if answer.stop_type == "eos" and cuts:
            return [Finding("I7", f"stop_type eos, expected the stop string at {min(cuts)}")]
        if answer.text != expected:
            return [Finding("I3", f"text {shown(answer.text)}, expected {shown(expected)}")]
        return []
    # At a limit at most one character is cut, and what there is of it shows as replacement characters.
    whole = answer.text.rstrip(REPLACEMENT) if not sentence.startswith(answer.text) else answer.text
    if not sentence.startswith(whole):
        return [Finding("I3", f"text {shown(answer.text)}, expected a beginning of {shown(sentence)}")]
    return []


def compare(stream: Answer, whole: Answer) -> list[Finding]:
    """What a client of the stream does not have that one without a stream has, and the other way round."""
    found: list[Finding] = []
    if stream.ids != whole.ids:
        found.append(
            Finding("I3", f"ids differ from those without stream: {difference(stream.ids, whole.ids)}")
        )
    if stream.text != whole.text:
        found.append(Finding("I3", f"text {shown(stream.text)}, without stream {shown(whole.text)}"))
    ends = [(a.stop_type, a.stopping_word, a.predicted, a.evaluated, a.truncated) for a in (stream, whole)]
    if stream.ended and whole.ended and ends[0] != ends[1]:
        names = ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated")
        for name, one, other in zip(names, *ends, strict=True):
            if one != other:
                found.append(Finding("I3", f"{name} is {one!r}, without stream {other!r}"))
    return found


def difference(one: Sequence[int], other: Sequence[int]) -> str:
    """How two lists of ids differ, in a few words."""
    if sorted(one) == sorted(other):
        return "the same ids in another order"
    remaining = iter(other)
    if all(token in remaining for token in one):
        return f"{len(other) - len(one)} of {len(other)} are missing"
    places = zip(one, other, strict=False)
    place = next((n for n, (a, b) in enumerate(places) if a != b), min(len(one), len(other)))
    return f"{len(one)} and {len(other)}, from place {place} on"


def counted(stream: Answer, whole: Answer) -> bool:
    """Whether all counts of a run agree: only then does it enter an average."""
    numbers = {len(stream.ids), len(whole.ids), stream.predicted, whole.predicted}
    numbers |= {answer.timed for answer in (stream, whole) if answer.timed is not None}
    return len(numbers) == 1 and stream.ended and whole.ended


def raw_bytes(ids: Sequence[int]) -> bytes:
    """The bytes of ids of a byte vocabulary; the other ids have none."""
    return bytes(token for token in ids if token < 256)
