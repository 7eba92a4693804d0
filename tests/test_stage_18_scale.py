"""Stage 18: the batch is the same batch on any number of ranks."""

from __future__ import annotations

import tempfile
import time
import unittest
from pathlib import Path

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.batches import Plan
from tinylm.config import CorpusConfig
from tinylm.corpus import build_corpus
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.walkthrough import together


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(18), "--quick", *page_arguments(18))
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


class Together(unittest.TestCase):
    def test_every_rank_gets_its_number_the_size_and_one_port(self) -> None:
        code = "open('said-' + sys.argv[2], 'w').write(' '.join(sys.argv[1:]))"
        with tempfile.TemporaryDirectory() as folder:
            together(code, "x", place=Path(folder), ranks=3)
            said = [(Path(folder) / f"said-{rank}").read_text().split() for rank in range(3)]
        self.assertEqual([one[:3] for one in said], [["x", str(rank), "3"] for rank in range(3)])
        self.assertEqual(len({one[3] for one in said}), 1)

    def test_where_one_fails_the_others_are_ended_and_it_is_told_why(self) -> None:
        started = time.monotonic()
        code = "import time\nif sys.argv[1] == '1': raise SystemExit('out of paper')\ntime.sleep(600)"
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "rank 1 failed: out of paper"):
                together(code, place=Path(folder), ranks=2)
            self.assertLess(time.monotonic() - started, 300)  # the one that sleeps was not waited for
            killed = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"
            with self.assertRaisesRegex(RuntimeError, "rank . failed"):
                together(killed, place=Path(folder), ranks=2)


if __name__ == "__main__":
    unittest.main()
