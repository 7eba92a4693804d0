"""Stage 08: attention against loops and against NumPy; nothing reads its future, to the last bit."""

from __future__ import annotations

import unittest
import unittest.mock

import numpy as np
import torch
import torch.nn.functional as F

from tests.stage_support import load_stage, run_stage
from tinylm.attention import attend
from tinylm.model import Transformer


def random_model(seed: int = 0) -> Transformer:
    """The stage's model with every weight drawn, so that no path through it is closed by a zero."""
    model = Transformer(load_stage(8).CONFIG)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2, generator=generator)
    return model


def random_heads(heads: int, groups: int, length: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(2, count, length, 8, generator=generator, dtype=torch.float64)
        for count in (heads, groups, groups)
    )


class AttentionByHand(unittest.TestCase):
    def test_the_page_s_example(self) -> None:
        # Two positions, head size 1: the second query's scores are 0 and ln 3, its weights 1/4 and 3/4.
        q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, 1, 2, 1) for x in ((5, 1), (0, 0), (8, 4)))
        k[0, 0, 1] = np.log(3)
        result = load_stage(8).attention_by_hand(q, k, v)[0, 0, :, 0]
        np.testing.assert_allclose(result.numpy(), [8, 8 / 4 + 4 * 3 / 4], atol=1e-12)

    def test_loops_equal_the_kernel_and_the_model_s_own_attention(self) -> None:
        for heads, groups in ((4, 4), (4, 2), (2, 1)):
            q, k, v = random_heads(heads, groups, 9)
            by_hand = load_stage(8).attention_by_hand(q, k, v)
            kernel = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            np.testing.assert_allclose(by_hand.numpy(), kernel.numpy(), atol=1e-12)
            np.testing.assert_allclose(by_hand.numpy(), attend(q, k, v).numpy(), atol=1e-12)

    def test_loops_equal_matrices_in_numpy(self) -> None:
        q, k, v = (x.numpy() for x in random_heads(3, 3, 7))
        scores = np.where(np.tril(np.ones((7, 7), bool)), q @ k.swapaxes(2, 3) / np.sqrt(8), -np.inf)
        weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
        by_hand = load_stage(8).attention_by_hand(*map(torch.from_numpy, (q, k, v)))
        np.testing.assert_allclose(by_hand.numpy(), weights @ v, atol=1e-12)


class TheFuture(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(8)
        self.model = random_model()
        self.ids_T = torch.randint(0, 257, (32,), generator=torch.Generator().manual_seed(2))

    def test_no_logit_depends_on_a_later_token_not_even_in_its_last_bit(self) -> None:
        moved_TT = self.stage.moved(self.model, self.ids_T)
        self.assertEqual(moved_TT.tril(-1).count_nonzero(), 0)

    def test_every_logit_depends_on_its_own_and_every_earlier_token(self) -> None:
        moved_TT = self.stage.moved(self.model, self.ids_T)
        self.assertEqual(moved_TT.triu(0).count_nonzero(), 32 * 33 // 2)

    def test_gradients_say_the_same(self) -> None:
        embedded: list[torch.Tensor] = []
        hook = self.model.model.embed_tokens.register_forward_hook(lambda *given: embedded.append(given[2]))
        logits_TV = self.model(self.ids_T[None])[0]
        hook.remove()
        slope_TD = torch.autograd.grad(logits_TV[10].sum(), embedded[0])[0][0]
        self.assertEqual(slope_TD[11:].count_nonzero(), 0)
        self.assertTrue((slope_TD[:11].abs().amax(dim=1) > 0).all())

    def test_a_missing_mask_is_seen(self) -> None:
        with self.stage.UNMASKED:
            moved_TT = self.stage.moved(self.model, self.ids_T)
        self.assertEqual(moved_TT.count_nonzero(), 32 * 32)
        self.assertEqual(self.stage.moved(self.model, self.ids_T).tril(-1).count_nonzero(), 0)

    def test_a_model_that_looks_one_token_ahead_is_seen(self) -> None:
        def one_too_many(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
            T = q.shape[2]
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=torch.ones(T, T, dtype=torch.bool).tril(1), enable_gqa=True
            )

        with unittest.mock.patch("tinylm.model.attend", one_too_many):
            moved_TT = self.stage.moved(self.model, self.ids_T)
        self.assertGreater(moved_TT.diagonal(-1).min(), 0)


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(8), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


if __name__ == "__main__":
    unittest.main()
