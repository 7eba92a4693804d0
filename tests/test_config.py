"""Configurations: every preset is valid, every wrong value is named, JSON brings back what was written."""

from __future__ import annotations

import dataclasses
import math
import unittest

from tinylm.config import (
    PRESETS,
    Checked,
    CorpusConfig,
    ExportConfig,
    GenerateConfig,
    ModelConfig,
    TrainConfig,
    preset,
)
from tinylm.config import model as model_options
from tinylm.config import train as train_options
from tinylm.errors import ConfigError, TinylmError
from tinylm.files import canonical_json, parse_json

KINDS = (ModelConfig, CorpusConfig, TrainConfig, GenerateConfig)
EVERY = tuple(kind for kind in Checked.__subclasses__() if kind.__module__.startswith("tinylm.config."))
NOT_INTEGERS = (1.0, "1", True, None, [1], math.nan)
NOT_NUMBERS = ("1", True, None, [1.0], math.nan, math.inf, -math.inf, 10**400)

# layers x width, MLP, head size, window, parameters in millions to the digits of the table of presets.
TABLE = {
    "nano": (4, 128, 352, 32, 256, "0.87"),
    "micro": (4, 256, 672, 32, 256, "3.2"),
    "mini": (6, 384, 1024, 64, 512, "10.8"),
    "small": (8, 512, 1376, 64, 1024, "25.6"),
    "base": (12, 768, 2048, 64, 2048, "85.4"),
}


def default(kind: type) -> object:
    required = {TrainConfig: {"data": "texts"}, ExportConfig: {"to": "gguf"}}
    return kind(**required.get(kind, {}))


def one(config: object, **changes: object) -> list[str]:
    """The problems of a configuration after changes."""
    return dataclasses.replace(config, **changes).problems()


class Presets(unittest.TestCase):
    def test_every_preset_has_the_shape_of_the_table(self) -> None:
        self.assertEqual(list(PRESETS), [*TABLE, "fast"])
        self.assertEqual(preset("fast"), dataclasses.replace(preset("nano"), layers=2, ngrams=6))
        for name, (layers, width, mlp, head, window, _) in TABLE.items():
            model = preset(name)
            found = (model.layers, model.width, model.mlp_width, model.head_size, model.window)
            self.assertEqual(found, (layers, width, mlp, head, window), name)
            self.assertEqual(model.heads * model.head_size, width)
            self.assertEqual(model.kv_heads, model.heads)
            self.assertEqual((model.policy, model.rope_theta, model.tied), ("cross", 10_000.0, False))

    def test_every_preset_is_valid_and_its_widths_are_multiples_of_32(self) -> None:
        for name, model in PRESETS.items():
            self.assertEqual(model.problems(), [], name)
            self.assertEqual((model.width % 32, model.mlp_width % 32), (0, 0))
            self.assertEqual(TrainConfig(data="texts", preset=name).resolved_model(), model)

    def test_parameters_counted_tensor_by_tensor_agree_with_the_table(self) -> None:
        for name, (layers, width, mlp, head, _, millions) in TABLE.items():
            attention = 4 * width * width + 2 * head  # query, key, value, output; gains of QK-norm
            layer = attention + 3 * width * mlp + 2 * width  # gate, up, down; gains of two norms
            total = 2 * 257 * width + layers * layer + width
            digits = len(millions.partition(".")[2])
            self.assertEqual(f"{total / 1e6:.{digits}f}", millions, name)

    def test_a_preset_that_does_not_exist_is_refused_naming_those_that_do(self) -> None:
        for name in ("huge", "", "NANO"):
            with self.assertRaisesRegex(
                ConfigError, f"preset is '{name}', expected one of nano, micro, mini"
            ):
                preset(name)
        for name in ("huge", None, 3, ["nano"], {"nano": 1}):
            self.assertEqual(len(one(TrainConfig(data="x"), preset=name)), 1, name)


class Problems(unittest.TestCase):
    def test_defaults_have_no_problems(self) -> None:
        for kind in EVERY:
            config = default(kind)
            self.assertEqual(config.problems(), [])
            self.assertIs(config.check(), config)

    def test_all_problems_are_reported_at_once(self) -> None:
        config = ModelConfig(width=100, mlp_width=33, heads=3, kv_heads=2, head_size=31, window=1, tied=1)
        with self.assertRaises(ConfigError) as caught:
            config.check()
        message = str(caught.exception)
        for part in (
            "width is 100, expected a multiple of 32",
            "mlp_width is 33, expected a multiple of 32",
            "heads x head_size is 3 x 31",
            "kv_heads x head_size is 2 x 31",
            "head_size is 31, expected an even number",
            "kv_heads is 2, expected a divisor of heads (3)",
            "window is 1, expected at least 2",
            "tied is 1, expected true or false",
        ):
            self.assertIn(part, message)
        self.assertEqual(len(message.splitlines()), 1)

        train = TrainConfig(
            data="",
            preset="huge",
            steps=1,
            minutes=1.0,
            batch_rows=6,
            micro_rows=4,
            warmup=0.5,
            decay=0.6,
            keep=0,
        )
        self.assertEqual(len(train.problems()), 6, train.problems())
        self.assertEqual(len(CorpusConfig("", "a\nb", 0.0, 0, 0, 0, 0, 1).problems()), 8)
        self.assertEqual(len(GenerateConfig(-1, ("",), -1.0, -1, 0.0, 2.0, -1, 0).problems()), 8)

    def test_each_problem_begins_with_the_option(self) -> None:
        for kind in EVERY:
            config = default(kind)
            for field in dataclasses.fields(kind):
                wrong = {"data": 5, "stop": 5, "model": 5}.get(field.name, {})
                found = one(config, **{field.name: wrong})
                self.assertEqual([text.split()[0] for text in found], [field.name], field.name)

    def test_integers_refuse_every_other_type(self) -> None:
        names = {
            ModelConfig: "layers width mlp_width heads kv_heads head_size window",
            CorpusConfig: "max_documents max_characters max_bytes max_tokens",
            TrainConfig: "batch_rows evaluate_tokens keep seed sample_tokens",
            GenerateConfig: "max_tokens top_k seed repeat_last_n",
        }
        for kind, fields in names.items():
            for name in fields.split():
                for value in NOT_INTEGERS:
                    found = one(default(kind), **{name: value})
                    self.assertEqual(found, [f"{name} is {value!r}, expected an integer"])

    def test_numbers_refuse_infinities_nan_and_every_other_type(self) -> None:
        names = {
            ModelConfig: "rope_theta norm_eps",
            CorpusConfig: "validation",
            TrainConfig: "muon_rate adam_rate weight_decay warmup decay dropout"
            " muon_momentum adam_beta1 adam_beta2",
            GenerateConfig: "temperature top_p min_p repeat_penalty presence_penalty frequency_penalty",
        }
        for kind, fields in names.items():
            for name in fields.split():
                for value in NOT_NUMBERS:
                    found = one(default(kind), **{name: value})
                    self.assertEqual(len(found), 1, (name, value))
                    self.assertTrue(found[0].startswith(f"{name} is {value!r}, expected "), found)

    def test_optional_numbers_take_none_and_refuse_wrong_types(self) -> None:
        for name in ("steps", "stop_after", "micro_rows", "evaluate_every", "save_every", "threads"):
            self.assertEqual(one(TrainConfig(data="x"), **{name: None}), [])
            for value in (0, -1, 1.5, "1", True):
                self.assertEqual(len(one(TrainConfig(data="x"), **{name: value})), 1, (name, value))
        for name in ("minutes", "clip"):
            self.assertEqual(one(TrainConfig(data="x"), **{name: None}), [])
            for value in (0, -0.1, "1", True, math.nan, math.inf):
                self.assertEqual(len(one(TrainConfig(data="x"), **{name: value})), 1, (name, value))

    def test_boundary_values(self) -> None:
        model, corpus, train, generate = (default(kind) for kind in KINDS)
        good = [
            (model, {"window": 2}),
            (model, {"layers": 1}),
            (model, {"heads": 1, "kv_heads": 1}),
            (model, {"kv_heads": 1}),
            (model, {"heads": 16, "kv_heads": 16, "head_size": 2}),
            (model, {"policy": "reset"}),
            (model, {"policy": "mask"}),
            (corpus, {"validation": 0.5}),
            (corpus, {"validation": 1e-9}),
            (corpus, {"max_documents": 1, "max_characters": 1, "max_bytes": 1, "max_tokens": 1}),
            (corpus, {"field": "text", "split_on": "---"}),
            (train, {"warmup": 0.5, "decay": 0.5}),
            (train, {"warmup": 0.0, "decay": 0.0}),
            (train, {"dropout": 0.999}),
            (train, {"muon_rate": 0, "adam_rate": 0.0}),
            (train, {"batch_rows": 6, "micro_rows": 3}),
            (train, {"seed": 2**63 - 1}),
            (train, {"sample_tokens": 0}),
            (generate, {"max_tokens": 0}),
            (generate, {"temperature": 0}),
            (generate, {"top_p": 1, "min_p": 1, "top_k": 10**6}),
            (generate, {"stop": ("a", "\n")}),
            (generate, {"seed": 2**63 - 1}),
        ]
        for config, changes in good:
            self.assertEqual(one(config, **changes), [], changes)
        bad = [
            (model, {"window": 1}),
            (model, {"layers": 0}),
            (model, {"kv_heads": 3}),
            (model, {"width": 48}),
            (model, {"mlp_width": 31}),
            (model, {"policy": "mask all"}),
            (model, {"rope_theta": 0.0}),
            (corpus, {"validation": 0.0}),
            (corpus, {"validation": 0.5000001}),
            (corpus, {"max_bytes": 0}),
            (corpus, {"split_on": "a\rb"}),
            (corpus, {"split_on": ""}),
            (corpus, {"field": 5}),
            (corpus, {"truncate": None}),
            (train, {"warmup": 0.5, "decay": 0.51}),
            (train, {"warmup": 1.0}),
            (train, {"dropout": 1.0}),
            (train, {"muon_rate": -1e-9}),
            (train, {"batch_rows": 6, "micro_rows": 4}),
            (train, {"steps": 1, "minutes": 1.0}),
            (train, {"seed": 2**63}),
            (train, {"device": "tpu"}),
            (train, {"precision": "float16"}),
            (train, {"compile": True}),
            (train, {"out": ""}),
            (train, {"init": 5}),
            (train, {"model": {"layers": 4}}),
            (train, {"model": ModelConfig(width=100)}),
            (generate, {"max_tokens": -1}),
            (generate, {"temperature": -0.1}),
            (generate, {"top_p": 0}),
            (generate, {"top_p": 1.01}),
            (generate, {"min_p": 1.01}),
            (generate, {"stop": "abc"}),
            (generate, {"stop": ["a"]}),
            (generate, {"stop": (b"a",)}),
            (generate, {"seed": -1}),
            (generate, {"seed": 2**63}),
        ]
        for config, changes in bad:
            self.assertEqual(len(one(config, **changes)), 1, changes)

    def test_problems_of_the_model_of_a_run_say_that_they_are_its_models(self) -> None:
        self.assertEqual(
            one(TrainConfig(data="x"), model=ModelConfig(width=100)),
            ["model.width is 100, expected a multiple of 32"],
        )

    def test_configurations_cannot_be_changed(self) -> None:
        for kind in EVERY:
            for field in dataclasses.fields(kind):
                with self.assertRaises(dataclasses.FrozenInstanceError):
                    setattr(default(kind), field.name, None)

    def test_every_option_has_a_help_text(self) -> None:
        for kind in EVERY:
            for field in dataclasses.fields(kind):
                self.assertTrue(field.metadata.get("help"), f"{kind.__name__}.{field.name}")


class Json(unittest.TestCase):
    def test_json_brings_back_every_configuration(self) -> None:
        configs = (
            *map(default, EVERY),
            *PRESETS.values(),
            ModelConfig(policy="reset", tied=True, norm_eps=1e-5),
            CorpusConfig(field="body", split_on="✂ --- ✂", truncate=True, validation=0.25),
            TrainConfig(data="texts/ünï"),
            TrainConfig(data="texts", model=preset("mini"), minutes=0.1, clip=1.0, compile="no"),
            GenerateConfig(stop=("\n\n", "🙂"), temperature=0.0, seed=2**62),
        )
        for config in configs:
            written = canonical_json(dataclasses.asdict(config))
            back = type(config).from_dict(parse_json(written, "run.json"), "run.json")
            self.assertEqual(back, config)
            self.assertEqual(canonical_json(dataclasses.asdict(back)), written)

    def test_missing_and_unknown_options_are_refused_together_with_their_place(self) -> None:
        for kind in EVERY:
            values = dataclasses.asdict(default(kind))
            # What the first versions did not name.
            younger = {TrainConfig: train_options.YOUNGER, ModelConfig: model_options.YOUNGER}.get(kind, {})
            for name in values.keys() - younger.keys():
                shorter = {key: value for key, value in values.items() if key != name}
                with self.assertRaisesRegex(ConfigError, f"run.json: option '{name}' is missing"):
                    kind.from_dict(shorter, "run.json")
            with self.assertRaises(ConfigError) as caught:
                kind.from_dict({"colour": 1, "size": 2}, "run.json")
            self.assertIn("run.json: unknown option 'colour'", str(caught.exception))
            self.assertIn("run.json: unknown option 'size'", str(caught.exception))
            self.assertEqual(str(caught.exception).count("is missing"), len(values) - len(younger))

    def test_wrong_values_are_refused_with_their_place(self) -> None:
        values = dataclasses.asdict(ModelConfig())
        for name, value in (
            ("layers", "4"),
            ("layers", 4.0),
            ("tied", 0),
            ("policy", []),
            ("rope_theta", {}),
        ):
            with self.assertRaisesRegex(ConfigError, f"^manifest.json: {name} is "):
                ModelConfig.from_dict({**values, name: value}, "manifest.json")

    def test_what_is_not_an_object_is_refused(self) -> None:
        for values in (None, [], "x", 5, ModelConfig()):
            with self.assertRaisesRegex(ConfigError, "run.json: expected an object"):
                ModelConfig.from_dict(values, "run.json")

    def test_a_nested_model_is_checked_with_its_place(self) -> None:
        values = dataclasses.asdict(TrainConfig(data="x", model=ModelConfig()))
        for name, value, part in (
            ("width", 100, "run.json.model: width is 100"),
            ("wings", 2, "run.json.model: unknown option 'wings'"),
        ):
            broken = {**values, "model": {**values["model"], name: value}}
            with self.assertRaises(ConfigError) as caught:
                TrainConfig.from_dict(broken, "run.json")
            self.assertIn(part, str(caught.exception))
        for value in ("nano", 5, [1]):
            with self.assertRaisesRegex(ConfigError, "run.json: model is "):
                TrainConfig.from_dict({**values, "model": value}, "run.json")

    def test_errors_are_value_errors_of_tinylm(self) -> None:
        self.assertTrue(issubclass(ConfigError, ValueError) and issubclass(ConfigError, TinylmError))
