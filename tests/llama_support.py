"""Where the tests find a real llama.cpp: node, and the npm package node-llama-cpp.

Without it they are skipped. `TINYLM_TEST_NODE_MODULES` names the folder that holds the package, and then a
skip would be a failure: `.ci/run` sets it where it installed one.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
import unittest
from pathlib import Path

import torch

from tinylm.config import ModelConfig
from tinylm.interop.gguf import write_gguf
from tinylm.interop.llama_cpp import INSTALL, LlamaCpp, LlamaCppMissing
from tinylm.model import Transformer

VARIABLE = "TINYLM_TEST_NODE_MODULES"
REQUIRED = os.environ.get(VARIABLE)
NODE_MODULES = Path(REQUIRED) if REQUIRED else None

TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=64)


def random_model(config: ModelConfig = TINY, seed: int = 0) -> Transformer:
    """A model with weights drawn everywhere; as initialized, its head and back-projections are zero."""
    model = Transformer(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
            else:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.requires_grad_(False)


@functools.cache
def why_no_llama_cpp() -> str:
    """Why the real llama.cpp cannot be asked here; empty where it can."""
    if importlib.util.find_spec("gguf") is None:
        return "the package gguf is not installed (pip install 'tinylm[gguf]')"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_gguf(random_model(), path, "f32", "tiny")
        try:
            LlamaCpp(path, NODE_MODULES).close()
        except LlamaCppMissing as missing:
            return f"{missing} ({INSTALL})"
    return ""


def needs_llama_cpp(case: unittest.TestCase) -> None:
    """Skip a test where llama.cpp is missing; fail it where the environment says that it must not be."""
    if not (reason := why_no_llama_cpp()):
        return
    if REQUIRED:
        case.fail(f"{VARIABLE} is set, but {reason}")
    case.skipTest(f"no real llama.cpp: {reason}")
