"""A model as a Hugging Face folder that transformers loads as Qwen3; its check there; and the way back.

Every file is written by hand: what transformers 5 saves, transformers 4 cannot always read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinylm import files
from tinylm.checkpoint import MODEL, model_info
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE, contract
from tinylm.interop.card import Origin, model_card
from tinylm.interop.huggingface_reading import import_huggingface as import_huggingface
from tinylm.interop.huggingface_tokenizer import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    tokenizer_config_json,
    tokenizer_json,
)
from tinylm.interop.huggingface_verify import verify_huggingface as verify_huggingface
from tinylm.interop.shape import PLACES, check_qwen3_shape
from tinylm.model import Transformer
from tinylm.tensor_files import KEY

DTYPES = {torch.float32: "F32", torch.float64: "F64"}


def write_huggingface(model: Transformer, folder: Path, origin: Origin | None = None) -> None:
    """Write the files of a Hugging Face folder; `folder` is made if it is missing. Equal input, equal bytes.

    `origin` is what the model card says of the model's training. Raises ConfigError for a model that Qwen3
    cannot compute.
    """
    check_qwen3_shape(model.config, "transformers")
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(model.parameters()).dtype
    metadata = {"format": "pt", KEY: model_info(model)}
    files.write_new(folder / MODEL, safetensors_bytes(dict(model.named_parameters()), metadata))
    config = config_json(model.config, str(dtype).removeprefix("torch."))
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation_config_json(model.config)),
        (TOKENIZER, tokenizer_json()),
        (TOKENIZER_CONFIG, tokenizer_config_json(model.config.window)),
    ):
        files.write_new(
            folder / name, json.dumps(content, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
        )
    files.write_new(folder / "README.md", model_card(model.config, origin or Origin()).encode("utf-8"))


def config_json(config: ModelConfig, dtype: str) -> dict[str, Any]:
    """The content of config.json. transformers 4 and 5 read some values under different names: both stand.

    A value left out would silently become Qwen3's default, so none is.
    """
    values = {PLACES[name]: getattr(config, name) for name in PLACES if "." not in PLACES[name]}
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY_SIZE,
        **values,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": config.layers,
        "layer_types": ["full_attention"] * config.layers,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": DOC_BOUNDARY,
        "eos_token_id": DOC_BOUNDARY,
        "pad_token_id": None,
        "dtype": dtype,
        "torch_dtype": dtype,
        KEY: {"format": files.FORMAT, "contract": contract(), "policy": config.policy},
    }


def generation_config_json(config: ModelConfig) -> dict[str, Any]:
    """The content of generation_config.json: begin and end with the boundary, draw as tinylm does.

    transformers fills up the rows of a batch that have ended; unasked it takes 256 for that, with a warning.
    A prompt of up to half a window leaves room for half a window of new tokens.
    """
    usual = GenerateConfig()
    return {
        "bos_token_id": DOC_BOUNDARY,
        "eos_token_id": DOC_BOUNDARY,
        "pad_token_id": DOC_BOUNDARY,
        "do_sample": True,
        "temperature": usual.temperature,
        "top_k": usual.top_k,
        "top_p": usual.top_p,
        "max_new_tokens": max(1, config.window // 2),
    }


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file with metadata and tensors in the order given; float32 and float64.

    The library's own writer orders two entries of metadata at random, so equal models would differ.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts, end = [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        offsets = [end, end + len(raw)]
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        parts.append(raw)
        end += len(raw)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *parts))
