"""Stage 18: one, two and three processes train one model, and the plan for sixty-four GPUs."""

import dataclasses
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tinylm import trainer
from tinylm.batches import IGNORED
from tinylm.config import CorpusConfig, ModelConfig, PlanConfig, TrainConfig
from tinylm.corpus import build_corpus, open_corpus
from tinylm.devices import choose_machine
from tinylm.distributed.ranks import ALONE, Ranks, join, leave
from tinylm.distributed.sharding import local, whole
from tinylm.model import Transformer
from tinylm.optimizer import rate_scale
from tinylm.plan import Prediction, amount, duration, memory, predict
from tinylm.reports import Report
from tinylm.training_step import mean_loss, train_step
from tinylm.walkthrough import Lab, Stage, figures, together, workspace

STAGE = Stage(
    number=18,
    title="scale",
    question="Is a batch the same batch on two ranks?",
    hypothesis="Yes, if it is chosen first and dealt out by its rows then, and each rank divides the sum of "
    "its losses by the targets of the whole batch: equal ids, and equal weights but for the rounding of "
    "sums. The mean of each rank's own loss does as well under policy cross, whose rows are full. Cutting "
    "weights and optimizer over the ranks changes no number, and two ranks hold half each.",
    experiment="processes that share each batch of a small model, in float64: replicated (DDP), sharded "
    "(FSDP2), and with the mean of each rank's own loss; with full rows (policy cross), and with one "
    "document a row (reset), whose lengths differ. Then plan a run on 64 GPUs",
    next="Does the model mean the same thing elsewhere?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=96, heads=2, kv_heads=2, head_size=32, window=32)
ROWS = 12
WAYS = ("replicated", "sharded", "own mean")
POLICIES = ("cross", "reset")


def work(steps: int) -> None:
    """What a rank does, in the folder of the experiment: each policy, each way."""
    ranks = join(120.0)
    said = {f"{p}-{way}-{ranks.size}": learn(p, way, steps, ranks) for p in POLICIES for way in WAYS}
    Path(f"said-{ranks.size}-{ranks.rank}.json").write_text(json.dumps(said), encoding="utf-8")
    leave()


def learn(policy: Any, way: str, steps: int, ranks: Ranks, place: Path = Path()) -> dict[str, Any]:
    """Train on this rank; what it was fed, the targets in that, its losses, the bytes that it holds."""
    shape, corpus = dataclasses.replace(SHAPE, policy=policy), open_corpus(place / "corpus")
    config = TrainConfig(
        data=str(corpus.path), model=shape, steps=steps, batch_rows=ROWS, shard=way == "sharded",
        precision="float64", device="cpu", threads=1,
    )  # fmt: skip
    model = Transformer(shape, config.seed)
    run = trainer.prepare(place, config, choose_machine(config), corpus, model, Report(), ranks)
    ids, targets = list[Any](), list[int]()

    def loss(module: Any, inputs_BT: Any, targets_BT: Any, total: Any, *rest: Any) -> torch.Tensor:
        ids.append(inputs_BT.tolist())
        targets.append(int((targets_BT != IGNORED).sum()))
        if way == "own mean":
            total = total.new_tensor(targets[-1] * ranks.size)
        return mean_loss(module, inputs_BT, targets_BT, total, *rest)

    run.loss = loss
    scales = [rate_scale(step, steps, config.warmup, config.decay) for step in range(steps)]
    losses = [train_step(run, run.plan.batch(step), step, scale)[0] for step, scale in enumerate(scales)]
    weights = {name: whole(weight.detach()) for name, weight in model.named_parameters()}
    if ranks.leads:
        safetensors.torch.save_file(weights, place / f"{policy}-{way}-{ranks.size}.safetensors")
    kept = (*model.parameters(), *run.optimizer.state().values())
    size = sum(local(tensor).numel() * tensor.itemsize for tensor in kept if tensor.ndim)
    return {"ids": ids, "targets": targets, "losses": losses, "held": size}


def digest(ranks: list[dict[str, Any]]) -> str:
    """The SHA-256 of what the ranks were fed: step after step, one rank's rows behind the other's."""
    steps = zip(*(said["ids"] for said in ranks), strict=True)
    batches = [[row for share in shares for row in share] for shares in steps]
    return hashlib.sha256(json.dumps(batches).encode("ascii")).hexdigest()


def row_of(plan: Prediction) -> list[str]:
    """A line of the table of plans."""
    how = "sharded" if plan.config.shard else "replicated"
    kinds = (plan.time.optimizer, plan.time.waiting, plan.time.compute)
    parts = [f"{share / plan.time.total:.0%}" for share in kinds]
    sizes = (plan.memory.states, plan.memory.peak, plan.traffic.sent)
    return [str(plan.batch_rows), how, *map(amount, sizes), *parts, duration(plan.seconds)]


def experiment(lab: Lab) -> None:
    sizes, steps, documents = ((2,), 4, 90) if lab.quick else ((2, 3), 20, 500)
    with workspace() as place:
        limit = CorpusConfig(max_documents=documents, truncate=True)
        build_corpus("builtin:unicode", place / "corpus", limit)
        ranks: dict[str, list[dict[str, Any]]] = {}
        for n in sizes:
            together(work, steps, place=place, ranks=n)
            said = [json.loads((place / f"said-{n}-{r}.json").read_bytes()) for r in range(n)]
            ranks |= {key: [one[key] for one in said] for key in said[0]}
        ranks |= {f"{p}-one process-1": [learn(p, "one process", steps, ALONE, place)] for p in POLICIES}
        weights = {key: safetensors.torch.load_file(place / f"{key}.safetensors") for key in ranks}
    apart, table = {}, []
    for key in sorted(ranks, key=lambda key: (key.partition("-")[0], key[-1])):
        policy, way, count = key.split("-")
        alone, last = weights[f"{policy}-one process-1"], ranks[key][0]["losses"][-1]
        apart[key] = max(float((tensor - alone[name]).abs().max()) for name, tensor in weights[key].items())
        targets = " ".join(str(sum(said["targets"])) for said in ranks[key])
        shown = (digest(ranks[key])[:8], f"{apart[key]:.0e}", f"{last:.4f}")
        table.append([policy, int(count), way, targets, *shown])
        lab.value(f"loss_{policy}_{way.replace(' ', '_')}_{count}", last, tolerance=0.001)
    lab.note(f"{steps} steps of {ROWS} rows; farthest: the weight that is farthest from that of one process")
    lab.table(["policy", "ranks", "how", "targets of each rank", "ids", "farthest", "last loss"], table)
    held = {(n, way): ranks[f"cross-{way}-{n}"][0]["held"] for n in sizes for way in WAYS[:2]}
    keys = [(n, way) for n in range(1, 9) for way in WAYS[:2]]
    planned = {k: memory(SHAPE, k[0], 1, shard="sharded" in k, precision="float64").kept for k in keys}
    lab.note("bytes of weights and optimizer on rank 0, and what `tinylm plan` says")
    lab.table(["ranks", "how", "holds", "planned"], [[*key, held[key], planned[key]] for key in held])
    series = {
        f"{way}, {what}": [(n, size / 1e6) for (n, how), size in found.items() if how == way]
        for what, found in (("planned", planned), ("measured", held))
        for way in WAYS[:2]
    }
    lab.figure(lambda: figures.lines(series, x="ranks", y="MB that rank 0 holds"))
    pairs = [(rows, shard) for rows in (256, 2048) for shard in (False, True)]
    plans = [predict(PlanConfig(gpus=64, tokens=1e11, batch_rows=rows, shard=shard)) for rows, shard in pairs]
    lab.note("the preset base on 64 H100, 1e11 tokens, as `tinylm plan` sees it")
    headers = ["rows", "how", "states", "memory", "sent", "optimizer", "waiting", "compute", "run"]
    lab.table(headers, list(map(row_of, plans)))
    right = [key for key in apart if "own" not in key]
    lab.value("rounding", math.log10(max(apart[key] for key in right)), tolerance=2)
    own = {policy: lab.value(f"own_{policy}", apart[f"{policy}-own mean-2"], 0.005) for policy in POLICIES}
    for (n, way), size in held.items():
        lab.value(f"{way}_{n}", size)
    for plan, row in zip(plans, map(row_of, plans), strict=True):
        lab.value(f"compute_{row[0]}_{row[1]}", 100 * plan.time.compute / plan.time.total, tolerance=0.5)
    lab.otherwise(
        f"Not all rows are full under cross: {table[0][3]} targets of {steps * ROWS * SHAPE.window}: one row "
        f"ends with the stream. So the mean of means moved a weight by {own['cross']:.0e}, and the loss fell."
    )
    lab.costs(
        "Gradients are sent once a step; sharded, weights in each pass too. A mistake here reaches every "
        "weight of every rank, and rank 0 saves it as if it were right."
    )
    lab.proves(
        "that ranks are fed the batch of one process, and end with its weights, replicated or sharded; that "
        "a rank holds what was planned, to the byte.",
        does_not_prove="that it is fast (benchmarks/scale.py), what GPUs and networks do, or that the death "
        "of a rank ends the others.",
    )
    lab.check("the ids are those of one process", len({(row[0], row[4]) for row in table}) == len(POLICIES))
    lab.check("the weights are those of one process, to 1e-10", all(apart[key] < 1e-10 for key in right))
    lab.check("the mean of means is another run", min(own.values()) > 1e-6)
    lab.check("a rank holds what was planned", held.items() <= planned.items())


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
