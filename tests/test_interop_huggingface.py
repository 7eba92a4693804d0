"""Hugging Face: what an export holds, what transformers makes of it, what may come back and what may not."""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import safetensors
import safetensors.torch
import torch

from tests.interop_support import SHAPES, SMALL, content, need, random_model, tensors_of
from tinylm import checkpoint, contract, files, interop
from tinylm.config import POLICIES, ModelConfig
from tinylm.corpus import open_corpus
from tinylm.errors import CheckpointError, ConfigError, TinylmError
from tinylm.interop import huggingface, huggingface_verify, shape
from tinylm.interop.card import Origin, model_card, origin_of
from tinylm.interop.huggingface import import_huggingface, verify_huggingface, write_huggingface
from tinylm.interop.huggingface_tokenizer import byte_characters, vocabulary
from tinylm.language_model import load
from tinylm.tokenizer import encode
from tinylm.trainer import resume

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "checkpoints" / "sample-nano"
NAMES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.model = random_model(SMALL)

    def exported(self, model=None, name: str = "exported") -> Path:
        folder = self.folder / name
        write_huggingface(model or self.model, folder)
        return folder

    def edit(self, folder: Path, name: str, change) -> None:
        """Apply `change` to the parsed JSON of a file."""
        path = folder / name
        value = json.loads(path.read_bytes())
        change(value)
        path.write_bytes(json.dumps(value).encode())

    def write_tensors(self, path: Path, tensors: dict) -> None:
        path.write_bytes(safetensors.torch.save(tensors, {"format": "pt"}))

    def assert_equal_models(self, found, expected):
        self.assertEqual(found.config, expected.config)
        here, there = tensors_of(found), tensors_of(expected)
        self.assertEqual(list(here), list(there))
        for name, tensor in there.items():
            self.assertEqual(here[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(here[name], tensor), name)


@dataclass(frozen=True)
class FutureConfig(ModelConfig):
    soft_cap: float = field(default=0.0)


class TestShape(Case):
    def test_every_option_of_a_model_has_a_place_or_is_known_to_have_none(self):
        names = {option.name for option in dataclasses.fields(ModelConfig)}
        self.assertEqual(names, {*shape.PLACES, *shape.ABSENT})
        self.assertEqual(set(shape.PLACES) & set(shape.ABSENT), set())

    def test_an_option_that_nobody_has_placed_is_refused_by_name(self):
        config = FutureConfig(**vars(SMALL))
        with self.assertRaisesRegex(ConfigError, "soft_cap is 0.0.*no place.*transformers"):
            write_huggingface(random_model(config), self.folder / "out")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_an_option_beyond_qwen3_is_refused_unless_it_is_off(self):
        with mock.patch.object(shape, "ABSENT", {**shape.ABSENT, "soft_cap": 0.0}):
            shape.check_qwen3_shape(FutureConfig(**vars(SMALL)), "llama.cpp")
            with self.assertRaisesRegex(ConfigError, r"soft_cap is 15.0.*expected 0.0.*llama\.cpp"):
                shape.check_qwen3_shape(FutureConfig(**vars(SMALL), soft_cap=15.0), "llama.cpp")


class TestFiles(Case):
    def test_equal_models_give_equal_bytes_in_another_process(self):
        code = (
            "import sys, hashlib, pathlib; sys.path.insert(0, '.')\n"
            "from tests.interop_support import *\nfrom tinylm.interop.huggingface import write_huggingface\n"
            "folder = pathlib.Path(sys.argv[1]); write_huggingface(random_model(SMALL), folder)\n"
        )
        subprocess.run([sys.executable, "-c", code, str(self.folder / "there")], cwd=ROOT, check=True)
        self.assertEqual(sorted(content(self.folder / "there")), NAMES)
        self.assertEqual(content(self.folder / "there"), content(self.exported()))

    def test_the_header_stands_in_fixed_order(self):
        data = (self.exported() / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        self.assertEqual(size % 8, 0)
        header = json.loads(data[8 : 8 + size])
        self.assertEqual(list(header), ["__metadata__", *tensors_of(self.model)])
        self.assertEqual(list(header["__metadata__"]), ["format", "tinylm"])
        self.assertEqual(header["__metadata__"]["format"], "pt")
        offsets = [header[name]["data_offsets"] for name in list(header)[1:]]
        self.assertEqual([0, *(end for _, end in offsets)][:-1], [start for start, _ in offsets])

    def test_the_library_reads_the_same_tensors(self):
        for name, config in SHAPES.items():
            with self.subTest(name):
                model = random_model(config)
                path = self.exported(model, name) / "model.safetensors"
                found = safetensors.torch.load_file(path)
                self.assertEqual("lm_head.weight" in found, not config.tied)
                self.assertEqual(set(found), set(tensors_of(model)))
                for key, tensor in tensors_of(model).items():
                    self.assertTrue(torch.equal(found[key], tensor), key)
                with safetensors.safe_open(path, "pt") as file:
                    self.assertEqual(file.metadata()["format"], "pt")

    def test_the_config_names_every_value(self):
        model = random_model(SHAPES["other numbers"])
        found = json.loads((self.exported(model) / "config.json").read_bytes())
        expected = {
            "model_type": "qwen3",
            "vocab_size": 257,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 16,
            "max_position_embeddings": 33,
            "rms_norm_eps": 1e-4,
            "rope_theta": 5e5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "attention_bias": False,
            "bos_token_id": 256,
            "eos_token_id": 256,
            "dtype": "float32",
            "torch_dtype": "float32",
            "tinylm": {"format": 1, "policy": "reset", "contract": contract.contract()},
        }
        self.assertEqual({name: found.get(name) for name in expected}, expected)

    def test_the_tokenizer_has_257_entries_and_no_way_from_text_to_the_boundary(self):
        folder = self.exported()
        found = json.loads((folder / "tokenizer.json").read_bytes())
        self.assertEqual(len(found["model"]["vocab"]), 257)
        by_hand = {"Ā": 0, "Ċ": 10, "Ġ": 32, "!": 33, "~": 126, "ġ": 127, "ł": 160, "¡": 161, "Ń": 173}
        for text, id in {**by_hand, "®": 174, "ÿ": 255, "<|doc|>": 256}.items():
            self.assertEqual(found["model"]["vocab"][text], id, text)
        self.assertEqual(found["added_tokens"], [])
        self.assertEqual(found["model"]["merges"], [])
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self.assertEqual((settings["eos_token"], settings["split_special_tokens"]), ("<|doc|>", True))

    def test_an_export_is_a_checkpoint_of_tinylm_too(self):
        folder = self.exported()
        self.assert_equal_models(load(folder, device="cpu").transformer, self.model)

    def test_float64_stays_float64(self):
        model = self.model.double()
        with torch.no_grad():
            model.model.norm.weight.fill_(1 / 3)
        self.assert_equal_models(import_huggingface(self.exported(model)), model)


EVALUATION = {
    "bits_per_byte": 1.81923,
    "bits_per_byte_without_boundaries": 1.8,
    "bits_per_boundary": 7.25,
    "bytes": 12345,
    "boundaries": 67,
    "protocol": "disjoint",
}


class TestCard(Case):
    def test_it_quotes_what_the_run_recorded_for_this_step(self):
        run = self.folder / "letters"
        run.mkdir()
        manifest = {"config": {"steps": 20}, "corpus": "c" * 64}
        step = checkpoint.save_step(run, 10, self.model, {}, manifest)
        rows = [{"step": 10, "loss": 2.0}, {"step": 10, "validation": EVALUATION}]
        rows += [{"step": 20, "validation": {**EVALUATION, "bits_per_byte": 9.0}}]
        (run / "metrics.jsonl").write_bytes(b"".join(files.canonical_json(row) + b"\n" for row in rows))
        card = model_card(SMALL, origin_of(checkpoint.find(step)))
        for part in ("# letters", "1.8192", "7.2500", "12,345 and 67", "disjoint", "c" * 64, "step 10 of 20"):
            self.assertIn(part, card)
        for absent in ("9.0", "not recorded"):
            self.assertNotIn(absent, card)

    def test_it_holds_the_contract_and_the_shape(self):
        card = model_card(SMALL, Origin())
        for value in contract.contract().values():
            self.assertIn(str(value), card)
        for part in ("2 x 64", "4, 4; 16", "48 tokens", "untied", "`cross`"):
            self.assertIn(part, card)

    def test_it_knows_every_policy(self):
        for policy in POLICIES:
            card = model_card(dataclasses.replace(SMALL, policy=policy), Origin())
            self.assertRegex(card, rf"`{policy}`: \w")

    def test_it_says_so_where_nothing_was_recorded(self):
        card = model_card(SMALL, origin_of(checkpoint.find(SAMPLE)))
        self.assertIn("# sample-nano", card)
        self.assertIn("not recorded", card)
        self.assertNotIn("| bits per byte |", card)

    def test_a_damaged_log_is_refused_by_its_line(self):
        run = self.folder / "run"
        run.mkdir()
        checkpoint.save_step(run, 1, self.model, {}, {"config": {"steps": 1}})
        (run / "metrics.jsonl").write_bytes(b'{"step":1}\n[]\n')
        with self.assertRaisesRegex(CheckpointError, r"metrics\.jsonl"):
            origin_of(checkpoint.find(run))
        (run / "metrics.jsonl").write_bytes(b'{"step":1}\n{"st\n')
        with self.assertRaisesRegex(CheckpointError, r"metrics\.jsonl:2"):
            origin_of(checkpoint.find(run))

    def test_an_evaluation_made_for_it_comes_with_its_text(self):
        folder = self.folder / "out"
        (self.folder / "texts.txt").write_text("a kettle, and another kettle. " * 200, encoding="utf-8")
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        result = interop.export(SAMPLE, "huggingface", folder, data="texts.txt")
        card = (folder / "README.md").read_text("utf-8")
        self.assertIn(f"{result.evaluation.bits_per_byte:.4f}", card)
        self.assertIn(result.evaluation.split_digest, card)
        self.assertIn(open_corpus("corpora/texts").digest, card)
        self.assertIn("disjoint, window 256, policy cross", card)


def saved_by_transformers_5(config: dict) -> None:
    """What transformers 5.24 makes of our config.json."""
    for name in ("rope_theta", "rope_scaling", "torch_dtype"):
        del config[name]
    config["transformers_version"] = "5.24.0"


def saved_by_transformers_4(config: dict) -> None:
    """What transformers 4.57 makes of our config.json; a trainer drops the beginning of text."""
    for name in ("pad_token_id", "torch_dtype", "rope_parameters"):
        del config[name]
    config.update(transformers_version="4.57.6", bos_token_id=None, eos_token_id=[256])


class TestImport(Case):
    def refused(self, folder: Path, *parts: str) -> None:
        with self.assertRaises(TinylmError) as caught:
            import_huggingface(folder)
        for part in (str(folder), *parts):
            self.assertIn(part, str(caught.exception))

    def test_an_export_comes_back_equal(self):
        for name, config in SHAPES.items():
            with self.subTest(name):
                model = random_model(config)
                self.assert_equal_models(import_huggingface(self.exported(model, name)), model)

    def test_the_forms_that_transformers_saves_are_read(self):
        for change in (saved_by_transformers_4, saved_by_transformers_5):
            folder = self.exported(name=change.__name__)
            self.edit(folder, "config.json", change)
            self.edit(
                folder, "tokenizer_config.json", lambda it: it.update(tokenizer_class="TokenizersBackend")
            )
            self.edit(
                folder,
                "tokenizer.json",
                lambda it: it.update(
                    added_tokens=[{"id": 256, "content": "<|doc|>", "special": True}],
                    post_processor={"type": "TemplateProcessing", "special_tokens": {}},
                ),
            )
            self.write_tensors(folder / "model.safetensors", tensors_of(self.model))
            self.assert_equal_models(import_huggingface(folder), self.model)

    def test_shards_are_read_and_must_hold_what_the_index_lists(self):
        folder = self.exported()
        (folder / "model.safetensors").unlink()
        tensors = tensors_of(self.model)
        shards = [dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:])]
        names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        for name, shard in zip(names, shards, strict=True):
            self.write_tensors(folder / name, shard)
        listed = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": listed}))
        self.assert_equal_models(import_huggingface(folder), self.model)
        (folder / "model.safetensors").write_bytes(b"")
        self.refused(folder, "model.safetensors", "index.json", "out of date")
        (folder / "model.safetensors").unlink()
        index.write_text(json.dumps({"weight_map": {**listed, "lm_head.weight": names[0]}}))
        self.refused(folder, names[0], "lm_head.weight")
        index.write_text(json.dumps({"weight_map": {**listed, "lm_head.weight": "../" + names[0]}}))
        self.refused(folder, "'../model-00001")
        index.write_text(json.dumps({"weight_map": [1]}))
        self.refused(folder, "weight_map")
        index.write_text(json.dumps({"weight_map": listed}))
        (folder / names[1]).unlink()
        self.refused(folder, names[1], "does not exist")

    def test_half_precision_becomes_float32_and_is_said(self):
        for dtype in (torch.bfloat16, torch.float16):
            folder = self.exported(name=str(dtype))
            halves = {name: tensor.to(dtype) for name, tensor in tensors_of(self.model).items()}
            self.write_tensors(folder / "model.safetensors", halves)
            found = interop.import_model(folder, self.folder / f"run-{dtype}")
            self.assertIn(f"{str(dtype).removeprefix('torch.')} weights become float32", found.notes[0])
            for name, tensor in tensors_of(found.model).items():
                self.assertTrue(torch.equal(tensor, halves[name].float()), name)

    def test_tied_and_untied_heads_are_what_the_config_says(self):
        tied = random_model(SHAPES["tied"])
        folder = self.exported(tied)
        tensors = tensors_of(tied)
        repeated = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        self.write_tensors(folder / "model.safetensors", repeated)
        self.assert_equal_models(import_huggingface(folder), tied)
        self.edit(folder, "config.json", lambda it: it.update(tie_word_embeddings=False))
        self.assertIsNotNone(import_huggingface(folder).lm_head)
        repeated["lm_head.weight"][0, 0] += 1
        self.write_tensors(folder / "model.safetensors", repeated)
        self.edit(folder, "config.json", lambda it: it.update(tie_word_embeddings=True))
        self.refused(folder, "tie_word_embeddings", "lm_head.weight")
        self.write_tensors(folder / "model.safetensors", tensors)
        self.edit(folder, "config.json", lambda it: it.update(tie_word_embeddings=False))
        self.refused(folder, "lm_head.weight is missing")

    def test_other_configs_are_refused_by_name(self):
        cases = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": 320,
            "hidden_act": "gelu",
            "eos_token_id": 2,
            "bos_token_id": 1,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 128,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
            "rope_theta": 20000.0,
            "partial_rotary_factor": 0.5,
            "quantization_config": {"quant_method": "gptq"},
            "auto_map": {"AutoModelForCausalLM": "code.Model"},
            "hidden_size": 64.0,
            "num_hidden_layers": True,
            "num_key_value_heads": 3,
            "head_dim": None,
            "rms_norm_eps": -1.0,
            "max_position_embeddings": 1,
            "tie_word_embeddings": "no",
        }
        folder = self.exported()
        for name, value in cases.items():
            with self.subTest(name):
                before = (folder / "config.json").read_bytes()
                self.edit(folder, "config.json", lambda it, name=name, value=value: it.update({name: value}))
                self.refused(folder, "config.json", name)
                (folder / "config.json").write_bytes(before)
        self.assert_equal_models(import_huggingface(folder), self.model)

    def test_a_value_that_is_missing_is_not_guessed(self):
        folder = self.exported()
        before = (folder / "config.json").read_bytes()
        whole = json.loads(before)
        required = [place for place in shape.PLACES.values() if place in whole and place != "rope_theta"]
        for name in (*required, "architectures", "model_type", "vocab_size", "hidden_act", "eos_token_id"):
            self.edit(folder, "config.json", lambda it, name=name: it.pop(name))
            self.refused(folder, "config.json", name)
            (folder / "config.json").write_bytes(before)
        self.edit(folder, "config.json", lambda it: (it.pop("rope_theta"), it.pop("rope_parameters")))
        self.refused(folder, "rope_theta is missing")
        (folder / "config.json").write_bytes(before)
        self.edit(folder, "config.json", lambda it: it["tinylm"].pop("policy"))
        self.refused(folder, "tinylm.policy is missing")

    def test_another_contract_is_refused_wherever_it_stands(self):
        folder = self.exported()
        before = (folder / "config.json").read_bytes()
        for change, part in (
            (lambda it: it.pop("tinylm"), "holds no tokenizer contract"),
            (lambda it: it.update(tinylm={}), "holds no tokenizer contract"),
            (lambda it: it.update(tinylm=[1]), "holds no tokenizer contract"),
            (lambda it: it["tinylm"]["contract"].update(boundary_id=0), "expected 256, found 0"),
            (lambda it: it["tinylm"]["contract"].pop("vocabulary_sha256"), "vocabulary_sha256"),
            (lambda it: it["tinylm"].update(format=2), "format is 2"),
            (lambda it: it["tinylm"].update(policy="none"), "policy is 'none'"),
            (lambda it: it["tinylm"].update(more=1), "tinylm.more"),
        ):
            self.edit(folder, "config.json", change)
            self.refused(folder, "config.json", part)
            (folder / "config.json").write_bytes(before)
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes().replace(b'id\\":256', b'id\\":255'))
        self.refused(folder, "model.safetensors", "expected 256, found 255")

    def test_other_tokenizers_are_refused_by_name(self):
        folder = self.exported()
        before = (folder / "tokenizer.json").read_bytes()
        for change, part in (
            (lambda it: it["model"]["vocab"].pop("Ġ"), "entry 'Ġ' is None, expected 32"),
            (lambda it: it["model"]["vocab"].update({"<|doc|>": 0}), "entry '<|doc|>' is 0, expected 256"),
            (lambda it: it["model"]["vocab"].update({"the": 257}), "entry 'the' (257) is not expected"),
            (lambda it: it["model"].update(merges=["t h"]), "merges"),
            (lambda it: it["model"].update(type="Unigram"), "Unigram"),
            (lambda it: it.update(normalizer={"type": "NFC"}), "normalizer"),
            (lambda it: it.update(added_tokens=[{"id": 257, "content": "<pad>"}]), "<pad>"),
            (lambda it: it["pre_tokenizer"].update(add_prefix_space=True), "add_prefix_space"),
            (lambda it: it.update(decoder=None), "decoder"),
            (lambda it: it.update(model=None), "no tokenizer model"),
            (
                lambda it: it.update(
                    post_processor={"type": "TemplateProcessing", "special_tokens": {"a": 1}}
                ),
                "post_processor",
            ),
        ):
            self.edit(folder, "tokenizer.json", change)
            self.refused(folder, "tokenizer.json", part)
            (folder / "tokenizer.json").write_bytes(before)
        self.edit(folder, "tokenizer_config.json", lambda it: it.update(split_special_tokens=False))
        self.refused(folder, "tokenizer_config.json", "split_special_tokens")

    def test_other_tensors_are_refused_by_name(self):
        folder = self.exported()
        embedding = "model.embed_tokens.weight"
        for change, part in (
            (lambda it: it.pop("model.norm.weight"), "model.norm.weight is missing"),
            (lambda it: it.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}), "q_proj.bias"),
            (lambda it: it.update({embedding: torch.zeros(256, 64)}), "[256, 64]"),
            (lambda it: it.update({embedding: torch.full((257, 64), torch.nan)}), "not finite"),
            (lambda it: it.update({embedding: torch.zeros(257, 64, dtype=torch.int8)}), "int8"),
            (lambda it: it.update({embedding: torch.zeros(257, 64, dtype=torch.float64)}), "float64"),
            (lambda it: it.update({f"_orig_mod.{embedding}": it.pop(embedding)}), "_orig_mod."),
            (lambda it: it.update({f"module.{embedding}": it.pop(embedding)}), "module."),
        ):
            tensors = tensors_of(self.model)
            change(tensors)
            self.write_tensors(folder / "model.safetensors", tensors)
            self.refused(folder, part)

    def test_damaged_and_ambiguous_files_are_refused_with_their_path(self):
        folder = self.exported()
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
            path = folder / name
            whole = path.read_bytes()
            for damaged in (b"", whole[: len(whole) // 2], whole[:-3], b"[]", b"\xff" + whole):
                path.write_bytes(damaged)
                self.refused(folder, name)
            path.write_bytes(whole)
        path = folder / "config.json"
        path.write_bytes(whole_config := path.read_bytes().replace(b"{", b'{"vocab_size": 320,', 1))
        self.assertIn(b'"vocab_size": 257', whole_config)
        self.refused(folder, "config.json", "twice")

    def test_folders_of_another_kind_say_what_is_expected(self):
        self.refused(self.folder / "nowhere", "does not exist")
        (self.folder / "file").write_bytes(b"")
        self.refused(self.folder / "file", "is not a folder")
        (self.folder / "empty").mkdir()
        self.refused(self.folder / "empty", "config.json", "does not exist")
        folder = self.exported()
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refused(folder, "pytorch_model.bin", "pickle")
        (folder / "tokenizer.json").unlink()
        self.refused(folder, "tokenizer.json", "tokenizer.save_pretrained")
        (folder / "adapter_config.json").write_bytes(b"{}")
        self.refused(folder, "adapter", "merge_and_unload")

    def test_keys_that_fine_tuning_adds_are_named_and_not_used(self):
        folder = self.exported()
        self.edit(folder, "config.json", lambda it: it.update(unsloth_version="1", use_cache=False))
        found = interop.import_model(folder, self.folder / "run")
        self.assertEqual(len(found.notes), 1)
        self.assertTrue(found.notes[0].endswith("not used: unsloth_version"), found.notes)


class TestRun(Case):
    def test_an_import_is_a_run_that_verifies_and_says_why_it_cannot_be_resumed(self):
        folder = self.exported()
        result = interop.import_model(folder, self.folder / "runs" / "tuned")
        self.assertEqual(sorted(path.name for path in result.run.iterdir()), ["run.json", "step-00000000"])
        found = checkpoint.find(result.run)
        self.assertEqual(found.manifest["step"], 0)
        self.assertEqual(
            sorted(found.manifest["imported"]["files"]), sorted(set(NAMES) - {NAMES[0], NAMES[2]})
        )
        self.assert_equal_models(checkpoint.load_model(result.run), self.model)
        with self.assertRaisesRegex(CheckpointError, "was imported.*--init"):
            resume(result.run)
        again = interop.import_model(folder, self.folder / "again").run
        self.assertEqual(content(again / "step-00000000"), content(result.run / "step-00000000"))
        back = interop.export(result.run, "huggingface", self.folder / "back").path
        self.assertEqual(
            (back / "model.safetensors").read_bytes(), (folder / "model.safetensors").read_bytes()
        )
        self.assertIn("were imported", (back / "README.md").read_text("utf-8"))

    def test_an_existing_place_is_refused_and_a_failure_leaves_nothing(self):
        folder = self.exported()
        before = sorted(self.folder.iterdir())
        with self.assertRaisesRegex(ConfigError, "exists"):
            interop.import_model(folder, folder)
        real = files.write_pieces
        for call in range(1, 5):
            calls = iter(range(1, 99))

            def failing(path, data, call=call, calls=calls):
                if next(calls) == call:
                    raise OSError(28, "No space left on device", str(path))
                return real(path, data)

            with mock.patch("tinylm.files.write_pieces", failing), self.assertRaises(OSError):
                interop.import_model(folder, self.folder / "deep" / "run")
            self.assertEqual(sorted(self.folder.iterdir()), before)


class TestExport(Case):
    def setUp(self):
        super().setUp()
        self.source = self.folder / "model.safetensors"
        checkpoint.save_model(self.source, self.model)

    def leaves_nothing(self, error: type, message: str, *arguments: str) -> None:
        before = sorted(self.folder.rglob("*"))
        with self.assertRaisesRegex(error, message):
            interop.export(*arguments)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_what_does_not_verify_is_never_given_its_name(self):
        def disagrees(model, folder):
            self.assertEqual(sorted(content(folder)), NAMES)
            self.assertTrue(folder.name.startswith(".tmp-"))
            raise CheckpointError("the other program: logits differ by 3")

        out = self.folder / "deep" / "out"
        with mock.patch.object(huggingface, "verify_huggingface", disagrees):
            self.leaves_nothing(CheckpointError, "logits differ", self.source, "huggingface", out)

    def test_a_failed_or_interrupted_write_leaves_nothing(self):
        real = files.write_new
        problems = (
            OSError(28, "No space left on device"),
            KeyboardInterrupt("stopped"),
            SystemExit("stopped"),
        )
        for call in range(1, 7):
            for problem in problems if call == 2 else problems[:1]:
                calls = iter(range(1, 99))

                def failing(path, data, call=call, calls=calls, problem=problem):
                    if next(calls) == call:
                        raise problem
                    return real(path, data)

                with mock.patch("tinylm.files.write_new", failing):
                    self.leaves_nothing(
                        type(problem), "space|stopped", self.source, "huggingface", self.folder / "o"
                    )

    def test_places_that_exist_or_hold_no_checkpoint_are_refused(self):
        (self.folder / "there").mkdir()
        self.leaves_nothing(
            ConfigError, "there, which exists", self.source, "huggingface", self.folder / "there"
        )
        (self.folder / "link").symlink_to(self.folder / "nowhere")
        self.leaves_nothing(
            ConfigError, "link, which exists", self.source, "huggingface", self.folder / "link"
        )
        out = self.folder / "out"
        self.leaves_nothing(CheckpointError, "nowhere.*expected", self.folder / "nowhere", "huggingface", out)
        self.leaves_nothing(ConfigError, "to is 'onnx'", self.source, "onnx", out)
        self.source.write_bytes(self.source.read_bytes()[:-1])
        self.leaves_nothing(CheckpointError, "cut or extended", self.source, "huggingface", out)

    def test_options_that_do_not_go_together_are_refused(self):
        out = self.folder / "out"
        with self.assertRaisesRegex(ConfigError, "only gguf has kinds"):
            interop.export(self.source, "huggingface", out, kind="f16")
        with self.assertRaisesRegex(ConfigError, r"kind is 'q4'.*data is 'texts', and a gguf"):
            interop.export(self.source, "gguf", out, kind="q4", data="texts")

    def test_what_was_not_checked_is_said_with_what_to_install(self):
        real = importlib.util.find_spec
        absent = {"transformers", "tokenizers"}

        def find(name, *rest):
            return None if name in absent else real(name, *rest)

        with mock.patch("importlib.util.find_spec", find):
            result = interop.export(self.source, "huggingface", self.folder / "out")
        self.assertEqual(len(result.checks), 1)
        self.assertRegex(result.checks[0], "^nothing was checked: .*pip install")


def probe_texts() -> list[str]:
    """More than 500 texts: 30 scripts, controls, emoji, the boundary's name, the samples."""
    scripts: dict[str, list[str]] = {}
    for code in range(0x250, 0x30000):
        first = unicodedata.ucd_3_2_0.name(chr(code), "").split(" ")[0]
        if first.isalpha() and unicodedata.category(chr(code))[0] in "LMN":
            scripts.setdefault(first, []).append(chr(code))
    large = sorted(name for name, characters in scripts.items() if len(characters) >= 25)
    draw = random.Random(0)
    texts = []
    for name in large:
        for _ in range(14):
            letters = draw.choices([*scripts[name], " ", " "], k=draw.randint(1, 40))
            texts.append("".join(letters))
    assert len(large) >= 30, large
    controls = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA1))]
    texts += [f"{mark}a {mark}{mark} b{mark}" for mark in controls]
    emoji = ["😀", "👍🏽", "👩‍🚀", "🏳️‍🌈", "🇯🇵", "1️⃣", "\U0001f9ff"]
    texts += ["".join(draw.choices([*emoji, " ", "<|doc|>", "é", "e\u0301"], k=12)) for _ in range(30)]
    texts += [f"{a}<|doc|>{b}" for a in ("", " ", "\n", "안") for b in ("", " ", "x", "<|doc|>")]
    samples = sorted((ROOT / "corpora" / "samples").glob("*.txt"))
    return texts + [path.read_bytes().decode("utf-8") for path in samples]


class TestTokenizers(Case):
    """The file tokenizer.json in the real `tokenizers`."""

    def setUp(self):
        need(self, "tokenizers")
        super().setUp()
        self.library = importlib.import_module("tokenizers")
        self.tokenizer = self.library.Tokenizer.from_file(str(self.exported() / "tokenizer.json"))

    def test_the_alphabet_is_the_library_s_own(self):
        self.assertEqual(set(byte_characters()), set(self.library.pre_tokenizers.ByteLevel.alphabet()))
        self.assertEqual(self.tokenizer.get_vocab(), vocabulary())

    def test_the_ids_of_a_text_are_its_bytes(self):
        texts = probe_texts()
        self.assertGreater(len(texts), 500)
        for text, found in zip(texts, self.tokenizer.encode_batch(texts), strict=True):
            self.assertEqual(found.ids, list(encode(text)), repr(text))
            self.assertEqual(self.tokenizer.decode(found.ids), text)

    def test_random_bytes_decode_as_python_decodes_them(self):
        draw = random.Random(1)
        for _ in range(500):
            ids = draw.choices(range(256), k=draw.randint(0, 40))
            self.assertEqual(self.tokenizer.decode(ids), bytes(ids).decode("utf-8", "replace"))
        for id in range(257):
            self.assertEqual(self.tokenizer.token_to_id(self.tokenizer.id_to_token(id)), id)


class TestTransformers(Case):
    """Exports in the real transformers, of whichever version is installed."""

    def setUp(self):
        need(self, "transformers", "tokenizers")
        super().setUp()
        self.library = importlib.import_module("transformers")
        logging = self.library.utils.logging
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.dtype = "dtype" if self.library.__version__.startswith("5") else "torch_dtype"

    def loaded(self, folder: Path, dtype="auto"):
        other = self.library.AutoModelForCausalLM.from_pretrained(folder, **{self.dtype: dtype})
        return other.eval()

    def save(self, folder: Path, other, name: str = "saved", **options) -> Path:
        out = self.folder / name
        other.save_pretrained(out, **options)
        self.library.AutoTokenizer.from_pretrained(folder).save_pretrained(out)
        return out

    def test_every_shape_gives_the_same_logits_and_comes_back_equal(self):
        for name, config in SHAPES.items():
            with self.subTest(name), torch.inference_mode():
                model = random_model(config)
                folder = self.exported(model, name)
                other, loading = self.library.AutoModelForCausalLM.from_pretrained(
                    folder, output_loading_info=True
                )
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertEqual(list(loading[kind]), [], kind)
                ids_BT = huggingface_verify.fixed_ids(3, config.window)
                ours, theirs = model(ids_BT), other.eval()(ids_BT).logits
                self.assertGreater(float(ours.std()), 0.5)
                self.assertLess(float((ours - theirs).abs().max()), 1e-4)
                back = import_huggingface(self.save(folder, other, f"{name} saved"))
                self.assert_equal_models(back, model)

    def test_sharded_and_half_precision_saves_come_back(self):
        folder = self.exported()
        other = self.loaded(folder)
        sharded = self.save(folder, other, "sharded", max_shard_size="100KB")
        self.assertFalse((sharded / "model.safetensors").exists())
        self.assert_equal_models(import_huggingface(sharded), self.model)
        halves = import_huggingface(self.save(folder, other.to(torch.bfloat16), "halves"))
        for name, tensor in tensors_of(halves).items():
            self.assertTrue(torch.equal(tensor, tensors_of(self.model)[name].bfloat16().float()), name)

    def test_a_model_that_was_tuned_there_computes_the_same_here(self):
        for name in ("tied", "untied"):
            folder = self.exported(random_model(SHAPES[name]), name)
            other = self.loaded(folder).train()
            ids_BT = huggingface_verify.fixed_ids(2, 30)
            optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
            other(ids_BT, labels=ids_BT).loss.backward()
            optimizer.step()
            run = interop.import_model(
                self.save(folder, other, f"{name} tuned"), self.folder / f"{name} run"
            ).run
            found = checkpoint.load_model(run)
            with torch.inference_mode():
                ours, theirs = found(ids_BT), other.eval()(ids_BT).logits
                before = random_model(SHAPES[name])(ids_BT)
            self.assertLess(float((ours - theirs).abs().max()), 1e-4)
            self.assertGreater(float((ours - before).abs().max()), 1e-2)

    def test_greedy_ids_are_equal_in_float64(self):
        for name in ("untied", "tied", "grouped query", "sample-nano"):
            with self.subTest(name):
                model = checkpoint.load_model(SAMPLE) if name == "sample-nano" else random_model(SHAPES[name])
                model = model.double().requires_grad_(False)
                folder = self.folder / name
                write_huggingface(model, folder)
                other = self.loaded(folder)
                self.assertEqual(other.dtype, torch.float64)
                for prompt in ((256,), (256, *encode("Return the ")), (65, 256, 66)):
                    room = model.config.window - len(prompt)
                    ids_BT = torch.tensor([prompt])
                    out_BT = other.generate(
                        ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=room, do_sample=False
                    )
                    written = out_BT[0, len(prompt) :].tolist()
                    with torch.inference_mode():
                        best_T = model(out_BT)[0, len(prompt) - 1 : -1].argmax(-1)
                    self.assertEqual(written, best_T.tolist())
                    self.assertTrue(len(written) == room or written[-1] == 256)
                    self.assertNotIn(256, written[:-1])

    def test_the_tokenizer_gives_bytes_and_never_the_boundary(self):
        folder = self.exported()
        for place in (folder, self.save(folder, self.loaded(folder))):
            tokenizer = self.library.AutoTokenizer.from_pretrained(place)
            texts = probe_texts()
            for text, ids in zip(texts, tokenizer(texts)["input_ids"], strict=True):
                self.assertEqual(ids, list(encode(text)), repr(text))
                self.assertEqual(tokenizer.decode(ids), text)
                self.assertEqual(tokenizer.decode([256, *ids, 256], skip_special_tokens=True), text)
            self.assertEqual(tokenizer("<|doc|>")["input_ids"], [60, 124, 100, 111, 99, 124, 62])
            self.assertEqual(tokenizer.eos_token_id, 256)
            self.assertNotIn("token_type_ids", tokenizer("a"))

    def test_generation_needs_no_more_than_the_folder(self):
        folder = self.exported()
        other = self.loaded(folder)
        torch.manual_seed(0)
        out = other.generate()  # from the boundary, to a boundary or half a window further
        self.assertEqual(int(out[0, 0]), 256)
        self.assertLessEqual(out.shape[1], 1 + SMALL.window // 2)
        tokenizer = self.library.AutoTokenizer.from_pretrained(folder)
        self.assertGreater(other.generate(**tokenizer("The ", return_tensors="pt")).shape[1], 4)

    def test_the_code_of_the_card_runs(self):
        folder = self.folder / "card"
        interop.export(SAMPLE, "huggingface", folder)
        code = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text("utf-8"), re.M | re.S)
        self.assertEqual(len(code), 1)
        done = subprocess.run(
            [sys.executable, "-c", code[0]], cwd=folder, capture_output=True, encoding="utf-8", timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("The "), done.stdout)

    def test_an_export_is_checked_in_six_lines(self):
        result = interop.export(SAMPLE, "huggingface", self.folder / "out")
        version = self.library.__version__
        self.assertEqual(len(result.checks), 6)
        for part, line in zip(
            ("loads", "logits", "greedy", "stops", "7 of them"), result.checks[1:], strict=True
        ):
            self.assertTrue(line.startswith(f"transformers {version}: "), line)
            self.assertIn(part, line)

    def test_verification_finds_what_is_wrong(self):
        good = self.exported()
        self.assertEqual(len(verify_huggingface(self.model, good)), 6)
        other = random_model(SMALL, seed=2)
        cases = {
            "logits differ": lambda folder: write_tensors(folder, tensors_of(other)),
            "does not take all tensors.*missing": lambda folder: write_tensors(
                folder, {k: v for k, v in tensors_of(self.model).items() if k != "model.norm.weight"}
            ),
            "does not take all tensors.*unexpected": lambda folder: write_tensors(
                folder, {**tensors_of(self.model), "model.extra.weight": torch.zeros(1)}
            ),
            "it ends elsewhere": lambda folder: self.edit(
                folder, "generation_config.json", lambda it: it.update(eos_token_id=255)
            ),
            "makes .* of the text": lambda folder: self.edit(
                folder, "tokenizer_config.json", lambda it: it.update(split_special_tokens=False)
            ),
            "does not run it": lambda folder: (folder / "config.json").write_text("{}"),
        }
        for name in ("rope_theta", "rms_norm_eps"):
            cases[f"logits differ(?#{name})"] = lambda folder, name=name: self.edit(
                folder, "config.json", lambda it: it.update({name: it[name] * 100, "rope_parameters": None})
            )

        def write_tensors(folder, tensors):
            self.write_tensors(folder / "model.safetensors", tensors)

        for number, (message, change) in enumerate(cases.items()):
            with self.subTest(message):
                folder = self.exported(name=f"bad-{number}")
                change(folder)
                with self.assertRaisesRegex(CheckpointError, message):
                    verify_huggingface(self.model, folder)

    def test_a_tie_is_counted_and_a_wrong_token_is_not(self):
        class Fixed:
            def generate(self, ids_BT, **options):
                return torch.cat([ids_BT, torch.tensor([[self.token]])], dim=1)

        scripted = mock.Mock(config=dataclasses.replace(SMALL, window=40))
        scripted.side_effect = lambda ids_BT: logits_V.expand(1, ids_BT.shape[1], 257)
        logits_V = torch.zeros(257)
        logits_V[5], logits_V[256] = 1.0, 1.0 - 5e-5
        fixed = Fixed()
        fixed.token = 256
        line = huggingface_verify.compare_greedy("it", scripted, fixed, 1e-4)
        self.assertEqual(line, "3 greedy tokens equal (3 of them where two tie within 0.0001)")
        logits_V[256] = 1.0 - 2e-4
        with self.assertRaisesRegex(CheckpointError, "greedy token 0 is 256, expected 5"):
            huggingface_verify.compare_greedy("it", scripted, fixed, 1e-4)
        fixed.token = 5
        with self.assertRaisesRegex(CheckpointError, "stopped after 1 of"):
            huggingface_verify.compare_greedy("it", scripted, fixed, 1e-4)


class TestCommands(Case):
    def setUp(self):
        need(self, "tyro", "rich")
        super().setUp()
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)

    def command(self, *words: str) -> tuple[int, str, str]:
        from tinylm import cli

        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = cli.main(words)
        return code, out.getvalue(), error.getvalue()

    def test_there_and_back_and_on(self):
        code, out, error = self.command("export", str(SAMPLE), "--to", "huggingface", "out")
        self.assertEqual(code, 0, error)
        self.assertRegex(
            out, r"(?m)^check       .*\n(.*\n)*done        out: [\d,]+ bytes, from .*sample-nano"
        )
        code, out, error = self.command("import", "out", "run")
        self.assertEqual(code, 0, error)
        self.assertIn("870,016 parameters", out)
        self.assertIn("tinylm train DATA --init run", out)
        text = self.command("generate", "run", "The ", "--max-tokens", "20")
        self.assertEqual(text, self.command("generate", str(SAMPLE), "The ", "--max-tokens", "20"))
        Path("texts.txt").write_text("the kettle sings. " * 300, encoding="utf-8")
        code, out, error = self.command("evaluate", "run", "texts.txt", "--no-ladder")
        self.assertEqual(code, 0, error)
        words = ("train", "texts.txt", "--init", "run", "--steps", "1", "--batch-rows", "2", "--out", "tuned")
        code, out, error = self.command(*words, "--device", "cpu", "--sample-tokens", "0", "--window", "64")
        self.assertEqual(code, 0, error)
        self.assertEqual(checkpoint.find("tuned").manifest["step"], 1)
        code, out, error = self.command("export", "tuned", "--to", "huggingface", "again")
        self.assertEqual(code, 0, error)
        self.assertRegex(Path("again/README.md").read_text("utf-8"), r"\| bits per byte \| \d\.\d{4} \|")

    def test_what_is_refused_is_one_line(self):
        write_huggingface(self.model, Path("out"))
        for words, part in (
            (("export", "nowhere", "--to", "huggingface", "new"), "nowhere"),
            (("export", str(SAMPLE), "--to", "huggingface", "out"), "exists"),
            (("export", str(SAMPLE), "new"), "--to"),
            (("export", str(SAMPLE), "--to", "onnx", "new"), "onnx"),
            (("export", str(SAMPLE), "--to", "huggingface", "new", "--kind", "f16"), "only gguf"),
            (("import", "nowhere", "run"), "nowhere"),
            (("import", "out", "out"), "exists"),
            (("import", str(SAMPLE), "run"), "config.json"),
        ):
            before = sorted(self.folder.rglob("*"))
            code, out, error = self.command(*words)
            self.assertEqual((code, out), (2, ""), words)
            self.assertEqual(len(error.splitlines()), 1, error)
            self.assertIn(part, error)
            self.assertEqual(sorted(self.folder.rglob("*")), before)
        self.assertEqual(self.command("import", "out", "run")[0], 0)
        code, _, error = self.command("train", "--resume", "run")
        self.assertEqual(code, 2)
        self.assertIn("--init run", error)


if __name__ == "__main__":
    unittest.main()
