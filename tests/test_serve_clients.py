"""Clients that others wrote, unmodified, against the real server: each rebuilds every id and all text."""

from __future__ import annotations

import importlib.util
import json
import threading
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.scripted import ScriptedModel
from tests.serve_support import Playable, Serving, check_stream, check_whole, expected, needs_serve, serving
from tinylm.config import AuditConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.serve.audit import audit
from tinylm.serve.audit.cases import CASES as CASES_OF_THE_AUDIT

PROMPT = "é"
PROMPT_TOKENS = 3  # the boundary and two bytes

END = (DOC_BOUNDARY,)
FACES = "😊📚😊".encode()
CASES: tuple[tuple[str, tuple[int, ...], tuple[str, ...], int], ...] = (
    ("emoji", (*FACES, *END), (), 250),
    ("a limit inside an emoji", (*FACES, *END), (), 7),
    ("Korean", (*"안녕하세요.".encode(), *END), (), 250),
    ("a limit inside Hangul", (*"안녕하세요.".encode(), *END), (), 5),
    ("line breaks of Unicode", (*"a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg".encode(), *END), (), 250),
    ("line breaks", (*b"a\r\nb\rc\n\nd", *END), (), 250),
    ("an event in the text", (*b"data: [DONE]\n\ndata: null\n\n: ping\n\n", *END), (), 250),
    ("NUL", (*b"A\x00B\x00", *END), (), 250),
    ("BOM", (*"\ufeffhi\ufeff".encode(), *END), (), 250),
    ("ill-formed bytes", (*b"\xffA\xf0\x9f\x98B\xc0\xaf\xed\xa0\x80\x80", *END), (), 250),
    ("the end within a character", (65, 0xF0, 0x9F, 0x98, *END), (), 250),
    ("a sampled U+FFFD", (*"\ufffd".encode(), *END), (), 250),
    ("nothing", END, (), 250),
    ("a limit of 0", (*b"A", *END), (), 0),
    ("a stop string", (*b"one STOP two", *END), ("STOP", "never"), 250),
    ("a stop string of emoji", (*FACES, *END), ("📚",), 250),
    ("a stop string held at the end", (*b"one ST", *END), ("STOP",), 250),
    ("a stop string held at a limit", (*b"one ST", *END), ("STOP",), 6),
)


def needs(*names: str) -> Callable[[Any], Any]:
    """Skip with a reason where a client is not installed."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return unittest.skipIf(bool(missing), f"{', '.join(missing)} not installed: the extra test")


@needs_serve
class Case(unittest.TestCase):
    """A server whose model plays the script of each case in turn."""

    server: Serving
    model: Playable

    @classmethod
    def setUpClass(cls) -> None:
        cls.model = Playable()
        cls.server = cls.enterClassContext(serving(cls.model))
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    def cases(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """The request of each case, and what must be received of it."""
        for name, script, stops, limit in CASES:
            self.model.play(script, PROMPT_TOKENS)
            body = {"prompt": PROMPT, "n_predict": limit, "stop": list(stops)}
            with self.subTest(name):
                yield body, expected(script, stops, limit)

    def every_case(self, read: Callable[[dict[str, Any]], Sequence[Any]]) -> None:
        """Read each case as a stream of events."""
        for body, wanted in self.cases():
            check_stream(self, list(read({**body, "stream": True})), wanted, PROMPT_TOKENS)


@needs("requests")
class Requests(Case):
    def test_lines_decoded_by_the_client(self) -> None:
        import requests

        def read(body: dict[str, Any]) -> Iterator[Any]:
            with requests.post(f"{self.url}/completion", json=body, stream=True, timeout=20) as answer:
                for line in answer.iter_lines(decode_unicode=True):
                    self.assertIsInstance(line, str)
                    if line:
                        self.assertTrue(line.startswith("data: "), line)
                        yield json.loads(line.removeprefix("data: "))

        self.every_case(read)

    def test_lines_as_bytes_and_tiny_chunks(self) -> None:
        import requests

        def read(body: dict[str, Any]) -> Iterator[Any]:
            with requests.post(f"{self.url}/completion", json=body, stream=True, timeout=20) as answer:
                for line in answer.iter_lines(chunk_size=1):
                    if line:
                        yield json.loads(line.removeprefix(b"data: "))

        self.every_case(read)

    def test_without_a_stream(self) -> None:
        import requests

        for body, wanted in self.cases():
            answer = requests.post(f"{self.url}/completion", json={**body, "return_tokens": True}, timeout=20)
            self.assertEqual(answer.encoding, "utf-8")
            check_whole(self, answer.json(), wanted, PROMPT_TOKENS)


@needs("sseclient", "requests")
class SseClient(Case):
    def test_events(self) -> None:
        import requests
        import sseclient

        def read(body: dict[str, Any]) -> Iterator[Any]:
            with requests.post(f"{self.url}/completion", json=body, stream=True, timeout=20) as answer:
                for event in sseclient.SSEClient(answer).events():
                    self.assertEqual((event.event, event.id), ("message", None))
                    yield json.loads(event.data)

        self.every_case(read)


@needs("httpx_sse", "httpx")
class HttpxSse(Case):
    def test_events(self) -> None:
        import httpx
        from httpx_sse import connect_sse

        with httpx.Client(timeout=20) as client:

            def read(body: dict[str, Any]) -> Iterator[Any]:
                with connect_sse(client, "POST", f"{self.url}/completion", json=body) as source:
                    for event in source.iter_sse():
                        self.assertEqual((event.event, event.id, event.retry), ("message", "", None))
                        yield event.json()

            self.every_case(read)

    def test_plain_lines(self) -> None:
        import httpx

        with httpx.Client(timeout=20) as client:

            def read(body: dict[str, Any]) -> Iterator[Any]:
                with client.stream("POST", f"{self.url}/completion", json=body) as answer:
                    for line in answer.iter_lines():
                        if line:
                            yield json.loads(line.removeprefix("data: "))

            self.every_case(read)


@needs("llamacpp_client")
class LlamaCppClient(Case):
    """It sends a repeat_penalty of 1.1 unless told otherwise, and is not told."""

    def client(self) -> Any:
        from llamacpp_client import LlamaCppClient, LlamaCppServerAddress

        return LlamaCppClient([LlamaCppServerAddress("127.0.0.1", self.server.port)])

    def options(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"n_predict": body["n_predict"], "stop": body["stop"]}

    def test_chunks(self) -> None:
        client = self.client()
        for body, wanted in self.cases():
            chunks = list(client.new_stream_completion(body["prompt"], **self.options(body)))
            *partial, final = chunks
            self.assertEqual([chunk.stop for chunk in chunks], [False] * len(partial) + [True])
            self.assertEqual("".join(chunk.content for chunk in chunks), wanted.text)
            ids = [token for chunk in partial for token in chunk.raw["tokens"]]
            self.assertEqual(ids, wanted.ids)
            self.assertEqual({chunk.tokens_evaluated for chunk in chunks}, {PROMPT_TOKENS})
            self.assertEqual(
                (final.raw["stop_type"], final.raw["stopping_word"]), (wanted.stop_type, wanted.word)
            )

    def test_without_a_stream(self) -> None:
        client = self.client()
        for body, wanted in self.cases():
            answer = client.new_completion(body["prompt"], **self.options(body))
            self.assertEqual((answer.content, answer.stop_type), (wanted.text, wanted.stop_type))
            self.assertEqual(
                (answer.tokens_predicted, answer.tokens_evaluated), (len(wanted.ids), PROMPT_TOKENS)
            )
            whole = client.completion(**{**body, "return_tokens": True})
            check_whole(self, whole, wanted, PROMPT_TOKENS)


@needs("openai")
class OpenAI(Case):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        import openai

        cls.client = openai.OpenAI(base_url=f"{cls.url}/v1", api_key="none", timeout=20, max_retries=0)
        cls.addClassCleanup(cls.client.close)

    def create(self, body: dict[str, Any], **more: Any) -> Any:
        options = {"stop": body["stop"]} if body["stop"] else {}
        return self.client.completions.create(
            model="any",
            prompt=body["prompt"],
            max_tokens=body["n_predict"],
            extra_body={"return_token_ids": True},
            **options,
            **more,
        )

    def reason(self, wanted: Any) -> str:
        return "length" if wanted.stop_type == "limit" else "stop"

    def test_a_stream_with_usage(self) -> None:
        for body, wanted in self.cases():
            chunks = list(self.create(body, stream=True, stream_options={"include_usage": True}))
            *partial, last = chunks
            self.assertEqual(last.choices, [])
            usage = last.usage
            self.assertEqual((usage.completion_tokens, usage.prompt_tokens), (len(wanted.ids), PROMPT_TOKENS))
            self.assertEqual(usage.total_tokens, len(wanted.ids) + PROMPT_TOKENS)
            self.assertEqual([chunk.usage for chunk in partial], [None] * len(partial))
            choices = [chunk.choices[0] for chunk in partial]
            self.assertEqual("".join(choice.text for choice in choices), wanted.text)
            self.assertEqual([token for choice in choices for token in choice.token_ids], wanted.ids)
            reasons = [choice.finish_reason for choice in choices]
            self.assertEqual(reasons, [None] * len(wanted.ids) + [self.reason(wanted)])
            self.assertEqual(len({chunk.id for chunk in chunks}), 1)
            self.assertEqual({chunk.object for chunk in chunks}, {"text_completion"})

    def test_a_stream_without_usage_has_none(self) -> None:
        self.model.play((*FACES, *END), PROMPT_TOKENS)
        for chunk in self.create({"prompt": PROMPT, "n_predict": 20, "stop": []}, stream=True):
            self.assertIsNone(chunk.usage)
            self.assertEqual(len(chunk.choices), 1)

    def test_without_a_stream(self) -> None:
        for body, wanted in self.cases():
            answer = self.create(body)
            (choice,) = answer.choices
            self.assertEqual((choice.text, choice.token_ids), (wanted.text, wanted.ids))
            self.assertEqual(choice.finish_reason, self.reason(wanted))
            self.assertEqual(choice.prompt_token_ids, [DOC_BOUNDARY, *PROMPT.encode()])
            self.assertEqual(answer.usage.completion_tokens, len(wanted.ids))

    def test_probabilities_give_the_bytes_of_every_id(self) -> None:
        for body, wanted in self.cases():
            whole = self.create(body, logprobs=2).choices[0].logprobs
            self.check_probabilities(whole.model_dump(), wanted.ids)
            streamed: dict[str, list[Any]] = {}
            for chunk in self.create(body, logprobs=2, stream=True):
                found = chunk.choices[0].logprobs
                for name, values in (found.model_dump() if found is not None else {}).items():
                    streamed.setdefault(name, []).extend(values)
            if wanted.ids:
                self.assertEqual(streamed, whole.model_dump())

    def check_probabilities(self, found: dict[str, Any], ids: list[int]) -> None:
        self.assertEqual([entry["id"] for entry in found["content"]], ids)
        self.assertEqual(
            [entry["bytes"] for entry in found["content"]], [[t] if t != DOC_BOUNDARY else [] for t in ids]
        )
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(found[name]), len(ids), name)
        self.assertTrue(all(value == 0.0 for value in found["token_logprobs"]), "the script is certain")
        self.assertEqual(found["text_offset"], sorted(found["text_offset"]))

    def test_several_choices(self) -> None:
        self.model.play((*FACES, *END), PROMPT_TOKENS)
        body = {"prompt": PROMPT, "n_predict": 20, "stop": []}
        answer = self.create(body, n=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual([choice.token_ids for choice in answer.choices], [[*FACES, *END]] * 2)
        self.assertEqual((answer.usage.completion_tokens, answer.usage.prompt_tokens), (26, PROMPT_TOKENS))
        ids: dict[int, list[int]] = {0: [], 1: []}
        texts = {0: "", 1: ""}
        ends = []
        for chunk in self.create(body, n=2, stream=True, stream_options={"include_usage": True}):
            for choice in chunk.choices:
                ids[choice.index] += choice.token_ids
                texts[choice.index] += choice.text
                ends += [choice.index] if choice.finish_reason == "stop" else []
            usage = chunk.usage
        self.assertEqual(ids, {0: [*FACES, *END], 1: [*FACES, *END]})
        self.assertEqual(texts, {0: FACES.decode(), 1: FACES.decode()})
        self.assertEqual((sorted(ends), usage.completion_tokens), ([0, 1], 26))

    def test_prompts_as_ids_and_in_lists(self) -> None:
        self.model.play((*FACES, *END), 2)
        answer = self.client.completions.create(model="any", prompt=[[256, 65], [256, 66]], max_tokens=20)
        self.assertEqual([choice.text for choice in answer.choices], [FACES.decode()] * 2)
        self.assertEqual((answer.usage.completion_tokens, answer.usage.prompt_tokens), (26, 4))

    def test_errors_come_as_its_own(self) -> None:
        import openai

        with self.assertRaisesRegex(openai.BadRequestError, "max_tokens"):
            self.client.completions.create(model="any", prompt="a", max_tokens=-5)
        with self.assertRaisesRegex(openai.BadRequestError, "300"):
            self.client.completions.create(model="any", prompt=[300], max_tokens=5)
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="any", input="a")

    def test_an_error_in_mid_stream_ends_it_after_a_true_beginning(self) -> None:
        import openai

        text = ""
        self.model.play((*FACES, *END), PROMPT_TOKENS)
        self.model.permits = threading.Semaphore(6)
        try:
            stream = self.create({"prompt": PROMPT, "n_predict": 20, "stop": []}, stream=True)
            self.model.broken = RuntimeError("the model is gone")
            self.model.permits.release(1000)
            with self.assertRaises(openai.APIError):
                for chunk in stream:
                    text += chunk.choices[0].text
        finally:
            self.model.permits.release(1000)
            self.model.permits = self.model.broken = None
        self.assertTrue(FACES.decode().startswith(text))

    def test_models_are_listed(self) -> None:
        (model,) = self.client.models.list().data
        self.assertEqual((model.id, model.object), ("scripted", "model"))


@needs_serve
class Audit(unittest.TestCase):
    """Our own client: `tinylm audit` finds nothing to say about this server, not even a hazard."""

    def test_every_run_is_exact(self) -> None:
        logits = np.random.default_rng(0).normal(0.0, 1.5, (128, VOCABULARY_SIZE))
        with serving(ScriptedModel(logits, window=128)) as server:
            config = AuditConfig(chain=3, prompts=("é", ""), tokens=16)
            result = audit(f"http://127.0.0.1:{server.port}", config)
        self.assertEqual([finding for run in result.runs for finding in run.findings], [])
        self.assertEqual([run.refused for run in result.runs if run.refused], [])
        self.assertEqual((result.exit_code, result.lost), (0, 0))
        runs = {run.name: run for run in result.runs}
        if importlib.util.find_spec("llguidance") is None:
            self.skipTest("llguidance is not installed, so no case was forced: the extra constrain")
        self.assertEqual(result.notes, [])
        for case in CASES_OF_THE_AUDIT:
            if not case.stop and case.limit is None:
                self.assertEqual(runs[case.name].stream.ids, (*case.data, DOC_BOUNDARY), case.name)


if __name__ == "__main__":
    unittest.main()
