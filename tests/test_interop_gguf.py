"""GGUF: what stands in the file, read by gguf's own reader, and what the real llama.cpp makes of it."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import platform
import random
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from tests.llama_support import NODE_MODULES, TINY, needs_llama_cpp, random_model, without_node
from tests.stage_support import ROOT
from tinylm import load
from tinylm.config import PRESETS, GenerateConfig, ModelConfig
from tinylm.errors import CheckpointError, ConfigError
from tinylm.generate import generate
from tinylm.interop import gguf as room
from tinylm.interop.gguf import KINDS, log_probabilities, mean_divergence, verify_gguf, write_gguf
from tinylm.interop.llama_cpp import LlamaCpp, LlamaCppMissing
from tinylm.tokenizer import encode

GQA = ModelConfig(layers=2, width=64, mlp_width=96, heads=8, kv_heads=4, head_size=24, window=128)
SHAPES = {
    "grouped-query, head size not width over heads, theta, epsilon": dataclasses.replace(
        GQA, rope_theta=500_000.0, norm_eps=1e-5
    ),
    "tied": dataclasses.replace(GQA, tied=True, kv_heads=8, policy="reset"),
    "one layer, one key/value head": dataclasses.replace(GQA, layers=1, heads=4, kv_heads=1, head_size=32),
}
SAMPLE = ROOT / "checkpoints" / "sample-nano"

SCRIPTS = (
    (0x0041, 0x005A), (0x00C0, 0x00FF), (0x0100, 0x017F), (0x0391, 0x03C9), (0x0410, 0x044F),
    (0x0531, 0x0556), (0x05D0, 0x05EA), (0x0620, 0x064A), (0x0710, 0x072F), (0x0780, 0x07A5),
    (0x0904, 0x0939), (0x0985, 0x0994), (0x0A05, 0x0A0A), (0x0A85, 0x0A8B), (0x0B05, 0x0B0C),
    (0x0B85, 0x0B8A), (0x0C05, 0x0C0C), (0x0C85, 0x0C8C), (0x0D05, 0x0D0C), (0x0D85, 0x0D96),
    (0x0E01, 0x0E30), (0x0E81, 0x0E84), (0x0F40, 0x0F47), (0x1000, 0x1021), (0x10D0, 0x10F0),
    (0x1200, 0x1248), (0x13A0, 0x13F4), (0x1780, 0x17B3), (0x3041, 0x30FF), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0x1F300, 0x1F64F), (0x10330, 0x1034A), (0x0300, 0x036F), (0x0000, 0x001F),
)  # fmt: skip
HARD = (
    "<|doc|>", "a<|doc|>b", "<|doc|><|doc|>", "\x00\x01\x02", "\x01\x00\x01", "\x00", "\r\n\r\n", " ",
    "   a  ", "\ufeffa", "a\ufeff", "\u2581", "Ġ Ċ Ā", "Āā", "\x7f\x80\x9f", "e\u0301", "\u1112\u1161\u11ab",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1f0\U0001f1f7", "\U0010ffff", "don't, WE'LL; 12345",
    "<s></s><unk><|endoftext|><|im_start|>", "<0x41>", "\ufffd", "a" * 3000, "x\t\t\ty", "?! ., 'm",
)  # fmt: skip


def texts() -> list[str]:
    """500 and more: 14 in each of 35 ranges (scripts, emoji, combining marks, controls), and hard ones."""
    rng = random.Random(0)
    made = list(HARD)
    for first, last in SCRIPTS:
        for _ in range(14):
            letters = [chr(rng.randint(first, last)) for _ in range(rng.randint(1, 30))]
            spaced = [letter + rng.choice(["", "", "", " ", "\n", "  ", "1", "."]) for letter in letters]
            made.append("".join(spaced))
    return made


class InAFolder(unittest.TestCase):
    def setUp(self) -> None:
        if importlib.util.find_spec("gguf") is None:
            self.skipTest("the package gguf is not installed (pip install gguf)")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "model.gguf"

    def write(self, model, kind="f32", name="a name"):
        """Write the file anew; returns its path."""
        self.path.unlink(missing_ok=True)
        write_gguf(model, self.path, kind, name)
        return self.path

    def reader(self):
        import gguf

        return gguf.GGUFReader(self.path)


class TheFile(InAFolder):
    def test_every_tensor_has_gguf_s_own_name_for_it_and_its_values(self) -> None:
        import gguf

        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
        for label, config in SHAPES.items():
            for kind in KINDS:
                with self.subTest(label, kind=kind):
                    model = random_model(config)
                    self.write(model, kind)
                    found = {tensor.name: tensor for tensor in self.reader().tensors}
                    ours = dict(model.named_parameters())
                    expected = {names.get_name(name, (".weight",)): name for name in ours}
                    self.assertEqual(set(found), set(expected))
                    self.assertEqual("output.weight" in found, not config.tied)
                    for name, tensor in found.items():
                        self.assert_held(tensor, ours[expected[name]].numpy(), kind)

    def assert_held(self, tensor, values: np.ndarray, kind: str) -> None:
        import gguf

        held = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
        if values.ndim == 1 or kind == "f32":
            self.assertEqual(tensor.tensor_type.name, "F32")
            np.testing.assert_array_equal(held, values)
        elif kind == "f16":
            np.testing.assert_array_equal(held, values.astype(np.float16).astype(np.float32))
        else:
            self.assertEqual(tensor.tensor_type.name, "Q8_0")
            blocks = np.abs(values).reshape(-1, 32)
            step = blocks.max(axis=1, keepdims=True) / 127
            off = np.abs(held - values).reshape(-1, 32)
            # Half a step, and what the f16 scale (11 bits) moves 127 of them.
            self.assertLessEqual(float((off / step).max()), 0.5 + 127 * 2.0**-11)

    def test_every_preset_is_written_whole_in_every_kind(self) -> None:
        bits = {"f32": 32, "f16": 16, "q8_0": 8.5}
        for name in ("nano", "micro", "mini"):
            model = random_model(PRESETS[name])
            weights = sum(parameter.numel() for parameter in model.parameters())
            for kind in KINDS:
                with self.subTest(name, kind=kind):
                    size = self.write(model, kind).stat().st_size
                    self.assertAlmostEqual(size, weights * bits[kind] / 8, delta=6_000 + 0.03 * size)

    def test_every_key_says_what_the_model_is(self) -> None:
        config = SHAPES["grouped-query, head size not width over heads, theta, epsilon"]
        self.write(random_model(config), "q8_0")
        found = {name: field.contents() for name, field in self.reader().fields.items()}
        expected = {
            "general.architecture": "qwen3",
            "general.type": "model",
            "general.name": "a name",
            "general.file_type": 7,
            "general.quantization_version": 2,
            "qwen3.context_length": 128,
            "qwen3.embedding_length": 64,
            "qwen3.block_count": 2,
            "qwen3.feed_forward_length": 96,
            "qwen3.attention.head_count": 8,
            "qwen3.attention.head_count_kv": 4,
            "qwen3.attention.key_length": 24,
            "qwen3.attention.value_length": 24,
            "qwen3.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
            "qwen3.rope.freq_base": 500_000.0,
            "qwen3.rope.dimension_count": 24,
            "qwen3.vocab_size": 257,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.bos_token_id": 256,
            "tokenizer.ggml.eos_token_id": 256,
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": False,
            "tinylm.tokenizer_version": "utf8-byte-v1",
            "tinylm.vocabulary_size": 257,
            "tinylm.boundary_id": 256,
            "tinylm.vocabulary_sha256": "b558ac388ef62a32f778a3518f9c1087c8a8df060f3b312163f32876f471ed74",
            "tinylm.policy": "cross",
        }
        lists = {f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges")}
        self.assertEqual({n: v for n, v in found.items() if n[:4] != "GGUF" and n not in lists}, expected)
        self.assertEqual(found["tokenizer.ggml.token_type"], [1] * 256 + [5])
        self.write(random_model(SHAPES["tied"]), "f16")
        self.assertEqual(self.reader().fields["tinylm.policy"].contents(), "reset")
        self.assertEqual(self.reader().fields["general.file_type"].contents(), 1)

    def test_tokens_are_gpt_2_s_characters_of_the_bytes_and_no_merge_can_fire(self) -> None:
        self.write(random_model())
        fields = self.reader().fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        known = {0: "Ā", 10: "Ċ", 31: "ğ", 32: "Ġ", 65: "A", 126: "~", 127: "ġ", 160: "ł", 161: "¡", 173: "Ń"}
        self.assertEqual({byte: tokens[byte] for byte in known}, known)
        self.assertEqual(len(set(tokens)), 257)
        self.assertEqual({len(token) for token in tokens[:256]}, {1})
        self.assertEqual(tokens[256:], ["<|doc|>"])
        merges = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"].contents()]
        self.assertEqual(len(merges), 1)  # llama.cpp refuses a tokenizer without
        for left, right in merges:
            self.assertFalse({left, right} <= set(tokens[:256]), "a merge of two bytes would fire")

    def test_equal_models_give_equal_bytes(self) -> None:
        for kind in KINDS:
            first = self.write(random_model(), kind).read_bytes()
            self.assertEqual(self.write(random_model(), kind).read_bytes(), first)
            self.assertNotEqual(self.write(random_model(seed=1), kind).read_bytes(), first)
            self.assertNotEqual(self.write(random_model(), kind, "b name").read_bytes(), first)


class Refusals(InAFolder):
    def refused(self, model, kind="f32") -> str:
        with self.assertRaises(ConfigError) as caught:
            write_gguf(model, self.path, kind, "x")
        self.assertFalse(self.path.exists())
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_weights_that_a_kind_cannot_hold_are_refused_by_name(self) -> None:
        for value, kinds in ((65_520.0, ("f16",)), (1e7, ("f16", "q8_0")), (float("nan"), KINDS)):
            model = random_model()
            model.model.layers[0].mlp.up_proj.weight[3, 4] = value
            for kind in KINDS:
                with self.subTest(value=value, kind=kind):
                    if kind in kinds:
                        self.assertIn("model.layers.0.mlp.up_proj.weight", self.refused(model, kind))
                    else:
                        self.write(model, kind)
                        self.path.unlink()

    def test_the_largest_weights_that_are_accepted_stay_finite(self) -> None:
        import gguf

        for kind in KINDS:
            model = random_model()
            model.model.layers[0].mlp.up_proj.weight[3, 4] = room.LARGEST[kind]
            self.write(model, kind)
            for tensor in self.reader().tensors:
                self.assertTrue(np.isfinite(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).all())

    def test_an_option_outside_the_architecture_is_refused_by_name(self) -> None:
        @dataclasses.dataclass(frozen=True)
        class Wider(ModelConfig):
            soft_cap: float = 15.0

        model = random_model()
        model.config = Wider(**dataclasses.asdict(TINY))
        self.assertRegex(self.refused(model), r"soft_cap is 15\.0.*llama\.cpp")

    def test_an_unknown_kind_is_refused_with_those_that_exist(self) -> None:
        self.assertRegex(self.refused(random_model(), "q4_0"), "f32, f16, q8_0")

    def test_a_file_that_exists_is_left_alone(self) -> None:
        self.path.write_bytes(b"mine")
        with self.assertRaises(FileExistsError):
            write_gguf(random_model(), self.path, "f32", "x")
        self.assertEqual(self.path.read_bytes(), b"mine")

    def test_a_float64_model_is_rounded_and_that_is_said(self) -> None:
        single = self.write(random_model()).read_bytes()
        with self.assertWarnsRegex(UserWarning, "float64.*float32"):
            self.assertEqual(self.write(random_model().double()).read_bytes(), single)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.write(random_model())


class WithoutThePackage(unittest.TestCase):
    def test_a_missing_gguf_is_one_line_that_says_what_to_install(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(sys.modules, {"gguf": None}):
            path = Path(folder) / "x.gguf"
            with self.assertRaisesRegex(ConfigError, r"pip install gguf$"):
                write_gguf(random_model(), path, "f32", "x")
            self.assertFalse(path.exists())


class WithoutLlamaCpp(unittest.TestCase):
    def verified(self, node_modules: Path | None) -> list[str]:
        return verify_gguf(random_model(), Path("none.gguf"), "f32", node_modules)

    def test_a_missing_node_is_said_in_one_line(self) -> None:
        with mock.patch("shutil.which", without_node):
            self.assertRegex(
                " / ".join(self.verified(None)), r"^not verified.*node was not found.*npm install"
            )

    def test_a_missing_package_is_said_in_one_line(self) -> None:
        import shutil

        if shutil.which("node") is None:
            self.skipTest("node is not installed")
        with tempfile.TemporaryDirectory() as folder:
            lines = self.verified(Path(folder))
            self.assertRegex(" / ".join(lines), r"^not verified.*node-llama-cpp was not found.*npm install")
            broken = Path(folder) / "node-llama-cpp"
            broken.mkdir()
            (broken / "package.json").write_text("{}")
            lines = self.verified(Path(folder))
            self.assertRegex(" / ".join(lines), r"^not verified.*does not run here.*npm install")
            self.assertEqual(len(lines), 1)


class WithLlamaCpp(InAFolder):
    def setUp(self) -> None:
        super().setUp()
        self.llama = needs_llama_cpp(self)

    def load(self, model, kind="f32", tokens=128) -> dict:
        self.write(model, kind)
        return self.llama.load(self.path, tokens)


class TheTokenizer(WithLlamaCpp):
    def test_a_text_is_its_bytes_and_comes_back_whatever_it_holds(self) -> None:
        llama = self.llama
        self.load(random_model())
        made = texts()
        self.assertGreaterEqual(len(made), 500)
        for text in made:
            ids = list(text.encode("utf-8"))
            self.assertEqual(llama.tokenize(text), ids, ascii(text))
            self.assertEqual(llama.tokenize(text, special=True), ids, ascii(text))
            self.assertEqual(llama.detokenize(ids), text, ascii(text))

    def test_any_ids_come_back_as_their_bytes_and_the_boundary_as_nothing(self) -> None:
        llama = self.llama
        self.load(random_model())
        rng = random.Random(1)
        for _ in range(100):
            ids = [rng.randrange(256) for _ in range(rng.randint(1, 40))]
            self.assertEqual(llama.detokenize(ids), bytes(ids).decode("utf-8", "replace"))
        self.assertEqual(llama.detokenize([97, 256, 98]), "ab")

    def test_a_text_prompt_begins_with_the_boundary(self) -> None:
        """Asked of llama.cpp's own function, as its programs do: node-llama-cpp adds no special tokens."""
        bins = sorted((NODE_MODULES or ROOT / "node_modules").glob("@node-llama-cpp/linux-x64/bins/*"))
        if not bins or platform.machine() != "x86_64":
            self.skipTest("the libraries are looked for where npm puts those of Linux on x86-64")
        self.write(random_model())
        code = (
            f"from tests.test_interop_gguf import native; print(native({str(bins[0])!r}, {str(self.path)!r}))"
        )
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
        )
        text = list(NATIVE_TEXT.encode())
        self.assertEqual(ran.stdout.strip(), str([[256, *text], [256, *text], [256]]), ran.stderr[-2000:])


NATIVE_TEXT = "a 안<|doc|>\x00\x01"


def native(bins: str, path: str) -> list[list[int]]:
    """What llama_tokenize makes, with add_special, of a text (specials not parsed, then parsed) and of ""."""

    class Parameters(ctypes.Structure):  # larger than llama.cpp's, and as opaque here as it is there
        _fields_ = (("_", ctypes.c_char * 1024),)

    order = ("libggml-base.so", "libggml.v*.so", "libllama.v*.so")
    _, ggml, llama = (
        ctypes.CDLL(str(next(Path(bins).glob(name))), mode=ctypes.RTLD_GLOBAL) for name in order
    )
    ggml.ggml_backend_load_all_from_path(bins.encode())
    llama.llama_model_default_params.restype = Parameters
    llama.llama_model_load_from_file.argtypes = (ctypes.c_char_p, Parameters)
    llama.llama_model_load_from_file.restype = llama.llama_model_get_vocab.restype = ctypes.c_void_p
    llama.llama_model_get_vocab.argtypes = (ctypes.c_void_p,)
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocabulary = llama.llama_model_get_vocab(model)
    found = []
    for text, parse in ((NATIVE_TEXT.encode(), False), (NATIVE_TEXT.encode(), True), (b"", False)):
        ids = (ctypes.c_int32 * 64)()
        count = llama.llama_tokenize(
            ctypes.c_void_p(vocabulary), text, len(text), ids, 64, ctypes.c_bool(True), ctypes.c_bool(parse)
        )
        found.append(list(ids[:count]))
    return found


class Predictions(WithLlamaCpp):
    def test_log_probabilities_agree_and_greedy_ids_differ_only_between_equals(self) -> None:
        rng = random.Random(2)
        models = {label: random_model(config) for label, config in SHAPES.items()}
        models["the sample model"] = load(SAMPLE, device="cpu").transformer
        for label, model in models.items():
            with self.subTest(label):
                llama = self.llama
                self.load(model)
                prompts = [
                    [256, *encode("Return a new 안녕 👍 <|doc|>\n")],
                    [rng.randrange(257) for _ in range(128)],
                    [0],
                ]
                for ids in prompts:
                    ours_TV, theirs_TV = log_probabilities(model, ids), llama.log_probabilities(ids)
                    self.assertEqual(theirs_TV.shape, (len(ids), 257))
                    self.assertLess(float(np.abs(ours_TV - theirs_TV).max()), 1e-4)
                self.assertLessEqual(sum(self.greedy_differs(model, llama, ids[:64]) for ids in prompts), 1)

    def greedy_differs(self, model, llama: LlamaCpp, ids: list[int]) -> bool:
        """Whether greedy ids differ somewhere; fails unless the two ids are equally good there."""
        events = generate(model, ids, GenerateConfig(max_tokens=60, temperature=0.0))
        ours = [token for event in events for token in event.ids]
        theirs = llama.greedy(ids, 60)
        if len(theirs) < 60:
            theirs.append(256)
        place = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None
        )
        if place is None:
            self.assertEqual(len(ours), len(theirs))
            return False
        scores_V = log_probabilities(model, [*ids, *ours[:place]])[-1]
        self.assertLess(abs(scores_V[ours[place]] - scores_V[theirs[place]]), 1e-4)
        return True

    def test_generation_stops_on_the_boundary(self) -> None:
        model = load(SAMPLE, device="cpu")
        prompt = "Deprecated since version 3."
        events = list(model.generate(prompt, max_tokens=50, temperature=0.0))
        self.assertEqual(events[-1].end.reason, "boundary")
        ours = [token for event in events for token in event.ids]
        self.load(model.transformer)
        theirs = self.llama.greedy([256, *encode(prompt)], 50)
        self.assertEqual([*theirs, 256], ours)

    def test_every_preset_runs_in_every_kind(self) -> None:
        allowed = {"f32": 1e-8, "f16": 1e-4, "q8_0": 1e-2}
        ids = [256, *encode("안녕, a")]
        for name, config in ((name, shape) for name, shape in PRESETS.items() if not shape.ngrams):
            model = random_model(config)
            ours_TV = log_probabilities(model, ids)
            for kind in KINDS:
                with self.subTest(name, kind=kind):
                    self.assertEqual(self.load(model, kind, len(ids))["window"], config.window)
                    theirs_TV = self.llama.log_probabilities(ids)
                    self.assertLess(mean_divergence(ours_TV, theirs_TV), allowed[kind])
                    if kind == "f32":
                        self.assertLess(float(np.abs(ours_TV - theirs_TV).max()), 1e-4)


class Starting(WithLlamaCpp):
    def test_a_verification_starts_llama_cpp_and_ends_it(self) -> None:
        model = random_model()
        started = []
        real = LlamaCpp.__init__

        def record(self, node_modules) -> None:
            started.append(self)
            real(self, node_modules)

        with mock.patch.object(LlamaCpp, "__init__", record):
            self.assertEqual(len(verify_gguf(model, self.write(model), "f32", NODE_MODULES)), 4)
        self.assertEqual([type(llama._process.returncode) for llama in started], [int])

    def test_the_package_is_found_where_node_looks(self) -> None:
        if NODE_MODULES is None:
            self.skipTest("needs a folder to point at")
        with mock.patch.dict("os.environ", NODE_PATH=str(NODE_MODULES)):
            LlamaCpp().close()
        with self.assertRaises(LlamaCppMissing):
            LlamaCpp(self.path.parent)


class Verification(WithLlamaCpp):
    """verify_gguf, which starts a process each time: here it gets the one that runs, and does not end it."""

    def setUp(self) -> None:
        super().setUp()
        for change in (
            mock.patch.object(self.llama, "close", lambda: None),
            mock.patch.object(room, "LlamaCpp", lambda node_modules: self.llama),
        ):
            self.enterContext(change)

    def test_the_checks_that_ran_are_named(self) -> None:
        model = load(SAMPLE, device="cpu").transformer
        for kind in KINDS:
            lines = verify_gguf(model, self.write(model, kind), kind, NODE_MODULES)
            self.assertEqual(len(lines), 4)
            self.assertRegex(lines[0], r"^llama\.cpp .* loads it")
            self.assertRegex(lines[2], "65,792 ids after 256 tokens")
            self.assertRegex(lines[3], "of 64 greedy ids 64 are")

    def test_a_file_of_other_weights_is_refused(self) -> None:
        self.write(random_model(seed=1))
        for kind in ("f32", "q8_0"):
            with self.assertRaisesRegex(CheckpointError, "predicts otherwise than this model"):
                verify_gguf(random_model(), self.path, kind, NODE_MODULES)

    def test_a_tokenizer_that_changes_a_text_is_refused(self) -> None:
        with mock.patch.object(room, "UNUSED", 3):  # CONTROL
            self.write(random_model())
        with self.assertRaisesRegex(CheckpointError, r"<\|doc\|>.*not its bytes"):
            verify_gguf(random_model(), self.path, "f32", NODE_MODULES)

    def test_a_merge_of_two_bytes_is_noticed(self) -> None:
        with mock.patch.object(room, "MERGES", ["Ā ā"]):
            self.write(random_model())
        with self.assertRaisesRegex(CheckpointError, r"x00.x01.*not its bytes"):
            verify_gguf(random_model(), self.path, "f32", NODE_MODULES)

    def test_a_file_that_was_cut_is_refused(self) -> None:
        whole = self.write(random_model()).read_bytes()
        self.path.write_bytes(whole[: len(whole) // 2])
        with self.assertRaisesRegex(CheckpointError, "does not load it"):
            verify_gguf(random_model(), self.path, "f32", NODE_MODULES)

    def test_the_smallest_window_can_be_verified(self) -> None:
        model = random_model(dataclasses.replace(TINY, window=2))
        self.assertEqual(len(verify_gguf(model, self.write(model), "f32", NODE_MODULES)), 4)

    def test_a_float64_model_is_verified_as_what_the_file_holds(self) -> None:
        model = random_model().double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.write(model)
        self.assertEqual(len(verify_gguf(model, self.path, "f32", NODE_MODULES)), 4)
        self.assertEqual(next(model.parameters()).dtype, torch.float64)


if __name__ == "__main__":
    unittest.main()
