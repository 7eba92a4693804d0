"""Is a compiled run that was stopped and resumed the run that was not? Compiles twice, in a minute.

    python tests/slow/compiled_resume.py [--short]

In as many threads as torch takes: compiled code adds up the gradients of the embedding in the order in which
threads arrive, unless it is asked not to. Both forms are the same. Negative control: without that, the runs
differ with two threads (LAB.md).
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.test_resume import Case
from tinylm import trainer
from tinylm.devices import compile_obstacle


class Compiled(Case):
    def test_it_is_the_same_run_bit_for_bit(self) -> None:
        if obstacle := compile_obstacle("cpu"):
            self.skipTest(obstacle)
        options = {"compile": "yes", "steps": 4, "dropout": 0.1, "evaluate_every": 4}
        whole = self.train("whole", **options)
        part = self.train("part", stop_after=2, **options)
        torch.compiler.reset()
        trainer.resume(part)
        self.assert_same_run(whole, part, 4)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--short"])
