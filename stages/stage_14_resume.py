"""Stage 14: a run that is killed and resumed, beside the same run that was left alone."""

import contextlib
import random
import sys
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from tinylm import checkpoint, metrics, trainer
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import choose_machine
from tinylm.evaluate import evaluate
from tinylm.optimizer import rate_scale
from tinylm.reports import Unseen
from tinylm.training_step import Run, train_step
from tinylm.walkthrough import Lab, Stage, figures, killed, workspace

STAGE = Stage(
    number=14,
    title="resume",
    question="Is a resumed run the same run?",
    hypothesis="Bit for bit, if all is saved that a step depends on: the weights, the optimizer with its "
    "count of steps, and the number of the step, from which the order of the data and the rate follow. "
    "Whatever is forgotten makes the run worse.",
    experiment="kill a training process at random steps, resume it each time, and compare its files with "
    "those of a run that was left alone. Then resume by hand from the middle and forget one thing",
    next="Is a boundary a wall?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)


def configuration(corpus: Corpus, lab: Lab) -> TrainConfig:
    """The run, in the folder `run` of wherever the process stands."""
    return TrainConfig(
        data=str(corpus.path),
        out="run",
        model=SHAPE,
        steps=16 if lab.quick else 100,
        batch_rows=4 if lab.quick else 16,
        evaluate_every=20,
        save_every=4 if lab.quick else 5,
        keep=99,
        dropout=0.1,
        sample_tokens=0,
        device="cuda" if lab.device == "cuda" else "cpu",
        threads=1,
    )


def work(say: Callable[[int], None], config: TrainConfig, how: str) -> None:
    """What a process does that will be killed: it begins the run or goes on with it, and says each step."""

    class Steps(Unseen):
        def stepped(self, row: Mapping[str, Any], seconds: float) -> None:
            say(row["step"])

    trainer.train(config, Steps()) if how == "train" else trainer.resume("run", Steps())


FORGOTTEN: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "Muon's momentum": ("muon.",),
    "Adam's averages": ("adam.",),
    "Adam's count of steps": ("steps_done",),
    "the whole optimizer": ("muon.", "adam.", "steps_done"),
    "the place in the data": ("data",),
    "the place in the schedule": ("schedule",),
}


def go_on(name: str, folder: Path, corpus: Corpus, step: int) -> tuple[list[float], Run]:
    """Take up a run at a step, forget one thing, and train to the end; losses by step, and the run."""
    lost = FORGOTTEN[name]
    found, model = checkpoint.load(checkpoint.step_folder(folder, step))
    config = TrainConfig.from_dict((found.manifest or {})["config"], str(found.folder))
    run = trainer.prepare(folder, config, choose_machine(config), corpus, model, Unseen())
    run.optimizer.load_state(checkpoint.load_training(found), str(found.folder))
    for key, tensor in run.optimizer.state().items():
        if key.startswith(lost):
            tensor.zero_()
    run.optimizer.steps_done *= "steps_done" not in lost
    losses = []
    for number in range(step, run.steps):
        scale = rate_scale(number - step * ("schedule" in lost), run.steps, config.warmup, config.decay)
        batch = run.plan.batch(number - step * ("data" in lost))
        losses.append(train_step(run, batch, number, scale)[0])
    return losses, run


def compare(alone: Path, other: Path, steps: int) -> dict[str, tuple[int, bool]]:
    """The files of two runs that should be one: their size, and whether all bytes are equal."""
    last = [f"step-{steps:08d}/{n}" for n in (checkpoint.MODEL, checkpoint.TRAINING, checkpoint.MANIFEST)]
    names = (*last, "metrics.jsonl", "run.json", "timings.jsonl")
    pairs = {name: [(run / name).read_bytes() for run in (alone, other)] for name in names}
    return {name: (len(one), one == two) for name, (one, two) in pairs.items()}


def experiment(lab: Lab) -> None:
    with workspace() as folder:
        limit = CorpusConfig(max_documents=3_000 if lab.quick else 8_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        config, alone, other = configuration(corpus, lab), folder / "alone", folder / "killed"
        steps, part = config.steps or 0, 5_000 if lab.quick else 20_000
        for place in (alone, other):
            place.mkdir()
        moments = sorted(random.SystemRandom().sample(range(8, steps - 4), 1 if lab.quick else 3))
        hows = zip(("train", "resume", "resume"), moments, strict=False)
        deaths = sum(killed(work, config, how, place=other, at=at) for how, at in hows)
        with contextlib.chdir(other):
            trainer.resume("run", Unseen())
        with contextlib.chdir(alone):
            trainer.train(config, Unseen())
        same = compare(alone / "run", other / "run", steps)
        rows = [row["loss"] for row in metrics.read_metrics(alone / "run") if "loss" in row][steps // 2 :]
        apart, gaps, bits, table = {}, {}, {}, []
        for name in FORGOTTEN:
            losses, run = go_on(name, alone / "run", corpus, steps // 2)
            differ = [abs(a - b) for a, b in zip(losses, rows, strict=True)]
            apart[name], first = max(differ), next((n for n, gap in enumerate(differ, 1) if gap), "never")
            gaps[name] = list(enumerate(accumulate(differ, max), steps // 2 + 1))
            bits[name] = evaluate(run.model, corpus.validation, limit=part).bits_per_byte
            table.append([name, str(first), f"{apart[name]:.4f}", f"{bits[name]:.3f}"])
        started = time.perf_counter()
        checkpoint.verify_step(checkpoint.save_step(folder, 1, run.model, run.optimizer.state(), {}))
        seconds = time.perf_counter() - started
    lab.note(f"killed at step {', '.join(map(str, moments))} of {steps}, and resumed each time:")
    lab.table(["file", "bytes", "equal"], [[name, *facts] for name, facts in same.items()])
    lab.note(f"resumed by hand at step {steps // 2}, with one thing forgotten:")
    lab.table(["forgotten", "first loss that differs", "farthest apart", "bits per byte"], table)
    few = ("nothing", "Muon's momentum", "the place in the data", "the place in the schedule")
    shown, y = {f"forgotten: {name}": gaps[name] for name in few}, "losses: farthest apart so far, in nats"
    lab.figure(lambda: figures.lines(shown, x="step", y=y, log="y", marks=False))
    size = sum(facts[0] for facts in list(same.values())[:3])
    for key, name in (
        ("momentum", "Muon's momentum"),
        ("count", "Adam's count of steps"),
        ("exact", "nothing"),
    ):
        lab.value(f"{key}_apart", apart[name], tolerance=apart[name] / 2)
        lab.value(f"{key}_bits", bits[name], tolerance=0.1)
    lab.value("kilobytes", size / 1000, tolerance=3)
    better = [name for name in FORGOTTEN if bits[name] < bits["nothing"]]
    lab.otherwise(
        f"Forgetting did not always make it worse: {len(better)} of {len(FORGOTTEN) - 1} end with a better "
        f"held-out number than the run that forgot nothing ({', '.join(better) or 'none'}). A forgotten "
        "state is another run, not a bad one, so no look at a curve finds it. It has to be refused by name."
    )
    lab.costs(
        f"{size:,} bytes and {1000 * seconds:.0f} ms for each checkpoint: written, brought to the "
        "disk, read back, hashed. What was trained since the last one is lost, and trained again."
    )
    lab.proves(
        "that a killed process loses steps and nothing else, and that each part of the state matters.",
        does_not_prove="the same across machines, library versions or numbers of threads: there sums are "
        "rounded in another order. A resume under others says so and records it.",
    )
    lab.check("the process was killed every time", deaths == len(moments))
    lab.check("weights, optimizer, manifest, metrics are equal", all(e for _, e in list(same.values())[:5]))
    lab.check("nothing forgotten, nothing changed", apart["nothing"] == 0)
    lab.check("whatever is forgotten is noticed", all(apart[n] > 0 for n in FORGOTTEN if n != "nothing"))


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
