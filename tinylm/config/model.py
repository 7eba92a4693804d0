"""The shape of a model, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from tinylm.config.checked import MOST, Checked, booleans, choices, fine, integers, numbers, option
from tinylm.contract import VOCABULARY_SIZE
from tinylm.errors import ConfigError

Policy = Literal["cross", "mask", "reset"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

YOUNGER: Mapping[str, Any] = {"ngrams": 0, "ngram_rows": 32_768}
"""Options that models of the first versions do not record, with what they are there."""


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
        "cross",
        "whether attention reads across documents: cross (yes), mask (no; documents packed into a row) "
        "or reset (no; one document a row)",
    )
    rope_theta: float = option(10_000.0, "base of the rotary position embedding")
    norm_eps: float = option(1e-6, "epsilon of RMSNorm")
    tied: bool = option(False, "use the embedding as the head")
    ngrams: int = option(
        0,
        "add embeddings of the last 2 to this many tokens to each token's (0: none); prevents exports",
    )
    ngram_rows: int = option(32_768, "rows of the table of each length of n-grams; a power of two")

    @classmethod
    def from_dict(cls, values: object, where: str) -> Self:
        """As for every configuration; older models mean the defaults of the options in YOUNGER."""
        return super().from_dict({**YOUNGER, **values} if isinstance(values, Mapping) else values, where)

    def to_dict(self) -> dict[str, Any]:
        """What a model file records: the options of YOUNGER only where they say something."""
        return {name: value for name, value in asdict(self).items() if YOUNGER.get(name) != value}

    def problems(self) -> list[str]:
        counts = ("layers", "width", "mlp_width", "heads", "kv_heads", "head_size")
        found = integers(self, counts, 1, MOST) + integers(self, ("window",), 2, 16 * MOST)
        found += numbers(self, ("rope_theta", "norm_eps"), 0.0, above=True)
        found += choices(self, policy=POLICIES)
        found += booleans(self, ("tied",)) + integers(self, ("ngrams",), 0, 16)
        found += integers(self, ("ngram_rows",), 2, 2**28)
        combined = []
        for name in ("width", "mlp_width"):
            if fine(found, name) and getattr(self, name) % 32:
                combined.append(f"{name} is {getattr(self, name)}, expected a multiple of 32")
        for name in ("heads", "kv_heads"):
            if fine(found, name, "head_size") and getattr(self, name) * self.head_size % 32:
                sizes = f"{getattr(self, name)} x {self.head_size}"
                combined.append(f"{name} x head_size is {sizes}, expected a multiple of 32")
        if fine(found, "head_size") and self.head_size % 2:
            combined.append(f"head_size is {self.head_size}, expected an even number (RoPE turns pairs)")
        if fine(found, "heads", "kv_heads") and self.heads % self.kv_heads:
            combined.append(f"kv_heads is {self.kv_heads}, expected a divisor of heads ({self.heads})")
        if fine(found, "ngrams") and self.ngrams == 1:
            combined.append("ngrams is 1, expected 0 (none) or at least 2")
        if fine(found, "ngram_rows") and self.ngram_rows & (self.ngram_rows - 1):
            combined.append(f"ngram_rows is {self.ngram_rows}, expected a power of two")
        return found + combined


PRESETS: dict[str, ModelConfig] = {
    "nano": ModelConfig(),
    "micro": ModelConfig(width=256, mlp_width=672, heads=8, kv_heads=8),
    "mini": ModelConfig(layers=6, width=384, mlp_width=1024, heads=6, kv_heads=6, head_size=64, window=512),
    "small": ModelConfig(layers=8, width=512, mlp_width=1376, heads=8, kv_heads=8, head_size=64, window=1024),
    "base": ModelConfig(
        layers=12, width=768, mlp_width=2048, heads=12, kv_heads=12, head_size=64, window=2048
    ),
    "fast": ModelConfig(layers=2, ngrams=6),
}


def preset(name: str) -> ModelConfig:
    """The model of a preset; raises ConfigError naming those that exist."""
    if name not in PRESETS:
        raise ConfigError(f"preset is {name!r}, expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def parameter_count(config: ModelConfig) -> int:
    """Parameters by formula: 2VD (VD if tied) + n-grams + layers x (attention + 3 D MLP + gains) + D."""
    embedding = VOCABULARY_SIZE * config.width * (1 if config.tied else 2)
    attention = 2 * config.width * config.head_size * (config.heads + config.kv_heads)
    mlp = 3 * config.width * config.mlp_width
    gains = 2 * config.width + 2 * config.head_size
    tables = max(0, config.ngrams - 1) * config.ngram_rows * config.width
    return embedding + tables + config.layers * (attention + mlp + gains) + config.width


def flops_per_token(config: ModelConfig, length: int) -> int:
    """Floating-point operations of one token's forward pass in a row of `length` tokens.

    Two per weight of a matrix (embeddings are look-ups), and for causal attention two products over
    on average (length + 1) / 2 keys. Training costs three times as much (Kaplan et al., 2020).
    """
    heads = config.heads * config.head_size
    matrices = 2 * config.width * config.head_size * (config.heads + config.kv_heads)
    matrices += 3 * config.width * config.mlp_width
    attention = 2 * 2 * heads * (length + 1) // 2
    return config.layers * (2 * matrices + attention) + 2 * VOCABULARY_SIZE * config.width


def choice_of_model(name: object, model: object) -> list[str]:
    """What is wrong with the options `preset` and `model` of a configuration that has both."""
    found = []
    if not isinstance(name, str) or name not in PRESETS:
        found.append(f"preset is {name!r}, expected one of {', '.join(PRESETS)}")
    if isinstance(model, ModelConfig):
        found += [f"model.{problem}" for problem in model.problems()]
    elif model is not None:
        found.append(f"model is {model!r}, expected the options of a model")
    return found
