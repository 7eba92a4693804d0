"""Stage 11: what a bit per byte is, what it depends on, and a coder that keeps the promise."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from tinylm import build_corpus, load, train
from tinylm.baselines import Baseline, ladder
from tinylm.coder import decode_file, encode_split
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import Split
from tinylm.devices import cpu_threads
from tinylm.evaluate import Evaluation, Tally, by_context, evaluate, rows_to_score, score
from tinylm.model import Transformer
from tinylm.reports import Unseen
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=11,
    title="evaluation",
    question="What is a bit per byte?",
    hypothesis="The length of the held-out text, in bits, under a perfect coder that knows the model, over "
    "its raw bytes. Then a real coder must come out at that length, to the byte. And a length belongs to a "
    "model and a text: how the text is cut into windows should matter less than which model it is.",
    experiment="train a small model on names of characters (short documents, so that ends matter); score it "
    "on held-out names beside counts and compressors, by three protocols; then compress names for real",
    next="When does a document end?",
)
CONFIG = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)
STRIDES = {64: "disjoint", 32: "half-window stride", 8: "stride 8"}


class Peek(Transformer):
    """A model that cheats: where its input shows the answer, it reads it there."""

    def forward(self, ids_BT: Tensor, *more: Any, **options: Any) -> Tensor:
        answers_BTV = F.pad(F.one_hot(ids_BT[:, 1:], 257), (0, 0, 0, 1))
        return super().forward(ids_BT, *more, **options) + 9.0 * answers_BTV


def prepared(folder: Path, lab: Lab) -> tuple[Split, Split, Transformer]:
    """Names of characters, a document each, and a small model trained on nine tenths of them."""
    limit = CorpusConfig(max_documents=2_000 if lab.quick else 9_900, truncate=True)
    corpus = build_corpus("builtin:unicode", folder / "names", limit)
    config = TrainConfig(
        data=str(corpus.path), out=str(folder / "run"), model=CONFIG, steps=30 if lab.quick else 300,
        batch_rows=16, sample_tokens=0, evaluate_every=300,
        device="cuda" if lab.device == "cuda" else "cpu", compile="no",
    )  # fmt: skip
    run = train(config, Unseen()).run
    return corpus.train, corpus.validation, load(run, lab.device).transformer


def tallied(model: Transformer, split: Split, stride: int) -> Tally:
    """The bits of a split, document by document."""
    tally = Tally(split)
    for scored in score(model, split, protocol="strided", stride=stride):
        tally.add(scored)
    return tally


def refereed(model: Transformer, split: Split, limit: int, path: Path) -> list[float]:
    """Bytes for the first targets: by the reported bits, in the code, in the file; and targets restored."""
    reported = sum(float(group.bits[group.positions <= limit].sum()) for group in score(model, split)) / 8
    file = encode_split(model, split, path, limit=limit)
    equal = int(np.count_nonzero(decode_file(model, path)[1:] == split.stream[1 : limit + 1]))
    return [round(reported, 1), file.payload_bytes, file.file_bytes, equal]


def rung(name: str, result: Baseline | Evaluation) -> list[object]:
    """A row of the ladder; a compressor has no number without ends and none per end."""
    parts = (result.bits_per_byte_without_boundaries, result.bits_per_boundary)
    return [name, result.bits_per_byte, *("-" if part is None else f"{part:.3f}" for part in parts)]


@cpu_threads(1)  # tensors this small lose more to the second thread than they gain
def experiment(lab: Lab) -> None:
    with workspace() as folder:
        measured(lab, folder, *prepared(folder, lab))


def measured(lab: Lab, folder: Path, learned: Split, text: Split, model: Transformer) -> None:
    ours, rungs = evaluate(model, text), ladder(learned, text)
    size, ends, full = text.bytes, text.boundaries, ours.bits_per_byte
    headers = ["predictor", "bits per byte", "without ends", "bits per end"]
    lab.table(headers, [*(rung(r.name, r) for r in rungs), rung("Transformer, 0.13M", ours)])

    tallies = {stride: tallied(model, text, stride) for stride in STRIDES}
    free, below = ours.bits_per_byte_without_boundaries, full * size / ours.tokens
    each = (tallies[64].byte_bits_C + tallies[64].end_bits_C) / tallies[64].bytes_C
    sums = {
        "all bits / raw bytes: the definition": ("model", full),
        "all bits / (bytes + ends): the end counts below the line": ("below", below),
        "bits of bytes / raw bytes: the end is free": ("free", free),
        "nats per token: the loss that training shows": ("nats", below * math.log(2)),
        "mean of the documents' own numbers": ("mean", float(each.mean())),
    }
    headers = ["one model, one text", "number"]
    lab.table(headers, [[words, lab.value(name, number, 0.06)] for words, (name, number) in sums.items()])

    rows, apart = [], {}
    for stride, name in STRIDES.items():
        result = tallies[stride].evaluation(model, name, stride)
        apart[stride] = found = tallies[stride].difference(tallies[64])
        read = int(rows_to_score(text, "cross", 64, stride).lengths.sum()) / ours.tokens
        bits = lab.value(f"bits_{stride}", result.bits_per_byte, tolerance=0.06)
        error = lab.value(f"error_{stride}", result.standard_error or 0.0, tolerance=0.005)
        lab.value(f"gain_{stride}", -found.difference, tolerance=0.04)
        paired = lab.value(f"paired_{stride}", found.standard_error or 0.0, tolerance=0.003)
        rows.append([name, bits, error, found.difference, paired, f"{read:.1f} x"])
        lab.check(f"{name}: every byte, every end once", (result.bytes, result.boundaries) == (size, ends))
    lab.table(["protocol", "bits per byte", "± error", "minus disjoint", "± paired", "tokens read"], rows)
    levels = {f"all, {STRIDES[n]}": lab.values[f"bits_{n}"].number for n in (64, 32)}
    x, y = "tokens before the target", "bits per byte"
    lab.figure(lambda: figures.lines({"disjoint": by_context(model, text, 4)}, x=x, y=y, levels=levels))

    cheat = Peek(CONFIG).to(lab.device)
    cheat.load_state_dict(model.state_dict())
    limit, few = (200, 50) if lab.quick else (5_000, 500)
    honest, caught = (refereed(m, text, n, folder / "code") for m, n in ((model, limit), (cheat, few)))
    headers = ["the referee", "reported bytes", "code", "file", "tokens back"]
    lab.table(headers, [["Transformer, 0.13M", *honest], ["the same, peeking", *caught]])

    for r in rungs:
        name = r.name.partition(" ")[0].replace("-", "_")
        lab.value(name, r.bits_per_byte, tolerance=0.0 if r.bits_per_boundary is not None else 0.02)
    keys = ("reported", "code", "file", "cheat", "cheat_code")
    for name, number in zip(keys, (*honest[:3], *caught[:2]), strict=True):
        lab.value(name, number, tolerance=20 if "cheat" in name else 80)
    gap, best = honest[1] - honest[0], min(r.bits_per_byte for r in rungs if "gram" in r.name)
    lab.value("gap", gap, tolerance=2.0)
    lab.otherwise(
        f"Windows that overlap by half change the number by {apart[32].difference:+.3f}, {apart[32].z:+.0f} "
        f"standard errors, and no weight has changed; {abs(best - full):.3f} lie between the model and the "
        f"best table. Stride 8 adds {apart[8].difference - apart[32].difference:+.3f}. And bzip2 reaches "
        f"{rungs[-2].bits_per_byte:.3f}: the ladder is no formality."
    )
    lab.costs(
        "A forward pass over the text, eight of them at stride 8; one per token for the coder. A mistake "
        "here reaches every comparison, so an Evaluation carries its protocol, and its standard error."
    )
    lab.proves(
        f"that the reported bits are real: the code is {gap:+.1f} bytes off, and the text came back. A model "
        "that looks ahead reports next to nothing and is found out, for a decoder cannot look ahead.",
        does_not_prove="that a difference is no seed's luck, or that fewer bits make better samples.",
    )
    uniform = math.log2(257) * (size + ends) / size
    by_rows = [evaluate(model, text, rows=rows).bits_per_byte for rows in (7, 256)]
    lab.check("uniform pays log2(257) per byte and per end", abs(rungs[0].bits_per_byte - uniform) < 1e-9)
    lab.check("rows at a time do not change the number", max(abs(one - full) for one in by_rows) < 1e-6)
    lab.check("the code takes what was reported", abs(gap) <= 2 + honest[0] / 10_000)
    lab.check("the decoder restores every token", (honest[3], caught[3]) == (limit, few))
    lab.check("who peeks is found out", caught[1] > 4 * caught[0])
    lab.check("the model beats the uniform guess", full < uniform - 1)
    lab.check("more context costs fewer bits", lab.quick or apart[32].better == "model")


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
