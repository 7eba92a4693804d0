"""A server that answers as llama-server does, ids lost and all, or exactly, or wrong in one chosen way.

It has no model: a grammar's one sentence is what it "samples", else a fixed text. Standard library only.
Seen in llama-server 0.7.0 (facts of November 2026): nothing is sent while the text ends inside a character,
each event carries the newest id only, the final event none, and a limit inside a character sends nothing.
"""

from __future__ import annotations

import codecs
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

END = 256
FREE = "🌊 바다는 끝이 없다. The sea — 海 — has no end 😊📚 ÿ\u2028🏄🏽. " * 4
PLAIN = "바다는 끝이 없다. The sea — 海 — has no end. " * 4


class Mimic:
    """A running server at `url`. `exact`: one event per token, its id at once. `faults`: names, see `spoil`.

    `piece`: bytes per token; 1 is a byte vocabulary, else ids are 1,000 and up. `requests` lists the bodies.
    """

    def __init__(
        self,
        exact: bool = False,
        faults: tuple[str, ...] = (),
        *,
        piece: int = 1,
        grammar: bool = True,
        key: str | None = None,
    ) -> None:
        self.exact, self.faults, self.piece, self.grammar, self.key = exact, faults, piece, grammar, key
        self.requests: list[dict[str, Any]] = []
        self.vocabulary: list[bytes] = []
        self.busy = 1 if "busy" in faults else 0
        mimic = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                found = {"/props": {"default_generation_settings": {"n_ctx": 512}, "build_info": "mimic"}}
                self.whole(200 if self.path in found else 404, found.get(self.path, {}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                mimic.requests.append(body)
                mimic.answer(self, body)

            def whole(self, status: int, value: object, kind: str = "application/json") -> None:
                raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(raw)))
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(raw)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Mimic:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, handler: Any, body: dict[str, Any]) -> None:
        if self.key is not None and handler.headers["Authorization"] != f"Bearer {self.key}":
            return handler.whole(401, {"error": {"code": 401, "message": "Invalid API Key"}})
        if self.busy:
            self.busy -= 1
            return handler.whole(429, {"error": {"code": 429, "message": "queue is full"}})
        if body.get("grammar") and not self.grammar:
            return handler.whole(501, {"error": {"code": 501, "message": "no grammar\nhere"}})
        if "crash" in self.faults and body["stream"]:
            return handler.connection.close()
        prompts = body["prompt"]
        many = isinstance(prompts, list) and not isinstance(prompts[0], int)
        outputs = [self.generate({**body, "prompt": one}) for one in (prompts if many else [prompts])]
        if body["stream"]:
            return self.stream(handler, body, outputs)
        finals = [{**output.final(), "index": index} for index, output in enumerate(outputs)]
        for final, output in zip(finals, outputs, strict=True):
            final |= {"content": output.text, "tokens": output.ids}
            if "drop_text" in self.faults:
                final["content"] = final["content"].replace("\ufffd", "")
        return handler.whole(200, finals if many else finals[0])

    def generate(self, body: dict[str, Any]) -> Output:
        grammar = body.get("grammar", "")
        if re.fullmatch(r'root ::= ".*"', grammar):
            data = unescaped(grammar[len('root ::= "') : -1]).encode()
        elif "<[" in grammar:
            data = bytes(map(int, re.findall(r"<\[(\d+)\]>", grammar)))
        else:
            shift = body["seed"] if body["temperature"] else 0
            data = (PLAIN if grammar else FREE)[shift:].encode()
            if "dice" in self.faults:
                data = FREE[len(self.requests) :].encode()
        pieces = [data[i : i + self.piece] for i in range(0, len(data), self.piece)]
        return Output(self, body, pieces)

    def token(self, piece: bytes) -> int:
        if self.piece == 1:
            return piece[0]
        if piece not in self.vocabulary:
            self.vocabulary.append(piece)
        return 1000 + self.vocabulary.index(piece)

    def stream(self, handler: Any, body: dict[str, Any], outputs: list[Output]) -> None:
        handler.send_response(200)
        charset = "" if not self.exact or "no_charset" in self.faults else "; charset=utf-8"
        handler.send_header("Content-Type", f"text/event-stream{charset}")
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        raw = b""
        if not self.exact and len(outputs) > 1:
            raw += b"data: null\n\n"
        for index, output in enumerate(outputs):
            events = [*output.progress(), *(output.exact() if self.exact else output.held())]
            for event in self.spoil([*events, output.final()], output):
                value = json.dumps({"index": index, **event}, ensure_ascii=self.exact)
                raw += f"data: {value}\n\n".encode()
        raw = self.spoil_bytes(raw)
        try:
            if "dribble" in self.faults:
                for byte in raw:
                    handler.wfile.write(bytes((byte,)))
            else:
                handler.wfile.write(raw)
        except OSError:
            pass

    def spoil(self, events: list[dict[str, Any]], output: Output) -> list[dict[str, Any]]:
        """The events of a stream with the chosen faults."""
        final = events[-1]
        for fault in self.faults:
            if fault == "counts":
                events = [{**event, "tokens_predicted": event["tokens_predicted"] + 1} for event in events]
                final = events[-1]
            elif fault == "running_counts":
                events = [{**event, "tokens_predicted": output.n} for event in events[:-1]] + [final]
            elif fault == "timings":
                final["timings"] = {"predicted_n": output.n + 2}
            elif fault == "no_timings":
                del final["timings"]
            elif fault == "reordered" and len(events) > 3:
                first, second = events[0]["tokens"], events[1]["tokens"]
                events[0]["tokens"], events[1]["tokens"] = second, first
            elif fault == "lost_id" and len(events) > 2:
                events[1]["tokens"] = []
            elif fault == "twice" and len(events) > 1:
                events.insert(1, events[0])
            elif fault == "second_final":
                events.append(final)
            elif fault == "no_final":
                events.remove(final)
            elif fault == "repeat":
                final["tokens"] = output.ids
            elif fault == "late":
                final["tokens"] = [token for event in events[:-1] for token in event["tokens"]]
                final["content"] = output.text
                events = [final]
            elif fault == "drop_text" or fault == "drop_text_in_stream":
                for event in events:
                    event["content"] = event["content"].replace("\ufffd", "")
            elif fault == "early_text" and len(events) > 2:
                events[0]["content"], events[1]["content"] = events[0]["content"] + events[1]["content"], ""
            elif fault == "surrogate":
                events[0]["content"] = "\ud83d"
            elif fault == "float":
                events[0]["tokens"] = [float(token) for token in events[0]["tokens"]]
            elif fault == "wrong_end":
                final["stop_type"] = "limit" if final["stop_type"] == "eos" else "eos"
            elif fault == "error":
                events = [*events[: len(events) // 2], {"error": {"code": 500, "message": "out of\nmemory"}}]
            elif fault == "evaluated":
                final["tokens_evaluated"] += 1
        return events

    def spoil_bytes(self, raw: bytes) -> bytes:
        for fault in self.faults:
            if fault == "null":
                raw = b"data: null\n\n" + raw
            elif fault == "garbage":
                raw = raw.replace(b"\n\n", b"\n\ndata: {not json\n\n", 1)
            elif fault == "bare_line":
                raw = raw.replace(b"\n\n", b'\n\n{"content":"x"}\n\n', 1)
            elif fault == "cut":
                raw = raw[:-1]
            elif fault == "crlf":
                raw = raw.replace(b"\n", b"\r\n")
            elif fault == "cr":
                raw = raw.replace(b"\n", b"\r")
            elif fault == "comments":
                raw = b":\n\n" + raw.replace(b"\n\n", b"\n\n: ping\n\n")
            elif fault == "bad_byte":
                raw = raw.replace(b'"content": "', b'"content": "\xff', 1)
            elif fault == "done":
                raw += b"data: [DONE]\n\n"
        return raw


class Output:
    """What one prompt samples: `ids` and their `pieces` of bytes, the kept text, and the end."""

    def __init__(self, mimic: Mimic, body: dict[str, Any], pieces: list[bytes]) -> None:
        self.mimic, self.body = mimic, body
        self.stops = [word.encode() for word in body.get("stop", [])]
        self.limit = body["n_predict"] if mimic.exact else max(1, body["n_predict"])
        self.pieces: list[bytes] = []
        self.ids: list[int] = []
        self.reason, self.word = "limit", b""
        for piece in [*pieces, None]:
            if len(self.ids) == self.limit:
                break
            if piece is None:
                self.ids.append(END)
                self.reason = "eos"
                break
            self.ids.append(mimic.token(piece))
            self.pieces.append(piece)
            raw = b"".join(self.pieces)
            found = [word for word in self.stops if word in raw]
            if found:
                self.word = min(found, key=raw.find)
                self.reason = "word"
                break
        self.raw = b"".join(self.pieces)
        self.kept = self.raw[: self.raw.find(self.word)] if self.reason == "word" else self.raw
        self.text = self.kept.decode("utf-8", "replace")
        self.n = len(self.ids)

    def event(self, content: str, tokens: list[int], predicted: int) -> dict[str, Any]:
        return {"content": content, "tokens": tokens, "stop": False, "tokens_predicted": predicted}

    def progress(self) -> Iterator[dict[str, Any]]:
        if self.body.get("return_progress"):
            tokens = [0] if "phantom" in self.mimic.faults or not self.mimic.exact else []
            yield {**self.event("", tokens, 0), "prompt_progress": {"total": 1, "processed": 1}}

    def exact(self) -> Iterator[dict[str, Any]]:
        """An event per token: its id at once, its text when that is certain, the rest on the last one."""
        sent = ""
        for number, token in enumerate(self.ids):
            last = number == self.n - 1
            raw = b"".join(self.pieces[: number + 1])
            safe = self.text if last else certain(raw, self.stops)
            yield self.event(safe[len(sent) :], [token], number + 1)
            sent = safe

    def held(self) -> Iterator[dict[str, Any]]:
        """As llama-server: nothing inside a character, the newest id only, a stop prefix let go at eos."""
        sent = 0
        for number, token in enumerate(self.ids):
            raw = b"".join(self.pieces[: number + 1])
            if incomplete(raw):
                continue
            last = number == self.n - 1
            if last and self.reason == "word":
                release = len(self.kept)
            elif last and self.reason == "eos":
                release = len(raw)
            else:
                release = len(raw) - stop_prefix(raw, self.stops)
            release = max(release, sent)
            yield self.event(raw[sent:release].decode("utf-8", "replace"), [token], number + 1)
            sent = release

    def final(self) -> dict[str, Any]:
        prompt = self.body["prompt"]
        return {
            **self.event("", [], self.n),
            "stop": True,
            "stop_type": self.reason,
            "stopping_word": self.word.decode(),
            "tokens_evaluated": len(prompt) if isinstance(prompt, list) else len(prompt.encode()) + 1,
            "truncated": False,
            "timings": {"predicted_n": self.n},
        }


def certain(raw: bytes, stops: list[bytes]) -> str:
    """The text of `raw` that no further byte can change, without what may begin a stop string."""
    raw = raw[: len(raw) - stop_prefix(raw, stops)]
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


def stop_prefix(raw: bytes, stops: list[bytes]) -> int:
    """Bytes at the end of `raw` with which a stop string may begin."""
    return max((n for word in stops for n in range(1, len(word)) if raw.endswith(word[:n])), default=0)


def incomplete(raw: bytes) -> bool:
    """Whether a lead byte among the last three wants more bytes than follow it, whatever they are."""
    for back, byte in enumerate(reversed(raw[-3:]), start=1):
        needed = 4 if byte & 0xF8 == 0xF0 else 3 if byte & 0xF0 == 0xE0 else 2 if byte & 0xE0 == 0xC0 else 0
        if back < needed:
            return True
    return False


def unescaped(text: str) -> str:
    """The characters of a GBNF literal."""
    return re.sub(
        r"\\(?:x(..)|u(....)|U(........)|(.))",
        lambda found: found[4] or chr(int(found[1] or found[2] or found[3], 16)),
        text,
    )
