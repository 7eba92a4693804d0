"""Where the tests find a real llama.cpp: node, and the npm package node-llama-cpp.

Without it they are skipped. `TINYLM_TEST_NODE_MODULES` names the folder that holds the package, and then a
skip would be a failure: `.ci/run` sets it where it installed one.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import unittest
from pathlib import Path

import torch

from tinylm.config import ModelConfig
from tinylm.interop.llama_cpp import INSTALL, LlamaCpp, LlamaCppMissing
from tinylm.model import Transformer

VARIABLE = "TINYLM_TEST_NODE_MODULES"
REQUIRED = os.environ.get(VARIABLE)
NODE_MODULES = Path(REQUIRED) if REQUIRED else None

TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=64)


_which = shutil.which


def without_node(name: str) -> str | None:
    """`shutil.which` without Node.js; a missing compiler would be remembered for the whole process."""
    return None if name == "node" else _which(name)


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
def llama_cpp() -> LlamaCpp | str:
    """The one llama.cpp of all tests (starting it takes seconds), or why there is none."""
    try:
        llama = LlamaCpp(NODE_MODULES)
    except LlamaCppMissing as missing:
        return f"{missing} ({INSTALL})"
    atexit.register(llama.close)
    return llama


def needs_llama_cpp(case: unittest.TestCase) -> LlamaCpp:
    """llama.cpp; a test is skipped where it is missing, and fails where it must not be missing."""
    found = llama_cpp()
    if isinstance(found, LlamaCpp):
        return found
    if REQUIRED:
        case.fail(f"{VARIABLE} is set, but {found}")
    return case.skipTest(f"no real llama.cpp: {found}")
