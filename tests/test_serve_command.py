"""tinylm serve as a user runs it: what it prints, what it refuses on one line, how it stops."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from tests.forked import Forked
from tests.serve_support import Playable, needs_serve, serving
from tests.stage_support import ROOT
from tests.test_cli import command
from tinylm.config import ServeConfig
from tinylm.errors import ConfigError

SAMPLE = ROOT / "checkpoints" / "sample-nano"


class Options(unittest.TestCase):
    def test_all_problems_come_at_once(self) -> None:
        with self.assertRaises(ConfigError) as caught:
            ServeConfig(port=70_000, slots=0, queue=-1, seed=2**32, host="", api_key="").check()
        for name in ("port", "slots", "queue", "seed", "host", "api_key"):
            self.assertIn(f"{name} is", str(caught.exception))
        with self.assertRaises(ConfigError):
            ServeConfig(api_key="a", api_key_file="b").check()
        self.assertEqual(ServeConfig().check().host, "127.0.0.1")

    def test_without_the_extra_it_is_named(self) -> None:
        with mock.patch("importlib.util.find_spec", return_value=None):
            code, _, error = command("serve", str(SAMPLE))
        self.assertEqual(code, 2)
        self.assertIn("pip install starlette", error)


@needs_serve
class Refused(unittest.TestCase):
    def test_what_cannot_be_served_is_one_line(self) -> None:
        with socket.socket() as taken, tempfile.TemporaryDirectory() as folder:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            empty = Path(folder) / "key"
            empty.write_text("\n", "utf-8")
            for words, told in (
                ((str(SAMPLE), "--port", port), f"port {port} of 127.0.0.1: "),
                ((str(SAMPLE), "--host", "no.such.host.invalid"), "host is 'no.such.host.invalid'"),
                ((str(SAMPLE), "--host", "192.0.2.1", "--port", "0"), "192.0.2.1"),
                ((folder + "/nothing", "--port", "0"), "does not exist"),
                ((str(SAMPLE), "--port", "70000"), "port is 70000"),
                ((str(SAMPLE), "--port", "0", "--graphs"), "graphs is given without fast"),
                ((str(SAMPLE), "--port", "0", "--fast", "--graphs", "--device", "cpu"), "is on cpu"),
                ((str(SAMPLE), "--port", "0", "--api-key-file", str(empty)), "is empty"),
                ((str(SAMPLE), "--port", "0", "--api-key-file", folder + "/none"), "none"),
            ):
                with self.subTest(words):
                    code, out, error = command("serve", *words)
                    self.assertEqual((code, out, error.count("\n")), (2, "", 1), error)
                    self.assertIn(told, error)


@needs_serve
@unittest.skipUnless(os.name == "posix", "POSIX signals")
class Running(unittest.TestCase):
    def test_it_says_where_it_listens_and_a_signal_ends_a_stream_and_the_command(self) -> None:
        words = ("serve", str(SAMPLE), "--port", "0", "--grace-seconds", "0.2")
        reading, writing = os.pipe()
        with open(reading, encoding="utf-8") as output, tempfile.TemporaryFile() as error:
            with open(writing, "wb") as pipe:
                process = Forked(*words, output=pipe, error=error)
            try:
                line = output.readline()
                found = re.match(
                    r"http://127\.0\.0\.1:(\d+) serves sample-nano \(window 256, policy \w+, on", line
                )
                self.assertTrue(found, line)
                link = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
                asked = {"prompt": "", "stream": True, "ignore_eos": True, "n_probs": 257}
                link.request("POST", "/completion", json.dumps(asked), {"content-type": "application/json"})
                answer = link.getresponse()
                self.assertEqual(answer.status, 200)
                answer.readline()
                process.send_signal(signal.SIGTERM)
                last = answer.read().decode("ascii").strip().split("\n\n")[-1]
                self.assertEqual(process.wait(15), 128 + signal.SIGTERM)
                event = json.loads(last.removeprefix("data: "))
                self.assertTrue(event.get("stop") or event["error"]["code"] == 503, last)
                error.seek(0)
                log = error.read().decode("utf-8")
                self.assertRegex(log, r"POST /completion 200 (unavailable_error|limit), 1 prompt tokens")
                self.assertNotIn("Traceback", log)
            finally:
                process.kill()


@needs_serve
@unittest.skipIf(
    importlib.util.find_spec("llguidance") is None, "llguidance is not installed: the extra constrain"
)
class Constrained(unittest.TestCase):
    def test_a_grammar_forces_what_is_written_on_both_wires(self) -> None:
        model = Playable(list(b"zzz"))
        model._logits_PV[:] = 0.0
        with serving(model) as server:
            body = {"prompt": "", "grammar": 'root ::= "😊📚"', "return_tokens": True, "seed": 1}
            answer = server.post("/completion", body)[2]
            self.assertEqual((answer["content"], answer["stop_type"]), ("😊📚", "eos"))
            self.assertEqual(answer["tokens"], [*"😊📚".encode(), 256])
            self.assertEqual(answer["generation_settings"]["grammar"], body["grammar"])
            schema = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"],
                      "additionalProperties": False}  # fmt: skip
            text = server.post("/completion", {"prompt": "", "json_schema": schema})[2]["content"]
            self.assertEqual(json.loads(text), {"a": 5})
            answer = server.post("/v1/completions", {"prompt": "", "regex": "[가-나]{3}", "n": 2})[2]
            for choice in answer["choices"]:
                self.assertRegex(choice["text"], "^[가-나]{3}$")
            text = server.post("/completion", {"prompt": "", "valid_utf8": True, "n_predict": 60})[2][
                "content"
            ]
            self.assertNotIn("�", text)

    def test_what_is_wrong_with_a_constraint_is_400(self) -> None:
        with serving(Playable([65])) as server:
            for wrong in (
                {"grammar": "root ::= ("}, {"regex": "("}, {"json_schema": {"type": "nothing"}},
                {"json_schema": "{}"}, {"grammar": 5}, {"grammar": 'root ::= "a"', "regex": "a"},
                {"valid_utf8": 1}, {"grammar": "@/etc/passwd"},
            ):  # fmt: skip
                for stream in (False, True):
                    status, _, answer = server.post("/completion", {"prompt": "", "stream": stream, **wrong})
                    self.assertEqual((status, answer["error"]["code"]), (400, 400), wrong)
                    self.assertNotIn("root:x", answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
