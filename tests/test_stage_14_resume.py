"""Stage 14: a killed run that is resumed is the run that was left alone."""

from __future__ import annotations

import dataclasses
import tempfile
import time
import unittest
from pathlib import Path

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm import checkpoint, metrics, trainer
from tinylm.config import CorpusConfig
from tinylm.corpus import build_corpus
from tinylm.walkthrough import Lab, check_page, killed


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(14), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)
        self.assertRegex(printed, r"model.safetensors +│ +[\d,]+ │ yes")
        self.assertRegex(printed, r"timings.jsonl +│ +[\d,]+ │ no")

    def test_the_page_marks_only_what_the_stage_measures(self) -> None:
        text = Path(page_arguments(14)[1]).read_text("utf-8")
        problems, marked = check_page(text, {})
        names = {problem.split("'")[1] for problem in problems}
        self.assertGreater(marked, 4)
        script = Path(load_stage(14).__file__).read_text("utf-8")
        for name in names:
            self.assertIn(name.partition("_")[0], script)


class GoingOn(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.stage = load_stage(14)
        limit = CorpusConfig(max_documents=300, truncate=True)
        self.corpus = build_corpus("builtin:unicode", self.folder / "corpus", limit)

    def run_of(self, name: str, **changes) -> Path:
        config = self.stage.configuration(self.corpus, Lab(quick=True))
        small = {
            "steps": 8,
            "batch_rows": 2,
            "save_every": 4,
            "evaluate_every": 8,
            "out": str(self.folder / name),
        }
        return trainer.train(dataclasses.replace(config, **{**small, **changes})).run

    def test_taken_up_by_hand_with_nothing_forgotten_the_losses_are_the_same(self) -> None:
        run = self.run_of("run")
        rows = [row["loss"] for row in metrics.read_metrics(run) if "loss" in row]
        losses, again = self.stage.go_on("nothing", run, self.corpus, 4)
        self.assertEqual(losses, rows[4:])
        saved = checkpoint.load_training(checkpoint.find(run))
        for name, tensor in again.optimizer.state().items():
            self.assertTrue((tensor == saved[name]).all(), name)

    def test_whatever_is_forgotten_changes_the_losses(self) -> None:
        run = self.run_of("run")
        rows = [row["loss"] for row in metrics.read_metrics(run) if "loss" in row][4:]
        for name in self.stage.FORGOTTEN:
            losses, _ = self.stage.go_on(name, run, self.corpus, 4)
            (self.assertEqual if name == "nothing" else self.assertNotEqual)(losses, rows, name)
            first = next((n for n, (a, b) in enumerate(zip(losses, rows, strict=True), 1) if a != b), None)
            self.assertEqual(first, {"nothing": None, "the place in the data": 1}.get(name, 2), name)

    def test_stopped_and_resumed_the_files_are_equal_but_for_the_clocks(self) -> None:
        alone, other = self.run_of("alone"), self.run_of("other", stop_after=5)
        trainer.resume(other)
        for name, (size, equal) in self.stage.compare(alone, other, 8).items():
            told_where = name.endswith(("manifest.json", "run.json"))  # they hold the folder's name
            self.assertEqual(equal, name != "timings.jsonl" and not told_where, name)
            self.assertGreater(size, 0)


def count(say, numbers: int) -> None:
    try:
        for number in range(numbers):
            say(number)
        if number > 5:
            time.sleep(60)
    finally:
        Path("put-in-order").touch()


class Killing(unittest.TestCase):
    def test_a_process_is_killed_where_it_says_the_number(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertTrue(killed(count, 20, place=Path(folder), at=10))
            self.assertFalse((Path(folder) / "put-in-order").exists())
            self.assertFalse(killed(count, 5, place=Path(folder), at=10))
            self.assertTrue((Path(folder) / "put-in-order").exists())


if __name__ == "__main__":
    unittest.main()
