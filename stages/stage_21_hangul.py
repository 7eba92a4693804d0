"""Stage 21: the capstone, a model that names syllables which it has never seen."""

import re
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tinylm.baselines import Ngrams
from tinylm.batches import IGNORED, Plan, permute
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.devices import cpu_threads
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sources import open_sources
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=21,
    title="hangul",
    question="Can it name what it never saw?",
    hypothesis="A table of n-grams cannot: it knows the bytes that it counted, and never saw these three. A "
    "model can, if it finds the rule behind the names. It learns the initial first, which changes once in "
    "588 syllables, then the vowel, and last the final, which changes with each.",
    experiment="train a small model on Unicode's Hangul syllables and their names, a tenth of them held out; "
    "let it name those, with the likeliest token each time, and an n-gram table too",
    next="What will you train?",
)
CONFIG = ModelConfig(
    layers=2, width=64, mlp_width=256, heads=4, kv_heads=4, head_size=16, window=12, policy="reset"
)
PREFIX = b"HANGUL SYLLABLE "
GIVEN, LONGEST = 4, 7
"""Bytes of a document that are given, a syllable and a tab, and letters of the longest name."""

PARTS = ("initial", "vowel", "final", "whole name")
Rows = Sequence[Sequence[int]]


def syllables() -> tuple[list[bytes], list[bytes]]:
    """Documents to train on, and those held out: a syllable, a tab, and the last word of its name."""
    found = open_sources(["builtin:unicode"], CorpusConfig()).documents()
    rows = [b"".join(document.chunks).split(b"HANGUL SYLLABLE ") for document in found]
    named = [b"".join(row) for row in rows if len(row) == 2]
    order = permute(np.arange(len(named)), len(named), b"syllables held out")
    held_out = set(order[: len(named) // 10].tolist())
    seen = [row for index, row in enumerate(named) if index not in held_out]
    return seen, [named[index] for index in sorted(held_out)]


def train(split: Split, steps: int, device: str, look: Callable[[int, Transformer], None]) -> Transformer:
    """A model after some steps of 64 documents each; `look` sees it on the way, sixteen times."""
    model = Transformer(CONFIG).to(device)
    optimizer = Optimizer(model, TrainConfig(data="syllables", muon_rate=0.08, adam_rate=0.04))
    plan = Plan(split, CONFIG.policy, CONFIG.window, 64, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        inputs_BT, targets_BT = (torch.from_numpy(x).to(device) for x in (batch.inputs_BT, batch.targets_BT))
        loss = F.cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
        if (step + 1) % max(1, steps // 16) == 0:
            look(step + 1, model)
    return model


def greedy(likeliest: Callable[[Rows], Sequence[int]], documents: Sequence[bytes]) -> list[bytes]:
    """The name that follows each document's first bytes, if the likeliest token is taken every time."""
    rows = [[DOC_BOUNDARY, *document[:GIVEN]] for document in documents]
    for _ in range(LONGEST + 1):
        rows = [[*row, int(token)] for row, token in zip(rows, likeliest(rows), strict=True)]
    names = [row[1 + GIVEN :] for row in rows]
    return [bytes(name[: name.index(DOC_BOUNDARY)] if DOC_BOUNDARY in name else []) for name in names]


def by_model(model: Transformer) -> Callable[[Rows], Sequence[int]]:
    """The token that a model finds likeliest after each row."""

    def likeliest(rows: Rows) -> Sequence[int]:
        with torch.inference_mode():
            found: list[int] = model(torch.tensor(rows, device=model.device))[:, -1].argmax(-1).tolist()
        return found

    return likeliest


def by_table(table: Ngrams) -> Callable[[Rows], Sequence[int]]:
    """The token that a table finds likeliest after each row."""
    return lambda rows: [int(table.distribution(row).argmax()) for row in rows]


def parts(name: bytes) -> tuple[str, ...]:
    """Initial, vowel and final of a name, as in ("H", "A", "N"); what is no such name has none of them."""
    found = re.fullmatch(r"([B-DGHJ-NPR-T]*)([AEIOUWY]+)([B-DGHJ-NPR-T]*)", name.decode("latin-1"))
    return found.groups() if found else ("?",) * 3


def score(names: Sequence[bytes], documents: Sequence[bytes]) -> list[float]:
    """Of how many documents, in %, the initial, the vowel, the final and the whole name are right."""
    right = [document[GIVEN:] for document in documents]
    hits = [
        [a == b for a, b in zip((*parts(name), name), (*parts(true), true), strict=True)]
        for name, true in zip(names, right, strict=True)
    ]
    shares: list[float] = (100 * np.mean(hits, axis=0)).tolist()
    return shares


@cpu_threads(1)  # tensors this small gain little by a second thread, and lose equal numbers by it
def experiment(lab: Lab) -> None:
    seen, unseen = syllables()
    few = 40 if lab.quick else len(unseen)
    asked = {"never saw": unseen[:: len(unseen) // few], "was trained on": seen[:: len(seen) // few]}
    some = asked["never saw"][::4]
    curves: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}

    def look(step: int, model: Transformer) -> None:
        for part, share in zip(PARTS, score(greedy(by_model(model), some), some), strict=True):
            curves[part].append((step, share))

    split = Split.of(seen)
    model = train(split, 32 if lab.quick else 2_500, lab.device, look)
    tables = {f"{n}-gram": by_table(Ngrams.count(split.stream, n)) for n in (5, 7)}
    namers = {**tables, "model": by_model(model)}
    names = {(n, w): greedy(namers[n], documents) for w, documents in asked.items() for n in namers}
    found = {(n, w): score(given, asked[w]) for (n, w), given in names.items()}
    rows = [[*key, *(f"{share:.1f}" for share in row)] for key, row in found.items()]
    examples = [
        [row[:3].decode(), *(str(name)[2:-1] for name in (row[GIVEN:], *given))]
        for row, *given in zip(asked["never saw"], *(names[n, "never saw"] for n in namers), strict=True)
    ]
    lab.note(f"{len(seen)} syllables to train on, {len(unseen)} held out; right, in %")
    lab.table(["namer", "asked what it", *PARTS], rows)
    lab.note("some that it never saw")
    lab.table(["syllable", "name", *namers], examples[:: len(examples) // 6])
    lab.figure(lambda: figures.lines(curves, x="steps", y="of syllables never seen, % right"))
    lab.value("seen", len(seen))
    lab.value("unseen", len(unseen))
    for (namer, which), row in found.items():
        for part, share in zip(PARTS, row, strict=True):
            key = f"{namer[0]}_{which.split()[0]}_{part.split()[0]}"
            lab.value(key, share, tolerance=10.0 if namer == "model" else 0.0)
    exact, known = found["model", "never saw"][3], found["model", "was trained on"][3]
    best = max(found[table, "never saw"][3] for table in tables)
    lab.otherwise(
        f"The model names {known:.0f} % of what it was trained on and {exact:.0f} % of what it never saw: it "
        "does not know the names, only the rule."
    )
    lab.costs(
        "minutes, for a rule of three lines. It has to be found in bytes that cut the number of a syllable "
        "into 4, 6 and 6 bits, where nothing is a multiple of 28."
    )
    lab.proves(
        "that a model finds a rule that holds for bytes that it never saw, where a table has nothing.",
        does_not_prove="that it calculates as we would, or finds a rule of which a text has few cases.",
    )
    lab.check("no table names more than 1 % of what it never saw", best <= 1)
    lab.check("the model names most of what it never saw", lab.quick or exact > 50)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
