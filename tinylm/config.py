"""Every option, as dataclasses without torch. The command line is generated from them.

`problems()` of a configuration lists everything that is wrong with it; `check()` raises ConfigError
with all of them at once.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_type_hints

from tinylm import files
from tinylm.errors import ConfigError

MOST = 65_536
"""Sizes above this are taken for slips of the finger rather than tried."""

Policy = Literal["cross", "reset"]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bfloat16", "float64"]


def option(default: Any, help: str) -> Any:
    """A field with a default and the help text of its flag."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Checked:
    """What all configurations share: problems(), check(), and a strict way back from JSON."""

    def problems(self) -> list[str]:
        """Everything that is wrong, each entry naming the option, its value and what is expected."""
        raise NotImplementedError

    def check(self) -> Self:
        """Return self, or raise ConfigError with all problems."""
        found = self.problems()
        if found:
            raise ConfigError("; ".join(found))
        return self

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """A configuration from parsed JSON; unknown, missing and wrongly typed keys raise ConfigError."""
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{where}: expected an object with the options of {cls.__name__}, found {values!r}"
            )
        names = [field.name for field in dataclasses.fields(cls)]
        hints = get_type_hints(cls)
        problems = [f"{where}: unknown option {name!r}" for name in values if name not in names]
        problems += [f"{where}: option {name!r} is missing" for name in names if name not in values]
        arguments: dict[str, Any] = {}
        for name in names:
            value = values.get(name)
            nested = _nested(hints[name])
            if nested is not None and isinstance(value, Mapping):
                try:
                    value = nested.from_dict(value, f"{where}.{name}")
                except ConfigError as error:
                    problems.append(str(error))
            arguments[name] = tuple(value) if isinstance(value, list) else value
        if problems:
            raise ConfigError("; ".join(problems))
        config = cls(**arguments)
        if found := config.problems():
            raise ConfigError("; ".join(f"{where}: {problem}" for problem in found))
        return config


@dataclass(frozen=True)
class ModelConfig(Checked):
    """The shape of a model (Qwen3's shape; the Hugging Face names of these are in interop)."""

    layers: int = option(4, "number of layers")
    width: int = option(128, "hidden size")
    mlp_width: int = option(352, "hidden size of the MLP")
    heads: int = option(4, "query heads")
    kv_heads: int = option(4, "key/value heads; divides heads")
    head_size: int = option(32, "size of one head")
    window: int = option(256, "tokens that one row sees")
    policy: Policy = option(
        "cross", "whether attention reads across documents: cross (yes) or reset (one document a row)"
    )
    rope_theta: float = option(10_000.0, "base of the rotary position embedding")
    norm_eps: float = option(1e-6, "epsilon of RMSNorm")
    tied: bool = option(False, "use the embedding as the head")

    def problems(self) -> list[str]:
        counts = ("layers", "width", "mlp_width", "heads", "kv_heads", "head_size")
        found = _integers(self, counts, 1, MOST) + _integers(self, ("window",), 2, 16 * MOST)
        found += _numbers(self, ("rope_theta", "norm_eps"), 0.0, above=True)
        found += _choices(self, policy=("cross", "reset"))
        found += _booleans(self, ("tied",))
        combined = []
        for name in ("width", "mlp_width"):
            if _fine(found, name) and getattr(self, name) % 32:
                combined.append(f"{name} is {getattr(self, name)}, expected a multiple of 32")
        for name in ("heads", "kv_heads"):
            if _fine(found, name, "head_size") and getattr(self, name) * self.head_size % 32:
                sizes = f"{getattr(self, name)} x {self.head_size}"
                combined.append(f"{name} x head_size is {sizes}, expected a multiple of 32")
        if _fine(found, "head_size") and self.head_size % 2:
            combined.append(f"head_size is {self.head_size}, expected an even number (RoPE turns pairs)")
        if _fine(found, "heads", "kv_heads") and self.heads % self.kv_heads:
            combined.append(f"kv_heads is {self.kv_heads}, expected a divisor of heads ({self.heads})")
        return found + combined


PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(),
    "micro": ModelConfig(width=256, mlp_width=672, heads=8, kv_heads=8),
    "mini": ModelConfig(layers=6, width=384, mlp_width=1024, heads=6, kv_heads=6, head_size=64, window=512),
    "small": ModelConfig(layers=8, width=512, mlp_width=1376, heads=8, kv_heads=8, head_size=64, window=1024),
    "base": ModelConfig(
        layers=12, width=768, mlp_width=2048, heads=12, kv_heads=12, head_size=64, window=2048
    ),
}


def preset(name: str) -> ModelConfig:
    """The model of a preset; raises ConfigError naming those that exist."""
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}, expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True)
class CorpusConfig(Checked):
    """How sources become documents, and how much of them is too much."""

    field: str | None = option(
        None,
        "field of a JSON line that holds the text (default: text); with it, standard input is JSON Lines",
    )
    split_on: str | None = option(
        None, "a line that separates documents inside one file; the line itself is dropped"
    )
    validation: float = option(0.1, "share of the text that is held out, by documents")
    max_documents: int = option(5_000_000, "limit: documents")
    max_characters: int = option(2_000_000_000, "limit: characters, before encoding")
    max_bytes: int = option(4_000_000_000, "limit: bytes, after encoding")
    max_tokens: int = option(4_000_000_000, "limit: tokens of the stream, boundaries included")
    truncate: bool = option(False, "at a limit, stop at the last whole document instead of failing")

    def problems(self) -> list[str]:
        found = _integers(self, ("max_documents", "max_characters", "max_bytes", "max_tokens"), 1)
        found += _booleans(self, ("truncate",))
        if not _is_number(self.validation) or not 0 < self.validation <= 0.5:
            found.append(f"validation is {self.validation!r}, expected a share above 0 and up to 0.5")
        if self.field is not None and not _is_text(self.field):
            found.append(f"field is {self.field!r}, expected the name of a field such as text")
        if self.split_on is not None and (not _is_text(self.split_on) or set(self.split_on) & {"\n", "\r"}):
            found.append(f"split_on is {self.split_on!r}, expected one line that is not empty")
        return found


@dataclass(frozen=True)
class TrainConfig(Checked):
    """One training run: a run is a function of this, the corpus and the seed."""

    data: str = dataclasses.field(
        metadata={"help": "a corpus folder, or any source of text (a corpus is built from it first)"}
    )
    out: str | None = option(None, "folder of the run (default: checkpoints/NAME-PRESET); must not exist")
    preset: str = option(
        "nano", "model preset: nano, micro, mini, small or base; the model's own flags override it"
    )
    model: ModelConfig | None = option(None, "the model; None stands for the preset's")
    steps: int | None = option(None, "optimizer steps")
    minutes: float | None = option(
        None, "train about this long instead of a number of steps (default: 3 minutes)"
    )
    stop_after: int | None = option(
        None, "stop and save after this step, as if interrupted; --resume goes on"
    )
    batch_rows: int = option(8, "rows per optimizer step")
    micro_rows: int | None = option(None, "rows per forward pass; None: as many as memory takes")
    seed: int = option(0, "seed of weights, row order and dropout")
    muon: bool = option(True, "Muon for the matrices of the layers; off: AdamW for everything")
    muon_rate: float = option(0.02, "peak learning rate of Muon, for the layers' matrices")
    adam_rate: float = option(0.006, "peak learning rate of AdamW, for embedding, head and gains")
    muon_momentum: float = option(0.95, "momentum of Muon")
    adam_beta1: float = option(0.8, "decay of AdamW's first moment")
    adam_beta2: float = option(0.95, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decoupled weight decay of the layers' matrices, in units of the rate")
    warmup: float = option(0.02, "share of the steps in which the rate rises")
    decay: float = option(0.6, "share of the steps, at the end, in which the rate falls to zero")
    clip: float | None = option(None, "clip the norm of all gradients to this; None: never")
    dropout: float = option(0.0, "dropout of the residual branches")
    evaluate_every: int | None = option(None, "steps between evaluations; None: eight in a run")
    evaluate_tokens: int = option(
        16_384, "held-out tokens that evaluations during the run read; the last one reads all"
    )
    save_every: int | None = option(None, "steps between checkpoints; None: at each evaluation")
    keep: int = option(2, "checkpoints to keep")
    sample_tokens: int = option(120, "length of the sample shown at each evaluation; 0: none")
    device: Device = option("auto", "auto takes CUDA, then MPS, then the CPU")
    precision: Precision = option("auto", "auto: bfloat16 autocast on CUDA where it is native, else float32")
    compile: Literal["auto", "yes", "no"] = option("auto", "torch.compile; auto: where it pays")
    threads: int | None = option(None, "CPU threads; None: as torch chooses")
    tensorboard: bool = option(False, "also write TensorBoard events into the run folder (extra: track)")
    init: str | None = option(None, "start from the weights of this checkpoint instead of random ones")

    def resolved_model(self) -> ModelConfig:
        """The model to train: the given one, or the preset's."""
        return self.model if self.model is not None else preset(self.preset)

    def problems(self) -> list[str]:
        found = []
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            found.append(f"preset is {self.preset!r}, expected one of {', '.join(PRESETS)}")
        if isinstance(self.model, ModelConfig):
            found += [f"model.{problem}" for problem in self.model.problems()]
        elif self.model is not None:
            found.append(f"model is {self.model!r}, expected the options of a model")
        if not _is_text(self.data):
            found.append(f"data is {self.data!r}, expected a corpus or a source of text")
        for name in ("out", "init"):
            if getattr(self, name) is not None and not _is_text(getattr(self, name)):
                found.append(f"{name} is {getattr(self, name)!r}, expected a path")
        if self.steps is not None and self.minutes is not None:
            found.append(f"steps is {self.steps} and minutes is {self.minutes}, expected one of them")
        found += _integers(self, ("batch_rows",), 1, MOST) + _integers(self, ("evaluate_tokens", "keep"), 1)
        found += _integers(self, ("sample_tokens",), 0)
        found += _seed(self)
        for name in ("steps", "stop_after", "micro_rows", "evaluate_every", "save_every", "threads"):
            if getattr(self, name) is not None:
                found += _integers(self, (name,), 1, 1024 if name == "threads" else None)
        for name in ("minutes", "clip"):
            if getattr(self, name) is not None:
                found += _numbers(self, (name,), 0.0, above=True)
        if not found and self.minutes is not None and self.minutes > 1_000_000:
            found.append(f"minutes is {self.minutes:g}, expected at most 1000000")
        found += _numbers(self, ("muon_rate", "adam_rate", "weight_decay"), 0.0)
        found += _shares(self, ("muon_momentum", "adam_beta1", "adam_beta2", "dropout", "warmup", "decay"))
        found += _choices(
            self,
            device=("auto", "cpu", "cuda", "mps"),
            precision=("auto", "float32", "bfloat16", "float64"),
            compile=("auto", "yes", "no"),
        )
        found += _booleans(self, ("muon", "tensorboard"))
        if _fine(found, "warmup", "decay") and self.warmup + self.decay > 1:
            found.append(f"warmup + decay is {self.warmup + self.decay:g}, expected at most 1")
        if _fine(found, "batch_rows", "micro_rows") and self.batch_rows % (self.micro_rows or 1):
            found.append(
                f"micro_rows is {self.micro_rows}, expected a divisor of batch_rows ({self.batch_rows})"
            )
        return found


@dataclass(frozen=True)
class GenerateConfig(Checked):
    """How ids are drawn and when a generation ends."""

    max_tokens: int = option(512, "limit of sampled tokens, the boundary included")
    stop: tuple[str, ...] = option((), "strings that end the generation; not part of the text")
    temperature: float = option(
        0.8, "0 takes the most probable token; 1 leaves the model's distribution as it is"
    )
    top_k: int = option(0, "draw from the k most probable tokens; 0: from all")
    top_p: float = option(1.0, "draw from the smallest set of tokens that holds this share of probability")
    min_p: float = option(0.0, "draw from tokens at least this share as probable as the best")
    seed: int = option(0, "the k-th draw depends on the seed and on k only")
    valid_utf8: bool = option(
        False, "never draw a byte that cannot continue well-formed UTF-8 (changes the distribution)"
    )

    def problems(self) -> list[str]:
        found = _integers(self, ("max_tokens", "top_k"), 0)
        found += _seed(self)
        found += _numbers(self, ("temperature",), 0.0)
        found += _booleans(self, ("valid_utf8",))
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            found.append(f"top_p is {self.top_p!r}, expected a share above 0 and up to 1")
        if not _is_number(self.min_p) or not 0 <= self.min_p <= 1:
            found.append(f"min_p is {self.min_p!r}, expected a share from 0 to 1")
        if not isinstance(self.stop, tuple) or not all(map(_is_text, self.stop)):
            found.append(f"stop is {self.stop!r}, expected strings that are not empty")
        return found


@dataclass(frozen=True)
class EvaluateConfig(Checked):
    """How a checkpoint is measured."""

    rows: int = option(32, "rows per forward pass; changes the speed, not the result")
    ladder: bool = option(True, "also show what counting and compressors reach on the same split")
    json: bool = option(False, "print one JSON object instead of tables")
    device: Device = option("auto", "auto takes CUDA, then MPS, then the CPU")

    def problems(self) -> list[str]:
        found = _integers(self, ("rows",), 1) + _booleans(self, ("ladder", "json"))
        return found + _choices(self, device=("auto", "cpu", "cuda", "mps"))


@dataclass(frozen=True)
class QuickstartConfig(Checked):
    """The main job on real text, once through."""

    quick: bool = option(False, "the form of a few seconds: less text, few steps")
    minutes: float = option(2.0, "how long to train")
    seed: int = option(0, "seed of weights, row order and samples")

    def problems(self) -> list[str]:
        return _booleans(self, ("quick",)) + _numbers(self, ("minutes",), 0.0, above=True) + _seed(self)


def _nested(hint: Any) -> type[Checked] | None:
    """The configuration in a type such as ModelConfig or ModelConfig | None."""
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, Checked):
            return kind
    return None


@dataclass(frozen=True)
class Nothing(Checked):
    """The options of a command that has none."""

    def problems(self) -> list[str]:
        return []


def read_run_config(path: str) -> TrainConfig:
    """The configuration of a run.json, for another run: its place is not taken over."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}; expected the run.json of a run") from None
    content = files.parse_json(data, path, ConfigError)
    if not isinstance(content, dict) or "config" not in content:
        raise ConfigError(f"config {path}: holds no 'config'; expected the run.json of a run")
    return dataclasses.replace(TrainConfig.from_dict(content["config"], path), out=None, stop_after=None)


def _integers(config: object, names: tuple[str, ...], least: int, most: int | None = None) -> list[str]:
    found = []
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int):
            found.append(f"{name} is {value!r}, expected an integer")
        elif value < least:
            found.append(f"{name} is {value}, expected at least {least}")
        elif most is not None and value > most:
            found.append(f"{name} is {value}, expected at most {most}")
    return found


def _numbers(config: object, names: tuple[str, ...], least: float, above: bool = False) -> list[str]:
    found = []
    for name in names:
        value = getattr(config, name)
        if not _is_number(value):
            found.append(f"{name} is {value!r}, expected a finite number")
        elif value < least or (above and value == least):
            found.append(f"{name} is {value:g}, expected {'above' if above else 'at least'} {least:g}")
    return found


def _seed(config: TrainConfig | GenerateConfig | QuickstartConfig) -> list[str]:
    # torch.Generator takes 64 bits; a larger seed would wrap or fail long after the check.
    found = _integers(config, ("seed",), 0)
    if not found and config.seed >= 2**63:
        found.append(f"seed is {config.seed}, expected below 2**63")
    return found


def _shares(config: object, names: tuple[str, ...]) -> list[str]:
    values = ((name, getattr(config, name)) for name in names)
    return [
        f"{name} is {value!r}, expected a number from 0 to below 1"
        for name, value in values
        if not _is_number(value) or not 0 <= value < 1
    ]


def _choices(config: object, **choices: tuple[str, ...]) -> list[str]:
    return [
        f"{name} is {getattr(config, name)!r}, expected one of {', '.join(allowed)}"
        for name, allowed in choices.items()
        if getattr(config, name) not in allowed
    ]


def _booleans(config: object, names: tuple[str, ...]) -> list[str]:
    return [
        f"{name} is {getattr(config, name)!r}, expected true or false"
        for name in names
        if not isinstance(getattr(config, name), bool)
    ]


def _fine(found: list[str], *names: str) -> bool:
    """Whether no problem so far begins with one of these options (so that they can be combined)."""
    return not any(problem.partition(" ")[0] in names for problem in found)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max  # false for NaN, and exact for integers of any size
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
