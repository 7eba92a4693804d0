"""The ladder: n-grams against a twin that counts in dictionaries, compressors against their sizes."""

import bz2
import lzma
import math
import random
import unittest
import zlib
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stage_support import SHARED
from tinylm.baselines import BLOCK, Baseline, Ngrams, ladder, ngram_bits
from tinylm.corpus import Split
from tinylm.errors import RequestError

TEXTS = [
    b"abracadabra",
    b"a cab, a bar",
    "Grüße aus Köln".encode(),
    b"\x00\xff\xfe raw \x80",
    b"aaaaaaaa",
    b"b",
]
documents = st.lists(st.binary(min_size=1, max_size=20) | st.sampled_from(TEXTS), min_size=1, max_size=6)
few_bytes = st.lists(st.text("ab", min_size=1, max_size=15).map(str.encode), min_size=1, max_size=6)


class Twin:
    """Interpolated Witten-Bell as its formula reads, with dictionaries and exact fractions."""

    def __init__(self, stream: list[int], order: int) -> None:
        self.order = order
        self.seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for position in range(1, len(stream)):
            for length in range(min(order - 1, position) + 1):
                self.seen[tuple(stream[position - length : position])][stream[position]] += 1

    def probability(self, context: list[int], token: int) -> Fraction:
        result = Fraction(1, 257)
        for length in range(min(self.order - 1, len(context)) + 1):
            seen = self.seen.get(tuple(context[len(context) - length :]))
            if seen:
                kinds = len(seen)
                result = (seen[token] + kinds * result) / (seen.total() + kinds)
        return result

    def bits(self, stream: list[int]) -> list[float]:
        return [-math.log2(self.probability(stream[:i], stream[i])) for i in range(1, len(stream))]


class AnNgram(unittest.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(documents | few_bytes, documents | few_bytes, st.integers(1, 7))
    def test_gives_each_target_the_bits_of_the_formula(
        self, train: list[bytes], other: list[bytes], order: int
    ) -> None:
        one, two = Split.of(train).stream, Split.of(other).stream
        expected = Twin(one.tolist(), order).bits(two.tolist())
        np.testing.assert_allclose(ngram_bits(one, two, order), expected, rtol=1e-12)

    def test_worked_by_hand(self) -> None:
        # Stream 256 a b 256. Order 1: three continuations, three kinds: P(a) = (1 + 3/257) / 6.
        # Order 2: 'a' was followed once, by b: P(b|a) = (1 + P(b)) / 2.
        stream = Split.of([b"ab"]).stream
        unigram = (1 + 3 / 257) / 6
        np.testing.assert_allclose(2 ** -ngram_bits(stream, stream, 1), [unigram] * 3, rtol=1e-12)
        np.testing.assert_allclose(2 ** -ngram_bits(stream, stream, 2), [(1 + unigram) / 2] * 3, rtol=1e-12)

    @settings(max_examples=60, deadline=None)
    @given(documents | few_bytes, st.lists(st.integers(0, 256), max_size=9), st.integers(1, 7))
    def test_distribution_sums_to_one_and_agrees_with_the_formula(
        self, train: list[bytes], context: list[int], order: int
    ) -> None:
        stream = Split.of(train).stream
        distribution = Ngrams.count(stream, order).distribution(context)
        self.assertEqual(distribution.shape, (257,))
        self.assertAlmostEqual(float(distribution.sum()), 1.0, delta=1e-9)
        self.assertGreater(float(distribution.min()), 0.0)
        twin = Twin(stream.tolist(), order)
        for token in (0, 97, 98, 255, 256):
            self.assertAlmostEqual(
                float(distribution[token]), float(twin.probability(context, token)), delta=1e-12
            )

    def test_distribution_sums_to_one_after_contexts_of_real_text(self) -> None:
        text = "".join(f"{a} times {b} is {a * b}. " for a in range(40) for b in range(40)).encode()
        stream = Split.of([text[i : i + 211] for i in range(0, len(text), 211)]).stream
        model = Ngrams.count(stream, 6)
        chance = random.Random(0)
        for _ in range(200):
            start = chance.randrange(len(stream))
            sums = model.distribution(stream[start : start + chance.randrange(8)]).sum()
            self.assertAlmostEqual(float(sums), 1.0, delta=1e-9)

    def test_reads_across_a_boundary_and_predicts_it(self) -> None:
        stream = Split.of([b"x1", b"y2"] * 50).stream
        model = Ngrams.count(stream, 3)
        self.assertGreater(model.distribution([ord("1"), 256])[ord("y")], 0.9)
        self.assertGreater(model.distribution([ord("2"), 256])[ord("x")], 0.9)
        self.assertGreater(model.distribution(list(b"x1"))[256], 0.9)

    def test_unseen_context_leaves_the_lower_order_unchanged(self) -> None:
        stream = Split.of([b"hello"]).stream
        np.testing.assert_array_equal(
            Ngrams.count(stream, 5).distribution(list(b"zzzz")), Ngrams.count(stream, 1).distribution()
        )

    def test_context_at_the_start_of_a_stream_is_shorter(self) -> None:
        stream = Split.of([b"abcabc", b"abd"]).stream
        for target in range(3):
            bits = [ngram_bits(stream, stream, order)[target] for order in range(target + 2, 8)]
            self.assertEqual(len(set(bits)), 1, "orders longer than the context agree")

    def test_longest_keys_are_exact(self) -> None:
        # 7 ids of 256 and 255 are the largest keys: 257**7 - 1 is below 2**63.
        stream = np.array([256, 255] * 20, dtype=np.uint16)
        expected = Twin(stream.tolist(), 7).bits(stream.tolist())
        np.testing.assert_allclose(ngram_bits(stream, stream, 7), expected, rtol=1e-12)

    def test_targets_of_a_long_stream_do_not_depend_on_the_blocks(self) -> None:
        chance = np.random.default_rng(0)
        stream = np.concatenate([[256], chance.integers(97, 101, BLOCK + 50)]).astype(np.uint16)
        bits = ngram_bits(stream[:5000], stream, 4)
        tail = ngram_bits(stream[:5000], stream[BLOCK - 40 :], 4)
        np.testing.assert_allclose(bits[-80:], tail[-80:], rtol=1e-12)
        self.assertEqual(len(bits), BLOCK + 50)

    def test_order_outside_1_to_7_is_refused(self) -> None:
        stream = Split.of([b"ab"]).stream
        for order in (0, 8, -1, True, 2.0):
            with self.assertRaisesRegex(RequestError, "order is .*1 to 7"):
                ngram_bits(stream, stream, order)  # type: ignore[arg-type]

    def test_empty_training_stream_gives_uniform_bits(self) -> None:
        bits = ngram_bits(Split.of([]).stream, Split.of([b"ab"]).stream, 4)
        np.testing.assert_allclose(bits, [math.log2(257)] * 3)


class TheLadder(unittest.TestCase):
    def setUp(self) -> None:
        self.train = Split.of([b"the cat sat on the mat", b"the dog sat on the log"] * 20)
        self.validation = Split.of([b"the cat sat on the log", b"a dog"], "validation")

    def rungs(self, **options: object) -> dict[str, Baseline]:
        return {rung.name: rung for rung in ladder(self.train, self.validation, **options)}  # type: ignore[arg-type]

    def test_boundaries_are_charged_above_the_line_and_not_counted_below(self) -> None:
        stream = self.validation.stream.tolist()
        size = 22 + 5
        for order in (1, 3, 6):
            bits = Twin(self.train.stream.tolist(), order).bits(stream)
            ends = [bits[i] for i, token in enumerate(stream[1:]) if token == 256]
            rung = self.rungs(orders=(order,), compressors=())[f"{order}-gram"]
            self.assertAlmostEqual(rung.bits_per_byte, sum(bits) / size, delta=1e-12)
            self.assertAlmostEqual(
                rung.bits_per_byte_without_boundaries, (sum(bits) - sum(ends)) / size, delta=1e-12
            )
            self.assertAlmostEqual(rung.bits_per_boundary, sum(ends) / 2, delta=1e-12)

    def test_uniform_pays_log2_of_257_for_each_target(self) -> None:
        rung = self.rungs(orders=(), compressors=())["uniform"]
        self.assertAlmostEqual(rung.bits_per_byte, math.log2(257) * (27 + 2) / 27, delta=1e-12)
        self.assertAlmostEqual(rung.bits_per_boundary, math.log2(257), delta=1e-12)

    def test_compressors_give_what_the_held_out_text_adds(self) -> None:
        before = b"the cat sat on the matthe dog sat on the log" * 20
        after = b"the cat sat on the loga dog"
        rungs = self.rungs(orders=())
        for name, compress in (
            ("zlib -9", lambda data: zlib.compress(data, 9)),
            ("bzip2 -9", lambda data: bz2.compress(data, 9)),
            ("lzma -9e", lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)),
        ):
            extra = len(compress(before + after)) - len(compress(before))
            self.assertAlmostEqual(rungs[name].bits_per_byte, 8 * extra / 27, delta=1e-12)
            self.assertIsNone(rungs[name].bits_per_boundary)

    def test_rungs_come_in_order_and_are_announced(self) -> None:
        said: list[str] = []
        names = list(self.rungs(orders=(3, 1), progress=said.append))
        self.assertEqual(names, ["uniform", "1-gram", "3-gram", "zlib -9", "bzip2 -9", "lzma -9e"])
        self.assertEqual(said, ["1-gram", "2-gram", "3-gram", "zlib -9", "bzip2 -9", "lzma -9e"])

    def test_limit_reads_the_end_of_train_and_the_start_of_validation_and_says_so(self) -> None:
        rung = self.rungs(orders=(2,), compressors=("zlib",), limit=10)
        self.assertEqual(
            rung["2-gram"].note, "the last 10 of 920 train tokens and the first 10 of 29 validation tokens"
        )
        self.assertEqual(rung["zlib -9"].note, rung["2-gram"].note)
        bits = Twin(self.train.stream[-11:].tolist(), 2).bits(self.validation.stream[:11].tolist())
        self.assertAlmostEqual(rung["2-gram"].bits_per_byte, sum(bits) / 10, delta=1e-12)
        self.assertEqual({rung.note for rung in self.rungs().values()}, {""})

    def test_a_split_that_ends_inside_a_document_has_no_boundary_numbers(self) -> None:
        stream = self.validation.stream[:10]
        cut = Split("validation", stream, self.validation.starts[:1], "")
        rungs = {rung.name: rung for rung in ladder(self.train, cut, orders=(2,), compressors=())}
        self.assertIsNone(rungs["2-gram"].bits_per_boundary)
        self.assertIsNone(rungs["uniform"].bits_per_boundary)
        self.assertEqual(rungs["2-gram"].bits_per_byte, rungs["2-gram"].bits_per_byte_without_boundaries)

    def test_nothing_to_score_is_refused(self) -> None:
        with self.assertRaisesRegex(RequestError, "validation: holds no byte"):
            ladder(self.train, Split.of([], "validation"))
        with self.assertRaisesRegex(RequestError, "order is 0"):
            self.rungs(orders=(0, 2))
        with self.assertRaisesRegex(RequestError, "limit is 0"):
            self.rungs(limit=0)
        with self.assertRaisesRegex(RequestError, "compressor 'gzip'"):
            self.rungs(compressors=("gzip",))

    def test_tiny_shakespeare_gives_the_published_ladder(self) -> None:
        path = SHARED / "corpora" / "tinyshakespeare.txt"
        if not path.exists():
            self.skipTest(f"{path} is not there")
        text = path.read_bytes()
        train, validation = Split.of([text[:-111_540]]), Split.of([text[-111_540:]], "validation")
        expected = {
            "uniform": 8.006,
            "1-gram": 4.829,
            "2-gram": 3.586,
            "3-gram": 2.956,
            "4-gram": 2.559,
            "5-gram": 2.408,
            "6-gram": 2.450,
            "zlib -9": 3.096,
            "bzip2 -9": 2.398,
            "lzma -9e": 2.518,
        }
        rungs = ladder(train, validation)
        self.assertEqual([rung.name for rung in rungs], list(expected))
        for rung in rungs:
            # Another build of a compressor (zlib-ng, say) may find other matches; counts may not differ.
            delta = 0.002 if "gram" in rung.name else 0.02
            self.assertAlmostEqual(rung.bits_per_byte, expected[rung.name], delta=delta, msg=rung.name)


if __name__ == "__main__":
    unittest.main()
