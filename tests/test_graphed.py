"""The step for CUDA graphs, by the same logic on a CPU: fixed buffers, one compiled graph, no recording."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch._dynamo.config
from torch import Tensor

from tinylm.config import GenerateConfig, ModelConfig
from tinylm.errors import RequestError
from tinylm.generate import Engine, Sampled, Task
from tinylm.generate.graphed import GraphedReader
from tinylm.generate.reader import Reader
from tinylm.model import Transformer

SHAPE = ModelConfig(layers=2, width=32, mlp_width=32, heads=2, kv_heads=1, head_size=32, window=96)


def random_model() -> Transformer:
    model = Transformer(SHAPE, seed=1).requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.2, generator=generator)
    return model


class Recording:
    """Stands in for a CUDA graph: one output that every call writes again, and calls that were counted."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.recorded += 1
        found = step().clone()
        return lambda: found.copy_(step())


class TestGraphedReader(unittest.TestCase):
    def setUp(self) -> None:
        # Every size and every reader is compiled on its own: none of them is one graph too many.
        limited = torch._dynamo.config.patch(recompile_limit=1)
        limited.__enter__()
        self.addCleanup(limited.__exit__, None, None, None)

    def alike(self, record: Recording, slots: int) -> None:
        """Prompts in some slots, then steps in changing sets of them, also to the end of the window."""
        model = random_model()
        plain = Reader(model, slots, fast=True)
        fixed = GraphedReader(model, slots, backend="eager", record=record)
        draw = np.random.default_rng(0)
        places = {0: 5, slots - 1: 90}
        for slot, length in places.items():
            ids = draw.integers(0, 256, length).tolist()
            for reader in (plain, fixed):
                reader.chunk(slot, 0, ids)
        for number in range(6):
            busy = [slot for slot in places if number % 3 == 0 or slot == sorted(places)[number % 2]]
            tokens = {slot: (places[slot], [int(draw.integers(0, 257))]) for slot in busy}
            expected, found = plain.step(tokens), fixed.step(tokens)
            self.assertEqual(set(found), set(busy))
            for slot in busy:
                np.testing.assert_allclose(found[slot], expected[slot], rtol=1e-4, atol=1e-4)
                places[slot] += 1

    def test_steps_on_fixed_buffers_give_what_the_reader_gives(self) -> None:
        record = Recording()
        self.alike(record, 3)
        self.assertEqual(record.recorded, 2)

    def test_what_is_recorded_while_others_are_busy_changes_nothing_of_theirs(self) -> None:
        model = random_model()
        plain, fixed = (
            Reader(model, 4, fast=True),
            GraphedReader(model, 4, backend="eager"),
        )
        for reader in (plain, fixed):
            reader.chunk(3, 0, list(range(60)))
        for tokens in ({0: (0, [7])}, {0: (1, [8]), 1: (0, [9, 5])}, {3: (60, [10]), 0: (2, [11])}):
            expected, found = plain.step(tokens), fixed.step(tokens)
            for slot in tokens:
                np.testing.assert_allclose(found[slot], expected[slot], rtol=1e-4, atol=1e-4)

    def test_an_engine_with_recorded_steps_samples_what_a_fast_one_does(self) -> None:
        found = []
        for engine in (Engine(random_model(), 3, fast=True), Engine(random_model(), 3, graphed="eager")):
            ids: dict[int, list[int]] = {seed: [] for seed in range(3)}
            config = GenerateConfig(max_tokens=6, temperature=1.0)
            running = {
                engine.start(Task(tuple(range(1 + 9 * seed)), replace(config, seed=seed))): seed
                for seed in ids
            }
            while engine.running:
                for generation, outcome in engine.step():
                    assert isinstance(outcome, Sampled)
                    ids[running[generation]].append(outcome.token)
            found.append(ids)
        self.assertEqual(found[0], found[1])

    def test_models_that_it_does_not_know_are_refused(self) -> None:
        model = Transformer(replace(SHAPE, ngrams=2, ngram_rows=64))
        with self.assertRaisesRegex(RequestError, "n-grams"):
            Engine(model, graphed="eager")

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_on_cuda_the_recorded_step_gives_what_the_reader_gives(self) -> None:
        model = random_model().to("cuda")
        plain, fixed = Reader(model, 4, fast=True), GraphedReader(model, 4)
        for reader in (plain, fixed):
            reader.chunk(1, 0, list(range(60)))
        for number in range(8):
            tokens = {1: (60 + number, [65 + number]), 2: (number, [97 + number])}
            expected, found = plain.step(tokens), fixed.step(tokens)
            for slot in tokens:
                np.testing.assert_allclose(found[slot], expected[slot], rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    unittest.main()
