"""Stage 10: what a learner can rely on about a loss curve."""

import math
import unittest

import torch

from tests.stage_support import load_stage, run_stage
from tinylm.optimizer import orthogonalize, rate_scale
from tinylm.walkthrough import Lab

stage = load_stage(10)


class TestStage(unittest.TestCase):
    def test_the_stage_passes(self):
        code, output = run_stage(stage, "--quick")
        self.assertEqual(code, 0, output)
        self.assertEqual(output.splitlines()[-1], "sanity check: PASS")


class TestIdeas(unittest.TestCase):
    def test_the_rate_is_a_function_of_the_step_alone(self):
        forward = [rate_scale(step, 50, 0.1, 0.5) for step in range(50)]
        backward = [rate_scale(step, 50, 0.1, 0.5) for step in reversed(range(50))]
        self.assertEqual(forward, backward[::-1])
        self.assertEqual(max(forward), 1.0)

    def test_muon_s_update_has_the_same_size_in_every_direction(self):
        gradient = torch.diag(torch.tensor([100.0, 1.0, 0.5]))[None]
        update = orthogonalize(gradient)[0].diagonal()
        self.assertLess(float(update.max() / update.min()), 1.8)

    def test_a_mean_of_means_is_not_the_mean(self):
        long, short = [1.0] * 9, [2.0]
        means = (sum(long) / len(long) + sum(short) / len(short)) / 2
        self.assertFalse(math.isclose(means, sum(long + short) / 10))

    def test_micro_batches_give_the_gradient_of_the_whole(self):
        with stage.workspace() as folder:
            limit = stage.CorpusConfig(max_documents=300, truncate=True)
            corpus = stage.build_corpus("builtin:unicode", folder / "corpus", limit)
            self.assertLess(stage.gradients_apart(corpus, folder, Lab(quick=True)), 1e-10)


if __name__ == "__main__":
    unittest.main()
