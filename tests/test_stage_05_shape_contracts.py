"""Stage 05: wrong calls that travel, and the borders of the library that stop them."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm import baselines, batches, sampling, tokenizer
from tinylm.attention import attend, blocks, dense_mask, flex_mask, seen_within
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.errors import TinylmError
from tinylm.evaluate import paired_difference, ratio_error
from tinylm.model import Transformer, rotate
from tinylm.optimizer import orthogonalize
from tinylm.training_step import mean_loss

SMALL = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=8)
STREAM = np.array([256, 97, 98, 256], dtype=np.uint16)
LOGITS = np.zeros(257)
ROWS = np.array([0])


class Travel(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(5)

    def test_steps_are_counted_until_one_raises(self) -> None:
        steps = (lambda x: x + 1, lambda x: 1 / (x - 1), lambda x: x)
        self.assertEqual(self.stage.travel(0, steps), (1, "ZeroDivisionError"))
        self.assertEqual(self.stage.travel(1, steps), (3, "1.000"))

    def test_every_right_call_is_let_in_and_ends_as_a_number(self) -> None:
        for name, call in self.stage.calls().items():
            self.assertEqual(self.stage.refusal(call, call.right), "", name)
            survived, end = self.stage.travel(call.right, call.steps)
            self.assertEqual(survived, len(call.steps), name)
            self.assertTrue(np.isfinite(float(end)), name)

    def test_broadcasting_gives_the_product_of_two_means(self) -> None:
        bits, size = np.array([6.0, 2.0]), np.array([3.0, 1.0])
        self.assertEqual((bits / size).mean(), 2.0)
        self.assertEqual((bits / size[:, None]).mean(), bits.mean() * (1 / size).mean())

    def test_uint8_makes_a_nul_of_every_boundary_and_says_nothing(self) -> None:
        with np.errstate(all="raise"):
            self.assertEqual(STREAM.astype(np.uint8).tolist(), [0, 97, 98, 0])
        self.assertEqual(torch.tensor([256]).to(torch.uint8).item(), 0)


class Borders(unittest.TestCase):
    """What the library's own borders say to an array of another shape or kind."""

    def refused(self, call: Callable[..., Any], *given: Any, expected: str = "expected|do not fit") -> None:
        with self.assertRaises(TinylmError) as caught:
            call(*given)
        message = str(caught.exception)
        self.assertEqual(len(message.splitlines()), 1)
        self.assertRegex(message, expected)

    def test_ids_that_go_into_the_model(self) -> None:
        model = Transformer(SMALL)
        for wrong in (
            torch.zeros(8, dtype=torch.int64),
            torch.zeros(1, 2, 3, dtype=torch.int64),
            torch.zeros(1, 8),
            torch.zeros(1, 9, dtype=torch.int64),
            torch.full((1, 8), 257),
        ):
            self.refused(model, wrong)

    def test_logits_and_probabilities_that_are_drawn_from(self) -> None:
        plain = GenerateConfig()
        for wrong in (LOGITS[None], LOGITS[:, None], LOGITS.astype(np.int64), LOGITS.tolist()):
            self.refused(sampling.distribution, wrong, plain)
            self.refused(sampling.draw, wrong, 0.5)
        self.refused(sampling.distribution, LOGITS, plain, np.ones((1, 257), dtype=bool))
        self.refused(sampling.distribution, LOGITS, plain, np.ones(257))

    def test_streams_that_are_counted(self) -> None:
        for wrong in (STREAM[None], STREAM.astype(np.float64), STREAM.tolist()):
            self.refused(baselines.Ngrams.count, wrong, 2)
            self.refused(baselines.ngram_bits, wrong, STREAM, 2)
            self.refused(baselines.ngram_bits, STREAM, wrong, 2)

    def test_rows_that_are_gathered(self) -> None:
        self.refused(batches.gather, STREAM[None], ROWS, ROWS, 2)
        self.refused(batches.gather, STREAM, ROWS, np.array([1, 1]), 2)
        self.refused(batches.gather, STREAM, ROWS, ROWS[:, None], 2)

    def test_queries_keys_and_values_that_are_attended_to(self) -> None:
        q, k = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 5, 8)
        attend(q, k, k)
        for given, expected in (
            ((q[0], k, k), r"q_BHTK: expected 4 axes \[B, H, T, K\], found 3 axes"),
            ((q, k, k[:, :, :3]), r"v_BHSK: axis 2 \(S\) is 3, expected 5"),
            ((q, k[:1], k[:1]), r"k_BHSK: axis 0 \(B\) is 1, expected 2"),  # broadcasting would take it
            ((q, k[..., :4], k[..., :4]), r"k_BHSK: axis 3 \(K\) is 4, expected 8"),
            ((q[:, :3], k, k), "k_BHSK: axis 1 is 2, expected a number of heads that divides the 3"),
            ((q, k[:, :, :2], k[:, :, :2]), r"k_BHSK: axis 2 \(S\) is 2, expected at least the 3"),
            ((q.long(), k, k), "q_BHTK: expected float values, found dtype int64"),
            ((q, k, k, torch.ones(3, 5, dtype=torch.bool)), r"seen: expected 4 axes \[B=2, 1, T=3, S=5\]"),
            ((q, k, k, torch.ones(2, 1, 5, 3)), r"seen: axis 2 \(T\) is 5, expected 3"),
            ((q, k, k, torch.ones(2, 1, 3, 5).int()), "seen: expected float values, found dtype int32"),
            ((q, q, q, blocks(torch.zeros(2, 4, dtype=torch.int64))), "seen.places: axis 0"),
        ):
            self.refused(attend, *given, expected=expected)
        for form in (seen_within, dense_mask, blocks, flex_mask):
            self.refused(form, torch.zeros(2, 3), expected="segments: expected integer values")
            self.refused(form, torch.zeros(6, dtype=torch.int64), expected="segments: expected 2 axes")

    def test_heads_that_are_turned(self) -> None:
        x, table = torch.zeros(2, 4, 3, 8), torch.zeros(3, 8)
        own = table.expand(2, 1, 3, 8)
        for tables in ((table, table), (own, own)):
            self.assertEqual(rotate(x, *tables).shape, x.shape)
        for given, expected in (
            ((x[0], table, table), r"x_BHTK: expected 4 axes"),
            ((x, table[:1], table[:1]), r"cos_TK: axis 0 \(T\) is 1, expected 3"),
            ((x, table, table[:, :4]), r"sin_TK: axis 1 \(K\) is 4, expected 8"),
            ((x, own[:1], own), r"cos_TK: axis 0 \(B\) is 1, expected 2"),
            ((x[..., :7], table[:, :7], table[:, :7]), r"x_BHTK: axis 3 \(K\) is 7, expected an even number"),
            ((x, table.long(), table), "cos_TK: expected float values, found dtype int64"),
        ):
            self.refused(rotate, *given, expected=expected)

    def test_keys_and_values_that_are_kept(self) -> None:
        model = Transformer(SMALL)
        one = torch.zeros(2, SMALL.kv_heads, 3, SMALL.head_size)
        cache, rows = model.new_cache(2), model.new_slots(2).at(0, [0, 4])
        cache.append(0, one, one)
        cache.position = 6
        rows.begin(3)
        for given, expected in (
            ((one[0], one[0]), "keys_BHTK: expected 4 axes"),
            ((one[:1], one[:1]), r"keys_BHTK: axis 0 \(B\) is 1, expected 2"),
            ((one, one[:, :, :1]), r"values_BHTK: axis 2 \(T\) is 1, expected 3"),
            ((one, one.long()), "values_BHTK: expected float values"),
        ):
            for kept in (cache, rows):
                self.refused(kept.append, 0, *given, expected=expected)
        self.refused(cache.append, 0, one, one, expected=r"axis 2 \(T\) is 3, expected at most 2, which")
        self.refused(
            rows.append, 0, one[:, :, :1], one[:, :, :1], expected="is 1, expected the 3 of this step"
        )

    def test_matrices_that_are_made_orthogonal(self) -> None:
        for wrong, expected in (
            (torch.zeros(4, 4), r"matrices_NMK: expected 3 axes \[N, M, K\], found 2"),
            (torch.zeros(1, 5, 4), r"axis 1 \(M\) is 5, expected at most the 4 of axis 2; turn them first"),
            (torch.zeros(1, 4, 4, dtype=torch.int64), "expected float values, found dtype int64"),
        ):
            self.refused(orthogonalize, wrong, expected=expected)

    def test_what_a_loss_is_the_mean_of(self) -> None:
        model, ids, total = Transformer(SMALL), torch.zeros(2, 8, dtype=torch.int64), torch.tensor(16)
        self.assertAlmostEqual(mean_loss(model, ids, ids, total, 0.0).item(), np.log(257), places=5)
        for given, expected in (
            ((ids[0], ids[0], total), "inputs_BT: expected 2 axes"),
            ((ids, ids.T, total), r"targets_BT: axis 0 \(B\) is 8, expected 2"),  # as many; every one wrong
            ((ids, ids.float(), total), "targets_BT: expected integer values"),
            ((ids, ids, total.expand(1)), "total: expected 0 axes"),
            ((ids, ids, 16), "total: expected an array"),
        ):
            self.refused(mean_loss, model, *given, 0.0, expected=expected)

    def test_rows_and_lengths_that_are_shuffled_and_packed(self) -> None:
        for wrong in (ROWS[:, None], ROWS * 1.0):
            self.refused(batches.permute, wrong, 9, b"key", expected="indices: expected")
            self.refused(batches.pack, wrong, 8, ROWS, expected="lengths: expected")
            self.refused(batches.pack, ROWS, 8, wrong, expected="shuffled: expected")
        self.refused(batches.pack, ROWS, 8, np.arange(9), expected=r"shuffled: axis 0 \(P\) is 9")

    def test_bits_and_bytes_of_clusters(self) -> None:
        bits, size = np.ones(3), np.ones(3, dtype=np.int64)
        for wrong in (bits[:, None], bits[:2], size):
            self.refused(ratio_error, wrong, size, expected="bits_C: ")
            self.refused(paired_difference, bits, wrong, size, "documents", expected="against_C: ")
        self.refused(ratio_error, bits, bits, expected="bytes_C: expected integer values")

    def test_ids_that_are_decoded(self) -> None:
        for wrong in (STREAM[None], STREAM.astype(np.float32), np.array([-1]), np.array([300])):
            self.refused(tokenizer.debug_decode, wrong)


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(5), "--quick", *page_arguments(5))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


if __name__ == "__main__":
    unittest.main()
