"""Stage 11: what a learner may rely on, and the stage itself."""

import math
import unittest

import torch
from torch import Tensor

from tests.stage_support import load_stage, run_stage
from tinylm.baselines import ladder
from tinylm.config import ModelConfig
from tinylm.corpus import Split
from tinylm.evaluate import evaluate


class ByHand:
    """A model that gives the next token of each document the probabilities that the page works with."""

    config = ModelConfig(window=4)
    device = torch.device("cpu")

    def __call__(self, ids_BT: Tensor, /) -> Tensor:
        logits = torch.zeros(*ids_BT.shape, 257)
        for after, follows, probability in (
            (256, "a", 1 / 4),
            (ord("a"), "b", 1 / 2),
            (ord("b"), "end", 1 / 8),
        ):
            token = 256 if follows == "end" else ord(follows)
            row = torch.full((257,), math.log((1 - probability) / 256))
            row[token] = math.log(probability)
            logits[ids_BT == after] = row
        return logits


class ABitPerByte(unittest.TestCase):
    def test_two_bytes_of_6_bits_cost_3_bits_per_byte(self) -> None:
        result = evaluate(ByHand(), Split.of([b"ab"], "validation"))
        self.assertAlmostEqual(result.bits_per_byte, (2 + 1 + 3) / 2, places=5)
        self.assertAlmostEqual(result.bits_per_byte_without_boundaries, (2 + 1) / 2, places=5)
        self.assertAlmostEqual(result.bits_per_boundary, 3.0, places=5)

    def test_twice_the_text_costs_twice_the_bits_and_the_same_per_byte(self) -> None:
        one = evaluate(ByHand(), Split.of([b"ab"]))
        two = evaluate(ByHand(), Split.of([b"ab", b"ab"]))
        self.assertEqual((two.bytes, two.boundaries), (2 * one.bytes, 2 * one.boundaries))
        self.assertAlmostEqual(two.bits_per_byte, one.bits_per_byte, places=6)

    def test_a_table_dressed_up_as_a_model_gets_its_own_number(self) -> None:
        stage = load_stage(11)
        train, text = stage.names(600)
        _, rung = ladder(train, text, orders=(2,), compressors=())
        for window in (2, 5, 64):
            result = evaluate(stage.Bigram(train, ModelConfig(window=window)), text)
            self.assertAlmostEqual(result.bits_per_byte, rung.bits_per_byte, delta=1e-12)
            self.assertAlmostEqual(result.bits_per_boundary, rung.bits_per_boundary, delta=1e-12)

    def test_held_out_names_are_not_in_the_training_text(self) -> None:
        train, text = load_stage(11).names(2_000)
        seen = {train.document(index).tobytes() for index in range(train.documents)}
        held = {text.document(index).tobytes() for index in range(text.documents)}
        self.assertEqual((len(seen), len(held), len(seen & held)), (1800, 200, 0))


class TheStage(unittest.TestCase):
    def test_quick_run_passes(self) -> None:
        code, printed = run_stage(load_stage(11), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")


if __name__ == "__main__":
    unittest.main()
