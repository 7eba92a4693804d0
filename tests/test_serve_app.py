"""The server over HTTP: its routes, its doors, and every way in which a request can end badly."""

from __future__ import annotations

import json
import socket
import threading
import time
import unittest
from unittest import mock

import numpy as np
import torch

from tests.scripted import UNLIKELY
from tests.serve_support import Playable, Serving, events, eventually, needs_serve, serving

ABC = list(b"ABCDEFGHIJKLMNOPQRST")


def endless(window: int = 20_000) -> Playable:
    """A model that writes A for ever."""
    model = Playable(window=window)
    logits_PV = np.full((1, 257), UNLIKELY)
    logits_PV[0, 65] = 0.0
    model._logits_PV = torch.from_numpy(logits_PV)
    return model


def gated(script: list[int] = ABC) -> Playable:
    """A model that waits before each forward pass until it is let."""
    model = Playable(script)
    model.permits = threading.Semaphore(0)
    return model


def raw(port: int, data: bytes) -> bytes:
    """What a server answers to bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(data)
        parts = []
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


@needs_serve
class Routes(unittest.TestCase):
    def test_every_route_answers_and_says_what_is_served(self) -> None:
        with serving(Playable(ABC), slots=3) as server:
            self.assertEqual(server.get("/health")[::2], (200, {"status": "ok"}))
            props = server.get("/props")[2]
            self.assertEqual((props["total_slots"], props["model_alias"]), (3, "scripted"))
            self.assertEqual(props["default_generation_settings"]["n_ctx"], 256)
            self.assertEqual(props["tinylm"]["contract"]["vocabulary_size"], 257)
            self.assertEqual(props["tinylm"]["step"], 3)
            slots = server.get("/slots")[2]
            self.assertEqual([slot["is_processing"] for slot in slots], [False] * 3)
            (model,) = server.get("/v1/models")[2]["data"]
            self.assertEqual((model["id"], model["meta"]["n_vocab"]), ("scripted", 257))
            self.assertEqual(server.post("/tokenize", {"content": "é"})[2], {"tokens": [195, 169]})
            self.assertEqual(server.post("/detokenize", {"tokens": [195, 169]})[2], {"content": "é"})
            status, headers, page = server.get("/")
            self.assertEqual((status, headers["content-type"]), (200, "text/html; charset=utf-8"))
            self.assertIn(b"<script", page)
            policy = headers["content-security-policy"]
            self.assertIn("default-src 'none'; script-src 'sha256-", policy)
            self.assertNotIn("unsafe", policy)
            server.post("/completion", {"prompt": "", "n_predict": 4})
            self.assertIn("tinylm_tokens_predicted_total 4\n", server.get("/metrics")[2].decode())

    def test_wrong_paths_methods_and_types_are_json_errors(self) -> None:
        with serving(Playable(ABC)) as server:
            for method, path, status in (
                ("GET", "/nothing", 404),
                ("GET", "/completion", 405),
                ("POST", "/health", 405),
                ("DELETE", "/v1/models", 405),
            ):
                found, headers, body = server.call(method, path, None, {})
                self.assertEqual((found, body["error"]["code"]), (status, status))
                self.assertEqual(headers["content-type"], "application/json; charset=utf-8")
            body = json.dumps({"prompt": "", "n_predict": 1}).encode()
            for kind in (
                None,
                "text/plain",
                "application/x-www-form-urlencoded",
                "application/json; charset=latin-1",
            ):
                headers = {} if kind is None else {"content-type": kind}
                status, _, answer = server.call("POST", "/completion", body, headers)
                self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), kind)
                self.assertIn("content-type", answer["error"]["message"])
            status, _, answer = server.call(
                "POST", "/completion", body, {"content-type": 'application/json; charset="UTF-8"'}
            )
            self.assertEqual(status, 200)
            for stream in (False, True):
                status, _, answer = server.post("/completion", {"prompt": [], "stream": stream})
                self.assertEqual((status, answer["error"]["code"]), (400, 400))
            self.assertIn(b"HTTP/1.1 400", raw(server.port, b"nonsense\r\n\r\n"))
            self.assertIn(b'{"error":{"code":400', raw(server.port, b"nonsense\r\n\r\n"))

    def test_a_body_that_is_too_large_is_413_and_the_server_goes_on(self) -> None:
        with serving(Playable(ABC), max_body=1000) as server:
            self.assertEqual(server.post("/completion", b"x" * 4000)[0], 413)
            self.assertEqual(server.post("/completion", b" " * 999 + b"x")[0], 400)
            head = b"POST /completion HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            chunks = b"transfer-encoding: chunked\r\n\r\n" + b"3e8\r\n%s\r\n" % (b"x" * 1000) * 20
            self.assertIn(b"413", raw(server.port, head + chunks).partition(b"\r\n")[0])
            asked = head + b"expect: 100-continue\r\ncontent-length: 5000\r\n\r\n"
            self.assertIn(b"413", raw(server.port, asked).partition(b"\r\n")[0])
            self.assertEqual(server.post("/completion", {"prompt": "", "n_predict": 1})[0], 200)

    def test_a_key_opens_everything_but_health_and_the_page(self) -> None:
        with serving(Playable(ABC), key="clé") as server:
            body = {"prompt": "", "n_predict": 1}
            right = "clé".encode().decode("latin-1")
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.get("/")[0], 200)
            for headers, status in (
                ({}, 401),
                ({"authorization": "Bearer cle"}, 401),
                ({"authorization": f"Basic {right}"}, 401),
                ({"authorization": "Bearer"}, 401),
                ({"authorization": f"Bearer {right}"}, 200),
                ({"authorization": f"bearer {right}"}, 200),
                ({"x-api-key": right}, 200),
            ):
                with self.subTest(headers):
                    found, _, answer = server.post("/completion", body, **headers)
                    self.assertEqual(found, status)
                    if status == 401:
                        self.assertEqual(answer["error"]["type"], "authentication_error")
            self.assertEqual(server.get("/props")[0], 401)

    def test_a_foreign_name_on_loopback_is_refused_and_no_origin_is_allowed_unasked(self) -> None:
        with serving(Playable(ABC), allow_host=("tiny.test",)) as server:
            for host, status in (
                ("evil.example", 403), ("", 403), (f"localhost:{server.port}", 200), ("[::1]:80", 200),
                ("127.0.0.1", 200), ("TINY.test:1", 200), ("localhost.evil.example", 403),
            ):  # fmt: skip
                self.assertEqual(server.get("/health", host=host)[0], status, host)
            headers = server.get("/health", origin="http://a.example")[1]
            self.assertNotIn("access-control-allow-origin", headers)
        with serving(Playable(ABC), cors_origin=("http://a.example",), key="k") as server:
            asked = {"origin": "http://a.example", "access-control-request-method": "POST"}
            status, headers, _ = server.call("OPTIONS", "/completion", None, asked)
            self.assertEqual(status, 200)
            self.assertEqual(headers["access-control-allow-origin"], "http://a.example")
            asked["origin"] = "http://b.example"
            self.assertNotIn(
                "access-control-allow-origin", server.call("OPTIONS", "/completion", None, asked)[1]
            )

    def test_what_is_told_of_a_stream(self) -> None:
        with serving(Playable(list("né\n".encode()))) as server:
            body = {"prompt": "", "n_predict": 6, "temperature": 0}
            _, headers, data = server.post("/completion", {**body, "stream": True})
            self.assertEqual(headers["content-type"], "text/event-stream; charset=utf-8")
            self.assertEqual(headers["cache-control"], "no-cache")
            self.assertNotIn(b"\xc3", data)
            final = events(data)[-1]
            self.assertEqual((final["has_new_line"], final["truncated"], final["prompt"]), (True, False, ""))
            self.assertEqual(final["model"], "scripted")
            progress = server.stream(
                {**body, "stream": True, "return_progress": True, "timings_per_token": True}
            )
            told = [event for event in progress if "prompt_progress" in event]
            self.assertEqual([event["tokens"] for event in told], [[]] * len(told))
            self.assertEqual(told[-1]["prompt_progress"]["processed"], 1)
            self.assertEqual(
                [event["timings"]["predicted_n"] for event in progress if "timings" in event][:3], [1, 2, 3]
            )
            few = server.post("/completion", {**body, "response_fields": ["content", "timings/predicted_n"]})[
                2
            ]
            self.assertEqual(few, {"content": "né\n", "timings/predicted_n": 5})
            long = server.stream({**body, "stream": True, "return_progress": True, "prompt": [65] * 200})
            read = [event["prompt_progress"] for event in long if "prompt_progress" in event]
            processed = [one["processed"] for one in read]
            self.assertEqual((processed[0], processed[-1]), (0, 200))
            self.assertGreater(len(processed), 2)
            self.assertEqual(processed, sorted(set(processed)))
            self.assertEqual(sum(len(event["tokens"]) for event in long), long[-1]["tokens_predicted"])
            none = server.stream({**body, "stream": True, "n_predict": 0})
            self.assertEqual([(event["stop"], event["stop_type"], event["tokens"]) for event in none],
                             [(True, "limit", [])])  # fmt: skip

    def test_no_token_is_drawn_for_a_limit_of_none(self) -> None:
        model = Playable(ABC)
        with serving(model) as server:
            for body in ({}, {"return_tokens": True}, {"stream": True}):
                server.post("/completion", {"prompt": "", "n_predict": 0, **body})
        self.assertEqual(model.calls, 0)

    def test_the_context_ends_a_generation_and_says_so(self) -> None:
        with serving(endless(64)) as server:
            for extra in ({}, {"n_predict": 63}, {"n_predict": 62}, {"n_predict": 61}):
                answer = server.post("/completion", {"prompt": "x", "return_tokens": True, **extra})[2]
                limit = extra.get("n_predict", -1)
                self.assertEqual(answer["tokens_predicted"], min(limit, 62) if limit >= 0 else 62)
                self.assertEqual((answer["stop_type"], answer["truncated"]), ("limit", limit in (-1, 63)))
            status, _, answer = server.post("/completion", {"prompt": "x" * 63, "stream": True})
            self.assertEqual((status, answer["error"]["type"]), (400, "exceed_context_size_error"))

    def test_the_log_has_a_line_per_request_and_no_text(self) -> None:
        with serving(Playable(ABC)) as server:
            server.post("/completion", {"prompt": "SECRET", "n_predict": 4, "seed": 1})
            server.get("/nothing")
            server.get("/a%0Ab%0D")
            lines = server.lines
        self.assertRegex(lines[2], "GET /a%0Ab%0D 404")
        self.assertRegex(lines[0], r"POST /completion 200 \w+, 7 prompt tokens, \d sampled, [\d.-]+ tokens/s")
        self.assertRegex(lines[1], r"GET /nothing 404 not_found_error")
        self.assertNotIn("SECRET", "".join(lines))


@needs_serve
class Ends(unittest.TestCase):
    BODY = {"prompt": "", "temperature": 0, "stream": True}  # noqa: RUF012

    def test_a_client_that_leaves_at_any_event_costs_at_most_one_more_step(self) -> None:
        model = gated()
        with serving(model) as server:
            for count in range(6):
                before, told = model.calls, len(server.lines)
                with server.open(self.BODY) as reader:
                    self.assertTrue(eventually(lambda: server.server.scheduler.active), count)
                    model.permits.release(count) if count else None
                    self.assertEqual(
                        [reader.event()["tokens"] for _ in range(count)], [[id] for id in ABC[:count]]
                    )
                self.assertTrue(eventually(lambda told=told: len(server.lines) > told), count)
                self.assertIn(" gone, ", server.lines[-1])
                model.permits.release(1)
                self.assertTrue(server.idle(), count)
                self.assertLessEqual(model.calls - before, count + 1)
                while model.permits.acquire(blocking=False):
                    pass

    def test_a_client_that_leaves_without_a_stream_or_from_the_queue_frees_its_place(self) -> None:
        model = gated()
        with serving(model, slots=1, queue=1) as server:
            with server.open(self.BODY | {"stream": False}):
                self.assertTrue(eventually(lambda: server.server.scheduler.active))
                with server.open(self.BODY):
                    self.assertTrue(eventually(lambda: server.server.scheduler.waiting == 1))
                self.assertTrue(eventually(lambda: server.server.scheduler.waiting == 0))
            self.assertTrue(eventually(lambda: len(server.lines) == 2))
            self.assertTrue(all(" gone, " in line for line in server.lines), server.lines)
            model.permits.release(1)
            self.assertTrue(server.idle())
            self.assertEqual(model.calls, 1)

    def test_a_full_queue_is_429_with_the_time_to_wait(self) -> None:
        model = gated()
        with serving(model, slots=1, queue=1) as server, server.open(self.BODY) as first:
            self.assertTrue(eventually(lambda: server.server.scheduler.active))
            with server.open(self.BODY) as second:
                self.assertTrue(eventually(lambda: server.server.scheduler.waiting == 1))
                for body in (self.BODY, self.BODY | {"stream": False}, self.BODY | {"prompt": ["", ""]}):
                    status, headers, answer = server.post("/completion", body)
                    self.assertEqual((status, answer["error"]["type"]), (429, "rate_limit_error"))
                    self.assertGreaterEqual(int(headers["retry-after"]), 1)
                status, _, answer = server.post("/completion", self.BODY | {"prompt": [""] * 3})
                self.assertEqual(status, 400)
                busy = [slot["is_processing"] for slot in server.get("/slots")[2]]
                self.assertEqual(busy, [True])
                model.permits.release(100)
                for reader in (first, second):
                    found = []
                    while (event := reader.event()) is not None:
                        found += event["tokens"]
                    self.assertEqual(found, [*ABC, 256])

    def test_the_time_of_the_queue_ends_a_request_that_waits(self) -> None:
        model = gated()
        with serving(model, slots=1, queue_seconds=0, request_seconds=0) as server:
            with server.open(self.BODY) as first:
                model.permits.release(1)
                self.assertEqual(first.event()["tokens"], [ABC[0]])
                # The slot is held for as long as the test likes; only who comes now waits by the clock.
                server.server.patience.queue = 0.05
                for stream in (True, False):
                    status, headers, answer = server.post("/completion", self.BODY | {"stream": stream})
                    self.assertEqual((status, answer["error"]["type"]), (503, "unavailable_error"))
                    self.assertIn("retry-after", headers)
                model.permits.release(1)
                self.assertEqual(first.event()["tokens"], [ABC[1]])
            self.let_go(server, model)

    def test_the_time_of_a_request_ends_it_before_and_after_the_first_token(self) -> None:
        model = gated()
        with serving(model, slots=1, queue_seconds=0, request_seconds=500.0) as server:
            later = 0.0
            real = time.monotonic
            clock = mock.Mock(monotonic=lambda: real() + later)
            with mock.patch("tinylm.serve.streams.time", clock), server.open(self.BODY) as first:
                model.permits.release(1)
                self.assertEqual(first.event()["tokens"], [ABC[0]])
                later = 499.9
                model.permits.release(1)  # if the server waits by the old time, this ends its wait
                told = first.event()
                if "error" not in told:
                    self.assertEqual(told["tokens"], [ABC[1]])
                    told = first.event()
                self.assertEqual((told["error"]["code"], told["error"]["type"]), (504, "timeout_error"))
                self.assertIsNone(first.event())
            self.let_go(server, model)
            server.server.patience.request = 0.05
            for stream in (True, False):  # nothing is ever sampled: the answer is an error of its own
                status, _, answer = server.post("/completion", self.BODY | {"stream": stream})
                self.assertEqual((status, answer["error"]["code"]), (504, 504))
                self.let_go(server, model)

    def let_go(self, server: Serving, model: Playable) -> None:
        """Let the model run until no request is left, then hold it back again.

        A client is told of an error before the request leaves its slot: how many steps that takes is open.
        """
        model.permits.release(1000)
        self.assertTrue(server.idle())
        while model.permits.acquire(blocking=False):
            pass

    def test_a_comment_keeps_an_idle_stream_alive(self) -> None:
        model = gated()
        with serving(model, ping_seconds=0.05) as server, server.open(self.BODY) as reader:
            reader.sock.settimeout(5)
            data = b""
            while data.count(b":\n\n") < 2:
                data += reader.sock.recv(4096)
            self.assertIn(b"200 OK", data)
            self.assertNotIn(b"data", data.partition(b"\r\n\r\n")[2])

    def test_what_breaks_in_the_model_ends_a_stream_with_one_error_and_the_server_goes_on(self) -> None:
        model = gated()
        with serving(model) as server:
            with server.open(self.BODY) as reader:
                model.permits.release(2)
                self.assertEqual([reader.event()["tokens"] for _ in range(2)], [[id] for id in ABC[:2]])
                model.broken = RuntimeError("the device is on fire")
                model.permits.release(1)
                error = reader.event()["error"]
                self.assertEqual((error["code"], error["type"]), (500, "server_error"))
                self.assertNotIn("fire", error["message"])
                self.assertIsNone(reader.event())
            self.assertTrue(any("the device is on fire" in line for line in server.lines))
            model.permits.release(1)
            status, _, answer = server.post("/completion", self.BODY)
            self.assertEqual((status, answer["error"]["code"]), (500, 500))
            model.broken = None
            model.permits.release(100)
            self.assertEqual(len(server.stream(self.BODY)), len(ABC) + 2)

    def test_a_bias_that_forbids_all_that_a_constraint_allows_is_the_fault_of_the_request(self) -> None:
        for forbidden in ({"ignore_eos": True}, {"logit_bias": [[256, False]]}):
            body = {"prompt": "", "valid_utf8": True, "n_predict": 1, "logit_bias": [], **forbidden}
            body["logit_bias"] = [*body["logit_bias"], *([byte, False] for byte in range(128))]
            body["logit_bias"] += [[byte, False] for byte in range(0xC2, 0xF5)]
            with self.subTest(forbidden), serving(Playable(ABC)) as server:
                status, _, answer = server.post("/completion", body)
                self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
                self.assertIn("ignore_eos", answer["error"]["message"])
                self.assertEqual(server.post("/completion", {"prompt": ""})[0], 200)

    def test_an_error_of_one_request_leaves_its_neighbour_alone(self) -> None:
        model = Playable(ABC)
        model._logits_PV[5] = torch.nan
        with serving(model) as server:
            found = {}

            def ask(name: str, prompt: list[int]) -> None:
                found[name] = server.stream(self.BODY | {"prompt": prompt})

            threads = [
                threading.Thread(target=ask, args=("bad", [256])),
                threading.Thread(target=ask, args=("good", [256] * 9)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([event["tokens"] for event in found["bad"][:-1]], [[id] for id in ABC[:5]])
        self.assertIn("logit", found["bad"][-1]["error"]["message"])
        ids = [id for event in found["good"] for id in event["tokens"]]
        self.assertEqual(ids, [*ABC[8:], 256])


@needs_serve
class SlowReaders(unittest.TestCase):
    BODY = {"prompt": "", "stream": True, "n_probs": 257, "n_predict": 160, "temperature": 0}  # noqa: RUF012

    def connect(self, server: Serving) -> socket.socket:
        """A client with a small buffer, that has sent its request and reads nothing."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", server.port))
        data = json.dumps(self.BODY).encode()
        sock.sendall(
            b"POST /completion HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)
        )
        return sock

    def test_only_its_own_slot_waits_and_nothing_is_lost(self) -> None:
        from tinylm.serve.scheduler import BACKLOG

        model = endless()
        with serving(model) as server, self.connect(server) as sock:
            scheduler = server.server.scheduler
            paused = lambda: any(job.exchange.paused for job in scheduler.active.values())  # noqa: E731
            self.assertTrue(eventually(paused, 20))
            (job,) = scheduler.active.values()
            time.sleep(0.1)
            calls = model.calls
            time.sleep(0.2)
            self.assertEqual(model.calls, calls)
            self.assertLessEqual(job.exchange.waiting, BACKLOG + 16)
            self.assertEqual(server.get("/slots")[2][job.answer.slot]["is_paused"], True)
            other = server.post("/completion", {"prompt": "", "n_predict": 50})[2]
            self.assertEqual(other["content"], "A" * 50)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            data = b""
            while part := sock.recv(1 << 20):
                data += part
        _, _, body = data.partition(b"\r\n\r\n")
        ids = body.count(b'"tokens":[65]')
        self.assertEqual((ids, body.count(b'"stop":true')), (160, 1))

    def test_what_still_waits_when_the_last_token_is_drawn_is_not_lost(self) -> None:
        body = {**self.BODY, "n_predict": 40}
        with (
            mock.patch.object(self, "BODY", body),
            serving(endless()) as server,
            self.connect(server) as sock,
        ):
            self.assertTrue(eventually(lambda: server.server.scheduler.finished == 1, 20))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            data = b""
            while part := sock.recv(1 << 20):
                data += part
        self.assertEqual((data.count(b'"tokens":[65]'), data.count(b'"stop":true')), (40, 1))

    def test_one_that_never_reads_is_disconnected_and_its_slot_freed(self) -> None:
        model = endless()
        with serving(model, stall_seconds=0.3) as server, self.connect(server) as sock:
            self.assertTrue(eventually(lambda: server.server.scheduler.active))
            self.assertTrue(eventually(lambda: any(" stalled, " in line for line in server.lines), 20))
            self.assertTrue(server.idle())
            self.assertEqual(len(server.listener.server_state.connections), 0)
            with self.assertRaises((ConnectionResetError, AssertionError)):
                data = b""
                while part := sock.recv(1 << 20):
                    data += part
                assert b'"stop":true' in data

    def test_an_answer_that_is_never_read_does_not_stay(self) -> None:
        body = {**self.BODY, "stream": False}
        with (
            mock.patch("tinylm.serve.running.LINGER_SECONDS", 0.2),
            mock.patch.object(self, "BODY", body),
            serving(endless()) as server,
            self.connect(server),
        ):
            self.assertTrue(eventually(lambda: server.lines, 20))
            self.assertEqual(len(server.listener.server_state.connections), 1)
            self.assertTrue(eventually(lambda: not server.listener.server_state.connections))

    def test_a_fault_of_our_own_is_an_error_event_and_a_traceback_in_the_log(self) -> None:
        with serving(Playable(ABC)) as server:
            for stream in (True, False):
                with mock.patch("tinylm.serve.native.final", side_effect=ZeroDivisionError):
                    status, _, answer = server.post("/completion", {"prompt": "", "stream": stream})
                error = events(answer)[-1]["error"] if status == 200 else answer["error"]
                self.assertEqual((error["code"], error["type"]), (500, "server_error"))
            self.assertTrue(any("ZeroDivisionError" in line for line in server.lines))
            self.assertTrue(server.idle())


@needs_serve
class Stopping(unittest.TestCase):
    BODY = {"prompt": "", "temperature": 0, "stream": True}  # noqa: RUF012

    def test_a_stopping_server_lets_streams_end_in_time(self) -> None:
        model = gated()
        with serving(model, slots=1, grace_seconds=10.0) as server, server.open(self.BODY) as reader:
            model.permits.release(2)
            self.assertEqual(reader.event()["tokens"], [ABC[0]])
            with server.open(self.BODY) as waits:
                self.assertTrue(eventually(lambda: server.server.scheduler.waiting == 1))
                server.listener.should_exit = True
                found = b""
                while b"stopping" not in found and (part := waits.sock.recv(65536)):
                    found += part
                self.assertIn(b"HTTP/1.1 503", found)
                self.assertIn(b"the server is stopping", found)
            with self.assertRaises(OSError):
                server.get("/health")
            model.permits.release(100)
            ids = []
            while (event := reader.event()) is not None:
                ids += event["tokens"]
            self.assertEqual(ids, [*ABC[1:], 256])

    def test_what_does_not_end_in_time_ends_with_an_error(self) -> None:
        model = gated()
        with serving(model, grace_seconds=0.2) as server, server.open(self.BODY) as reader:
            model.permits.release(2)
            self.assertEqual([reader.event()["tokens"] for _ in range(2)], [[id] for id in ABC[:2]])
            start = time.monotonic()
            server.listener.should_exit = True
            error = reader.event()["error"]
            self.assertEqual((error["code"], error["type"]), (503, "unavailable_error"))
            self.assertIsNone(reader.event())
            self.assertLess(time.monotonic() - start, 3.0)


if __name__ == "__main__":
    unittest.main()
