"""Stage 09: where the parameters of a Transformer are, what they cost, and what each of them buys."""

import dataclasses
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from tinylm import trainer
from tinylm.config import PRESETS, CorpusConfig, ModelConfig, TrainConfig
from tinylm.contract import VOCABULARY_SIZE
from tinylm.corpus import Corpus, build_corpus
from tinylm.model import Transformer, flops_per_token, parameter_count
from tinylm.reports import Unseen
from tinylm.walkthrough import Lab, Stage, figures, workspace

STAGE = Stage(
    number=9,
    title="transformer",
    question="What does each parameter buy?",
    hypothesis="With 257 tokens the embedding is small change: the layers hold nearly everything, and the "
    "MLPs most of that. At equal steps, doubling the width buys more than doubling the layers, and a second "
    "key/value head is worth its parameters.",
    experiment="count parameters and operations by formula and by inspection; train five shapes for equally "
    "many steps on the same text",
    next="When is a loss curve right?",
)
BASE = ModelConfig(layers=1, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=32, window=64)
SHAPES = {
    "base: 1 layer x 32": BASE,
    "2 layers": dataclasses.replace(BASE, layers=2),
    "width 64": dataclasses.replace(BASE, width=64, mlp_width=192, heads=4, kv_heads=4),
    "MLP x 2": dataclasses.replace(BASE, mlp_width=192),
    "1 key/value head": dataclasses.replace(BASE, kv_heads=1),
}


def counted(model: Transformer) -> dict[str, int]:
    """Parameters by what they belong to, counted in the model itself."""
    found = {"embedding and head": 0, "attention": 0, "MLP": 0, "gains": 0}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            found["gains"] += parameter.numel()
        elif ".self_attn." in name:
            found["attention"] += parameter.numel()
        elif ".mlp." in name:
            found["MLP"] += parameter.numel()
        else:
            found["embedding and head"] += parameter.numel()
    return found


def first_loss(config: ModelConfig) -> float:
    """Cross-entropy of the untrained model on random tokens, in nats."""
    ids_BT = torch.randint(0, VOCABULARY_SIZE, (4, 33), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits_BTV = Transformer(config)(ids_BT[:, :-1])
    return float(F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()))


def trained(corpus: Corpus, config: ModelConfig, out: Path, lab: Lab) -> float:
    """Held-out bits per byte of a shape after the stage's number of steps."""
    result = trainer.train(
        TrainConfig(
            data=str(corpus.path),
            out=str(out),
            model=config,
            steps=20 if lab.quick else 150,
            batch_rows=16,
            sample_tokens=0,
            evaluate_every=1_000,
            device="cuda" if lab.device == "cuda" else "cpu",
            precision="float32",
            compile="no",
        ),
        Unseen(),
    )
    assert result.evaluation is not None
    return result.evaluation.bits_per_byte


def experiment(lab: Lab) -> None:
    rows = []
    for name in ("nano", "micro", "mini"):
        config, found = PRESETS[name], counted(Transformer(PRESETS[name]))
        total = sum(found.values())
        lab.check(f"{name}: the formula counts right", total == parameter_count(config))
        shares = [f"{100 * part / total:.1f} %" for part in found.values()]
        rows.append([name, total, *shares, flops_per_token(config, config.window) / (2 * total)])
        lab.value(f"{name}_parameters", total)
        lab.value(f"{name}_token_share", 100 * found["embedding and head"] / total, tolerance=0.05)
    lab.table(["preset", "parameters", *counted(Transformer(BASE)), "FLOPs / (2 x parameters)"], rows)
    losses = [first_loss(PRESETS[name]) for name in ("nano", "micro", "mini")]
    lab.note(
        f"first loss of the three: {', '.join(f'{loss:.4f}' for loss in losses)}; ln 257 = "
        f"{math.log(257):.4f}"
    )

    table, bits = [], {}
    with workspace() as folder:
        limit = CorpusConfig(max_documents=2_000 if lab.quick else 20_000, truncate=True)
        corpus = build_corpus("builtin:unicode", folder / "corpus", limit)
        for number, (name, config) in enumerate(SHAPES.items()):
            bits[name] = trained(corpus, config, folder / f"run-{number}", lab)
            gained = bits["base: 1 layer x 32"] - bits[name]
            more = parameter_count(config) / parameter_count(BASE)
            flops = flops_per_token(config, config.window) / flops_per_token(BASE, BASE.window)
            table.append(
                [
                    name,
                    parameter_count(config),
                    f"{more:.2f} x",
                    f"{flops:.2f} x",
                    bits[name],
                    f"{gained:+.3f}",
                ]
            )
    lab.table(["shape", "parameters", "of base", "FLOPs of base", "bits per byte", "gained"], table)
    names = list(SHAPES)
    at = {name: (parameter_count(config) / 1000, bits[name]) for name, config in SHAPES.items()}
    lab.figure(
        lambda: figures.lines(
            {name: [at[names[0]], at[name]] for name in names[1:]},
            x="thousand parameters",
            y="bits per byte, held out",
            levels={names[0]: bits[names[0]]},
        )
    )
    for key, name in zip(("base", "layers", "width", "mlp", "grouped"), names, strict=True):
        lab.value(f"{key}_bits", bits[name], tolerance=0.08)
    wider, deeper, shared = (
        bits[names[0]] - bits[name] for name in ("width 64", "2 layers", "1 key/value head")
    )
    added = [parameter_count(SHAPES[name]) - parameter_count(BASE) for name in ("width 64", "2 layers")]
    lab.otherwise(
        f"Doubling the width bought {wider:.3f} bits per byte and the second layer {deeper:.3f}, with a "
        f"quarter of the parameters ({added[1]:,} instead of {added[0]:,} more): per parameter, depth wins "
        f"here. Taking away one key/value head of two saves 2,048 parameters and costs {-shared:.3f}; "
        "doubling the MLP hardly shows. The MLPs hold most parameters, and at this length of training they "
        "are the worst buy."
    )
    lab.costs(
        "A parameter of a matrix costs two operations per token forward and four backward; attention adds a "
        "term that grows with the window. Tensor names and shapes are an interface: exports, checkpoints and "
        "other programs read them."
    )
    lab.proves(
        "that the formulas count this model exactly, that the first loss is ln 257, and what one doubling "
        "bought here.",
        does_not_prove="that the order holds for longer training: a larger model needs more text to pay.",
    )
    lab.check(
        "the first loss is ln 257 within 0.05", all(abs(loss - math.log(257)) < 0.05 for loss in losses)
    )
    lab.check("every shape learns", all(value < 6.5 for value in bits.values()))
    lab.check("twice the width helps", lab.quick or bits["width 64"] < bits["base: 1 layer x 32"])


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
