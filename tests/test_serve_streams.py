"""Exact streams: what a client receives over a real socket is what was sampled, whatever the end."""

from __future__ import annotations

import json
import threading
import unittest

from tests.serve_support import (
    Playable,
    Serving,
    check_stream,
    check_whole,
    events,
    expected,
    logits_of,
    needs_serve,
    serving,
)
from tests.stage_support import ROOT, SHARED
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError:
    st = None

CASES = SHARED / "cases" / "streaming.json"
ALPHABET = bytes.fromhex("00 0a 41 53 54 4f 50 7f 80 8a 9f a0 af bf c0 c3 e0 ea ed f0 f4 f5 ff")
"""Bytes that begin, continue and break characters of every length, and letters of stop strings."""

SAMPLE = ROOT / "checkpoints" / "sample-nano"


def both(test: unittest.TestCase, server: Serving, body: dict, script: list[int], stops: list[str]) -> None:
    """Ask for a script stream and not, and compare both with the oracle."""
    limit = body.get("n_predict", -1)
    wanted = expected(script, stops, limit if limit >= 0 else 250)
    check_stream(test, server.stream({**body, "stream": True}), wanted, 1)
    status, _, answer = server.post("/completion", {**body, "return_tokens": True})
    test.assertEqual(status, 200)
    check_whole(test, answer, wanted, 1)


@needs_serve
class Cases(unittest.TestCase):
    """The cases of cases/streaming.json, which were made elsewhere."""

    def setUp(self) -> None:
        if not CASES.exists():
            self.skipTest(f"{CASES} is not there")
        self.cases = json.loads(CASES.read_text("utf-8"))["cases"]

    def test_every_case_in_a_stream_without_and_on_the_other_wire(self) -> None:
        model = Playable()
        with serving(model) as server:
            for case in self.cases:
                with self.subTest(case["name"]):
                    model.play(case["script"])
                    body = {"prompt": "", "temperature": 0}
                    if case["n_predict"] is not None:
                        body["n_predict"] = case["n_predict"]
                    if case["stop"]:
                        body["stop"] = case["stop"]
                    self.one(server, case, body)

    def one(self, server: Serving, case: dict, body: dict) -> None:
        stream = server.stream({**body, "stream": True})
        self.assertEqual([id for event in stream for id in event["tokens"]], case["sampled"])
        self.assertEqual("".join(event["content"] for event in stream), case["content"])
        limit = 250 if case["n_predict"] is None else case["n_predict"]
        check_stream(self, stream, expected(case["script"], case["stop"], limit), 1)
        final = stream[-1]
        names = ("tokens_predicted", "stop_type", "stopping_word")
        for name in names:
            self.assertEqual(final[name], case[name])
        _, _, answer = server.post("/completion", {**body, "return_tokens": True})
        self.assertEqual((answer["tokens"], answer["content"]), (case["sampled"], case["content"]))
        for name in names:
            self.assertEqual(answer[name], case[name])
        names = {"n_predict": "max_tokens"}
        openai = {names.get(name, name): value for name, value in body.items()}
        openai |= {"logprobs": 0, "return_token_ids": True}
        _, _, whole = server.post("/v1/completions", openai)
        choice = whole["choices"][0]
        self.assertEqual((choice["token_ids"], choice["text"]), (case["sampled"], case["content"]))
        self.assertEqual(whole["usage"]["completion_tokens"], len(case["sampled"]))
        self.assertEqual([one["id"] for one in choice["logprobs"]["content"]], case["sampled"])
        chunks = server.stream(
            {**openai, "stream": True, "stream_options": {"include_usage": True}}, "/v1/completions"
        )
        self.assertEqual(chunks.pop(), "[DONE]")
        usage = chunks.pop()
        self.assertEqual((usage["choices"], usage["usage"]), ([], whole["usage"]))
        parts = [chunk["choices"][0] for chunk in chunks]
        self.assertEqual([id for part in parts for id in part["token_ids"]], case["sampled"])
        self.assertEqual("".join(part["text"] for part in parts), case["content"])
        before = [sum(len(event["content"]) for event in stream[:place]) for place in range(len(parts) - 1)]
        self.assertEqual(choice["logprobs"]["text_offset"], before)
        self.assertEqual([part["logprobs"]["text_offset"] for part in parts[:-1]], [[n] for n in before])
        reasons = [part["finish_reason"] for part in parts]
        self.assertEqual(reasons, [None] * len(case["sampled"]) + [choice["finish_reason"]])

    def test_the_oracle_of_these_tests_agrees_with_the_cases(self) -> None:
        for case in self.cases:
            limit = 250 if case["n_predict"] is None else case["n_predict"]
            found = expected(case["script"], case["stop"], limit)
            self.assertEqual(found.ids, case["sampled"], case["name"])
            self.assertEqual(found.text, case["content"], case["name"])
            self.assertEqual((found.stop_type, found.word), (case["stop_type"], case["stopping_word"]))


@needs_serve
@unittest.skipIf(st is None, "hypothesis is not installed")
class Properties(unittest.TestCase):
    def test_random_scripts_under_every_limit_are_what_the_oracle_says(self) -> None:
        model = Playable()
        scripts = st.lists(st.sampled_from(list(ALPHABET)), max_size=9)
        words = st.lists(st.sampled_from(["S", "ST", "STOP", "TO", "\n", "\0", "A\n", "ê", "OP"]), max_size=3)

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(scripts, words, st.booleans())
        def check(script: list[int], stops: list[str], bounded: bool) -> None:
            played = [*script, DOC_BOUNDARY]
            model.play(played[:-1])
            body = {"prompt": [DOC_BOUNDARY], "temperature": 0, "stop": stops}
            for limit in range(len(script) + 2) if bounded else (-1,):
                both(self, server, body | {"n_predict": limit}, played, stops)

        with serving(model) as server:
            check()

    def test_random_scripts_a_byte_per_segment(self) -> None:
        model = Playable()
        scripts = st.lists(st.sampled_from(list(ALPHABET)), min_size=1, max_size=6)

        @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
        @given(scripts)
        def check(script: list[int]) -> None:
            model.play(script)
            body = {"prompt": "", "temperature": 0, "stream": True, "response_fields": []}
            with server.open(body, segment=1) as reader:
                found = []
                while (event := reader.event()) is not None:
                    found.append(event)
                self.assertIn(b"text/event-stream; charset=utf-8", reader.head)
            check_stream(self, found, expected([*script, DOC_BOUNDARY], [], 250), 1)

        with serving(model) as server:
            check()


@needs_serve
class Neighbours(unittest.TestCase):
    def test_eight_requests_on_two_slots_equal_solo_runs(self) -> None:
        from tinylm.generate import generate
        from tinylm.model import Transformer

        config = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, window=64)
        model = Transformer(config, seed=1).requires_grad_(False)
        prompts = [f"{number} prompts" * (1 + number % 3) for number in range(8)]
        solo = []
        for seed, prompt in enumerate(prompts):
            options = GenerateConfig(max_tokens=24, seed=seed, temperature=1.0)
            made = list(generate(model, prompt, options))
            solo.append(([id for event in made for id in event.ids], "".join(event.text for event in made)))
        found: dict[int, tuple[list[int], str]] = {}

        def ask(seed: int) -> None:
            body = {"prompt": prompts[seed], "seed": seed, "n_predict": 24, "temperature": 1.0}
            if seed % 2:
                stream = server.stream({**body, "stream": True})
                ids = [id for event in stream for id in event["tokens"]]
                found[seed] = ids, "".join(event["content"] for event in stream)
            else:
                answer = server.post("/completion", {**body, "return_tokens": True})[2]
                found[seed] = answer["tokens"], answer["content"]

        with serving(model) as server:
            threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual([found[seed] for seed in range(8)], solo)

    def test_a_list_of_prompts_in_one_stream_is_told_apart_by_its_index(self) -> None:
        from tinylm.model import Transformer

        config = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, window=64)
        with serving(Transformer(config, seed=1).requires_grad_(False)) as server:
            body = {"prompt": ["a", [98], ["c", 256, "d"]], "seed": 5, "n_predict": 6, "n": 2}
            stream = server.stream({**body, "stream": True})
            whole = server.post("/completion", {**body, "return_tokens": True})[2]
            alone = server.post(
                "/completion", {**body, "prompt": "a", "n": 1, "seed": 6, "return_tokens": True}
            )[2]
        self.assertEqual([answer["index"] for answer in whole], list(range(6)))
        self.assertEqual([answer["generation_settings"]["seed"] for answer in whole], [5, 6] * 3)
        self.assertEqual([answer["tokens_evaluated"] for answer in whole], [2, 2, 1, 1, 4, 4])
        self.assertEqual(alone["tokens"], whole[1]["tokens"])
        for index, answer in enumerate(whole):
            mine = [event for event in stream if event["index"] == index]
            self.assertEqual([id for event in mine for id in event["tokens"]], answer["tokens"])
            self.assertEqual([event["stop"] for event in mine], [False] * (len(mine) - 1) + [True])


@needs_serve
class Trained(unittest.TestCase):
    def test_a_trained_model_keeps_the_invariants_and_feeds_its_ids_back(self) -> None:
        from tinylm.language_model import load

        model = load(SAMPLE, "cpu").transformer
        with serving(model) as server:
            for seed, stops in enumerate([[], ["e"], [" the", "th"], ["\n"]]):
                body = {"prompt": "안녕 😊 The", "seed": seed, "n_predict": 24, "stop": stops, "n_probs": 3}
                stream = server.stream({**body, "stream": True})
                ids = [id for event in stream for id in event["tokens"]]
                wanted = expected([*ids, *([0] if len(ids) < 24 else [])], stops, 24)
                tokens = 1 + len("안녕 😊 The".encode())
                check_stream(self, stream, wanted, tokens)
                answer = server.post("/completion", {**body, "return_tokens": True})[2]
                check_whole(self, answer, wanted, tokens)
                told = [event["completion_probabilities"][0] for event in stream[:-1]]
                self.assertEqual(told, answer["completion_probabilities"])
                self.assertEqual([one["id"] for one in told], ids)
                prompt = [DOC_BOUNDARY, *"안녕 😊 The".encode(), *ids[:7]]
                rest = server.post("/completion", {**body, "prompt": prompt, "return_tokens": True})[2]
                self.assertEqual(rest["tokens_evaluated"], len(prompt))


class Support(unittest.TestCase):
    def test_the_parser_of_events_refuses_what_the_wire_forbids(self) -> None:
        self.assertEqual(events(b':\n\ndata: {"a":1}\n\ndata: [DONE]\n\n'), [{"a": 1}, "[DONE]"])
        for wrong in (b"data: null\n\n", b"id: 1\ndata: {}\n\n", b"data: {}", b'data: {"a":"\xc3\xa9"}\n\n'):
            with self.assertRaises((AssertionError, UnicodeDecodeError)):
                events(wrong)

    def test_a_script_is_played(self) -> None:
        self.assertEqual(logits_of([1, 2]).argmax(1).tolist(), [1, 2, DOC_BOUNDARY])


if __name__ == "__main__":
    unittest.main()
