"""Stage 10: a loss curve that can be checked at both ends, and steps that can be cut in any way."""

import dataclasses
import math
import sys
from pathlib import Path

from tinylm import metrics, trainer, training_step
from tinylm.config import CorpusConfig, ModelConfig, TrainConfig
from tinylm.corpus import Corpus, build_corpus
from tinylm.devices import choose_machine
from tinylm.model import Transformer
from tinylm.optimizer import rate_scale
from tinylm.reports import Unseen
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=10,
    title="training",
    question="When is a loss curve right?",
    hypothesis="When it begins at ln 257 = 5.549 nats, ends well below a unigram, and is the same curve "
    "whether a batch is computed in one piece or in four, and whether it is computed today or again "
    "tomorrow. AdamW alone should do about as well as Muon at this size.",
    experiment="train one small model four times on names of characters: as it is, again, in micro-batches, "
    "and with the layers' matrices moved by AdamW instead of Muon",
    next="What is a bit per byte?",
)
SHAPE = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=2, head_size=32, window=64)


def configuration(corpus: Corpus, out: Path, lab: Lab) -> TrainConfig:
    """One run; everything that is not said here is the library's default."""
    return TrainConfig(
        data=str(corpus.path),
        out=str(out),
        model=SHAPE,
        steps=20 if lab.quick else 120,
        batch_rows=16,
        evaluate_every=1_000,
        sample_tokens=0,
        device="cuda" if lab.device == "cuda" else "cpu",
        precision="float32",
        compile="no",
    )


def losses(run: Path) -> list[float]:
    """The training loss of every step, in nats per target."""
    return [row["loss"] for row in metrics.read_metrics(run) if "loss" in row]


def gradients_apart(corpus: Corpus, folder: Path, lab: Lab) -> float:
    """The largest difference between the gradients of one big batch and of four micro-batches, in float64."""
    found = []
    for rows in (16, 4):
        config = dataclasses.replace(
            configuration(corpus, folder / "x", lab), device="cpu", precision="float64"
        )
        run = trainer.prepare(folder, config, choose_machine(config), corpus, Transformer(SHAPE), Unseen())
        run.micro_rows = rows
        training_step.accumulate(run, run.plan.batch(0), 0)
        found.append([p.grad for p in run.model.parameters() if p.grad is not None])
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))


def experiment(lab: Lab) -> None:
    with workspace() as folder:
        limit = CorpusConfig(max_documents=3_000 if lab.quick else 30_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        plain = configuration(corpus, folder / "plain", lab)
        results = {
            "Muon and AdamW": trainer.train(plain, Unseen()),
            "the same again": trainer.train(dataclasses.replace(plain, out=str(folder / "again")), Unseen()),
            "in 4 micro-batches": trainer.train(
                dataclasses.replace(plain, out=str(folder / "cut"), micro_rows=4), Unseen()
            ),
            "AdamW alone": trainer.train(
                dataclasses.replace(plain, out=str(folder / "adam"), muon=False), Unseen()
            ),
        }
        curves = {name: losses(result.run) for name, result in results.items()}
        rows: list[list[object]] = []
        bits = {}
        for name, result in results.items():
            assert result.evaluation is not None
            bits[name] = result.evaluation.bits_per_byte
            curve = curves[name]
            apart = max(abs(a - b) for a, b in zip(curve, curves["Muon and AdamW"], strict=True))
            rows.append([name, curve[0], curve[len(curve) // 4], curve[-1], f"{apart:.1e}", bits[name]])
        apart = gradients_apart(corpus, folder, lab)
    lab.table(["run", "first loss", "at a quarter", "last loss", "farthest apart", "bits per byte"], rows)
    drawn = {name: list(enumerate(curves[name])) for name in ("Muon and AdamW", "AdamW alone")}
    loose = {
        "in 4 micro-batches": list(enumerate(curves["in 4 micro-batches"]))[10::10],
        "ln 257": [(0, math.log(257))],
    }
    y = "training loss, nats per target"
    lab.figure(lambda: figures.lines(drawn | loose, x="step", y=y, loose=[*loose], log="y", marks=False))
    scales = [rate_scale(step, 120, 0.02, 0.6) for step in (0, 2, 24, 47, 84, 119)]
    lab.note("rate at steps 0, 2, 24, 47, 84, 119 of 120: " + ", ".join(f"{scale:.3f}" for scale in scales))
    lab.note(f"gradients of one big batch and of four micro-batches, in float64: at most {apart:.1e} apart")
    plainly = curves["Muon and AdamW"]
    first, muon, adam = plainly[0], bits["Muon and AdamW"], bits["AdamW alone"]
    lab.value("first_loss", first, tolerance=0.001)
    lab.value("muon_bits", muon, tolerance=0.06)
    lab.value("adam_bits", adam, tolerance=0.10)
    lab.value("last_bits", plainly[-1] / math.log(2), tolerance=0.06)
    lab.otherwise(
        f"Muon is not a detail: {muon:.3f} bits per byte against {adam:.3f} for AdamW alone after the same "
        f"steps. The last training loss, {plainly[-1] / math.log(2):.3f} bits per token, is below the "
        "held-out number although no text was seen twice: neighbours in this text are alike, and a training "
        "window shows them side by side. And the run in micro-batches differs in the seventh digit: equal "
        "mathematics is not equal bits, which is why a run records how it was cut."
    )
    lab.costs(
        "Muon costs five small matrix products per matrix and step, about as much as 500 tokens of training "
        "at width "
        "128, so it wants steps of thousands of tokens. A loss averaged over micro-batches instead of over "
        "targets would weigh short rows more, and every later number would inherit it."
    )
    lab.proves(
        "that the first loss is ln 257, that a run repeats exactly, and that accumulation is the big batch.",
        does_not_prove="that the model is good: for that, hold text out and count bits (stage 11).",
    )
    lab.check("the first loss is ln 257 within 0.05", abs(first - math.log(257)) < 0.05)
    lab.check("the same run twice is the same curve", plainly == curves["the same again"])
    lab.check("accumulated gradients equal the big batch", apart < 1e-10)
    lab.check("it learns", plainly[-1] < 0.6 * first)
    lab.check("Muon is ahead", lab.quick or muon < adam)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
