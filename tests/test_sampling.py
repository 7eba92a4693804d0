"""Logits to a distribution to an id: against hand-worked values, a twin in plain Python, and Hugging Face."""

from __future__ import annotations

import functools
import importlib.util
import math
import unittest
import warnings
from collections import defaultdict
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from tinylm.config import GenerateConfig
from tinylm.errors import RequestError, ShapeError
from tinylm.sampling import allowed_after, distribution, distributions, draw, draws, penalized, uniform

Floats = npt.NDArray[np.float64]


def logits_of(*probabilities: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities))


def options(**values: object) -> GenerateConfig:
    return GenerateConfig(**{"temperature": 1.0, **values})  # type: ignore[arg-type]


def twin(logits: list[float], config: GenerateConfig) -> list[float]:
    """The same distribution step by step, each step renormalised, in plain Python."""
    kept = sorted((i for i, x in enumerate(logits) if x > -math.inf), key=lambda i: (-logits[i], i))
    if config.temperature == 0:
        return [float(i == kept[0]) for i in range(len(logits))]

    def softmax() -> dict[int, float]:
        scaled = {i: (logits[i] - logits[kept[0]]) / config.temperature for i in kept}
        total = math.fsum(math.exp(x) for x in scaled.values())
        return {i: math.exp(x) / total for i, x in scaled.items()}

    if config.top_k:
        kept = kept[: config.top_k]
    if config.top_p < 1:
        shares, held, chosen = softmax(), 0.0, []
        for i in kept:
            chosen.append(i)
            held += shares[i]
            if held >= config.top_p:
                break
        kept = chosen
    shares = softmax()
    kept = [i for i in kept if shares[i] >= config.min_p * shares[kept[0]]]
    shares = softmax()
    return [shares.get(i, 0.0) for i in range(len(logits))]


class HandWorkedValues(unittest.TestCase):
    logits = logits_of(0.15, 0.5, 0.05, 0.3)

    def expect(self, expected: list[float], **values: object) -> None:
        np.testing.assert_allclose(distribution(self.logits, options(**values)), expected, atol=1e-15)

    def test_temperature_1_is_the_softmax(self) -> None:
        self.expect([0.15, 0.5, 0.05, 0.3])

    def test_temperature_a_half_squares_the_odds(self) -> None:
        self.expect([x / 0.365 for x in (0.0225, 0.25, 0.0025, 0.09)], temperature=0.5)

    def test_top_k_keeps_the_k_most_probable(self) -> None:
        self.expect([0, 0.5 / 0.8, 0, 0.3 / 0.8], top_k=2)

    def test_top_p_keeps_the_smallest_set_that_holds_the_share(self) -> None:
        self.expect([0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95], top_p=0.81)
        self.expect([0, 0.5 / 0.8, 0, 0.3 / 0.8], top_p=0.79)
        self.expect([0, 1, 0, 0], top_p=1e-9)

    def test_min_p_is_a_share_of_the_best(self) -> None:
        self.expect([0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95], min_p=0.29)
        self.expect([0, 0.5 / 0.8, 0, 0.3 / 0.8], min_p=0.31)

    def test_temperature_comes_before_top_p(self) -> None:
        # At temperature 1 the best holds 0.5; at 0.5 it holds 0.685 and is enough for 0.6 alone.
        self.expect([0, 1, 0, 0], temperature=0.5, top_p=0.6)

    def test_top_k_comes_before_top_p(self) -> None:
        # Of all four the best holds 0.5 < 0.6; of the best two it holds 0.625.
        self.expect([0, 1, 0, 0], top_k=2, top_p=0.6)

    def test_temperature_0_takes_the_best(self) -> None:
        self.expect([0, 1, 0, 0], temperature=0.0)

    def test_the_lower_id_ranks_first_on_ties(self) -> None:
        tied = np.array([0.0, 2.0, 2.0, 2.0])
        for config in (options(temperature=0.0), options(top_k=1), options(top_p=0.1)):
            self.assertEqual(distribution(tied, config).tolist(), [0, 1, 0, 0])
        self.assertEqual(distribution(tied, options(top_k=2)).tolist(), [0, 0.5, 0.5, 0])
        # Many ties among many ids, where a sort that is not stable shows.
        many = np.random.default_rng(0).integers(0, 3, 257).astype(np.float64)
        kept = np.flatnonzero(distribution(many, options(top_k=20)))
        np.testing.assert_array_equal(kept, np.flatnonzero(many == 2)[:20])

    def test_top_k_1_is_greedy_where_rounding_hides_the_best(self) -> None:
        # Divided by the temperature, the two differ by less than exp() can tell.
        close = np.array([1.0, 1.0 + 1e-9])
        self.assertEqual(distribution(close, options(temperature=1e9, top_k=1)).tolist(), [0, 1])

    def test_top_k_0_and_beyond_the_vocabulary_change_nothing(self) -> None:
        plain = distribution(self.logits, options())
        for top_k in (0, 4, 5, 257, 10**30):
            np.testing.assert_array_equal(distribution(self.logits, options(top_k=top_k)), plain)

    def test_an_id_of_logit_minus_infinity_has_probability_0(self) -> None:
        given_logits = logits_of(0.0, 0.25, 0.75)
        self.assertEqual(distribution(given_logits, options())[0], 0.0)
        self.assertEqual(distribution(given_logits, options(temperature=0.0)).tolist(), [0, 0, 1])

    def test_the_mask_comes_first_and_what_is_left_is_renormalised(self) -> None:
        allowed = np.array([True, False, True, True])
        result = distribution(self.logits, options(), allowed)
        np.testing.assert_allclose(result, [0.3, 0, 0.1, 0.6], atol=1e-15)
        self.assertEqual(distribution(self.logits, options(temperature=0.0), allowed).tolist(), [0, 0, 0, 1])
        self.assertEqual(distribution(self.logits, options(top_k=1), allowed).tolist(), [0, 0, 0, 1])

    def test_the_logits_are_left_as_they_were(self) -> None:
        before = self.logits.copy()
        distribution(self.logits, options(top_k=1, temperature=0.3), np.array([True, False, True, True]))
        np.testing.assert_array_equal(self.logits, before)


class AgainstOthers(unittest.TestCase):
    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.floats(-30, 30) | st.just(-math.inf), min_size=1, max_size=12).filter(
            lambda row: max(row) > -math.inf
        ),
        st.sampled_from([0.0, 0.1, 0.8, 1.0, 3.0]),
        st.integers(0, 13),
        st.floats(0.01, 1),
        st.floats(0, 1),
    )
    def test_equals_the_twin_in_plain_python(
        self, logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
    ) -> None:
        config = options(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        ours, theirs = distribution(np.array(logits), config), np.array(twin(logits, config))
        self.assertAlmostEqual(ours.sum(), 1.0, places=12)
        if ((ours > 0) != (theirs > 0)).any():
            # The two may round differently exactly at a threshold: then a hair's width decides.
            nudged = [
                twin(
                    logits,
                    options(temperature=temperature, top_k=top_k, top_p=min(1, top_p * f), min_p=min_p * g),
                )
                for f in (1 - 1e-12, 1 + 1e-12)
                for g in (1 - 1e-12, 1 + 1e-12)
            ]
            self.assertTrue(any(((ours > 0) == (np.array(x) > 0)).all() for x in nudged))
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-300)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_equals_hugging_face(self) -> None:
        import torch
        from transformers import generation  # type: ignore[import-not-found]

        random = np.random.default_rng(0)
        for _ in range(200):
            logits = random.normal(0, 3, 257)
            temperature, top_p, min_p = (
                random.uniform(0.2, 2),
                random.uniform(0.05, 1),
                random.uniform(0, 0.5),
            )
            top_k = int(random.integers(1, 300))
            scores = torch.from_numpy(logits)[None]
            for processor in (
                generation.TemperatureLogitsWarper(float(temperature)),
                generation.TopKLogitsWarper(top_k),
                generation.TopPLogitsWarper(float(top_p)),
                generation.MinPLogitsWarper(float(min_p)),
            ):
                scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
            theirs = scores.softmax(-1)[0].numpy()
            config = options(
                temperature=float(temperature), top_k=top_k, top_p=float(top_p), min_p=float(min_p)
            )
            np.testing.assert_allclose(distribution(logits, config), theirs, rtol=1e-9)


class Extremes(unittest.TestCase):
    def test_a_tiny_temperature_is_greedy_and_never_nan(self) -> None:
        for logits in (
            logits_of(0.2, 0.5, 0.3),
            np.array([-1e308, 1e308, -1e308]),
            np.array([1e-3, 0.5, -math.inf]),
        ):
            for temperature in (1e-4, 1e-300, 5e-324):
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    result = distribution(logits, options(temperature=temperature))
                self.assertEqual(result.tolist(), [0, 1, 0], temperature)

    def test_a_huge_temperature_is_uniform_over_what_is_possible(self) -> None:
        result = distribution(np.array([3.0, -math.inf, -50.0]), options(temperature=1e300))
        self.assertEqual(result.tolist(), [0.5, 0, 0.5])

    def test_lower_precisions_are_taken_and_computed_in_float64(self) -> None:
        for dtype in (np.float16, np.float32):
            result = distribution(np.array([0, 1, 2], dtype=dtype), options())
            self.assertEqual(result.dtype, np.float64)
            np.testing.assert_allclose(result, np.exp([0, 1, 2]) / np.exp([0, 1, 2]).sum(), rtol=1e-15)

    def test_nan_and_infinity_are_refused_by_id(self) -> None:
        for bad in (math.nan, math.inf):
            for config in (options(), options(temperature=0.0)):
                with self.assertRaisesRegex(RequestError, f"logit of id 2 is {bad}"):
                    distribution(np.array([0, 1, bad, 3]), config)

    def test_a_row_without_a_possible_id_is_refused(self) -> None:
        for config in (options(), options(temperature=0.0)):
            with self.assertRaisesRegex(RequestError, "none of 2 ids can be drawn"):
                distribution(np.array([-math.inf, -math.inf]), config)
            with self.assertRaisesRegex(RequestError, "0 are allowed"):
                distribution(np.array([0.0, 0.0]), config, np.array([False, False]))
            with self.assertRaisesRegex(RequestError, "1 are allowed"):
                distribution(np.array([0.0, -math.inf]), config, np.array([False, True]))
            with self.assertRaisesRegex(RequestError, "none of 0 ids"):
                distribution(np.array([]), config)

    def test_other_shapes_and_types_are_refused(self) -> None:
        for bad in (np.zeros((1, 3)), np.zeros(3, dtype=np.int64), [0.0, 1.0]):
            with self.assertRaises(ShapeError):
                distribution(bad, options())  # type: ignore[arg-type]
        with self.assertRaises(ShapeError):
            distribution(np.zeros(3), options(), np.ones(2, dtype=bool))


class DrawsByNumber(unittest.TestCase):
    def test_values_are_pinned(self) -> None:
        # A change here changes every sample that anyone made with a seed.
        self.assertEqual(
            [uniform(0, 0), uniform(0, 1), uniform(1, 0), uniform(2**70, 10**6)],
            PINNED,
        )

    def test_a_number_depends_on_seed_and_number_alone(self) -> None:
        forward = [uniform(7, k) for k in range(50)]
        np.random.seed(1)
        self.assertEqual([uniform(7, k) for k in reversed(range(50))], forward[::-1])

    def test_seed_and_number_do_not_run_into_each_other(self) -> None:
        values = {uniform(seed, number) for seed in range(120) for number in range(120)}
        self.assertEqual(len(values), 120 * 120)

    def test_numbers_are_uniform_and_uncorrelated(self) -> None:
        table = np.array([[uniform(seed, number) for number in range(200)] for seed in range(200)])
        self.assertTrue(((table >= 0) & (table < 1)).all())
        counts = np.histogram(table, bins=100, range=(0, 1))[0]
        self.assertLess(chi_square(counts, np.full(100, 0.01)), bound(99))
        for a, b in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):
            # 5 standard errors of a correlation of independent numbers.
            self.assertLess(abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]), 5 / math.sqrt(a.size))

    def test_only_integers_from_0_are_taken(self) -> None:
        for seed, number in ((-1, 0), (0, -1), (1.0, 0), (True, 0), (0, None)):
            with self.assertRaises(RequestError):
                uniform(seed, number)  # type: ignore[arg-type]


class Draw(unittest.TestCase):
    def test_draws_follow_the_distribution(self) -> None:
        probabilities = distribution(np.random.default_rng(3).normal(0, 1.5, 257), options())
        counts = np.bincount([draw(probabilities, uniform(5, k)) for k in range(20_000)], minlength=257)
        self.assertLess(chi_square(counts, probabilities), bound(256))

    def test_this_test_would_notice_a_wrong_distribution(self) -> None:
        probabilities = distribution(np.random.default_rng(3).normal(0, 1.5, 257), options())
        sharper = distribution(np.log(probabilities), options(temperature=0.9))
        counts = np.bincount([draw(sharper, uniform(5, k)) for k in range(20_000)], minlength=257)
        self.assertGreater(chi_square(counts, probabilities), bound(256))

    def test_equals_exact_arithmetic(self) -> None:
        # Eighths are exact in float64, so the twin in fractions must agree everywhere.
        probabilities = np.array([0, 1, 0, 0, 3, 4, 0]) / 8
        for step in range(64):
            u = Fraction(step, 64)
            sums = [sum(map(Fraction, probabilities[: i + 1]), Fraction()) for i in range(7)]
            expected = next(i for i, total in enumerate(sums) if total > u)
            self.assertEqual(draw(probabilities, float(u)), expected)

    def test_never_an_id_of_probability_0(self) -> None:
        last = 1 - 2.0**-53
        for row in ([0, 1, 0], [0, 0.3, 0.7, 0], [0, 0.1] * 10 + [0], [0, 5e-324, 0], [1, 1e-30, 0]):
            for scale in (1.0, 0.999999, 0.5000001, 1.0000001):
                probabilities = np.array(row, dtype=np.float64) * scale
                if not probabilities.sum():
                    continue
                for u in (0.0, 0.25, 0.5, last):
                    drawn = draw(probabilities, u)
                    self.assertGreater(probabilities[drawn], 0)
                    self.assertEqual(draws(probabilities[None], [u]), [drawn])

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.just(0.0) | st.floats(1e-12, 1), min_size=1, max_size=9).filter(any),
        st.sampled_from([0.0, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
    )
    def test_never_an_id_of_probability_0_for_any_row(self, row: list[float], u: float) -> None:
        self.assertGreater(row[draw(np.array(row), u)], 0)

    def test_what_is_not_a_distribution_is_refused(self) -> None:
        for row in ([0.0, 0.0], [math.nan, 1.0], [-0.5, 1.0], [math.inf, 1.0], []):
            with self.assertRaises(RequestError):
                draw(np.array(row, dtype=np.float64), 0.5)
        for u in (1.0, -0.1, math.nan):
            with self.assertRaises(RequestError):
                draw(np.array([1.0]), u)


class ManyRows(unittest.TestCase):
    """Rows side by side give what each gives alone, bit for bit."""

    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 20),
        st.sampled_from((1, 3, 17, 257)),
        st.sampled_from((0.0, 1e-300, 0.3, 0.8, 1.0, 50.0)),
        st.sampled_from(({}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.5})),
    )
    def test_distributions_and_draws(
        self, seed: int, rows: int, size: int, temperature: float, more: dict[str, float]
    ) -> None:
        random = np.random.default_rng(seed)
        logits_RV = random.normal(0, 4, (rows, size)).round(random.integers(0, 9))  # ties among them
        logits_RV[:, 1:][random.random((rows, size - 1)) < 0.1] = -np.inf
        config = options(temperature=temperature, **more)
        together_RV = distributions(logits_RV, config)
        alone = [distribution(logits_V, config) for logits_V in logits_RV]
        self.assertEqual(together_RV.tobytes(), np.stack(alone).tobytes())
        numbers = random.choice([0.0, 0.5, 1 - 2.0**-53, *random.random(5)], rows)
        expected = [draw(row_V, float(u)) for row_V, u in zip(alone, numbers, strict=True)]
        self.assertEqual(draws(together_RV, numbers), expected)

    def test_a_row_without_a_distribution_is_refused(self) -> None:
        for bad in (math.nan, math.inf, -math.inf):
            with self.assertRaisesRegex(RequestError, "of each row tells why"):
                distributions(np.array([[0.0, 1.0], [bad, bad]]), options())


@functools.cache
def followers() -> dict[bytes, set[int]]:
    """What follows each begun character, from the encodings of all 1,112,064 Unicode scalar values."""
    found: dict[bytes, set[int]] = defaultdict(set)
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            raw = chr(code).encode()
            for i, byte in enumerate(raw):
                found[raw[:i]].add(byte)
    return found


class Penalties(unittest.TestCase):
    """Recent tokens become less probable; values worked out by hand."""

    def test_positive_logits_are_divided_negative_ones_multiplied_then_both_lose(self) -> None:
        logits_V = np.array([2.0, -2.0, 1.0, 0.0, 3.0])
        config = GenerateConfig(repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
        found_V = penalized(logits_V, [0, 1, 1, 3, 0, 0], config)
        self.assertEqual(found_V.tolist(), [1 - 0.5 - 0.75, -4 - 0.5 - 0.5, 1.0, 0 - 0.5 - 0.25, 3.0])
        self.assertEqual(logits_V.tolist(), [2.0, -2.0, 1.0, 0.0, 3.0])

    def test_only_the_last_tokens_are_recent(self) -> None:
        logits_V = np.ones(4)
        for last, changed in ((0, []), (1, [2]), (2, [1, 2]), (9, [0, 1, 2]), (-1, [0, 1, 2])):
            config = GenerateConfig(presence_penalty=1.0, repeat_last_n=last)
            found_V = penalized(logits_V, [0, 1, 2], config)
            self.assertEqual(np.flatnonzero(found_V != logits_V).tolist(), changed, last)

    def test_without_penalties_nothing_is_changed(self) -> None:
        logits_V = np.ones(4)
        self.assertIs(penalized(logits_V, [0, 1], GenerateConfig()), logits_V)
        self.assertIs(penalized(logits_V, [], GenerateConfig(repeat_penalty=2.0)), logits_V)

    def test_an_id_that_is_forbidden_stays_so(self) -> None:
        logits_V = np.array([-np.inf, 1.0])
        self.assertEqual(penalized(logits_V, [0], GenerateConfig(repeat_penalty=1.5))[0], -np.inf)


class Utf8Grammar(unittest.TestCase):
    def test_exactly_the_bytes_of_well_formed_characters_may_follow(self) -> None:
        for held, bytes_after in followers().items():
            expected = bytes_after if held else bytes_after | {256}
            self.assertEqual(set(np.flatnonzero(allowed_after(held)).tolist()), expected, held)

    def test_the_boundary_comes_only_between_characters(self) -> None:
        self.assertTrue(allowed_after(b"")[256])
        self.assertFalse(any(allowed_after(held)[256] for held in followers() if held))

    def test_with_little_room_only_characters_that_fit_may_begin(self) -> None:
        lengths = {room: {chr(c).encode()[0] for c in scalars(room)} | {256} for room in (1, 2, 3, 4)}
        for room, expected in lengths.items():
            self.assertEqual(set(np.flatnonzero(allowed_after(b"", room)).tolist()), expected)

    def test_what_is_begun_may_be_completed_in_its_room(self) -> None:
        self.assertEqual(np.flatnonzero(allowed_after(b"\xf0\x9f", 2)).tolist(), list(range(0x80, 0xC0)))

    def test_bytes_that_nothing_can_complete_are_refused(self) -> None:
        for held in (b"A", b"\xff", b"\xc0", b"\xed\xa0", b"\xe2\x82\xac", b"\xf4\x90"):
            with self.assertRaisesRegex(RequestError, "no id can complete"):
                allowed_after(held)
        for held, room in ((b"", 0), (b"\xf0\x9f", 1)):
            with self.assertRaisesRegex(RequestError, f"in {room} tokens"):
                allowed_after(held, room)


def scalars(longest: int) -> list[int]:
    """One code point per lead byte and length, for characters of at most `longest` bytes."""
    codes = [
        *range(0x80),
        *range(0x80, 0x800, 0x40),
        *range(0x800, 0xD800, 0x400),
        *range(0xE000, 0x110000, 0x400),
    ]
    return [code for code in codes if len(chr(code).encode()) <= longest]


def chi_square(counts: npt.NDArray[np.int64], probabilities: Floats) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def bound(freedom: int) -> float:
    """Five standard deviations above the mean of chi-square; the seeds are fixed, so it is passed or not."""
    return freedom + 5 * math.sqrt(2 * freedom)


PINNED = [0.9499992733828913, 0.7600989712141117, 0.7515821266136936, 0.37017241182118976]
