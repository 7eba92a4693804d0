"""What `benchmarks/tricks.py` does to a run, beside the plain one; nothing here looks at a clock."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

from tests.test_benchmarks import FOLDER
from tinylm import attention, optimizer, trainer
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import build_corpus, open_corpus
from tinylm.devices import choose_machine
from tinylm.model import Transformer
from tinylm.reports import Report
from tinylm.training_step import Run, train_step

with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
    tricks: Any = importlib.import_module("tricks")

SHAPE = ModelConfig(layers=2, width=32, mlp_width=64, heads=2, kv_heads=2, head_size=16, window=16)


class TestTricks(unittest.TestCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.folder = Path(place.name)
        build_corpus("builtin:unicode", cls.folder / "corpus", CorpusConfig(max_documents=40, truncate=True))

    def setUp(self) -> None:
        self.applied = contextlib.ExitStack()
        self.addCleanup(self.applied.close)

    def run_of(self, trick: Any = None, **changes: Any) -> Run:
        """A run as `trainer.train` would prepare it; the trick is at work until the next run is asked for."""
        self.applied.close()
        self.applied.enter_context(tricks.applied(trick))
        corpus = open_corpus(self.folder / "corpus")
        config = TrainConfig(
            data=str(corpus.path), model=SHAPE, **{"steps": 14, "batch_rows": 8, "device": "cpu", **changes}
        )
        machine = choose_machine(config)
        return trainer.prepare(self.folder, config, machine, corpus, Transformer(SHAPE, 0), Report())

    def test_afterwards_the_library_is_as_it_was(self) -> None:
        rooms = (trainer.prepare, optimizer.orthogonal, optimizer.orthogonalize)
        for trick in (tricks.three_iterations, tricks.normalised_rows):
            with self.subTest(trick.__name__), self.assertRaises(KeyError), tricks.applied(trick):
                self.assertIsNot(trainer.prepare, rooms[0])
                trick(Transformer(SHAPE, 0), None)
                raise KeyError
            self.assertEqual((trainer.prepare, optimizer.orthogonal, optimizer.orthogonalize), rooms)

    def test_few_rows_first_read_the_same_rows_in_the_same_order(self) -> None:
        plain, changed = self.run_of(steps=8), self.run_of(tricks.few_rows_first)
        batches = [changed.plan.batch(step) for step in range(14)]
        self.assertEqual([len(batch.inputs_BT) for batch in batches], [2] * 8 + [4] * 4 + [8] * 2)
        rows = np.concatenate([batch.inputs_BT for batch in batches])
        wanted = np.concatenate([plain.plan.batch(step).inputs_BT for step in range(8)])
        np.testing.assert_array_equal(rows, wanted[: len(rows)])

    def test_short_rows_first_read_as_many_tokens_in_each_step(self) -> None:
        run = self.run_of(tricks.short_rows_first)
        shapes = [run.plan.batch(step).inputs_BT.shape for step in range(14)]
        self.assertEqual(shapes, [(32, 4)] * 4 + [(16, 8)] * 4 + [(8, 16)] * 6)
        self.assertTrue(math.isfinite(train_step(run, run.plan.batch(0), 0, 1.0)[0]))

    def test_two_bytes_count_half_at_first_and_nothing_in_the_end(self) -> None:
        run = self.run_of(tricks.two_bytes, steps=3)
        batch = run.plan.batch(0)
        later = int((batch.targets_BT[:, 1:] >= 0).sum())
        first = train_step(run, batch, 0, 1.0)[0]  # both heads are zero: each target costs ln 257
        self.assertAlmostEqual(first, math.log(257) * (1 + 0.5 * later / batch.targets), places=5)
        losses = [train_step(run, batch, step, 0.0)[0] for step in (1, 2, 3)]  # nothing moves any more

        plain = self.run_of()
        plain.model.load_state(dict(run.model.named_parameters()), "run")
        alone = train_step(plain, batch, 0, 0.0)[0]
        head_VD = run.optimizer.others["second_head"]
        hidden: list[torch.Tensor] = []
        plain.model.model.norm.register_forward_hook(lambda norm, given, output: hidden.append(output))
        plain.model(torch.from_numpy(batch.inputs_BT))
        scores = (hidden[0] @ head_VD.T).log_softmax(-1)
        B, T = batch.targets_BT.shape
        costs = [
            -float(scores[b, t, batch.targets_BT[b, t + 1]].detach())
            for b in range(B)
            for t in range(T - 1)
            if batch.targets_BT[b, t + 1] >= 0
        ]
        for loss, weight in zip(losses, (1 / 3, 1 / 6, 0.0), strict=True):
            self.assertAlmostEqual(loss, alone + weight * sum(costs) / batch.targets, places=4)
        self.assertFalse([name for name in run.optimizer.state() if "second_head" in name])

    def test_the_embedding_shortcut_adds_nothing_at_first_and_learns(self) -> None:
        plain, changed = self.run_of(), self.run_of(tricks.embedding_shortcut)
        batch = plain.plan.batch(0)
        self.assertEqual(train_step(plain, batch, 0, 1.0), train_step(changed, batch, 0, 1.0))
        train_step(changed, changed.plan.batch(1), 1, 1.0)
        multiples = [p for name, p in changed.model.named_parameters() if name.endswith("shortcut")]
        self.assertEqual(len(multiples), SHAPE.layers - 1)
        self.assertNotEqual(multiples[0].item(), 0.0)

        wide = Transformer(SHAPE, 0)
        tricks.embedding_shortcut(wide, None)
        layers: Any = wide.model.layers
        nn.init.constant_(layers[1].shortcut, 2.0)
        read: list[torch.Tensor] = []
        for layer in layers:
            layer.input_layernorm.register_forward_pre_hook(lambda norm, given: read.append(given[0]))
        wide(torch.arange(5)[None])  # the layers write nothing yet: what the second reads is 1 + 2 embeddings
        torch.testing.assert_close(read[1], 3 * read[0])

    def test_five_steps_of_the_librarys_coefficients_are_the_librarys(self) -> None:
        matrices = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(1))
        own = tricks.iterated([optimizer.NEWTON_SCHULZ] * 5)(matrices)
        self.assertTrue(torch.equal(own, optimizer.orthogonalize(matrices)))
        values = torch.linalg.svdvals(
            tricks.iterated([(a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in tricks.POLAR])(matrices)
        )
        self.assertLess(float((values - 1).abs().max()), 0.2)

    def test_rows_of_equal_size_at_first_and_an_update_of_the_same_norm(self) -> None:
        before = optimizer.orthogonal
        self.run_of(tricks.normalised_rows)
        updates = list(torch.randn(2, 24, 16, generator=torch.Generator().manual_seed(2)))
        for plain, changed in zip(before(updates), optimizer.orthogonal(updates), strict=True):
            self.assertAlmostEqual(float(changed.norm()), float(plain.norm()), places=4)
            rows = changed.norm(dim=1)
            torch.testing.assert_close(rows, rows.mean().expand(24), rtol=1e-4, atol=1e-5)
            self.assertGreater(float(plain.norm(dim=1).std()), 1e-2)

    def test_layouts_and_two_products_change_no_number_that_matters(self) -> None:
        ids = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(3))
        plain = self.run_of()
        train_step(plain, plain.plan.batch(0), 0, 1.0)  # or the layers write nothing
        wanted = plain.model(ids)
        for trick in (tricks.columns_first, tricks.heads_apart, tricks.two_products):
            with self.subTest(trick.__name__):
                run = self.run_of(trick)
                run.model.load_state(dict(plain.model.named_parameters()), "run")
                torch.testing.assert_close(run.model(ids), wanted, rtol=1e-4, atol=1e-5)
        gate: Any = self.run_of(tricks.columns_first).model.model.layers[0]
        self.assertEqual(gate.mlp.gate_proj.weight.stride(), (1, SHAPE.mlp_width))
        with mock.patch.object(attention, "attend", side_effect=AssertionError("the kernel was asked")):
            self.run_of(tricks.two_products).model(ids)


class TestAblations(unittest.TestCase):
    def test_every_variant_is_a_configuration(self) -> None:
        with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
            ablations: Any = importlib.import_module("ablations")
        for name, variant in ablations.VARIANTS.items():
            with self.subTest(name):
                model = dataclasses.replace(ablations.PRESETS[variant.base], **variant.model)
                self.assertEqual(TrainConfig(data="x", model=model, steps=1, **variant.run).problems(), [])
        for group in ablations.GROUPS.values():  # a name in two groups means the same
            self.assertEqual({name: ablations.VARIANTS[name] for name in group}, group)
