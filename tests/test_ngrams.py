"""N-grams: their rows against a brute-force twin, documents apart, and rows trained as in the formulas."""

import dataclasses
import functools
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from tinylm import checkpoint, trainer
from tinylm.config import ModelConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import build_corpus
from tinylm.devices import Machine
from tinylm.distributed.ranks import ALONE
from tinylm.errors import ConfigError, ShapeError
from tinylm.interop.shape import check_qwen3_shape
from tinylm.model import Transformer, parameter_count
from tinylm.ngrams import rows_of
from tinylm.optimizer import SHARE_OF_NEWEST, Optimizer, clip_gradients
from tinylm.plan.tensors import tensor_shapes
from tinylm.training_step import compiled, mean_loss

TINY = ModelConfig(
    layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=24, ngrams=4, ngram_rows=64
)
ROOMY = dataclasses.replace(TINY, ngram_rows=2**20)


def some_ids(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    """Few different ids, so that n-grams come again, and boundaries among them."""
    drawn = np.random.default_rng(seed).integers(0, 4, (rows, length))
    return torch.from_numpy(np.where(drawn == 3, DOC_BOUNDARY, drawn + 97))


def windows(ids: list[int], segments: list[int], place: int, n: int) -> tuple[int, ...]:
    """The last n tokens, newest first; the boundary for all that another document or nothing gives."""
    found, over = [], False
    for back in range(n):
        at = place - back
        over = over or at < 0 or segments[at] != segments[place]
        found.append(DOC_BOUNDARY if over else ids[at])
        over = over or found[-1] == DOC_BOUNDARY
    return tuple(found)


def awake(config: ModelConfig) -> Transformer:
    model = Transformer(config).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.2)
    return model


class TestRows(unittest.TestCase):
    def test_equal_ngrams_and_no_others_have_equal_rows(self):
        ids = some_ids(3, 40)
        pieces = torch.from_numpy(np.sort(np.random.default_rng(1).integers(0, 4, (3, 40)), axis=1))
        for segments in (None, pieces):
            rows = rows_of(ids, 40, ROOMY, segments)
            of_window: dict[tuple[int, tuple[int, ...]], int] = {}
            for row in range(3):
                belongs = [0] * 40 if segments is None else segments[row].tolist()
                for place in range(40):
                    for n in (2, 3, 4):
                        window = windows(ids[row].tolist(), belongs, place, n)
                        found = int(rows[row, place, n - 2])
                        self.assertEqual(of_window.setdefault((n, window), found), found)
                        self.assertTrue(0 <= found - (n - 2) * ROOMY.ngram_rows < ROOMY.ngram_rows)
            self.assertGreater(len(of_window), 60)
            self.assertEqual(len(set(of_window.values())), len(of_window))  # a million rows for these few

    def test_rows_are_spread_evenly(self):
        ids = torch.arange(256)[:, None] * torch.tensor([1, 0]) + torch.tensor([0, 65])
        rows = rows_of(ids, 1, dataclasses.replace(TINY, ngrams=2, ngram_rows=256)).reshape(-1)
        taken = len(set(rows.tolist()))
        # 256 balls into 256 urns fill 162 of them, give or take 6 (one standard deviation).
        self.assertTrue(taken > 162 - 30, taken)

    def test_a_hash_is_what_the_format_says(self):
        # In Python's integers, cut to 64 bits: what a checkpoint's rows mean may never change.
        mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15
        hashed, expected = 0, []
        for back, token in enumerate((99, 98, 97)):
            product = (hashed ^ token) * golden & mask
            hashed = product ^ product >> 29
            if back:
                expected.append((hashed * golden & mask) >> (64 - 6) | (back - 1) * 64)
        config = dataclasses.replace(TINY, ngrams=3)
        self.assertEqual(rows_of(torch.tensor([[97, 98, 99]]), 1, config).tolist(), [[expected]])

    def test_only_the_last_places_are_wanted_but_all_are_looked_at(self):
        ids = some_ids(2, 12)
        for count in range(1, 13):
            self.assertTrue(torch.equal(rows_of(ids, count, TINY), rows_of(ids, 12, TINY)[:, 12 - count :]))

    def test_wrong_ids_are_refused(self):
        with self.assertRaisesRegex(ShapeError, "ids_BS"):
            rows_of(torch.zeros(3), 1, TINY)


class TestModel(unittest.TestCase):
    def test_what_they_add_is_the_sum_of_the_rows(self):
        model, ids = awake(TINY), some_ids(2, 9)
        with torch.no_grad():
            table = model.model.ngrams.weight
            x = model.model.embed_tokens.weight[ids] + table[model.ngram_rows(ids)].sum(dim=2)
            torch.testing.assert_close(model.embed(ids, model.ngram_rows(ids)), x)

    def test_cache_and_slots_remember_what_ngrams_reach_back_to(self):
        model, ids = awake(TINY), some_ids(2, 20)
        with torch.no_grad():
            whole = model(ids)
            for cuts in ([1] * 20, [3, 1, 9, 7], [19, 1]):
                cache, slots, place = model.new_cache(2), model.new_slots(4), 0
                for length in cuts:
                    piece = ids[:, place : place + length]
                    expected = whole[:, place : place + length]
                    torch.testing.assert_close(model(piece, cache=cache), expected)
                    torch.testing.assert_close(model(piece, cache=slots.at(1, [place, place])), expected)
                    place += length
            slots.copy(1, 3, 10)
            torch.testing.assert_close(model(ids[:1, 10:12], cache=slots.at(3, [10])), whole[:1, 10:12])

    def test_documents_of_a_packed_row_stay_apart(self):
        model = awake(dataclasses.replace(TINY, policy="mask"))
        one, two = some_ids(1, 7, 3), some_ids(1, 9, 4)
        segments = torch.tensor([[0] * 7 + [1] * 9])
        with torch.no_grad():
            packed = model(torch.cat([one, two], dim=1), segments=segments)
            torch.testing.assert_close(packed[:, :7], model(one))
            torch.testing.assert_close(packed[:, 7:], model(two))
        with self.assertRaisesRegex(ShapeError, "ngram_rows"):
            model(one, segments=torch.ones(1, 1, 7, 7, dtype=torch.bool))

    def test_first_loss_and_counts(self):
        model = Transformer(TINY)
        self.assertEqual(float(model.model.ngrams.weight.detach().abs().max()), 0.0)
        self.assertEqual(parameter_count(TINY), sum(p.numel() for p in model.parameters()))
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self.assertEqual(list(tensor_shapes(TINY).items()), list(shapes.items()))

    def test_a_model_without_them_writes_what_it_always_wrote(self):
        plain = dataclasses.replace(TINY, ngrams=0, ngram_rows=32_768)
        self.assertNotIn("ngrams", plain.to_dict())
        self.assertEqual(ModelConfig.from_dict(plain.to_dict(), "here"), plain)
        self.assertEqual(ModelConfig.from_dict(TINY.to_dict(), "here"), TINY)

    def test_options_are_checked_and_exports_refused_by_name(self):
        for wrong, told in (({"ngrams": 1}, "at least 2"), ({"ngram_rows": 100}, "power of two")):
            with self.assertRaisesRegex(ConfigError, told):
                dataclasses.replace(TINY, **wrong).check()
        with self.assertRaisesRegex(ConfigError, "ngrams is 4"):
            check_qwen3_shape(TINY, "llama.cpp")


class TestTraining(unittest.TestCase):
    def step(self, model: Transformer, optimizer: Optimizer, ids: torch.Tensor) -> None:
        loss = mean_loss(model, ids[:, :-1], ids[:, 1:].contiguous(), torch.tensor(float(ids.numel())), 0.0)
        torch.autograd.backward(loss)

    def test_rows_move_by_rmsprop_and_only_those_that_were_read(self):
        config = TrainConfig(data="x", ngram_rate=0.03)
        model = awake(TINY)
        optimizer = Optimizer(model, config)
        table = model.model.ngrams.weight
        expected, squares = table.detach().clone(), torch.zeros(len(table), dtype=torch.float64)
        for number in range(3):
            ids = some_ids(2, 8, number)
            self.step(model, optimizer, ids)
            gradient = table.grad.to_dense()
            read = model.ngram_rows(ids[:, :-1]).unique()
            self.assertLess(len(read), len(table))
            for row in read.tolist():
                squares[row] = (1 - SHARE_OF_NEWEST) * squares[row] + SHARE_OF_NEWEST * (
                    gradient[row] ** 2
                ).mean()
                expected[row] -= 0.03 * 0.5 * gradient[row] / (squares[row].sqrt() + 1e-10)
            optimizer.step(0.5)
            optimizer.zero_grad()
        torch.testing.assert_close(table.detach(), expected)
        torch.testing.assert_close(optimizer.state()["rms.model.ngrams.weight"], squares)

    def test_dropout_leaves_ngrams_out_and_keeps_the_mean(self):
        model, ids = awake(TINY), some_ids(2, 20)
        rows = model.ngram_rows(ids)
        torch.manual_seed(0)
        with torch.no_grad():
            whole = model.model.ngrams(rows)
            draws = torch.stack([model.model.ngrams(rows, 0.25) for _ in range(4000)])
        # Each of 3 n-grams is there or not: the mean of 4,000 draws is within five standard errors.
        spread = (model.model.ngrams.weight.detach()[rows] ** 2 / 3).sum(dim=2).sqrt()
        self.assertLess(float(((draws.mean(dim=0) - whole).abs() / spread).max()), 5 / 4000**0.5)
        self.step(model, Optimizer(model, TrainConfig(data="x")), ids)
        every = set(model.model.ngrams.weight.grad.coalesce().indices()[0].tolist())
        model.model.ngrams.weight.grad = None
        model.model.ngrams(rows, 0.9).sum().backward()
        kept = set(model.model.ngrams.weight.grad.coalesce().indices()[0].tolist())
        self.assertTrue(kept < set(rows.unique().tolist()), (len(kept), len(every)))

    def test_micro_batches_add_up(self):
        ids = some_ids(4, 9)
        whole, parts = awake(TINY), awake(TINY)
        self.step(whole, Optimizer(whole, TrainConfig(data="x")), ids)
        total = torch.tensor(float(ids.numel()))
        for rows in (ids[:1], ids[1:]):
            loss = mean_loss(parts, rows[:, :-1], rows[:, 1:].contiguous(), total, 0.0)
            torch.autograd.backward(loss)
        for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
            torch.testing.assert_close(
                one.grad.to_dense() if one.grad.is_sparse else one.grad,
                other.grad.to_dense() if other.grad.is_sparse else other.grad,
            )

    def test_a_compiled_step_leaves_them_out_of_its_graphs_and_gives_the_same_gradients(self):
        graphs, compile_ = [], torch.compile

        def noted(graph: torch.fx.GraphModule, _inputs: object) -> object:
            graphs.append(str(graph.graph))
            return graph.forward

        ids = some_ids(2, 25)
        total, found = torch.tensor(48.0, dtype=torch.float64), []
        with mock.patch("torch.compile", functools.partial(compile_, backend=noted)):
            for compiling in (False, True):
                model = awake(TINY)
                loss = compiled(Machine("cpu", "float64", compiling, 1), model)
                loss(model, ids[:, :-1], ids[:, 1:], total, 0.0).backward()
                gradient = model.model.ngrams.weight.grad
                self.assertTrue(gradient.is_sparse)
                found.append(gradient.to_dense())
        torch.testing.assert_close(found[1], found[0])
        self.assertIn("scaled_dot_product_attention", "".join(graphs))
        self.assertNotIn("embedding_bag", "".join(graphs))

    def test_the_norm_is_that_of_all_gradients(self):
        model = awake(TINY)
        optimizer = Optimizer(model, TrainConfig(data="x"))
        self.step(model, optimizer, some_ids(2, 8))
        dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad.clone() for p in optimizer.parameters()]
        norm = float(torch.cat([g.reshape(-1) for g in dense]).norm())
        self.assertAlmostEqual(float(clip_gradients(optimizer.parameters(), norm / 4)), norm, places=9)
        for parameter, gradient in zip(optimizer.parameters(), dense, strict=True):
            found = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            torch.testing.assert_close(found, gradient / 4)

    def test_a_run_goes_on_bit_for_bit_and_is_alone(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            texts = [f"document {number}: the quick brown fox, {number} times\n" for number in range(60)]
            corpus = build_corpus(texts, folder / "corpus")
            for policy in ("cross", "mask"):
                shape = dataclasses.replace(TINY, policy=policy, window=16)
                values = {"data": str(corpus.path), "model": shape, "steps": 5, "batch_rows": 4}
                values |= {"sample_tokens": 0, "evaluate_every": 5, "clip": 1.0}
                config = TrainConfig(**values, out=str(folder / f"whole-{policy}"))
                whole = trainer.train(config).run
                half = dataclasses.replace(config, out=str(folder / f"part-{policy}"), stop_after=2)
                part = trainer.train(half).run
                trainer.resume(part, stop_after=5)
                for kept in ("model.safetensors", "training.safetensors"):
                    one, two = (checkpoint.step_folder(run, 5) / kept for run in (whole, part))
                    self.assertEqual(one.read_bytes(), two.read_bytes())
            ranks = dataclasses.replace(ALONE, size=2)
            with self.assertRaisesRegex(ConfigError, "by 2 ranks; use --ngrams 0"):
                from tinylm.devices import choose_machine
                from tinylm.reports import Report

                model = Transformer(shape)
                trainer.prepare(folder / "x", config, choose_machine(config), corpus, model, Report(), ranks)


if __name__ == "__main__":
    unittest.main()
