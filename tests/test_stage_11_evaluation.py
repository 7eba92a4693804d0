"""Stage 11: what a learner may rely on, and the stage itself."""

import math
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tests.stage_support import load_stage, run_stage
from tinylm.baselines import Ngrams, ladder
from tinylm.config import ModelConfig
from tinylm.corpus import Split
from tinylm.evaluate import evaluate, score


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


class Bigram:
    """A table of counts in the clothes of a model: its logits are the logarithms of its probabilities."""

    device = torch.device("cpu")

    def __init__(self, train: Split, config: ModelConfig) -> None:
        ngrams = Ngrams.count(train.stream, 2)
        self.config = config
        self.logits_VV = torch.from_numpy(np.log([ngrams.distribution([token]) for token in range(257)]))

    def __call__(self, ids_BT: Tensor, /) -> Tensor:
        return self.logits_VV[ids_BT]


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

    def test_a_table_dressed_up_as_a_model_gets_its_own_number_by_every_protocol(self) -> None:
        train = Split.of([b"the cat sat on the mat", b"a dog"] * 9)
        text = Split.of([b"a cat", b"the dog sat on a mat", b"on"] * 5, "validation")
        _, rung = ladder(train, text, orders=(2,), compressors=())
        for window, stride in ((2, 1), (5, 2), (64, 64), (64, 8)):
            model = Bigram(train, ModelConfig(window=window))
            result = evaluate(model, text, protocol="strided", stride=stride)
            self.assertAlmostEqual(result.bits_per_byte, rung.bits_per_byte, delta=1e-12)
            self.assertAlmostEqual(result.bits_per_boundary, rung.bits_per_boundary, delta=1e-12)

    def test_windows_of_the_page_s_picture(self) -> None:
        # Window 4, stride 2, targets 1 to 8: contexts 1 2 3 4, then 3 4 twice.
        split = Split.of([b"abcdefgh"])
        whole = Split("train", split.stream[:9], split.starts, split.digest)
        seen = {}
        for group in score(ByHand(), whole, protocol="strided", stride=2):
            seen |= dict(zip(group.positions.tolist(), group.contexts.tolist(), strict=True))
        self.assertEqual([seen[target] for target in range(1, 9)], [1, 2, 3, 4, 3, 4, 3, 4])


class TheReferee(unittest.TestCase):
    def test_a_model_that_peeks_reports_little_and_cannot_be_coded_so_short(self) -> None:
        stage = load_stage(11)
        text = Split.of([b"LATIN SMALL LETTER A", b"LATIN SMALL LETTER B"], "validation")
        with tempfile.TemporaryDirectory() as folder:
            reported, code, file, back = stage.refereed(stage.Peek(stage.CONFIG), text, 20, Path(folder, "c"))
        # The untrained model pays log2(257) bits a token; the answer can be seen for all but the last.
        self.assertLess(reported, 3)
        self.assertTrue(20 <= code <= 22, code)
        self.assertGreater(file, code)
        self.assertEqual(back, 20)


class TheStage(unittest.TestCase):
    def test_quick_run_passes(self) -> None:
        code, printed = run_stage(load_stage(11), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")


if __name__ == "__main__":
    unittest.main()
