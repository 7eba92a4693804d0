"""Does a plan know what a compiled step keeps for its backward pass? Compiles two small steps, in a minute.

    python tests/slow/compiled_memory.py [--short]

The partitioner decides what is kept and what is computed again; it is the same for CPU and CUDA, and no
kernel has to be built for it. Both forms are the same.
"""

from __future__ import annotations

import dataclasses
import sys
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.test_plan import SMALL, saved_bytes
from tinylm.plan.memory import activation_bytes
from tinylm.training_step import mean_loss


class Compiled(unittest.TestCase):
    def test_a_compiled_step_saves_what_the_partitioner_leaves(self) -> None:
        loss = torch.compile(mean_loss, backend="aot_eager_decomp_partition", dynamic=False)
        for layers in (1, 3):
            shape = dataclasses.replace(SMALL, layers=layers, width=96)
            for precision, size in (("bfloat16", 2), ("float32", 4)):
                real = saved_bytes(shape, 4, precision, loss)
                planned = 4 * shape.window * (activation_bytes(shape, precision, True) + 257 * size + 8)
                print(f"{layers} layers, {precision}: planned {planned:,}, kept {real:,} bytes")
                self.assertLess(abs(planned / real - 1), 0.15, (precision, planned, real))


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--short"])
