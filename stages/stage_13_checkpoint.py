"""Stage 13: what must match before weights may be trusted."""

import sys
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from tinylm import checkpoint, contract
from tinylm.config import ModelConfig, TrainConfig
from tinylm.errors import TinylmError
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=13,
    title="checkpoint",
    question="What must match before weights may be trusted?",
    hypothesis="Four values of the tokenizer (version, size, boundary id, digest of the vocabulary), every "
    "tensor's name and shape, and a digest of every file. The file format alone should notice a file that "
    "was cut or damaged.",
    experiment="load the wrong weights in four ways, (1) a file that is not whole, (2) ids that mean "
    "something else, (3) tensors of another model, (4) weights other than those saved; by the format alone, "
    "with the contract in the file's header, and the whole step folder by its manifest",
    next="Is a resumed run the same run?",
)
SHAPE = ModelConfig(layers=1, width=32, mlp_width=32, heads=2, kv_heads=2, head_size=16, window=16)
NAN = bytes.fromhex("0000c07f")  # float32, little-endian

Damage = Callable[[bytes], bytes]


def edit(old: str, new: str) -> Damage:
    """A damage that rewrites the contract in a safetensors header, and the header's length with it."""

    def damage(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        text = data[8 : 8 + size].decode("ascii").rstrip()
        before, after = (part.replace('"', r"\"") for part in (old, new))  # JSON inside a JSON string
        text = text.replace(before, after)
        text += " " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text.encode("ascii") + data[8 + size :]

    return damage


WAYS: dict[str, dict[str, Damage]] = {
    "the file is not whole": {"last byte cut off": lambda data: data[:-1]},
    "its ids mean something else": {
        "tokenizer version v2": edit(contract.TOKENIZER_VERSION, "utf8-byte-v2"),
        "vocabulary of 258": edit('"vocabulary_size":257', '"vocabulary_size":258'),
        "boundary id 10": edit('"boundary_id":256', '"boundary_id":10'),
        "digest of another vocabulary": edit(contract.VOCABULARY_SHA256, "0" * 64),
        "boundary id left out": edit('"boundary_id":256,', ""),
        "boundary id twice": edit('"boundary_id":256', '"boundary_id":10,"boundary_id":256'),
        "no contract at all": edit('"contract":', '"remark":'),
    },
    "its tensors are not those of this model": {
        "names of a compiled model": edit("model.layers.", "_orig_mod.model.layers."),
        "a matrix on its side": edit("[257,32]", "[32,257]"),
    },
    "its weights are not those that were saved": {
        "one bit of a weight flipped": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        "a weight that is NaN": lambda data: data[: -len(NAN)] + NAN,
        "weights of another model": lambda data: checkpoint.model_bytes(Transformer(SHAPE, seed=1)),
    },
}
DAMAGES = {name: damage for damages in WAYS.values() for name, damage in damages.items()}


def format_alone(path: Path) -> object:
    """What a program does that knows safetensors and nothing else."""
    return safetensors.torch.load(path.read_bytes())


def refusal(load: Callable[[Path], object], path: Path) -> str | None:
    """What loading a path says when it refuses; None if it loads."""
    try:
        load(path)
    except (SafetensorError, TinylmError) as error:
        return str(error).removeprefix(f"{path}: ").partition(";")[0]
    return None


def cell(message: str | None) -> str:
    """A refusal that fits a table: the part that it names."""
    if message is None:
        return "loads"
    if "no tokenizer contract" in message:
        return "refused: no contract"
    parts = (*contract.contract(), "SHA-256", "not finite", "bytes", "wrapped", "[32, 257]")
    return "refused" + next((f": {part}" for part in parts if part in message), "")


def experiment(lab: Lab) -> None:
    model = Transformer(SHAPE)
    state = Optimizer(model, TrainConfig(data="none")).state()
    said: dict[str, tuple[str | None, ...]] = {}
    with workspace() as run:
        earlier, step = (checkpoint.save_step(run, number, model, state, {}) for number in (1, 2))
        path, alone = step / checkpoint.MODEL, run / "alone.safetensors"
        whole = path.read_bytes()
        intact = refusal(checkpoint.load_model, step) is None
        for name, damage in DAMAGES.items():
            for place in (path, alone):
                place.write_bytes(damage(whole))
            said[name] = (
                refusal(format_alone, alone),
                refusal(checkpoint.load_model, alone),
                refusal(checkpoint.load_model, step),
            )
        found = checkpoint.find(run)
        total = sum(file.stat().st_size for file in earlier.iterdir())
    loaders = ["format alone", "file with its contract", "step with its manifest"]
    lab.table(
        ["way", "damage", *loaders],
        [[i, name, *map(cell, said[name])] for i, way in enumerate(WAYS, 1) for name in WAYS[way]],
    )
    loads = {name: [message is None for message in messages] for name, messages in said.items()}
    lab.figure(lambda: figures.grid(loads, loaders, yes="loads", no="is refused"))
    renamed = safetensors.torch.load(DAMAGES["names of a compiled model"](whole))
    random = len(Transformer(SHAPE).load_state_dict(renamed, strict=False).missing_keys)
    lab.note(f"names of a compiled model: a loader that takes what fits leaves {random} tensors random")
    lab.note(f"boundary id 10: {said['boundary id 10'][1]}")
    lab.note(f"the run whose newest step is damaged: loads {found.folder.name}, skips {len(found.skipped)}")
    by_format, by_contract, by_manifest = (
        sum(messages[way] is None for messages in said.values()) for way in range(3)
    )
    lab.value("ways", len(WAYS))
    lab.value("damages", len(DAMAGES))
    lab.value("left_random", random)
    lab.value("accepted_by_format", by_format)
    lab.value("accepted_by_contract", by_contract)
    lab.value("accepted_by_manifest", by_manifest)
    lab.value("kilobytes", len(whole) / 1000, tolerance=1)
    lab.otherwise(
        f"The file format notices the missing byte and accepts the other {by_format} of {len(DAMAGES)}: it "
        "keeps no digest, does not look at values, and of two equal keys takes the last. The contract in its "
        f"turn accepts {by_contract}, a flipped bit and the weights of another model: it says what the ids "
        "mean, not which weights these are. That takes the manifest."
    )
    lab.costs(
        f"One pass of SHA-256 over {total:,} bytes ({len(whole):,} of them the model), at each save and each "
        "load. Weights under another contract do not crash where the shapes fit: every program that trusts "
        "them feeds ids that mean something else, and waits for a boundary under the wrong number."
    )
    lab.proves(
        "that a wrong, missing or doubled value of the contract stops a load, and so does a tensor of "
        "another name or shape; that a damaged step is noticed, and its run goes back to the step before.",
        does_not_prove="that a crash in the middle of a save leaves a good checkpoint, that a manifest which "
        "someone rewrote on purpose is noticed, or that a resumed run is the same run (stage 14).",
    )
    lab.check("the whole checkpoint loads", intact)
    lab.check("every damage, of all four ways, is refused", by_manifest == 0 and len(WAYS) == 4)
    lab.check("the contract stops all but flipped and exchanged weights", by_contract == 2)
    lab.check("the run goes back to the step before", found.folder.name == earlier.name)
    lab.check("equal weights give equal bytes", checkpoint.model_bytes(Transformer(SHAPE)) == whole)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
