"""A real server on a real socket in this process, and a client that takes nothing for granted."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import socket
import threading
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.scripted import UNLIKELY, ScriptedModel
from tinylm.config import ServeConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.generate import Engine

MISSING = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
needs_serve = unittest.skipIf(bool(MISSING), f"{', '.join(MISSING)} not installed: the extra serve")


def logits_of(script: Sequence[int], prompt_tokens: int = 1) -> np.ndarray:
    """Rows of logits that make a ScriptedModel sample `script` after that many tokens, then boundaries."""
    logits_PV = np.full((prompt_tokens + len(script), VOCABULARY_SIZE), UNLIKELY)
    rows = np.arange(prompt_tokens - 1, prompt_tokens + len(script))
    logits_PV[rows, [*script, DOC_BOUNDARY]] = 0.0
    return logits_PV


class Playable(ScriptedModel):
    """A scripted model whose script can be changed between requests, and whose steps can be held back.

    `permits`: how many forward passes it makes before it waits; None: as many as are asked for.
    """

    def __init__(self, script: Sequence[int] = (), *, window: int = 256) -> None:
        super().__init__(logits_of(script), window=window)
        self.permits: threading.Semaphore | None = None
        self.broken: Exception | None = None
        self.calls = 0

    def play(self, script: Sequence[int], prompt_tokens: int = 1) -> None:
        self._logits_PV = torch.from_numpy(logits_of(script, prompt_tokens))

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.permits is not None:
            self.permits.acquire()
        self.calls += 1
        if self.broken is not None:
            raise self.broken
        return super().__call__(*given, **named)


@dataclass
class Serving:
    """A running server: where it is, and what it told."""

    port: int
    server: Any
    listener: Any
    lines: list[str] = field(default_factory=list)

    def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Status, headers and parsed body of a POST; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8")
        return self.call("POST", path, data, {"content-type": "application/json", **headers})

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], Any]:
        return self.call("GET", path, None, headers)

    def call(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], Any]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as link:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            link.request(method, path, data, names)
            answer = link.getresponse()
            raw = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, found, json.loads(raw.decode("ascii")) if is_json else raw

    def stream(self, body: object, path: str = "/completion", **options: Any) -> list[Any]:
        """The events of a stream, all of its bytes checked (invariant I14)."""
        status, _, raw = self.post(path, body)
        if status != 200:
            raise AssertionError((status, raw))
        return events(raw)

    @contextlib.contextmanager
    def open(self, body: object, path: str = "/completion", segment: int = 0) -> Iterator[Reader]:
        """A stream read by hand over a bare socket; `segment`: bytes sent and received at once."""
        data = json.dumps(body).encode("utf-8")
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        ).encode("ascii")
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            message = head + data
            for start in range(0, len(message), segment or len(message)):
                sock.sendall(message[start : start + (segment or len(message))])
            yield Reader(sock, segment or 4096)

    def idle(self, seconds: float = 10.0) -> bool:
        """Whether every slot becomes free in time."""
        return eventually(
            lambda: not self.server.scheduler._open and not self.server.scheduler.active, seconds
        )


class Reader:
    """Reads an HTTP answer in chunks from a socket, event by event."""

    def __init__(self, sock: socket.socket, segment: int) -> None:
        self.sock = sock
        self._segment = segment
        self._buffer = b""
        self._body = b""
        self.head: bytes | None = None
        self.ended = False

    def event(self) -> Any:
        """The next event, parsed; None at the end of the answer."""
        while b"\n\n" not in self._body and not self.ended:
            self._more()
        if b"\n\n" not in self._body:
            return None
        frame, _, self._body = self._body.partition(b"\n\n")
        (found,) = events(frame + b"\n\n") or [None]
        return found if found is not None else self.event()

    def _more(self) -> None:
        got = self.sock.recv(self._segment)
        if not got:
            self.ended = True
            return
        self._buffer += got
        if self.head is None:
            if b"\r\n\r\n" not in self._buffer:
                return
            self.head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        while b"\r\n" in self._buffer:
            size, _, rest = self._buffer.partition(b"\r\n")
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self._body += rest[:length]
            self._buffer = rest[length + 2 :]
            if length == 0:
                self.ended = True
                return


def events(raw: bytes) -> list[Any]:
    """Server-sent events, strictly: ASCII, `data: ` and one line of JSON object each, or a comment."""
    text = raw.decode("ascii")
    if text and not text.endswith("\n\n"):
        raise AssertionError(f"the last event is not whole: {text[-80:]!r}")
    found = []
    for frame in text.split("\n\n")[:-1]:
        if frame == ":":
            continue
        if not frame.startswith("data: ") or "\n" in frame or "\r" in frame:
            raise AssertionError(frame)
        payload = frame.removeprefix("data: ")
        value = payload if payload == "[DONE]" else json.loads(payload)
        if not isinstance(value, dict) and value != "[DONE]":
            raise AssertionError(frame)
        found.append(value)
    return found


def eventually(true: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def serving(model: Any, *, key: str | None = None, **options: Any) -> Iterator[Serving]:
    """Serve a model as long as the context lasts; options are those of ServeConfig."""
    from tinylm.serve.app import Served, create_app
    from tinylm.serve.running import Listener, listen, quiet_logs

    config = ServeConfig(**{"port": 0, "slots": 2, "grace_seconds": 0.0, **options}).check()
    quiet_logs()
    ready, lines = threading.Event(), []
    served = Served("scripted", model.config, 7, 8, "0123456789abcdef", 3, "0.0")
    app = create_app(
        Engine(model, config.slots, fast=config.fast), served, config, key or config.api_key, lines.append
    )
    with listen(config) as sock:
        port = sock.getsockname()[1]
        listener = Listener(app, config, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(listener.serve([sock])))
        thread.start()
        try:
            if not ready.wait(20):
                raise RuntimeError("the server did not start")
            yield Serving(port, app.state.server, listener, lines)
        finally:
            listener.should_exit = True
            if isinstance(model, Playable) and model.permits is not None:
                model.permits.release(10_000)
            thread.join(20)
    if thread.is_alive():
        raise RuntimeError("the server did not stop")


@dataclass(frozen=True)
class Expected:
    """What a client must receive of a script, by the plainest means."""

    ids: list[int]
    text: str
    stop_type: str
    word: str


def expected(script: Sequence[int], stops: Sequence[str], limit: int) -> Expected:
    """The oracle: looks at every prefix with bytes.endswith, and decodes once with CPython's decoder."""
    for count in range(limit + 1):
        ids = list(script[:count])
        raw = bytes(token for token in ids if token != DOC_BOUNDARY)
        if ids and ids[-1] == DOC_BOUNDARY:
            return Expected(ids, raw.decode("utf-8", "replace"), "eos", "")
        ending = [word for word in stops if ids and raw.endswith(word.encode("utf-8"))]
        if ending:
            word = max(ending, key=lambda word: len(word.encode("utf-8")))
            kept = raw[: len(raw) - len(word.encode("utf-8"))]
            return Expected(ids, kept.decode("utf-8", "replace"), "word", word)
        if count == limit:
            return Expected(ids, raw.decode("utf-8", "replace"), "limit", "")
    raise AssertionError("unreachable")


def check_stream(test: unittest.TestCase, found: list[Any], wanted: Expected, prompt_tokens: int) -> None:
    """Invariants I1 to I8 of a stream of /completion."""
    *partial, final = found
    test.assertEqual([event["stop"] for event in found], [False] * len(partial) + [True])
    test.assertEqual([token for event in partial for token in event["tokens"]], wanted.ids)
    test.assertEqual([len(event["tokens"]) for event in partial], [1] * len(wanted.ids))
    test.assertEqual((final["tokens"], final["content"]), ([], ""))
    test.assertEqual("".join(event["content"] for event in partial), wanted.text)
    test.assertEqual(
        [event["tokens_predicted"] for event in found],
        [*range(1, len(wanted.ids) + 1), len(wanted.ids)],
    )
    test.assertEqual({event["tokens_evaluated"] for event in found}, {prompt_tokens})
    test.assertEqual(final["timings"]["predicted_n"], len(wanted.ids))
    test.assertEqual((final["stop_type"], final["stopping_word"]), (wanted.stop_type, wanted.word))
    sent, text = b"", ""
    for event in partial:
        sent += bytes(token for token in event["tokens"] if token != DOC_BOUNDARY)
        text += event["content"]
        test.assertTrue(sent.decode("utf-8", "replace").startswith(text), (sent, text))


def check_whole(test: unittest.TestCase, answer: Any, wanted: Expected, prompt_tokens: int) -> None:
    """The same of an answer without a stream that was asked for with return_tokens."""
    test.assertEqual(answer["tokens"], wanted.ids)
    test.assertEqual(answer["content"], wanted.text)
    test.assertEqual((answer["stop_type"], answer["stopping_word"]), (wanted.stop_type, wanted.word))
    test.assertEqual((answer["stop"], answer["tokens_evaluated"]), (True, prompt_tokens))
    test.assertEqual((answer["tokens_predicted"], answer["timings"]["predicted_n"]), (len(wanted.ids),) * 2)
