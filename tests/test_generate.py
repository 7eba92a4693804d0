"""Generation: with a scripted model, with random weights against the uncached forward, and trained."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tests.recorded import case_limit, recorded_cases
from tests.scripted import ScriptedModel, scripted
from tests.test_events import check_case, check_invariants, oracle
from tinylm.config import GenerateConfig, ModelConfig, Policy, TrainConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import ConfigError, ContractError, RequestError
from tinylm.events import End, Event
from tinylm.generate import Context, Model, generate, prompt_ids, window_start
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sampling import uniform

GREEDY = GenerateConfig(temperature=0.0)


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token for event in events for token in event.ids]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events)


def options(**values: object) -> GenerateConfig:
    return GenerateConfig(**values)  # type: ignore[arg-type]


def random_script(seed: int, rows: int = 24, spread: float = 2.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (rows, VOCABULARY_SIZE))


def random_transformer(config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32) -> Transformer:
    """A Transformer in which nothing is zero or one by design, so that every weight matters."""
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 1.0 if parameter.ndim == 1 else 0.3, generator=generator)
    return model.to(dtype)


class Prompts(unittest.TestCase):
    def test_a_text_is_fed_behind_one_boundary(self) -> None:
        self.assertEqual(prompt_ids("é"), (256, 0xC3, 0xA9))
        self.assertEqual(prompt_ids(""), (256,))

    def test_ids_are_fed_as_they_are(self) -> None:
        for ids in ((65, 66), [256, 65, 256, 66], (256,)):
            self.assertEqual(prompt_ids(ids), tuple(ids))
        self.assertEqual(prompt_ids(np.array([65, 256], dtype=np.uint16)), (65, 256))
        self.assertEqual(prompt_ids(torch.tensor([65, 256])), (65, 256))
        self.assertEqual(prompt_ids(iter([65])), (65,))

    def test_the_spelling_of_a_boundary_stays_text(self) -> None:
        self.assertEqual(prompt_ids("<|doc|>"), (256, 60, 124, 100, 111, 99, 124, 62))

    def test_the_model_reads_exactly_the_prompt(self) -> None:
        model = scripted([65], prompt_tokens=4)
        list(generate(model, [256, 1, 256, 255]))
        self.assertEqual(model.read[0], [256, 1, 256, 255])

    def test_no_ids_at_all_are_refused_at_once(self) -> None:
        for empty in ((), [], np.array([], dtype=np.int64)):
            with self.assertRaisesRegex(RequestError, "begins with"):
                generate(scripted([65]), empty)

    def test_what_is_not_text_or_ids_is_refused_at_once(self) -> None:
        for bad in (
            b"AB",
            [65, 257],
            [-1],
            [2**40],
            [True],
            [65.0],
            ["A"],
            None,
            5,
            np.array([[65]]),
            "\ud83d",
        ):
            with self.assertRaises(ContractError):
                generate(scripted([65]), bad)  # type: ignore[arg-type]

    def test_a_bad_configuration_is_refused_at_once(self) -> None:
        with self.assertRaisesRegex(ConfigError, "temperature.*; .*top_p|top_p.*; .*temperature"):
            generate(scripted([65]), "", options(temperature=-1.0, top_p=0.0))
        with self.assertRaises(ConfigError):
            generate(scripted([65]), "", options(stop=("",)))


class WhenItEnds(unittest.TestCase):
    def test_recorded_cases_through_a_scripted_model(self) -> None:
        for case in recorded_cases():
            for config in (
                options(),
                GREEDY,
                options(temperature=2.0, top_k=7, top_p=0.9, min_p=0.1, seed=3),
            ):
                with self.subTest(case["name"], temperature=config.temperature):
                    asked = options(
                        **{**vars(config), "stop": tuple(case["stop"]), "max_tokens": case_limit(case)}
                    )
                    check_case(case, list(generate(scripted(case["script"]), "", asked)))

    def test_the_boundary_that_seeds_does_not_stop(self) -> None:
        events = list(generate(scripted([65, 66, 256]), ""))
        self.assertEqual(text_of(events), "AB")
        self.assertEqual(events[-1].end, End("boundary", "", 3))

    def test_boundaries_in_the_prompt_do_not_stop(self) -> None:
        events = list(generate(scripted([65, 256], prompt_tokens=4), [256, 66, 256, 256]))
        self.assertEqual(text_of(events), "A")
        self.assertEqual(events[-1].end, End("boundary", "", 2))

    def test_a_stop_string_in_the_prompt_or_across_its_end_does_not_stop(self) -> None:
        events = list(generate(scripted([66, 65, 256], prompt_tokens=3), "BA", options(stop=("BA", "AB"))))
        self.assertEqual((text_of(events), events[-1].end), ("", End("stop", "BA", 2)))
        events = list(generate(scripted([66, 67, 256], prompt_tokens=3), "BA", options(stop=("AB",))))
        self.assertEqual((text_of(events), events[-1].end), ("BC", End("boundary", "", 3)))

    def test_a_prompt_that_ends_inside_a_character_is_not_joined_to_the_text(self) -> None:
        events = list(generate(scripted([0x98, 0x8A, 256], prompt_tokens=2), [0xF0, 0x9F]))
        self.assertEqual(text_of(events), "\ufffd\ufffd")
        self.assertEqual(ids_of(events), [0x98, 0x8A, 256])

    def test_no_tokens_need_no_forward_pass(self) -> None:
        model = scripted([65])
        self.assertEqual(
            list(generate(model, "", options(max_tokens=0))), [Event((), b"", "", End("limit", "", 0))]
        )
        self.assertEqual(model.read, [])

    def test_one_forward_pass_per_sampled_token(self) -> None:
        model = scripted([65] * 9, prompt_tokens=3)
        list(generate(model, "ab", options(max_tokens=5)))
        self.assertEqual(model.read, [[256, 97, 98], [65], [65], [65], [65]])

    def test_a_closed_generator_stops_at_once(self) -> None:
        for taken in range(4):
            model = scripted([65] * 9)
            events = generate(model, "")
            for _ in range(taken):
                next(events)
            events.close()
            self.assertEqual(len(model.read), taken)
            self.assertEqual(list(events), [])

    def test_logits_that_are_not_finite_are_named_after_the_events_before_them(self) -> None:
        logits = random_script(0)
        logits[2, 7] = np.nan
        events = generate(ScriptedModel(logits), "", options(valid_utf8=False, seed=1))
        next(events), next(events)
        with self.assertRaisesRegex(RequestError, "logit of id 7 is nan"):
            next(events)


class Draws(unittest.TestCase):
    def test_draw_k_uses_the_uniform_of_seed_and_k(self) -> None:
        logits = random_script(1)
        got = ids_of(
            list(generate(ScriptedModel(logits), "", options(seed=11, max_tokens=20, temperature=1.0)))
        )
        expected = []
        for k, row in enumerate(logits[: len(got)]):
            shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            expected.append(next(i for i, total in enumerate(np.cumsum(shares)) if total > uniform(11, k)))
        self.assertEqual(got, expected)
        self.assertGreater(len(got), 5)

    def test_same_seed_same_ids_and_other_seeds_others(self) -> None:
        first, again, other = (
            ids_of(list(generate(ScriptedModel(random_script(2)), "", options(seed=seed, max_tokens=20))))
            for seed in (1, 1, 2)
        )
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_generations_that_take_turns_do_not_touch_each_other(self) -> None:
        model = random_transformer(TINY, 0)
        alone = [ids_of(list(generate(model, "ab", options(seed=s, max_tokens=30)))) for s in range(3)]
        running = [generate(model, "ab", options(seed=s, max_tokens=30)) for s in range(3)]
        turns: list[list[int]] = [[], [], []]
        for _ in range(31):
            for index, events in enumerate(running):
                turns[index] += [token for event in [next(events, None)] if event for token in event.ids]
        self.assertEqual(turns, alone)

    def test_stop_strings_and_the_limit_do_not_change_what_is_drawn(self) -> None:
        model = random_transformer(TINY, 1)
        whole = list(generate(model, "", options(seed=4, max_tokens=40)))
        cut = list(generate(model, "", options(seed=4, max_tokens=12)))
        self.assertEqual(ids_of(cut), ids_of(whole)[:12])

    def test_nothing_global_is_touched(self) -> None:
        state, threads = torch.get_rng_state(), torch.get_num_threads()
        np.random.seed(5)
        before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
        model = random_transformer(TINY, 2).train()
        for _ in generate(model, "ab", options(max_tokens=8)):
            self.assertFalse(torch.is_inference_mode_enabled())
            self.assertTrue(torch.is_grad_enabled())
        self.assertTrue(torch.equal(torch.get_rng_state(), state))
        self.assertEqual(np.random.get_state()[1].tolist(), before)  # type: ignore[index, union-attr]
        self.assertEqual((torch.get_num_threads(), model.training), (threads, True))
        model(torch.tensor([[256, 65]])).sum().backward()


class UnderAutocast(unittest.TestCase):
    def test_half_precision_generates_and_takes_turns_like_any_other(self) -> None:
        model = random_transformer(TINY, 0)
        with torch.autocast("cpu", torch.bfloat16):
            one, again = (ids_of(list(generate(model, "ab", options(max_tokens=20)))) for _ in range(2))
        self.assertEqual((one, len(one) > 3), (again, True))


class Penalties(unittest.TestCase):
    def test_tokens_of_the_prompt_and_those_that_were_sampled_are_recent(self) -> None:
        logits_V = np.full(VOCABULARY_SIZE, -50.0)
        logits_V[[65, 66]] = 0.5
        config = options(temperature=0.0, frequency_penalty=1.0, max_tokens=4)
        self.assertEqual(
            ids_of(list(generate(ScriptedModel(logits_V[None]), [65], config))), [66, 65, 66, 65]
        )
        plain = options(temperature=0.0, max_tokens=4)
        self.assertEqual(ids_of(list(generate(ScriptedModel(logits_V[None]), [65], plain))), [65] * 4)


class ValidUtf8(unittest.TestCase):
    def test_the_result_is_whole_well_formed_text_at_every_limit(self) -> None:
        multi = 0
        for seed in range(150):
            limit = seed % 12
            # Bytes above 127 are likely, so that characters begin near the limit.
            logits = random_script(seed, spread=1.0)
            logits[:, 128:256] += 3.0
            config = options(valid_utf8=True, max_tokens=limit, seed=seed, temperature=1.0)
            events = list(generate(ScriptedModel(logits), "", config))
            raw = bytes(token for token in ids_of(events) if token < 256)
            self.assertEqual(raw.decode("utf-8"), text_of(events))
            self.assertNotIn("\ufffd", text_of(events))
            multi += len(raw) - len(text_of(events))
        self.assertGreater(multi, 300)

    def test_without_it_the_same_model_gives_ill_formed_bytes(self) -> None:
        logits = random_script(0, spread=1.0)
        logits[:, 128:256] += 3.0
        events = list(generate(ScriptedModel(logits), "", options(max_tokens=12)))
        self.assertIn("\ufffd", text_of(events))

    def test_a_stop_string_ends_it_between_characters(self) -> None:
        logits = random_script(3, spread=1.0)
        for seed in range(30):
            config = options(valid_utf8=True, max_tokens=20, seed=seed, temperature=1.5, stop=("a", "é", "1"))
            events = list(generate(ScriptedModel(logits), "", config))
            b"".join(event.bytes for event in events).decode("utf-8")

    def test_where_the_model_is_well_formed_anyway_nothing_changes(self) -> None:
        script = [*"é😊A".encode(), 256]
        plain, masked = (
            list(generate(scripted(script), "", options(valid_utf8=valid))) for valid in (False, True)
        )
        self.assertEqual(plain, masked)

    def test_it_counts_the_sampled_bytes_alone(self) -> None:
        # The prompt ends inside a character; the continuation that the script wants is ill-formed alone.
        events = list(
            generate(scripted([0x98, 65, 256], prompt_tokens=2), [0xF0, 0x9F], options(valid_utf8=True))
        )
        text_of(events).encode()
        self.assertNotEqual(ids_of(events)[0], 0x98)
        self.assertNotIn("\ufffd", text_of(events))


TINY = ModelConfig(layers=2, width=32, mlp_width=64, heads=4, kv_heads=2, head_size=16, window=16)


class Window(unittest.TestCase):
    def test_where_the_context_begins_worked_by_hand(self) -> None:
        # Window 4 drops 2 at a time, window 5 drops 3.
        self.assertEqual([window_start(n, 4) for n in range(1, 10)], [0, 0, 0, 0, 2, 2, 4, 4, 6])
        self.assertEqual([window_start(n, 5) for n in range(1, 13)], [0, 0, 0, 0, 0, 3, 3, 3, 6, 6, 6, 9])

    def test_equals_a_window_that_drops_its_first_half_whenever_it_is_full(self) -> None:
        for window in range(2, 20):
            start = 0
            for known in range(1, 200):
                if known - start > window:
                    start += window - window // 2
                self.assertEqual(window_start(known, window), start, (known, window))

    def test_past_the_window_the_last_half_is_read_again(self) -> None:
        model = scripted([97, 98, 99, 100, 101, 102, 103], window=4)
        list(generate(model, "", options(max_tokens=7)))
        lengths = [len(ids) for ids in model.read]
        self.assertEqual(lengths, [1, 1, 1, 1, 3, 1, 3])
        self.assertEqual(model.read[:4], [[256], [97], [98], [99]])
        self.assertEqual(model.read[4], [98, 99, 100])

    def test_of_a_prompt_beyond_the_window_only_what_counts_is_read(self) -> None:
        model = scripted([65] * 4, window=4)
        list(generate(model, [1, 2, 3, 4, 5, 6, 7], options(max_tokens=1)))
        self.assertEqual(model.read, [[5, 6, 7]])


class CachedEqualsUncached(unittest.TestCase):
    def _compare(self, config: ModelConfig, dtype: torch.dtype, tolerance: float) -> None:
        model = random_transformer(config, 7, dtype)
        stream = np.random.default_rng(8).integers(0, VOCABULARY_SIZE, 6 * config.window).tolist()
        window = config.window
        for length in (1, window - 1, window, window + 1, 2 * window):
            context = Context(model, stream[:length])
            for known in range(length, 4 * window + 3):
                with torch.no_grad():
                    seen = torch.tensor([stream[window_start(known, window) : known]])
                    self.assertTrue(window // 2 < seen.shape[1] <= window or known == seen.shape[1])
                    expected = model(seen)[0, -1].double().numpy()
                got = context.logits()
                np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
                self.assertGreater(expected.std(), 0.1)
                np.testing.assert_array_equal(context.logits(), got)
                context.append(stream[known])

    def test_in_float64(self) -> None:
        self._compare(TINY, torch.float64, 1e-10)

    def test_in_float32(self) -> None:
        self._compare(TINY, torch.float32, 1e-4)

    def test_with_tied_weights_an_odd_window_and_equal_heads(self) -> None:
        config = ModelConfig(
            layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=7, tied=True
        )
        self._compare(config, torch.float64, 1e-10)

    def test_a_prompt_in_one_piece_equals_the_same_tokens_one_by_one_or_in_pieces(self) -> None:
        model = random_transformer(TINY, 9, torch.float64)
        stream = np.random.default_rng(9).integers(0, VOCABULARY_SIZE, 80).tolist()
        for known in (1, 15, 16, 17, 24, 25, 32, 33, 80):
            expected = Context(model, stream[:known]).logits()
            for piece in (1, 3, 16, 20):
                context = Context(model, stream[:1])
                context.logits()
                for position in range(1, known):
                    context.append(stream[position])
                    if position % piece == 0:
                        context.logits()
                np.testing.assert_allclose(context.logits(), expected, rtol=0, atol=1e-10)


class Policies(unittest.TestCase):
    def _reads(self, policy: Policy, prompt: list[int]) -> list[int]:
        model = scripted([65], prompt_tokens=len(prompt), policy=policy)
        list(generate(model, prompt, options(max_tokens=1)))
        return model.read[0]

    def test_under_mask_and_reset_a_prompt_counts_from_its_last_boundary(self) -> None:
        prompt = [256, 97, 98, 256, 99]
        self.assertEqual(self._reads("cross", prompt), prompt)
        apart: tuple[Policy, ...] = ("mask", "reset")
        for policy in apart:
            self.assertEqual(self._reads(policy, prompt), [256, 99])
            self.assertEqual(self._reads(policy, [97, 256]), [256])
            self.assertEqual(self._reads(policy, [97, 98]), [97, 98])

    def test_under_mask_and_reset_what_stands_before_the_boundary_changes_nothing(self) -> None:
        for policy, equal in (("mask", True), ("reset", True), ("cross", False)):
            config = ModelConfig(**{**vars(TINY), "policy": policy})
            model = random_transformer(config, 3, torch.float64)
            one, other = (Context(model, [256, x, 66, 256, 67]).logits() for x in (65, 70))
            self.assertEqual(bool((one == other).all()), equal, policy)

    def test_under_reset_the_window_too_counts_from_the_boundary(self) -> None:
        model = scripted([65] * 9, window=4, policy="reset")
        list(generate(model, [1, 2, 3, 256, 7], options(max_tokens=4)))
        self.assertEqual([len(ids) for ids in model.read], [2, 1, 1, 3])


DOCUMENTS = (
    "ABCD",
    "안녕하세요.",
    "😊📚😊",
    "Grüße — здравствуй, 世界!",
    "e\u0301té\r\n👩\u200d🚀",
    "שלום\u2028नमस्ते",
)


def overfit(rows: Sequence[Sequence[int]], scored_from: Sequence[int], steps: int) -> Transformer:
    """A tiny Transformer that knows `rows` by heart; targets before `scored_from` are not learnt."""
    model = Transformer(
        ModelConfig(layers=2, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=16, window=64), seed=0
    )
    longest = max(map(len, rows)) - 1
    inputs, targets = (torch.full((len(rows), longest), fill) for fill in (DOC_BOUNDARY, -1))
    for index, (row, first) in enumerate(zip(rows, scored_from, strict=True)):
        inputs[index, : len(row) - 1] = torch.tensor(row[:-1])
        targets[index, first - 1 : len(row) - 1] = torch.tensor(row[first:])
    optimizer = Optimizer(model, TrainConfig(data="rows", muon_rate=0.02, adam_rate=0.02))
    for step in range(steps):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
    return model


@functools.cache
def trained_on_documents() -> Transformer:
    rows = [[DOC_BOUNDARY, *text.encode(), DOC_BOUNDARY] for text in DOCUMENTS]
    return overfit(rows, [1] * len(rows), steps=60)


@functools.cache
def trained_on_cases() -> tuple[Transformer, dict[tuple[int, ...], tuple[int, int]]]:
    """A model that continues [256, key] with a case's script, and the prompt of each script."""
    distinct = sorted({tuple(case["script"]) for case in recorded_cases()})
    prompts = {script: (DOC_BOUNDARY, key) for key, script in enumerate(distinct)}
    model = overfit([[*prompts[script], *script] for script in distinct], [2] * len(distinct), steps=100)
    return model, prompts


class ThroughATrainedModel(unittest.TestCase):
    def test_greedy_decoding_reproduces_a_document_and_stops_by_itself(self) -> None:
        events = list(generate(trained_on_documents(), "", GREEDY))
        text = text_of(events)
        self.assertIn(text, DOCUMENTS)
        self.assertEqual(events[-1].end, End("boundary", "", len(text.encode()) + 1))

    def test_samples_end_by_themselves_and_their_events_keep_the_invariants(self) -> None:
        model, found = trained_on_documents(), set()
        for seed in range(12):
            whole = list(generate(model, "", options(seed=seed, temperature=1.0, max_tokens=200)))
            found.add(text_of(whole))
            for stops, limit in (((), 200), (("세",), 200), (("!", "📚😊"), 9), ((), seed)):
                config = options(seed=seed, temperature=1.0, stop=stops, max_tokens=limit)
                expected = oracle(ids_of(whole), stops, limit)
                assert expected is not None
                check_invariants(list(generate(model, "", config)), expected, stops)
        self.assertGreaterEqual(len(found & set(DOCUMENTS)), 4, found)

    def test_a_prompt_is_continued_to_the_end_of_its_document(self) -> None:
        for text in DOCUMENTS:
            raw = text.encode()
            for cut in (2, len(raw) // 2, len(raw)):
                events = list(generate(trained_on_documents(), [256, *raw[:cut]], GREEDY))
                self.assertEqual(ids_of(events), [*raw[cut:], 256])

    def test_recorded_cases_through_a_trained_model(self) -> None:
        model, prompts = trained_on_cases()
        for case in recorded_cases():
            with self.subTest(case["name"]):
                config = options(temperature=0.0, stop=tuple(case["stop"]), max_tokens=case_limit(case))
                check_case(case, list(generate(model, prompts[tuple(case["script"])], config)))


class TheProtocol(unittest.TestCase):
    def test_transformer_and_scripted_model_are_both_models(self) -> None:
        models: list[Model] = [scripted([65]), random_transformer(TINY, 0)]
        for model in models:
            self.assertIsNotNone(next(generate(model, "")).ids)
