"""Standard errors and paired differences: by hand, against resampling, and against tables."""

import dataclasses
import json
import math
import unittest

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.test_evaluate import SMALL, Uniform, documents, trained
from tests.test_protocols import LONG, all_scored
from tinylm.corpus import Split
from tinylm.errors import RequestError
from tinylm.evaluate import Clusters, Tally, compare, evaluate, paired_difference, ratio_error, score
from tinylm.evaluate.uncertainty import student_975
from tinylm.language_model import LanguageModel


def texts_of(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes of documents, and the bits that two models need for them: alike where a document is hard."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(20, 900, count)
    hardness = generator.normal(2.0, 0.5, count)
    one = sizes * (hardness + generator.normal(0, 0.1, count))
    two = sizes * (hardness + 0.02 + generator.normal(0, 0.1, count))
    return sizes, one, two


def bootstrap(statistic, count: int, draws: int = 4000) -> float:
    """The standard deviation of a statistic of clusters over samples of them with replacement."""
    generator = np.random.default_rng(1)
    return float(np.std([statistic(generator.integers(0, count, count)) for _ in range(draws)]))


class StandardError(unittest.TestCase):
    def test_of_a_ratio_by_hand(self) -> None:
        # r = 24 / 10; residuals 10 - 9.6, 6 - 4.8, 8 - 9.6: squares 0.16 + 1.44 + 2.56 = 4.16.
        found = ratio_error(np.array([10.0, 6.0, 8.0]), np.array([4, 2, 4]))
        self.assertAlmostEqual(found, math.sqrt(4.16) / 10, places=14)

    def test_agrees_with_a_bootstrap_over_documents(self) -> None:
        sizes, bits, _ = texts_of(300)
        expected = bootstrap(lambda some: bits[some].sum() / sizes[some].sum(), 300)
        self.assertAlmostEqual(ratio_error(bits, sizes) / expected, 1.0, delta=0.06)

    def test_is_none_for_one_cluster_and_zero_where_all_are_alike(self) -> None:
        self.assertIsNone(ratio_error(np.array([10.0]), np.array([4])))
        self.assertAlmostEqual(ratio_error(np.array([2.0, 4.0]), np.array([1, 2])), 0.0)

    def test_of_an_evaluation_is_that_of_its_documents(self) -> None:
        split = Split.of(LONG, "validation")
        for how in ({}, {"protocol": "strided", "stride": 3}, {"limit": 200}):
            model = trained(SMALL, dtype=torch.float64)
            found = evaluate(model, split, **how)
            scored = all_scored(model, split, **how)
            bits: dict[int, float] = {}
            size: dict[int, int] = {}
            for position, bit in zip(scored.positions.tolist(), scored.bits.tolist(), strict=True):
                # The document of a target: as many boundaries as lie before it. An end is its document's.
                document = int((split.stream[:position] == 256).sum()) - 1
                bits[document] = bits.get(document, 0.0) + bit
                size[document] = size.get(document, 0) + int(split.stream[position] != 256)
            total = sum(size.values())
            ratio = sum(bits.values()) / total
            error = math.sqrt(sum((bits[d] - ratio * size[d]) ** 2 for d in bits)) / total
            self.assertAlmostEqual(found.bits_per_byte, ratio, places=12)
            self.assertAlmostEqual(found.standard_error, error, places=12)
            self.assertEqual((found.clusters, found.cluster_count), ("documents", len(bits)))


class WhatIsASample(unittest.TestCase):
    def test_documents_if_they_weigh_as_much_as_thirty(self) -> None:
        self.assertEqual(Clusters.of(Split.of([b"x" * 9000] * 30)).kind, "documents")
        self.assertEqual(Clusters.of(Split.of([b"x" * 9000] * 29)).kind, "blocks of at most 8,192 bytes")
        self.assertEqual(Clusters.of(Split.of([b"x" * 8192] * 3)).kind, "documents")
        lopsided = Clusters.of(Split.of([b"abc"] * 60 + [b"x" * 20_000]))
        self.assertEqual((lopsided.kind, len(lopsided)), ("blocks of at most 8,192 bytes", 60 + 3))

    def test_blocks_of_a_single_document_and_its_end_in_the_last(self) -> None:
        for size, blocks in ((1, 1), (8191, 1), (8192, 1), (8193, 2), (16384, 2), (20_000, 3)):
            split = Split.of([b"x" * size])
            for stream in (split.stream, split.stream[:-1]):
                clusters = Clusters.of(dataclasses.replace(split, stream=stream))
                self.assertEqual(len(clusters), blocks, size)
            edges = clusters.of_positions(np.array([1, size, size + 1]))
            self.assertEqual(edges.tolist(), [0, blocks - 1, blocks - 1])
        self.assertEqual(clusters.of_positions(np.array([8192, 8193, 16384, 16385])).tolist(), [0, 1, 1, 2])

    @given(documents)
    def test_a_target_belongs_to_the_document_that_it_ends_or_is_in(self, texts: list[bytes]) -> None:
        split = Split.of(texts)
        clusters = Clusters("documents", split.starts)
        positions = np.arange(1, len(split.stream))
        expected = [number for number, text in enumerate(texts) for _ in range(len(text) + 1)]
        self.assertEqual(clusters.of_positions(positions).tolist(), expected)

    def test_an_evaluation_of_one_document_says_blocks_and_has_no_error_for_one(self) -> None:
        short, long = (evaluate(Uniform(SMALL), Split.of([b"ab" * n])) for n in (100, 10_000))
        self.assertEqual((short.standard_error, short.clusters, short.cluster_count), (None, "documents", 1))
        self.assertEqual((long.clusters, long.cluster_count), ("blocks of at most 8,192 bytes", 3))
        self.assertIsNotNone(long.standard_error)


class Differences(unittest.TestCase):
    def test_by_hand(self) -> None:
        ours, theirs = np.array([10.0, 6.0, 8.0, 9.0, 7.0]), np.array([11.0, 8.0, 8.0, 12.0, 9.0])
        found = paired_difference(ours, theirs, np.array([4, 2, 4, 6, 4]), "documents")
        # -8 / 20 = -0.4; residuals -1 + 1.6, -2 + 0.8, 0 + 1.6, -3 + 2.4, -2 + 1.6: squares sum to 4.88.
        error = math.sqrt(4.88) / 20
        self.assertAlmostEqual(found.difference, -0.4, places=14)
        self.assertAlmostEqual(found.standard_error, error, places=14)
        self.assertAlmostEqual(found.z, -0.4 / error, places=12)
        self.assertAlmostEqual(found.interval[1], -0.4 + 2.776 * error, places=3)
        self.assertEqual((found.better, found.cluster_count), ("model", 5))
        other = paired_difference(theirs, ours, np.array([4, 2, 4, 6, 4]), "documents")
        self.assertEqual((other.better, other.difference), ("against", -found.difference))

    def test_agree_with_a_bootstrap_and_are_finer_than_two_errors(self) -> None:
        sizes, one, two = texts_of(300)
        found = paired_difference(one, two, sizes, "documents")
        expected = bootstrap(lambda some: (one - two)[some].sum() / sizes[some].sum(), 300)
        self.assertAlmostEqual(found.standard_error / expected, 1.0, delta=0.06)
        self.assertLess(found.standard_error, ratio_error(one, sizes) / 3)

    def test_equal_models_are_called_different_about_one_time_in_twenty(self) -> None:
        generator = np.random.default_rng(2)
        called = 0
        for _ in range(2000):
            sizes = generator.integers(50, 150, 12)
            one, two = (sizes * generator.normal(2.0, 0.3, 12) for _ in range(2))
            called += paired_difference(one, two, sizes, "documents").better is not None
        self.assertTrue(60 <= called <= 160, called)

    def test_few_clusters_allow_no_verdict(self) -> None:
        found = paired_difference(np.array([1.0, 2.0]), np.array([9.0, 9.0]), np.array([4, 4]), "documents")
        self.assertEqual((found.interval, found.better), (None, None))
        self.assertIsNotNone(found.standard_error)

    def test_points_of_student_are_those_of_the_tables(self) -> None:
        for degrees, point in ((4, 2.776), (5, 2.571), (9, 2.262), (19, 2.093), (29, 2.045), (120, 1.980)):
            self.assertAlmostEqual(student_975(degrees), point, delta=0.002 * point)


class Comparing(unittest.TestCase):
    def setUp(self) -> None:
        self.split = Split.of(LONG, "validation")

    @settings(max_examples=12, deadline=None)
    @given(
        st.sampled_from([16, 7, 23]),
        st.sampled_from(["cross", "reset"]),
        st.sampled_from([{}, {"protocol": "strided"}, {"protocol": "strided", "stride": 2}]),
        st.sampled_from([None, 1, 150, 700]),
    )
    def test_models_of_other_windows_and_policies_are_scored_on_the_same_targets(
        self, window: int, policy: str, how: dict, limit: int | None
    ) -> None:
        split = Split.of(LONG, "validation")
        model = trained(SMALL, dtype=torch.float64)
        against = trained(
            dataclasses.replace(SMALL, window=window, policy=policy), seed=5, dtype=torch.float64
        )
        found = compare(model, against, split, limit=limit, **how)
        self.assertEqual(found.model, evaluate(model, split, limit=limit, **how))
        ours = all_scored(model, split, limit=limit, **how)
        theirs = all_scored(against, split, **how).bits[ours.positions - 1]
        size = int((split.stream[ours.positions] != 256).sum())
        self.assertEqual((found.against.bytes, found.against.tokens), (size, len(ours.positions)))
        self.assertAlmostEqual(found.against.bits_per_byte, theirs.sum() / size, places=11)
        self.assertAlmostEqual(found.difference.difference, (ours.bits - theirs).sum() / size, places=11)
        self.assertEqual((found.against.window, found.against.policy), (window, policy))
        self.assertTrue(found.against.protocol.startswith(how.get("protocol", "disjoint")))

    def test_a_model_is_not_distinguishable_from_itself(self) -> None:
        model = trained(SMALL)
        found = compare(model, model, self.split).difference
        self.assertEqual((found.difference, found.standard_error, found.z), (0.0, 0.0, None))
        self.assertEqual((found.interval, found.better), ((0.0, 0.0), None))

    def test_a_better_model_is_named_on_either_side(self) -> None:
        class Ascii(Uniform):
            def __call__(self, ids_BT: Tensor) -> Tensor:
                logits = torch.zeros(*ids_BT.shape, 257)
                logits[:, :, 128:256] = -5.0
                return logits

        plain, ascii_only = Uniform(SMALL), Ascii(SMALL)
        self.assertEqual(compare(ascii_only, plain, self.split).difference.better, "model")
        self.assertEqual(compare(plain, ascii_only, self.split).difference.better, "against")

    def test_progress_runs_once_over_both(self) -> None:
        seen: list[tuple[int, int]] = []
        compare(Uniform(SMALL), Uniform(SMALL), self.split, progress=lambda *now: seen.append(now))
        total = 2 * (len(self.split.stream) - 1)
        self.assertEqual(seen[-1], (total, total))
        self.assertEqual([done for done, _ in seen], sorted({done for done, _ in seen}))

    def test_other_targets_cannot_be_paired(self) -> None:
        tallies = []
        for limit in (None, 100):
            tallies.append(Tally(self.split))
            for scored in score(Uniform(SMALL), self.split, limit=limit):
                tallies[-1].add(scored)
        with self.assertRaisesRegex(RequestError, "have not scored the same targets"):
            tallies[0].difference(tallies[1])

    def test_a_stride_that_one_of_the_models_cannot_have_is_refused(self) -> None:
        small = Uniform(dataclasses.replace(SMALL, window=4))
        with self.assertRaisesRegex(RequestError, "the window of 4 of the other model"):
            compare(Uniform(SMALL), small, self.split, protocol="strided", stride=8)

    def test_everything_is_json(self) -> None:
        model = LanguageModel(trained(SMALL))
        found = model.compare(LanguageModel(trained(SMALL, seed=2)), self.split, protocol="strided")
        values = json.loads(json.dumps([found.model.to_dict(), found.difference.to_dict()], allow_nan=False))
        for name in (
            *("protocol", "window", "stride", "policy", "split_digest", "precision", "device"),
            *("standard_error", "clusters", "cluster_count"),
        ):
            self.assertIsNotNone(values[0][name], name)
        self.assertEqual(values[0]["stride"], 8)
        self.assertEqual(values[1]["interval"], list(found.difference.interval))
        self.assertEqual(model.evaluate(self.split, protocol="strided", stride=8), found.model)


if __name__ == "__main__":
    unittest.main()
