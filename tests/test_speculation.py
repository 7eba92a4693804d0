"""Speculation: whatever is guessed, a generation gives the tokens and events that it gives without."""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.scripted import ScriptedModel, ScriptedSlots, scripted
from tests.test_generate import random_transformer
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.errors import ConfigError, TinylmError
from tinylm.events import Event
from tinylm.generate import Engine, Generation, Sampled, Task, drafts, events, generate
from tinylm.generate.drafts import Drafts, Guess, History, draw_alike
from tinylm.sampling import distribution, draw, uniform

SMALL = ModelConfig(layers=1, width=32, mlp_width=64, heads=2, kv_heads=1, head_size=32, window=24)


@dataclass
class Seen:
    events: list[Event] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)
    ends: list[object] = field(default_factory=list)
    error: str = ""


def run_all(
    engine: Engine, tasks: Sequence[Task], acts: Sequence[int] = ()
) -> tuple[list[Seen], list[Generation]]:
    """Every task to its end; `acts` pauses some on the way. Fails where that takes too many steps."""
    waiting, left = list(enumerate(tasks)), list(acts)
    steps = len(acts) + sum(len(task.prompt) + task.config.max_tokens for task in tasks)
    seen = [Seen() for _ in tasks]
    running: dict[Generation, int] = {}
    while waiting or engine.running:
        while waiting and engine.free:
            index, task = waiting.pop(0)
            running[engine.start(task)] = index
        steps -= 1
        if steps < 0:
            raise AssertionError(
                "more steps than all tokens of all tasks: something is never read to its end"
            )
        act = left.pop() if left else 0
        for index, generation in enumerate(engine.running):
            generation.paused = act > 0 and (act + index) % 3 == 0
        for generation, outcome in engine.step():
            one = seen[running[generation]]
            if isinstance(outcome, TinylmError):
                one.error = str(outcome)
            else:
                one.events.append(outcome.event)
                one.logits.append(outcome.logits_V.tobytes())
                one.ends.append(outcome.end)
    return seen, list(running)


def check_alike(test: unittest.TestCase, found: Sequence[Seen], plain: Sequence[Seen]) -> None:
    """Equal, to the bit, or a failure that names the first difference.

    assertEqual would search megabytes of logits for what is alike in them, for minutes.
    """
    test.assertEqual(len(found), len(plain))
    for index, (one, other) in enumerate(zip(found, plain, strict=True)):
        test.assertEqual(one.error, other.error, f"task {index}")
        for number, (event, wanted) in enumerate(zip(one.events, other.events, strict=False)):
            test.assertEqual(event, wanted, f"task {index}, token {number}")
        test.assertEqual(len(one.events), len(other.events), f"task {index}: tokens")
        for number, (bits, wanted_bits) in enumerate(zip(one.logits, other.logits, strict=True)):
            if bits != wanted_bits:
                test.fail(f"task {index}, token {number}: other logits")
        test.assertEqual(one.ends, other.ends, f"task {index}")


class Oracle(Drafts):
    """Guesses right as often as asked, wrong otherwise, never bounded by what would pay."""

    def __init__(self, known: dict[int, list[int]], right: float) -> None:
        super().__init__()
        self.known, self.share = known, right
        self.random = np.random.default_rng(0)

    def guess(self, history: History, config: GenerateConfig, bias: object, number: int, most: int) -> Guess:
        ids = self.known[config.seed][number : number + most]
        ids += [0] * (most - len(ids))
        told = [
            token if self.random.random() < self.share else (token + 1) % VOCABULARY_SIZE for token in ids
        ]
        return Guess(tuple(told), ((0, 3),) * most)


configs = st.builds(
    GenerateConfig,
    max_tokens=st.integers(1, 40),
    temperature=st.sampled_from((0.0, 0.7, 1.3)),
    top_k=st.sampled_from((0, 3)),
    top_p=st.sampled_from((1.0, 0.8)),
    min_p=st.sampled_from((0.0, 0.1)),
    valid_utf8=st.booleans(),
    regex=st.sampled_from((None, None, "[a-d]{3,30}", "(ab|é)*")),
    repeat_penalty=st.sampled_from((1.0, 1.4)),
    presence_penalty=st.sampled_from((0.0, 0.5)),
    frequency_penalty=st.sampled_from((0.0, 0.3)),
    repeat_last_n=st.sampled_from((-1, 5, 64)),
    stop=st.sampled_from(((), ("a",), ("ab", "cc"), ("é",))),
)


def few_letters(seed: int) -> np.ndarray:
    """Logits of 70 positions under which few ids are likely, so that texts repeat and stops occur."""
    logits_PV = np.random.default_rng(seed).normal(0, 1.5, (70, VOCABULARY_SIZE))
    logits_PV[:, [97, 98, 99, 0xC3, 0xA9]] += 5.0
    logits_PV[:, 256] += 1.5
    return logits_PV


class Reading(ScriptedModel):
    """Its logits depend on the token before too, so a token that was not the one drawn is noticed."""

    def __call__(self, ids_BT: Tensor, cache: ScriptedSlots) -> Tensor:
        super().__call__(ids_BT, cache)
        positions_BT = torch.tensor(cache.positions)[:, None] + torch.arange(ids_BT.shape[1])
        return self._logits_PV[(positions_BT + ids_BT) % len(self._logits_PV)]


class ScriptedResults(unittest.TestCase):
    # Without shrinking: each example runs six engines, and to make it smaller would take minutes.
    @settings(deadline=None, max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
    @given(
        st.lists(configs, min_size=1, max_size=4),
        st.integers(0, 3),
        st.integers(1, 9),
        st.integers(1, 3),
        st.sampled_from((0.0, 0.6, 1.0)),
        st.lists(st.integers(0, 3), max_size=12),
    )
    def test_everything_is_as_without(
        self,
        asked: list[GenerateConfig],
        script: int,
        most: int,
        slots: int,
        right: float,
        acts: list[int],
    ) -> None:
        logits_PV = few_letters(script)
        random = np.random.default_rng(script)
        tasks = []
        for seed, config in enumerate(asked):
            prompt = tuple(random.integers(97, 100, random.integers(1, 30)).tolist())
            bias = {98: 2.0, 256: -np.inf} if seed % 2 else {}
            tasks.append(Task(prompt, replace(config, seed=seed), bias, top=2))
        for window in (64, 16):
            plain, _ = run_all(Engine(Reading(logits_PV, window=window), slots, chunk=8), tasks)
            known = {
                seed: [token for event in one.events for token in event.ids] for seed, one in enumerate(plain)
            }
            guessing = [replace(task, config=replace(task.config, speculate=most)) for task in tasks]
            for made in (Drafts(), Oracle(known, right)):
                engine = Engine(Reading(logits_PV, window=window), slots, chunk=8)
                engine._drafts = made
                found, generations = run_all(engine, guessing, acts)
                check_alike(self, found, plain)
                for generation in generations:
                    self.assertLessEqual(generation.accepted, generation.drafted)

    def test_right_guesses_save_passes_and_are_counted(self) -> None:
        ids = [97 + place % 3 for place in range(20)]
        model = scripted(ids)
        engine = Engine(model)
        engine._drafts = Oracle({0: ids}, 1.0)
        generation = engine.start(Task((256,), GenerateConfig(temperature=0.0, max_tokens=20, speculate=4)))
        steps = 0
        while engine.running:
            outcomes = engine.step()
            self.assertEqual(len(outcomes), 5)
            steps += 1
        self.assertEqual((steps, generation.drafted, generation.accepted), (4, 16, 16))
        self.assertEqual([len(read) for read in model.read], [5] * 4)

    def test_a_stop_string_a_boundary_or_the_limit_inside_a_guess_ends_there(self) -> None:
        for ids, config, tokens in (
            ([97, 98, 99, 100, 101], GenerateConfig(stop=("c",), speculate=8), 3),
            ([97, 98, 256, 100, 101], GenerateConfig(speculate=8), 3),
            ([97, 98, 99, 100, 101], GenerateConfig(max_tokens=2, speculate=8), 2),
        ):
            engine = Engine(scripted(ids))
            engine._drafts = Oracle({0: ids}, 1.0)
            generation = engine.start(Task((256,), config))
            outcomes = [outcome for _, outcome in engine.step()]
            told = [outcome.end for outcome in outcomes if isinstance(outcome, Sampled)]
            self.assertEqual((len(told), told[:-1]), (tokens, [None] * (tokens - 1)))
            self.assertEqual(told[-1], generation.stream.end)
            self.assertEqual(engine.free, 1)

    def test_guesses_never_pass_the_window_or_the_limit(self) -> None:
        ids = [97] * 60
        for window, limit in ((8, 30), (64, 5)):
            model = scripted(ids, window=window)  # it refuses what passes its window
            engine = Engine(model)
            engine._drafts = Oracle({0: ids}, 1.0)
            config = GenerateConfig(temperature=0.0, max_tokens=limit, speculate=64)
            (seen,), _ = run_all(engine, [Task((256,), config)])
            self.assertEqual(len(seen.events), limit)

    def test_cancelled_between_two_steps_it_reads_no_more_and_the_slot_is_as_new(self) -> None:
        logits_PV = few_letters(1)
        task = Task((97, 98, 99), GenerateConfig(max_tokens=30, speculate=6, seed=1))
        (plain,), _ = run_all(Engine(ScriptedModel(logits_PV)), [task])
        engine = Engine(ScriptedModel(logits_PV))
        engine.cancel(engine.start(task))
        generation = engine.start(task)
        engine.step()
        engine.step()
        engine.cancel(generation)
        self.assertEqual(engine.step(), [])
        (again,), _ = run_all(engine, [task])
        check_alike(self, [again], [plain])


class WithATransformer(unittest.TestCase):
    def setUp(self) -> None:
        self.model = random_transformer(SMALL, 0).requires_grad_(False)

    def tasks(self, speculate: int) -> list[Task]:
        found = []
        for seed in range(5):
            prompt = tuple(np.random.default_rng(seed // 2).integers(0, 257, 3 + 5 * seed).tolist())
            config = GenerateConfig(
                max_tokens=40, seed=seed, temperature=(0.0, 1.0)[seed % 2], speculate=speculate
            )
            found.append(Task(prompt, config))
        return found

    def test_ids_and_bits_are_those_of_plain_decoding(self) -> None:
        plain, _ = run_all(Engine(self.model, 2, chunk=8), self.tasks(0))
        engine = Engine(self.model, 3, chunk=8)
        known = {
            seed: [token for event in one.events for token in event.ids] for seed, one in enumerate(plain)
        }
        for made in (Drafts(), Oracle(known, 0.7)):
            engine._drafts = made
            for _ in range(2):  # the second time with chunks of prompts that are there already
                found, generations = run_all(engine, self.tasks(6))
                check_alike(self, found, plain)
        if not engine.unspeculative:
            self.assertGreater(sum(generation.accepted for generation in generations), 40)

    def test_where_rows_round_apart_it_is_ignored_and_said(self) -> None:
        model = random_transformer(SMALL, 0, torch.float64).requires_grad_(False)
        engine = Engine(model)
        self.assertIn("could change ids", engine.unspeculative)
        (seen,), (generation,) = run_all(engine, self.tasks(6)[:1])
        self.assertEqual((generation.drafted, len(seen.events)), (0, 40))
        self.assertEqual(Engine(model, fast=True).unspeculative, "")

    def test_a_guess_whose_keys_are_not_finite_changes_nothing(self) -> None:
        model = random_transformer(SMALL, 0, torch.float64).requires_grad_(False)
        model.model.embed_tokens.weight[7] = torch.nan
        task = Task((97, 98), GenerateConfig(max_tokens=12, speculate=3, temperature=1.0), {7: -np.inf})

        class Sevens(Drafts):
            def guess(self, *given: object) -> Guess:
                return Guess((7, 7), ((0, 3),) * 2)

        (plain,), _ = run_all(
            Engine(model, fast=True), [replace(task, config=replace(task.config, speculate=0))]
        )
        engine = Engine(model, fast=True)
        engine._drafts = Sevens()
        (found,), _ = run_all(engine, [task])
        self.assertEqual((found.events, found.error), (plain.events, ""))


class Guesses(unittest.TestCase):
    def test_drawn_alike_is_what_the_distribution_gives_at_that_number(self) -> None:
        random = np.random.default_rng(0)
        for temperature, top_k, top_p, min_p in (
            (0.0, 0, 1.0, 0.0), (0.7, 0, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.2, 0, 0.7, 0.0),
            (1.0, 0, 1.0, 0.2),
        ):  # fmt: skip
            config = GenerateConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
            for number in range(60):
                logits_V = np.full(VOCABULARY_SIZE, -1e4)
                ids = np.sort(random.choice(VOCABULARY_SIZE, drafts.BEST, replace=False))
                logits_V[ids] = random.normal(0, 2, drafts.BEST)
                u = uniform(0, number)
                token, share = draw_alike((tuple(ids.tolist()), tuple(logits_V[ids].tolist())), config, {}, u)
                probabilities_V = distribution(logits_V, config)
                self.assertEqual(token, draw(probabilities_V, u))
                if temperature:
                    self.assertAlmostEqual(share, probabilities_V[token])

    def test_what_the_model_said_after_the_same_bytes_is_guessed(self) -> None:
        made = Drafts()
        logits_TV = np.full((2, VOCABULARY_SIZE), -50.0)
        logits_TV[[0, 1], [99, 100]] = 0.0
        for _ in range(9):
            made.learn([97, 98, 99], logits_TV)
            made.tell(Guess((0,), ((2, 3),)), 1)
        guess = made.guess(History([1, 97, 98]), GenerateConfig(), {}, 5, 2)
        self.assertEqual(guess.tokens, (99, 100))

    def test_a_text_that_repeats_is_copied_and_one_that_does_not_is_left_alone(self) -> None:
        made = Drafts()
        tokens = [*b"one two three, one two"]
        self.assertEqual(bytes(made.guess(History(tokens), GenerateConfig(), {}, 0, 2).tokens), b" "[:1])
        for _ in range(40):
            made.tell(Guess((1,), ((0, 8),)), 1)
            made.tell(Guess((1,), ((0, 5),)), 1)
        self.assertEqual(bytes(made.guess(History(tokens), GenerateConfig(), {}, 0, 6).tokens), b" three")
        for _ in range(60):
            made.tell(Guess((1,), ((0, 8),)), 0)
            made.tell(Guess((1,), ((0, 5),)), 0)
            made.tell(Guess((1,), ((0, 3),)), 0)
        self.assertEqual(made.guess(History(tokens), GenerateConfig(), {}, 0, 6).tokens, ())

    def test_memory_is_bounded(self) -> None:
        with mock.patch.object(drafts, "CONTEXTS", 50), mock.patch.object(drafts, "KEPT", 40):
            made, history = Drafts(), History([])
            random = np.random.default_rng(0)
            for token in random.integers(0, 257, 400).tolist():
                history.append(token)
                made.learn(history.tokens[-6:], random.normal(size=(1, VOCABULARY_SIZE)))
                self.assertLessEqual(len(history.tokens), 80)
                self.assertLessEqual(len(history._after), 240)
            self.assertEqual(max(map(len, made._tables)), 50)

    def test_the_option_is_bounded(self) -> None:
        for wrong in (-1, 65, True):
            with self.assertRaisesRegex(ConfigError, "speculate"):
                GenerateConfig(speculate=wrong).check()

    def test_events_of_an_engine_are_those_of_generate(self) -> None:
        config = GenerateConfig(max_tokens=20, speculate=4, temperature=0.0)
        model = ScriptedModel(few_letters(0))
        engine = Engine(model)
        told = list(events(engine, engine.start(Task((256,), config))))
        self.assertEqual(told, list(generate(model, (256,), replace(config, speculate=0))))


if __name__ == "__main__":
    unittest.main()
