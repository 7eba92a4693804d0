"""Stage 15: a boundary is a token; a wall takes a mask or a row of its own."""

from __future__ import annotations

import dataclasses
import unittest

import torch

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.attention import dense_mask, seen_within
from tinylm.batches import Plan
from tinylm.corpus import Split
from tinylm.generate import Context
from tinylm.model import Transformer
from tinylm.walkthrough.probes import moved


def awake(stage, policy: str = "mask") -> Transformer:
    """A model of the stage's shape in which every weight matters."""
    model = Transformer(dataclasses.replace(stage.SHAPE, policy=policy), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(15), "--quick", *page_arguments(15))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_both_first_documents_take_up_the_same_room(self) -> None:
        stage = load_stage(15)
        self.assertEqual(len(stage.FIRST), len(stage.OTHER))
        self.assertNotEqual(stage.FIRST, stage.OTHER)
        self.assertEqual(stage.SEGMENTS.shape[1], len(stage.ids(stage.FIRST, stage.SECOND)))
        self.assertEqual(stage.ids(stage.FIRST, stage.SECOND)[stage.CUT], 256)


class Walls(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(15)
        self.model = awake(self.stage)

    def test_a_boundary_alone_lets_everything_through(self) -> None:
        self.assertGreater(self.stage.moved(self.stage.in_a_row(self.model)), 0.05)

    def test_positions_that_begin_anew_are_no_wall(self) -> None:
        restarted = self.stage.restarted(self.model)
        self.assertGreater(self.stage.moved(self.stage.in_a_row(restarted)), 0.05)
        # They are no change at all for documents that the mask keeps apart: rotary positions tell distances.
        seen = dense_mask(self.stage.SEGMENTS)
        for first in (self.stage.FIRST, self.stage.OTHER):
            with torch.no_grad():
                one, other = (self.stage.in_a_row(m, seen)(first) for m in (self.model, restarted))
            self.assertLess(float((one - other).abs().max()), 1e-4)

    def test_a_mask_is_one_in_both_forms(self) -> None:
        for form in (dense_mask, seen_within):
            seen = form(self.stage.SEGMENTS)
            self.assertEqual(self.stage.moved(self.stage.in_a_row(self.model, seen)), 0.0)

    def test_a_mask_with_one_hole_is_none(self) -> None:
        holed = dense_mask(self.stage.SEGMENTS).clone()
        holed[0, 0, self.stage.CUT, self.stage.CUT - 1] = True
        self.assertGreater(self.stage.moved(self.stage.in_a_row(self.model, holed)), 1e-3)

    def test_the_map_of_what_moved_is_the_mask(self) -> None:
        row_T = torch.tensor(self.stage.ids(self.stage.FIRST, self.stage.SECOND))
        for segments in (self.stage.SEGMENTS, torch.zeros_like(self.stage.SEGMENTS)):
            moved_TT = moved(self.model, row_T, segments[0])
            self.assertTrue(torch.equal(moved_TT.T != 0, dense_mask(segments)[0, 0]))

    def test_a_row_of_its_own_is_one(self) -> None:
        self.assertEqual(self.stage.moved(self.stage.a_row_each(self.model)), 0.0)

    def test_generation_obeys_the_policy(self) -> None:
        for policy, wall in (("cross", False), ("mask", True), ("reset", True)):
            moved = self.stage.moved(self.stage.generating(awake(self.stage, policy)))
            self.assertEqual(moved == 0.0, wall, policy)

    def test_generation_continues_what_the_packed_row_was_trained_on(self) -> None:
        stage = self.stage
        with torch.no_grad():
            packed = stage.in_a_row(self.model, seen_within(stage.SEGMENTS))(stage.FIRST)[-1]
        cached = Context(self.model, stage.ids(stage.FIRST, stage.SECOND)).logits()
        self.assertLess(float((packed.double() - torch.from_numpy(cached)).abs().max()), 1e-4)


class Packing(unittest.TestCase):
    def test_nothing_is_lost_and_no_end_invented(self) -> None:
        texts = [bytes([65 + size % 26]) * size for size in (1, 3, 9, 10, 11, 19, 20, 21, 50)]
        split = Split.of(texts)
        plan = Plan(split, "mask", 10, 1, seed=0)
        batches = [plan.batch(row) for row in range(plan.rows_of_epoch(0))]
        scored = [int(t) for b in batches for t in b.targets_BT.ravel() if t != -1]
        self.assertEqual(sorted(scored), sorted(split.stream.tolist()[1:]))
        self.assertEqual(scored.count(256), len(texts))

    def test_a_row_never_joins_two_documents_in_one_segment(self) -> None:
        plan = Plan(Split.of([b"ab", b"cd", b"efghij"]), "mask", 16, 1, seed=0)
        batch = plan.batch(0)
        for segment in range(3):
            inside = batch.inputs_BT[batch.segments_BT == segment].tolist()
            self.assertEqual((inside[0], inside.count(256)), (256, 1))


if __name__ == "__main__":
    unittest.main()
