"""Stage 11: what a bit per byte is, what it depends on, and what it must not depend on."""

import dataclasses
import itertools
import math
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.baselines import Baseline, ladder
from tinylm.batches import IGNORED, Plan
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import Split
from tinylm.evaluate import Evaluation, Scorer, evaluate
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sources import open_sources
from tinylm.walkthrough import Lab, Stage

STAGE = Stage(
    number=11,
    title="evaluation",
    question="What is a bit per byte?",
    hypothesis="The length of the held-out text, in bits, under a perfect coder that knows the model, over its "
    "raw bytes. A length does not depend on how many rows are scored at a time. And the ways of adding it "
    "up that one meets in practice should differ by less than a model differs from a table of counts.",
    experiment="train a small model on names of characters (short documents, so that ends matter), score it on "
    "held-out names beside counts and compressors, then vary the sum, the window and the batch",
    next="When does a document end?",
)
CONFIG = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)
WINDOWS = (64, 32, 16, 8)
ROWS = (1, 7, 32, 256)


@dataclasses.dataclass(frozen=True)
class Other:
    """The same weights, read in another window or under another policy."""

    model: Scorer
    config: ModelConfig

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, ids_BT: Tensor, /) -> Tensor:
        return self.model(ids_BT)


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
        F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED).backward()
        optimizer.step(rate_scale(step, steps, config.warmup, config.decay))
        optimizer.zero_grad()
    return model


def rung(name: str, result: Baseline | Evaluation, size: int) -> list[object]:
    """A row of the ladder; a compressor has no number without ends and none per end."""
    parts = (result.bits_per_byte_without_boundaries, result.bits_per_boundary)
    shown = ["-" if part is None else f"{part:.3f}" for part in parts]
    return [name, result.bits_per_byte, *shown, round(result.bits_per_byte * size / 8)]


def experiment(lab: Lab) -> None:
    train, held_out = names(2_000 if lab.quick else 9_900)
    model = trained(train, 40 if lab.quick else 500, lab.device)
    ours = evaluate(model, held_out)
    rungs = ladder(train, held_out)
    size, ends = held_out.bytes, held_out.boundaries
    headers = ["predictor", "bits per byte", "without ends", "bits per end", "text as bytes"]
    lab.table(headers, [*(rung(r.name, r, size) for r in rungs), rung("Transformer, 0.13M", ours, size)])
    lab.note(
        f"held out: {size:,} bytes in {ends:,} documents; {held_out.digest[:12]}, {ours.protocol} windows"
    )

    alone = Other(model, dataclasses.replace(CONFIG, policy="reset"))
    single = [evaluate(alone, Split.of([held_out.document(i).astype("u1").tobytes()])) for i in range(ends)]
    whole = evaluate(alone, held_out)
    by_document = sum(one.bits_per_byte * one.bytes for one in single) / size
    mean_of_means = sum(one.bits_per_byte for one in single) / ends
    below = ours.bits_per_byte * size / ours.tokens
    lab.table(
        ["one model, one text, added up differently", "number"],
        [
            ["all bits / raw bytes: the definition", ours.bits_per_byte],
            ["all bits / (bytes + ends): the end counts below the line", below],
            ["bits of bytes / raw bytes: the end is free", ours.bits_per_byte_without_boundaries],
            ["nats per token: the loss that training shows", below * math.log(2)],
            ["each document by itself: all bits / raw bytes", by_document],
            ["each document by itself: mean of the documents' numbers", mean_of_means],
        ],
    )
    by_window = {w: evaluate(Other(model, dataclasses.replace(CONFIG, window=w)), held_out) for w in WINDOWS}
    lab.table(["window", "bits per byte"], [[w, result.bits_per_byte] for w, result in by_window.items()])
    by_rows = [evaluate(model, held_out, rows=rows).bits_per_byte for rows in ROWS]
    spread = max(by_rows) - min(by_rows)
    lab.note(f"rows at a time {', '.join(map(str, ROWS))}: the numbers differ by {spread:.1e}")

    best = min((r for r in rungs if "gram" in r.name), key=lambda r: r.bits_per_byte)
    uniform = rungs[0].bits_per_byte
    for r in rungs:
        lab.value(
            r.name.partition(" ")[0].replace("-", "_"), r.bits_per_byte, 0.0 if "gram" in r.name else 0.02
        )
    for name, number in (
        ("model", ours.bits_per_byte),
        ("below", below),
        ("free", ours.bits_per_byte_without_boundaries),
        ("nats", below * math.log(2)),
        ("mean_of_means", mean_of_means),
        ("by_document", by_document),
        *((f"window_{w}", result.bits_per_byte) for w, result in by_window.items()),
    ):
        lab.value(name, number, tolerance=0.06)
    lab.otherwise(
        f"Adding up is not a detail. Counting ends below the line takes {ours.bits_per_byte - below:.3f} off without any "
        f"learning, giving them away {ours.bits_per_byte - ours.bits_per_byte_without_boundaries:.3f}; averaging documents "
        f"adds {mean_of_means - by_document:.3f}; a window of 16 costs {by_window[16].bits_per_byte - ours.bits_per_byte:.3f}. "
        f"The best table of counts is {abs(best.bits_per_byte - ours.bits_per_byte):.3f} away from the model."
    )
    lab.costs(
        "One forward pass over the held-out text, and a float64 sum. A mistake here reaches every comparison that "
        "is ever made: a result is worth quoting only with its split, protocol, window, policy and precision, "
        "which is why an Evaluation carries all of them."
    )
    lab.proves(
        "that the number is the same for any batch, adds up over documents, and is the table's own number for a "
        "model that copies a table; so a model and a table stand on one ladder.",
        does_not_prove="that a coder can really write so few bytes (an arithmetic coder has to show it), that one "
        "run's difference is more than luck, or that fewer bits make better samples.",
    )
    lab.check(
        "uniform pays log2(257) per byte and per end",
        abs(uniform - math.log2(257) * (1 + ends / size)) < 1e-9,
    )
    lab.check("rows at a time do not change the number", spread < 1e-6)
    lab.check(
        "documents one by one give the bits of the whole", abs(by_document - whole.bits_per_byte) < 1e-6
    )
    lab.check("every byte and every end is scored once", (ours.bytes, ours.boundaries) == (size, ends))
    lab.check("the model beats the uniform guess", ours.bits_per_byte < uniform - 1)
    lab.check("a shorter window never helps much", by_window[8].bits_per_byte > ours.bits_per_byte)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
