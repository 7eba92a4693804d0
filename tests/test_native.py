"""The compiled step: what the model says, to the last bits the same however rows are grouped."""

from __future__ import annotations

import ctypes
import io
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from tests.test_generate import random_transformer
from tinylm.commands.generate import generate as generate_command
from tinylm.config import PRESETS, GenerateConfig, ModelConfig
from tinylm.generate import Engine, Task, compiled, native
from tinylm.generate.compiled import NotCompiled
from tinylm.generate.native import NativeStep
from tinylm.generate.reader import Reader
from tinylm.language_model import LanguageModel
from tinylm.model import Transformer
from tinylm.sampling import Floats

SMALL = ModelConfig(layers=2, width=64, mlp_width=96, heads=4, kv_heads=2, head_size=32, window=48)
SHAPES = {
    "two query heads to one of keys": SMALL,
    "heads of 10, tied, a window of 37": ModelConfig(
        layers=2, width=32, mlp_width=160, heads=16, kv_heads=16, head_size=10, window=37, tied=True
    ),
    "heads of 2, eight to one": ModelConfig(
        layers=1, width=96, mlp_width=32, heads=128, kv_heads=16, head_size=2, window=70
    ),
    "one head of 96, a window of 2": ModelConfig(
        layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, head_size=96, window=2
    ),
    "nano": PRESETS["nano"],
    "n-grams of up to 4": replace(SMALL, ngrams=4, ngram_rows=64),
}


def model_of(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Transformer:
    """Random weights and gains, the same for every dtype."""
    model = random_transformer(config, 0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.detach().uniform_(0.5, 1.5, generator=generator)
    return model.to(dtype).requires_grad_(False)


def some_ids(count: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 257, count).tolist()
    return ids


def setUpModule() -> None:
    try:
        compiled.load()
    except NotCompiled as reason:
        raise unittest.SkipTest(f"no compiled step here: {reason}") from None


class AsTheModel(unittest.TestCase):
    def test_logits_are_those_of_the_model_in_float64_at_every_shape_to_the_end_of_the_window(self) -> None:
        for name, config in SHAPES.items():
            with self.subTest(name):
                ids = some_ids(config.window)
                exact = model_of(config, torch.float64)(torch.tensor([ids]))[0].numpy()
                in_float32 = model_of(config)(torch.tensor([ids]))[0].numpy()
                found = NativeStep(model_of(config), 2).read({1: (0, ids)})[1]
                # PyTorch in float32 rounds as often, in another order: within a small multiple of its error.
                error = np.abs(in_float32 - exact).max()
                self.assertLess(np.abs(found - exact).max(), 4 * error + 1e-6)

    def test_the_exponential_is_within_two_units_in_the_last_place(self) -> None:
        x_N = np.linspace(-87, 88, 200_001, dtype=np.float32)
        found_N = np.empty_like(x_N)
        compiled.load().tinylm_exponential(
            *(ctypes.c_void_p(array.ctypes.data) for array in (x_N, found_N)), ctypes.c_int64(len(x_N))
        )
        exact_N = np.exp(x_N.astype(np.float64))
        self.assertLess((np.abs(found_N - exact_N) / np.spacing(found_N)).max(), 2)

    def test_huge_and_tiny_numbers_stay_within_softmax_and_silu(self) -> None:
        # Attention and gates far in saturation, where e^x leaves the range of floats.
        models = [model_of(SMALL, dtype) for dtype in (torch.float32, torch.float64)]
        for model in models:
            model.model.layers[0].self_attn.q_norm.weight.mul_(300)
            model.model.layers[1].mlp.gate_proj.weight.mul_(3000)
        ids = some_ids(48)
        exact = models[1](torch.tensor([ids]))[0].numpy()
        error = np.abs(models[0](torch.tensor([ids]))[0].numpy() - exact).max()
        found = NativeStep(models[0], 1).read({0: (0, ids)})[0]
        self.assertLess(np.abs(found - exact).max(), 4 * error + 1e-5)

    def test_what_is_not_finite_shows_in_its_own_row_and_in_no_other(self) -> None:
        for bad in (torch.nan, torch.inf):
            model = model_of(SMALL)
            model.model.embed_tokens.weight[7] = bad
            step = NativeStep(model, 2)
            found = step.read({0: (0, [1, 2, 7, 3]), 1: (0, [1, 2, 3])})
            self.assertEqual(np.isfinite(found[0]).all(axis=1).tolist(), [True, True, False, False])
            self.assertTrue(np.isfinite(found[1]).all())
            # Another sequence begins in the slot: what lies behind it is never seen, cleared or not.
            again = step.read({0: (0, [1, 2, 3])})[0]
            self.assertTrue(np.array_equal(again, found[1]))

    def test_weights_are_taken_as_they_are_when_it_is_made(self) -> None:
        model = model_of(SMALL)
        step = NativeStep(model, 1)
        before = step.read({0: (0, [65])})[0]
        for parameter in model.parameters():
            parameter.zero_()
        self.assertTrue(np.array_equal(step.read({0: (0, [65])})[0], before))


class EqualBits(unittest.TestCase):
    def check(self, found: Floats, expected: Floats) -> None:
        self.assertEqual((found.shape, found.tobytes() == expected.tobytes()), (expected.shape, True))

    def test_a_row_among_1_to_17_rows_at_random_places_in_1_or_2_threads(self) -> None:
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        random = np.random.default_rng(0)
        for config in SHAPES.values():
            model = model_of(replace(config, layers=1, window=max(24, config.window)))
            many, one = NativeStep(model, 17), NativeStep(model, 1)
            ids, lengths = [some_ids(24, slot) for slot in range(17)], random.integers(1, 24, 17).tolist()
            expected = {}
            torch.set_num_threads(1)
            for slot in range(17):
                many.read({slot: (0, ids[slot][: lengths[slot]])})
                for place in range(lengths[slot] + 1):
                    expected[slot] = one.read({0: (place, [ids[slot][place]])})[0]
            for threads in (1, 2):
                torch.set_num_threads(threads)
                with mock.patch.object(native, "WORK_OF_A_THREAD", 1):
                    for count in range(1, 18):
                        for slot, found in many.read(
                            {
                                int(slot): (lengths[slot], [ids[slot][lengths[slot]]])
                                for slot in random.permutation(17)[:count]
                            }
                        ).items():
                            self.check(found, expected[slot])

    def test_a_prompt_cut_anywhere_and_drafts_beside_other_slots(self) -> None:
        model = model_of(replace(PRESETS["nano"], layers=2, window=150))
        step, ids = NativeStep(model, 3), some_ids(150)
        whole = step.read({0: (0, ids)})[0]
        for size in (1, 2, 3, 5, 6, 7, 13, 16, 31, 63, 64, 65, 149):
            for begin in range(0, 150, size):
                cut = ids[begin : begin + size]
                found = step.read({1: (begin, cut), 2: (begin % 9, [65])})[1]
                self.check(found, whole[begin : begin + size])
        last = step.read({1: (0, ids)}, last=True)[1]
        self.check(last, whole[-1:])

    def test_in_as_many_threads_as_there_may_be(self) -> None:
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        model, ids = model_of(SMALL), some_ids(20)
        with mock.patch.object(native, "WORK_OF_A_THREAD", 1):
            found = []
            for threads in (1, 2, 3, 5, 2):
                torch.set_num_threads(threads)
                found.append(NativeStep(model, 1).read({0: (0, ids)})[0])
        for other in found[1:]:
            self.check(other, found[0])

    def test_the_compiler_and_the_width_of_vectors_change_no_bit(self) -> None:
        """The source fixes every rounding: optimised for this processor or hardly at all, bits are equal."""
        step, ids = NativeStep(model_of(SMALL), 1), some_ids(48)
        expected = step.read({0: (0, ids)})[0]
        march = [flag for flag in compiled.FLAGS if "=native" in flag]
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "step.so"
            flags = [flag for flag in compiled.FLAGS if flag != "-O3"]
            command = [*compiled._compiler(), *flags, "-O1", *march, "-o", str(plain), str(compiled.SOURCE)]
            subprocess.run(command, check=True)
            with mock.patch.object(compiled, "load", return_value=ctypes.CDLL(str(plain))):
                self.check(NativeStep(model_of(SMALL), 1).read({0: (0, ids)})[0], expected)

    def test_copies_of_any_length(self) -> None:
        for config in (SMALL, SHAPES["n-grams of up to 4"]):
            step, ids = NativeStep(model_of(config), 3), some_ids(48)
            whole = step.read({0: (0, ids)})[0]
            step.read({2: (0, some_ids(48, 5))})
            for length in (1, 15, 16, 17, 40, 47):
                step.copy(0, 2, length)
                self.check(step.read({2: (length, ids[length:])})[2], whole[length:])
                step.clear(2, length)
                self.check(step.read({2: (length, ids[length:])})[2], whole[length:])

    def test_the_reader_reads_a_prompt_by_chunks_or_by_drafts(self) -> None:
        model, ids = model_of(SMALL), some_ids(40)
        reader = Reader(model, 2)
        self.assertEqual((reader.how, reader.exact_drafts), ("the compiled step", True))
        after = reader.chunk(0, 0, ids)
        self.check(reader.step({1: (0, ids)})[1][-1], after)
        self.assertEqual(after.dtype, np.float64)

    def test_engines_that_cut_prompts_otherwise_sample_the_same(self) -> None:
        found = []
        for chunk in (2, 7, 64):
            engine = Engine(model_of(SMALL), 1, chunk=chunk)
            engine.start(Task(tuple(some_ids(30))))
            logits = []
            while engine.running and len(logits) < 30:
                logits += [outcome.logits_V.tobytes() for _, outcome in engine.step()]
            found.append(logits)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])


class WhichModels(unittest.TestCase):
    def test_others_go_through_pytorch_and_the_reader_says_why(self) -> None:
        class Mine(Transformer):
            pass

        more = model_of(SMALL)
        more.model.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
        for model, told in (
            (model_of(SMALL, torch.float64), "float64 on cpu"),
            (Mine(SMALL), "not a Transformer"),
            (more, "does not know model.extra"),
        ):
            reader = Reader(model, 1)
            self.assertIn(told, reader.how)
            self.assertTrue(reader.how.startswith("PyTorch ("), reader.how)
            self.assertFalse(reader.exact_drafts)
        with mock.patch.object(native, "KNOWN", tuple(name for name in native.KNOWN if name != "tied")):
            self.assertIn("option tied", Reader(model_of(replace(SMALL, tied=True)), 1).how)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.assertIn("autocast", Reader(model_of(SMALL), 1).how)


class Building(unittest.TestCase):
    """With a compiler that gives what the real one gave before: that takes no seconds."""

    def setUp(self) -> None:
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = folder / "cache" / "tinylm"
        library = Path(compiled.load()._name)
        if not library.exists():
            self.skipTest("the cache folder of this user cannot be used")
        copying = folder / "compiler"
        copy = f'[ "$1" = -o ] && cp {shlex.quote(str(library))} "$2"'
        copying.write_text(f"#!/bin/sh\nwhile [ $# -gt 0 ]; do {copy}; shift; done\n")
        copying.chmod(0o700)
        self.enterContext(mock.patch.dict(os.environ, {"CXX": shlex.quote(str(copying))}))

    def built(self) -> list[Path]:
        return sorted(self.folder.glob("*"))

    def test_built_once_and_a_damaged_file_is_built_again(self) -> None:
        with mock.patch.object(compiled, "_build", wraps=compiled._build) as build:
            compiled.open_or_build(self.folder)
            compiled.open_or_build(self.folder)
            self.assertEqual(build.call_count, 1)
            (path,) = self.built()
            whole = path.read_bytes()
            self.assertEqual(path.stat().st_mode & 0o077, 0)
            path.unlink()
            path.write_bytes(whole[: len(whole) // 2])
            compiled.open_or_build(self.folder)
            self.assertEqual(build.call_count, 2)
        self.assertEqual(len(self.built()), 1)
        self.assertEqual(self.built()[0].read_bytes(), whole)

    def test_two_processes_at_once(self) -> None:
        # The file alone: with the package comes torch, which takes seconds.
        code = (
            "import importlib.util, pathlib, sys\n"
            "specification = importlib.util.spec_from_file_location('compiled', sys.argv[1])\n"
            "compiled = importlib.util.module_from_spec(specification)\n"
            "specification.loader.exec_module(compiled)\n"
            "print(compiled.open_or_build(pathlib.Path(sys.argv[2])).tinylm_step is not None)"
        )
        running = [
            subprocess.Popen(
                [sys.executable, "-c", code, compiled.__file__, str(self.folder)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        self.assertEqual([process.communicate(timeout=120)[0] for process in running], ["True\n"] * 2)
        self.assertEqual([path.name[:5] for path in self.built()], ["step-"] * len(self.built()))

    def test_where_there_is_no_compiler_the_reason_is_told_and_pytorch_reads(self) -> None:
        for compiler, told in (
            ("/bin/false", "/bin/false ended with exit code 1"),
            ("no-such-compiler", "CXX is 'no-such-compiler', which was not found"),
        ):
            with mock.patch.dict(os.environ, {"CXX": compiler}):
                with self.assertRaisesRegex(NotCompiled, told):
                    compiled.open_or_build(self.folder)
                compiled._tried.cache_clear()
                self.addCleanup(compiled._tried.cache_clear)
                self.assertIsNone(compiled.why_not())
                reader = Reader(model_of(SMALL), 1)
                self.assertEqual(reader.how, f"PyTorch ({told})")
                self.assertEqual(compiled.why_not(), told)
                self.assertEqual(reader.step({0: (0, [65])})[0].shape, (1, 257))
        self.assertEqual(self.built(), [])

    def test_the_command_says_once_that_there_is_no_compiled_step(self) -> None:
        @dataclass(frozen=True)
        class Given(GenerateConfig):
            checkpoint: str = "a model"
            prompt: str = "a"

        self.addCleanup(compiled._tried.cache_clear)
        with mock.patch("tinylm.language_model.load", return_value=LanguageModel(model_of(SMALL))):
            for compiler, notes in (("/bin/false", 1), (os.environ["CXX"], 0)):
                compiled._tried.cache_clear()
                told = io.StringIO()
                with (
                    mock.patch.dict(os.environ, {"CXX": compiler}),
                    mock.patch.object(Path, "home", return_value=self.folder.parent),
                    redirect_stderr(told),
                    redirect_stdout(io.StringIO()),
                ):
                    self.assertEqual(generate_command(Given(max_tokens=2)), 0)
                note = "[slower, in PyTorch: /bin/false ended with exit code 1]"
                self.assertEqual(told.getvalue().count(note), notes)
                self.assertEqual(told.getvalue().count("slower"), notes)

    def test_a_folder_that_others_may_write_or_that_cannot_be_made_is_not_used(self) -> None:
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)
        with mock.patch.object(compiled, "_build", side_effect=NotCompiled("here")) as build:
            for folder in (self.folder, self.folder / "file" / "below"):
                (self.folder / "file").write_bytes(b"")
                with self.assertRaises(NotCompiled):
                    compiled.open_or_build(folder)
                (private,) = build.call_args.args[2:]
                self.assertNotIn(self.folder, (private, *private.parents))
