"""What a plan says, beside what models, optimizers, checkpoints and steps really take."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import shlex
import sys
import tempfile
import time
import unittest
import warnings
import weakref
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tests.test_rooms import python
from tinylm import checkpoint, config, trainer
from tinylm.config import PRESETS, CorpusConfig, ModelConfig, PlanConfig, TrainConfig
from tinylm.corpus import build_corpus
from tinylm.devices import cpu_threads
from tinylm.errors import ConfigError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, orthogonalize
from tinylm.plan import Prediction, advice, predict
from tinylm.plan.disk import disk, model_bytes, training_bytes
from tinylm.plan.hardware import PUBLISHED, Hardware
from tinylm.plan.memory import memory
from tinylm.plan.predict import step_time
from tinylm.plan.tensors import held, muon_flops, muon_shapes, tensor_shapes
from tinylm.plan.traffic import Traffic, all_reduce_bytes, all_reduce_seconds, gather_bytes, traffic
from tinylm.plan.words import amount, duration
from tinylm.training_step import mean_loss
from tinylm.walkthrough import together

SILENT = Traffic(0, 0, 0, 0, 0, 0)
SMALL = ModelConfig(layers=3, width=64, mlp_width=160, heads=4, kv_heads=2, head_size=32, window=64)
SHAPES = (
    SMALL,
    PRESETS["nano"],
    ModelConfig(layers=1, width=96, mlp_width=32, heads=2, kv_heads=1, head_size=32, window=32, tied=True),
)


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, as they come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        out = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor)
        return out

    def ignore(self, tensors) -> None:
        self.known |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) in self.known:
            return
        self.known.add(key)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.drop, key, storage.nbytes())

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def batch(shape: ModelConfig, rows: int, dtype: torch.dtype = torch.float32):
    ids_BT = torch.randint(0, 256, (rows, shape.window + 1))
    total = torch.tensor(float(rows * shape.window), dtype=dtype)
    return ids_BT[:, :-1].contiguous(), ids_BT[:, 1:].contiguous(), total, 0.0


def saved_bytes(shape: ModelConfig, rows: int, precision: str, loss=mean_loss) -> int:
    """Bytes that autograd keeps for the backward pass, weights and their casts apart; each storage once."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    model = Transformer(shape).to(dtype)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}
    sizes = {tuple(sorted(parameter.shape)) for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        cast = tensor.dtype == torch.bfloat16 and tuple(sorted(tensor.shape)) in sizes
        if tensor.untyped_storage().data_ptr() not in weights and not cast:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    mixed = torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with warnings.catch_warnings(), mixed, hooks:
        warnings.simplefilter("ignore")
        loss(model, *batch(shape, rows, dtype))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


class Tensors(unittest.TestCase):
    def test_names_order_and_shapes_are_those_of_the_model(self) -> None:
        for shape in SHAPES:
            real = [(name, tuple(p.shape)) for name, p in Transformer(shape).named_parameters()]
            self.assertEqual(list(tensor_shapes(shape).items()), real)

    def test_muon_takes_what_the_optimizer_gives_it(self) -> None:
        for muon in (True, False):
            optimizer = Optimizer(Transformer(SMALL), TrainConfig(data="none", muon=muon))
            self.assertEqual(list(muon_shapes(SMALL, muon)), list(optimizer.matrices))

    def test_a_rank_holds_what_chunks_of_rows_hold(self) -> None:
        for rows in (1, 2, 5, 32, 257):
            for ranks in (1, 2, 3, 7, 64):
                whole = torch.empty(rows, 3)
                most = max(piece.numel() for piece in whole.chunk(ranks))
                self.assertEqual(held((rows, 3), ranks), most, (rows, ranks))

    def test_the_products_of_muon_are_counted_as_torch_counts_them(self) -> None:
        shapes = {"a": (32, 96), "b": (96, 32), "c": (48, 48)}
        with FlopCounterMode(display=False) as counter:
            orthogonalize(torch.ones(2, 32, 96))
            orthogonalize(torch.ones(1, 48, 48))
        self.assertEqual(muon_flops(shapes), counter.get_total_flops())


class MemoryOfARank(unittest.TestCase):
    def test_parameters_gradients_and_states_are_those_of_model_and_optimizer(self) -> None:
        for shape in SHAPES:
            for muon in (True, False):
                for precision, dtype in (("float32", torch.float32), ("float64", torch.float64)):
                    model = Transformer(shape).to(dtype)
                    state = Optimizer(model, TrainConfig(data="none", muon=muon)).state()
                    weights = sum(p.numel() * p.itemsize for p in model.parameters())
                    found = memory(shape, 1, 1, muon=muon, precision=precision)
                    self.assertEqual((found.parameters, found.gradients), (weights, weights))
                    del state["steps_done"]
                    self.assertEqual(found.optimizer, sum(t.numel() * t.itemsize for t in state.values()))

    def test_activations_are_what_autograd_saves(self) -> None:
        for shape in SHAPES:
            for precision in ("float32", "float64", "bfloat16"):
                rows = 4
                real = saved_bytes(shape, rows, precision)
                found = memory(shape, 1, rows, precision=precision)
                planned = found.activations + found.logits / 3  # of the logits, one copy is saved
                self.assertLess(abs(planned / real - 1), 0.05, (shape, precision, planned, real))

    def test_the_peaks_of_backward_and_update_are_those_of_live_tensors(self) -> None:
        wide = ModelConfig(layers=2, width=128, mlp_width=512, heads=4, kv_heads=4, head_size=32, window=64)
        for shape, rows in ((SMALL, 16), (wide, 8)):
            model = Transformer(shape)
            optimizer = Optimizer(model, TrainConfig(data="none"))
            found = memory(shape, 1, rows)
            arguments = batch(shape, rows)
            states = [*model.parameters(), *optimizer.state().values()]
            gradients = [torch.zeros_like(p) for p in model.parameters()]  # as between micro-batches
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            live = Live()
            live.ignore([*states, *gradients])
            with live:
                torch.autograd.backward(mean_loss(model, *arguments))
            planned = found.backward - found.states
            self.assertLess(abs(planned / live.peak - 1), 0.15, (planned, live.peak))
            live = Live()
            live.ignore([*states, *gradients])
            with live:
                optimizer.step(1.0)
            self.assertLess(abs(found.orthogonalisation / live.peak - 1), 0.15, (found, live.peak))

    def test_sharding_divides_what_stays(self) -> None:
        shape = PRESETS["base"]
        whole, sixth = memory(shape, 8, 4), memory(shape, 8, 4, shard=True)
        self.assertLess(abs(sixth.states / whole.states - 1 / 8), 0.002)
        self.assertEqual(sixth.activations, whole.activations)
        waiting = memory(shape, 8, 4, micro_batches=2, shard=True)
        self.assertEqual(waiting.gradients, whole.gradients)  # sent once a step, whole until then


class OnDisk(unittest.TestCase):
    def test_the_files_of_a_step_have_exactly_these_bytes(self) -> None:
        for shape in SHAPES:
            for muon in (True, False):
                for kind, dtype in (("F32", torch.float32), ("F64", torch.float64)):
                    model = Transformer(shape).to(dtype)
                    state = Optimizer(model, TrainConfig(data="none", muon=muon)).state()
                    with tempfile.TemporaryDirectory() as folder:
                        step = checkpoint.save_step(Path(folder), 1234, model, state, {})
                        files = (step / checkpoint.MODEL, step / checkpoint.TRAINING)
                        sizes = [file.stat().st_size for file in files]
                    planned = [model_bytes(shape, kind), training_bytes(shape, muon, kind, 1234)]
                    self.assertEqual(sizes, planned, (shape, muon, kind))

    def test_a_run_leaves_about_these_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            limit = CorpusConfig(max_documents=200, truncate=True)
            corpus = build_corpus("builtin:unicode", place / "corpus", limit)
            run = TrainConfig(
                data=str(corpus.path), out=str(place / "run"), model=SMALL, steps=8, batch_rows=2,
                evaluate_every=2, evaluate_tokens=128, sample_tokens=0, device="cpu", keep=1,
            )  # fmt: skip
            folder_of_run = trainer.train(run).run
            size = sum(file.stat().st_size for file in folder_of_run.rglob("*") if file.is_file())
            step = checkpoint.newest_step(folder_of_run).folder
            manifest = (step / checkpoint.MANIFEST).stat().st_size
            steps = len(checkpoint.list_steps(folder_of_run))
        planned = disk(SMALL, 8, 1000, 1, muon=True, precision="float32")
        self.assertLess(abs(planned.run / planned.checkpoint - 2), 0.01)
        one = planned.checkpoint
        self.assertLess(abs((planned.run - (2 - steps) * one) / size - 1), 0.15, (planned, size, steps))
        self.assertLess(abs((one - planned.model - planned.training) / manifest - 1), 0.15, manifest)


class OnTheNetwork(unittest.TestCase):
    def test_a_ring_sends_what_it_sends_when_played_through(self) -> None:
        for ranks in (2, 3, 5, 8):
            values = [[float(100 * rank + piece) for piece in range(ranks)] for rank in range(ranks)]
            wanted = [sum(column) for column in zip(*values, strict=True)]
            sent = [0] * ranks
            for turn in range(2 * (ranks - 1)):
                adding = turn < ranks - 1
                moved = []
                for rank in range(ranks):
                    piece = (rank - turn + (0 if adding else ranks)) % ranks
                    if not adding:
                        piece = (rank + 1 - (turn - ranks + 1)) % ranks
                    moved.append(((rank + 1) % ranks, piece, values[rank][piece]))
                    sent[rank] += 1
                for to, piece, value in moved:
                    values[to][piece] = values[to][piece] + value if adding else value
            self.assertEqual(values, [wanted] * ranks)
            self.assertEqual(set(sent), {all_reduce_bytes(ranks, ranks)})
            self.assertEqual(gather_bytes(ranks, ranks), ranks - 1)

    def test_one_rank_sends_nothing_and_sharded_ranks_send_half_as_much_again(self) -> None:
        shape, at = PRESETS["base"], machine()
        self.assertEqual(traffic(shape, 1, 3, at), SILENT)
        whole, shards = traffic(shape, 8, 1, at), traffic(shape, 8, 1, at, shard=True)
        payload = 4 * config.parameter_count(shape)
        self.assertAlmostEqual(whole.sent / payload, 2 * 7 / 8)
        self.assertAlmostEqual(shards.gradients / payload, 7 / 8)
        self.assertLess(abs((shards.gradients + shards.parameters) / whole.sent - 1.5), 0.01)
        again = traffic(shape, 8, 4, at, shard=True)
        self.assertEqual(again.parameters, 4 * shards.parameters)
        self.assertEqual(again.gradients, shards.gradients)
        gloo = traffic(shape, 8, 1, machine(scatters=False), shard=True)
        self.assertEqual(gloo.gradients, whole.gradients)
        self.assertEqual((gloo.parameters, gloo.muon), (shards.parameters, shards.muon))
        self.assertGreater(gloo.gradient_seconds, shards.gradient_seconds)

    def test_many_ranks_take_the_tree_for_a_short_message(self) -> None:
        at = machine()
        ring = 2 * 63 * at.latency
        self.assertLess(all_reduce_seconds(1000, 64, at), ring / 5)
        long = 1e10
        self.assertAlmostEqual(
            all_reduce_seconds(long, 64, at) / (2 * 63 / 64 * long / at.rate(64)), 1, places=2
        )
        self.assertEqual((at.rate(8), at.rate(9)), (at.link, at.bandwidth))


def machine(**changes: object) -> Hardware:
    """A machine with round numbers."""
    return dataclasses.replace(
        Hardware("round", 1e14, 0.5, 1e13, 1e11, 1e12, 4e11, 5e10, 1e-5, 8, True), **changes
    )


@unittest.skipUnless(torch.distributed.is_available(), "torch has no distributed package here")
class TwoRanks(unittest.TestCase):
    """Two real ranks, replicated and sharded, beside the plan."""

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            limit = CorpusConfig(max_documents=200, truncate=True)
            build_corpus("builtin:unicode", place / "corpus", limit)
            from tests.plan_ranks import work  # which imports this file

            together(work, place=place, ranks=2)
            cls.said = [json.loads((place / f"said-{rank}.json").read_bytes()) for rank in range(2)]

    def test_the_first_rank_holds_what_is_planned(self) -> None:
        for shard in (False, True):
            found = memory(SMALL, 2, 4, shard=shard)
            held = self.said[0][f"{shard} 1"]["held"]
            self.assertEqual(held["parameters"], found.parameters)
            self.assertEqual(held["optimizer"], found.optimizer)
            self.assertEqual(held["gradients"], found.gradients)

    def test_the_ranks_send_the_bytes_that_are_planned(self) -> None:
        for shard in (False, True):
            for micro_batches in (1, 2):
                planned = traffic(SMALL, 2, micro_batches, machine(), shard=shard)
                said = [rank[f"{shard} {micro_batches}"] for rank in self.said]
                for part in ("gradients", "parameters", "muon"):
                    sent = sum(one[part] for one in said) / 2
                    wanted = getattr(planned, part)
                    off = sent if not wanted else abs(sent / wanted - 1)
                    self.assertLess(off, 0.15 if part == "muon" else 0.02, (shard, micro_batches, part, sent))


class OfAStep(unittest.TestCase):
    def test_compute_and_optimizer_by_hand(self) -> None:
        shape = PRESETS["nano"]
        found = step_time(
            shape, 1, 10, 10, machine(), traffic(shape, 1, 1, machine()), 4, shard=False, muon=True
        )
        flops = 3 * config.flops_per_token(shape, 256) * 10 * 256
        self.assertAlmostEqual(found.compute, flops / 5e13)
        muon = 5 * 16 * (4 * 128**3 + 2 * 128**3) + 5 * 12 * (4 * 128**2 * 352 + 2 * 128**3)
        self.assertAlmostEqual(found.optimizer, muon / 1e13 + 16 * 4 * config.parameter_count(shape) / 1e12)
        self.assertEqual((found.waiting, found.total), (0, found.compute + found.optimizer))

    def test_what_runs_beside_the_backward_pass_is_not_waited_for(self) -> None:
        shape = PRESETS["base"]
        for shard in (False, True):
            for rows, micro_rows in ((1, 1), (64, 64), (64, 1)):
                at = machine()
                sent = traffic(shape, 8, rows // micro_rows, at, shard=shard)
                beside = step_time(shape, 8, rows, micro_rows, at, sent, 4, shard=shard, muon=True)
                alone = machine(overlaps=False)
                one_by_one = step_time(shape, 8, rows, micro_rows, alone, sent, 4, shard=shard, muon=True)
                self.assertEqual(one_by_one.waiting, sent.seconds)
                self.assertGreater(beside.waiting, 0)
                self.assertLess(beside.total, one_by_one.total)
                self.assertLessEqual(beside.hidden, beside.compute)

    def test_a_rate_measured_on_one_model_tells_the_step_of_another(self) -> None:
        """In the processor time of one thread, which others on this machine do not lengthen much."""
        from tinylm.devices import Machine
        from tinylm.plan.measure import measured_rates

        shape = ModelConfig(layers=5, width=128, mlp_width=352, heads=4, kv_heads=4, head_size=32, window=128)
        rows, apart = 8, []
        with cpu_threads(1):
            model = Transformer(shape)
            optimizer = Optimizer(model, TrainConfig(data="none"))
            arguments = batch(shape, rows)
            for _ in range(4):
                rates = measured_rates(shape, Machine("cpu", "float32", False, 1), rows, time.process_time)
                at = machine(
                    flops=rates.training, utilisation=1.0, product_flops=rates.muon, memory_rate=rates.memory
                )
                planned = step_time(
                    shape, 1, rows, rows, at, traffic(shape, 1, 1, at), 4, shard=False, muon=True
                )
                taken = []
                for _ in range(4):
                    started = time.process_time()
                    torch.autograd.backward(mean_loss(model, *arguments))
                    optimizer.step(0.01)
                    optimizer.zero_grad()
                    taken.append(time.process_time() - started)
                apart.append(planned.total / sorted(taken)[1] - 1)
                if abs(apart[-1]) < 0.15:
                    return
        self.fail(f"planned and measured step differ by {', '.join(f'{a:+.0%}' for a in apart)}")


class Options(unittest.TestCase):
    def test_all_problems_are_told_at_once(self) -> None:
        wrong = PlanConfig(
            preset="huge", gpus=0, tokens=-1.0, steps=3, keep=0, utilisation=1.5, device="abacus",
            precision="float8", latency=math.nan, bandwidth=0.0, shard=1, model=ModelConfig(layers=0),
        )  # fmt: skip
        with self.assertRaises(ConfigError) as caught:
            wrong.check()
        for name in (
            *("preset", "gpus", "tokens", "steps", "keep", "utilisation", "device", "precision", "latency"),
            *("bandwidth", "shard", "model.layers"),
        ):
            self.assertIn(f"{name} ", str(caught.exception))

    def test_rows_are_shared_out_evenly_or_refused_with_the_way_out(self) -> None:
        with self.assertRaisesRegex(ConfigError, r"batch_rows is 100, expected a multiple .* \(64\), as 128"):
            PlanConfig(gpus=64, batch_rows=100).check()
        with self.assertRaisesRegex(
            ConfigError, r"micro_rows is 3, expected a divisor of a rank's rows \(2\)"
        ):
            PlanConfig(gpus=64, batch_rows=128, micro_rows=3).check()
        found = predict(PlanConfig(gpus=64, batch_rows=128, tokens=1e9))
        self.assertEqual((found.rows, found.micro_rows, found.micro_batches), (2, 2, 1))
        self.assertEqual(found.steps, math.ceil(1e9 / (128 * 2048)))

    def test_a_measured_device_takes_no_published_rate(self) -> None:
        with self.assertRaisesRegex(ConfigError, "flops is 1e"):
            PlanConfig(device="here", flops=1e12).check()

    def test_what_is_given_counts_instead_of_what_is_published(self) -> None:
        usual = predict(PlanConfig(steps=10))
        self.assertEqual(usual.hardware.flops, PUBLISHED["h100"].bfloat16)
        given = predict(
            PlanConfig(
                steps=10, flops=1e14, utilisation=0.2, memory=10.0, link=100.0, bandwidth=1.0, latency=3.0
            )
        )
        self.assertEqual(given.hardware.flops * given.hardware.utilisation, 2e13)
        self.assertEqual((given.hardware.memory, given.hardware.link), (1e10, 1e11))
        self.assertEqual((given.hardware.bandwidth, given.hardware.latency), (1e9, 3e-6))
        share = usual.hardware.utilisation * usual.hardware.flops / 2e13
        self.assertAlmostEqual(given.time.compute / usual.time.compute, share)


class Advice(unittest.TestCase):
    def changed(self, found: Prediction, sentence: str) -> Prediction:
        """The plan with the flags that a sentence names."""
        words = shlex.split(sentence.replace(":", " ").replace(",", " "))
        changes: dict[str, object] = {
            name: int(words[words.index(flag) + 1])
            for name in ("gpus", "batch_rows", "micro_rows")
            if (flag := f"--{name.replace('_', '-')}") in words
        }
        if "--shard" in words:
            changes["shard"] = True
        return predict(dataclasses.replace(found.config, **changes))

    def test_what_it_names_fits(self) -> None:
        big = ModelConfig(
            layers=48, width=4096, mlp_width=11008, heads=32, kv_heads=8, head_size=128, window=4096
        )
        seen = set()
        for plan in (
            PlanConfig(gpus=8, batch_rows=512, micro_rows=64, steps=10, memory=20.0),
            PlanConfig(model=big, gpus=64, steps=10, batch_rows=64),
            PlanConfig(model=big, gpus=1, steps=10, batch_rows=4),
            PlanConfig(model=big, gpus=4, steps=10, device="a100"),
        ):
            found = predict(plan)
            self.assertFalse(found.fits)
            sentence = advice(found)[0]
            self.assertIn("do not fit", sentence)
            seen |= {flag for flag in ("--micro-rows", "--shard", "--gpus") if flag in sentence}
            self.assertTrue(self.changed(found, sentence).fits, sentence)
        self.assertEqual(seen, {"--micro-rows", "--shard", "--gpus"})

    def test_a_window_that_fits_no_device_is_named(self) -> None:
        long = dataclasses.replace(PRESETS["base"], window=1_000_000)
        self.assertIn("smaller --window", advice(predict(PlanConfig(model=long, gpus=4, steps=10)))[0])

    def test_the_optimizer_and_the_network_are_named_where_they_take_the_time(self) -> None:
        text = " ".join(advice(predict(PlanConfig(gpus=64, tokens=1e11))))
        self.assertRegex(text, r"\d+% of a step is the optimizer's, on every rank alike")
        text = " ".join(advice(predict(PlanConfig(gpus=64, tokens=1e11, shard=True, bandwidth=1.0))))
        self.assertRegex(text, r"\d+% of a step waits for the network")
        self.assertNotIn("the optimizer's", text)
        one = PlanConfig(gpus=1, tokens=1e10, batch_rows=512)
        self.assertEqual(advice(predict(one)), [])
        self.assertIn("tokens for each parameter are few", advice(predict(PlanConfig(steps=100)))[0])

    def test_rows_at_once_are_as_many_as_fit(self) -> None:
        found = predict(PlanConfig(gpus=1, batch_rows=256, steps=10, memory=20.0))
        self.assertTrue(found.fits)
        self.assertLess(found.micro_rows, 256)
        more = predict(dataclasses.replace(found.config, micro_rows=2 * found.micro_rows))
        self.assertFalse(more.fits)


class TheCommand(unittest.TestCase):
    def setUp(self) -> None:
        if importlib.util.find_spec("tyro") is None:
            self.skipTest("tyro is not installed")

    def run_command(self, *words: str) -> tuple[int, str, str]:
        from tinylm.cli import main

        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["plan", *words])
        return code, out.getvalue(), err.getvalue()

    def test_tables_say_what_the_plan_says(self) -> None:
        words = ("--preset", "base", "--gpus", "64", "--tokens", "1e11")
        code, shown, _ = self.run_command(*words)
        found = predict(PlanConfig(gpus=64, tokens=1e11))
        self.assertEqual(code, 0)
        for text in (
            "85,350,144", amount(found.memory.peak), duration(found.time.total),
            duration(found.seconds), f"{found.disk.model:,}", found.command(),
        ):  # fmt: skip
            self.assertIn(text, shown)
        with mock.patch.object(importlib.util, "find_spec", lambda name: None):
            code, plain, _ = self.run_command(*words)
        self.assertEqual(code, 0)
        self.assertIn(amount(found.memory.peak), plain)

    def test_json_holds_every_number(self) -> None:
        code, text, _ = self.run_command("--gpus", "8", "--steps", "7", "--json", "--shard", "--layers", "3")
        found = json.loads(text)
        self.assertEqual(code, 0)
        same = PlanConfig(
            gpus=8, steps=7, json=True, shard=True, model=dataclasses.replace(PRESETS["base"], layers=3)
        )
        self.assertEqual(found, json.loads(json.dumps(predict(same).to_dict())))
        self.assertEqual(found["time"]["total"], predict(same).time.total)

    def test_problems_are_one_line_and_exit_with_2(self) -> None:
        code, shown, said = self.run_command("--gpus", "0", "--keep", "0", "--tokens", "nan")
        self.assertEqual((code, shown, len(said.splitlines())), (2, "", 1))
        for name in ("gpus is 0", "keep is 0", "tokens is nan"):
            self.assertIn(name, said)

    def test_the_command_that_it_prints_trains_that_model(self) -> None:
        import tyro

        from tinylm.flags import train_flags

        shape = dataclasses.replace(PRESETS["nano"], tied=True, kv_heads=2, rope_theta=5e5, policy="mask")
        wanted = PlanConfig(
            preset="nano", model=shape, gpus=12, steps=9, muon=False, keep=5, batch_rows=24, shard=True
        )
        words = shlex.split(predict(wanted).command("here.txt"))
        self.assertEqual(words[:3], ["torchrun", "--nproc-per-node", "6"])
        self.assertEqual(words[words.index("--nnodes") + 1], "2")
        given = words[words.index("train") + 1 :]
        marks = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.UseAppendAction)
        parsed = tyro.cli(train_flags(given), args=given, config=marks)
        self.assertEqual(dataclasses.asdict(parsed.model), dataclasses.asdict(shape))
        self.assertEqual((parsed.steps, parsed.batch_rows, parsed.micro_rows, parsed.keep), (9, 24, 2, 5))
        self.assertEqual((parsed.muon, parsed.shard), (False, True))

    def test_a_plan_needs_no_torch_unless_it_measures(self) -> None:
        code = (
            "import sys\nfrom tinylm.cli import main\n"
            "assert main(['plan', '--gpus', '64', '--json']) == 0\nprint('torch' in sys.modules)"
        )
        self.assertEqual(python(code).splitlines()[-1], "False")

    def test_this_machine_is_measured(self) -> None:
        small = ("--layers", "1", "--width", "32", "--mlp-width", "32", "--heads", "1", "--kv-heads", "1")
        sizes = ("--head-size", "32", "--window", "32", "--batch-rows", "4", "--steps", "5", "--gpus", "2")
        code, text, said = self.run_command("--device", "here", "--json", *small, *sizes)
        self.assertEqual(code, 0, said)
        found = json.loads(text)["hardware"]
        self.assertTrue(found["measured"])
        self.assertTrue(0 < found["utilisation"] < 1 and found["flops"] > 1e8 and found["memory"] > 1e8)


class Words(unittest.TestCase):
    def test_bytes_and_times_have_the_unit_that_fits(self) -> None:
        for number, text in (
            (0, "0 B"),
            (812, "812 B"),
            (97_300, "97.3 kB"),
            (1.024e9, "1.02 GB"),
            (2e18, "2,000 PB"),
        ):
            self.assertEqual(amount(number), text)
        for number, text in (
            *((0.0, "0 us"), (870e-6, "870 us"), (3.2e-3, "3.2 ms"), (41, "41 s"), (3000, "50 min")),
            *((18_720, "5 h 12 min"), (1_062_000, "12 d 7 h"), (1e9, "31.7 years")),
        ):
            self.assertEqual(duration(number), text)


if __name__ == "__main__":
    sys.exit(unittest.main())
