"""The loop: a run is a function of (config, corpus, seed), however it is cut into pieces."""

import dataclasses
import math
import os
import signal
import socket
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

import torch

from tinylm import checkpoint, files, load, metrics, trainer, training_step
from tinylm.batches import Plan
from tinylm.config import POLICIES, ModelConfig, TrainConfig
from tinylm.corpus import Split, build_corpus
from tinylm.devices import Machine, choose_machine
from tinylm.errors import CheckpointError, ConfigError, TinylmError, TrainingError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.reports import Report, Unseen

TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=16)
TEXTS = [f"document {number}: the quick brown fox, {number * number} times. é\n" for number in range(60)]


class Notes(Report):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stepped(self, row, seconds) -> None:
        self.steps.append(row["step"])


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        cls.corpus = build_corpus(TEXTS, Path(cls.holder.name) / "corpus")

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(dir=self.holder.name))
        curve = mock.patch.object(Report, "curve", False)  # no part of what is tested, and most of the time
        curve.start()
        self.addCleanup(curve.stop)

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

    def run_for(self, rows: int, **changes) -> training_step.Run:
        """A prepared run in float64 that nothing was written for."""
        config = self.config(precision="float64", **changes)
        model = Transformer(dataclasses.replace(TINY), 0)
        run = trainer.prepare(self.folder, config, choose_machine(config), self.corpus, model, Notes())
        run.micro_rows = rows
        return run


class TestRuns(Case):
    def test_the_same_three_give_the_same_run(self):
        one, two = (trainer.train(self.config(name, save_every=3)) for name in ("one", "two"))
        for name in (
            "metrics.jsonl",
            "step-00000003/model.safetensors",
            "step-00000006/training.safetensors",
        ):
            self.assertEqual((one.run / name).read_bytes(), (two.run / name).read_bytes(), name)
        self.assertEqual(one.evaluation, two.evaluation)
        other = trainer.train(self.config("other", seed=1))
        self.assertNotEqual(
            (one.run / "metrics.jsonl").read_bytes(), (other.run / "metrics.jsonl").read_bytes()
        )

    def test_a_stopped_run_goes_on_as_if_it_had_never_stopped(self):
        for changes in (
            {},
            {"dropout": 0.2, "micro_rows": 2},
            {"model": dataclasses.replace(TINY, policy="reset")},
            {"model": dataclasses.replace(TINY, policy="mask", window=96), "micro_rows": 2},
        ):
            with self.subTest(**changes):
                name = f"whole-{len(changes)}-{changes.get('dropout')}-{'model' in changes}"
                whole = trainer.train(self.config(name, **changes))
                for step in (1, 3, 5):
                    part = trainer.train(self.config(f"{name}-{step}", stop_after=step, **changes))
                    self.assertEqual((part.step, part.finished), (step, False))
                    rest = trainer.resume(part.run)
                    self.assertTrue(rest.finished)
                    for name_of in (
                        "metrics.jsonl",
                        "step-00000006/model.safetensors",
                        "step-00000006/training.safetensors",
                    ):
                        self.assertEqual(
                            (whole.run / name_of).read_bytes(), (rest.run / name_of).read_bytes(), step
                        )

    def test_rows_after_the_checkpoint_are_cut_on_resume(self):
        part = trainer.train(self.config(stop_after=2))
        with open(part.run / "metrics.jsonl", "ab") as file:
            file.write(b'{"loss":9.0,"step":3}\n{"loss":1')
        trainer.resume(part.run)
        steps = [row["step"] for row in metrics.read_metrics(part.run) if "loss" in row]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6])

    def test_a_corpus_shorter_than_the_window_trains_and_says_so(self):
        report = Notes()
        wide = dataclasses.replace(TINY, window=65_536)
        trainer.train(self.config(model=wide, steps=2), report)
        self.assertTrue(any("shorter than the window of 65536" in note for note in report.notes))

    def test_it_learns(self):
        result = trainer.train(self.config(steps=80, evaluate_every=40))
        losses = [row["loss"] for row in metrics.read_metrics(result.run) if "loss" in row]
        self.assertAlmostEqual(losses[0], math.log(257), delta=0.05)
        self.assertLess(losses[-1], 2.5)
        self.assertLess(result.evaluation.bits_per_byte, 4.0)
        self.assertEqual(result.evaluation.protocol, "disjoint")

    def test_it_learns_with_documents_kept_apart_and_says_what_that_pads(self):
        said = {}

        class Facts(Report):
            def started(self, facts, step, steps):
                said.update(facts)

        first = trainer.train(self.config("first"))
        mask = dataclasses.replace(TINY, policy="mask", window=128)
        config = self.config("second", init=str(first.run), model=mask, steps=80, evaluate_every=40)
        result = trainer.train(config, Facts())
        self.assertLess(result.evaluation.bits_per_byte, 4.0)
        self.assertEqual((result.evaluation.policy, result.evaluation.protocol), ("mask", "disjoint"))
        self.assertEqual(checkpoint.load_model(result.run).config, mask)
        plan = Plan(self.corpus.train, "mask", 128, 4, 0)
        self.assertEqual((said["padding"], said["epoch_rows"]), (plan.padding, plan.rows_of_epoch(0)))
        self.assertLess(said["padding"], 0.1)
        rows = [row for row in metrics.read_metrics(result.run) if "loss" in row]
        self.assertEqual(rows[3]["targets"], plan.batch(3).targets)

    def test_nothing_is_drawn_from_global_random_state(self):
        torch.manual_seed(11)
        before = torch.random.get_rng_state()
        trainer.train(self.config(dropout=0.5, steps=2))
        self.assertTrue(torch.equal(before, torch.random.get_rng_state()))

    def test_minutes_choose_steps_once_and_record_them(self):
        result = trainer.train(self.config(steps=None, minutes=0.02))
        manifest = checkpoint.find(result.run).manifest
        self.assertEqual(manifest["config"]["steps"], result.steps)
        self.assertIsNone(manifest["config"]["minutes"])
        self.assertGreaterEqual(result.steps, 10)

    def test_measuring_the_speed_changes_nothing(self):
        run = self.run_for(4)
        before = [p.detach().clone() for p in run.model.parameters()]
        trainer.steps_in(run, 0.5)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True)))
        self.assertEqual(run.optimizer.steps_done, 0)

    def test_the_curve_has_the_same_bytes_for_the_same_numbers_and_is_drawn_where_wanted(self):
        unseen = trainer.train(self.config("unseen"), Unseen())
        self.assertFalse((unseen.run / "curve.svg").exists())
        with mock.patch.object(Report, "curve", True):
            result = trainer.train(self.config())
        first = (result.run / "curve.svg").read_bytes()
        trainer.draw_curve(result.run, self.fail)
        self.assertEqual(first, (result.run / "curve.svg").read_bytes())
        self.assertIn(b"<svg", first)

    def test_tensorboard_gets_every_number_under_its_own_name(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("tensorboard is not installed (extra: track)")
        result = trainer.train(self.config(tensorboard=True))
        events = EventAccumulator(str(result.run / "tensorboard"))
        events.Reload()
        rows = metrics.read_metrics(result.run)
        for name in ("loss", "bytes"):
            found = [(event.step, event.value) for event in events.Scalars(name)]
            wanted = [(row["step"], row[name]) for row in rows if name in row]
            self.assertEqual([step for step, _ in found], [step for step, _ in wanted])
            for (_, a), (_, b) in zip(found, wanted, strict=True):
                self.assertAlmostEqual(a, b, places=4)
        self.assertEqual([event.step for event in events.Scalars("validation/bits_per_byte")], [3, 6])

    def test_old_checkpoints_are_pruned(self):
        result = trainer.train(self.config(save_every=1, keep=2))
        self.assertEqual([step for step, _ in checkpoint.list_steps(result.run)], [6, 5])

    def test_init_starts_from_the_weights_of_a_checkpoint(self):
        first = trainer.train(self.config("first"))
        config = self.config("second", init=str(first.run), muon_rate=0.0, adam_rate=0.0, steps=1)
        second = trainer.train(config)
        for a, b in zip(
            checkpoint.load_model(first.run).parameters(),
            checkpoint.load_model(second.run).parameters(),
            strict=True,
        ):
            self.assertTrue(torch.equal(a, b))
        other = dataclasses.replace(TINY, mlp_width=64)
        with self.assertRaisesRegex(ConfigError, "mlp_width is 32, expected 64"):
            trainer.train(self.config("third", init=str(first.run), model=other))


class TestSteps(Case):
    def test_accumulation_equals_the_big_batch(self):
        for policy in POLICIES:
            gradients = []
            for rows in (4, 2, 1):
                run = self.run_for(rows)
                run.plan = Plan(self.corpus.train, policy, 16, 4, 0)
                with torch.no_grad():
                    run.model.lm_head.weight.normal_(generator=torch.Generator().manual_seed(0))
                loss = training_step.accumulate(run, run.plan.batch(0), 0)
                gradients.append([torch.tensor(loss), *(p.grad.clone() for p in run.model.parameters())])
            for other in gradients[1:]:
                for a, b in zip(gradients[0], other, strict=True):
                    self.assertLess(float((a - b).abs().max()), 1e-10)

    def test_documents_that_share_a_row_are_trained_as_if_alone(self):
        # The same documents, packed and one a row: the same loss and the same gradients.
        texts = [text.encode()[: 9 + 7 * number] for number, text in enumerate(TEXTS[:4])]
        found = []
        for policy, rows in (("mask", 1), ("reset", 4)):
            run = self.run_for(rows)
            config = dataclasses.replace(TINY, window=96, policy=policy)
            run.model = Transformer(config).double()
            with torch.no_grad():
                for parameter in run.model.parameters():
                    parameter.add_(torch.linspace(-0.2, 0.2, parameter.numel()).view(parameter.shape))
            run.plan = Plan(Split.of(texts), policy, 96, rows, 0)
            self.assertEqual(run.plan.rows_of_epoch(0), rows)
            loss = training_step.accumulate(run, run.plan.batch(0), 0)
            found.append([torch.tensor(loss), *(p.grad for p in run.model.parameters())])
        for a, b in zip(*found, strict=True):
            self.assertLess(float((a - b).abs().max()), 1e-6)  # RoPE's tables are float32

    def test_every_target_weighs_the_same_when_rows_have_different_lengths(self):
        run = self.run_for(1)
        run.plan = Plan(self.corpus.train, "reset", 16, 4, 0)
        batch = run.plan.batch(0)
        self.assertGreater(len(set(batch.lengths.tolist())), 1)
        logits = run.model(torch.from_numpy(batch.inputs_BT))
        scored = torch.from_numpy(batch.targets_BT) >= 0
        expected = (
            -logits.log_softmax(-1)[scored]
            .gather(1, torch.from_numpy(batch.targets_BT)[scored][:, None])
            .mean()
        )
        self.assertAlmostEqual(training_step.accumulate(run, batch, 0), float(expected), places=12)

    def test_a_loss_that_is_not_finite_stops_before_the_weights_change(self):
        run = self.run_for(4)
        before = [p.detach().clone() for p in run.model.parameters()]
        real = run.loss
        run.loss = lambda *given: real(*given) * float("nan")
        with self.assertRaisesRegex(TrainingError, "step 5: the loss is nan.*--muon-rate"):
            training_step.train_step(run, run.plan.batch(4), 4, 1.0)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True)))
        self.assertEqual(run.optimizer.steps_done, 0)

    def test_less_memory_means_smaller_micro_batches_and_the_same_step(self):
        easy, hard = self.run_for(4), self.run_for(4)
        real = hard.loss

        def hungry(model, inputs, *rest):
            if len(inputs) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(model, inputs, *rest)

        hard.loss = hungry
        for run in (easy, hard):
            training_step.train_step(run, run.plan.batch(0), 0, 1.0)
        self.assertEqual(hard.micro_rows, 1)
        self.assertEqual(len(hard.report.notes), 2)
        for a, b in zip(easy.model.parameters(), hard.model.parameters(), strict=True):
            self.assertLess(float((a - b).detach().abs().max()), 1e-9)

    def test_the_rows_that_memory_took_are_kept_by_a_resume(self):
        real = training_step.mean_loss

        def hungry(model, inputs, *rest):
            if len(inputs) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(model, inputs, *rest)

        with mock.patch("tinylm.trainer.compiled", return_value=hungry):
            part = trainer.train(self.config(stop_after=1))
        self.assertEqual(checkpoint.find(part.run).manifest["config"]["micro_rows"], 2)
        report = Notes()
        with mock.patch("tinylm.trainer.compiled", return_value=hungry):
            trainer.resume(part.run, report)
        self.assertEqual(report.notes, [])

    def test_no_memory_for_one_row_is_an_error_with_a_way_out(self):
        run = self.run_for(1)
        run.loss = mock.Mock(side_effect=RuntimeError("DefaultCPUAllocator: can't allocate memory"))
        with self.assertRaisesRegex(TrainingError, "one row of 16 tokens.*--window"):
            training_step.train_step(run, run.plan.batch(0), 0, 1.0)

    def test_other_runtime_errors_are_not_taken_for_memory(self):
        run = self.run_for(4)
        run.loss = mock.Mock(side_effect=RuntimeError("a bug"))
        with self.assertRaisesRegex(RuntimeError, "a bug"):
            training_step.train_step(run, run.plan.batch(0), 0, 1.0)

    def test_clipping_bounds_the_gradient_and_logs_its_norm(self):
        run = self.run_for(4, clip=0.5)
        seen = []
        step = Optimizer.step

        def look(optimizer, scale):
            seen.append(math.sqrt(sum(float(p.grad.square().sum()) for p in optimizer.parameters())))
            step(optimizer, scale)

        with mock.patch.object(Optimizer, "step", look):
            _, norm = training_step.train_step(run, run.plan.batch(0), 0, 1.0)
        self.assertAlmostEqual(seen[0], min(0.5, norm), places=5)


class TestRefusals(Case):
    def test_all_problems_of_a_configuration_at_once(self):
        with self.assertRaises(ConfigError) as caught:
            trainer.train(self.config(steps=0, batch_rows=-1, clip=-1.0, device="tpu"))
        for part in ("steps is 0", "batch_rows is -1", "clip is -1", "device is 'tpu'"):
            self.assertIn(part, str(caught.exception))
        self.assertFalse((self.folder / "run").exists())

    def test_an_existing_run_is_refused_and_untouched(self):
        result = trainer.train(self.config())
        before = {path: path.read_bytes() for path in result.run.rglob("*") if path.is_file()}
        with self.assertRaisesRegex(ConfigError, "--resume"):
            trainer.train(self.config())
        self.assertEqual(
            before, {path: path.read_bytes() for path in result.run.rglob("*") if path.is_file()}
        )

    def test_another_corpus_is_refused_on_resume(self):
        mine = build_corpus(TEXTS[:30], self.folder / "mine")
        part = trainer.train(self.config(data=str(mine.path), stop_after=2))
        build_corpus(TEXTS[5:40], self.folder / "mine", replace=True)
        with self.assertRaisesRegex(ConfigError, "another corpus"):
            trainer.resume(part.run)

    def test_other_versions_are_told(self):
        part = trainer.train(self.config(stop_after=2))
        report = Notes()
        with mock.patch("tinylm.resumption.versions", return_value={"torch": "9"}):
            trainer.resume(part.run, report)
        self.assertTrue(any("torch was" in note and "no longer bit-equal" in note for note in report.notes))

    def test_a_damaged_newest_step_falls_back_and_says_so(self):
        whole = trainer.train(self.config("whole", save_every=2, keep=9))
        part = trainer.train(self.config("part", save_every=2, keep=9, stop_after=4))
        (part.run / "step-00000004" / "training.safetensors").write_bytes(b"")
        report = Notes()
        trainer.resume(part.run, report)
        self.assertTrue(any("skipped" in note and "step-00000004" in note for note in report.notes))
        self.assertEqual(len(list(part.run.glob("damaged-step-00000004-*"))), 1)
        name = "step-00000006/model.safetensors"
        self.assertEqual((whole.run / name).read_bytes(), (part.run / name).read_bytes())

    def test_a_second_trainer_of_a_run_is_refused_and_the_first_is_unharmed(self):
        errors = []

        class Second(Report):
            def stepped(self, row, seconds):
                try:
                    trainer.resume(part.run)
                except CheckpointError as error:
                    errors.append(str(error))

        whole = trainer.train(self.config("whole"))
        part = trainer.train(self.config("part", stop_after=2))
        trainer.resume(part.run, Second())
        self.assertEqual(len(errors), 4)
        self.assertIn(
            f"is being trained by process {os.getpid()} on {socket.gethostname()}, since ", errors[0]
        )
        name = "step-00000006/model.safetensors"
        self.assertEqual((whole.run / name).read_bytes(), (part.run / name).read_bytes())

    def test_what_is_not_a_run_is_refused(self):
        (self.folder / "empty").mkdir()
        for place in (self.folder / "missing", self.folder / "empty"):
            with self.assertRaises(CheckpointError):
                trainer.resume(place)

    def test_a_missing_source_is_named(self):
        with self.assertRaisesRegex(TinylmError, "nowhere"):
            trainer.train(self.config(data=str(self.folder / "nowhere")))


class TestSignals(Case):
    def test_a_signal_finishes_the_step_and_saves(self):
        for number in (signal.SIGINT, signal.SIGTERM):

            class Interrupts(Report):
                def stepped(self, row, seconds, number=number):
                    if row["step"] == 2:
                        os.kill(os.getpid(), number)

            whole = trainer.train(self.config(f"whole-{number}"))
            part = trainer.train(self.config(f"part-{number}"), Interrupts())
            self.assertEqual((part.step, part.signal), (2, number))
            self.assertEqual([step for step, _ in checkpoint.list_steps(part.run)], [2])
            trainer.resume(part.run)
            name = "step-00000006/model.safetensors"
            self.assertEqual((whole.run / name).read_bytes(), (part.run / name).read_bytes())

    def test_a_signal_before_the_first_step_leaves_a_run_that_resumes(self):
        class Early(Report):
            def started(self, facts, step, steps):
                os.kill(os.getpid(), signal.SIGINT)

        whole = trainer.train(self.config("whole"))
        part = trainer.train(self.config("part"), Early())
        self.assertEqual((part.step, part.signal), (0, signal.SIGINT))
        trainer.resume(part.run)
        name = "step-00000006/model.safetensors"
        self.assertEqual((whole.run / name).read_bytes(), (part.run / name).read_bytes())

    def test_a_signal_while_evaluating_is_saved_too(self):
        class Late(Report):
            def evaluated(self, step, evaluation, sample):
                os.kill(os.getpid(), signal.SIGTERM)

        part = trainer.train(self.config(save_every=100), Late())
        self.assertEqual([step for step, _ in checkpoint.list_steps(part.run)], [3])

    def test_a_signal_in_the_middle_of_a_save_lets_it_finish(self):
        real, calls = files.write_pieces, []

        def write(path, data):
            digest = real(path, data)
            if path.name == "model.safetensors" and not calls:  # the first of three
                calls.append(1)
                os.kill(os.getpid(), signal.SIGTERM)
            return digest

        with mock.patch("tinylm.files.write_pieces", write):
            part = trainer.train(self.config(save_every=2))
        self.assertEqual((part.step, part.signal), (2, signal.SIGTERM))
        self.assertEqual(checkpoint.newest_step(part.run).skipped, ())
        self.assertEqual(files.left_behind(part.run), [])

    def test_readers_do_not_need_the_lock(self):
        seen = []

        class Reads(Report):
            def saved(self, step, folder):
                seen.append(load(folder.parent).evaluate(corpus.validation, limit=50).bits_per_byte)

        corpus = self.corpus
        trainer.train(self.config(save_every=3), Reads())
        self.assertEqual(len(seen), 2)

    def test_a_damaged_log_is_named(self):
        part = trainer.train(self.config(stop_after=2))
        for line in (b'{"stop":1}\n', b"[1]\n", b'{"step":"1"}\n'):
            (part.run / "metrics.jsonl").write_bytes(line)
            with self.assertRaisesRegex(CheckpointError, "metrics.jsonl: .*rows are missing"):
                trainer.resume(part.run)

    def test_handlers_are_given_back(self):
        before = signal.getsignal(signal.SIGINT)
        trainer.train(self.config(steps=1))
        self.assertIs(signal.getsignal(signal.SIGINT), before)

    def test_it_trains_in_another_thread(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(trainer.train(self.config(steps=1))))
        thread.start()
        thread.join()
        self.assertTrue(results[0].finished)


class TestMachines(unittest.TestCase):
    def test_auto_takes_the_best_device_and_its_precision(self):
        config = TrainConfig(data="x")
        with (
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.is_bf16_supported", return_value=True),
            mock.patch("importlib.util.find_spec", return_value=object()),
        ):
            self.assertEqual(
                choose_machine(config), Machine("cuda", "bfloat16", True, torch.get_num_threads())
            )
        with (
            mock.patch("torch.cuda.is_available", return_value=False),
            mock.patch("torch.backends.mps.is_available", return_value=False),
        ):
            found = choose_machine(config)
            self.assertEqual((found.device, found.precision, found.compile), ("cpu", "float32", False))
            with self.assertRaisesRegex(ConfigError, "cuda.*this machine does not have"):
                choose_machine(TrainConfig(data="x", device="cuda"))

    def test_compile_without_a_compiler_is_refused_only_if_asked_for(self):
        with mock.patch("shutil.which", return_value=None), mock.patch.dict(os.environ, {"CXX": ""}):
            self.assertFalse(choose_machine(TrainConfig(data="x", device="cpu")).compile)
            with self.assertRaisesRegex(ConfigError, "compiler"):
                choose_machine(TrainConfig(data="x", device="cpu", compile="yes"))


if __name__ == "__main__":
    unittest.main()
