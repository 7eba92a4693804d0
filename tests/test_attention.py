"""Attention within segments: three forms against a loop, and whether a boundary is a wall."""

import dataclasses
import math
import unittest
import warnings
from unittest import mock

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinylm import attention
from tinylm.attention import blocks, dense_mask, flex_mask, seen_within
from tinylm.batches import Plan, gather_packed
from tinylm.config import ModelConfig
from tinylm.corpus import Split
from tinylm.errors import ShapeError
from tinylm.evaluate import evaluate
from tinylm.generate import Context
from tinylm.model import Transformer, rotate
from tinylm.training_step import mean_loss

SMALL = ModelConfig(
    layers=2, width=64, mlp_width=64, heads=4, kv_heads=2, head_size=16, window=64, policy="mask"
)
FORMS = {"dense": dense_mask, "blocks": blocks}
ALL_FORMS = {**FORMS, "flex": flex_mask}

rows_of_lengths = st.lists(st.lists(st.integers(1, 12), max_size=5), min_size=1, max_size=4)


def segments_of(rows: list[list[int]], T: int) -> Tensor:
    """Segments of rows that hold pieces of these lengths."""
    segments_BT = torch.full((len(rows), T), -1)
    for row, lengths in zip(segments_BT, rows, strict=True):
        at = 0
        for number, length in enumerate(lengths):
            row[at : at + length] = number
            at += length
    return segments_BT


def attend_one_by_one(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, segments_BT: Tensor) -> Tensor:
    """Each query by itself: a softmax over the keys of its own piece up to its own position."""
    out = torch.zeros_like(q_BHTK)
    share = q_BHTK.shape[1] // k_BHTK.shape[1]
    for b, h, t in np.ndindex(*q_BHTK.shape[:3]):
        seen = [s for s in range(t + 1) if segments_BT[b, s] == segments_BT[b, t]]
        keys, values = k_BHTK[b, h // share, seen], v_BHTK[b, h // share, seen]
        shares = torch.softmax(keys @ q_BHTK[b, h, t] / math.sqrt(q_BHTK.shape[3]), 0)
        out[b, h, t] = shares @ values
    return out


def awake(config: ModelConfig, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model in which every weight matters, with tables of RoPE that are exact to the dtype."""
    model = Transformer(config, 1).to(dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(dtype) * 0.15)
    half = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
    angles = torch.arange(config.window, dtype=torch.float64)[:, None] * config.rope_theta**-half
    angles = torch.cat([angles, angles], 1)
    model.cos_TK, model.sin_TK = angles.cos().to(dtype), angles.sin().to(dtype)
    return model


def packed(documents: list[bytes], window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and segments of one row that holds all documents, in their order."""
    split = Split.of(documents)
    lengths = np.array([len(document) + 1 for document in documents])
    row = gather_packed(split.stream, split.starts - 1, lengths, np.array([len(documents)]), window)
    inputs, targets, segments = map(torch.from_numpy, row)
    return inputs, targets, segments


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")

    def test_in_a_compiled_graph_nothing_is_checked(self) -> None:
        """`is_compiling` is a constant there, so the checks leave no operation and no guard behind."""
        x = torch.zeros(2, 4, 3, 8)

        def layer(x_BHTK: Tensor) -> Tensor:
            turned = rotate(x_BHTK, x_BHTK[0, 0], x_BHTK[0, 0])
            return attention.attend(turned, turned, x_BHTK)

        with (
            mock.patch("tinylm.attention._check") as attended,
            mock.patch("tinylm.model._check_rotary") as turned,
        ):
            torch.compile(layer, backend="eager", fullgraph=True)(x)
            self.assertEqual((attended.call_count, turned.call_count), (0, 0))
            layer(x)
            self.assertEqual((attended.call_count, turned.call_count), (1, 1))


class TestForms(Case):
    @given(rows_of_lengths, st.sampled_from([(2, 1), (2, 2)]))
    @settings(max_examples=25, deadline=None)
    def test_every_form_equals_a_loop_over_queries(self, rows, heads):
        T = max(4, *map(sum, rows))
        segments_BT = segments_of(rows, T)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (
            torch.randn(len(rows), count, T, 16, generator=generator, dtype=torch.float64)
            for count in (heads[0], heads[1], heads[1])
        )
        expected = attend_one_by_one(q, k, v, segments_BT)
        for name, form in FORMS.items():
            found = attention.attend(q, k, v, form(segments_BT))
            self.assertLess(float((found - expected).abs().max()), 1e-12, name)

    def test_flex_attention_equals_a_loop_over_queries(self):
        segments_BT = segments_of([[5, 1, 7], [13], [], [1] * 9], 13)
        for heads in (1, 2):
            q, k, v = (torch.randn(4, count, 13, 16, dtype=torch.float64) for count in (2, heads, heads))
            with torch.inference_mode():
                found = attention.attend(q, k, v, flex_mask(segments_BT))
            expected = attend_one_by_one(q, k, v, segments_BT)
            self.assertLess(float((found - expected).abs().max()), 1e-12)

    def test_blocks_have_the_gradients_of_the_dense_mask(self):
        segments_BT = segments_of([[40, 3, 17], [64], [1] * 20, []], 64)
        leaves = [torch.randn(4, heads, 64, 16, dtype=torch.float64) for heads in (4, 2, 2)]
        gradients = []
        for form in FORMS.values():
            inputs = [leaf.clone().requires_grad_() for leaf in leaves]
            out = attention.attend(*inputs, form(segments_BT))
            (out * torch.arange(64)[:, None]).sum().backward()
            gradients.append([leaf.grad for leaf in inputs])
        for one, other in zip(*gradients, strict=True):
            self.assertLess(float((one - other).abs().max()), 1e-10)

    @given(rows_of_lengths)
    @settings(max_examples=50, deadline=None)
    def test_blocks_hold_each_position_once_and_little_else(self, rows):
        segments_BT = segments_of(rows, max(4, *map(sum, rows)))
        found = blocks(segments_BT)
        size = segments_BT.numel()
        self.assertEqual(found.order[found.places].tolist(), list(range(size)))
        self.assertEqual(len(set(found.places.tolist())), size)
        self.assertEqual(len(found.order), sum(pieces * length for pieces, length in found.shapes))

    def test_pieces_of_one_length_make_one_block_without_filling(self):
        self.assertEqual(blocks(segments_of([[32, 32], [32, 32]], 64)).shapes, ((4, 32),))
        lengths = [int(length) for length in np.random.default_rng(0).integers(100, 300, 200)]
        found = blocks(segments_of([[length] for length in lengths], 300))
        self.assertLess(len(found.shapes), 30)
        self.assertLess(len(found.order), 1.1 * 200 * 300)

    def test_each_device_gets_its_form(self):
        segments_BT = segments_of([[3, 4]], 8)
        self.assertIsInstance(seen_within(segments_BT), attention.Blocks)
        self.assertEqual(seen_within(segments_BT, compiled=True).dtype, torch.bool)

    def test_segments_that_do_not_count_pieces_are_refused(self):
        model = Transformer(SMALL)
        ids = torch.zeros(2, 3, dtype=torch.int64)
        for row in ([0, 1, 0], [1, 1, 1], [0, 2, 2], [0, -1, 0], [-1, 0, 0], [-2, -2, -2]):
            with self.assertRaisesRegex(ShapeError, "segments: expected 0, 1"):
                model(ids, segments=torch.tensor([[0, 0, 0], row]))
        for row in ([0, 0, 0], [0, 1, 2], [0, -1, -1], [-1, -1, -1]):
            model(ids, segments=torch.tensor([[0, 0, 0], row]))

    def test_a_compiled_loss_has_one_graph_for_all_batches(self):
        from torch._dynamo.testing import CompileCounter

        model = awake(dataclasses.replace(SMALL, layers=1))
        batches = [packed([b"a" * size, b"b" * 9], 64) for size in (5, 20, 33)]
        for form in (dense_mask, flex_mask, torch.clone):  # the last: segments, masked inside the graph
            counter = CompileCounter()
            compiled = torch.compile(mean_loss, dynamic=False, fullgraph=True, backend=counter)
            for inputs, targets, segments in batches:
                total = torch.tensor(1.0)
                with torch.no_grad():  # FlexAttention has no gradients on a CPU
                    found = compiled(model, inputs, targets, total, 0.0, form(segments))
                    expected = mean_loss(model, inputs, targets, total, 0.0, segments)
                self.assertAlmostEqual(float(found), float(expected), places=9)
            self.assertEqual(counter.frame_count, 1, form.__name__)


class TestIsolation(Case):
    """Change document 1: no logit of document 2 may move, unless the policy lets attention read across."""

    def leak(self, model: Transformer, form=None, first: tuple[bytes, bytes] = (b"abcdefgh", b"zyxwvuts")):
        """The largest change of a logit of document 2, and of document 1 itself."""
        logits = []
        for document in first:
            inputs, _, segments = packed([document, b"the second document"], 64)
            with torch.no_grad():
                logits.append(model(inputs, segments=None if form is None else form(segments))[0])
        change = (logits[0] - logits[1]).abs().amax(1)
        return float(change[9 : 9 + 20].max()), float(change[:9].max())

    def test_under_mask_nothing_moves_by_any_path(self):
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            model = awake(SMALL, dtype)
            for name, form in {**ALL_FORMS, "chosen": lambda segments: segments}.items():
                second, first = self.leak(model, form)
                self.assertEqual(second, 0.0, (name, dtype))
                self.assertGreater(first, 0.01, (name, dtype))

    def test_without_the_mask_it_moves(self):
        for dtype in (torch.float64, torch.float32):
            second, _ = self.leak(awake(SMALL, dtype))
            self.assertGreater(second, 0.01)

    def test_a_mask_with_one_hole_moves(self):
        def holed(segments: Tensor) -> Tensor:
            mask = dense_mask(segments).clone()
            mask[0, 0, 9, 8] = True  # the boundary of document 2 sees the last byte of document 1
            return mask

        self.assertGreater(self.leak(awake(SMALL), holed)[0], 1e-4)

    def test_restarted_positions_alone_do_not_isolate(self):
        model = awake(SMALL)
        within = torch.cat([torch.arange(9), torch.arange(55)])
        model.cos_TK, model.sin_TK = model.cos_TK[within], model.sin_TK[within]
        self.assertGreater(self.leak(model)[0], 0.01)

    def test_batches_of_each_policy(self):
        documents = [b"first document", b"2nd", b"the third one"]
        others = [b"FIRST DOCUMENT", b"2nd", b"the third one"]
        for policy, moves in (("cross", True), ("mask", False), ("reset", False)):
            model = awake(dataclasses.replace(SMALL, policy=policy))
            found = []
            for texts in (documents, others):
                split = Split.of(texts)
                batch = Plan(split, policy, 64, 3 if policy == "reset" else 1, 0).batch(0)
                segments = None if batch.segments_BT is None else torch.from_numpy(batch.segments_BT)
                with torch.no_grad():
                    logits_BTV = model(torch.from_numpy(batch.inputs_BT), segments=segments)
                ours = np.isin(batch.targets_BT, list(b"2the nd third one"))  # lower case
                lower = np.isin(batch.inputs_BT, list(b"2ndthirdone"))
                where = np.argwhere(ours & lower)
                found.append({tuple(at): logits_BTV[tuple(at)] for at in where})
            common = [at for at in found[0] if at in found[1]]
            self.assertGreater(len(common), 8, policy)
            change = max(float((found[0][at] - found[1][at]).abs().max()) for at in common)
            self.assertEqual(change > 1e-3, moves, policy)
            if not moves:
                self.assertEqual(change, 0.0, policy)

    def test_generation_reads_what_training_saw(self):
        # The cached path, byte by byte, gives document 2 the logits that it has in a packed row.
        model = awake(SMALL)
        inputs, _, segments = packed([b"abcdefgh", b"the second document"], 64)
        with torch.no_grad():
            expected = model(inputs, segments=segments)[0].numpy()
        ids = inputs[0].tolist()
        for end in (10, 15, 29):
            context = Context(model, ids[:end])
            np.testing.assert_allclose(context.logits(), expected[end - 1], rtol=0, atol=1e-11)
        context = Context(model, ids[:10])
        for position in range(10, 29):
            context.append(ids[position])
            np.testing.assert_allclose(context.logits(), expected[position], rtol=0, atol=1e-11)

    def test_a_cache_and_segments_are_refused_together(self):
        model = awake(SMALL)
        with self.assertRaisesRegex(ShapeError, "one of the two"):
            model(torch.zeros(1, 4, dtype=torch.int64), model.new_cache(), segments=segments_of([[4]], 4))
        with self.assertRaisesRegex(ShapeError, "segments"):
            model(torch.zeros(1, 4, dtype=torch.int64), segments=segments_of([[5]], 5))


class TestLoss(unittest.TestCase):
    TEXTS = (b"a short one", b"b", "Grüße aus einem dritten Dokument".encode())

    def loss(self, model: Transformer, documents: list[bytes], form) -> tuple[float, list[Tensor]]:
        inputs, targets, segments = packed(documents, sum(len(text) + 1 for text in documents) + 3)
        model.zero_grad()
        loss = mean_loss(model, inputs, targets, torch.tensor(1.0), 0.0, form(segments))
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in model.parameters()]

    def test_the_losses_of_documents_add_up_to_that_of_their_pack_and_so_do_gradients(self):
        model = awake(SMALL)
        for form in FORMS.values():
            whole, gradient = self.loss(model, list(self.TEXTS), form)
            alone = [self.loss(model, [text], form) for text in self.TEXTS]
            self.assertAlmostEqual(whole, sum(loss for loss, _ in alone), delta=1e-11)
            for index, together in enumerate(gradient):
                apart = sum(gradients[index] for _, gradients in alone)
                self.assertTrue(bool(torch.isfinite(together).all()))
                self.assertLess(float((together - apart).abs().max()), 1e-11)

    def test_without_the_mask_they_do_not(self):
        model = awake(SMALL)
        whole, _ = self.loss(model, list(self.TEXTS), lambda segments: None)
        alone = sum(self.loss(model, [text], lambda segments: None)[0] for text in self.TEXTS)
        self.assertGreater(abs(whole - alone), 0.01)

    def test_with_the_tables_of_a_float32_model_they_add_up_to_their_rounding(self):
        model = awake(SMALL).float()
        model.cos_TK, model.sin_TK = (table.float() for table in (model.cos_TK, model.sin_TK))
        whole, _ = self.loss(model, list(self.TEXTS), blocks)
        alone = sum(self.loss(model, [text], blocks)[0] for text in self.TEXTS)
        self.assertAlmostEqual(whole, alone, delta=1e-3)

    def test_padding_neither_counts_nor_makes_gradients_that_are_not_finite(self):
        model = awake(SMALL)
        for form in FORMS.values():
            inputs, targets, segments = packed([b"abc"], 64)
            short = mean_loss(
                model, inputs[:, :4], targets[:, :4], torch.tensor(1.0), 0.0, form(segments[:, :4])
            )
            long = mean_loss(model, inputs, targets, torch.tensor(1.0), 0.0, form(segments))
            self.assertAlmostEqual(short.item(), long.item(), delta=1e-12)

    def test_evaluating_a_masked_model_is_evaluating_each_document_alone(self):
        model = awake(dataclasses.replace(SMALL, window=16))
        bits, size = 0.0, 0
        for text in self.TEXTS:
            result = evaluate(model, Split.of([text]))
            bits, size = bits + result.bits_per_byte * result.bytes, size + result.bytes
        together = evaluate(model, Split.of(self.TEXTS))
        self.assertAlmostEqual(together.bits_per_byte, bits / size, delta=1e-12)
        self.assertEqual((together.boundaries, together.policy), (3, "mask"))
        across = evaluate(awake(dataclasses.replace(SMALL, window=16, policy="cross")), Split.of(self.TEXTS))
        self.assertGreater(abs(across.bits_per_byte - together.bits_per_byte), 1e-3)


if __name__ == "__main__":
    unittest.main()
