"""The engine: what a generation gives depends on its task alone, bit for bit, whatever runs beside it."""

from __future__ import annotations

import functools
import gc
import math
import unittest
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripted import ScriptedModel, scripted
from tests.test_generate import random_transformer
from tinylm.config import PRESETS, GenerateConfig, ModelConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.errors import RequestError, TinylmError
from tinylm.generate import Engine, Generation, Sampled, Task, generate, independence, native
from tinylm.generate.reader import Reader, spans

SMALL = ModelConfig(layers=2, width=64, mlp_width=96, heads=4, kv_heads=2, head_size=32, window=48)
CHUNK = 8
Ending = tuple[tuple[int, ...], bytes]


@functools.cache
def small(seed: int = 0) -> torch.nn.Module:
    return random_transformer(SMALL, seed).requires_grad_(False)


@functools.cache
def packed_too() -> torch.nn.Module:
    """Another model, in oneDNN's layout."""
    return random_transformer(replace(SMALL, tied=True, kv_heads=4), 1).requires_grad_(False)


@dataclass
class Seen:
    """What a generation gave: its ids, and the bits of the logits that each was drawn from."""

    ids: list[int]
    logits: list[bytes]
    error: str = ""

    def add(self, outcome: Sampled | TinylmError) -> None:
        if isinstance(outcome, TinylmError):
            self.error = str(outcome)
        else:
            self.ids.append(outcome.token)
            self.logits.append(outcome.logits_V.tobytes())


def run_all(engine: Engine, tasks: Sequence[Task]) -> list[Seen]:
    """Every task to its end, as many at once as fit, started in order."""
    waiting = list(enumerate(tasks))
    seen = [Seen([], []) for _ in tasks]
    running: dict[Generation, int] = {}
    while waiting or engine.running:
        while waiting and engine.free:
            index, task = waiting.pop(0)
            running[engine.start(task)] = index
        for generation, outcome in engine.step():
            seen[running[generation]].add(outcome)
    return seen


KNOWN: dict[tuple[torch.nn.Module, int, str | None, str], Seen] = {}


def in_pytorch() -> AbstractContextManager[object]:
    """As where there is no compiler."""
    return mock.patch.object(native, "obstacle", return_value="a test wants it so")


def alone(model: torch.nn.Module, task: Task) -> Seen:
    """What a task gives in an engine of its own; worked out once for each model and layout of weights."""
    key = (model, independence.PACKED_FROM, native.obstacle(model), str(task))
    if key not in KNOWN:
        KNOWN[key] = run_all(Engine(model, 1, chunk=CHUNK), [replace(task, reuse=False)])[0]
    return KNOWN[key]


def alone_scripted(logits_PV: np.ndarray, task: Task) -> list[int]:
    return run_all(Engine(ScriptedModel(logits_PV)), [task])[0].ids


def some_task(seed: int, length: int, tokens: int, shared: int = 0) -> Task:
    """A task with a prompt of `length` ids, of which the first `shared` are those of other tasks."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY_SIZE, length)
    ids[:shared] = np.random.default_rng(99).integers(0, VOCABULARY_SIZE, 100)[: min(shared, length)]
    config = GenerateConfig(max_tokens=tokens, seed=seed, temperature=1.0)
    return Task(tuple(ids.tolist()), config)


tasks = st.builds(
    some_task, st.integers(0, 5), st.sampled_from((1, 8, 20, 43)), st.integers(1, 8), st.sampled_from((0, 17))
)


class ResultsDoNotDependOnNeighbours(unittest.TestCase):
    def check(self, model: torch.nn.Module, found: Sequence[Seen], tasks: Sequence[Task]) -> None:
        for seen, task in zip(found, tasks, strict=True):
            expected = alone(model, task)
            self.assertEqual(seen.ids, expected.ids)
            self.assertTrue(seen.logits == expected.logits, "other bits")

    def test_alone_or_among_16_in_every_slot(self) -> None:
        for model in (small(), packed_too()):
            self.check_alone_or_among_16(model)

    def check_alone_or_among_16(self, model: torch.nn.Module) -> None:
        asked = [some_task(seed, 1 + 3 * seed, 4 + seed % 3) for seed in range(16)]
        for order in (asked, asked[::-1]):
            self.check(model, run_all(Engine(model, 16, chunk=CHUNK), order), order)

    def test_in_pytorch(self) -> None:
        with in_pytorch():
            self.check_alone_or_among_16(small())

    def test_in_the_layout_of_onednn(self) -> None:
        with in_pytorch(), mock.patch.object(independence, "PACKED_FROM", 0):
            self.check_alone_or_among_16(packed_too())

    def test_in_float64(self) -> None:
        model = random_transformer(SMALL, 5, torch.float64).requires_grad_(False)
        asked = [some_task(seed, 5, 6) for seed in range(5)]
        self.check(model, run_all(Engine(model, 5, chunk=CHUNK), asked), asked)

    def test_where_no_number_of_rows_equals_another_and_keys_may_not_be_cut(self) -> None:
        asked = [some_task(seed, 5, 4) for seed in range(5)]
        for least, most in ((independence.ROWS, independence.ROWS), (1, 1)):
            measured = independence.Measured(least, most, cuttable=False, threads=1)
            with in_pytorch(), mock.patch.object(independence, "_measured", return_value=measured):
                self.assertEqual(*(run_all(Engine(small(), slots, chunk=CHUNK), asked) for slots in (1, 5)))

    def test_whatever_the_number_of_slots(self) -> None:
        asked = [some_task(seed, 9, 3) for seed in range(7)]
        for slots in (2, 3, 7):
            self.check(small(), run_all(Engine(small(), slots, chunk=CHUNK), asked), asked)

    def test_whatever_the_others_ask_for(self) -> None:
        plain = some_task(3, 8, 6)
        kinds: list[dict[str, Any]] = [
            *({"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}),
            *({"repeat_penalty": 1.3, "presence_penalty": 0.5}, {"regex": "[a-z]+"}, {"speculate": 4}, {}),
        ]
        asked = [replace(plain, config=replace(plain.config, seed=i % 2, **kinds[i // 2])) for i in range(18)]
        asked += [replace(plain, bias={101: 5.0}), replace(plain, bias={101: -math.inf})]
        self.check(small(), run_all(Engine(small(), 20, chunk=CHUNK), asked), asked)
        with in_pytorch():
            self.check(small(), run_all(Engine(small(), 20, chunk=CHUNK), asked), asked)

    def test_generate_gives_what_a_full_engine_gives(self) -> None:
        asked = [some_task(seed, 3 + 40 * (seed % 2), 12) for seed in range(16)]
        for seen, task in zip(run_all(Engine(small(), 16), asked), asked, strict=True):
            ids = [token for event in generate(small(), task.prompt, task.config) for token in event.ids]
            self.assertEqual(ids, seen.ids)

    @settings(deadline=None, max_examples=12)
    @given(st.lists(tasks, min_size=1, max_size=8), st.integers(1, 6), st.data())
    def test_whatever_joins_leaves_pauses_or_is_cancelled(
        self, asked: list[Task], slots: int, data: st.DataObject
    ) -> None:
        engine = Engine(small(), slots, chunk=CHUNK)
        waiting, running = list(asked), dict[Generation, tuple[Task, Seen]]()
        ended: list[tuple[Task, Seen]] = []
        cut: list[tuple[Task, Seen]] = []
        acts = data.draw(st.lists(st.integers(0, 5), max_size=40))
        while waiting or engine.running:
            act = acts.pop() if acts else 5
            if act >= 2 and waiting and engine.free:
                task = waiting.pop(0)
                running[engine.start(task)] = (task, Seen([], []))
            if act == 0 and engine.running:
                generation = engine.running[len(acts) % len(engine.running)]
                engine.cancel(generation)
                cut.append(running.pop(generation))
            for index, generation in enumerate(engine.running):
                generation.paused = act == 1 and index % 2 == 0 and bool(acts)
            for generation, outcome in engine.step():
                self.assertFalse(generation.paused)
                running[generation][1].add(outcome)
                if generation.stream.end is not None:
                    ended.append(running.pop(generation))
        self.assertEqual((len(ended) + len(cut), running), (len(asked), {}))
        for task, seen in ended + cut:
            expected = alone(small(), task)
            whole = len(expected.ids) if (task, seen) in ended else len(seen.ids)
            self.assertEqual(seen.ids, expected.ids[:whole])
            self.assertTrue(seen.logits == expected.logits[:whole], "other bits")

    def test_a_fast_engine_agrees_up_to_rounding(self) -> None:
        asked = [some_task(seed, 5, 6) for seed in range(6)]
        plain = run_all(Engine(small(), 6), asked)
        for one, other in zip(plain, run_all(Engine(small(), 6, fast=True), asked), strict=True):
            first, second = (np.frombuffer(seen.logits[0]) for seen in (one, other))
            np.testing.assert_allclose(first, second, rtol=0, atol=1e-3)


class RowsAtTheShapesOfThePresets(unittest.TestCase):
    def test_a_row_is_the_same_among_any_number_of_rows(self) -> None:
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        for preset, count, from_parameters in (
            *(("nano", 1, 2**60), ("nano", 2, 2**60), ("micro", 1, 0), ("micro", 2, 2**60)),
            *(("mini", 1, 0), ("mini", 2, 0)),
        ):
            config = replace(PRESETS[preset], layers=1, window=128)
            model = random_transformer(config, 0).requires_grad_(False)
            torch.set_num_threads(count)
            with in_pytorch(), mock.patch.object(independence, "PACKED_FROM", from_parameters):
                many, one = Reader(model, 17), Reader(model, 1)
            for buffer in ("keys_LBHSK", "values_LBHSK"):
                getattr(many._slots, buffer)[:, :17] = torch.rand(
                    1, 17, config.kv_heads, 128, config.head_size
                )
            positions = [7 * slot for slot in range(17)]
            expected = {}
            for slot, position in enumerate(positions):
                for buffer in ("keys_LBHSK", "values_LBHSK"):
                    getattr(one._slots, buffer)[:, 0] = getattr(many._slots, buffer)[:, slot]
                expected[slot] = one.step({0: (position, [7])})[0]
            for chosen in (*(range(rows) for rows in range(2, 18)), range(16, 17), (1, 4, 9, 10, 16)):
                found = many.step({slot: (positions[slot], [7]) for slot in chosen})
                for slot in chosen:
                    same = np.array_equal(found[slot], expected[slot])
                    self.assertTrue(same, (preset, count, from_parameters, chosen, slot))


class Prompts(unittest.TestCase):
    def test_a_prompt_in_chunks_means_what_it_means_whole(self) -> None:
        model = random_transformer(SMALL, 3, torch.float64).requires_grad_(False)
        for length in (1, 7, 8, 9, 16, 48, 70):
            task = some_task(length, length, 4)
            by_chunks = run_all(Engine(model, 2, chunk=CHUNK), [task])[0]
            whole = run_all(Engine(model, 2, chunk=1000), [task])[0]
            self.assertEqual(by_chunks.ids, whole.ids)
            for one, other in zip(by_chunks.logits, whole.logits, strict=True):
                np.testing.assert_allclose(np.frombuffer(one), np.frombuffer(other), rtol=0, atol=1e-9)

    def test_chunks_begin_at_multiples_and_others_go_on_between_them(self) -> None:
        model = scripted([65] * 60, prompt_tokens=1)
        engine = Engine(model, 2, chunk=CHUNK)
        first = engine.start(Task((256,)))
        engine.step()
        engine.start(Task(tuple(range(30))))
        for _ in range(4):
            outcomes = engine.step()
            self.assertIn(first, [generation for generation, _ in outcomes])
        chunks = [ids for ids in model.read if len(ids) > 1]
        self.assertEqual([len(ids) for ids in chunks], [8, 8, 8, 6])
        self.assertEqual([ids[0] for ids in chunks], [0, 8, 16, 24])
        self.assertEqual(len(outcomes), 2)

    def test_prompts_are_read_in_the_order_in_which_they_came(self) -> None:
        engine = Engine(scripted([65] * 99, window=256), 4, chunk=CHUNK)
        started = [engine.start(Task(tuple(range(40)))) for _ in range(4)]
        for _ in range(3):
            engine.step()
        self.assertEqual([generation.window.read for generation in started], [24, 0, 0, 0])


class Reuse(unittest.TestCase):
    def test_an_equal_beginning_is_not_read_again_and_changes_no_bit(self) -> None:
        engine = Engine(small(), 3, chunk=CHUNK)
        first, second = some_task(1, 30, 3, shared=20), some_task(2, 40, 9, shared=20)
        for task, reused in ((first, 0), (second, 16), (first, 24), (second, 32)):
            generation = engine.start(task)
            self.assertEqual(generation.reused, reused)
            seen = Seen([], [])
            while engine.running:
                for _, outcome in engine.step():
                    seen.add(outcome)
            expected = alone(small(), task)
            self.assertTrue((seen.ids, seen.logits) == (expected.ids, expected.logits), "other bits")

    def test_from_a_slot_that_is_at_work(self) -> None:
        engine = Engine(small(), 2, chunk=CHUNK)
        task = some_task(1, 30, 12)
        engine.start(task)
        for _ in range(6):
            engine.step()
        other = engine.start(task)
        self.assertEqual((other.slot, other.reused), (1, 24))
        seen = Seen([], [])
        while engine.running:
            for generation, outcome in engine.step():
                if generation is other:
                    seen.add(outcome)
        self.assertTrue(seen.logits == alone(small(), task).logits, "other bits")

    def test_only_whole_chunks_that_were_read_as_chunks(self) -> None:
        model = scripted([65] * 40, prompt_tokens=7)
        engine = Engine(model, 1, chunk=CHUNK)
        (told,) = run_all(engine, [Task(tuple(range(7)), GenerateConfig(max_tokens=20))])
        self.assertEqual(engine.start(Task((*range(7), *told.ids[:12]))).reused, 0)

    def test_the_last_token_is_always_read(self) -> None:
        engine = Engine(scripted([65] * 40, prompt_tokens=16), 1, chunk=CHUNK)
        task = Task(tuple(range(16)), GenerateConfig(max_tokens=2))
        run_all(engine, [task])
        self.assertEqual(engine.start(task).reused, 8)

    def test_not_where_it_was_declined(self) -> None:
        engine = Engine(scripted([65] * 40, prompt_tokens=30), 2, chunk=CHUNK)
        task = Task(tuple(range(30)), GenerateConfig(max_tokens=2))
        run_all(engine, [task])
        self.assertEqual(engine.start(replace(task, reuse=False)).reused, 0)

    def test_after_the_window_has_moved_nothing_stale_is_used(self) -> None:
        engine = Engine(small(), 2, chunk=CHUNK)
        task = some_task(3, 30, 60)
        run_all(engine, [task, task, task])
        generation = engine.start(task)
        while engine.running:
            engine.step()
        again = run_all(engine, [task])[0]
        self.assertTrue(again.logits == alone(small(), task).logits, "other bits")
        self.assertLess(generation.reused, 30)


class Failures(unittest.TestCase):
    def test_logits_that_are_not_finite_end_their_own_generation_only(self) -> None:
        logits = np.random.default_rng(0).normal(0, 2, (40, VOCABULARY_SIZE))
        logits[20] = np.nan
        bad, good = Task(tuple(range(19)), GenerateConfig(max_tokens=9)), some_task(1, 3, 9)
        engine = Engine(ScriptedModel(logits), 3, chunk=64)
        found = run_all(engine, [good, bad, good])
        self.assertIn("is nan", found[1].error)
        self.assertEqual(len(found[1].ids), 2)
        self.assertEqual(found[0].ids, found[2].ids)
        self.assertEqual([seen.error for seen in (found[0], found[2])], ["", ""])
        self.assertEqual(engine.free, 3)

    def test_what_is_not_finite_does_not_stay_in_the_slot(self) -> None:
        # Id 7 has an embedding of NaN: its keys and values are NaN, also where a mask hides them.
        model = random_transformer(SMALL, 0).requires_grad_(False)
        model.model.embed_tokens.weight[7] = torch.nan
        clean = replace(some_task(1, 3, 5), bias={7: -np.inf})
        expected = alone(model, clean)
        self.assertEqual((len(expected.ids), expected.error), (5, ""))
        engine = Engine(model, 1, chunk=CHUNK)
        poisoned = replace(some_task(2, 30, 5), prompt=(*range(20, 45), 7, 8, 9))
        for cut in (False, True):
            if cut:
                generation = engine.start(replace(poisoned, prompt=(*poisoned.prompt, *range(50, 65))))
                for _ in range(5):
                    self.assertEqual(engine.step(), [])
                engine.cancel(generation)
            else:
                self.assertIn("nan", run_all(engine, [poisoned])[0].error)
            self.assertTrue(run_all(engine, [clean])[0].logits == expected.logits, "other bits")

    def test_a_constraint_that_fails_ends_its_own_generation_only(self) -> None:
        class Failing:
            def __init__(self, calls: int) -> None:
                self.calls = calls

            def start(self) -> Failing:
                return Failing(self.calls)

            def allowed(self, room: int | None = None) -> np.ndarray:
                self.calls -= 1
                if self.calls < 0:
                    raise KeyError("no such\nrule")
                return np.arange(VOCABULARY_SIZE) == 70 + self.calls

            def advance(self, token: int) -> None:
                if token == 71:
                    raise TypeError("not 71")

        plain = Task((256,), GenerateConfig(max_tokens=5, temperature=1.0))
        logits = np.random.default_rng(0).normal(0, 2, (40, VOCABULARY_SIZE))
        engine = Engine(ScriptedModel(logits), 4)
        asked = [plain, replace(plain, constraint=Failing(1)), replace(plain, constraint=Failing(2)), plain]
        found = run_all(engine, asked)
        self.assertEqual([found[0].ids, found[3].ids], [alone_scripted(logits, plain)] * 2)
        self.assertEqual(found[1].ids, [70])
        self.assertIn("failed with KeyError: 'no such", found[1].error)
        self.assertNotIn("\n", found[1].error)
        self.assertEqual((found[2].ids, "TypeError: not 71" in found[2].error), ([], True))
        self.assertEqual(engine.free, 4)

    def test_all_slots_taken_and_wrong_tasks_are_refused(self) -> None:
        engine = Engine(scripted([65]), 1)
        with self.assertRaises(TinylmError):
            engine.start(Task((256,), GenerateConfig(temperature=-1.0)))
        engine.start(Task((256,)))
        with self.assertRaisesRegex(RequestError, "all 1 slots"):
            engine.start(Task((256,)))
        for slots, chunk in ((0, 8), (1, 1)):
            with self.assertRaisesRegex(RequestError, "at least 1 and 2"):
                Engine(scripted([65]), slots, chunk=chunk)

    def test_cancel_frees_at_once_and_nothing_more_is_read(self) -> None:
        model = scripted([65] * 50)
        engine = Engine(model, 1)
        generation = engine.start(Task((256,)))
        engine.step()
        engine.cancel(generation)
        self.assertEqual((engine.free, engine.step(), len(model.read)), (1, [], 1))
        other = engine.start(Task((256,)))
        engine.cancel(generation)
        self.assertEqual(engine.running, [other])

    def test_a_task_for_no_tokens_holds_no_slot(self) -> None:
        engine = Engine(scripted([65]), 1)
        generation = engine.start(Task((256,), GenerateConfig(max_tokens=0)))
        assert generation.stream.end is not None
        self.assertEqual((engine.free, generation.stream.end.reason), (1, "limit"))
        engine.cancel(generation)


class Told(unittest.TestCase):
    def test_probabilities_are_those_of_the_logits(self) -> None:
        logits = np.random.default_rng(0).normal(0, 2, (4, VOCABULARY_SIZE))
        task = Task((256,), GenerateConfig(max_tokens=1, temperature=0.5, top_k=2), {3: 1.5, 9: -np.inf}, 4)
        engine = Engine(ScriptedModel(logits))
        engine.start(task)
        ((_, sampled),) = engine.step()
        assert isinstance(sampled, Sampled)
        row = logits[0].copy()
        row[3] += 1.5
        row[9] = -np.inf
        shares = np.exp(row) / np.exp(row).sum()
        best = sorted(range(VOCABULARY_SIZE), key=lambda token: -shares[token])[:4]
        self.assertEqual([token for token, _ in sampled.top], best)
        np.testing.assert_allclose([value for _, value in sampled.top], np.log(shares[best]), atol=1e-12)
        self.assertAlmostEqual(sampled.log_probability, np.log(shares[sampled.token]))
        sharp = shares[best[:2]] ** 2
        np.testing.assert_allclose([value for _, value in sampled.drawn[:2]], sharp / sharp.sum(), atol=1e-12)
        self.assertEqual(sampled.drawn[2][1], 0.0)
        self.assertAlmostEqual(sampled.probability, dict(sampled.drawn)[sampled.token])
        self.assertEqual(engine.start(Task((256,))).task.top, 0)


class Bounded(unittest.TestCase):
    def test_memory_is_flat_over_many_short_generations(self) -> None:
        model = random_transformer(replace(SMALL, layers=1), 0).requires_grad_(False)
        engine = Engine(model, 16, chunk=CHUNK)

        def many(count: int) -> int:
            run_all(engine, [some_task(seed % 7, 1, 1) for seed in range(count)])
            gc.collect()
            return len(gc.get_objects())

        many(100)
        before = many(100)
        self.assertLess(many(1000) - before, 100)

    def test_a_long_generation_keeps_one_window_of_tokens(self) -> None:
        engine = Engine(scripted([65] * 900, window=16), 1)
        generation = engine.start(Task((256,), GenerateConfig(max_tokens=500)))
        while engine.running:
            engine.step()
            self.assertLessEqual(len(generation.window.tokens), 17)


class Spans(unittest.TestCase):
    def test_every_slot_is_in_one_span_and_gaps_are_short(self) -> None:
        for seed in range(200):
            random = np.random.default_rng(seed)
            slots = sorted(set(random.integers(0, 40, random.integers(0, 30)).tolist()))
            found = list(spans(slots))
            covered = [slot for span in found for slot in span]
            self.assertEqual(covered, sorted(set(covered)))
            self.assertLessEqual(set(slots), set(covered))
            self.assertTrue(all(len(span) <= independence.ROWS for span in found))
            self.assertTrue(all(span[0] in slots and span[-1] in slots for span in found))
        self.assertEqual(list(spans([0, 5, 11])), [range(6), range(11, 12)])


if __name__ == "__main__":
    unittest.main()
