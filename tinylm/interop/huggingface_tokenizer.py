"""The tokenizer files of a Hugging Face folder: 257 entries in which an id is a byte, and their check."""

from __future__ import annotations

from typing import Any

from tinylm import contract
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import ContractError

BOUNDARY_TEXT = "<|doc|>"
"""How the boundary is called where a vocabulary needs a text for each id. Typed, it stays seven bytes."""

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (Radford et al., 2019).

    Bytes that Latin-1 prints stand for themselves; the others, in order, for U+0100 onwards.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in range(256)]


def vocabulary() -> dict[str, int]:
    """The 257 entries: a character for each byte, then the boundary."""
    return {**{text: byte for byte, text in enumerate(byte_characters())}, BOUNDARY_TEXT: DOC_BOUNDARY}


def tokenizer_json() -> dict[str, Any]:
    """The content of tokenizer.json.

    The boundary is no added token: those are looked for in text, and here text never becomes 256.
    """
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": dict(byte_level),
        "post_processor": None,
        "decoder": dict(byte_level),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary(),
            "merges": [],
        },
    }


def tokenizer_config_json(window: int) -> dict[str, Any]:
    """The content of tokenizer_config.json. Without `split_special_tokens`, text could become the boundary.

    The class is one that both transformers 4 and 5 know.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "model_max_length": window,
        "model_input_names": ["input_ids", "attention_mask"],
        "eos_token": BOUNDARY_TEXT,
        "split_special_tokens": True,
    }


def check_tokenizer(content: object, where: str) -> None:
    """Raise ContractError unless a tokenizer.json maps text to its bytes and back, with 257 entries.

    transformers may have written it: the boundary may then stand among the added tokens too.
    """
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ContractError(f"{where}: holds no tokenizer model; expected the file that an export wrote")
    model = content["model"]
    problems = _vocabulary_problems(model.get("vocab"))
    for name, value, allowed in (
        ("model.type", model.get("type"), ("BPE",)),
        ("model.merges", model.get("merges"), ([],)),
        ("model.dropout", model.get("dropout"), (None,)),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), (None, "")),
        ("model.end_of_word_suffix", model.get("end_of_word_suffix"), (None, "")),
        ("normalizer", content.get("normalizer"), (None,)),
        ("pre_tokenizer.type", _part(content, "pre_tokenizer", "type"), ("ByteLevel",)),
        ("pre_tokenizer.add_prefix_space", _part(content, "pre_tokenizer", "add_prefix_space"), (False,)),
        ("post_processor.type", _part(content, "post_processor", "type"), (None, "TemplateProcessing")),
        ("post_processor.special_tokens", _part(content, "post_processor", "special_tokens"), (None, {})),
        ("decoder.type", _part(content, "decoder", "type"), ("ByteLevel",)),
    ):
        if value not in allowed:
            problems.append(f"{name} is {value!r}, expected {allowed[0]!r}")
    for token in content.get("added_tokens") or []:
        if not isinstance(token, dict) or (token.get("id"), token.get("content")) != (
            DOC_BOUNDARY,
            BOUNDARY_TEXT,
        ):
            problems.append(f"added token {token!r}, expected none but {BOUNDARY_TEXT} ({DOC_BOUNDARY})")
    if problems:
        raise ContractError(
            f"{where}: is another tokenizer ({'; '.join(problems)}); only models of "
            f"{contract.TOKENIZER_VERSION} can be imported"
        )


def _part(content: dict[str, Any], name: str, key: str) -> object:
    part = content.get(name)
    return part.get(key) if isinstance(part, dict) else part


def _vocabulary_problems(found: object) -> list[str]:
    """What differs from the 257 entries, the first three by name."""
    if not isinstance(found, dict):
        return [f"model.vocab is {found!r:.80}, expected {VOCABULARY_SIZE} entries"]
    expected = vocabulary()
    problems = [
        f"entry {text!r} is {found.get(text)!r}, expected {id}"
        for text, id in expected.items()
        if type(found.get(text)) is not int or found[text] != id
    ]
    problems += [
        f"entry {text!r} ({id!r}) is not expected" for text, id in found.items() if text not in expected
    ]
    more = [f"and {len(problems) - 3:,} other entries"] if len(problems) > 3 else []
    return problems[:3] + more
