"""Stage 16: which unit is complete when: bytes, text, tokens and events of a stream."""

import codecs
import itertools
import json
import sys
from collections.abc import Callable, Sequence

from tinylm.config import GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.events import EventStream
from tinylm.generate import generate
from tinylm.model import Transformer
from tinylm.tokenizer import encode
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=16,
    title="streaming",
    question="Bytes, text, tokens, events: which unit is complete when?",
    hypothesis="A token is complete when it is sampled, a character when its last byte is. So a stream holds "
    "text until a character is complete, and sends it with the token that completed it: the client sees "
    "whole characters only, and has everything.",
    experiment="send the same sampled ids as three streams, (naive) each token decoded alone, (hold) text "
    "held until complete, with the newest id, (events) one event per token; rebuild ids and text as a "
    "client does; then end each text at every possible limit, without and with a stop string",
    next="Can a client rebuild exactly what was sampled?",
)
FAMILY = "👨\u200d👩\u200d👧\u200d👦"
TEXTS = ("ABCD", "안녕하세요.", "😊📚😊", "e\u0301 é", FAMILY, "🇰🇷", "one STOP", "\ufffd?")
PEOPLE_SEE = (4, 6, 3, 3, 1, 1, 8, 2)
STOP = "STOP"

Message = tuple[str, tuple[int, ...]]
"""What a client receives at once: text and ids."""
Send = Callable[[Sequence[int], Sequence[str], int], list[Message]]


def naive(script: Sequence[int], stop: Sequence[str], limit: int) -> list[Message]:
    """Each token decoded alone, as one would write it first."""
    return [(raw([id]).decode("utf-8", "replace"), (id,)) for id in sampled(script, stop, limit)]


def hold(script: Sequence[int], stop: Sequence[str], limit: int) -> list[Message]:
    """Text when it is complete, with the newest id: what a server in wide use does."""
    messages: list[Message] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in sampled(script, stop, limit):
        text = decoder.decode(raw([token]))
        if not decoder.getstate()[0]:
            messages.append((text, (token,)))
    return messages


def events(script: Sequence[int], stop: Sequence[str], limit: int) -> list[Message]:
    """One event per token: its id at once, its text when that is complete, the rest with the last one."""
    stream = EventStream(stop, limit)
    messages: list[Message] = []
    for token in script:
        if stream.end is None:
            event = stream.push(token)
            messages.append((event.text, event.ids))
    return messages


STREAMS: dict[str, Send] = {"naive": naive, "hold": hold, "events": events}


def raw(ids: Sequence[int]) -> bytes:
    return bytes(token for token in ids if token != DOC_BOUNDARY)


def sampled(script: Sequence[int], stop: Sequence[str], limit: int) -> list[int]:
    """What is drawn until an end, by looking at all bytes after each token."""
    counts = range(1, min(len(script), limit) + 1)
    ends = (count for count in counts if any(word.encode() in raw(script[:count]) for word in stop))
    return list(script[: next(ends, limit)])


def right_text(ids: Sequence[int], stop: Sequence[str]) -> str:
    """The text of all ids at once, up to a stop string."""
    places = [raw(ids).index(word.encode()) for word in stop if word.encode() in raw(ids)]
    return raw(ids)[: min(places, default=None)].decode("utf-8", "replace")


def arrived(messages: Sequence[Message]) -> tuple[list[int], str]:
    """What a client has at the end: it joins what it received."""
    return [token for _, ids in messages for token in ids], "".join(text for text, _ in messages)


def over_time(text: str) -> dict[str, list[tuple[float, float]]]:
    """After each sampled token, how many ids have arrived, and how many bytes of text."""
    script = [*encode(text), DOC_BOUNDARY]
    got = {n: [arrived(STREAMS[n](script[:t], (), 99)) for t in range(len(script) + 1)] for n in STREAMS}
    series: dict[str, list[tuple[float, float]]] = {}
    series |= {f"ids, {n}": [(t, len(ids)) for t, (ids, _) in enumerate(got[n])] for n in ("events", "hold")}
    return series | {"bytes of text": [(t, len(text.encode())) for t, (_, text) in enumerate(got["hold"])]}


def experiment(lab: Lab) -> None:
    scripts = {text: [*encode(text), DOC_BOUNDARY] for text in TEXTS}
    rows: list[list[object]] = []
    for (text, script), people_see in zip(scripts.items(), PEOPLE_SEE, strict=True):
        units = [people_see, len(text), len(text.encode("utf-16-le")) // 2, len(script) - 1, len(script)]
        held, alone = arrived(hold(script, (), 99))[0], arrived(naive(script, (), 99))[1]
        rows.append([text.replace("\u200d", ""), *units, len(held), alone == text])
    seen = ["text", "people see", "code points", "UTF-16", "bytes", "tokens", "ids by hold", "right by naive"]
    lab.table(seen, rows)
    korean, emoji = scripts[TEXTS[1]], scripts[TEXTS[2]]
    for name, send in STREAMS.items():
        sent = send([*encode("é😊"), DOC_BOUNDARY], (), 5)
        said = [f"{text!r}←{','.join(map(str, ids))}" for text, ids in sent]
        lab.note(f"é😊, limit 5, {name}: {' '.join(said)}")
    ways = itertools.product(scripts.values(), ((), (STOP,)))
    cases = [(*way, limit) for way in ways for limit in range(1, len(way[0]) + 1)]
    rebuilt: dict[str, list[int]] = {}
    for name, send in STREAMS.items():
        pairs = [(case, sampled(*case), arrived(send(*case))) for case in cases]
        rebuilt[name] = [
            sum(ids == truth for _, truth, (ids, _) in pairs),
            sum(text == right_text(truth, case[1]) for case, truth, (_, text) in pairs),
            sum(list(encode(text)) == truth for _, truth, (_, text) in pairs),
        ]
        for what, number in zip(("ids", "texts", "again"), rebuilt[name], strict=True):
            lab.value(f"{what}_{name}", number)
    headers = ["stream", "ends", "ids exact", "text exact", "ids = text encoded again"]
    lab.table(headers, [[name, len(cases), *numbers] for name, numbers in rebuilt.items()])
    model = Transformer(ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2)).to(lab.device)
    exact = 0
    for seed in range(8):
        told = list(generate(model, "", GenerateConfig(seed=seed, temperature=1.0, max_tokens=40)))
        ids, text = arrived([(event.text, event.ids) for event in told])
        exact += text == right_text(ids, ()) and len(told) == len(ids) + 1
    lab.note(f"what an untrained model writes, mostly ill-formed: {exact} of 8 rebuilt exactly")
    lab.figure(lambda: figures.lines(over_time("A é 안녕 😊"), x="tokens sampled", y="what the client has"))
    total, by_hold, again = len(cases), rebuilt["hold"], rebuilt["events"][2]
    sizes = {n: sum(len(json.dumps(m)) for m in send(korean, (), 99)) for n, send in STREAMS.items()}
    sent = [message for script in scripts.values() for message in events(script, (), 99)]
    complete = [bool(text) or ids == (DOC_BOUNDARY,) for text, ids in sent]
    most = max(len(list(run)) for full, run in itertools.groupby(complete) if not full)
    sent_by_hold = tuple(len(arrived(hold(script, (), 99))[0]) for script in (korean, emoji))
    found = {"korean": sent_by_hold[0], "emoji": sent_by_hold[1], "cases": total, "most": most}
    for name, number in (found | {f"json_{name}": size for name, size in sizes.items()}).items():
        lab.value(name, number)
    lab.otherwise(
        f"To hold text is right, to hold ids with it is not: {by_hold[0]} of {total} ends give back ids. "
        "At a limit inside a character its text is lost too, and a stop string is shown before it is known "
        f"to be one. Text is no substitute: encoded again it gives the ids at {again} ends: the boundary "
        "and stop strings are in no text and U+FFFD has bytes of its own. And a character is not the last "
        "unit: 👨 is complete after 4 tokens, the family after 25, and only the next token says so."
    )
    lab.costs(
        f"{sizes['events']} bytes of JSON instead of {sizes['hold']} for 16 bytes of Korean; at most "
        f"{most} bytes wait. A stream that loses ids raises no error, and breaks whoever feeds them back, "
        "counts them or aligns probabilities with them, in every script but ASCII."
    )
    lab.proves(
        "that one event per token gives back ids and text at all these ends; the other streams do not.",
        does_not_prove="that anything arrives: requests and lost connections are stage 17.",
    )
    whole = rebuilt["events"][:2] == [total] * 2 and exact == 8
    lab.check("one event per token gives back everything", whole)
    lab.check("hold sends 4 of 13 ids of 😊📚😊 and 7 of 17 of 안녕하세요.", sent_by_hold == (7, 4))
    lab.check("naive has every id and loses text", rebuilt["naive"][0] == total > rebuilt["naive"][1])
    lab.check("at most 3 bytes wait", most == 3)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
