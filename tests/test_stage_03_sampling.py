"""Stage 03: the settings by hand on four ids, and a chi-square test that is itself tested."""

from __future__ import annotations

import math
import unittest

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.config import GenerateConfig
from tinylm.sampling import distribution, draw, uniform

# Upper critical values of the chi-square distribution at 0.001: NIST/SEMATECH e-Handbook, 1.3.6.7.4.
NIST = {1: 10.828, 5: 20.515, 10: 29.588, 20: 45.315, 50: 86.661, 100: 149.449}

P = np.array([0.1, 0.4, 0.2, 0.3])


def setting(**values: float) -> list[float]:
    config = GenerateConfig(**{"temperature": 1.0, **values})  # type: ignore[arg-type]
    return [round(float(p), 12) for p in distribution(np.log(P), config)]


class TheSettings(unittest.TestCase):
    def test_the_page_s_example(self) -> None:
        self.assertEqual(setting(), [0.1, 0.4, 0.2, 0.3])
        squares = P**2 / (P**2).sum()
        np.testing.assert_allclose(setting(temperature=0.5), squares, atol=1e-12)
        roots = np.sqrt(P) / np.sqrt(P).sum()
        np.testing.assert_allclose(setting(temperature=2.0), roots, atol=1e-12)
        self.assertEqual(setting(temperature=0.0), [0, 1, 0, 0])
        np.testing.assert_allclose(setting(top_k=2), [0, 4 / 7, 0, 3 / 7], atol=1e-12)
        np.testing.assert_allclose(setting(top_p=0.8), [0, 4 / 9, 2 / 9, 3 / 9], atol=1e-12)
        np.testing.assert_allclose(setting(min_p=0.6), [0, 4 / 7, 0, 3 / 7], atol=1e-12)

    def test_temperature_changes_no_rank_and_forbids_nothing(self) -> None:
        logits = np.random.default_rng(0).normal(0, 3, 257)
        for temperature in (0.3, 1.0, 5.0):
            p = distribution(logits, GenerateConfig(temperature=temperature))
            np.testing.assert_array_equal(np.argsort(p), np.argsort(logits))
            self.assertTrue((p > 0).all())

    def test_a_seed_and_a_number_are_all_that_a_draw_depends_on(self) -> None:
        forwards = [draw(P, uniform(3, k)) for k in range(200)]
        np.random.seed(0)
        self.assertEqual([draw(P, uniform(3, k)) for k in reversed(range(200))], forwards[::-1])


class TheTest(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(3)

    def test_a_statistic_worked_out_by_hand(self) -> None:
        statistic, freedom, _ = self.stage.chi_square(np.array([60, 40]), np.array([0.5, 0.5]))
        self.assertEqual((statistic, freedom), (100 / 50 + 100 / 50, 1))

    def test_critical_values_are_those_of_the_table(self) -> None:
        for freedom, critical in NIST.items():
            cells = freedom + 1
            # Two cells that differ by d from an expectation of e each add 2 d^2 / e.
            expected = 10_000.0
            off = math.sqrt(critical * expected / 2)
            count = np.full(cells, expected)
            count[0] += off
            count[1] -= off
            statistic, found, chance = self.stage.chi_square(count, np.full(cells, 1 / cells))
            self.assertEqual(found, freedom)
            self.assertAlmostEqual(statistic, critical, places=6)
            self.assertAlmostEqual(chance, 0.001, delta=2e-6)

    def test_an_impossible_draw_is_refused_outright(self) -> None:
        result = self.stage.chi_square(np.array([999, 1]), np.array([1.0, 0.0]))
        self.assertEqual(result, (math.inf, 0, 0.0))

    def test_rare_ids_are_counted_together(self) -> None:
        rare = np.array([0.5, 0.4, *[0.01] * 10])  # one draw each expected, ten together
        _, freedom, _ = self.stage.chi_square(np.array([50, 40, *[1] * 10]), rare)
        self.assertEqual(freedom, 2)
        rarer = np.array([0.5, 0.48, 0.01, 0.01])  # two together: they join the smallest cell
        statistic, freedom, _ = self.stage.chi_square(np.array([50, 48, 0, 2]), rarer)
        self.assertEqual((statistic, freedom), (0.0, 1))

    def test_honest_samplers_are_refused_as_often_as_stated(self) -> None:
        random = np.random.default_rng(1)
        chances = [self.stage.chi_square(random.multinomial(400, P), P)[2] for _ in range(2_000)]
        for level in (0.5, 0.1, 0.01):
            share = np.mean([chance < level for chance in chances])
            # Five standard errors of a share, and what counts in place of a continuum cost.
            self.assertAlmostEqual(share, level, delta=5 * math.sqrt(level / 2_000) + 0.01)


class TheFaults(unittest.TestCase):
    def test_each_faulty_sampler_gives_another_distribution(self) -> None:
        stage, logits = load_stage(3), np.log(P)
        np.testing.assert_allclose(stage.faulty_top_p(logits), [0, 4 / 9, 2 / 9, 3 / 9], atol=1e-12)
        self.assertEqual(setting(top_p=0.9 + 1e-9), [0.1, 0.4, 0.2, 0.3])
        self.assertLess(stage.faulty_temperature(logits).max(), 0.4)  # flatter, where it should be steeper

    def test_bits_of_a_setting_equal_a_loop_over_the_text(self) -> None:
        stage = load_stage(3)
        from tinylm.baselines import Ngrams, ngram_bits
        from tinylm.corpus import Split

        train, text = Split.of([b"abcabd", b"abab"]), Split.of([b"abd", b"ca"])
        model = Ngrams.count(train.stream, 3)
        bits, never = stage.held_out(model, text)
        expected = ngram_bits(train.stream, text.stream, 3).sum() / text.bytes
        self.assertAlmostEqual(bits["temperature 1"], expected, places=9)
        greedy = [
            int(model.distribution(text.stream[:i]).argmax()) != text.stream[i]
            for i in range(1, len(text.stream))
        ]
        self.assertAlmostEqual(never["temperature 0"], 100 * np.mean(greedy), places=9)


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(3), "--quick", *page_arguments(3))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


if __name__ == "__main__":
    unittest.main()
