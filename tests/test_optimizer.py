"""Muon and AdamW against torch's own, schedules, and a state that is strict."""

import unittest

import torch
from torch import nn

from tinylm.config import ModelConfig, TrainConfig
from tinylm.errors import CheckpointError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, orthogonalize, rate_scale

TINY = ModelConfig(layers=2, width=32, mlp_width=64, heads=4, kv_heads=2, head_size=16, window=16)


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


class TestAgainstTorch(unittest.TestCase):
    def test_adamw_is_torch_s_adam(self):
        config = TrainConfig(data="x", adam_rate=0.01)
        ours, theirs = Transformer(TINY).double(), Transformer(TINY).double()
        optimizer = Optimizer(ours, config)
        others = [p for n, p in theirs.named_parameters() if n in optimizer.others]
        reference = torch.optim.AdamW(others, lr=0.01, betas=(0.8, 0.95), eps=1e-10, weight_decay=0.0)
        for step in range(5):
            gradients(ours, step)
            gradients(theirs, step)
            optimizer.step(1.0)
            reference.step()
        for name, parameter in theirs.named_parameters():
            if name in optimizer.others:
                torch.testing.assert_close(
                    dict(ours.named_parameters())[name], parameter, rtol=1e-9, atol=1e-12
                )

    def test_muon_is_torch_s_muon(self):
        config = TrainConfig(data="x", muon_rate=0.02, weight_decay=0.1)
        ours, theirs = Transformer(TINY), Transformer(TINY)
        optimizer = Optimizer(ours, config)
        matrices = [p for n, p in theirs.named_parameters() if n in optimizer.matrices]
        reference = torch.optim.Muon(
            matrices, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="original"
        )
        for step in range(4):
            gradients(ours, step)
            gradients(theirs, step)
            optimizer.step(1.0)
            reference.step()
        for name, parameter in theirs.named_parameters():
            if name in optimizer.matrices:
                mine = dict(ours.named_parameters())[name]
                # torch's iteration runs in bfloat16, so the two agree to its three digits.
                torch.testing.assert_close(mine, parameter, rtol=0, atol=4 * 0.02 * 0.03)

    def test_every_parameter_has_one_optimizer(self):
        model = Transformer(TINY)
        optimizer = Optimizer(model, TrainConfig(data="x"))
        names = {name for name, _ in model.named_parameters()}
        self.assertEqual(set(optimizer.matrices) | set(optimizer.others), names)
        self.assertFalse(set(optimizer.matrices) & set(optimizer.others))
        self.assertEqual(sorted(n for group in optimizer.groups for n in group), sorted(optimizer.matrices))
        self.assertIn("lm_head.weight", optimizer.others)


class TestOrthogonalize(unittest.TestCase):
    def test_singular_values_go_to_about_one_and_directions_stay(self):
        matrices = torch.randn(5, 24, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        found = orthogonalize(matrices)
        values = torch.linalg.svdvals(found)
        self.assertGreater(float(values.min()), 0.6)
        self.assertLess(float(values.max()), 1.25)
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        torch.testing.assert_close(
            left.mT @ found @ right.mT,
            torch.diag_embed((left.mT @ found @ right.mT).diagonal(dim1=1, dim2=2)),
            atol=1e-6,
            rtol=0,
        )

    def test_a_batch_gives_what_each_matrix_gives_alone(self):
        matrices = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        together = orthogonalize(matrices)
        for index in range(3):
            torch.testing.assert_close(
                together[index], orthogonalize(matrices[index : index + 1])[0], atol=1e-12, rtol=0
            )

    def test_a_zero_matrix_stays_zero(self):
        self.assertEqual(float(orthogonalize(torch.zeros(1, 4, 4)).abs().max()), 0.0)


class TestSchedule(unittest.TestCase):
    def test_rises_stays_and_falls_to_zero(self):
        scales = [rate_scale(step, 100, 0.1, 0.5) for step in range(100)]
        self.assertEqual(scales[0], 0.1)
        self.assertEqual(scales[9:50], [1.0] * 41)
        self.assertAlmostEqual(scales[75], 0.5)
        self.assertAlmostEqual(scales[99], 0.02)
        self.assertEqual(rate_scale(100, 100, 0.1, 0.5), 0.0)

    def test_is_within_0_and_1_for_every_length(self):
        for steps in (1, 2, 3, 7, 50):
            for step in range(steps):
                scale = rate_scale(step, steps, 0.02, 0.6)
                self.assertTrue(0 < scale <= 1, (step, steps, scale))


class TestState(unittest.TestCase):
    def test_a_loaded_state_goes_on_bit_for_bit(self):
        one, two = Transformer(TINY), Transformer(TINY)
        first = Optimizer(one, TrainConfig(data="x"))
        for step in range(3):
            gradients(one, step)
            first.step(0.5)
        two.load_state(dict(one.named_parameters()), "here")
        second = Optimizer(two, TrainConfig(data="x"))
        second.load_state({name: tensor.clone() for name, tensor in first.state().items()}, "here")
        for step in range(3, 6):
            for model, optimizer in ((one, first), (two, second)):
                gradients(model, step)
                optimizer.step(0.5)
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_missing_unexpected_and_misshapen_state_is_refused(self):
        optimizer = Optimizer(Transformer(TINY), TrainConfig(data="x"))
        name = "adam.first.lm_head.weight"
        for change in (
            lambda state: state.pop(name),
            lambda state: state.pop("steps_done"),
            lambda state: state.update(more=torch.zeros(1)),
            lambda state: state.update({name: torch.zeros(257, 31)}),
            lambda state: state.update({name: torch.zeros(257, 32, dtype=torch.float64)}),
        ):
            state = dict(optimizer.state())
            change(state)
            with self.assertRaises(CheckpointError):
                optimizer.load_state(state, "here")


if __name__ == "__main__":
    unittest.main()
