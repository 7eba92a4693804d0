"""Stage 13: a contract says what the ids mean, a digest says which weights these are."""

from __future__ import annotations

import hashlib
import json
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import safetensors.torch
import torch

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm import checkpoint, contract, files
from tinylm.config import TrainConfig
from tinylm.errors import CheckpointError, ContractError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer

FOUR = {
    "tokenizer_version": "utf8-byte-v1",
    "vocabulary_size": 257,
    "boundary_id": 256,
    "vocabulary_sha256": "b558ac388ef62a32f778a3518f9c1087c8a8df060f3b312163f32876f471ed74",
}


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_agrees_with_the_page_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(load_stage(13), "--quick", *page_arguments(13))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_every_damage_changes_the_file(self) -> None:
        stage = load_stage(13)
        whole = checkpoint.model_bytes(Transformer(stage.SHAPE))
        for name, damage in stage.DAMAGES.items():
            self.assertNotEqual(damage(whole), whole, name)


class WithASavedStep(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.stage = load_stage(13)
        self.run_folder = Path(holder.name)
        self.model = Transformer(self.stage.SHAPE)
        self.step = self.save(1)
        self.file = self.step / "model.safetensors"
        self.whole = self.file.read_bytes()
        self.alone = self.run_folder / "alone.safetensors"

    def save(self, number: int) -> Path:
        state = Optimizer(self.model, TrainConfig(data="none")).state()
        return checkpoint.save_step(self.run_folder, number, self.model, state, {})

    def header(self, file: Path) -> dict[str, object]:
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found: dict[str, object] = json.loads(header["__metadata__"]["tinylm"])
        return found


class Meaning(WithASavedStep):
    def test_every_file_of_a_step_carries_the_four_values(self) -> None:
        self.assertEqual(self.header(self.file)["contract"], FOUR)
        self.assertEqual(self.header(self.step / "training.safetensors")["contract"], FOUR)
        self.assertEqual(json.loads((self.step / "manifest.json").read_bytes())["contract"], FOUR)

    def test_another_contract_is_refused_before_a_tensor_is_used(self) -> None:
        self.alone.write_bytes(self.stage.DAMAGES["boundary id 10"](self.whole))
        with (
            mock.patch("safetensors.torch.load", side_effect=AssertionError("a tensor was read")),
            self.assertRaises(ContractError) as caught,
        ):
            checkpoint.load_model(self.alone)
        message = str(caught.exception)
        self.assertEqual(len(message.splitlines()), 1)
        for part in (str(self.alone), "boundary_id", "expected 256", "found 10"):
            self.assertIn(part, message)

    def test_a_value_that_stands_twice_is_refused(self) -> None:
        self.alone.write_bytes(self.stage.DAMAGES["boundary id twice"](self.whole))
        # The usual parser sees nothing wrong: the last value wins, and it is the right one.
        self.assertEqual(self.header(self.alone)["contract"], contract.contract())
        with self.assertRaisesRegex(ContractError, "boundary_id.*twice"):
            checkpoint.load_model(self.alone)

    def test_a_healthy_file_without_a_contract_is_refused(self) -> None:
        safetensors.torch.save_file({"weight": torch.zeros(2)}, self.alone)
        with self.assertRaisesRegex(ContractError, "no tokenizer contract"):
            checkpoint.load_model(self.alone)


class Tensors(WithASavedStep):
    def test_a_tensor_under_another_name_is_refused_and_not_left_random(self) -> None:
        self.alone.write_bytes(self.stage.DAMAGES["names of a compiled model"](self.whole))
        found = safetensors.torch.load(self.alone.read_bytes())  # the format sees nothing wrong
        renamed = [name for name in found if name.startswith("_orig_mod.")]
        self.assertGreater(len(renamed), 5)
        with self.assertRaises(CheckpointError) as caught:
            checkpoint.load_model(self.alone)
        self.assertRegex(
            str(caught.exception), r"_orig_mod\..* was saved from a wrapped module; save the one"
        )

    def test_a_tensor_of_another_shape_is_refused_with_both_shapes(self) -> None:
        self.alone.write_bytes(self.stage.DAMAGES["a matrix on its side"](self.whole))
        with self.assertRaisesRegex(CheckpointError, r"\[32, 257\].*expected \[257, 32\]"):
            checkpoint.load_model(self.alone)

    def test_each_of_the_four_ways_is_refused_by_a_step(self) -> None:
        self.assertEqual(len(self.stage.WAYS), 4)
        for way, damages in self.stage.WAYS.items():
            for name, damage in damages.items():
                self.file.write_bytes(damage(self.whole))
                with self.subTest(way, damage=name), self.assertRaises((CheckpointError, ContractError)):
                    checkpoint.load_model(self.step)


class Identity(WithASavedStep):
    def test_the_file_format_loads_a_flipped_bit_and_the_manifest_does_not(self) -> None:
        flipped = self.stage.DAMAGES["one bit of a weight flipped"](self.whole)
        before, after = (safetensors.torch.load(data) for data in (self.whole, flipped))
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        self.assertEqual(len(changed), 1)
        self.alone.write_bytes(flipped)
        checkpoint.load_model(self.alone)
        self.file.write_bytes(flipped)
        for place in (self.step, self.file):
            with self.assertRaisesRegex(CheckpointError, "SHA-256"):
                checkpoint.load_model(place)

    def test_the_manifest_lists_size_and_digest_of_the_other_files(self) -> None:
        manifest = json.loads((self.step / "manifest.json").read_bytes())
        for name, listed in manifest["files"].items():
            data = (self.step / name).read_bytes()
            self.assertEqual(listed, {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        self.assertEqual(set(manifest["files"]), {"model.safetensors", "training.safetensors"})

    def test_the_manifest_is_written_last(self) -> None:
        written = []
        real = files.write_pieces

        def record(path: Path, pieces: Iterator[bytes]) -> tuple[int, str]:
            written.append(path.name)
            return real(path, pieces)

        with mock.patch("tinylm.files.write_pieces", record):
            self.save(2)
        self.assertEqual(written, ["model.safetensors", "training.safetensors", "manifest.json"])

    def test_a_manifest_that_was_edited_is_refused(self) -> None:
        path = self.step / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b'"step": 1', b'"step": 2'))
        with self.assertRaisesRegex(CheckpointError, "damaged or edited"):
            checkpoint.load_model(self.step)

    def test_equal_weights_give_equal_bytes(self) -> None:
        self.assertEqual(checkpoint.model_bytes(Transformer(self.stage.SHAPE)), self.whole)
        self.assertNotEqual(checkpoint.model_bytes(Transformer(self.stage.SHAPE, seed=1)), self.whole)


class Runs(WithASavedStep):
    def test_a_run_whose_newest_step_is_damaged_goes_back_and_says_so(self) -> None:
        newest = self.save(2)
        self.assertEqual(checkpoint.find(self.run_folder).folder, newest)
        (newest / "training.safetensors").write_bytes(b"")
        found = checkpoint.find(self.run_folder)
        self.assertEqual(found.folder, self.step)
        self.assertEqual(len(found.skipped), 1)
        self.assertIn(str(newest / "training.safetensors"), found.skipped[0])

    def test_a_run_without_a_step_that_verifies_is_refused(self) -> None:
        self.file.write_bytes(self.whole[:-1])
        with self.assertRaisesRegex(CheckpointError, "no step verifies"):
            checkpoint.load_model(self.run_folder)

    def test_what_is_loaded_is_what_was_saved(self) -> None:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(generator=generator)
        self.save(2)
        loaded = checkpoint.load_model(self.run_folder)
        saved = dict(self.model.named_parameters())
        for name, parameter in loaded.named_parameters():
            self.assertTrue(torch.equal(parameter, saved[name]), name)
        ids_BT = torch.arange(16)[None]
        self.assertTrue(torch.equal(loaded(ids_BT), self.model(ids_BT)))


if __name__ == "__main__":
    unittest.main()
