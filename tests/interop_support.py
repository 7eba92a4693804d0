"""What tests of exports share: models in which every weight counts, and packages that may be missing."""

from __future__ import annotations

import importlib.util
import math
import os
import unittest
from pathlib import Path

import torch

from tinylm.config import PRESETS, ModelConfig
from tinylm.model import Transformer

NO_SKIPS = "TINYLM_NO_SKIPS"
"""Set in the environments that CI makes for these tests: what is missing there is a failure."""

SMALL = ModelConfig(layers=2, width=64, mlp_width=96, heads=4, kv_heads=4, head_size=16, window=48)

EXPORTABLE = {name: shape for name, shape in PRESETS.items() if not shape.ngrams}
"""No other program knows embeddings of n-grams."""

SHAPES = {
    "untied": SMALL,
    "tied": ModelConfig(**{**vars(SMALL), "tied": True}),
    "head size not width over heads": ModelConfig(**{**vars(SMALL), "head_size": 24}),
    "grouped query": ModelConfig(**{**vars(SMALL), "kv_heads": 2}),
    "other numbers": ModelConfig(
        **{**vars(SMALL), "rope_theta": 5e5, "norm_eps": 1e-4, "policy": "reset", "window": 33}
    ),
    **{name: ModelConfig(**{**vars(shape), "layers": 1, "window": 64}) for name, shape in EXPORTABLE.items()},
}
"""Shapes that an export must not confuse; the presets with a single layer."""


def need(case: unittest.TestCase, *packages: str) -> None:
    """Skip a test, with the reason, where a package is missing; fail where CI says that it must be there."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing and os.environ.get(NO_SKIPS):
        case.fail(f"{NO_SKIPS} is set, and {', '.join(missing)} is not installed")
    if missing:
        case.skipTest(f"{', '.join(missing)} is not installed; .ci/run runs this where it is")


def random_model(config: ModelConfig, seed: int = 1) -> Transformer:
    """A model with logits of a trained one's size, in which gains, head and projections differ from their
    first values: an export that mixed up two tensors could not give the same logits."""
    model = Transformer(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.normal_(0.0, 0.3, generator=generator)
            else:
                parameter.normal_(0.0, 1 / math.sqrt(parameter.shape[1]), generator=generator)
    return model.requires_grad_(False)


def tensors_of(model: Transformer) -> dict[str, torch.Tensor]:
    """The parameters of a model by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
