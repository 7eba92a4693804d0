"""A Hugging Face folder back into a Transformer: config, tokenizer and tensors are checked, not guessed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinylm import contract, files
from tinylm.checkpoint import MODEL
from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import CheckpointError, ConfigError, ContractError, ShapeError
from tinylm.interop.huggingface_tokenizer import TOKENIZER, TOKENIZER_CONFIG, check_tokenizer
from tinylm.interop.shape import PLACES
from tinylm.model import Transformer
from tinylm.tensor_files import KEY, parse_header, parse_tensors

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

EXPECTED: Mapping[str, tuple[object, ...]] = {
    "architectures": (["Qwen3ForCausalLM"],),
    "model_type": ("qwen3",),
    "vocab_size": (VOCABULARY_SIZE,),
    "hidden_act": ("silu",),
    "eos_token_id": (DOC_BOUNDARY, [DOC_BOUNDARY]),
}
"""Values that must stand in config.json."""

USUAL: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "sliding_window": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "bos_token_id": (DOC_BOUNDARY, None),
    "quantization_config": (None,),
    "auto_map": (None,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}
"""Values that may be left out of config.json: Qwen3's own defaults are these."""

_NEUTRAL = """
    rope_parameters rope_scaling layer_types dtype torch_dtype use_cache pad_token_id max_window_layers
    initializer_range attention_dropout transformers_version _name_or_path tinylm chunk_size_feed_forward
    output_attentions output_hidden_states return_dict problem_type id2label label2id is_decoder
    _attn_implementation_autoset cross_attention_hidden_size
"""
WITHOUT_EFFECT = frozenset(_NEUTRAL.split())
"""Keys of config.json that are looked at elsewhere, or change no number that a model computes."""

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Imported:
    """A model from elsewhere, what a user should know of it, and the SHA-256 of each file that was read."""

    model: Transformer
    notes: tuple[str, ...]
    digests: Mapping[str, str]


def import_huggingface(folder: Path) -> Transformer:
    """The model of a Hugging Face folder of Qwen3's shape and our contract, in float32 (or float64).

    Raises ContractError, ConfigError or CheckpointError, naming file and value, for anything else.
    """
    return read_huggingface(folder).model


def read_huggingface(folder: Path) -> Imported:
    """As import_huggingface, with notes and digests."""
    if not folder.is_dir():
        kind = "is not a folder" if folder.exists() else "does not exist"
        raise CheckpointError(f"{folder}: {kind}; expected a Hugging Face folder with {CONFIG}")
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            f"{folder / 'adapter_config.json'}: these are weights of an adapter; merge them first "
            "(model.merge_and_unload()) and save the whole model"
        )
    digests: dict[str, str] = {}
    notes: list[str] = []

    def read(name: str) -> bytes:
        data = _read(folder / name)
        digests[name] = hashlib.sha256(data).hexdigest()
        return data

    where = str(folder / CONFIG)
    found = files.parse_json(read(CONFIG), where, ConfigError)
    config, others = read_config(found, where)
    if others:
        notes.append(f"{where}: not used: {', '.join(sorted(others))}")
    check_tokenizer(files.parse_json(read(TOKENIZER), str(folder / TOKENIZER)), str(folder / TOKENIZER))
    if (folder / TOKENIZER_CONFIG).exists():
        where = str(folder / TOKENIZER_CONFIG)
        settings = files.parse_json(read(TOKENIZER_CONFIG), where)
        if not isinstance(settings, dict) or settings.get("split_special_tokens", True) is not True:
            raise ContractError(
                f"{where}: split_special_tokens is not true, so text could become the boundary; expected "
                "the tokenizer of an export"
            )
    tensors = read_weights(folder, read)
    return Imported(build(config, tensors, folder, notes), tuple(notes), digests)


def read_config(found: object, where: str) -> tuple[ModelConfig, set[str]]:
    """The model of a config.json, and the keys that are unknown here; Qwen3 in transformers reads none.

    Raises ContractError and ConfigError with all problems.
    """
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: holds {type(found).__name__}, expected the config of a model")
    problems = []
    for name, allowed in EXPECTED.items():
        problems += _unexpected(found, name, allowed, "nothing")
    if problems:  # another kind of model: its further options would only hide that
        raise ConfigError(f"{where}: {'; '.join(problems)}; only Qwen3 models over 257 bytes can be imported")
    own = found.get(KEY)
    contract.verify(own.get("contract") if isinstance(own, dict) else None, f"{where} ({KEY})")
    assert isinstance(own, dict)
    if own.get("format") != files.FORMAT:
        raise ContractError(f"{where} ({KEY}): format is {own.get('format')!r}, expected {files.FORMAT}")
    known = ("format", "contract", "policy")
    problems += [f"{KEY}.{name} is not expected" for name in own if name not in known]
    for name, allowed in USUAL.items():
        problems += _unexpected(found, name, allowed, None)
    values, missing = _values(found, own)
    problems += missing
    if not missing:
        wrong = ModelConfig(**values).problems()
        problems += [f"{PLACES.get(text.partition(' ')[0], 'config')}: {text}" for text in wrong]
    if not any(text.startswith(PLACES["layers"]) for text in problems):
        problems += _layer_types(found.get("layer_types"), values["layers"])
    if problems:
        raise ConfigError(f"{where}: {'; '.join(problems)}")
    looked_at = {*EXPECTED, *USUAL, *PLACES.values(), *WITHOUT_EFFECT}
    return ModelConfig(**values), {name for name in found if name not in looked_at}


def _unexpected(
    found: Mapping[str, Any], name: str, allowed: tuple[object, ...], absent: object
) -> list[str]:
    """The problem of one key, if it has one; `absent` None: the key may be left out."""
    if name not in found and absent is None:
        return []
    value = found.get(name, absent)
    if any(type(value) is type(one) and value == one for one in allowed):
        return []
    return [f"{name} is {value!r:.80}, expected {allowed[0]!r}"]


def _values(found: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of a ModelConfig, and what is missing of them."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, place in PLACES.items():
        if name == "rope_theta":
            values[name] = _rope_theta(found, problems)
        elif name == "policy" and "policy" in own:
            values[name] = own["policy"]
        elif place in found:
            values[name] = found[place]
        else:
            problems.append(f"{place} is missing")
    for name in ("rope_theta", "norm_eps"):  # 10000 and 10000.0 are one number in JSON
        if type(values.get(name)) is int:
            values[name] = float(values[name])
    return values, problems


def _rope_theta(found: Mapping[str, Any], problems: list[str]) -> object:
    """The base of the rotary embedding: transformers 4 writes rope_theta, transformers 5 rope_parameters."""
    bases = [found["rope_theta"]] if "rope_theta" in found else []
    for name in ("rope_parameters", "rope_scaling"):
        part = found.get(name)
        if part is None:
            continue
        if not isinstance(part, dict):
            problems.append(f"{name} is {part!r:.80}, expected an object")
            continue
        kind = part.get("rope_type", part.get("type", "default"))
        if kind != "default":
            problems.append(f"{name}.rope_type is {kind!r}, expected 'default': RoPE is not scaled here")
        problems += [
            f"{name}.{key} is {value!r:.80}, which has no place here"
            for key, value in part.items()
            if key not in ("rope_type", "type", "rope_theta")
            and not (key == "partial_rotary_factor" and value in (None, 1.0))
        ]
        bases += [part["rope_theta"]] if "rope_theta" in part else []
    if not bases:
        problems.append("rope_theta is missing, and so is rope_parameters.rope_theta")
        return None
    if any(base != bases[0] for base in bases):
        problems.append(f"rope_theta is given as {' and as '.join(map(repr, bases))}")
    return bases[0]


def _layer_types(found: object, layers: object) -> list[str]:
    if found is None:
        return []
    if isinstance(found, list) and len(found) == layers and set(map(str, found)) == {"full_attention"}:
        return []
    return [f"layer_types is {found!r:.80}, expected full_attention for each layer"]


def read_weights(folder: Path, read: Callable[[str], bytes]) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the shards that its index lists."""
    if (folder / INDEX).exists() and (folder / MODEL).exists():
        raise CheckpointError(f"{folder}: holds {MODEL} and {INDEX}; remove the one that is out of date")
    if (folder / MODEL).exists():
        return _tensors(read(MODEL), str(folder / MODEL))
    if not (folder / INDEX).exists():
        pickles = sorted(path.name for path in folder.glob("pytorch_model*"))
        raise CheckpointError(
            f"{folder / MODEL}: does not exist"
            + (f", and {pickles[0]} is a pickle, which is never read: " if pickles else "; ")
            + "save the model with save_pretrained(..., safe_serialization=True)"
        )
    where = str(folder / INDEX)
    index = files.parse_json(read(INDEX), where)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise CheckpointError(f"{where}: holds no weight_map of tensors to files")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(listed.values())):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{where}: names {shard!r}, expected a safetensors file of this folder")
        held = _tensors(read(shard), str(folder / shard))
        wanted = {name for name, place in listed.items() if place == shard}
        if wanted != set(held):
            differ = ", ".join(sorted(wanted ^ set(held))[:5])
            raise CheckpointError(f"{folder / shard}: does not hold the tensors that {INDEX} lists: {differ}")
        tensors.update(held)
    return tensors


def _tensors(data: bytes, where: str) -> dict[str, Tensor]:
    info = parse_header(data, where)[1]
    if info != {}:  # it was written by tinylm: then under this contract
        contract.verify(info.get("contract") if isinstance(info, dict) else None, where)
    return parse_tensors(data, where)


def build(config: ModelConfig, tensors: dict[str, Tensor], folder: Path, notes: list[str]) -> Transformer:
    """The model with these tensors; adds to `notes` what was changed on the way."""
    where = str(folder)
    for name, tensor in tensors.items():
        if name.startswith(("_orig_mod.", "module.")):
            prefix = name.partition(".")[0] + "."
            raise CheckpointError(
                f"{where}: {name} carries the prefix {prefix!r} of a wrapped model; save the model inside it"
            )
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"{where}: {name} is {tensor.dtype}, expected float32, bfloat16 or float16")
    if config.tied and HEAD in tensors:
        if EMBEDDING not in tensors or not torch.equal(tensors[HEAD], tensors[EMBEDDING]):
            raise CheckpointError(
                f"{where}: tie_word_embeddings is true, and {HEAD} is not equal to {EMBEDDING}; set it to "
                "false if the head was trained on its own"
            )
        notes.append(f"{HEAD} repeats the embedding, as tie_word_embeddings says: left out")
        tensors = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    kinds = {tensor.dtype for tensor in tensors.values()}
    dtype = torch.float64 if kinds == {torch.float64} else torch.float32
    if torch.float64 in kinds and dtype != torch.float64:
        raise CheckpointError(f"{where}: some tensors are float64 and others are not; save all in one dtype")
    for kind in sorted(str(kind).removeprefix("torch.") for kind in kinds - {dtype}):
        notes.append(f"{kind} weights become float32 (each value is kept)")
    model = Transformer(config).to(dtype)
    try:
        model.load_state({name: tensor.to(dtype) for name, tensor in tensors.items()}, where)
    except ShapeError as error:
        raise CheckpointError(str(error)) from None
    return model


def _read(path: Path) -> bytes:
    with files.named(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            way = {
                TOKENIZER: "save the tokenizer there too: tokenizer.save_pretrained(...)",
                CONFIG: "expected the folder of an export, or one that save_pretrained wrote",
            }.get(path.name, "a shard of the model is missing")
            raise CheckpointError(f"{path}: does not exist; {way}") from None
