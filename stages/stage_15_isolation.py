"""Stage 15: what stands between two documents in a row, and what it costs to keep them apart."""

import copy
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tinylm import trainer
from tinylm.attention import Seen, dense_mask, seen_within
from tinylm.config import POLICIES, CorpusConfig, ModelConfig, Policy, TrainConfig
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import Machine, synchronize
from tinylm.evaluate import evaluate
from tinylm.generate import Context
from tinylm.model import Transformer
from tinylm.optimizer import rate_scale
from tinylm.reports import Report
from tinylm.training_step import Run, train_step
from tinylm.walkthrough import Lab, Stage, figures, probes, workspace

STAGE = Stage(
    number=15,
    title="isolation",
    question="Is a boundary a wall?",
    hypothesis="No: it is a token, and attention reads across it. Positions that begin anew at each boundary "
    "should not help, for a key stays a key. With a mask nothing should move, and packed rows pad little.",
    experiment="train a model under each policy on names of characters, the same number of targets; change "
    "document 1 and see how far the logits of document 2 move; score all held-out names",
    next="Bytes, text, tokens, events: which unit is complete when?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=128)
ROWS = {"cross": 8, "mask": 8, "reset": 37}  # about as many targets in a step
FIRST, OTHER, SECOND = b"LATIN SMALL E", b"GREEK 1234567", b"LATIN SMALL LETTER E"


def ids(*texts: bytes) -> list[int]:
    """Documents in a row, each behind the boundary that opens it."""
    return [token for text in texts for token in (256, *text)]


CUT = len(ids(FIRST))
SEGMENTS = torch.tensor([[0] * CUT + [1] * len(ids(SECOND))])


def logits(model: Transformer, rows: list[list[int]], seen: Seen = None) -> Tensor:
    """Logits [B, T, 257] of rows of equal length."""
    found: Tensor = model(torch.tensor(rows, device=model.device), segments=seen)
    return found


@torch.no_grad()
def moved(logits_of: Callable[[bytes], Tensor]) -> float:
    """How far the logits of document 2 move when document 1 is another: the largest change of one."""
    return float((logits_of(FIRST) - logits_of(OTHER)).abs().max())


def in_a_row(model: Transformer, seen: Seen = None) -> Callable[[bytes], Tensor]:
    """Logits of document 2 behind document 1 in one row."""
    return lambda first: logits(model, [ids(first, SECOND)], seen)[0, CUT:]


def restarted(model: Transformer) -> Transformer:
    """The same weights in a model whose rotary positions begin anew where document 2 does."""
    other = copy.deepcopy(model)
    at = torch.cat([torch.arange(CUT), torch.arange(SHAPE.window - CUT)]).to(model.device)
    other.cos_TK, other.sin_TK = model.cos_TK[at], model.sin_TK[at]
    return other


def a_row_each(model: Transformer) -> Callable[[bytes], Tensor]:
    """Logits of document 2 in a row of its own, below that of document 1, which is padded."""
    return lambda first: logits(model, [(ids(first) + [256] * 9)[: len(ids(SECOND))], ids(SECOND)])[1]


def generating(model: Transformer) -> Callable[[bytes], Tensor]:
    """Logits of the byte after a prompt that holds both documents, read through the cache."""
    return lambda first: torch.from_numpy(Context(model, ids(first, SECOND)).logits())


def trained(corpus: Corpus, folder: Path, lab: Lab) -> tuple[dict[Policy, Run], dict[Policy, float]]:
    """The runs, trained a step of each in turn, and how long a target took (seconds, median)."""
    steps, device = 20 if lab.quick else 250, "cuda" if lab.device == "cuda" else "cpu"
    runs = {}
    for policy in POLICIES:
        shape = dataclasses.replace(SHAPE, policy=policy)
        config = TrainConfig("names", model=shape, steps=steps, batch_rows=ROWS[policy])
        machine = Machine(device, "float32", False, torch.get_num_threads())
        runs[policy] = trainer.prepare(folder, config, machine, corpus, Transformer(shape), Report())
    times: dict[Policy, list[float]] = {policy: [] for policy in POLICIES}
    for step in range(steps):
        for policy, run in runs.items():
            began = time.perf_counter()
            batch = run.plan.batch(step)
            train_step(run, batch, step, rate_scale(step, steps, run.config.warmup, run.config.decay))
            synchronize(device)
            times[policy].append((time.perf_counter() - began) / batch.targets)
    return runs, {policy: statistics.median(some[5:]) for policy, some in times.items()}


def experiment(lab: Lab) -> None:
    with workspace() as folder:
        limit = CorpusConfig(max_documents=6_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        runs, seconds = trained(corpus, folder, lab)
        models = {policy: run.model for policy, run in runs.items()}
        padding = {policy: run.plan.padding for policy, run in runs.items()}
        own = {p: evaluate(model, corpus.validation).bits_per_byte for p, model in models.items()}
        alone = {}
        for policy, model in models.items():
            model.config = dataclasses.replace(model.config, policy="reset")
            alone[policy] = evaluate(model, corpus.validation).bits_per_byte
            model.config = dataclasses.replace(model.config, policy=policy)
    cross, mask, reset = (models[policy] for policy in POLICIES)
    row, segments = (x.to(cross.device) for x in (torch.tensor(ids(FIRST, SECOND)), SEGMENTS))
    leaks = {
        "cross: a boundary": moved(in_a_row(cross)),
        "cross: a boundary, positions begin anew": moved(in_a_row(restarted(cross))),
        "cross: generating": moved(generating(cross)),
        "mask: written down": moved(in_a_row(mask, dense_mask(segments))),
        "mask: as this device computes it": moved(in_a_row(mask, seen_within(segments))),
        "mask: generating": moved(generating(mask)),
        "mask: trained with it, now left out": moved(in_a_row(mask)),
        "reset: a row each": moved(a_row_each(reset)),
        "reset: generating": moved(generating(reset)),
    }
    lab.table(["what stands between document 1 and 2", "logits of 2 move by"], list(leaks.items()))
    maps = {"cross": probes.moved(cross, row), "mask": probes.moved(mask, row, segments[0])}
    panels = {name: moved_TT.cpu().numpy() for name, moved_TT in maps.items()}
    x, y = "position of the logits", "position of the changed token"
    lab.figure(lambda: figures.maps(panels, x=x, y=y, scale="farthest that a logit moved"))
    times = {p: f"x {seconds[p] / seconds['cross']:.2f}" for p in POLICIES}
    lab.table(
        ["policy", "padding", "time per target", "bits per byte, own protocol", "each document alone"],
        [[p, f"{padding[p]:.1%}", times[p], own[p], alone[p]] for p in POLICIES],
    )
    open_ways = [name for name, leak in leaks.items() if name.startswith("cross") or "left out" in name]
    lab.value("documents", corpus.train.documents)
    for policy in POLICIES:
        lab.value(f"padding_{policy}", 100 * padding[policy])
    lab.value("leak_walls", max(leaks[name] for name in leaks if name not in open_ways))
    lab.otherwise(
        f"Positions that begin anew leave {leaks['cross: a boundary, positions begin anew']:.2f} of "
        f"{leaks['cross: a boundary']:.2f}, and a model trained with the mask does not do without it. "
        f"Nor are the bits equal: each document alone, mask has {alone['mask']:.2f} and cross "
        f"{alone['cross']:.2f}, or {own['cross']:.2f} with its neighbours to read, which are relatives here."
    )
    lab.costs(
        f"Packing pads {padding['mask']:.1%} of the positions, a row each {padding['reset']:.1%}. Every path "
        "has to obey the mask, and one that forgets it raises no error."
    )
    lab.proves(
        "that no logit of document 2 moves under mask and reset, and that without the mask they do.",
        does_not_prove="which policy is best for another text, or after a longer training.",
    )
    for name, leak in leaks.items():
        lab.check(f"{name}: moves", leak > 0.01 if name in open_ways else leak == 0)
    lab.check("packing pads less than 3 %", padding["mask"] < 0.03)
    lab.check("mask and reset score documents alone", all(own[p] == alone[p] for p in POLICIES[1:]))


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
