"""What llama.cpp's own tests ask of a server (tools/server/tests), asked of this one in our own words.

Theirs are bound to a model of theirs; these use logits that were drawn once, so that sampling has something
to choose from and every number can be worked out.
"""

from __future__ import annotations

import math
import unittest
from typing import Any

import numpy as np

from tests.scripted import ScriptedModel
from tests.serve_support import Serving, needs_serve, serving
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE

WINDOW = 128
LOGITS = np.random.default_rng(0).normal(0.0, 1.5, (WINDOW, VOCABULARY_SIZE))


@needs_serve
class LlamaServerSuite(unittest.TestCase):
    server: Serving

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = cls.enterClassContext(serving(ScriptedModel(LOGITS, window=WINDOW), seed=42))

    def whole(self, **body: Any) -> Any:
        status, _, answer = self.server.post("/completion", {"n_predict": 30, "return_tokens": True, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def stream(self, **body: Any) -> list[Any]:
        return self.server.stream({"n_predict": 30, "stream": True, **body})

    def ids(self, found: list[Any]) -> list[int]:
        return [token for event in found for token in event["tokens"]]

    def test_without_a_seed_the_servers_own_makes_answers_agree(self) -> None:
        answer, found = self.whole(prompt="a"), self.stream(prompt="a")
        self.assertEqual(self.ids(found), answer["tokens"])
        self.assertEqual(answer["generation_settings"]["seed"], 42)
        self.assertEqual(answer["tokens"], self.whole(prompt="a", seed=42)["tokens"])

    def test_equal_seeds_give_equal_answers_and_others_differ(self) -> None:
        answers = {seed: self.whole(prompt="a", seed=seed, temperature=1.0)["tokens"] for seed in range(5)}
        self.assertEqual(len({tuple(ids) for ids in answers.values()}), 5)
        for seed, ids in answers.items():
            self.assertEqual(self.whole(prompt="a", seed=seed, temperature=1.0)["tokens"], ids)

    def test_greedy_takes_the_largest_logit(self) -> None:
        ids = self.whole(prompt="a", temperature=0)["tokens"]
        self.assertEqual(ids, LOGITS[1 : 1 + len(ids)].argmax(axis=1).tolist())

    def test_a_prompt_is_the_same_as_text_ids_object_and_pieces(self) -> None:
        ids = [DOC_BOUNDARY, *b"ab"]
        expected = self.whole(prompt="ab")["tokens"]
        for prompt in (ids, {"prompt_string": "ab"}, ["a", 98], [DOC_BOUNDARY, "a", "b"]):
            answer = self.whole(prompt=prompt)
            self.assertEqual((answer["tokens"], answer["tokens_evaluated"]), (expected, 3), prompt)
        answers = self.whole(prompt=[ids, "ab", {"prompt_string": "ab"}])
        self.assertEqual([answer["tokens"] for answer in answers], [expected] * 3)
        self.assertEqual([answer["index"] for answer in answers], [0, 1, 2])

    def test_probabilities_are_those_of_the_logits(self) -> None:
        answer = self.whole(prompt="a", n_probs=VOCABULARY_SIZE, seed=3)
        entries = answer["completion_probabilities"]
        self.assertEqual([entry["id"] for entry in entries], answer["tokens"])
        for row, entry in enumerate(entries, start=1):
            expected = LOGITS[row] - np.log(np.exp(LOGITS[row]).sum())
            self.assertAlmostEqual(entry["logprob"], expected[entry["id"]], places=9)
            top = entry["top_logprobs"]
            self.assertEqual([one["id"] for one in top], np.argsort(-expected, kind="stable").tolist())
            self.assertAlmostEqual(sum(math.exp(one["logprob"]) for one in top), 1.0)
        found = self.stream(prompt="a", n_probs=3, seed=3)
        streamed = [entry for event in found[:-1] for entry in event["completion_probabilities"]]
        self.assertEqual([entry["id"] for entry in streamed], answer["tokens"])
        self.assertEqual([len(entry["top_logprobs"]) for entry in streamed], [3] * len(streamed))

    def test_probabilities_after_sampling_are_those_drawn_from(self) -> None:
        body = {"prompt": "a", "n_probs": 4, "post_sampling_probs": True}
        for entry in self.whole(**body, temperature=0)["completion_probabilities"]:
            self.assertEqual((entry["prob"], entry["top_probs"][0]["prob"]), (1.0, 1.0))
        for entry in self.whole(**body, temperature=1.0, top_k=2)["completion_probabilities"]:
            self.assertAlmostEqual(sum(one["prob"] for one in entry["top_probs"]), 1.0)
            self.assertTrue(all(one["prob"] == 0 for one in entry["top_probs"][2:]))

    def test_a_bias_forbids_or_forces_in_every_form(self) -> None:
        greedy = self.whole(prompt="a", temperature=0)["tokens"]
        token = next(token for token in greedy if 65 <= token < 91 or 97 <= token < 123)
        for bias in (
            [[token, False]],
            [[token, -1e6]],
            {str(token): -1e6},
            [[chr(token), False]],
            {chr(token): False},
        ):
            ids = self.whole(prompt="a", temperature=0, logit_bias=bias)["tokens"]
            self.assertNotIn(token, ids, bias)
            self.assertNotEqual(ids, greedy)
        self.assertEqual(self.whole(prompt="a", logit_bias=[[65, 1e6]])["tokens"], [65] * 30)

    def test_the_boundary_can_be_ignored(self) -> None:
        forced = {"logit_bias": [[DOC_BOUNDARY, 3.0]], "temperature": 1.0}
        seeds = range(12)
        ends = {self.whole(prompt="a", seed=seed, **forced)["stop_type"] for seed in seeds}
        self.assertEqual(ends, {"eos", "limit"})
        for seed in seeds:
            answer = self.whole(prompt="a", seed=seed, ignore_eos=True, temperature=1.0)
            self.assertEqual((answer["stop_type"], len(answer["tokens"])), ("limit", 30))
            self.assertNotIn(DOC_BOUNDARY, answer["tokens"])

    def test_no_limit_is_that_of_the_context(self) -> None:
        answer = self.whole(prompt="abc", n_predict=-1, ignore_eos=True)
        self.assertEqual((answer["stop_type"], answer["truncated"]), ("limit", True))
        self.assertEqual(answer["tokens_evaluated"] + answer["tokens_predicted"], WINDOW)
        answer = self.whole(prompt="abc", n_predict=WINDOW - 5, ignore_eos=True)
        self.assertEqual((answer["tokens_predicted"], answer["truncated"]), (WINDOW - 5, False))

    def test_a_prompt_beyond_the_context_is_refused_with_both_sizes(self) -> None:
        for path in ("/completion", "/v1/completions"):
            for stream in (False, True):
                status, headers, answer = self.server.post(path, {"prompt": "a" * 500, "stream": stream})
                self.assertEqual(status, 400)
                self.assertIn("application/json", headers["content-type"])
                error = answer["error"]
                self.assertEqual(error["type"], "exceed_context_size_error")
                self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (501, WINDOW))
                self.assertIn("exceeds the available context size", error["message"])

    def test_tokens_of_a_text_give_it_back(self) -> None:
        text = "What is 媽 and 🤗?\x00\ufeff\u2028"
        _, _, answer = self.server.post("/tokenize", {"content": text, "with_pieces": True})
        pieces = answer["tokens"]
        self.assertEqual([piece["id"] for piece in pieces], list(text.encode()))
        raw = b"".join(
            piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
            for piece in pieces
        )
        self.assertEqual(raw.decode(), text)
        _, _, answer = self.server.post("/detokenize", {"tokens": list(text.encode())})
        self.assertEqual(answer["content"], text)
        _, _, answer = self.server.post("/tokenize", {"content": "a", "add_special": True})
        self.assertEqual(answer["tokens"], [DOC_BOUNDARY, 97])

    def test_fields_of_events_are_of_the_types_that_clients_expect(self) -> None:
        *partial, final = self.stream(prompt="a", ignore_eos=True)
        for event in partial:
            self.assertIs(event["stop"], False)
            self.assertTrue(event["tokens"] and all(type(token) is int for token in event["tokens"]))
        self.assertEqual((final["stop_type"], final["generation_settings"]["n_predict"]), ("limit", 30))
        self.assertIs(type(final["has_new_line"]), bool)
        self.assertEqual((final["timings"]["prompt_n"], final["timings"]["predicted_n"]), (2, 30))
        self.assertEqual(self.server.post("/completion", {"prompt": "a", "n_predict": 3})[2]["tokens"], [])


if __name__ == "__main__":
    unittest.main()
