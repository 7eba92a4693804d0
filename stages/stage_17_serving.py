"""Stage 17: a server from whose stream a client rebuilds exactly what was sampled."""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tinylm import checkpoint
from tinylm.batches import IGNORED, Plan
from tinylm.config import ModelConfig, ServeConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.serve.audit.answers import Answer, ask
from tinylm.serve.audit.client import Server
from tinylm.serve.background import serve_in_background
from tinylm.tokenizer import Utf8Stream, encode
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=17,
    title="serving",
    question="Can a client rebuild exactly what was sampled?",
    hypothesis="Yes, and it needs no ids for that. A token is a byte here, no tokenizer stands between: who "
    "encodes the text that a server sends has the ids that the model sampled.",
    experiment="a real server on a real socket, a model that knows six documents by heart: rebuild them from "
    "text, from ids, from ids as another server sends them; then neighbours, and a client that leaves",
    next="Is a batch the same batch on two ranks?",
    extra="serve",
    needs=("starlette", "uvicorn"),
)
SAMPLE = Path(__file__).resolve().parents[1] / "checkpoints" / "sample-nano"
SHAPE = ModelConfig(layers=2, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=16, window=32)
GREETING, FACES, FAMILY = "안녕하세요.", "😊📚😊", "👨\u200d👩\u200d👧"
DOCUMENTS = (b"ABCD", *(text.encode() for text in (GREETING, FACES, FAMILY)), b"A\xffB", b"one STOP two")
REQUESTS: dict[str, dict[str, Any]] = {
    **{name: {"prompt": str(n)} for n, name in enumerate(("ABCD", GREETING, FACES, "a family", "A ff B"), 1)},
    f"{FACES}, limit 5": {"prompt": "3", "n_predict": 5},
    "one STOP two, stop STOP": {"prompt": "6", "stop": "STOP"},
}


def train(steps: int) -> Transformer:
    """A tiny model that knows the documents by heart: each follows a digit that names it."""
    split = Split.of([b"%d%s" % named for named in enumerate(DOCUMENTS, 1)] * 40)
    model = Transformer(SHAPE, seed=0)
    optimizer = Optimizer(model, TrainConfig(data="six documents", muon_rate=0.02, adam_rate=0.02))
    plan = Plan(split, "cross", SHAPE.window, batch_rows=16, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        logits_BTV, targets_BT = model(torch.from_numpy(batch.inputs_BT)), torch.from_numpy(batch.targets_BT)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
    return model.requires_grad_(False)


def answer(server: Server, request: dict[str, Any], stream: bool = True) -> Answer:
    """Send a request and join the ids and the text of all events."""
    found = ask(server, {"return_tokens": True, **request, "stream": stream})
    assert isinstance(found, dict) and not found[0].findings, found
    return found[0]


def newest_only(ids: Sequence[int]) -> list[int]:
    """The ids from a server that sends nothing while a character is incomplete, then the newest id."""
    utf8, sent = Utf8Stream(errors="replace"), []
    for token in ids:
        utf8.push(bytes([token] if token < 256 else []))
        sent += [token] if token == DOC_BOUNDARY or not utf8.held else []
    return sent


def right(found: Sequence[int], sampled: Sequence[int]) -> int:
    """With how many ids `found` begins as what was sampled."""
    pairs = zip(found, sampled, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(found), len(sampled)))


def chained(server: Server, by_text: bool) -> list[int]:
    """The ids of the third document, five at a time; each prompt is all that the client knows."""
    known = [DOC_BOUNDARY, *b"3"]
    for _ in range(3):
        part = answer(server, {"prompt": known, "n_predict": 5, "temperature": 0})
        known += encode(part.text) if by_text else part.ids
    return known[2:]


def ids_of(server: Server, requests: list[Any], at_once: int) -> tuple[list[tuple[int, ...]], float]:
    """The ids of each request, so many at once, and tokens a second of all together."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        found = [one.ids for one in pool.map(lambda request: answer(server, request), requests)]
    return found, sum(map(len, found)) / (time.perf_counter() - began)


def experiment(lab: Lab) -> None:
    with serve_in_background(train(100 if lab.quick else 160)) as url:
        server, found, rows = Server(url), {}, []
        for name, request in REQUESTS.items():
            asked = {**request, "temperature": 0}
            whole, stream = answer(server, asked, stream=False), answer(server, asked)
            text, newest = list(encode(stream.text)), newest_only(whole.ids)
            found[name] = (list(whole.ids), list(stream.ids), text, newest)
            counts = [len(whole.ids), *(right(ids, whole.ids) for ids in (stream.ids, text))]
            rows.append([name, *counts, len(text) - counts[2], len(newest)])
        by_ids, by_text = (chained(server, by_text) for by_text in (False, True))
    lab.table(["document", "sampled", "from ids", "from text", "wrong", "newest only"], rows)
    faces = found[FACES][0]
    bars = [(name, right(ids[2], ids[0]), len(ids[0])) for name, ids in found.items()]
    ended = [(*bar, f"{bar[1]} of {bar[2]}") for bar in bars]
    lab.figure(lambda: figures.bars(ended, x="ids that are right, rebuilt from text"))
    kept = right(by_ids, faces)
    lab.note(f"{FACES} in links of five ids: fed back by ids, {kept} of {len(faces)} are right;")
    lab.note(f"by text {right(by_text, faces)}: {bytes(i for i in by_text if i < 256).decode()!r}")
    words = {"temperature": 1, "n_predict": 16 if lab.quick else 64, "ignore_eos": True}
    requests = [{**words, "prompt": "Return the "[: seed % 11], "seed": seed} for seed in range(16)]
    with serve_in_background(checkpoint.load_model(SAMPLE), ServeConfig(port=0, slots=8)) as url:
        server = Server(url)
        ids_of(server, requests[:2], 2)
        alone, one = ids_of(server, requests, 1)
        together, many = ids_of(server, requests[::-1], 8)
        begun: Any = server.post("/completion", {**requests[0], "n_predict": 240, "stream": True}).body
        next(begun)
        begun.close()
        began, after = time.perf_counter(), 0
        while taken := [slot for slot in server.json("/slots") if slot["is_processing"]]:
            after = taken[0]["next_token"]["n_decoded"]
        seconds = time.perf_counter() - began
    same = lab.value("same", sum(a == b for a, b in zip(alone, together[::-1], strict=True)))
    lab.note(f"{same} of {len(alone)} requests have the ids that they had alone, 8 at once in reverse order")
    lab.note(f"{one:,.0f} tokens a second one by one, {many:,.0f} with 8 at once: {many / one:.1f} times")
    lab.note(f"a client left: its slot was free {1e3 * seconds:.0f} ms later, after {after} of 240 tokens")
    exact = [sum(row[0] == row[kind] for row in found.values()) for kind in range(3)]
    newest = [len(found[name][3]) for name in (FACES, GREETING)]
    values = {"by_text": exact[2], "faces": len(faces), "chain": right(by_text, faces)}
    for name, number in (values | {"faces_newest": newest[0], "greeting_newest": newest[1]}).items():
        lab.value(name, number)
    lab.otherwise(
        f"Text rebuilds {exact[2]} of {exact[0]}, though a byte is a token. A boundary has no text. What is "
        "not UTF-8 becomes U+FFFD, three other bytes; so does half a character at a limit. A stop string was "
        f"sampled and is no text. And one id per finished character is {newest[0]} of {len(faces)}."
    )
    lab.costs(
        "one event per token: a line of JSON for each byte of text. A lost id is seen by nobody who reads, "
        "as the text is right; it reaches whoever feeds ids back, counts them or trains on them."
    )
    lab.proves(
        "that these streams carry what was sampled, that fed back it goes on with the same document, that "
        "neighbours change no id, and that who leaves frees a slot.",
        "that it holds for every order of events (tests/slow/load.py) or server (tinylm audit URL).",
    )
    lab.check("streams carry what was sampled", exact[1] == exact[0] and faces == [*encode(FACES), 256])
    lab.check("text does not", exact[2] == 0 and by_text != faces)
    lab.check("the newest ids are 4 of 13 and 7 of 17", newest == [4, 7])
    lab.check("a chain of ids is the document", by_ids == faces)
    lab.check("neighbours change no id", alone == together[::-1])
    lab.check("a client that leaves frees its slot", after < 240)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
