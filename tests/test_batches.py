"""Rows, epochs and steps: what one training example is."""

import hashlib
import itertools
import unittest
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stage_support import SHARED
from tinylm.batches import IGNORED, PADDED, Plan, gather, pack, permute, rows_in_order
from tinylm.batches.packing import kinds_of_rows
from tinylm.config import POLICIES, CorpusConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.errors import ConfigError, CorpusError
from tinylm.sources import open_sources

KNOWN_CROSS = [69, 869, 197, 709, 229, 901]
KNOWN_RESET = [416, 672, 0, 704, 384, 64]

documents_strategy = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)


def permute_one(index: int, size: int, key: bytes) -> int:
    """A keyed permutation of range(size) in plain integers: six Feistel rounds, again until below size."""
    half = next(bits for bits in range(1, 64) if 4**bits >= size)
    digest = hashlib.blake2b(key, digest_size=48).digest()
    while True:
        left, right = divmod(index, 2**half)
        for start in range(0, 48, 8):
            mixed = right ^ int.from_bytes(digest[start : start + 8], "little")
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
            mixed ^= mixed >> 31
            left, right = right, left ^ mixed % 2**half
        index = left * 2**half + right
        if index < size:
            return index


def targets_of_epoch(plan: Plan, epoch: int) -> list[tuple[int, int]]:
    """(position, token) of every target of an epoch, row by row and token by token, without gather()."""
    found = []
    for index in range(plan.rows_of_epoch(epoch)):
        starts, lengths, holds = plan._rows_at(epoch, np.array([index]))
        assert holds.tolist() == [len(starts)]
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            for position in range(start + 1, start + length + 1):
                found.append((position, int(plan.split.stream[position])))
    return found


def first_fit_decreasing(lengths: list[int], window: int) -> list[list[int]]:
    """The textbook's loop over pieces: each goes into the first row that has room for it."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        row = next((row for row in rows if sum(row) + length <= window), None)
        if row is None:
            rows.append([length])
        else:
            row.append(length)
    return rows


class TestEpochs(unittest.TestCase):
    @given(documents_strategy, st.sampled_from(POLICIES), st.integers(2, 33), st.integers(0, 3))
    @settings(max_examples=80, deadline=None)
    def test_every_token_is_a_target_exactly_once(self, documents, policy, window, epoch):
        split = Split.of(documents)
        found = targets_of_epoch(Plan(split, policy, window, 4, seed=7), epoch)
        self.assertEqual(Counter(found), Counter(enumerate(split.stream.tolist()[1:], start=1)))

    @given(documents_strategy, st.sampled_from(POLICIES), st.integers(2, 33))
    @settings(max_examples=50, deadline=None)
    def test_boundary_targets_equal_documents(self, documents, policy, window):
        found = targets_of_epoch(Plan(Split.of(documents), policy, window, 4, seed=1), 0)
        self.assertEqual(sum(token == DOC_BOUNDARY for _, token in found), len(documents))

    def test_steps_take_the_rows_of_the_epochs_in_turn_and_drop_none(self):
        split = Split.of([bytes(range(50)), b"xyz" * 9])
        for policy in POLICIES:
            plan = Plan(split, policy, 8, 3, seed=5)
            rows = [
                plan._rows_at(epoch, np.array([index]))
                for epoch in range(4)
                for index in range(plan.rows_of_epoch(epoch))
            ]
            for step in range(len(rows) // 3):
                some_starts, some_lengths, _ = plan.rows(step)
                starts, lengths, _ = (
                    np.concatenate(part) for part in zip(*rows[3 * step :][:3], strict=True)
                )
                np.testing.assert_array_equal(some_starts, starts)
                np.testing.assert_array_equal(some_lengths, lengths)

    def test_a_step_is_a_pure_function(self):
        split = Split.of([bytes(range(200))] * 3)
        for policy in POLICIES:
            far_first = Plan(split, policy, 16, 5, seed=9)
            far = far_first.batch(30)
            in_turn = Plan(split, policy, 16, 5, seed=9)
            for step in range(31):
                near = in_turn.batch(step)
            np.testing.assert_array_equal(far.inputs_BT, near.inputs_BT)
            np.testing.assert_array_equal(far.targets_BT, near.targets_BT)
            self.assertEqual(far.segments_BT is None, policy != "mask")
            if far.segments_BT is not None:
                np.testing.assert_array_equal(far.segments_BT, near.segments_BT)

    def test_order_and_grid_change_with_seed_and_epoch(self):
        split = Split.of([bytes(i % 256 for i in range(2000))])
        plan, other = Plan(split, "cross", 16, 8, 0), Plan(split, "cross", 16, 8, 1)
        first = plan.rows(0)[0].tolist()
        self.assertNotEqual(first, other.rows(0)[0].tolist())
        offsets = {plan._grid(epoch) for epoch in range(40)}
        self.assertGreater(len(offsets), 10)
        self.assertTrue(all(-16 < offset <= 0 for offset in offsets))

    def test_each_epoch_shuffles_its_rows_anew(self):
        split = Split.of([bytes(i % 256 for i in range(2000))])
        for policy in POLICIES:
            plan = Plan(split, policy, 16, 8, 0)
            starts = [plan._rows_at(epoch, np.arange(plan.rows_of_epoch(epoch)))[0] for epoch in range(6)]
            places = {tuple(np.argsort(np.argsort(some))[:50].tolist()) for some in starts}
            self.assertEqual(len(places), 6, policy)

    def test_the_order_is_the_same_on_every_machine(self):
        split = Split.of([bytes(i % 256 for i in range(1000))])
        self.assertEqual(Plan(split, "cross", 32, 6, 0).rows(0)[0].tolist(), KNOWN_CROSS)
        self.assertEqual(Plan(split, "reset", 32, 6, 0).rows(0)[0].tolist(), KNOWN_RESET)


class TestPolicies(unittest.TestCase):
    def test_reset_rows_hold_one_document_or_a_chunk_of_one(self):
        documents = [b"a" * 3, b"b" * 40, b"c" * 17]
        split = Split.of(documents)
        starts, lengths = rows_in_order(split, "reset", 16)
        for start, length in zip(starts, lengths, strict=True):
            inputs = split.stream[start : start + length]
            self.assertLessEqual(len({int(token) for token in inputs if token != DOC_BOUNDARY}), 1)
            self.assertNotIn(DOC_BOUNDARY, inputs[1:].tolist())
        np.testing.assert_array_equal(lengths, [4, 16, 16, 9, 16, 2])

    @given(documents_strategy, st.integers(2, 20))
    @settings(max_examples=50, deadline=None)
    def test_reset_rows_equal_a_loop_over_documents(self, documents, window):
        expected, opens = [], 0
        for document in documents:
            ends = opens + len(document) + 1
            expected += [(start, min(window, ends - start)) for start in range(opens, ends, window)]
            opens = ends
        starts, lengths = rows_in_order(Split.of(documents), "reset", window)
        self.assertEqual(list(zip(starts.tolist(), lengths.tolist(), strict=True)), expected)

    def test_an_epoch_of_a_small_corpus_is_not_read_from_short_rows_to_long_ones(self):
        chance = np.random.default_rng(0)
        split = Split.of([b"x" * int(size) for size in chance.integers(1, 129, 120)])
        for seed in range(5):
            plan = Plan(split, "reset", 128, 4, seed)
            steps = plan.rows_of_epoch(0) // 4
            widths = [plan.batch(step).inputs_BT.shape[1] for step in range(steps)]
            turns = sum(a > b for a, b in itertools.pairwise(widths))
            self.assertGreater(turns, 3, widths)

    def test_cross_windows_tile_the_stream(self):
        split = Split.of([b"a" * 30])
        starts, lengths = rows_in_order(split, "cross", 8)
        np.testing.assert_array_equal(starts, [0, 8, 16, 24])
        np.testing.assert_array_equal(lengths, [8, 8, 8, 7])

    def test_a_cut_document_has_no_boundary_target(self):
        split = Split.of([b"a" * 100])
        starts, lengths = rows_in_order(split, "reset", 16)
        _, targets = gather(split.stream, starts, lengths, 16)
        self.assertEqual(int((targets == DOC_BOUNDARY).sum()), 1)
        self.assertEqual(targets[-1][lengths[-1] - 1], DOC_BOUNDARY)

    def test_reset_batches_have_one_of_a_fixed_set_of_lengths(self):
        rng = np.random.default_rng(0)
        documents = [bytes(rng.integers(0, 256, n, dtype=np.uint8)) for n in rng.integers(1, 300, 400)]
        plan = Plan(Split.of(documents), "reset", 128, 8, 0)
        self.assertEqual(plan.padded_lengths, (16, 32, 64, 128))
        batches = [plan.batch(step) for step in range(100)]
        self.assertTrue({b.inputs_BT.shape[1] for b in batches} <= set(plan.padded_lengths))
        scored = sum(b.targets for b in batches) / sum(b.inputs_BT.size for b in batches)
        self.assertGreater(scored, 0.75)

    def test_an_unknown_policy_is_refused(self):
        with self.assertRaisesRegex(ConfigError, "'masked', expected one of cross, mask, reset"):
            Plan(Split.of([b"abc"]), "masked", 8, 1, 0)


class TestPacking(unittest.TestCase):
    @given(st.lists(st.integers(1, 40), min_size=1, max_size=200), st.integers(40, 90))
    @settings(max_examples=100, deadline=None)
    def test_rows_are_those_of_first_fit_decreasing(self, lengths, window):
        found, holds = pack(np.array(lengths), window, np.arange(len(lengths)))
        self.assertEqual(sorted(found.tolist()), list(range(len(lengths))))
        rows = np.split(found, np.cumsum(holds)[:-1])
        rows = [[lengths[piece] for piece in row] for row in rows]
        self.assertEqual(sorted(rows), sorted(first_fit_decreasing(lengths, window)))

    @given(
        st.lists(
            st.sampled_from([1, 2, 14, 15, 16, 30, 31, 32, 33]).flatmap(
                lambda size: st.binary(min_size=size, max_size=size)
            ),
            min_size=1,
            max_size=20,
        ),
        st.integers(0, 2),
    )
    @settings(max_examples=80, deadline=None)
    def test_a_row_holds_whole_pieces_and_nothing_is_lost_or_said_twice(self, documents, seed):
        # Documents (with their boundary) of a window less one, a window, a window and one, and twice that.
        split, window = Split.of(documents), 16
        plan = Plan(split, "mask", window, 1, seed)
        seen: Counter[int] = Counter()
        ends = 0
        for step in range(plan.rows_of_epoch(0)):
            batch = plan.batch(step)
            self.assertEqual(batch.inputs_BT.shape, (1, plan.padded_lengths[0]))
            pieces = iter(zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True))
            for inputs, targets, segments in zip(
                batch.inputs_BT, batch.targets_BT, batch.segments_BT, strict=True
            ):
                at = 0
                for number in range(segments.max() + 1):
                    start, length = next(pieces)
                    here = slice(at, at + length)
                    self.assertEqual(segments[here].tolist(), [number] * length)
                    self.assertEqual(inputs[here].tolist(), split.stream[start : start + length].tolist())
                    self.assertEqual(targets[here].tolist(), split.stream[start + 1 :][:length].tolist())
                    self.assertNotIn(DOC_BOUNDARY, inputs[here][1:].tolist())
                    self.assertNotIn(DOC_BOUNDARY, targets[here][:-1].tolist())
                    seen.update(range(start + 1, start + 1 + length))
                    ends += int(targets[here][-1] == DOC_BOUNDARY)
                    at += length
                self.assertTrue((segments[at:] == PADDED).all() and (targets[at:] == IGNORED).all())
            self.assertEqual(list(pieces), [])
        self.assertEqual(seen, Counter(range(1, len(split.stream))))
        self.assertEqual(ends, len(documents))

    def test_corpora_are_packed_with_little_padding(self):
        for name in ("multilingual.jsonl", "speeches.jsonl.gz", "tinyshakespeare.txt"):
            path = SHARED / "corpora" / name
            if not path.exists():
                self.skipTest("the corpora are not here")
            documents = open_sources([path], CorpusConfig()).documents()
            split = Split.of(b"".join(document.chunks) for document in documents)
            for window in (256, 512, 1024, 2048):
                plan = Plan(split, "mask", window, 8, 0)
                self.assertLess(plan.padding, 0.03, (name, window))
                positions = plan.rows_of_epoch(0) * plan.padded_lengths[0]
                self.assertAlmostEqual(plan.padding, 1 - (len(split.stream) - 1) / positions)

    def test_millions_of_pieces_are_packed_by_counting(self):
        # The textbook's loop would take hours; here it runs over kinds of rows.
        lengths = np.random.default_rng(0).integers(1, 257, 1_000_000)
        counts = dict(enumerate(np.bincount(lengths).tolist()[1:], start=1))
        kinds = kinds_of_rows(counts, 256)
        self.assertLess(len(kinds), 2_000)
        held = Counter(dict.fromkeys(counts, 0))
        for contents, times in kinds:
            self.assertLessEqual(sum(length * many for length, many in contents), 256)
            for length, many in contents:
                held[length] += many * times
        self.assertEqual(held, counts)

    def test_padding_is_the_share_of_positions_without_a_token(self):
        split = Split.of([b"a" * 99, b"b" * 49, b"c" * 9] * 8)
        for policy in POLICIES:
            plan = Plan(split, policy, 64, 4, 0)
            steps, rest = divmod(plan.rows_of_epoch(0), 4)
            batches = [plan.batch(step) for step in range(steps)]
            if not rest:
                share = 1 - sum(b.targets for b in batches) / sum(b.inputs_BT.size for b in batches)
                self.assertAlmostEqual(plan.padding, share, msg=policy)
        self.assertEqual(Plan(split, "mask", 64, 4, 0).rows_of_epoch(0) % 4, 0)
        self.assertEqual(Plan(split, "reset", 64, 4, 0).rows_of_epoch(0) % 4, 0)

    def test_rows_are_no_longer_than_the_fullest(self):
        plan = Plan(Split.of([b"a" * 99] * 10), "mask", 256, 4, 0)
        self.assertEqual((plan.padded_lengths, plan.padding), ((200,), 0.0))


class TestSmallCorpora(unittest.TestCase):
    def test_one_byte_trains(self):
        for policy in POLICIES:
            batch = Plan(Split.of([b"a"]), policy, 16, 4, 0).batch(3)
            self.assertEqual(batch.targets, 8)
            self.assertEqual(batch.bytes, 4)

    def test_shorter_than_a_window_by_one_exact_and_one_more(self):
        for size in (14, 15, 16, 17):
            plan = Plan(Split.of([b"a" * size]), "cross", 16, 2, 0)
            self.assertEqual(len(targets_of_epoch(plan, 0)), size + 1)

    def test_a_stream_without_targets_is_refused(self):
        with self.assertRaisesRegex(CorpusError, "no target"):
            Plan(Split.of([]), "cross", 16, 2, 0)


class TestGather(unittest.TestCase):
    def test_targets_are_the_inputs_shifted_by_one_and_padding_is_masked(self):
        stream = np.array([256, 10, 11, 12, 256, 13, 256], dtype=np.uint16)
        inputs, targets = gather(stream, np.array([0, 4]), np.array([4, 2]), 4)
        np.testing.assert_array_equal(inputs, [[256, 10, 11, 12], [256, 13, 256, 256]])
        np.testing.assert_array_equal(targets, [[10, 11, 12, 256], [13, 256, IGNORED, IGNORED]])

    def test_micro_batches_hold_the_rows_of_the_batch(self):
        batch = Plan(Split.of([bytes(range(100))]), "cross", 8, 6, 0).batch(0)
        pieces = batch.micro_batches(4)
        self.assertEqual([len(piece[0]) for piece in pieces], [4, 2])
        np.testing.assert_array_equal(np.concatenate([piece[1] for piece in pieces]), batch.targets_BT)


class TestPermutation(unittest.TestCase):
    def test_it_is_a_permutation_of_every_size(self):
        for size in [*range(1, 70), 255, 256, 257, 1000, 4096, 4097]:
            found = permute(np.arange(size), size, b"key")
            self.assertEqual(sorted(found.tolist()), list(range(size)), size)

    def test_it_equals_a_feistel_network_in_plain_integers(self):
        for size in (1, 2, 3, 16, 17, 64, 65, 1000, 2**31 + 5, 2**40):
            indices = [index for index in (0, 1, 2, 9, 500, size // 2, size - 1) if index < size]
            found = permute(np.array(indices), size, b"twin").tolist()
            self.assertEqual(found, [permute_one(index, size, b"twin") for index in indices], size)

    def test_any_index_alone_goes_where_it_goes_among_all(self):
        everything = permute(np.arange(1000), 1000, b"k")
        for index in (0, 1, 500, 999):
            self.assertEqual(permute(np.array([index]), 1000, b"k")[0], everything[index])

    def test_it_looks_random(self):
        size = 4000
        found = permute(np.arange(size), size, b"another")
        correlation = np.corrcoef(found, np.arange(size))[0, 1]
        self.assertLess(abs(correlation), 0.06)
        self.assertLess(np.count_nonzero(np.diff(found) == 1), 10)


if __name__ == "__main__":
    unittest.main()
