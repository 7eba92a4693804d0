"""Stage 18: the batch is the same batch on any number of ranks."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

from tests.stage_support import load_stage, run_stage
from tinylm.batches import Plan
from tinylm.config import CorpusConfig
from tinylm.corpus import build_corpus
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.walkthrough import together


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(18), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)
        self.assertRegex(printed, r"cross +│ +2 │ sharded")


class Sharing(unittest.TestCase):
    def test_the_shares_of_the_ranks_are_the_batch(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            limit = CorpusConfig(max_documents=100, truncate=True)
            corpus = build_corpus("builtin:unicode", Path(folder) / "corpus", limit)
            for policy in ("cross", "mask", "reset"):
                batch = Plan(corpus.train, policy, 32, 12, 0).batch(3)
                for size in (1, 2, 3, 4, 12):
                    parts = [batch.inputs_BT[Ranks(rank, size).share(12)] for rank in range(size)]
                    self.assertEqual({len(part) for part in parts}, {12 // size})
                    np.testing.assert_array_equal(np.concatenate(parts), batch.inputs_BT)

    def test_the_digest_depends_on_the_ids_and_not_on_how_they_are_dealt_out(self) -> None:
        digest = load_stage(18).digest
        rows = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]  # two steps of two rows
        alone = digest([{"ids": rows}])
        self.assertEqual(
            digest([{"ids": [step[:1] for step in rows]}, {"ids": [step[1:] for step in rows]}]), alone
        )
        self.assertNotEqual(digest([{"ids": [step[:1] for step in rows]}] * 2), alone)
        self.assertNotEqual(digest([{"ids": rows[::-1]}]), alone)

    def test_one_process_alone_learns_what_the_trainer_would(self) -> None:
        stage = load_stage(18)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            build_corpus("builtin:unicode", place / "corpus", CorpusConfig(max_documents=100, truncate=True))
            right = stage.learn("reset", "one process", 3, ALONE, place)
            own = stage.learn("reset", "own mean", 3, ALONE, place)
        self.assertEqual(right, own)  # of one rank, its own mean is the mean


def say(word: str) -> None:
    told = (os.environ[name] for name in ("WORLD_SIZE", "MASTER_PORT"))
    Path(f"said-{os.environ['RANK']}").write_text(" ".join((word, *told)), encoding="utf-8")


def fail(how: str) -> None:
    if os.environ["RANK"] == "1":
        if how == "killed":
            os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit(how)
    time.sleep(600)


class Together(unittest.TestCase):
    def test_every_rank_gets_its_number_the_size_and_one_port(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            together(say, "x", place=Path(folder), ranks=3)
            said = [(Path(folder) / f"said-{rank}").read_text().split() for rank in range(3)]
        self.assertEqual([one[:2] for one in said], [["x", "3"]] * 3)
        self.assertEqual(len({one[2] for one in said}), 1)
        self.assertNotIn("RANK", os.environ)

    def test_where_one_fails_the_others_are_ended_and_it_is_told_why(self) -> None:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "(?s)rank 1 failed: .*out of paper"):
                together(fail, "out of paper", place=Path(folder), ranks=2)
            self.assertLess(time.monotonic() - started, 300)  # the one that sleeps was not waited for
            with self.assertRaisesRegex(RuntimeError, f"rank 1 failed: -{signal.SIGTERM:d}"):
                together(fail, "killed", place=Path(folder), ranks=2)


if __name__ == "__main__":
    unittest.main()
