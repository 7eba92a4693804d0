"""Stage 19: an export means the same in other programs, and a reader's mistake can be seen."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import safetensors.torch

from tests.llama_support import TINY, random_model, without_node
from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.interop import huggingface
from tinylm.interop.by_hand import ByHand, log_softmax, read_safetensors
from tinylm.interop.gguf import log_probabilities
from tinylm.interop.programs import in_numpy, in_tinylm

SHAPES = (
    TINY,
    dataclasses.replace(TINY, layers=2, tied=True, rope_theta=500.0, norm_eps=1e-3),
    dataclasses.replace(TINY, layers=2, width=64, heads=8, kv_heads=4, head_size=24, mlp_width=96),
)
IDS = [256, *"a 안녕<|doc|>".encode(), 256, 255, 0]


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(19), "--quick", *page_arguments(19))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_a_program_that_is_missing_is_skipped_in_a_line(self) -> None:
        with mock.patch("shutil.which", without_node):
            code, printed = run_stage(load_stage(19), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(sum(": skipped (" in line for line in printed.splitlines()), 2, printed)

    def test_an_export_that_another_program_computes_otherwise_fails_the_stage(self) -> None:
        real = huggingface.config_json

        def other(*arguments) -> dict:
            return {**real(*arguments), "rope_theta": 500_000.0}

        with mock.patch.object(huggingface, "config_json", other), mock.patch("shutil.which", without_node):
            code, printed = run_stage(load_stage(19), "--quick")
        self.assertEqual(code, 1)
        self.assertIn("every program that ran agrees", printed)


class ByTheDescription(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def exported(self, model) -> Path:
        """A new folder with the model."""
        folder = self.folder / str(len(list(self.folder.iterdir())))
        huggingface.write_huggingface(model, folder)
        return folder

    def test_the_reader_by_hand_computes_what_the_model_computes(self) -> None:
        for shape in SHAPES:
            model = random_model(shape).double()
            found_TV = ByHand(self.exported(model)).log_probabilities(IDS)
            # The tables of RoPE are float32 in the model.
            np.testing.assert_allclose(found_TV, log_probabilities(model, IDS), rtol=0, atol=2e-6)

    def test_each_mistake_changes_what_it_says_and_nothing_else(self) -> None:
        folder = self.exported(random_model())
        right_TV = ByHand(folder).log_probabilities(IDS)
        wrong_TV = ByHand(folder, neighbours=True).log_probabilities(IDS)
        np.testing.assert_allclose(wrong_TV[0], right_TV[0])  # at position 0 nothing is turned
        self.assertGreater(float(np.abs(wrong_TV - right_TV).max()), 0.01)
        near = float(np.abs(ByHand(folder, epsilon=1e-5).log_probabilities(IDS) - right_TV).max())
        self.assertTrue(1e-7 < near < 1e-3, near)
        spelled = ByHand(folder, spelled=True)
        self.assertEqual(spelled.tokenize("a<|doc|>b<|doc|>"), [97, 256, 98, 256])
        np.testing.assert_array_equal(spelled.log_probabilities(IDS), right_TV)

    def test_the_ids_of_a_text_are_its_bytes(self) -> None:
        reader = ByHand(self.exported(random_model()))
        for text in ("a<|doc|>b", "안녕 👍", "\x00\x01\x7f", ""):
            self.assertEqual(reader.tokenize(text), list(text.encode()))

    def test_tensors_are_those_that_the_library_reads(self) -> None:
        for model in (random_model(), random_model().double()):
            path = self.exported(model) / "model.safetensors"
            found, expected = read_safetensors(path), safetensors.torch.load(path.read_bytes())
            self.assertEqual(list(found), [name for name, _ in model.named_parameters()])
            for name, values in expected.items():
                np.testing.assert_array_equal(found[name], values.double().numpy())

    def test_greedy_ids_agree(self) -> None:
        model = random_model()
        programs = (in_tinylm(model), in_numpy(ByHand(self.exported(model))))
        ours, theirs = ([program.greedy([256, start], 8) for start in range(16)] for program in programs)
        self.assertEqual(ours, theirs)

    def test_log_probabilities_are_finite_where_logits_are_huge(self) -> None:
        found = log_softmax(np.array([[1000.0, 0.0], [-1000.0, -1000.0]]))
        np.testing.assert_allclose(found, [[0, -1000], [np.log(0.5), np.log(0.5)]])

    def test_the_settings_are_read_from_the_folder(self) -> None:
        folder = self.exported(random_model())
        config = json.loads((folder / "config.json").read_bytes())
        before = ByHand(folder).log_probabilities(IDS)
        (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 7.0}))
        self.assertGreater(float(np.abs(ByHand(folder).log_probabilities(IDS) - before).max()), 0.01)


if __name__ == "__main__":
    unittest.main()
