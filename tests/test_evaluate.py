"""evaluate: against a loop over single targets, models of known numbers, and the ways to get it wrong."""

import dataclasses
import json
import math
import unittest

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tinylm.baselines import Ngrams, ladder
from tinylm.config import POLICIES, ModelConfig
from tinylm.corpus import Split
from tinylm.errors import RequestError, ShapeError, TinylmError
from tinylm.evaluate import Evaluation, by_context, evaluate
from tinylm.model import Transformer

CPU = torch.device("cpu")
SMALL = ModelConfig(layers=2, width=32, mlp_width=64, heads=2, kv_heads=1, head_size=32, window=16)
TEXTS = [
    b"It is raining.",
    b"x",
    "Grüße".encode(),
    b"\xff\xfe\x00",
    b"A longer document, with more than one window in it.",
]
documents = st.lists(st.binary(min_size=1, max_size=40) | st.sampled_from(TEXTS), min_size=1, max_size=8)


def policies(config: ModelConfig) -> list[ModelConfig]:
    return [dataclasses.replace(config, policy=policy) for policy in POLICIES]


class Uniform:
    """Every token equally probable; the level of the logits must not matter."""

    def __init__(self, config: ModelConfig) -> None:
        self.config, self.device = config, CPU

    def __call__(self, ids_BT: Tensor) -> Tensor:
        return torch.full((*ids_BT.shape, 257), 3.25)


class Copy:
    """A model whose logits are the log-probabilities of an n-gram, from the ids of the row alone."""

    def __init__(self, ngrams: Ngrams, config: ModelConfig) -> None:
        self.ngrams, self.config, self.device = ngrams, config, CPU

    def __call__(self, ids_BT: Tensor) -> Tensor:
        rows = [
            [np.log(self.ngrams.distribution(row[: position + 1])) for position in range(len(row))]
            for row in ids_BT.numpy()
        ]
        return torch.from_numpy(np.array(rows))


def trained(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> Transformer:
    """A Transformer with a random head, so that its distributions differ from position to position."""
    model = Transformer(config, seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(dtype) * 0.2)
    return model


def bits_one_by_one(model: Transformer, split: Split) -> tuple[list[float], list[float]]:
    """Bits of the byte targets and of the boundary targets, each from a forward pass of its own."""
    window, stream = model.config.window, split.stream.tolist()
    of_bytes, of_ends = [], []
    opening = 0  # where the row that scores the target begins
    for target in range(1, len(stream)):
        new_document = model.config.policy != "cross" and stream[target - 1] == 256
        if new_document or target - opening > window:
            opening = target - 1
        with torch.no_grad():
            logits = model(torch.tensor([stream[opening:target]]))[0, -1].double().numpy()
        bits = (np.logaddexp.reduce(logits) - logits[stream[target]]) / math.log(2)
        (of_ends if stream[target] == 256 else of_bytes).append(float(bits))
    return of_bytes, of_ends


class TheNumbers(unittest.TestCase):
    @settings(max_examples=15, deadline=None)
    @given(documents, st.integers(2, 20), st.sampled_from(POLICIES), st.integers(1, 9))
    def test_agree_with_a_loop_over_single_targets(
        self, texts: list[bytes], window: int, policy: str, rows: int
    ) -> None:
        model = trained(dataclasses.replace(SMALL, window=window, policy=policy), dtype=torch.float64)
        split = Split.of(texts, "validation")
        of_bytes, of_ends = bits_one_by_one(model, split)
        result = evaluate(model, split, rows=rows)
        size = sum(map(len, texts))
        self.assertEqual((result.bytes, result.boundaries), (size, len(texts)))
        self.assertEqual(result.tokens, len(split.stream) - 1)
        self.assertEqual((len(of_bytes), len(of_ends)), (size, len(texts)))
        self.assertAlmostEqual(result.bits_per_byte, (sum(of_bytes) + sum(of_ends)) / size, delta=1e-9)
        self.assertAlmostEqual(result.bits_per_byte_without_boundaries, sum(of_bytes) / size, delta=1e-9)
        self.assertAlmostEqual(result.bits_per_boundary, sum(of_ends) / len(texts), delta=1e-9)

    def test_uniform_model_pays_log2_of_257_for_each_byte_and_each_end(self) -> None:
        for config in policies(SMALL):
            result = evaluate(Uniform(config), Split.of(TEXTS))
            size, ends = sum(map(len, TEXTS)), len(TEXTS)
            self.assertAlmostEqual(result.bits_per_byte, math.log2(257) * (size + ends) / size, delta=1e-6)
            self.assertAlmostEqual(result.bits_per_boundary, math.log2(257), delta=1e-6)

    def test_model_that_copies_a_bigram_gets_the_number_of_the_ladder(self) -> None:
        train, validation = Split.of([b"the cat sat on the mat", b"a dog"] * 9), Split.of(TEXTS, "validation")
        rung = next(r for r in ladder(train, validation, orders=(2,), compressors=()) if r.name == "2-gram")
        for config in policies(SMALL):
            result = evaluate(Copy(Ngrams.count(train.stream, 2), config), validation)
            self.assertAlmostEqual(result.bits_per_byte, rung.bits_per_byte, delta=1e-12)
            self.assertAlmostEqual(
                result.bits_per_byte_without_boundaries, rung.bits_per_byte_without_boundaries, delta=1e-12
            )
            self.assertAlmostEqual(result.bits_per_boundary, rung.bits_per_boundary, delta=1e-12)

    def test_whole_stream_in_one_window_gives_a_copied_fourgram_its_number(self) -> None:
        train, validation = Split.of([b"the cat sat on the mat", b"a dog"] * 9), Split.of(TEXTS, "validation")
        (_, rung) = ladder(train, validation, orders=(4,), compressors=())
        config = dataclasses.replace(SMALL, window=200)
        result = evaluate(Copy(Ngrams.count(train.stream, 4), config), validation)
        self.assertAlmostEqual(result.bits_per_byte, rung.bits_per_byte, delta=1e-12)

    def test_do_not_depend_on_how_many_rows_go_through_at_a_time(self) -> None:
        split = Split.of([bytes([65 + i % 26]) * (1 + 7 * i % 50) for i in range(60)], "validation")
        for dtype, delta in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            for config in policies(SMALL):
                model = trained(config, dtype=dtype)
                results = [evaluate(model, split, rows=rows) for rows in (1, 3, 32, 1000)]
                for other in results[1:]:
                    self.assertAlmostEqual(other.bits_per_byte, results[0].bits_per_byte, delta=delta)
                    self.assertAlmostEqual(other.bits_per_boundary, results[0].bits_per_boundary, delta=delta)
                    self.assertEqual(other.tokens, results[0].tokens)

    def test_windows_of_different_length_do_not_count_equally(self) -> None:
        # A long document at 1 bit a target, a short one at 2: the mean of the two windows would be 1.5.
        class OneOrTwo(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                logits = torch.full((*ids_BT.shape, 257), -math.inf)
                cheap = ids_BT[:, 1] == ord("a")
                logits[cheap, :, ord("a")] = 0
                logits[~cheap, :, ord("b") : ord("e")] = 0
                logits[:, :, 256] = 0
                return logits

        split = Split.of([b"a" * 13, b"b"], "validation")
        result = evaluate(OneOrTwo(dataclasses.replace(SMALL, policy="reset")), split)
        self.assertAlmostEqual(result.bits_per_byte, (14 * 1 + 2 * 2) / 14, delta=1e-6)

    def test_split_that_ends_inside_a_document_has_no_bits_per_boundary(self) -> None:
        whole = Split.of([b"never ends"], "validation")
        cut = Split("validation", whole.stream[:-1], whole.starts, whole.digest)
        result = evaluate(Uniform(SMALL), cut)
        self.assertIsNone(result.bits_per_boundary)
        self.assertEqual((result.bytes, result.boundaries, result.tokens), (10, 0, 10))
        self.assertEqual(result.bits_per_byte, result.bits_per_byte_without_boundaries)

    def test_shifted_targets_would_be_seen(self) -> None:
        # Logits that put everything on the input itself: right for "aaaa", wrong for "abab".
        class Echo(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                return 20.0 * nn.functional.one_hot(ids_BT, 257).float()

        self.assertGreater(evaluate(Echo(SMALL), Split.of([b"abab" * 8])).bits_per_byte, 20)
        self.assertLess(evaluate(Echo(SMALL), Split.of([b"aaaa" * 40])).bits_per_byte, 0.5)

    def test_by_context_the_ends_are_charged_and_not_counted(self) -> None:
        # Windows of 4: a b c end from 1 to 4 tokens, then d e end from 1 to 3.
        split, bits = Split.of([b"abc", b"de"]), math.log2(257)
        model = Uniform(ModelConfig(window=4))
        for group, expected in ((1, [(1, 1), (2, 1), (3, 2)]), (2, [(1.5, 1), (3.5, 3)]), (3, [(2, 6 / 5)])):
            found = by_context(model, split, group)
            np.testing.assert_allclose(found, [(place, ratio * bits) for place, ratio in expected])

    def test_small_differences_survive_a_big_sum(self) -> None:
        # A float32 sum stands still at 2**24; here 3 bits of the last byte come on top of a big one.
        class Dear(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                logits = torch.zeros(*ids_BT.shape, 257)
                logits[:, :, 120] = -1e6
                return logits

        split = Split.of([b"x" * 2000 + b"y"], "validation")
        result = evaluate(Dear(dataclasses.replace(SMALL, window=4096)), split)
        bits = 2000 * (1e6 / math.log(2) + math.log2(256)) + 2 * math.log2(256)
        self.assertAlmostEqual(result.bits_per_byte * 2001 / bits, 1.0, delta=1e-7)


class WhatIsSaid(unittest.TestCase):
    def test_protocol_window_policy_split_precision_and_device_are_in_the_result(self) -> None:
        split = Split.of(TEXTS, "validation")
        for dtype, precision in (
            (torch.float32, "float32"),
            (torch.float64, "float64"),
            (torch.bfloat16, "bfloat16"),
        ):
            result = evaluate(Transformer(SMALL).to(dtype), split)
            self.assertEqual(result.precision, precision)
        self.assertEqual((result.protocol, result.window, result.policy), ("disjoint", 16, "cross"))
        self.assertEqual(
            (result.split, result.split_digest, result.device), ("validation", split.digest, "cpu")
        )
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(evaluate(Transformer(SMALL), split).precision, "bfloat16")
        self.assertEqual(
            evaluate(Transformer(dataclasses.replace(SMALL, policy="reset")), split).policy, "reset"
        )

    def test_to_dict_is_json_of_all_fields(self) -> None:
        result = evaluate(Uniform(SMALL), Split.of(TEXTS))
        self.assertEqual(Evaluation(**json.loads(json.dumps(result.to_dict()))), result)

    def test_progress_counts_targets_to_the_end(self) -> None:
        seen: list[tuple[int, int]] = []
        split = Split.of(TEXTS)
        evaluate(Uniform(SMALL), split, rows=2, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(seen[-1], (len(split.stream) - 1,) * 2)
        self.assertEqual([done for done, _ in seen], sorted({done for done, _ in seen}))

    def test_modes_of_the_model_are_as_before(self) -> None:
        class Mixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.config, self.device = SMALL, CPU
                self.inner, self.frozen = nn.Dropout(0.5), nn.Dropout(0.5)
                self.during: list[bool] = []

            def forward(self, ids_BT: Tensor) -> Tensor:
                self.during += [self.training, self.inner.training, torch.is_grad_enabled()]
                return self.inner(torch.ones(*ids_BT.shape, 257))

        model = Mixed().train()
        model.frozen.eval()
        evaluate(model, Split.of(TEXTS))
        self.assertEqual(set(model.during), {False})
        self.assertEqual((model.training, model.inner.training, model.frozen.training), (True, True, False))
        with self.assertRaises(RequestError):
            evaluate(model, Split.of([]))
        self.assertTrue(model.training)


class ALimit(unittest.TestCase):
    def setUp(self) -> None:
        self.split = Split.of([bytes([97 + i % 26]) * (5 + i % 40) for i in range(100)], "validation")

    def test_takes_whole_rows_spread_evenly_and_says_so(self) -> None:
        for config in policies(SMALL):
            result = evaluate(Uniform(config), self.split, limit=500)
            self.assertLessEqual(result.tokens, 500)
            self.assertGreater(result.tokens, 400)
            self.assertRegex(result.protocol, r"^disjoint, \d+ of \d+ rows$")
            self.assertAlmostEqual(
                result.bits_per_byte, math.log2(257) * result.tokens / result.bytes, delta=1e-6
            )

    def test_reads_from_the_whole_split_not_from_its_beginning(self) -> None:
        read: list[int] = []

        class Reader(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                read.extend(ids_BT[:, 0].tolist())
                return super().__call__(ids_BT)

        split = Split.of([bytes(range(16 * i, 16 * i + 16)) for i in range(16)], "validation")
        evaluate(Reader(dataclasses.replace(SMALL, window=17)), split, limit=4 * 17)
        self.assertEqual(len(read), 4)
        split = Split.of([bytes(range(256))], "validation")
        read.clear()
        evaluate(Reader(SMALL), split, limit=64)
        self.assertEqual(sorted(read), [31, 95, 159, 223])

    def test_scores_the_same_rows_every_time(self) -> None:
        model = trained(SMALL, dtype=torch.float64)
        first, second = (evaluate(model, self.split, limit=300, rows=rows) for rows in (32, 5))
        self.assertAlmostEqual(first.bits_per_byte, second.bits_per_byte, delta=1e-12)
        self.assertEqual(first.tokens, second.tokens)

    def test_above_the_split_changes_nothing(self) -> None:
        everything = evaluate(Uniform(SMALL), self.split)
        self.assertEqual(evaluate(Uniform(SMALL), self.split, limit=everything.tokens), everything)
        self.assertEqual(everything.protocol, "disjoint")

    def test_below_a_row_scores_one_row(self) -> None:
        result = evaluate(Uniform(SMALL), self.split, limit=1)
        self.assertEqual(result.tokens, 16)
        self.assertIn(", 1 of ", result.protocol)


class Refusals(unittest.TestCase):
    def test_nothing_to_score(self) -> None:
        for config in policies(SMALL):
            with self.assertRaisesRegex(RequestError, "validation: no byte is scored"):
                evaluate(Uniform(config), Split.of([], "validation"))

    def test_options_out_of_range(self) -> None:
        for options in ({"rows": 0}, {"limit": 0}, {"rows": True}, {"limit": 2.5}):
            with self.assertRaisesRegex(RequestError, f"{next(iter(options))} is"):
                evaluate(Uniform(SMALL), Split.of(TEXTS), **options)  # type: ignore[arg-type]

    def test_nan_is_refused_with_its_place(self) -> None:
        model = Transformer(SMALL)
        with torch.no_grad():
            model.model.norm.weight.fill_(math.nan)
        with self.assertRaisesRegex(TinylmError, "validation token 1: .*NaN"):
            evaluate(model, Split.of([b"abc"], "validation"))

    def test_probability_zero_is_refused_with_its_place(self) -> None:
        class Certain(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                logits = torch.full((*ids_BT.shape, 257), -math.inf)
                logits[:, :, 97] = 0
                return logits

        with self.assertRaisesRegex(TinylmError, "validation token 21: .*probability 0"):
            evaluate(Certain(SMALL), Split.of([b"a" * 20 + b"b"], "validation"))

    def test_logits_of_another_shape(self) -> None:
        class Padded(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                return torch.zeros(*ids_BT.shape, 320)

        with self.assertRaisesRegex(ShapeError, "logits: axis 2"):
            evaluate(Padded(SMALL), Split.of(TEXTS))


if __name__ == "__main__":
    unittest.main()
