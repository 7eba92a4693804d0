"""The wire without HTTP: what a request may hold, what is refused and how, and what prompts become."""

from __future__ import annotations

import json
import math
import unittest
from typing import Any

from tinylm.contract import DOC_BOUNDARY
from tinylm.serve import native, openai
from tinylm.serve.fields import parse_object
from tinylm.serve.refusals import Refusal
from tinylm.serve.requests import SEEDS, Completion, Limits

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError:
    st = None

LIMITS = Limits(window=64, prompts=8)


def read(openai_wire: bool = False, **body: Any) -> Completion:
    reader = openai.read_completion if openai_wire else native.read_completion
    return reader({"prompt": "x", **body}, LIMITS)


class Bodies(unittest.TestCase):
    def test_an_object_is_read(self) -> None:
        self.assertEqual(parse_object('{"a": [1, "é😊\\ud83d\\ude0a"]}'.encode()), {"a": [1, "é😊😊"]})

    def test_what_is_no_strict_json_object_is_refused_and_the_place_named(self) -> None:
        deep = b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"
        very_deep = b"[" * 200_000
        for body, told in (
            (b"", "not valid JSON"),
            (b"[1]", "JSON object"),
            (b'"x"', "JSON object"),
            (b'{"a":1,"a":2}', "'a' stands there twice"),
            (b'{"a":NaN}', "NaN"),
            (b'{"a":-Infinity}', "Infinity"),
            (b'{"a":1e999}', "1e999"),
            (b'{"a":1} 2', "not valid JSON"),
            (b'{"a":"\xff"}', "byte 6"),
            (b'{"a":"\xed\xa0\x80"}', "byte 6"),
            (b'{"a":{"b":["\\ud83d"]}}', "a.b[0]: character 0 is half of a surrogate pair"),
            (b'{"\\udc00":1}', "half of a surrogate pair"),
            (b'\xef\xbb\xbf{"a":1}', "byte order mark"),
            (b'{"a":%s}' % (b"9" * 5000), "digits"),
            (deep, "nested"),
            (very_deep, "nested"),
        ):
            with self.subTest(body[:40]), self.assertRaises(Refusal) as caught:
                parse_object(body)
            self.assertEqual(caught.exception.status, 400)
            self.assertIn(told, caught.exception.message)


class Prompts(unittest.TestCase):
    def test_what_a_prompt_becomes(self) -> None:
        for prompt, ids in (
            ("", [[256]]),
            ("é", [[256, 195, 169]]),
            ("<|doc|>", [[256, *b"<|doc|>"]]),
            ([65, 256], [[65, 256]]),
            ([256, "a", 65], [[256, 97, 65]]),
            (["a", 65, "<|doc|>"], [[256, 97, 65, *b"<|doc|>"]]),
            (["a", "b"], [[256, 97], [256, 98]]),
            (["a"], [[256, 97]]),
            ([[65], "b", {"prompt_string": "c"}, ["d", 65]], [[65], [256, 98], [256, 99], [256, 100, 65]]),
            ({"prompt_string": "a"}, [[256, 97]]),
            ([""], [[256]]),
        ):
            with self.subTest(prompt):
                found = read(prompt=prompt)
                self.assertEqual([list(choice.prompt.ids) for choice in found.choices], ids)

    def test_what_is_no_prompt(self) -> None:
        for prompt, told in (
            (None, "prompt is missing"),
            ([], "must not be empty"),
            ([[]], "prompt[0] is [], which must not be empty"),
            ([1, 257], "prompt[1] is 257, expected an id 0..256"),
            ([2**40], f"prompt[0] is {2**40}, expected an id"),
            ([-1], "prompt[0] is -1"),
            ([1.0], "prompt[0] is 1.0"),
            ([True], "prompt[0] is true"),
            ([65, True], "prompt[1] is true"),
            ([65, None], "prompt[1] is null"),
            (5, "prompt is 5"),
            (True, "prompt is true"),
            ({"prompt": "a"}, 'prompt has the key "prompt"'),
            ({"prompt_string": 5}, "prompt.prompt_string is 5"),
            ({"prompt_string": "a", "multimodal_data": ["x"]}, "multimodal_data is not supported"),
            (["a"] * 9, "9 prompts, expected at most 8"),
        ):
            with self.subTest(prompt), self.assertRaises(Refusal) as caught:
                read(prompt=prompt)
            self.assertIn(told, caught.exception.message)

    def test_a_prompt_that_leaves_no_room_and_one_that_leaves_one_place(self) -> None:
        with self.assertRaises(Refusal) as caught:
            read(prompt="x" * 63)
        error = caught.exception.body()["error"]
        self.assertEqual(
            (error["code"], error["type"], error["n_prompt_tokens"], error["n_ctx"]),
            (400, "exceed_context_size_error", 64, 64),
        )
        (choice,) = read(prompt="x" * 62).choices
        self.assertEqual((choice.config.max_tokens, choice.cut), (1, True))
        (choice,) = read(prompt="x" * 60, n_predict=3).choices
        self.assertEqual((choice.config.max_tokens, choice.cut), (3, False))
        (choice,) = read(prompt="x" * 60, n_predict=4).choices
        self.assertEqual((choice.config.max_tokens, choice.cut), (3, True))
        with self.assertRaises(Refusal):
            native.read_completion({"prompt": "xxxx"}, Limits(64, 8, prompt_tokens=4))


class Values(unittest.TestCase):
    def test_absent_and_null_are_the_defaults(self) -> None:
        plain = read(seed=1)
        nulls = read(seed=1, n_predict=None, stop=None, temperature=None, stream=None, logit_bias=None)
        self.assertEqual(plain, nulls)
        self.assertEqual((plain.n_predict, plain.stream, plain.cache_prompt), (-1, False, True))

    def test_every_wrong_value_is_refused_with_field_value_and_rule(self) -> None:
        integers = [2.7, 5.0, "5", True, [], {}, 2**31]
        wrong: dict[str, list[Any]] = {
            "n_predict": [*integers, -2],
            "max_tokens": [*integers, -2],
            "top_k": [*integers, -1],
            "seed": [2.7, "5", True, -2, 2**32, 2**33],
            "n_probs": [*integers, -1, 258],
            "n": [0, 9, 1.5, True],
            "temperature": [-1, "1", True, [], 1e301, 10**400],
            "top_p": [-0.1, 0, 9, "x", False],
            "min_p": [-1, 1.5, True],
            "stop": [5, [5], [""], "", [["a"]], {"a": 1}, True, ["a"] * 65, ["é" * 513]],
            "stream": [1, "true", []],
            "ignore_eos": [1],
            "return_tokens": [0],
            "cache_prompt": ["no"],
            "timings_per_token": [1],
            "return_progress": [1],
            "post_sampling_probs": [1],
            "response_fields": ["content", [1]],
            "parse_special": [True, 1],
            "sse_ping_interval": ["x", -2],
            "logit_bias": [5, [5], [[1]], [[1, 2, 3]], [[257, 1]], [[True, 1]], [["", 1]], [[1, True]],
                           [[1, None]], {"300": 1}, {"65": "x"}, [[65, 1], ["A", 2]], [[1, 1e9]]],
            "mirostat": [1, 2, True],
            "repeat_penalty": [0, -1, "1", True],
            "presence_penalty": ["0.5", False],
            "frequency_penalty": [[]],
            "repeat_last_n": [-2, 1.5, True],
            "typical_p": [0.9],
            "xtc_probability": [0.1],
            "dry_multiplier": [1],
            "samplers": [["top_k"], "top_k"],
            "lora": [[{"id": 0}]],
            "id_slot": [0],
            "n_keep": [5],
            "t_max_predict_ms": [100],
        }  # fmt: skip
        for name, values in wrong.items():
            for value in values:
                with self.subTest(name, value=value), self.assertRaises(Refusal) as caught:
                    read(**{name: value})
                message = caught.exception.message
                self.assertEqual((caught.exception.status, caught.exception.type[:7]), (400, "invalid"))
                self.assertIn(name, message)
                self.assertIn("expected", message + ("expected" if "twice" in message else ""))
                self.assertNotIn("\n", message)

    def test_neutral_values_of_what_is_not_supported_are_accepted(self) -> None:
        read(
            mirostat=0, typical_p=1, dry_multiplier=0, dry_base=1.75, xtc_probability=0, samplers=None,
            id_slot=-1, lora=[], top_n_sigma=-1, min_keep=0, model="any", parse_special=False,
            t_max_predict_ms=-1,
        )  # fmt: skip

    def test_penalties_are_read_and_told(self) -> None:
        given = {"repeat_penalty": 1.1, "presence_penalty": -0.5, "frequency_penalty": 2, "repeat_last_n": -1}
        for other in (False, True):
            config = read(other, **given).choices[0].config
            self.assertEqual({name: getattr(config, name) for name in given}, given)
        found = read(**given)
        told = native.settings(found, found.choices[0])
        self.assertEqual({name: told[name] for name in given}, given)

    def test_a_name_that_is_nearly_right_is_refused_with_the_right_one(self) -> None:
        for wrong, right in (("n_predct", "n_predict"), ("temprature", "temperature"), ("stops", "stop")):
            with self.assertRaises(Refusal) as caught:
                read(**{wrong: 1})
            self.assertIn(
                f'"{wrong}" is not a field of this request; did you mean {right}?', str(caught.exception)
            )
        with self.assertRaises(Refusal) as caught:
            read(zzz=1)
        self.assertIn("leave it out", str(caught.exception))

    def test_all_problems_come_at_once(self) -> None:
        with self.assertRaises(Refusal) as caught:
            read(prompt=[300], n_predict=-5, stop=5, top_p=9, bogus=1)
        for part in ("prompt[0]", "n_predict is -5", "stop is 5", "top_p is 9", '"bogus"'):
            self.assertIn(part, caught.exception.message)

    def test_names_of_the_limit_agree_or_are_refused(self) -> None:
        for name in ("n_predict", "max_tokens", "max_completion_tokens"):
            self.assertEqual(read(**{name: 7}).n_predict, 7)
        self.assertEqual(read(n_predict=7, max_tokens=7).n_predict, 7)
        with self.assertRaises(Refusal) as caught:
            read(n_predict=7, max_tokens=8)
        self.assertIn("several names", caught.exception.message)

    def test_a_seed_is_drawn_and_told(self) -> None:
        drawn = {read(seed=value).choices[0].config.seed for value in (-1, None, SEEDS) for _ in range(4)}
        self.assertEqual(len(drawn), 12)
        self.assertTrue(all(0 <= seed < SEEDS for seed in drawn))
        request = read()
        told = native.settings(request, request.choices[0])["seed"]
        self.assertEqual(told, request.choices[0].config.seed)
        self.assertEqual(read(seed=SEEDS - 1, n=3).choices[2].config.seed, 1)
        fixed = Limits(64, 8, seed=42)
        self.assertEqual(native.read_completion({"prompt": ""}, fixed).choices[0].config.seed, 42)

    def test_bias_in_every_form(self) -> None:
        self.assertEqual(read(logit_bias=[[65, 1], ["é", -2.5], [256, False]]).bias,
                         {65: 1.0, 195: -2.5, 169: -2.5, 256: -math.inf})  # fmt: skip
        self.assertEqual(read(logit_bias={"65": 1, "B": False}).bias, {65: 1.0, 66: -math.inf})
        self.assertEqual(read(ignore_eos=True, logit_bias=[[1, 1]]).bias, {1: 1.0, 256: -math.inf})
        request = read(logit_bias=[[65, False]])
        told = native.settings(request, request.choices[0])["logit_bias"]
        self.assertEqual(told, [{"bias": None, "token": 65}])

    def test_the_other_wire_is_as_strict(self) -> None:
        for wrong in (
            {"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"logprobs": True}, {"logprobs": -1},
            {"stream_options": {"include_usage": True}}, {"stream_options": 5, "stream": True},
            {"stream_options": {"include_usag": True}, "stream": True}, {"model": 5}, {"n_probs": 3},
            {"stream_options": {"include_usage": 1}, "stream": True}, {"presence_penalty": True},
        ):  # fmt: skip
            with self.subTest(wrong), self.assertRaises(Refusal):
                read(True, **wrong)
        found = read(True, n=2, best_of=2, logprobs=0, stream=True, stream_options={"include_usage": True})
        self.assertEqual((len(found.choices), found.top, found.probabilities), (2, 0, True))
        self.assertTrue(found.include_usage)
        self.assertFalse(read(True).probabilities)

    def test_tokenize_and_detokenize(self) -> None:
        self.assertEqual(native.tokenize({"content": "<|doc|>"}), {"tokens": list(b"<|doc|>")})
        self.assertEqual(native.tokenize({"content": "", "add_special": True}), {"tokens": [DOC_BOUNDARY]})
        pieces = native.tokenize({"content": "é\0", "with_pieces": True})["tokens"]
        self.assertEqual([one["piece"] for one in pieces], [[195], [169], "\0"])
        self.assertEqual(native.detokenize({"tokens": [65, 256, 255]}), {"content": "A<|doc|>�"})
        for body in ({}, {"content": 5}, {"content": "a", "parse_special": True}, {"contents": "a"}):
            with self.assertRaises(Refusal):
                native.tokenize(body)
        for tokens in (None, [300], [True], [1.0], "ab", [-1], [2**40]):
            with self.assertRaises(Refusal):
                native.detokenize({"tokens": tokens})

    def test_response_fields_select_and_flatten(self) -> None:
        body = {"a": {"b": {"c": 1}}, "d": 2}
        self.assertEqual(native.selected(body, ("a/b", "d", "x", "d/e")), {"a/b": {"c": 1}, "d": 2})

    def test_refusals_have_the_shape_of_the_field(self) -> None:
        body = Refusal(429, "full", headers={"retry-after": "1"}).body()
        self.assertEqual(body, {"error": {"code": 429, "message": "full", "type": "rate_limit_error"}})
        json.dumps(body)


@unittest.skipIf(st is None, "hypothesis is not installed")
class AnyRequest(unittest.TestCase):
    def test_any_json_is_a_request_or_a_400_on_both_wires_and_never_a_fault(self) -> None:
        leaves = (
            st.none() | st.booleans() | st.integers() | st.integers(-3, 300) | st.floats()
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        )  # fmt: skip
        values = st.recursive(
            leaves,
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
            ),
            max_leaves=8,
        )
        names = st.sampled_from(
            [*native.settings(read(), read().choices[0]), *native.NEUTRAL, "prompt", "n", "echo", "best_of",
             "logprobs", "stream_options", "parse_special", "response_fields", "cache_prompt", "n_prdict"]
        )  # fmt: skip

        @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.dictionaries(names, values, max_size=4), st.booleans())
        def check(body: dict[str, Any], prompted: bool) -> None:
            body = {"prompt": "x", **body} if prompted else body
            try:
                body = parse_object(json.dumps(body).encode())
            except Refusal as refusal:
                self.assertEqual(refusal.status, 400)
                return
            for reader in (native.read_completion, openai.read_completion):
                try:
                    found = reader(body, LIMITS)
                except Refusal as refusal:
                    self.assertEqual((refusal.status, "\n" in refusal.message), (400, False))
                    json.dumps(refusal.body(), allow_nan=False)
                else:
                    for choice in found.choices:
                        choice.config.check()
                        self.assertTrue(0 < len(choice.prompt.ids) < 64)
                        self.assertLessEqual(len(choice.prompt.ids) + choice.config.max_tokens, 64)
                        json.dumps(native.settings(found, choice), allow_nan=False)
            for answer in (native.tokenize, native.detokenize):
                try:
                    answer(body)
                except Refusal as refusal:
                    self.assertEqual(refusal.status, 400)

        check()


if __name__ == "__main__":
    unittest.main()
