"""Where each value of a ModelConfig stands in a Qwen3 model elsewhere, and what has no place there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tinylm.config import ModelConfig
from tinylm.errors import ConfigError

PLACES: Mapping[str, str] = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "window": "max_position_embeddings",
    "policy": "tinylm.policy",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
"""Options of ModelConfig and their names in a Hugging Face config.json of Qwen3."""

ABSENT: Mapping[str, object] = {"ngrams": 0, "ngram_rows": 32_768}
"""Options that go beyond Qwen3's shape, each with the value that switches it off."""


def check_qwen3_shape(config: ModelConfig, program: str) -> None:
    """Raise ConfigError, by name, for every option that `program` would not compute.

    An option that stands in neither table is refused whatever its value: nobody has looked at what it means.
    """
    problems = []
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in ABSENT and value != ABSENT[name]:
            problems.append(f"{name} is {value!r}, which Qwen3 does not have (expected {ABSENT[name]!r})")
        elif name not in ABSENT and name not in PLACES:
            problems.append(f"{name} is {value!r}, which has no place in Qwen3's shape")
    if problems:
        raise ConfigError(
            f"{'; '.join(problems)}: {program} would compute something else, so this model cannot be "
            "exported; train one without these options"
        )
