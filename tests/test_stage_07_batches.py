"""Stage 07: every token is a target once, and a boundary only where a document ends."""

from __future__ import annotations

import unittest
from collections import Counter

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.batches import IGNORED, Batch, Plan, gather, rows_in_order
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split


def scored(*batches: Batch) -> list[int]:
    """The targets of batches that count, in order."""
    return [int(token) for batch in batches for token in batch.targets_BT.ravel() if token != IGNORED]


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(7), "--quick", *page_arguments(7))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_counting_targets_agrees_with_a_loop_over_them(self) -> None:
        stage = load_stage(7)
        split = Split.of([bytes(range(100)), b"abc", bytes(range(50))])
        for rows in (stage.drawn(split), stage.planned(Plan(split, "reset", 8, 4, seed=0))):
            counted: Counter[int] = Counter()
            for start, length in zip(*rows, strict=True):
                counted.update(range(start + 1, start + length + 1))
            expected = [counted[place] for place in range(1, len(split.stream))]
            self.assertEqual(stage.times_scored(split, rows).tolist(), expected)

    def test_coverage_grows_with_the_rows_and_counts_no_target_twice(self) -> None:
        stage = load_stage(7)
        split = Split.of([b"x" * 40])  # 41 targets: ten rows of 4, drawn twice over, never reach the last
        rows = np.tile(np.arange(0, 40, 4), 2), np.full(20, 4)
        found = stage.coverage(split, rows)
        half = [(5 * n, 100 * 4 * n / 41) for n in range(11)]
        np.testing.assert_allclose(found, half + [(5 * n, 100 * 40 / 41) for n in range(11, 21)])

    def test_closing_every_cut_would_invent_ends(self) -> None:
        stage = load_stage(7)
        split = Split.of([b"x" * 200])  # 201 targets: windows of 64, 64, 64 and 9
        self.assertEqual(stage.ends(split, rows_in_order(split, "reset", 64)), (1, 4))


class OneExample(unittest.TestCase):
    def test_a_target_is_the_token_after_its_input(self) -> None:
        split = Split.of([b"hello"])
        inputs, targets = gather(split.stream, np.array([0]), np.array([6]), 6)
        self.assertEqual(inputs[0].tolist(), [DOC_BOUNDARY, *b"hello"])
        self.assertEqual(targets[0].tolist(), [*b"hello", DOC_BOUNDARY])

    def test_the_rows_of_two_documents_are_worked_out_by_hand(self) -> None:
        split = Split.of([b"ab", b"cdefg"])
        for policy, expected in (
            ("cross", [(0, 4), (4, 4), (8, 1)]),
            ("reset", [(0, 3), (3, 4), (7, 2)]),
        ):
            starts, lengths = rows_in_order(split, policy, 4)
            self.assertEqual(list(zip(starts.tolist(), lengths.tolist(), strict=True)), expected, policy)

    def test_padding_is_masked_and_never_a_boundary_target(self) -> None:
        split = Split.of([b"ab", b"cdefg"])
        starts, lengths = rows_in_order(split, "reset", 4)
        _, targets = gather(split.stream, starts, lengths, 4)
        self.assertEqual(int((targets == IGNORED).sum()), 3)
        self.assertEqual(int((targets == DOC_BOUNDARY).sum()), 2)

    def test_a_cut_never_becomes_an_end(self) -> None:
        split = Split.of([b"x" * 200])
        starts, lengths = rows_in_order(split, "reset", 64)
        _, targets = gather(split.stream, starts, lengths, 64)
        self.assertEqual([int((row == DOC_BOUNDARY).sum()) for row in targets], [0, 0, 0, 1])


class Epochs(unittest.TestCase):
    def test_two_epochs_see_every_token_twice_in_another_order(self) -> None:
        split = Split.of([bytes(range(200))])
        plan = Plan(split, "cross", 16, 1, seed=3)
        first, second = plan.rows_of_epoch(0), plan.rows_of_epoch(1)
        batches = [plan.batch(step) for step in range(first + second)]
        self.assertEqual(sorted(scored(*batches)), sorted([*range(200), DOC_BOUNDARY] * 2))
        self.assertNotEqual(scored(*batches[:first]), scored(*batches[first:]))

    def test_a_batch_goes_on_with_the_next_epoch_and_drops_no_row(self) -> None:
        split = Split.of([b"abcdefg"])  # 8 targets: 2 rows an epoch
        plan = Plan(split, "reset", 4, 3, seed=0)
        three_epochs = scored(plan.batch(0), plan.batch(1))
        self.assertEqual(sorted(three_epochs), sorted([*b"abcdefg", DOC_BOUNDARY] * 3))

    def test_a_step_asked_alone_is_the_step_of_the_run(self) -> None:
        split = Split.of([bytes(range(200)), b"short", bytes(range(90))])
        for policy in ("cross", "reset"):
            running = Plan(split, policy, 16, 5, seed=9)
            in_turn = [running.batch(step) for step in range(31)][30]
            alone = Plan(split, policy, 16, 5, seed=9).batch(30)
            np.testing.assert_array_equal(alone.inputs_BT, in_turn.inputs_BT)
            np.testing.assert_array_equal(alone.targets_BT, in_turn.targets_BT)

    def test_another_seed_is_another_order_of_the_same_tokens(self) -> None:
        split = Split.of([bytes(range(250))])
        one, other = (Plan(split, "reset", 16, 16, seed) for seed in (0, 1))
        self.assertEqual(one.rows_of_epoch(0), 16)
        self.assertNotEqual(scored(one.batch(0)), scored(other.batch(0)))
        self.assertEqual(sorted(scored(one.batch(0))), sorted(scored(other.batch(0))))

    def test_how_a_batch_is_cut_into_micro_batches_does_not_change_it(self) -> None:
        batch = Plan(Split.of([bytes(range(250))]), "cross", 8, 12, seed=0).batch(1)
        for rows in (1, 5, 12):
            pieces = batch.micro_batches(rows)
            for part, whole in ((0, batch.inputs_BT), (1, batch.targets_BT)):
                np.testing.assert_array_equal(np.concatenate([piece[part] for piece in pieces]), whole)


if __name__ == "__main__":
    unittest.main()
