"""A model as one GGUF file, which llama.cpp and what is built on it can run.

Architecture `qwen3`, which rotates half-split heads as we do, so no weight is permuted. The tokenizer is
byte-level BPE with no merge that can fire: id == byte. The boundary has the type UNUSED: it begins a
prompt and ends a generation, and no text spells it.
"""

from __future__ import annotations

import copy
import errno
import importlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE, contract
from tinylm.errors import CheckpointError, ConfigError
from tinylm.interop.by_hand import Floats, log_softmax
from tinylm.interop.huggingface_tokenizer import BOUNDARY_TEXT, byte_characters
from tinylm.interop.llama_cpp import INSTALL, LlamaCpp, LlamaCppMissing
from tinylm.interop.shape import check_qwen3_shape
from tinylm.model import Transformer
from tinylm.tokenizer import encode

Kind = Literal["f32", "f16", "q8_0"]
KINDS: tuple[Kind, ...] = ("f32", "f16", "q8_0")

NORMAL, UNUSED = 1, 5
"""Token types of GGUF. As CONTROL (3) the text `<|doc|>` in a prompt would become the boundary."""

MERGES = [f"{BOUNDARY_TEXT} {BOUNDARY_TEXT}"]
"""llama.cpp refuses BPE without merges. This one joins symbols of several characters, which no text has
before a merge, so it never fires. One of two bytes would fire and lose them, as its product is no token."""

LARGEST = {"f32": float(np.finfo(np.float32).max), "f16": 65_504.0, "q8_0": 127 * 65_504.0}
"""The largest weight of each kind; q8_0 holds 32 integers up to 127 and one f16 to multiply them by."""

APART = 1e-4
"""How far log-probabilities (nats) of f32 weights may be apart, and two ids that count as equally good."""

DIVERGENCE = {"f16": 1e-4, "q8_0": 5e-2}
"""The mean Kullback-Leibler divergence (nats a token) that rounded weights and activations may cost."""

PROBES = (
    "The quick brown fox jumps over 13 lazy dogs. Wouldn't it?  Yes!\n\n\ttabs, and trailing spaces  \r\n",
    "안녕하세요 Ελληνικά Русский עברית العربية हिन्दी ไทย 日本語 中文",
    "e\u0301 \u1112\u1161\u11ab 👩\u200d👩\u200d👧 🇰🇷 \ufeff\u2581\u00a0\u3000\u202e",
    "<|doc|> [256] <s></s> <|im_start|> <0x41> ▁ Ġ Ċ",
    "".join(map(chr, range(32))),
)
"""Texts that tokenizers are known to change."""

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(model: Transformer, path: Path, kind: Kind, name: str) -> None:
    """Write a model to a file that does not exist yet; equal models, kinds and names give equal bytes.

    `kind` is how matrices are held: `f32`, `f16` or `q8_0` (8 bits, a scale per 32 weights); gains are
    always f32. `name` stands in the file's `general.name`. Warns where float64 weights become float32.
    Raises ConfigError for what GGUF or this kind cannot hold, and where the package gguf is missing.
    """
    check_held(model, kind)
    gguf = _package()
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    writer = gguf.GGUFWriter(path, "qwen3")
    try:
        _add_model(writer, gguf, model.config, kind, name)
        _add_tokenizer(writer, gguf)
        for tensor_name, values in _tensors(model):
            held = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else _held_as(gguf, kind)
            writer.add_tensor(tensor_name, gguf.quants.quantize(values, held), raw_dtype=held)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def check_held(model: Transformer, kind: Kind) -> None:
    """Raise ConfigError, listing all problems, for a model that a GGUF file of this kind cannot hold.

    Warns where float64 weights become float32.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}, expected one of {', '.join(KINDS)}")
    check_qwen3_shape(model.config, "llama.cpp")
    problems = []
    for name, parameter in model.named_parameters():
        most = float(parameter.detach().abs().max())
        limit = LARGEST[kind if parameter.ndim > 1 else "f32"]
        if not most <= limit:  # also true for NaN
            problems.append(f"{name} holds {most:g}, expected finite weights up to {limit:g} in {kind}")
    if problems:
        raise ConfigError("; ".join(problems))
    if any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        warnings.warn("the model is float64; GGUF gets its weights rounded to float32", stacklevel=3)


def gguf_name(name: str) -> str:
    """What GGUF calls a tensor of ours: `model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    inner = name.removesuffix(".weight")
    if inner in OUTER:
        return f"{OUTER[inner]}.weight"
    index, _, part = inner.removeprefix("model.layers.").partition(".")
    return f"blk.{index}.{NAMES[part]}.weight"


def _package() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError:
        raise ConfigError(
            "writing GGUF needs the package gguf, which is not installed; pip install gguf"
        ) from None


def _held_as(gguf: Any, kind: Kind) -> Any:
    return gguf.GGMLQuantizationType[kind.upper()]


def _add_model(writer: Any, gguf: Any, config: ModelConfig, kind: Kind, name: str) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7}[kind])
    if kind == "q8_0":
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(config.window)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.mlp_width)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_vocab_size(VOCABULARY_SIZE)
    for key, value in {**contract(), "policy": config.policy}.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(f"tinylm.{key}", value)


def _add_tokenizer(writer: Any, gguf: Any) -> None:
    characters = byte_characters()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")  # of those known to llama.cpp, one after which no space is cleaned up
    writer.add_token_list([*characters, BOUNDARY_TEXT])
    writer.add_token_types([NORMAL] * len(characters) + [UNUSED])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(DOC_BOUNDARY)
    writer.add_eos_token_id(DOC_BOUNDARY)
    writer.add_add_bos_token(True)  # a text prompt of ours begins with the boundary
    writer.add_add_eos_token(False)


def _tensors(model: Transformer) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Names of GGUF and weights as float32. A tied head is left out: llama.cpp then takes the embedding."""
    for name, parameter in model.named_parameters():
        yield gguf_name(name), parameter.detach().to("cpu", torch.float32).contiguous().numpy()


def verify_gguf(model: Transformer, path: Path, kind: Kind, node_modules: Path | None = None) -> list[str]:
    """Load a GGUF file in llama.cpp and compare it with the model; one line per check that ran.

    Compared: texts with their ids and back, where a generation ends, the log-probabilities of all 257 ids
    after every token of a prompt (with f32 within 1e-4; else by their divergence), and greedy ids. Where
    llama.cpp is not installed, one line that says so and what to install (`node_modules`: see LlamaCpp).
    Raises CheckpointError where llama.cpp refuses the file or disagrees.
    """
    tokens = min(model.config.window, 256)
    try:
        llama = LlamaCpp(node_modules)
    except LlamaCppMissing as missing:
        return [f"not verified in llama.cpp: {missing}; to have it checked, install node 20 and {INSTALL}"]
    ours = copy.deepcopy(model).to("cpu", torch.float32)
    with llama:
        loaded = llama.load(path, tokens)
        return [
            f"{llama.name} loads it",
            _same_texts(llama, loaded, path),
            _same_predictions(llama, ours, path, kind, tokens),
            _same_choices(llama, ours, path, kind, tokens),
        ]


def _same_texts(llama: LlamaCpp, loaded: dict[str, Any], path: Path) -> str:
    if loaded["tokens"] != VOCABULARY_SIZE or loaded["ends"] != [DOC_BOUNDARY]:
        raise CheckpointError(
            f"{path}: in llama.cpp {loaded['tokens']} tokens, of which {loaded['ends']} end a "
            f"generation, expected {VOCABULARY_SIZE} and [{DOC_BOUNDARY}]"
        )
    for text in PROBES:
        ids = list(encode(text))
        for special in (False, True):
            if (found := llama.tokenize(text, special)) != ids:
                raise CheckpointError(f"{path}: of {text!r} llama.cpp makes {found}, not its bytes {ids}")
        if (back := llama.detokenize(ids)) != text:
            raise CheckpointError(f"{path}: of the bytes of {text!r} llama.cpp makes {back!r}")
    return (
        f"its ids are the bytes of {len(PROBES)} hard texts and back; only {DOC_BOUNDARY} ends a generation"
    )


def _same_predictions(llama: LlamaCpp, ours: Transformer, path: Path, kind: Kind, tokens: int) -> str:
    """Compare with the model in float64; a model so sharp that its own float32 is further off may be."""
    ids = [DOC_BOUNDARY, *encode("".join(PROBES))][:tokens]
    rounded_TV = log_probabilities(ours, ids)
    exact_TV, theirs_TV = log_probabilities(ours.double(), ids), llama.log_probabilities(ids)
    apart, divergence = largest(exact_TV - theirs_TV), mean_divergence(exact_TV, theirs_TV)
    found = f"log-probabilities of {exact_TV.size:,} ids after {len(ids)} tokens up to {apart:.1e} apart"
    if kind == "f32":
        allowed = max(APART, 3 * largest(exact_TV - rounded_TV))
        good, expected = apart <= allowed, f"at most {allowed:.1e}"
    else:
        found += f", divergence {divergence:.1e} nats a token"
        good, expected = divergence <= DIVERGENCE[kind], f"a divergence of at most {DIVERGENCE[kind]:g}"
        expected += "; f32 keeps the weights as they are"
    if not good:  # also where one of them is NaN
        raise CheckpointError(
            f"{path}: llama.cpp predicts otherwise than this model: {found}, expected {expected}"
        )
    return found


def _same_choices(llama: LlamaCpp, ours: Transformer, path: Path, kind: Kind, tokens: int) -> str:
    limit = min(64, tokens - 1)
    found = llama.greedy([DOC_BOUNDARY], limit)
    chosen = [*found, *([DOC_BOUNDARY] if len(found) < limit else [])]
    ours_TV = log_probabilities(ours, [DOC_BOUNDARY, *chosen[:-1]])
    short_T = ours_TV.max(axis=1) - ours_TV[np.arange(len(chosen)), chosen]
    others = int((short_T > 0).sum())
    if kind == "f32" and not short_T.max() <= APART:
        place = int(short_T.argmax())
        raise CheckpointError(
            f"{path}: llama.cpp chooses id {chosen[place]} as token {place + 1}, expected "
            f"{int(ours_TV[place].argmax())}, which is {short_T[place]:.1e} nats better"
        )
    return f"of {len(chosen)} greedy ids {len(chosen) - others} are this model's best" + (
        f", the others within {APART:g} of it" if kind == "f32" and others else ""
    )


def largest(values_TV: Floats) -> float:
    """The largest absolute value; NaN where one of them is."""
    return float(np.abs(values_TV).max())


def log_probabilities(model: Transformer, ids: list[int]) -> Floats:
    """Log-probabilities (natural, float64 [T, 257]) of the token after each of `ids`."""
    with torch.inference_mode():
        logits_TV = model(torch.tensor([ids], device=model.device))[0]
    return log_softmax(logits_TV.cpu().to(torch.float64).numpy())


def mean_divergence(ours_TV: Floats, theirs_TV: Floats) -> float:
    """Mean over T of the Kullback-Leibler divergence (nats) of their distribution from ours."""
    return float((np.exp(ours_TV) * (ours_TV - theirs_TV)).sum(axis=1).mean())
