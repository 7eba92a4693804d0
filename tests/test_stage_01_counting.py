"""Stage 01: what a table of counts says, worked out again with dictionaries and fractions."""

from __future__ import annotations

import math
import unittest
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.baselines import Ngrams, ladder, ngram_bits
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split


class Twin:
    """Interpolated Witten-Bell in plain Python: one dictionary per order, exact fractions."""

    def __init__(self, stream: list[int], order: int) -> None:
        self.follows: list[dict[tuple[int, ...], Counter[int]]] = []
        for n in range(1, order + 1):
            table: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
            for place in range(max(1, n - 1), len(stream)):
                table[tuple(stream[place - n + 1 : place])][stream[place]] += 1
            self.follows.append(table)

    def probability(self, token: int, before: list[int]) -> Fraction:
        result = Fraction(1, 257)
        for n, table in enumerate(self.follows, 1):
            if n - 1 > len(before):
                break
            seen = table.get(tuple(before[len(before) - n + 1 :]))
            if seen is not None:
                kinds = len(seen)
                result = (seen[token] + kinds * result) / Fraction(seen.total() + kinds)
        return result


class Counting(unittest.TestCase):
    def test_the_page_s_example_is_worked_out_by_hand(self) -> None:
        table = Ngrams.count(Split.of([b"abab"]).stream, 2)
        single_b = (2 + 3 / 257) / (5 + 3)
        self.assertAlmostEqual(table.distribution([ord("a")])[ord("b")], (2 + single_b) / 3, places=12)
        self.assertAlmostEqual(-math.log2((2 + single_b) / 3), 0.414, places=3)

    def test_tables_equal_dictionaries_and_fractions(self) -> None:
        train = Split.of([b"abracadabra", b"abba", b"cadabra!"])
        text = Split.of([b"abracabba?", b"zz", b"cadabra!"])
        stream = text.stream.tolist()
        for order in (1, 2, 3, 5, 6):
            twin = Twin(train.stream.tolist(), order)
            bits = [-math.log2(twin.probability(stream[i], stream[:i])) for i in range(1, len(stream))]
            np.testing.assert_allclose(ngram_bits(train.stream, text.stream, order), bits, rtol=1e-12)

    def test_a_byte_that_was_never_seen_costs_bits_and_not_infinitely_many(self) -> None:
        for order in (1, 3, 6):
            bits = ngram_bits(Split.of([b"aaaa"]).stream, Split.of([b"az"]).stream, order)
            self.assertTrue(np.isfinite(bits).all())
            self.assertGreater(bits[1], 8)

    def test_the_end_of_a_document_is_predicted_and_paid_for(self) -> None:
        rung = ladder(Split.of([b"ab"] * 50), Split.of([b"ab"]), orders=(2,), compressors=())[1]
        self.assertIsNotNone(rung.bits_per_boundary)
        self.assertLess(rung.bits_per_boundary or 9, 0.1)  # after b there was nothing but the end


class WhereAnOrderGains(unittest.TestCase):
    def test_groups_equal_a_search_through_the_text(self) -> None:
        stage = load_stage(1)
        train, text = Split.of([b"abcab", b"bcd"]), Split.of([b"abcd", b"xbcab"])
        seen, stream = train.stream.tolist(), text.stream.tolist()

        def occurs(gram: list[int], last: int) -> bool:
            return any(seen[i : i + len(gram)] == gram for i in range(last - len(gram) + 1))

        for order in (2, 3, 4):
            expected = []
            for place in range(1, len(stream)):
                gram = stream[max(0, place - order + 1) : place + 1]
                known = len(gram) == order and occurs(gram[:-1], len(seen) - 1)
                expected.append(0 if not known else 2 if occurs(gram, len(seen)) else 1)
            self.assertEqual(stage.groups_of(train, text, order).tolist(), expected, order)

    def test_a_context_that_was_never_seen_leaves_the_shorter_one_as_it_is(self) -> None:
        train, text = Split.of([b"abcdefgh" * 3]), Split.of([b"xbcdefgh", b"hgfedcba"])
        five, six = (ngram_bits(train.stream, text.stream, order) for order in (5, 6))
        unseen = load_stage(1).groups_of(train, text, 6) == 0
        self.assertTrue(0 < unseen.sum() < len(unseen))
        np.testing.assert_array_equal(five[unseen], six[unseen])
        self.assertTrue((five[~unseen] != six[~unseen]).any())


class TheTexts(unittest.TestCase):
    def test_every_tenth_document_is_held_out_and_no_other(self) -> None:
        every = [bytes([65 + i]) * 3 for i in range(25)]
        train, text = load_stage(1).held_out(every)
        self.assertEqual(
            [text.document(i).tobytes()[::2] for i in range(3)], [every[0], every[10], every[20]]
        )
        self.assertEqual((train.documents, text.documents), (22, 3))

    def test_the_names_are_the_same_on_every_python(self) -> None:
        texts = load_stage(1).texts()
        sizes = {name: (train.bytes, text.bytes) for name, (train, text) in texts.items()}
        self.assertEqual(sizes["2,000 names"], (52_997, 5_944))
        self.assertEqual(texts["2,000 names"][1].digest[:16], DIGEST)
        self.assertLessEqual(sum(sizes["prose"]), 150_000)
        self.assertEqual(int(texts["prose"][0].stream[0]), DOC_BOUNDARY)


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(1), "--quick", *page_arguments(1))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


DIGEST = "e6c263741404a11b"

if __name__ == "__main__":
    unittest.main()
