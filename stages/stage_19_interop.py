"""Stage 19: one model in several programs; what agrees, and which mistakes load without a word."""

import contextlib
import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Iterator
from itertools import chain
from operator import ne
from pathlib import Path
from typing import Any
from unittest import mock

from tinylm import checkpoint
from tinylm.contract import DOC_BOUNDARY
from tinylm.interop import gguf, huggingface
from tinylm.interop.by_hand import ByHand
from tinylm.interop.llama_cpp import LlamaCpp, LlamaCppMissing
from tinylm.interop.programs import Program, in_llama_cpp, in_numpy, in_tinylm, in_transformers
from tinylm.model import Transformer
from tinylm.tokenizer import debug_decode, encode
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=19,
    title="interop",
    question="Does the model mean the same thing elsewhere?",
    hypothesis="Yes, to the last digits of a sum: tensors have the names of a known shape and are copied bit "
    "for bit. A mistake in an export will be loud: the file does not load, or what it writes is noise.",
    experiment="export the sample model; ask every program that is here, one of them in NumPy from the "
    "published description alone; then make one mistake at a time",
    next="Where does the time go, and what takes it back?",
)
SAMPLE = Path(__file__).resolve().parents[1] / "checkpoints" / "sample-nano"
ENGLISH = b"Return the string as bytes, and raise an error if it is not "
TEXT = ENGLISH.decode() + "안녕 👍\n"
ENDS = "Deprecated since version 3."
TYPED = "a<|doc|>b"
CONTROLS = "\x00\x01"
IDS = [DOC_BOUNDARY, *encode(TEXT)]
GREEDY = 32
SHOWN = {"R": 0, "t of string": 12, "안, 1st byte": 60, "안, 2nd byte": 61, "👍, 1st byte": 67}


def others(lab: Lab, folder: Path, llama: LlamaCpp | None) -> Iterator[Program]:
    """The programs on this machine with the exported model; those that are not there in a line."""
    yield in_numpy(ByHand(folder))
    if lab.quick or importlib.util.find_spec("transformers") is None:
        lab.note(f"transformers: skipped ({'--quick' if lab.quick else 'pip install transformers'})")
    else:
        yield in_transformers(folder)
    if llama is not None:
        yield in_llama_cpp(llama)


def open_llama_cpp(lab: Lab, stack: contextlib.ExitStack) -> LlamaCpp | None:
    """llama.cpp, which ends with the stack; or None, which is said in a line."""
    try:
        importlib.import_module("gguf")
        return stack.enter_context(LlamaCpp())
    except (ImportError, LlamaCppMissing) as missing:
        lab.note(f"llama.cpp: skipped ({missing}; the page says what it needs)")
        return None


def load_gguf(model: Transformer, path: Path, llama: LlamaCpp, **patched: Any) -> None:
    """Write a GGUF file, with a mistake where one is patched in, and load it in llama.cpp."""
    with mock.patch.multiple(gguf, **patched) if patched else contextlib.nullcontext():
        gguf.write_gguf(model, path, "f32", "sample")
    llama.load(path)


def compare(lab: Lab, ours: Program, programs: list[Program]) -> bool:
    """The tables of log-probabilities and of agreement; whether all agree."""
    predicted = {program.name: program.predict(IDS) for program in [ours, *programs]}
    lab.table(
        ["log-probability of", *predicted],
        [[label, *(f"{p[at, IDS[at + 1]]:.5f}" for p in predicted.values())] for label, at in SHOWN.items()],
    )
    continued, rows, good = ours.greedy(IDS, GREEDY), [], True
    for program in programs:
        far = gguf.largest(predicted[program.name] - predicted[ours.name])
        same = sum(a == b for a, b in zip(program.greedy(IDS, GREEDY), continued, strict=False))
        ended = program.greedy([DOC_BOUNDARY, *encode(ENDS)], GREEDY)
        rows.append([program.name, f"{far:.6f}", f"{same} of {GREEDY}", debug_decode(ended)])
        good &= far < 1e-4 and same == GREEDY and ended == [*b"1.", DOC_BOUNDARY]
        good &= all(program.tokenize(text) == list(encode(text)) for text in (TEXT, TYPED, CONTROLS))
    lab.table(["program", "furthest apart", "same greedy ids", f"after {ENDS!r}"], rows)
    return good


def mistaken(
    lab: Lab, model: Transformer, folder: Path, llama: LlamaCpp | None
) -> Iterator[tuple[str, Program]]:
    """Exports and readers with one mistake each; every one of them loads."""
    yield "numpy: RoPE turns neighbours", in_numpy(ByHand(folder, neighbours=True))
    yield "numpy: epsilon 1e-5, not 1e-6", in_numpy(ByHand(folder, epsilon=1e-5))
    yield "numpy: boundary sought in text", in_numpy(ByHand(folder, spelled=True))
    if not lab.quick and importlib.util.find_spec("transformers") is not None:
        settings = folder / "tokenizer_config.json"
        kept = json.loads(settings.read_bytes())
        settings.write_text(json.dumps({k: v for k, v in kept.items() if k != "split_special_tokens"}))
        yield "transformers: specials not split", in_transformers(folder)
    if llama is not None:
        for name, patched in (
            ("llama.cpp: boundary as CONTROL", {"UNUSED": 3}),
            ("llama.cpp: a merge of two bytes", {"MERGES": ["Ā ā"]}),
        ):
            load_gguf(model, folder / f"{min(patched)}.gguf", llama, **patched)
            yield name, in_llama_cpp(llama)


def experiment(lab: Lab) -> None:
    model = checkpoint.load_model(SAMPLE).requires_grad_(False).to(lab.device)
    numbers, counts = dict[str, tuple[float, float]](), dict[str, list[int]]()
    with workspace() as folder, contextlib.ExitStack() as stack:
        huggingface.write_huggingface(model, folder)
        llama = open_llama_cpp(lab, stack)
        if llama is not None:
            load_gguf(model, folder / "sample.gguf", llama)
        agree = compare(lab, in_tinylm(model), list(others(lab, folder, llama)))
        exact = in_numpy(ByHand(folder))
        right = exact.predict(IDS)
        for name, program in chain([("none", exact)], mistaken(lab, model, folder, llama)):
            predicted = program.predict(IDS)
            bits = float(-predicted[range(len(ENGLISH)), list(ENGLISH)].mean() / math.log(2))
            numbers[name] = (gguf.largest(predicted - right), bits)
            counts[name] = [len(program.tokenize(text)) for text in (TYPED, CONTROLS)]
    lab.table(
        ["mistake", "furthest apart", "bits per byte", f"ids of {TYPED}", "of bytes 0, 1"],
        [[name, f"{far:.6f}", f"{bits:.4f}", *counts[name]] for name, (far, bits) in numbers.items()],
    )
    compared = ["log-probabilities", f"ids of {TYPED}", "ids of bytes 0, 1"]
    noticed = {n: [far > 1e-4, *map(ne, counts[n], counts["none"])] for n, (far, _) in numbers.items()}
    lab.figure(lambda: figures.grid(noticed, compared, yes="differ from the right ones", no="agree"))
    bits = lab.value("bits", numbers["none"][1], tolerance=1e-4)
    rope, epsilon, _ = (row for name, row in numbers.items() if name.startswith("numpy"))
    lab.value("rope_far", rope[0], tolerance=0.001)
    lab.value("rope_bits", rope[1], tolerance=1e-4)
    lab.value("epsilon_far", epsilon[0], tolerance=1e-6)
    lab.value("typed", counts["none"][0])
    lab.value("sought", counts["numpy: boundary sought in text"][0])
    lab.otherwise(
        "No mistake was loud: every file loads. The wrong rotation still knows its letters, at "
        f"{rope[1]:.1f} bits per byte for {bits:.1f}. The wrong epsilon stays under any sensible tolerance: "
        "settings have to be compared as settings. And mistakes in a tokenizer touch no weight: "
        f"log-probabilities stay equal to the last digit while a user who types {TYPED} ends a document."
    )
    lab.costs(
        "The file is written once, in the layout of others. Checking it takes one start of the other "
        "program, seconds. A wrong export reaches all who download it, and is taken for a weak model."
    )
    lab.proves(
        "that these weights give the same log-probabilities and greedy ids in every program that ran, that "
        "text stays bytes there and that generation ends at the boundary.",
        does_not_prove="anything of a program that was skipped, of 16 or 8 bits, of sampling (each program "
        "draws in its own way), or that the other program checks the tokenizer's contract: it does not.",
    )
    lab.check("every program that ran agrees", agree)
    lab.check("the wrong rotation is far off", rope[0] > 1 and rope[1] > 2 * bits)
    lab.check("the wrong epsilon is not noticed by 1e-4", 0 < epsilon[0] < 1e-4)
    for name in list(numbers)[3:]:
        lab.check(f"{name}: only ids tell", not noticed[name][0] and any(noticed[name]))


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
