"""Stage 17: a server from whose stream a client rebuilds exactly what was sampled."""

import contextlib
import http.client
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

from tinylm import checkpoint
from tinylm.batches import Plan
from tinylm.config import ModelConfig, ServeConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.generate import engine
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sampling import uniform
from tinylm.serve.background import serve_in_background
from tinylm.tokenizer import Utf8Stream, encode
from tinylm.walkthrough import Lab, Stage

STAGE = Stage(
    number=17,
    title="serving",
    question="Can a client rebuild exactly what was sampled?",
    hypothesis="Yes, and it needs no ids for that. A token is a byte here and no tokenizer stands in between, "
    "so whoever encodes the text that a server sends has the ids that the model sampled.",
    experiment="a real server on a real socket, a model that knows six documents by heart, a client of the "
    "standard library: rebuild them from text, from ids, and from ids as other servers send them",
    next="Is a batch the same batch on two ranks?",
    extra="serve",
    needs=("starlette", "uvicorn"),
)
SAMPLE = Path(__file__).resolve().parents[1] / "checkpoints" / "sample-nano"
SHAPE = ModelConfig(layers=2, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=16, window=32)
FACES = "😊📚😊"
DOCUMENTS = (
    *(b"ABCD", "안녕하세요.".encode(), FACES.encode(), "👨\u200d👩\u200d👧".encode(), b"A\xffB"),
    b"one STOP two",
)
Asked = dict[str, Any]
REQUESTS: dict[str, Asked] = {
    "ABCD": {"prompt": "1"},
    "안녕하세요.": {"prompt": "2"},
    FACES: {"prompt": "3"},
    f"{FACES}, limit 5": {"prompt": "3", "n_predict": 5},
    "a family, joined": {"prompt": "4"},
    "A, byte ff, B": {"prompt": "5"},
    "one STOP two, stop STOP": {"prompt": "6", "stop": "STOP"},
}


def train(steps: int) -> Transformer:
    """A tiny model that knows the documents by heart: each follows a byte that names it, 1 to 6."""
    split = Split.of([b"%d%s" % named for named in enumerate(DOCUMENTS, 1)] * 40)
    model = Transformer(SHAPE, seed=0)
    optimizer = Optimizer(model, TrainConfig(data="six documents", muon_rate=0.02, adam_rate=0.02))
    plan = Plan(split, "cross", SHAPE.window, batch_rows=16, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        inputs, targets = torch.from_numpy(batch.inputs_BT), torch.from_numpy(batch.targets_BT)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
    return model.requires_grad_(False)


class Client:
    """What the standard library's http.client makes of the server at a URL."""

    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://")

    @contextlib.contextmanager
    def call(self, path: str, body: Asked | None = None) -> Iterator[http.client.HTTPResponse]:
        link = http.client.HTTPConnection(self.host, timeout=60)
        data = None if body is None else json.dumps(body)
        try:
            link.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json"})
            answer = link.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status} {answer.read().decode()}")
            yield answer
        finally:
            link.close()

    def events(self, body: Asked) -> Iterator[Asked]:
        """The events of a stream, as they arrive; the last one has `stop`."""
        with self.call("/completion", {**body, "stream": True}) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

    def streamed(self, body: Asked) -> tuple[list[int], str]:
        """Ids and text of a stream, joined. Raises where the server counted another number of ids."""
        *events, final = self.events(body)
        ids = [token for event in events for token in event["tokens"]]
        if final["tokens_predicted"] != len(ids):
            raise RuntimeError(f"{len(ids)} ids arrived of {final['tokens_predicted']}")
        return ids, "".join(event["content"] for event in events)

    def whole(self, body: Asked) -> tuple[list[int], str]:
        """Ids and text of an answer in one piece."""
        with self.call("/completion", {**body, "return_tokens": True}) as answer:
            found = json.load(answer)
        return found["tokens"], found["content"]

    def busy(self) -> int:
        """How many slots are taken."""
        with self.call("/slots") as answer:
            return sum(slot["is_processing"] for slot in json.load(answer))

    def sampled(self) -> int:
        """How many tokens the server has sampled since it began."""
        with self.call("/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("tinylm_tokens_predicted"))


def newest_only(ids: Sequence[int]) -> list[int]:
    """The ids of a server that says nothing while a character is incomplete, then sends the newest id."""
    utf8, sent = Utf8Stream(errors="replace"), []
    for token in ids:
        if token != DOC_BOUNDARY:
            utf8.push(bytes((token,)))
        if token == DOC_BOUNDARY or not utf8.held:
            sent.append(token)
    return sent


def agreeing(found: Sequence[int], sampled: Sequence[int]) -> int:
    """With how many ids `found` begins as what was sampled."""
    pairs = zip(found, sampled, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(found), len(sampled)))


def chained(client: Client, by_text: bool) -> list[int]:
    """The ids of document 3, five at a time; each prompt is what the client knows so far."""
    known = [DOC_BOUNDARY, *b"3"]
    for _ in range(5):
        ids, text = client.streamed({"prompt": known, "n_predict": 5, "temperature": 0})
        known += encode(text) if by_text else ids
        if DOC_BOUNDARY in ids:
            break
    return known[2:]


def rebuilt(lab: Lab, client: Client) -> dict[str, tuple[list[int], ...]]:
    """Of each document: what was sampled (in one piece), streamed ids, encoded text, newest ids only."""
    found, rows = {}, []
    for name, request in REQUESTS.items():
        body = {**request, "temperature": 0}
        (sampled, told), (ids, text) = client.whole(body), client.streamed(body)
        found[name] = (sampled, ids, list(encode(text)), newest_only(ids))
        right = agreeing(found[name][2], sampled)
        more = len(found[name][2]) - right
        from_text = f"{right} of {len(sampled)}" + (f", {more} others" if more else "")
        rows.append(
            [name, ascii(told), f"{agreeing(ids, sampled)} of {len(sampled)}", from_text, len(found[name][3])]
        )
    lab.table(["asked for", "text", "ids from ids", "ids from text", "ids, newest only"], rows)
    return found


def left(client: Client, limit: int) -> tuple[float, int]:
    """Leave a stream after its first event: milliseconds until the slot is free, tokens sampled in all."""
    before = client.sampled()
    stream = client.events({"prompt": "Return ", "n_predict": limit, "ignore_eos": True, "seed": 1})
    next(stream)
    began = time.perf_counter()
    stream.close()
    while client.busy():
        time.sleep(0.001)
    return (time.perf_counter() - began) * 1e3, client.sampled() - before


def neighbours(client: Client, requests: list[Asked], at_once: int) -> tuple[list[list[int]], float]:
    """The ids of each request, so many at once, and tokens a second of all together."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        found = [ids for ids, _ in pool.map(client.streamed, requests)]
    return found, sum(map(len, found)) / (time.perf_counter() - began)


def experiment(lab: Lab) -> None:
    with serve_in_background(train(100 if lab.quick else 160)) as url:
        client = Client(url)
        found = rebuilt(lab, client)
        by_ids, by_text = (chained(client, by_text) for by_text in (False, True))
    sampled = found[FACES][0]
    lab.note(
        f"{FACES}, five at a time, fed back: by ids {agreeing(by_ids, sampled)} of {len(sampled)} are right, "
        f"by text {agreeing(by_text, sampled)}, then {bytes(i for i in by_text[5:] if i < 256)!r}"
    )
    for name, kind in (("ids", 1), ("text", 2), ("newest", 3)):
        lab.value(f"whole_by_{name}", sum(row[kind] == row[0] for row in found.values()))
    lab.value("sampled", len(sampled))
    lab.value("newest", len(found[FACES][3]))
    lab.value("newest_greeting", len(found["안녕하세요."][3]))
    lab.value("greeting", len(found["안녕하세요."][0]))
    lab.value("chain_ids", agreeing(by_ids, sampled))
    lab.value("chain_text", agreeing(by_text, sampled))

    count, length = (8, 24) if lab.quick else (16, 96)
    requests: list[Asked] = [
        {
            "prompt": "Return the "[: seed + 1],
            "seed": seed,
            "temperature": 1,
            "n_predict": length,
            "ignore_eos": True,
        }
        for seed in range(count)
    ]
    model = checkpoint.load_model(SAMPLE).requires_grad_(False)
    draws = itertools.count()
    with serve_in_background(model, ServeConfig(port=0, slots=8)) as url:
        client = Client(url)
        neighbours(client, requests[:1], 1)
        alone, one = neighbours(client, requests, 1)
        together, many = neighbours(client, requests[::-1], 8)
        milliseconds, after = left(client, 200)
        with mock.patch.object(engine, "uniform", lambda seed, number: uniform(seed, next(draws))):
            shared, _ = neighbours(client, requests, 8)
    same = lab.value("same", sum(a == b for a, b in zip(alone, together[::-1], strict=True)))
    same_shared = sum(a == b for a, b in zip(alone, shared, strict=True))
    lab.table(
        ["requests of a trained model", "of them", "ids as alone"],
        [
            ["8 at once, in reverse", count, same],
            ["8 at once, draws numbered by the server", count, same_shared],
        ],
    )
    lab.note(f"{one:,.0f} tokens a second alone, {many:,.0f} with 8 at once ({many / one:.1f} times as many)")
    lab.note(
        f"a client leaves after its first token: slot free {milliseconds:.0f} ms later, {after} of 200 sampled"
    )
    lab.otherwise(
        "Text loses ids in three ways that no decoder can undo. The boundary has no text. Bytes that are no "
        "character become U+FFFD, which encodes as three other bytes; a limit inside a character does the "
        "same to good text. A stop string was sampled and is not in the text. And sending ids is not enough: "
        f"a server that waits for whole characters and then sends the newest id delivers "
        f"{len(found[FACES][3])} of the {len(sampled)} ids of {FACES}."
    )
    lab.costs(
        "one event per token, about 130 bytes of JSON for each byte of text; text that is held costs nothing "
        "more, its ids went ahead. A lost id is noticed by nobody who reads: the text is right. It reaches whoever "
        "feeds ids back, counts them, or trains on them."
    )
    lab.proves(
        "that the ids of a stream are those that were sampled, that they rebuild the document when they are fed "
        "back, that neighbours change nothing, and that leaving frees the slot.",
        does_not_prove="that it holds for every order of events: tests/test_serve_streams.py tries random ones, "
        "and tests/slow/load.py 64 clients for minutes. Nor anything about another server: tinylm audit asks it.",
    )
    lab.check("streamed ids are what was sampled", all(row[0] == row[1] for row in found.values()))
    lab.check("the documents are known by heart", sampled == [*encode(FACES), DOC_BOUNDARY])
    lab.check(
        "text rebuilds nothing that ended by itself", not any(row[2] == row[0] for row in found.values())
    )
    lab.check(
        "newest ids only: 4 of 13, 7 of 17", [len(found[n][3]) for n in (FACES, "안녕하세요.")] == [4, 7]
    )
    lab.check("fed back by ids, the document is whole", by_ids == sampled)
    lab.check("fed back by text, it is not", by_text != sampled)
    lab.check("neighbours change nothing", alone == together[::-1])
    lab.check("draws that are shared are noticed", same_shared < count)
    lab.check("the slot of a client that left is free", after < 200)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
