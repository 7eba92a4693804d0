"""A resumed run is the run that was never interrupted, or it is refused, or it says that it is not."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch

from tinylm import checkpoint, evaluate, files, metrics, tensor_files, trainer
from tinylm.config import INEXACT, RESUMABLE, ModelConfig, TrainConfig
from tinylm.corpus import build_corpus
from tinylm.devices import Machine, reproducible
from tinylm.errors import CheckpointError, ConfigError, TinylmError, TrainingError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.reports import Report

TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=16)
TEXTS = [f"document {number}: {number * number} times. é\n" for number in range(12)]


class Notes(Report):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.holder = Path(holder.name)
        cls.corpus = build_corpus(TEXTS, cls.holder / "corpus")

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=self.holder))
        for name in ("draw_curve", "matrix_rate"):  # no part of what is tested, and most of the time
            patch = mock.patch(f"tinylm.trainer.{name}", return_value=None)
            patch.start()
            self.addCleanup(patch.stop)

    def config(self, name: str = "run", **changes) -> TrainConfig:
        values = {
            "data": str(self.corpus.path),
            "out": str(self.folder / name),
            "model": TINY,
            "steps": 6,
            "batch_rows": 4,
            "sample_tokens": 0,
            "evaluate_every": 3,
            "device": "cpu",
        }
        return TrainConfig(**{**values, **changes})

    def train(self, name: str = "run", report: Report | None = None, **changes) -> Path:
        return trainer.train(self.config(name, **changes), report).run

    def copy(self, run: Path, name: str, step: int) -> Path:
        """The run as it would be if it had been killed after the checkpoint of a step."""
        copied = self.folder / name
        shutil.copytree(run, copied)
        for number, folder in checkpoint.list_steps(copied):
            if number > step:
                shutil.rmtree(folder)
        return copied

    def assert_same_run(self, one: Path, two: Path, step: int) -> None:
        """The same checkpoint, byte for byte, and the same metrics."""
        for name in (
            "metrics.jsonl",
            *(f"step-{step:08d}/{n}" for n in (checkpoint.MODEL, checkpoint.TRAINING)),
        ):
            self.assertEqual((one / name).read_bytes(), (two / name).read_bytes(), name)
        manifests = [checkpoint.verify_step(checkpoint.step_folder(run, step)) for run in (one, two)]
        for manifest in manifests:
            manifest.pop("digest")
            manifest["config"] = {**manifest["config"], "out": "", "stop_after": None}
        self.assertEqual(*manifests)


class BitEqual(Case):
    def every_cut(self, steps: int, **changes) -> Path:
        whole = self.train("whole", steps=steps, save_every=1, keep=steps, **changes)
        for step in range(1, steps + 1):
            part = self.copy(whole, f"part-{step}", step)
            self.assertTrue(trainer.resume(part).finished)
            self.assert_same_run(whole, part, steps)
            shutil.rmtree(part)
        return whole

    def epochs(self, run: Path) -> list[int]:
        return [row["epoch"] for row in metrics.read_metrics(run) if "epoch" in row]

    def test_at_every_step_of_two_epochs(self) -> None:
        model = dataclasses.replace(TINY, window=64)
        whole = self.every_cut(14, model=model, batch_rows=1, weight_decay=0.1, clip=0.5, evaluate_every=5)
        self.assertEqual(set(self.epochs(whole)), {0, 1, 2})

    def test_at_every_step_with_dropout_and_accumulation_where_documents_stand_apart(self) -> None:
        model = dataclasses.replace(TINY, policy="reset")
        whole = self.every_cut(14, model=model, batch_rows=4, micro_rows=2, dropout=0.2, evaluate_every=5)
        self.assertEqual(set(self.epochs(whole)), {0, 1, 2})

    def test_stopped_and_resumed_again_and_again(self) -> None:
        whole = self.train("whole", steps=7, dropout=0.1)
        part = self.train("part", steps=7, dropout=0.1, stop_after=1)
        for stop in (2, 3, 6, None):
            trainer.resume(part, stop_after=stop)
        self.assert_same_run(whole, part, 7)
        self.assertEqual(
            [step for step, _ in checkpoint.list_steps(whole)],
            [step for step, _ in checkpoint.list_steps(part)],
        )

    def test_a_finished_run_stays_as_it_is(self) -> None:
        run = self.train()
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        self.assertTrue(trainer.resume(run).finished)
        self.assertEqual(before, {path: path.read_bytes() for path in run.rglob("*") if path.is_file()})

    @unittest.skipUnless(torch.cuda.is_available(), "no CUDA here")
    def test_on_cuda_under_the_deterministic_flag(self) -> None:
        for precision in ("float32", "bfloat16"):
            options = {"device": "cuda", "deterministic": True, "precision": precision, "steps": 6}
            whole = self.train(f"whole-{precision}", dropout=0.1, **options)
            part = self.train(f"part-{precision}", dropout=0.1, stop_after=2, **options)
            trainer.resume(part)
            self.assert_same_run(whole, part, 6)

    def test_the_steps_that_minutes_chose_are_obeyed(self) -> None:
        with mock.patch("tinylm.trainer.steps_in", return_value=5):
            part = self.train(steps=None, minutes=0.1, stop_after=2)
        self.assertEqual(trainer.resume(part).steps, 5)

    def test_an_evaluation_that_was_interrupted_is_made_up_for(self) -> None:
        real, wanted = evaluate.evaluate, [3]

        def slow(model, split, *, limit, progress, ranks):
            rows = metrics.read_metrics(self.folder / "part")
            if not wanted or rows[-1]["step"] != wanted[0]:
                return real(model, split, limit=limit, progress=progress)
            os.kill(os.getpid(), 15)
            wanted.pop()
            return real(model, split, rows=1, limit=limit, progress=progress)

        for stop in (3, 6):  # in the middle of the run, and at its end
            wanted[:] = [stop]
            whole = self.train(f"whole-{stop}", keep=9)
            shutil.rmtree(self.folder / "part", ignore_errors=True)
            with mock.patch("tinylm.milestones.evaluate", slow):
                result = trainer.train(self.config("part", keep=9))
            self.assertEqual((result.signal, result.step, result.evaluation), (15, stop, None))
            self.assertIsNone(checkpoint.find(result.run).manifest["validation"])
            again = trainer.resume(result.run)
            self.assertIsNotNone(again.evaluation)
            for step in (3, 6):
                self.assert_same_run(whole, result.run, step)


class Rules(Case):
    def test_the_lists_name_options_and_every_other_option_is_refused_by_name(self) -> None:
        part = self.train(stop_after=2)
        names = {field.name for field in dataclasses.fields(TrainConfig)}
        self.assertLessEqual({*RESUMABLE, *INEXACT}, names)
        before = {path: path.read_bytes() for path in part.rglob("*") if path.is_file()}
        for name in names - {*RESUMABLE, *INEXACT}:
            flag = "DATA" if name == "data" else f"--{name.replace('_', '-')}"
            with self.assertRaisesRegex(ConfigError, f"does not take {flag} .*--stop-after.*--init"):
                trainer.resume(part, **{name: getattr(self.config(), name)})
        self.assertEqual(before, {path: path.read_bytes() for path in part.rglob("*") if path.is_file()})

    def test_what_may_change_changes_no_weight_and_no_row(self) -> None:
        whole = self.train("whole")
        part = self.train("part", stop_after=2)
        trainer.resume(part, save_every=1, keep=3, sample_tokens=4, stop_after=5)
        self.assertEqual([step for step, _ in checkpoint.list_steps(part)], [5, 4, 3])
        notes = Notes()
        trainer.resume(part, notes)
        self.assertEqual(notes.notes, [])
        for name in (
            "metrics.jsonl",
            "step-00000006/model.safetensors",
            "step-00000006/training.safetensors",
        ):
            self.assertEqual((whole / name).read_bytes(), (part / name).read_bytes(), name)
        config = json.loads((part / "run.json").read_bytes())["config"]
        self.assertEqual((config["keep"], config["save_every"], config["sample_tokens"]), (3, 1, 4))

    def test_changed_values_are_checked_like_any_other(self) -> None:
        part = self.train(stop_after=2)
        for changes, message in (
            ({"keep": 0}, "keep is 0"),
            ({"stop_after": 2}, "stop_after is 2, and the run is at step 2"),
            ({"micro_rows": 3}, "micro_rows is 3"),
            ({"device": "cuda"}, "cuda.*does not have"),
        ):
            if changes.get("device") == "cuda" and torch.cuda.is_available():
                continue
            with self.assertRaisesRegex(ConfigError, message):
                trainer.resume(part, **changes)

    def test_another_machine_is_noted_and_recorded_from_then_on(self) -> None:
        part = self.train(stop_after=2, keep=9, save_every=1)
        self.assertEqual(checkpoint.find(part).manifest["deviations"], [])
        notes = Notes()
        threads = torch.get_num_threads() + 1  # another number than the run had, on any machine
        trainer.resume(part, notes, threads=threads, micro_rows=2, stop_after=3)
        self.assertRegex(
            " ".join(notes.notes),
            f"threads was .*, is {threads}: from step 2 on the run is no longer bit-equal",
        )
        self.assertRegex(" ".join(notes.notes), "micro_rows was 4, is 2")
        notes = Notes()
        trainer.resume(part, notes, stop_after=4)  # goes on as it was told last
        self.assertEqual(len(notes.notes), 1)
        self.assertRegex(notes.notes[0], r"since step 2 .*not bit for bit.*\(micro_rows, threads changed\)")
        with mock.patch("tinylm.resumption.versions", return_value={"torch": "9.9"}):
            trainer.resume(part)
        for step, names in (
            (2, set()),
            (3, {"threads", "micro_rows"}),
            (6, {"threads", "micro_rows", "torch"}),
        ):
            recorded = checkpoint.verify_step(checkpoint.step_folder(part, step))["deviations"]
            self.assertEqual({deviation["name"] for deviation in recorded}, names, step)
        torch_changed = next(d for d in recorded if d["name"] == "torch")
        self.assertEqual(torch_changed, {"step": 4, "name": "torch", "was": torch.__version__, "is": "9.9"})
        self.assertEqual(json.loads((part / "run.json").read_bytes())["deviations"], recorded)

    def test_an_edited_run_json_is_told_and_not_obeyed(self) -> None:
        whole, part = self.train("whole"), self.train("part", stop_after=2)
        path = part / "run.json"
        for content, said in (
            (path.read_bytes().replace(b'"steps": 6', b'"steps": 9'), "says otherwise about steps;"),
            (b"{}", "cannot be read as the configuration"),
        ):
            path.write_bytes(content)
            notes = Notes()
            trainer.resume(part, notes, stop_after=4 if b"9" in content else None)
            self.assertRegex(" ".join(notes.notes), said)
        self.assert_same_run(whole, part, 6)

    def test_a_run_without_a_checkpoint_says_so(self) -> None:
        part = self.train(stop_after=2)
        shutil.rmtree(part / "step-00000002")
        with self.assertRaisesRegex(
            CheckpointError, "ended before its first checkpoint.*--config .*run.json"
        ):
            trainer.resume(part)

    def test_a_step_whose_replacement_was_interrupted_comes_back(self) -> None:
        whole, part = self.train("whole"), self.train("part", stop_after=2)
        (part / "step-00000002").rename(part / ".old-step-00000002-0123456789ab")
        notes = Notes()
        trainer.resume(part, notes)
        self.assertRegex(notes.notes[0], "step-00000002: put back")
        self.assert_same_run(whole, part, 6)

    def test_what_a_killed_trainer_left_is_removed_and_told(self) -> None:
        whole, part = self.train("whole"), self.train("part", stop_after=2)
        (part / ".tmp-step-00000003-0123456789ab").mkdir()
        (part / ".pruned-step-00000001-0123456789ab").mkdir()
        (part / "mine").write_bytes(b"")
        notes = Notes()
        trainer.resume(part, notes)
        self.assertEqual(len(notes.notes), 2)
        self.assertIn(".tmp-step-00000003", notes.notes[1])
        self.assertEqual([p.name for p in part.iterdir() if p.name.startswith(".")], [])
        self.assertTrue((part / "mine").exists())
        self.assert_same_run(whole, part, 6)


class Logs(Case):
    def test_rows_after_the_step_and_a_torn_last_line_are_cut(self) -> None:
        whole, part = self.train("whole"), self.train("part", stop_after=2)
        for name in (metrics.METRICS, metrics.TIMINGS):
            with open(part / name, "ab") as file:
                file.write(b'{"loss":9.0,"step":3}\n{"loss":1')
        trainer.resume(part)
        self.assert_same_run(whole, part, 6)
        steps = [json.loads(line)["step"] for line in (part / metrics.TIMINGS).read_bytes().splitlines()]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6])

    def test_a_log_that_lacks_or_changed_a_row_is_refused_and_left_as_it_is(self) -> None:
        part = self.train(stop_after=5)
        path = part / metrics.METRICS
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for damaged, message in (
            (b"", "rows are missing"),
            (whole[:-1], "rows are missing"),
            (b"".join(lines[1:]), "rows are missing"),
            (bytes(flipped), "damaged or edited"),
            (b"".join([*lines[:2], *lines[3:], lines[2]]), "damaged or edited"),
        ):
            path.write_bytes(damaged)
            with self.assertRaisesRegex(CheckpointError, f"metrics.jsonl: .*{message}.*undamaged copy"):
                trainer.resume(part)
            self.assertEqual(path.read_bytes(), damaged)
        path.unlink()
        with self.assertRaisesRegex(CheckpointError, "metrics.jsonl: does not exist"):
            trainer.resume(part)
        path.write_bytes(whole)
        trainer.resume(part)

    def test_lost_clocks_are_noted(self) -> None:
        for content in (None, b"", b'{"seconds":1.0,"step":1}\nxx\n'):
            with self.subTest(content):
                part = self.train(f"run-{content and len(content)}", stop_after=2)
                if content is None:
                    (part / metrics.TIMINGS).unlink()
                else:
                    (part / metrics.TIMINGS).write_bytes(content)
                notes = Notes()
                trainer.resume(part, notes)
                self.assertIn("timings.jsonl", " ".join(notes.notes))


class States(Case):
    """Every item of the state left out, added, renamed, or of another shape: refused by name."""

    def rewrite(self, step: Path, change) -> None:
        """Change the tensors of the optimizer and the manifest of a step, and seal it again."""
        manifest = json.loads((step / checkpoint.MANIFEST).read_bytes())
        info, tensors = checkpoint.read_tensors(step / checkpoint.TRAINING)
        change(tensors, manifest, info)
        data = tensor_files.to_bytes(tensors, {"step": info["step"]})
        manifest["files"][checkpoint.TRAINING] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        (step / checkpoint.TRAINING).write_bytes(data)
        (step / checkpoint.MANIFEST).write_bytes(files.readable_json(files.seal(manifest)))

    def test_each_item_left_out_in_turn(self) -> None:
        part = self.train(stop_after=2)
        step = part / "step-00000002"
        whole = {path: path.read_bytes() for path in step.iterdir()}
        manifest = json.loads((step / checkpoint.MANIFEST).read_bytes())
        _, tensors = checkpoint.read_tensors(step / checkpoint.TRAINING)
        self.assertGreater(len(tensors), 10)
        optimizer = Optimizer(checkpoint.load_model(part), TrainConfig(data="x"))
        for name in tensors:
            with self.assertRaisesRegex(CheckpointError, f"here: {name} is missing$"):
                optimizer.load_state({n: t for n, t in tensors.items() if n != name}, "here")
        items = [("tensor", name) for name in ("steps_done", "muon.model.layers.0.mlp.up_proj.weight")]
        items += [("manifest", name) for name in manifest if name != "digest"]
        items += [("config", "seed"), ("machine", "threads"), ("files", checkpoint.TRAINING)]
        for place, name in items:

            def leave_out(tensors, manifest, info, place=place, name=name):
                {"tensor": tensors, "manifest": manifest}.get(place, manifest.get(place, {})).pop(name)

            with self.subTest(f"{place} {name}"):
                if name == checkpoint.TRAINING or name == "files":
                    changed = json.loads(whole[step / checkpoint.MANIFEST])
                    changed.pop(name, None) or changed["files"].pop(name)
                    (step / checkpoint.MANIFEST).write_bytes(files.readable_json(files.seal(changed)))
                else:
                    self.rewrite(step, leave_out)
                with self.assertRaises(TinylmError) as caught:
                    trainer.resume(part)
                named = {"files": "lists no size", "contract": "contract"}.get(name, name)
                self.assertIn(named, str(caught.exception))
            for path, data in whole.items():
                path.write_bytes(data)
        self.assertTrue(trainer.resume(part).finished)

    def test_another_count_of_steps_is_refused(self) -> None:
        part = self.train(stop_after=2)
        for change, message in (
            (lambda tensors, manifest, info: tensors["steps_done"].fill_(1), "has done 1 steps, expected 2"),
            (lambda tensors, manifest, info: info.update(step=1), "is of step 1, expected 2"),
        ):
            step = part / "step-00000002"
            whole = {path: path.read_bytes() for path in step.iterdir()}
            self.rewrite(step, change)
            with self.assertRaisesRegex(CheckpointError, message):
                trainer.resume(part)
            for path, data in whole.items():
                path.write_bytes(data)

    def test_states_are_matched_by_name_and_never_by_place(self) -> None:
        model = Transformer(TINY, 0)
        optimizer = Optimizer(model, TrainConfig(data="x"))
        state = {
            name: torch.rand(t.shape) if t.is_floating_point() else t + 3
            for name, t in optimizer.state().items()
        }
        optimizer.load_state(dict(reversed(state.items())), "here")  # another order is no difference
        for name, tensor in optimizer.state().items():
            self.assertTrue(torch.equal(tensor, state[name]), name)
        first = next(iter(state))
        tied = Optimizer(Transformer(dataclasses.replace(TINY, tied=True), 0), TrainConfig(data="x"))
        cases = {
            "is \\[1\\] torch.float32, expected": {**state, first: torch.zeros(1)},
            "torch.float64, expected .* torch.float32": {**state, first: state[first].double()},
            "is not part of this model's state": {**state, "muon.other": torch.zeros(1)},
            "adam.first.lm_head.weight is missing": tied.state(),
            "saved from a wrapped module": {
                n.replace(".model", "._orig_mod.model", 1): t for n, t in state.items()
            },
            "is missing; .*; and \\d+ more$": {f"{name}x": t for name, t in state.items()},
        }
        for message, changed in cases.items():
            with self.assertRaisesRegex(CheckpointError, f"^here: .*{message}"):
                optimizer.load_state(changed, "here")
        with self.assertRaisesRegex(CheckpointError, "lm_head.weight is not part"):
            tied.load_state(state, "here")


class Failures(Case):
    """Whatever raises in the middle of a step: nothing half-stepped is saved, the run goes on from before."""

    def places(self):
        original = {
            "forward": (Transformer, "forward"),
            "backward": (torch.autograd, "backward"),
            "muon": (Optimizer, "_muon"),
            "adam": (Optimizer, "_adamw"),
        }
        for name, (owner, attribute) in original.items():
            yield name, owner, attribute, getattr(owner, attribute)

    def test_nothing_half_stepped_is_saved(self) -> None:
        whole = self.train("whole", evaluate_every=6, save_every=2, keep=9)
        for error in (ValueError("a bug"), MemoryError()):
            for name, owner, attribute, real in self.places():
                part = self.train(
                    f"{name}-{type(error).__name__}", evaluate_every=6, save_every=2, keep=9, stop_after=2
                )
                calls = []

                def failing(*given, real=real, error=error, calls=calls, **options):
                    calls.append(1)
                    if len(calls) > 1:
                        raise error
                    return real(*given, **options)

                with (
                    self.subTest(f"{name} {error!r}"),
                    mock.patch.object(owner, attribute, failing),
                    self.assertRaises((ValueError, TrainingError)) as caught,
                ):
                    trainer.resume(part)
                if isinstance(error, MemoryError):
                    self.assertIsInstance(caught.exception, TrainingError)
                self.assertEqual([step for step, _ in checkpoint.list_steps(part)], [2])
                trainer.resume(part)
                self.assert_same_run(whole, part, 6)

    def test_a_disk_that_fails_stops_the_run_with_the_way_back(self) -> None:
        whole = self.train("whole", save_every=2, keep=1)
        real_rename, real_write = os.rename, files.write_all

        def rename(source, target):
            if "step-00000004" in str(target):
                raise OSError(28, "No space left on device")
            real_rename(source, target)

        def sync(descriptor):
            raise OSError(5, "Input/output error")

        def write(file, data):
            if b'"step":5' in bytes(data):
                raise OSError(27, "File too large")
            real_write(file, data)

        for number, (where, replaced, message) in enumerate(
            (
                ("os.rename", rename, r"step-00000004: No space left on device \(ENOSPC\); free some space"),
                ("os.fsync", sync, r"metrics.jsonl: Input/output error \(EIO\)"),
                ("tinylm.files.write_all", write, r"metrics.jsonl: File too large \(EFBIG\)"),
            )
        ):
            part = self.train(f"part-{number}", save_every=2, keep=1, stop_after=2)
            with (
                self.subTest(where),
                contextlib.ExitStack() as stack,
            ):
                patch, report = mock.patch(where, replaced), Notes()
                report.started = lambda *facts, patch=patch, stack=stack: stack.enter_context(patch)
                with self.assertRaisesRegex(
                    TrainingError, f"{message}.*step \\d is saved; go on with: .*--resume"
                ):
                    trainer.resume(part, report)
            self.assertEqual([p.name for p in part.iterdir() if p.name.startswith(".tmp")], [])
            trainer.resume(part)
            self.assert_same_run(whole, part, 6)


class Reproducible(Case):
    def state(self) -> tuple:
        cudnn = torch.backends.cudnn
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            cudnn.benchmark,
            cudnn.deterministic,
            os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        )

    def test_on_cuda_the_switches_are_set_and_given_back(self) -> None:
        machine = Machine("cuda", "float32", False, 1, deterministic=True)
        for given, inside in ((None, ":4096:8"), (":16:8", ":16:8"), (":0:0", ":4096:8")):
            with mock.patch.dict(os.environ):
                os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
                if given:
                    os.environ["CUBLAS_WORKSPACE_CONFIG"] = given
                before = self.state()
                with self.assertRaises(KeyError), reproducible(machine):
                    self.assertEqual(self.state(), (True, False, False, True, inside))
                    raise KeyError
                self.assertEqual(self.state(), before)

    def test_compiled_code_on_a_cpu_is_made_deterministic_too(self) -> None:
        before = self.state()
        with reproducible(Machine("cpu", "float32", True, 2)):
            self.assertEqual(self.state(), (True, *before[1:]))
        self.assertEqual(self.state(), before)

    def test_elsewhere_nothing_is_switched_and_nothing_changes(self) -> None:
        before = self.state()
        for device, wanted in (("cpu", True), ("cuda", False)):
            with reproducible(Machine(device, "float32", False, 1, deterministic=wanted)):
                self.assertEqual(self.state(), before)
        one, two = self.train("one"), self.train("two", deterministic=True)
        for name in ("metrics.jsonl", "step-00000006/model.safetensors"):
            self.assertEqual((one / name).read_bytes(), (two / name).read_bytes())
        self.assertTrue(checkpoint.find(two).manifest["machine"]["deterministic"])


if __name__ == "__main__":
    unittest.main()
