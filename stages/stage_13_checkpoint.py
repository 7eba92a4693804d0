"""Stage 13: what must match before weights may be trusted."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from tinylm import checkpoint, contract
from tinylm.config import ModelConfig, TrainConfig
from tinylm.errors import TinylmError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.walkthrough import Lab, Stage, workspace

STAGE = Stage(
    number=13,
    title="checkpoint",
    question="What must match before weights may be trusted?",
    hypothesis="Four values of the tokenizer (version, size, boundary id, digest of the vocabulary), and a "
    "digest of every file. The file format alone should notice a file that was cut or damaged.",
    experiment="damage a checkpoint in one way at a time; ask the file format to load it, then the model file "
    "with its contract, then the step folder with its manifest",
    next="Is a resumed run the same run?",
)
SHAPE = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=16)
OTHER_BOUNDARY = 10

Damage = Callable[[bytes], bytes]


def cut(data: bytes) -> bytes:
    """The last byte is missing, as after a full disk."""
    return data[:-1]


def flip(data: bytes) -> bytes:
    """One bit of the last weight is another, as after a bad copy."""
    return data[:-1] + bytes([data[-1] ^ 1])


def not_a_number(data: bytes) -> bytes:
    """The last weight is NaN (float32, little-endian), as after a step that went wrong."""
    return data[:-4] + bytes.fromhex("0000c07f")


def other_weights(data: bytes) -> bytes:
    """A whole, healthy file of another model, put where this one was."""
    return checkpoint.model_bytes(Transformer(SHAPE, seed=1))


def edit_header(change: Callable[[str], str]) -> Damage:
    """A damage that rewrites the text of a safetensors header, and its length with it."""

    def damage(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        text = change(data[8 : 8 + size].decode("ascii").rstrip())
        text += " " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text.encode("ascii") + data[8 + size :]

    return damage


def edit_contract(change: Callable[[str], str]) -> Damage:
    """A damage that rewrites the JSON under the `tinylm` key of the header; all else stays right."""

    def edit(text: str) -> str:
        header = json.loads(text)
        header["__metadata__"]["tinylm"] = change(header["__metadata__"]["tinylm"])
        return json.dumps(header)

    return edit_header(edit)


def set_value(key: str, value: int | str | None) -> Damage:
    """A damage that gives one of the four values another value, or leaves it out."""

    def change(text: str) -> str:
        info = json.loads(text)
        info["contract"] = {k: v for k, v in {**info["contract"], key: value}.items() if v is not None}
        return json.dumps(info)

    return edit_contract(change)


def twice(text: str) -> str:
    """The boundary id stands twice, the right one last, where most parsers look."""
    return text.replace('"boundary_id":', f'"boundary_id":{OTHER_BOUNDARY},"boundary_id":')


def nameless(text: str) -> str:
    """The contract stands under a key that nobody asks for."""
    return text.replace('"tinylm":', '"other":')


DAMAGES: dict[str, Damage] = {
    "last byte cut off": cut,
    "one bit of a weight flipped": flip,
    "a weight that is NaN": not_a_number,
    "weights of another model": other_weights,
    "tokenizer version v2": set_value("tokenizer_version", "utf8-byte-v2"),
    "vocabulary of 258": set_value("vocabulary_size", 258),
    "boundary id 10": set_value("boundary_id", OTHER_BOUNDARY),
    "digest of another vocabulary": set_value("vocabulary_sha256", "0" * 64),
    "boundary id left out": set_value("boundary_id", None),
    "boundary id twice": edit_contract(twice),
    "no contract at all": edit_header(nameless),
}


def answer(load: Callable[[Path], object], path: Path) -> str:
    """What loading a path says: loads, or what it names as wrong."""
    try:
        load(path)
    except SafetensorError:
        return "refused"
    except TinylmError as error:
        named = [word for word in contract.contract() if word in str(error)]
        if len(named) > 1:
            return "refused: no contract"
        named += [word for word in ("finite", "SHA-256", "bytes") if word in str(error)]
        return f"refused: {named[0]}"
    return "loads"


def experiment(lab: Lab) -> None:
    model = Transformer(SHAPE)
    state = Optimizer(model, TrainConfig(data="none")).state()
    rows = []
    with workspace() as folder:
        step = checkpoint.save_step(folder, 1, model, state, {})
        path = step / checkpoint.MODEL
        whole = path.read_bytes()
        intact = answer(checkpoint.load_model, step)
        for name, damage in DAMAGES.items():
            path.write_bytes(damage(whole))
            tries = (safetensors.torch.load_file, path), (checkpoint.load_model, path)
            rows.append([name, *(answer(*each) for each in (*tries, (checkpoint.load_model, step)))])
        path.write_bytes(DAMAGES["boundary id 10"](whole))
        lab.table(["damage", "safetensors alone", "contract in the header", "manifest of the step"], rows)
        lab.note(f"a model file with boundary id 10: {refusal(path, folder)}")
        total = sum(file.stat().st_size for file in step.iterdir())
