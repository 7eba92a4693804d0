"""Stage 02: the gradient by hand against three others, and where it leads."""

from __future__ import annotations

import math
import unittest
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tests.stage_support import load_stage, page_arguments, run_stage

V = 257
Floats = npt.NDArray[np.float64]


def some(seed: int = 0, pairs: int = 60) -> tuple[Any, Any, Any]:
    """A random table [V, V], inputs and targets [pairs] among few tokens, so that pairs repeat."""
    random = np.random.default_rng(seed)
    table = random.normal(0, 2, (V, V))
    return table, random.integers(250, V, pairs), random.integers(250, V, pairs)


class TheGradient(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(2)

    def test_one_pair_worked_out_by_hand(self) -> None:
        table = np.full((V, V), -1e9)
        table[3, :3] = np.log([0.5, 0.25, 0.25])
        loss, gradient = self.stage.loss_and_gradient(table, np.array([3]), np.array([1]))
        self.assertAlmostEqual(loss, math.log(4), places=12)  # what came had a probability of 1/4
        np.testing.assert_allclose(gradient[3, :4], [0.5, 0.25 - 1, 0.25, 0], atol=1e-12)
        self.assertEqual(np.abs(gradient).sum(), np.abs(gradient[3]).sum())  # no other row moves

    def test_every_row_of_the_gradient_sums_to_0(self) -> None:
        _, gradient = self.stage.loss_and_gradient(*some())
        np.testing.assert_allclose(gradient.sum(axis=1), 0, atol=1e-15)

    def test_loss_and_gradient_equal_autograd_s(self) -> None:
        table, inputs, targets = some(seed=1)
        leaf = torch.from_numpy(table).requires_grad_()
        loss = F.cross_entropy(leaf[torch.from_numpy(inputs)], torch.from_numpy(targets))
        by_hand, gradient = self.stage.loss_and_gradient(table, inputs, targets)
        self.assertAlmostEqual(by_hand, loss.item(), places=12)
        np.testing.assert_allclose(gradient, torch.autograd.grad(loss, leaf)[0].numpy(), atol=1e-15)

    def test_the_counts_are_all_that_the_gradient_sees_of_a_text(self) -> None:
        table, inputs, targets = some(seed=2)
        shuffled = np.random.default_rng(3).permutation(len(inputs))
        count = self.stage.counted(inputs[shuffled], targets[shuffled])
        _, gradient = self.stage.loss_and_gradient(table, inputs, targets)
        np.testing.assert_allclose(self.stage.gradient_from_counts(table, count), gradient, atol=1e-15)
        self.assertEqual((count.sum(), count[inputs[0], targets[0]] > 0), (60, True))

    def test_the_chain_rule_through_two_narrow_tables_equals_autograd_s(self) -> None:
        _, inputs, targets = some(seed=4)
        random = np.random.default_rng(5)
        parts = [random.normal(0, 1, shape) for shape in ((V, 3), (3, V))]
        leaves = [torch.from_numpy(part.copy()).requires_grad_() for part in parts]
        logits = (leaves[0] @ leaves[1])[torch.from_numpy(inputs)]
        slopes = torch.autograd.grad(F.cross_entropy(logits, torch.from_numpy(targets)), leaves)
        before = [part.copy() for part in parts]
        for _ in self.stage.descend(parts, self.stage.counted(inputs, targets), rate=0.5, steps=0):
            pass  # one update after the first table
        for part, old, slope in zip(parts, before, slopes, strict=True):
            np.testing.assert_allclose((old - part) / 0.5, slope.numpy(), atol=1e-12)

    def test_a_wrong_gradient_would_be_noticed(self) -> None:
        real = self.stage.loss_and_gradient

        def wrong(*given: Any) -> tuple[float, Floats]:
            loss, gradient = real(*given)
            return loss, 1.001 * gradient

        self.stage.loss_and_gradient = wrong
        differences, autograd, counts = self.stage.farthest_apart(*some())
        self.assertGreater(min(differences, autograd, counts), 1e-8)


class WhereItLeads(unittest.TestCase):
    def test_at_the_counted_table_the_gradient_is_0(self) -> None:
        random = np.random.default_rng(6)
        count = random.integers(1, 9, (V, V)).astype(np.float64)
        counted = np.log(count / count.sum(axis=1, keepdims=True))
        self.assertLess(np.abs(load_stage(2).gradient_from_counts(counted, count)).max(), 1e-15)

    def test_it_walks_to_shares_that_were_counted(self) -> None:
        stage, count = load_stage(2), np.zeros((V, V))
        count[0, :3] = 6, 3, 1
        *_, table = stage.descend([np.zeros((V, V))], count, 1.0, 2_000)
        np.testing.assert_allclose(np.exp(stage.log_softmax(table))[0, :3], [0.6, 0.3, 0.1], atol=2e-3)

    def test_log_softmax_survives_large_logits(self) -> None:
        result = load_stage(2).log_softmax(np.array([1e4, 0.0, -1e4]))
        np.testing.assert_array_equal(result, [0, -1e4, -2e4])


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(2), "--quick", *page_arguments(2))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


if __name__ == "__main__":
    unittest.main()
