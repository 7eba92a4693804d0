"""Checkpoints: nothing is trusted before contract and digest agree, and nothing half-written counts."""

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
import unittest
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import safetensors.torch
import torch

from tinylm import checkpoint, contract, files, tensor_files
from tinylm.config import ModelConfig, TrainConfig
from tinylm.errors import CheckpointError, ContractError, TinylmError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer

TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=16)


def header_of(data: bytes) -> dict:
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])


def with_header(data: bytes, text: str) -> bytes:
    size = int.from_bytes(data[:8], "little")
    raw = text.encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data[8 + size :]


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.run_folder = Path(holder.name) / "run"
        self.run_folder.mkdir()
        self.model = Transformer(TINY, seed=3)
        self.optimizer = Optimizer(self.model, TrainConfig(data="x"))

    def save(self, step: int) -> Path:
        state = self.optimizer.state()
        return checkpoint.save_step(self.run_folder, step, self.model, state, {"config": {"a": 1}})


class TestModelFile(Case):
    def test_a_model_comes_back_equal(self):
        path = self.run_folder / "model.safetensors"
        checkpoint.save_model(path, self.model)
        found = checkpoint.load_model(path)
        self.assertEqual(found.config, TINY)
        loaded = dict(found.named_parameters())
        self.assertEqual(list(loaded), [name for name, _ in self.model.named_parameters()])
        for name, saved in self.model.named_parameters():
            self.assertTrue(torch.equal(loaded[name], saved), name)

    def test_equal_states_give_equal_bytes_with_one_metadata_key(self):
        data = checkpoint.model_bytes(self.model)
        self.assertEqual(data, checkpoint.model_bytes(Transformer(TINY, seed=3)))
        self.assertEqual(list(header_of(data)["__metadata__"]), ["tinylm"])

    def test_safetensors_itself_reads_it(self):
        found = safetensors.torch.load(checkpoint.model_bytes(self.model))
        self.assertEqual(set(found), {name for name, _ in self.model.named_parameters()})

    def test_each_value_of_the_contract_is_refused_alone(self):
        data = checkpoint.model_bytes(self.model)
        path = self.run_folder / "model.safetensors"
        info = json.loads(header_of(data)["__metadata__"]["tinylm"])
        changes = {
            "tokenizer_version": "utf8-byte-v2",
            "vocabulary_size": 258,
            "boundary_id": 257,
            "vocabulary_sha256": contract.VOCABULARY_SHA256[:-1] + "0",
        }
        for key, value in changes.items():
            for action in ("wrong", "missing"):
                changed = json.loads(json.dumps(info))
                if action == "wrong":
                    changed["contract"][key] = value
                else:
                    del changed["contract"][key]
                header = header_of(data)
                header["__metadata__"]["tinylm"] = json.dumps(changed)
                path.write_bytes(with_header(data, json.dumps(header)))
                with (
                    mock.patch(
                        "tinylm.tensor_files._bytes_of", side_effect=AssertionError("a tensor was used")
                    ),
                    self.assertRaises(ContractError) as caught,
                ):
                    checkpoint.load_model(path)
                found = repr(value) if action == "wrong" else "nothing"
                for part in (str(path), key, repr(contract.contract()[key]), found):
                    self.assertIn(part, str(caught.exception))

    def test_a_value_that_stands_twice_is_refused(self):
        data = checkpoint.model_bytes(self.model)
        path = self.run_folder / "model.safetensors"
        inner = header_of(data)["__metadata__"]["tinylm"]
        twice = inner.replace('"boundary_id":256', '"boundary_id":7,"boundary_id":256')
        self.assertNotEqual(inner, twice)
        header = header_of(data)
        header["__metadata__"]["tinylm"] = twice
        path.write_bytes(with_header(data, json.dumps(header)))
        with self.assertRaisesRegex(ContractError, "boundary_id.*twice"):
            checkpoint.load_model(path)
        key = json.dumps("tinylm")
        text = json.dumps(header_of(data)).replace(f"{{{key}: ", f'{{{key}: "evil", {key}: ', 1)
        path.write_bytes(with_header(data, text))
        with self.assertRaisesRegex(ContractError, "twice"):
            checkpoint.load_model(path)

    def test_files_without_a_contract_are_refused(self):
        path = self.run_folder / "model.safetensors"
        for metadata in (None, {"format": "pt"}, {"tinylm": "{}"}, {"tinylm": "[1]"}, {"tinylm": "null"}):
            safetensors.torch.save_file({"w": torch.zeros(2)}, path, metadata)
            with self.assertRaises(ContractError):
                checkpoint.load_model(path)

    def test_other_tensors_than_the_config_says_are_refused(self):
        path = self.run_folder / "model.safetensors"
        tensors = {name: p.detach() for name, p in self.model.named_parameters()}
        info = json.loads(header_of(checkpoint.model_bytes(self.model))["__metadata__"]["tinylm"])
        text = files.canonical_json(info).decode()
        for change in (
            lambda t: t.pop("lm_head.weight"),
            lambda t: t.update({"_orig_mod.x": torch.zeros(1)}),
            lambda t: t.update({"model.embed_tokens.weight": torch.zeros(256, 32)}),
            lambda t: t.update({"model.norm.weight": torch.full((32,), float("nan"))}),
        ):
            changed = dict(tensors)
            change(changed)
            path.write_bytes(safetensors.torch.save(changed, {"tinylm": text}))
            with self.assertRaises(CheckpointError) as caught:
                checkpoint.load_model(path)
            self.assertIn(str(path), str(caught.exception))

    def test_cut_and_extended_files_are_refused_with_the_path(self):
        data = checkpoint.model_bytes(self.model)
        path = self.run_folder / "model.safetensors"
        size = int.from_bytes(data[:8], "little")
        ends = (0, 1, 7, 8, 8 + size // 2, 8 + size - 1, 8 + size, 8 + size + 1, len(data) - 1)
        cuts = [data[:end] for end in ends]
        for damaged in (*cuts, data + b"\0", b"\xff" * 40, b"not a model at all"):
            path.write_bytes(damaged)
            with self.assertRaises(TinylmError) as caught:
                checkpoint.load_model(path)
            self.assertIn(str(path), str(caught.exception))

    def test_a_file_of_another_length_is_told_its_own(self):
        data = checkpoint.model_bytes(self.model)
        path = self.run_folder / "model.safetensors"
        for damaged in (data[:-1], data + b"\0"):
            path.write_bytes(damaged)
            with self.assertRaisesRegex(CheckpointError, f"{len(damaged):,} bytes, expected {len(data):,}"):
                checkpoint.load_model(path)


class TestSteps(Case):
    def test_a_step_verifies_and_gives_back_both_states(self):
        with torch.no_grad():
            for tensor in self.optimizer.state().values():
                tensor.fill_(7)
        folder = self.save(200)
        self.assertEqual(folder.name, "step-00000200")
        names = ["manifest.json", "model.safetensors", "training.safetensors"]
        self.assertEqual(sorted(path.name for path in folder.iterdir()), names)
        manifest = checkpoint.verify_step(folder)
        self.assertEqual((manifest["step"], manifest["config"]), (200, {"a": 1}))
        found = checkpoint.load_training(checkpoint.find(folder))
        for name, tensor in self.optimizer.state().items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def test_the_same_state_gives_the_same_folder(self):
        first = {p.name: p.read_bytes() for p in self.save(5).iterdir()}
        checkpoint.prune(self.run_folder, 0)
        self.assertEqual(first, {p.name: p.read_bytes() for p in self.save(5).iterdir()})

    def test_a_flipped_bit_anywhere_is_noticed(self):
        folder = self.save(1)
        for path in sorted(folder.iterdir()):
            whole = path.read_bytes()
            for position in {0, 1, 7, 8, 9, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
                damaged = bytearray(whole)
                damaged[position] ^= 1
                path.write_bytes(damaged)
                with self.assertRaises(TinylmError, msg=f"{path.name} at {position}") as caught:
                    checkpoint.verify_step(folder)
                self.assertIn(str(folder), str(caught.exception))
            path.write_bytes(whole)
        checkpoint.verify_step(folder)

    def test_a_manifest_of_the_same_content_in_other_bytes_is_refused(self):
        path = self.save(1) / "manifest.json"
        whole = path.read_bytes()
        for other in (
            whole.replace(b"\n ", b"\n\t", 1),
            whole.replace(b"\n", b"\r\n"),
            json.dumps(json.loads(whole)).encode(),
            whole + b" ",
        ):
            self.assertEqual(json.loads(other), json.loads(whole))
            path.write_bytes(other)
            with self.assertRaisesRegex(CheckpointError, "manifest.json: its digest does not match"):
                checkpoint.verify_step(path.parent)

    def test_bytes_that_the_system_lost_are_noticed_before_a_step_takes_its_name(self):
        self.save(1)
        real = files.write_all

        def losing(name: str) -> Callable[..., None]:
            def write(file, data):
                real(file, data[:-1] if Path(file.name).name == name else data)

            return write

        for name in ("model.safetensors", "training.safetensors", "manifest.json"):
            with mock.patch("tinylm.files.write_all", losing(name)), self.assertRaises(OSError) as caught:
                self.save(2)
            self.assertIn("arrived of", str(caught.exception))
            self.assertTrue(str(caught.exception.filename).endswith(name))
            self.assertEqual([path.name for path in self.run_folder.iterdir()], ["step-00000001"])

    def test_files_in_each_other_s_place_or_of_another_run_are_refused(self):
        folder = self.save(1)
        whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        other = self.run_folder.with_name("other")
        other.mkdir()
        self.model = Transformer(TINY, seed=4)
        self.run_folder, before = other, self.run_folder
        foreign = {path.name: path.read_bytes() for path in self.save(1).iterdir()}
        self.run_folder = before
        for name, data in (
            ("model.safetensors", whole["training.safetensors"]),
            ("training.safetensors", whole["model.safetensors"]),
            ("model.safetensors", foreign["model.safetensors"]),
            ("manifest.json", foreign["manifest.json"]),
        ):
            (folder / name).write_bytes(data)
            with self.assertRaises(CheckpointError) as caught:
                checkpoint.verify_step(folder)
            self.assertIn(str(folder), str(caught.exception))
            (folder / name).write_bytes(whole[name])
        checkpoint.verify_step(folder)

    def test_no_pointer_no_link_and_no_time_stamp_says_which_step_is_the_newest(self):
        first, second = self.save(1), self.save(2)
        for name, text in (("LATEST", "step-00000001"), ("latest", "../../elsewhere"), ("newest", "\0")):
            (self.run_folder / name).write_text(text, encoding="utf-8")
        (self.run_folder / "step-latest").symlink_to(first)
        (self.run_folder / "step-00000009").symlink_to(self.run_folder / "nowhere")
        (self.run_folder / "step-3").mkdir()
        (self.run_folder / "step-00000004").write_text("not a folder", encoding="utf-8")
        (self.run_folder / "step-000000005").mkdir()
        for past, place in ((10**9, second), (2 * 10**9, first)):
            os.utime(place, (past, past))
        found = checkpoint.newest_step(self.run_folder)
        self.assertEqual((found.folder, found.skipped), (second, ()))

    def test_a_whole_manifest_of_another_contract_or_format_is_refused(self):
        path = self.save(1) / "manifest.json"
        manifest = json.loads(path.read_bytes())
        for change, error, message in (
            ({"contract": {**contract.contract(), "boundary_id": 10}}, ContractError, "found 10"),
            ({"contract": None}, ContractError, "no tokenizer contract"),
            ({"format": 2}, CheckpointError, "format is 2, expected 1"),
            ({"format": True}, CheckpointError, "format is True, expected 1"),
            ({"format": 1.0}, CheckpointError, "format is 1.0, expected 1"),
        ):
            path.write_bytes(files.readable_json(files.seal({**manifest, **change})))
            with self.assertRaisesRegex(error, message):
                checkpoint.verify_step(path.parent)

    def test_the_newest_step_that_verifies_is_found_and_the_others_are_named(self):
        self.save(1)
        self.save(10)
        broken = self.save(9)
        newest = self.save(11)
        (broken / "model.safetensors").write_bytes(b"")
        (newest / "training.safetensors").unlink()
        found = checkpoint.find(self.run_folder)
        self.assertEqual(found.folder.name, "step-00000010")
        self.assertEqual(len(found.skipped), 1)
        self.assertIn("step-00000011", found.skipped[0])

    def test_temporary_folders_do_not_count(self):
        self.save(1).rename(self.run_folder / ".tmp-step-00000002-abc")
        with self.assertRaisesRegex(CheckpointError, "no step folder"):
            checkpoint.find(self.run_folder)

    def faults(self, error: OSError, number: int, persistent: bool) -> contextlib.ExitStack:
        """From here on the n-th call of the file layer fails, and if persistent all after it."""
        calls = itertools.count(1)
        self.made: list[str] = []
        stack = contextlib.ExitStack()

        def failing(name, real):
            def call(*given, **options):
                self.made.append(name)
                count = next(calls)
                if count != number and not (persistent and count > number):
                    return real(*given, **options)
                if not options.get("ignore_errors"):
                    raise error

            return call

        places = [(files, "write_all"), (shutil, "rmtree")]
        places += [(os, name) for name in ("fsync", "rename", "replace", "mkdir")]
        for owner, name in places:
            stack.enter_context(mock.patch.object(owner, name, failing(name, getattr(owner, name))))
        return stack

    def test_whichever_call_fails_the_old_step_or_the_new_one_is_there_and_nothing_was_pruned_first(self):
        for code, persistent in itertools.product((errno.ENOSPC, errno.EIO), (False, True)):
            self.save(1)
            for number in itertools.count(1):
                with self.faults(OSError(code, os.strerror(code)), number, persistent):
                    try:
                        checkpoint.verify_step(self.save(2))
                        checkpoint.prune(self.run_folder, 1)
                        raised = None
                    except OSError as error:
                        raised = error
                if raised is not None:
                    self.assertEqual(raised.errno, code)
                    self.assertTrue(str(raised.filename).startswith(str(self.run_folder)), self.made)
                found = checkpoint.find(self.run_folder)
                self.assertIn(found.folder.name, ("step-00000001", "step-00000002"))
                self.assertEqual(found.skipped, ())
                names = {path.name for path in self.run_folder.iterdir()}
                if found.folder.name == "step-00000001":
                    self.assertIsNotNone(raised)
                whole = {"step-00000001", "step-00000002"}
                left = {name for name in names - whole if not files.LEFT_BEHIND.fullmatch(name)}
                self.assertEqual(left, set())
                if not (persistent or (raised is None and number <= len(self.made))):
                    self.assertLessEqual(names, whole, self.made)
                files.clean(self.run_folder)
                self.assertLessEqual({path.name for path in self.run_folder.iterdir()}, whole)
                if number > len(self.made):
                    break
                shutil.rmtree(self.run_folder / "step-00000002", ignore_errors=True)
                if not (self.run_folder / "step-00000001").exists():
                    self.save(1)
            self.assertEqual(self.made[-3:], ["rename", "fsync", "rmtree"])
            self.assertGreater(number, 12)
            shutil.rmtree(self.run_folder)
            self.run_folder.mkdir()

    def test_an_existing_step_is_not_overwritten(self):
        before = (self.save(3) / "manifest.json").read_bytes()
        with self.assertRaises(FileExistsError):
            self.save(3)
        self.assertEqual((checkpoint.step_folder(self.run_folder, 3) / "manifest.json").read_bytes(), before)

    def test_a_renamed_step_folder_is_not_that_step(self):
        folder = self.save(1)
        folder.rename(folder.with_name("step-00000099"))
        with self.assertRaisesRegex(CheckpointError, "is of step 1"):
            checkpoint.verify_step(folder.with_name("step-00000099"))

    def test_a_sealed_manifest_without_its_parts_is_refused_by_name(self):
        folder = self.save(1)
        path = folder / "manifest.json"
        whole = json.loads(path.read_bytes())
        for change in ({"files": None}, {"files": {}}, {"files": {"model.safetensors": 3}}, {"step": "1"}):
            path.write_bytes(files.readable_json(files.seal({**whole, **change})))
            with self.assertRaisesRegex(CheckpointError, "manifest.json"):
                checkpoint.verify_step(folder)

    def test_offsets_that_are_no_integers_are_refused(self):
        data = checkpoint.model_bytes(self.model)
        for end in ('"5"', "null", "1.5", "true"):
            header = header_of(data)
            last = header["lm_head.weight"]["data_offsets"][1]
            text = json.dumps(header).replace(f", {last}]", f", {end}]", 1)
            with self.assertRaisesRegex(CheckpointError, "data_offsets"):
                tensor_files.parse_header(with_header(data, text), "here")

    def test_a_float64_model_stays_float64(self):
        model = Transformer(TINY, seed=2).double()
        with torch.no_grad():
            model.model.norm.weight.fill_(1 / 3)
        checkpoint.save_model(self.run_folder / "model.safetensors", model)
        found = checkpoint.load_model(self.run_folder / "model.safetensors")
        self.assertTrue(torch.equal(found.model.norm.weight, model.model.norm.weight))

    def test_what_an_earlier_prune_left_is_not_in_the_way(self):
        self.save(1)
        (self.run_folder / ".old-step-00000001").mkdir()
        (self.run_folder / ".old-step-00000001" / "model.safetensors").write_bytes(b"half of it")
        self.save(2)
        checkpoint.prune(self.run_folder, 1)
        self.assertEqual([step for step, _ in checkpoint.list_steps(self.run_folder)], [2])

    def test_a_pruned_step_has_lost_its_name_for_good_before_a_file_of_it_goes(self):
        self.save(1)
        self.save(2)
        order: list[str] = []
        for name in ("rename", "fsync", "unlink"):
            real = getattr(os, name)

            def noted(*arguments, name=name, real=real, **options):
                order.append(name)
                return real(*arguments, **options)

            patch = mock.patch.object(os, name, noted)
            patch.start()
            self.addCleanup(patch.stop)
        checkpoint.prune(self.run_folder, 1)
        self.assertEqual(order[:3], ["rename", "fsync", "unlink"])

    def test_prune_keeps_the_highest_steps(self):
        for step in (2, 10, 9, 100):
            self.save(step)
        checkpoint.prune(self.run_folder, 2)
        self.assertEqual([step for step, _ in checkpoint.list_steps(self.run_folder)], [100, 10])
        self.assertEqual(len(list(self.run_folder.iterdir())), 2)

    def evaluated(self, step: int, bits: float | None, protocol: str = "a part") -> Path:
        measured = None if bits is None else {"bits_per_byte": bits, "protocol": protocol}
        return checkpoint.save_step(
            self.run_folder, step, self.model, self.optimizer.state(), {"validation": measured}
        )

    def steps(self) -> list[int]:
        return [step for step, _ in checkpoint.list_steps(self.run_folder)]

    def test_the_best_step_of_each_protocol_is_kept_beside_the_newest(self):
        for step, bits in ((10, 3.0), (20, 2.0), (30, 2.0), (40, None), (50, 2.5), (60, float("1e9"))):
            self.evaluated(step, bits)
        best = [(bits, folder.name) for bits, folder in checkpoint.best_steps(self.run_folder)]
        self.assertEqual(best, [(2.0, "step-00000030")])
        self.evaluated(70, 9.0, "all of it")
        for number, (step, _) in enumerate(checkpoint.list_steps(self.run_folder)):
            os.utime(checkpoint.step_folder(self.run_folder, step), (number, number))  # clocks mean nothing
        checkpoint.prune(self.run_folder, 2)
        self.assertEqual(self.steps(), [70, 60, 30])
        checkpoint.prune(self.run_folder, 1)
        self.assertEqual(self.steps(), [70, 30])

    def test_a_damaged_step_is_not_the_best(self):
        self.evaluated(1, 2.0)
        path = self.evaluated(2, 1.0) / "manifest.json"
        path.write_bytes(path.read_bytes().replace(b"1.0", b"0.5"))
        self.evaluated(3, 3.0)
        checkpoint.prune(self.run_folder, 1)
        self.assertEqual(self.steps(), [3, 1])


class TestOneByOne(Case):
    """Files that are written and read tensor by tensor, for ranks without memory for all of them."""

    def test_the_bytes_are_those_that_safetensors_writes(self):
        kinds = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16, torch.bool)
        kinds += (torch.uint8, torch.int8, torch.int16, torch.int32)
        odd = {f"{number}.{kind}": torch.arange(number + 3).to(kind) for number, kind in enumerate(kinds)}
        odd |= {
            "b": torch.zeros(0, 3),
            "a": torch.tensor(7),
            'é "\\ \n': torch.ones(2, 3).T,
            "": torch.ones(1, 1),
        }
        weights = dict(self.model.named_parameters())
        double = {name: tensor.double() for name, tensor in self.optimizer.state().items()}
        for tensors in (odd, {}, weights, self.optimizer.state(), double, dict(reversed(weights.items()))):
            for info in ({"step": 12}, {"model": {"a": 'é"\\'}}):
                metadata = {"tinylm": tensor_files.header_info(info)}
                plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
                expected = safetensors.torch.save(plain, metadata)
                self.assertEqual(tensor_files.to_bytes(tensors, info), expected)
        state = self.optimizer.state()
        folder = self.save(3)
        info = {"tinylm": tensor_files.header_info({"step": 3})}
        self.assertEqual((folder / "training.safetensors").read_bytes(), safetensors.torch.save(state, info))

    def test_other_numbers_are_not_written(self):
        with self.assertRaisesRegex(TypeError, "complex64"):
            tensor_files.to_bytes({"a": torch.zeros(2, dtype=torch.complex64)}, {})

    def test_a_tensor_is_forgotten_before_the_next_one_is_made(self):
        alive, most = 0, []

        def gone(size):
            nonlocal alive
            alive -= size

        def whole(tensor):
            nonlocal alive
            made = tensor.detach().clone()
            alive += made.nbytes
            most.append(alive)
            weakref.finalize(made.untyped_storage(), gone, made.nbytes)
            return made

        state = self.optimizer.state()
        checkpoint.save_step(self.run_folder, 1, self.model, state, {}, whole=whole)
        order = checkpoint.save_order(self.model, state)
        self.assertEqual(most, [tensor.nbytes for tensor in order])
        self.assertEqual(len(order), len(list(self.model.parameters())) + len(state))

    def filled(self, found, put=torch.Tensor.copy_):
        """A model and a state, read one by one into places that hold something else."""
        model = Transformer(TINY, seed=9)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        checkpoint.fill_model(found, TINY, weights, put)
        state = {name: torch.full_like(tensor, 5) for name, tensor in self.optimizer.state().items()}
        if found.manifest is not None:
            checkpoint.fill_training(found, state, put)
        return weights, state

    def test_what_is_read_one_by_one_is_what_was_saved(self):
        with torch.no_grad():
            for number, tensor in enumerate(self.optimizer.state().values()):
                tensor.fill_(number)
        found = checkpoint.find(self.save(4))
        weights, state = self.filled(found)
        for name, parameter in self.model.named_parameters():
            self.assertTrue(torch.equal(weights[name], parameter), name)
        self.assertEqual(state.keys(), checkpoint.load_training(found).keys())
        for name, tensor in checkpoint.load_training(found).items():
            self.assertTrue(torch.equal(state[name], tensor), name)
        self.assertEqual(checkpoint.model_config(found), TINY)

    def test_a_flipped_bit_anywhere_is_refused_by_its_digest_whatever_it_says(self):
        folder = self.save(1)
        found = checkpoint.find(folder)
        for path in (folder / checkpoint.MODEL, folder / checkpoint.TRAINING):
            whole = path.read_bytes()
            header = int.from_bytes(whole[:8], "little")
            for position in {
                0,
                5,
                7,
                8,
                9,
                header // 2,
                header + 7,
                header + 8,
                len(whole) // 2,
                len(whole) - 1,
            }:
                damaged = bytearray(whole)
                damaged[position] ^= 64
                path.write_bytes(damaged)
                with self.assertRaisesRegex(CheckpointError, f"{path.name}: its SHA-256", msg=str(position)):
                    self.filled(found)
            for damaged in (whole[:-1], whole + b"\0", b"", whole[:3]):
                path.write_bytes(damaged)
                with self.assertRaisesRegex(CheckpointError, f"{path.name}: its SHA-256"):
                    self.filled(found)
            path.write_bytes(whole)
        self.filled(found)

    def test_a_model_file_without_a_manifest_is_checked_all_the_same(self):
        path = self.run_folder / "model.safetensors"
        found = checkpoint.Checkpoint(path, None)
        tensors = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        info = {"model": dataclasses.asdict(TINY)}
        path.write_bytes(tensor_files.to_bytes(tensors, info))
        self.filled(found)
        whole = path.read_bytes()
        wrong = [
            ({**tensors, "model.norm.weight": torch.full((32,), float("inf"))}, "not finite"),
            ({**tensors, "model.norm.weight": torch.zeros(31)}, r"model.norm.weight is \[31\]"),
            ({**tensors, "model.norm.weight": torch.zeros(32).half()}, "float16, expected"),
            ({name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}, "is missing"),
            ({**tensors, "more": torch.zeros(1)}, "more is not part"),
        ]
        for changed, words in wrong:
            path.write_bytes(tensor_files.to_bytes(changed, info))
            with self.assertRaisesRegex(CheckpointError, words):
                self.filled(found, mock.Mock())
        path.write_bytes(tensor_files.to_bytes(tensors, {"model": {**info["model"], "rope_theta": 5.0}}))
        with self.assertRaisesRegex(CheckpointError, "was replaced"):
            self.filled(found)
        put = mock.Mock(side_effect=AssertionError("a tensor was used"))
        path.write_bytes(with_header(whole, json.dumps({**header_of(whole), "__metadata__": {}})))
        with self.assertRaises(ContractError):
            self.filled(found, put)
        for change in (
            {"shape": [33]},
            {"shape": [-32]},
            {"shape": 32},
            {"dtype": "F8_E4M3"},
            {"dtype": None},
        ):
            header = header_of(whole)
            header["model.norm.weight"].update(change)
            path.write_bytes(with_header(whole, json.dumps(header)))
            with self.assertRaises(CheckpointError) as caught:
                self.filled(found, put)
            self.assertRegex(str(caught.exception), "do not agree|are not read here")
        header = header_of(whole)
        header["model.norm.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"]
        path.write_bytes(with_header(whole, json.dumps(header)))
        with self.assertRaises(CheckpointError):
            self.filled(found, put)


class TestReaders(Case):
    def test_readers_beside_a_trainer_that_saves_and_prunes_see_whole_steps(self):
        stop, failures = threading.Event(), []
        self.save(0)

        def write():
            try:
                for step in itertools.count(1):
                    if stop.is_set():
                        return
                    checkpoint.verify_step(self.save(step))
                    checkpoint.prune(self.run_folder, 1)
            except BaseException as error:
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen = set()
            until = time.monotonic() + 1.5
            while time.monotonic() < until or (len(seen) < 4 and time.monotonic() < until + 20):
                found, model = checkpoint.load(self.run_folder)
                seen.add(found.folder.name)
                self.assertEqual(found.skipped, ())
                self.assertTrue(torch.equal(model.lm_head.weight, self.model.lm_head.weight))
                try:
                    checkpoint.load(found.folder)
                except CheckpointError as error:
                    self.assertIn("does not exist", str(error))
        finally:
            stop.set()
            writer.join()
        self.assertEqual(failures, [])
        self.assertGreater(len(seen), 3)

    def test_a_step_folder_that_goes_while_it_is_looked_at_is_gone_and_nothing_else(self):
        folder = self.save(1)
        for name in ("is_file", "exists", "is_dir"):  # of Path: each look may be the last that finds it
            real, calls = getattr(Path, name), []

            def last(path, *given, real=real, calls=calls, **named):
                found = real(path, *given, **named)
                calls.append(path)
                if len(calls) == 1:
                    shutil.rmtree(folder)
                return found

            with (
                mock.patch.object(Path, name, last),
                self.assertRaisesRegex(CheckpointError, "does not exist"),
            ):
                checkpoint.load(folder)
            self.assertTrue(calls)
            self.save(1)

    def test_a_step_that_goes_while_it_is_read_gives_way_to_the_newer_one(self):
        for name in ("_manifest", "load_model_file", "_check_file"):
            real, calls = getattr(checkpoint, name), []
            self.save(1)

            def pruned(*given, real=real, calls=calls):
                if not calls:
                    calls.append(1)
                    self.save(2)
                    checkpoint.prune(self.run_folder, 1)
                return real(*given)

            with mock.patch.object(checkpoint, name, pruned):
                found, _ = checkpoint.load(self.run_folder)
            self.assertEqual((found.folder.name, found.skipped), ("step-00000002", ()))
            checkpoint.prune(self.run_folder, 0)

    def test_a_run_whose_steps_always_go_is_given_up(self):
        self.save(1)
        gone = mock.patch.object(checkpoint, "_look", side_effect=CheckpointError("gone"))
        listed = mock.patch.object(
            checkpoint, "list_steps", return_value=[(7, self.run_folder / "step-00000007")]
        )
        with gone, listed, self.assertRaisesRegex(CheckpointError, "pruned faster"):
            checkpoint.load(self.run_folder)

    def test_a_load_reads_each_file_once_and_hands_nothing_on_before_both_have_agreed(self):
        folder, seen = self.save(1), []
        real_file, real_whole = tensor_files._Hashed, files.sha256_file

        def tensors(file, where):
            seen.append(Path(where).name)
            return real_file(file, where)

        def whole(path):
            seen.append(path.name)
            return real_whole(path)

        with (
            mock.patch.object(tensor_files, "_Hashed", tensors),
            mock.patch.object(files, "sha256_file", whole),
        ):
            for load in (checkpoint.load, checkpoint.load_step, checkpoint.find):
                seen.clear()
                load(folder)
                self.assertEqual(sorted(seen), [checkpoint.MODEL, checkpoint.TRAINING], load)
        path = folder / checkpoint.TRAINING
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        for load in (checkpoint.load, checkpoint.load_step):
            with self.assertRaisesRegex(CheckpointError, "training.safetensors.*SHA-256"):
                load(folder)

    def test_a_step_to_go_on_from_is_the_model_and_the_state_that_were_saved(self):
        found, model, training = checkpoint.load_step(self.save(3))
        self.assertEqual((found.folder.name, found.manifest["step"]), ("step-00000003", 3))
        for name, saved in self.model.named_parameters():
            self.assertTrue(torch.equal(dict(model.named_parameters())[name], saved), name)
        state = self.optimizer.state()
        self.assertEqual(set(training), set(state))
        for name, saved in state.items():
            self.assertTrue(torch.equal(training[name], saved), name)

    def test_large_numbers_are_finite_also_where_their_sum_is_not(self):
        inf, nan = float("inf"), float("nan")
        for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            most = torch.finfo(kind).max
            tensor_files.check_finite("x", torch.full((9,), most, dtype=kind), "here")
            tensor_files.check_finite("x", torch.tensor([], dtype=kind), "here")
            for bad in ([inf], [-inf, 1.0, inf], [nan, 0.0], [most, most, -inf]):
                with self.assertRaisesRegex(CheckpointError, "x holds values that are not finite"):
                    tensor_files.check_finite("x", torch.tensor(bad, dtype=kind), "here")

    def test_what_was_loaded_does_not_change_with_the_file(self):
        folder = self.save(1)
        model, training = checkpoint.load_model(folder), checkpoint.load_training(checkpoint.find(folder))
        weights = model.lm_head.weight.detach().clone()
        state = {name: tensor.clone() for name, tensor in training.items()}
        for path in (folder / checkpoint.MODEL, folder / checkpoint.TRAINING):
            with open(path, "r+b") as file:
                file.write(b"\x7f" * path.stat().st_size)
                file.truncate(10)
        self.assertTrue(torch.equal(model.lm_head.weight, weights))
        for name, tensor in training.items():
            self.assertTrue(torch.equal(tensor, state[name]), name)

    def test_a_file_that_changes_after_it_was_verified_is_not_used(self):
        folder = self.save(1)
        other = checkpoint.model_bytes(Transformer(TINY, seed=4))
        found = checkpoint.find(folder)
        for name, load in (
            (checkpoint.MODEL, lambda found: checkpoint.load(found.folder)),
            (checkpoint.TRAINING, checkpoint.load_training),
        ):
            (folder / name).write_bytes(other)
            with self.assertRaisesRegex(CheckpointError, f"{name}: its SHA-256"):
                load(found)

    def test_a_disk_that_cannot_read_the_newest_step_costs_that_step_only(self):
        self.save(1)
        newest = self.save(2)
        real = files.sha256_file

        def failing(path):
            if path.parent == newest:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return real(path)

        with mock.patch("tinylm.files.sha256_file", failing):
            found = checkpoint.find(self.run_folder)
        self.assertEqual(found.folder.name, "step-00000001")
        self.assertIn("cannot be read (Input/output error)", found.skipped[0])

    def test_a_folder_in_a_file_s_place_is_refused(self):
        folder = self.save(1)
        for name in (checkpoint.MODEL, checkpoint.TRAINING, checkpoint.MANIFEST):
            (folder / name).unlink()
            (folder / name).mkdir()
            with self.assertRaisesRegex(CheckpointError, name):
                checkpoint.find(self.run_folder)
            (folder / name).rmdir()
            shutil.rmtree(folder)
            self.save(1)


class TestPlaces(Case):
    def test_a_run_a_step_and_a_file_name_the_same_model(self):
        folder = self.save(1)
        for path in (self.run_folder, folder, folder / "model.safetensors"):
            found = checkpoint.load_model(path).model.embed_tokens.weight
            self.assertTrue(torch.equal(found, self.model.model.embed_tokens.weight))

    def test_a_folder_that_holds_just_a_model_file_is_one(self):
        checkpoint.save_model(self.run_folder / "model.safetensors", self.model)
        self.assertIsNone(checkpoint.find(self.run_folder).manifest)

    def test_places_that_hold_no_model_say_what_is_expected(self):
        for path in (self.run_folder / "missing", self.run_folder):
            with self.assertRaisesRegex(CheckpointError, "expected"):
                checkpoint.find(path)


if __name__ == "__main__":
    unittest.main()
