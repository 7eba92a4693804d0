"""Stage 09: what a learner can rely on about the model's shape."""

import dataclasses
import unittest

import torch

from tests.stage_support import load_stage, run_stage
from tinylm.config import PRESETS
from tinylm.errors import ConfigError
from tinylm.model import Transformer, parameter_count

stage = load_stage(9)


class TestStage(unittest.TestCase):
    def test_the_stage_passes(self):
        code, output = run_stage(stage, "--quick")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], "sanity check: PASS")


class TestIdeas(unittest.TestCase):
    def test_every_parameter_belongs_to_one_part(self):
        for config in stage.SHAPES.values():
            self.assertEqual(sum(stage.counted(Transformer(config)).values()), parameter_count(config))

    def test_the_mlps_hold_most_of_nano(self):
        found = stage.counted(Transformer(PRESETS["nano"]))
        self.assertEqual(
            found, {"embedding and head": 65_792, "attention": 262_144, "MLP": 540_672, "gains": 1_408}
        )

    def test_untying_the_head_costs_257_rows(self):
        tied = dataclasses.replace(stage.BASE, tied=True)
        self.assertEqual(parameter_count(stage.BASE) - parameter_count(tied), 257 * 32)

    def test_tensors_carry_the_names_of_qwen3(self):
        names = {name for name, _ in Transformer(stage.BASE).named_parameters()}
        for name in (
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.norm.weight",
            "lm_head.weight",
        ):
            self.assertIn(name, names)

    def test_grouped_queries_share_keys_but_give_every_head_its_own_attention(self):
        shared = Transformer(stage.SHAPES["1 key/value head"])
        self.assertEqual(shared.model.layers[0].self_attn.k_proj.weight.shape, torch.Size([32, 32]))
        self.assertEqual(shared.model.layers[0].self_attn.q_proj.weight.shape, torch.Size([64, 32]))

    def test_an_impossible_shape_is_refused_with_all_its_problems(self):
        wrong = dataclasses.replace(stage.BASE, width=33, head_size=15, kv_heads=3)
        with self.assertRaises(ConfigError) as caught:
            Transformer(wrong)
        for part in ("width is 33", "head_size", "kv_heads is 3"):
            self.assertIn(part, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
