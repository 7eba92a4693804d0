"""Protocols of evaluate: every target once, from the context that the protocol promises, by brute force."""

import dataclasses
import math
import unittest

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.test_evaluate import CPU, SMALL, TEXTS, Uniform, documents, policies, trained
from tinylm.batches import rows_in_order
from tinylm.corpus import Split
from tinylm.errors import RequestError
from tinylm.evaluate import Scored, evaluate, rows_to_score, score
from tinylm.model import Transformer

LONG = [bytes([65 + (i * i + j) % 26 for j in range(1 + 7 * i % 50)]) for i in range(40)]


def all_scored(model, split: Split, **options) -> Scored:
    """Everything that score yields, in the order of the stream."""
    groups = list(score(model, split, **options))
    order = np.argsort(np.concatenate([group.positions for group in groups]), kind="stable")
    fields = ("positions", "contexts", "bits")
    return Scored(*(np.concatenate([getattr(g, f) for g in groups])[order] for f in fields), "")


def expected_contexts(split: Split, policy: str, window: int, stride: int) -> list[int]:
    """From how many tokens each target is predicted, by sliding a window over a list of tokens."""
    stream = split.stream.tolist()
    opens = [0] if policy == "cross" else [i for i, t in enumerate(stream[:-1]) if t == 256]
    contexts = []
    for opening, end in zip(opens, [*opens[1:], len(stream) - 1], strict=True):
        begin = opening
        for target in range(opening + 1, end + 1):
            while target - begin > window:
                begin += stride
            contexts.append(target - begin)
    return contexts


def bits_one_by_one(model: Transformer, split: Split, contexts: list[int]) -> list[float]:
    """Bits of each target, from a forward pass over exactly its context."""
    stream, found = split.stream.tolist(), []
    for target, context in enumerate(contexts, 1):
        with torch.no_grad():
            logits = model(torch.tensor([stream[target - context : target]]))[0, -1].double().numpy()
        found.append(float(np.logaddexp.reduce(logits) - logits[stream[target]]) / math.log(2))
    return found


class EveryTarget(unittest.TestCase):
    @settings(max_examples=25, deadline=None)
    @given(documents, st.integers(2, 14), st.data(), st.sampled_from(["cross", "reset"]), st.integers(1, 9))
    def test_is_scored_once_with_the_bits_of_a_pass_over_its_own_context(
        self, texts: list[bytes], window: int, data: st.DataObject, policy: str, rows: int
    ) -> None:
        stride = data.draw(st.integers(1, window))
        model = trained(dataclasses.replace(SMALL, window=window, policy=policy), dtype=torch.float64)
        split = Split.of(texts, "validation")
        found = all_scored(model, split, protocol="strided", stride=stride, rows=rows)
        contexts = expected_contexts(split, policy, window, stride)
        self.assertEqual(found.positions.tolist(), list(range(1, len(split.stream))))
        self.assertEqual(found.contexts.tolist(), contexts)
        np.testing.assert_allclose(found.bits, bits_one_by_one(model, split, contexts), atol=1e-9)

    @settings(max_examples=200, deadline=None)
    @given(documents, st.integers(2, 40), st.data(), st.sampled_from(["cross", "reset"]))
    def test_has_at_least_window_minus_stride_tokens_before_it_or_its_whole_text(
        self, texts: list[bytes], window: int, data: st.DataObject, policy: str
    ) -> None:
        stride = data.draw(st.integers(1, window))
        split = Split.of(texts)
        rows = rows_to_score(split, policy, window, stride)
        seen = np.zeros(len(split.stream), dtype=np.int64)
        for start, length, skip in zip(rows.starts, rows.lengths, rows.skips, strict=True):
            self.assertTrue(0 <= skip < length <= window)
            for target in range(start + skip + 1, start + length + 1):
                seen[target] += 1
                opening = 0 if policy == "cross" else max(o for o in split.starts - 1 if o < target)
                self.assertGreaterEqual(start, opening)
                self.assertGreaterEqual(target - start, min(target - opening, window - stride + 1))
        self.assertEqual(seen.tolist(), [0] + [1] * (len(split.stream) - 1))

    def test_of_disjoint_windows_is_in_the_rows_of_training(self) -> None:
        split = Split.of(LONG)
        for policy in ("cross", "reset"):
            rows, (starts, lengths) = rows_to_score(split, policy, 16, 16), rows_in_order(split, policy, 16)
            self.assertEqual(rows.starts.tolist(), starts.tolist())
            self.assertEqual(rows.lengths.tolist(), lengths.tolist())
            self.assertEqual(rows.skips.tolist(), [0] * len(starts))

    def test_has_the_same_bits_however_rows_are_batched_and_padded(self) -> None:
        split = Split.of(LONG[:15], "validation")
        for config in policies(SMALL):
            model = trained(config, dtype=torch.float64)
            one, *others = (
                all_scored(model, split, protocol="strided", stride=3, rows=rows) for rows in (1, 5, 500)
            )
            for other in others:
                np.testing.assert_array_equal(one.contexts, other.contexts)
                np.testing.assert_allclose(one.bits, other.bits, atol=1e-12)

    def test_of_a_limit_has_the_bits_that_it_has_without_one(self) -> None:
        split = Split.of(LONG, "validation")
        for config in policies(SMALL):
            model = trained(config, dtype=torch.float64)
            for how in ({"protocol": "disjoint"}, {"protocol": "strided", "stride": 5}):
                whole, some = (all_scored(model, split, limit=limit, **how) for limit in (None, 300))
                self.assertEqual(len(np.unique(some.positions)), len(some.positions))
                self.assertTrue(200 < len(some.positions) <= 300, len(some.positions))
                np.testing.assert_array_equal(some.contexts, whole.contexts[some.positions - 1])
                np.testing.assert_allclose(some.bits, whole.bits[some.positions - 1], atol=1e-12)
                self.assertGreater(some.positions.max() - some.positions.min(), len(split.stream) * 0.8)


class Strides(unittest.TestCase):
    def test_half_the_window_is_the_default(self) -> None:
        split = Split.of(TEXTS, "validation")
        model = trained(SMALL)
        self.assertEqual(
            evaluate(model, split, protocol="strided"), evaluate(model, split, protocol="strided", stride=8)
        )

    def test_a_whole_window_is_the_disjoint_protocol(self) -> None:
        split = Split.of(LONG, "validation")
        for config in policies(SMALL):
            model = trained(config)
            strided = evaluate(model, split, protocol="strided", stride=16)
            disjoint = evaluate(model, split)
            self.assertEqual(dataclasses.replace(strided, protocol="disjoint"), disjoint)

    def test_more_context_helps_a_model_that_uses_it(self) -> None:
        # It knows the byte seven tokens back, and guesses where a window shows fewer: "abcdefg" repeated.
        class Echo(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                logits = torch.zeros(*ids_BT.shape, 257)
                logits[:, 6:] = 20.0 * nn.functional.one_hot(ids_BT[:, :-6], 257)
                return logits

        split = Split.of([b"abcdefg" * 40], "validation")
        model = Echo(dataclasses.replace(SMALL, window=8))
        numbers = [evaluate(model, split, protocol="strided", stride=s).bits_per_byte for s in (8, 4, 1)]
        self.assertGreater(numbers[0], 5)
        self.assertGreater(numbers[0], numbers[1])
        self.assertLess(numbers[2], 0.4)

    def test_progress_counts_each_target_once(self) -> None:
        seen: list[tuple[int, int]] = []
        split = Split.of(TEXTS)
        list(score(Uniform(SMALL), split, protocol="strided", rows=2, progress=lambda *now: seen.append(now)))
        self.assertEqual(seen[-1], (len(split.stream) - 1,) * 2)

    def test_protocol_and_stride_are_in_the_result(self) -> None:
        split = Split.of(LONG, "validation")
        result = evaluate(Uniform(SMALL), split, protocol="strided", stride=3)
        self.assertEqual((result.protocol, result.stride, result.window), ("strided", 3, 16))
        self.assertEqual(evaluate(Uniform(SMALL), split).stride, 16)
        self.assertRegex(
            evaluate(Uniform(SMALL), split, protocol="strided", limit=99).protocol,
            r"^strided, \d+ of \d+ rows$",
        )


class Between(unittest.TestCase):
    def test_groups_the_caller_finds_gradients_and_modes_as_they_were(self) -> None:
        class Noisy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.config, self.device, self.drop = SMALL, CPU, nn.Dropout(0.5)

            def forward(self, ids_BT: Tensor) -> Tensor:
                return self.drop(torch.ones(*ids_BT.shape, 257))

        model = Noisy().train()
        for group in score(model, Split.of(TEXTS), rows=1):
            self.assertTrue(torch.is_grad_enabled() and not torch.is_inference_mode_enabled())
            self.assertTrue(model.training and model.drop.training)
            np.testing.assert_allclose(group.bits, math.log2(257), atol=1e-6)


class Refusals(unittest.TestCase):
    def test_all_problems_come_at_once_and_before_anything_is_scored(self) -> None:
        class Never(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                raise AssertionError("was asked")

        with self.assertRaises(RequestError) as caught:
            score(Never(SMALL), Split.of(TEXTS), protocol="sliding", stride=17, rows=0, limit=True)
        for part in ("rows is 0", "limit is True", "protocol is 'sliding'", "stride is 17", "window of 16"):
            self.assertIn(part, str(caught.exception))

    def test_strides_out_of_range_and_without_their_protocol(self) -> None:
        for stride in (0, -1, 17, 2.0, True, "8"):
            with self.assertRaisesRegex(RequestError, r"stride is .*from 1 to the window of 16"):
                score(Uniform(SMALL), Split.of(TEXTS), protocol="strided", stride=stride)
        with self.assertRaisesRegex(RequestError, "stride goes with protocol strided"):
            evaluate(Uniform(SMALL), Split.of(TEXTS), stride=8)
        self.assertEqual(len(list(score(Uniform(SMALL), Split.of([])))), 0)


if __name__ == "__main__":
    unittest.main()
