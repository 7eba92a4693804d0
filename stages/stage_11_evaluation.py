"""Stage 11: what a bit per byte is, what it depends on, and what it must not depend on."""

import dataclasses
import itertools
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.baselines import Baseline, Ngrams, ladder
from tinylm.batches import IGNORED, Plan
from tinylm.config import CorpusConfig, ModelConfig, Policy, TrainConfig
from tinylm.corpus import Split
from tinylm.devices import cpu_threads
from tinylm.evaluate import Evaluation, evaluate
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sources import open_sources
from tinylm.walkthrough import Lab, Stage

STAGE = Stage(
    number=11,
    title="evaluation",
    question="What is a bit per byte?",
    hypothesis="The length of the held-out text, in bits, under a perfect coder that knows the model, over "
    "its raw bytes. A length cannot depend on how many rows are scored at a time. And the ways of adding it "
    "up that one meets in practice should differ by less than a model differs from a table of counts.",
    experiment="train a small model on names of characters (short documents, so that ends matter); score it "
    "on held-out names beside counts and compressors; then vary the sum, the window and the batch",
    next="When does a document end?",
)
CONFIG = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)
ROWS = (1, 7, 32, 256)


class Bigram:
    """A table of counts in the clothes of a model: its logits are the logarithms of its probabilities."""

    device = torch.device("cpu")

    def __init__(self, train: Split, config: ModelConfig) -> None:
        ngrams = Ngrams.count(train.stream, 2)
        self.config = config
        self.logits_VV = torch.from_numpy(np.log([ngrams.distribution([token]) for token in range(257)]))

    def __call__(self, ids_BT: Tensor, /) -> Tensor:
        return self.logits_VV[ids_BT]


def names(count: int) -> tuple[Split, Split]:
    """Names of characters, a document each; every tenth is held out. The same text on every Python."""
    every = open_sources(["builtin:unicode"], CorpusConfig()).documents()
    documents = [b"".join(document.chunks) for document in itertools.islice(every, count)]
    train = [document for index, document in enumerate(documents) if index % 10]
    return Split.of(train, "train"), Split.of(documents[::10], "validation")


def trained(split: Split, steps: int, device: str) -> Transformer:
    """A small model after some steps of 16 rows."""
    model = Transformer(CONFIG).to(device)
    config = TrainConfig(data="builtin:unicode", steps=steps, muon_rate=0.03, adam_rate=0.01)
    optimizer = Optimizer(model, config)
    plan = Plan(split, CONFIG.policy, CONFIG.window, 16, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        logits_BTV = model(torch.from_numpy(batch.inputs_BT).to(device))
        targets_BT = torch.from_numpy(batch.targets_BT).to(device)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, config.warmup, config.decay))
        optimizer.zero_grad()
    return model


def score(model: Transformer, split: Split, window: int = 64, policy: Policy = "cross") -> Evaluation:
    """The same weights in another window or under another policy."""
    model.config = dataclasses.replace(CONFIG, window=window, policy=policy)
    try:
        return evaluate(model, split)
    finally:
        model.config = CONFIG


def rung(name: str, result: Baseline | Evaluation, size: int) -> list[object]:
    """A row of the ladder; a compressor has no number without ends and none per end."""
    parts = (result.bits_per_byte_without_boundaries, result.bits_per_boundary)
    shown = ["-" if part is None else f"{part:.3f}" for part in parts]
    return [name, result.bits_per_byte, *shown, round(result.bits_per_byte * size / 8)]


@cpu_threads(1)  # tensors this small lose more to the second thread than they gain
def experiment(lab: Lab) -> None:
    train, text = names(2_000 if lab.quick else 9_900)
    model = trained(train, 30 if lab.quick else 300, lab.device)
    ours, rungs = evaluate(model, text), ladder(train, text)
    size, ends = text.bytes, text.boundaries
    lab.table(
        ["predictor", "bits per byte", "without ends", "bits per end", "the text in bytes"],
        [*(rung(r.name, r, size) for r in rungs), rung("Transformer, 0.13M", ours, size)],
    )
    lab.note(f"held out: {size:,} bytes in {ends:,} documents, {ours.protocol} windows, {text.digest[:12]}")

    alone = [Split.of([text.document(i).astype("u1").tobytes()]) for i in range(ends)]
    each = [score(model, document, policy="reset") for document in alone]
    by_document = sum(one.bits_per_byte * one.bytes for one in each) / size
    mean = sum(one.bits_per_byte for one in each) / ends
    full, free = ours.bits_per_byte, ours.bits_per_byte_without_boundaries
    below = full * size / ours.tokens
    lab.table(
        ["one model, one text", "number"],
        [
            ["all bits / raw bytes: the definition", full],
            ["all bits / (bytes + ends): the end counts below the line", below],
            ["bits of bytes / raw bytes: the end is free", free],
            ["nats per token: the loss that training shows", below * math.log(2)],
            ["each document by itself: all bits / raw bytes", by_document],
            ["each document by itself: mean of the documents' numbers", mean],
        ],
    )
    windows = {window: score(model, text, window=window).bits_per_byte for window in (64, 32, 16, 8)}
    lab.table(["window", "bits per byte"], [[window, number] for window, number in windows.items()])
    by_rows = sorted(evaluate(model, text, rows=rows).bits_per_byte for rows in ROWS)
    spread = by_rows[-1] - by_rows[0]
    copied = abs(evaluate(Bigram(train, CONFIG), text).bits_per_byte - rungs[2].bits_per_byte)
    lab.note(f"rows at a time {', '.join(map(str, ROWS))}: the numbers differ by {spread:.1e}")
    lab.note(f"the 2-gram scored as a model: differs from its rung by {copied:.1e}")

    for r in rungs:
        name = r.name.partition(" ")[0].replace("-", "_")
        lab.value(name, r.bits_per_byte, tolerance=0.0 if r.bits_per_boundary is not None else 0.02)
    measured = {"model": full, "below": below, "free": free, "nats": below * math.log(2), "mean": mean}
    measured |= {"by_document": by_document, **{f"window_{w}": number for w, number in windows.items()}}
    measured["apart"] = abs((best := min(r.bits_per_byte for r in rungs if "gram" in r.name)) - full)
    for name, number in measured.items():
        lab.value(name, number, tolerance=0.06)
    lab.otherwise(
        "The sums differ as much as the predictors do. Counting ends below the line takes "
        f"{full - below:.3f} off, giving them away {full - free:.3f}, and nobody learned anything; averaging "
        f"documents adds {mean - by_document:.3f}, since short ones are dear; the same weights in windows of "
        f"16 lose {windows[16] - full:.3f}. Between the model and the best table lie {abs(best - full):.3f}. "
        f"And bzip2 reaches {rungs[-2].bits_per_byte:.3f}: the ladder is no formality."
    )
    lab.costs(
        "One forward pass over the text and a sum in float64. A mistake here reaches every comparison ever "
        "made. A number means something only with its split, protocol, window, policy and precision, so an "
        "Evaluation carries them all."
    )
    lab.proves(
        "that the number depends on no batch, adds up over documents, and is the table's own where a model "
        "copies a table: they stand on one ladder.",
        does_not_prove="that a coder can really write so few bytes (an arithmetic coder has to show it), "
        "that a difference is more than one seed's luck, or that fewer bits make better samples.",
    )
    uniform = math.log2(257) * (size + ends) / size
    lab.check("uniform pays log2(257) per byte and per end", abs(rungs[0].bits_per_byte - uniform) < 1e-9)
    lab.check("rows at a time do not change the number", spread < 1e-6)
    whole = score(model, text, policy="reset").bits_per_byte
    lab.check("documents one by one give the bits of the whole", abs(by_document - whole) < 1e-6)
    lab.check("a model that copies a table gets the table's number", copied < 1e-9)
    lab.check("every byte and every end is scored once", (ours.bytes, ours.boundaries) == (size, ends))
    lab.check("the model beats the uniform guess", full < uniform - 1)
    lab.check("the number depends on the window", windows[8] > windows[64])


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
