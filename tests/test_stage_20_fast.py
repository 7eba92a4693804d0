"""Stage 20: what a learner can rely on about being fast."""

import unittest

import torch

from tests.stage_support import load_stage, run_stage
from tinylm.config import ModelConfig
from tinylm.model import Transformer

stage = load_stage(20)


class TestStage(unittest.TestCase):
    def test_the_stage_passes(self):
        code, output = run_stage(stage, "--quick")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], "sanity check: PASS")


class TestIdeas(unittest.TestCase):
    def setUp(self):
        self.model = Transformer(
            ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=64),
            seed=3,
        ).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.model.parameters():
            parameter.normal_(0, 0.3, generator=generator)

    def test_a_cache_reads_each_position_once(self):
        ids, read, passes = stage.by_hand(True)(self.model, 20)
        again, more, as_many = stage.by_hand(False)(self.model, 20)
        self.assertEqual((ids, passes), (again, as_many))
        lengths = [1 + len(prompt) for prompt in stage.PROMPTS]
        self.assertEqual(read, sum(lengths) + 19 * len(lengths))  # the last token is written and never read
        self.assertEqual(more, sum(sum(range(length, length + 20)) for length in lengths))

    def test_drafts_change_no_token_and_save_passes_where_text_repeats(self):
        plain, _, passes = stage.in_engine(0)(self.model, 40)
        drafted, _, fewer = stage.in_engine(8)(self.model, 40)
        self.assertEqual(drafted, plain)
        self.assertLess(fewer, passes)

    def test_operators_are_counted(self):
        with stage.Operators() as operators:
            torch.ones(3).add(1).mul(2)
        self.assertEqual(operators.count, 3)


if __name__ == "__main__":
    unittest.main()
