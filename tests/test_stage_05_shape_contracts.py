"""Stage 05: wrong calls that travel, and the borders of the library that stop them."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm import baselines, batches, sampling, tokenizer
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.errors import TinylmError
from tinylm.model import Transformer

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

    def refused(self, call: Callable[..., Any], *given: Any) -> None:
        with self.assertRaises(TinylmError) as caught:
            call(*given)
        message = str(caught.exception)
        self.assertEqual(len(message.splitlines()), 1)
        self.assertRegex(message, "expected|do not fit")

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
