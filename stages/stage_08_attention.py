"""Stage 08: attention written out, a proof that nothing reads its future, and a model without the mask."""

import sys
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinylm.attention import attend
from tinylm.batches import IGNORED, Plan
from tinylm.config import GenerateConfig, ModelConfig, TrainConfig
from tinylm.corpus import Split
from tinylm.devices import cpu_threads
from tinylm.evaluate import evaluate
from tinylm.generate import generate
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.walkthrough import Lab, Stage, figures
from tinylm.walkthrough.probes import moved
from tinylm.walkthrough.texts import split_names

STAGE = Stage(
    number=8,
    title="attention",
    question="Can a position read its future?",
    hypothesis="It must not: its target stands in its own row, one place further on. With the mask, changing "
    "byte t + 1 moves no logit up to t, not even in the last digit. Without it the loss falls to almost "
    "nothing, on held-out text as well, and the model is worthless.",
    experiment="write attention with loops and compare; change one byte at a time and see which logits move; "
    "train one small model with the mask and one without it on the same batches, and let both write",
    next="What does each parameter buy?",
)
CONFIG = ModelConfig(layers=2, width=64, mlp_width=160, heads=2, kv_heads=1, head_size=32, window=32)


def attention_by_hand(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor) -> Tensor:
    """Causal attention [B, H, T, K], a query at a time; G key/value heads, each shared by H/G queries."""
    B, H, T, K = q_BHTK.shape
    share = H // k_BGTK.shape[1]
    out_BHTK = torch.zeros_like(q_BHTK)
    for b, h, t in product(range(B), range(H), range(T)):
        keys_SK, values_SK = k_BGTK[b, h // share, : t + 1], v_BGTK[b, h // share, : t + 1]
        scores_S = torch.stack([q_BHTK[b, h, t] @ key_K for key_K in keys_SK]) / K**0.5
        weights_S = torch.exp(scores_S - scores_S.max())
        for weight, value_K in zip(weights_S / weights_S.sum(), values_SK, strict=True):
            out_BHTK[b, h, t] += weight * value_K
    return out_BHTK


def everything_seen(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, *_: Any) -> Tensor:
    """The fault: the same attention without its mask."""
    return F.scaled_dot_product_attention(q_BHTK, k_BGTK, v_BGTK, enable_gqa=True)


UNMASKED = mock.patch("tinylm.model.attend", everything_seen)


def trained(split: Split, steps: int, device: str) -> tuple[Transformer, float]:
    """The model after some steps of 16 rows, and its last loss in bits per target."""
    model = Transformer(CONFIG).to(device)
    optimizer = Optimizer(model, TrainConfig(data="names", muon_rate=0.03, adam_rate=0.01))
    plan = Plan(split, "cross", CONFIG.window, 16, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        inputs_BT, targets_BT = (torch.from_numpy(x).to(device) for x in (batch.inputs_BT, batch.targets_BT))
        loss = F.cross_entropy(model(inputs_BT).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
    return model, loss.item() / float(np.log(2))


def recorded(model: Transformer, ids_T: Tensor) -> list[Tensor]:
    """Queries, keys, values and the result of the model's own attention, in its last layer."""
    seen: list[Tensor] = []

    def record(*given: Any) -> Tensor:
        seen[:] = [*given[:3], attend(*given)]
        return seen[3]

    with mock.patch("tinylm.model.attend", record), torch.inference_mode():
        model(ids_T[None])
    return seen


def written(model: Transformer) -> str:
    """How the model goes on after `LATIN`, for 40 tokens at most, as a Python string."""
    events = generate(model, "A\tLATIN", GenerateConfig(temperature=1.0, seed=1, max_tokens=40))
    return repr("".join(event.text for event in events))


@cpu_threads(1)  # tensors this small lose more to the second thread than they gain
def experiment(lab: Lab) -> None:
    train, text = split_names(5_000)
    steps = 60 if lab.quick else 160
    masked, loss = trained(train, steps, lab.device)
    with UNMASKED:
        unmasked, open_loss = trained(train, steps, lab.device)
        open_bits = evaluate(unmasked, text).bits_per_byte
    ids_T = torch.from_numpy(text.stream[:32].astype(np.int64)).to(lab.device)

    q, k, v, own = recorded(masked, ids_T)
    kernel = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    by_hand = attention_by_hand(q.double(), k.double(), v.double())
    off = [float((other - by_hand).abs().max()) for other in (kernel, own)]
    lab.note(f"farthest from attention by hand: the kernel {off[0]:.0e}, the model's own {off[1]:.0e}")

    moves = {"with the mask": moved(masked, ids_T)}
    with UNMASKED:
        moves["without"] = moved(unmasked, ids_T)
    rows = []
    for name, moved_TT in moves.items():
        before, itself, after = moved_TT.tril(-1).max(), moved_TT.diagonal().min(), moved_TT.triu(1).max()
        rows.append([name, f"{before:.3g} at most", f"{itself:.3g} at least", f"{after:.3g} at most"])
    lab.table(["one token changed", "logits before it", "at it", "after it"], rows)
    lab.figure(
        lambda: figures.maps(
            {name: moved_TT.cpu().numpy() for name, moved_TT in moves.items()},
            x="position of the logits",
            y="position of the changed token",
            scale="farthest that a logit moved",
        )
    )
    bits, honest = (evaluate(model, text).bits_per_byte for model in (masked, unmasked))
    lab.table(
        ["model", "last training loss, bits", "held-out bits per byte", "the same, with the mask"],
        [["with the mask", loss, bits, bits], ["without", open_loss, open_bits, honest]],
    )
    lab.note(f"LATIN goes on {written(masked)} with the mask, and {written(unmasked)} without")

    for name, number in {"loss": loss, "open_loss": open_loss, "bits": bits, "open_bits": open_bits}.items():
        lab.value(name, number, tolerance=0.25 if "loss" in name else 0.1)
    lab.value("honest", honest, tolerance=1.5)
    lab.otherwise(
        f"Held-out text is no protection: without the mask the model needs {open_bits:.3f} bits per byte on "
        "names that it never saw, for there too it reads the answer. Only with the mask put back, as when it "
        f"generates, it shows what it has learnt: {honest:.3f}, where the honest model needs {bits:.3f}."
    )
    lab.costs(
        "The mask is free: the kernel skips what may not be seen, half of all products. Forgotten, it costs "
        "the whole run. A loss that is suspiciously good is a bug until it is explained."
    )
    lab.proves(
        "that in this model no logit depends on a later token, exactly, and that attention is what a dozen "
        "lines of loops say it is.",
        does_not_prove="that documents are kept apart (stage 15), or that what attention looks at is useful.",
    )
    lab.check("by hand equals the kernel and the model's own", max(off) < 1e-5)
    lab.check("no logit moves before the change, exactly", float(moves["with the mask"].tril(-1).max()) == 0)
    lab.check("every logit at the change moves", float(moves["with the mask"].diagonal().min()) > 0)
    lab.check("the test sees a missing mask", float(moves["without"].tril(-1).max()) > 0.1)
    lab.check("without the mask the loss is too good", open_loss < loss - (0.2 if lab.quick else 0.7))
    lab.check("and the model is worse", honest > bits + 1)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
