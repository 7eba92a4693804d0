"""Stage 02: a gradient written by hand walks to the counted answer, and to one that nobody can count."""

import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tinylm.baselines import ladder
from tinylm.contract import VOCABULARY_SIZE as V
from tinylm.walkthrough import Lab, Stage, figures
from tinylm.walkthrough.texts import split_names

STAGE = Stage(
    number=2,
    title="gradient",
    question="What does a gradient know that a count does not?",
    hypothesis="For a table of pairs, nothing: the counted table is the minimum of the loss, and a gradient "
    "has to walk there in steps. It arrives at the counted bits per byte, later and at more cost. Its "
    "advantage must lie where there is no formula for the answer.",
    experiment="write the gradient of a bigram model by hand; check it against finite differences and "
    "autograd; walk to the counted table of 1,800 names; then squeeze the table through 16 numbers per byte",
    next="Is temperature part of the model?",
)
WIDTH, STEPS, SHOWN = 16, 1_000, (0, 1, 10, 100, 250, 500, 1_000)
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


def log_softmax(logits: Floats) -> Floats:
    """Logarithms of the probabilities along the last axis; the maximum is taken off first."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def loss_and_gradient(table_VV: Floats, inputs_N: Tokens, targets_N: Tokens) -> tuple[float, Floats]:
    """Mean cross-entropy in nats, rows of the table being logits, and its gradient [V, V].

    For one pair (x, y) the gradient of row x is p - 1[y]: what the model said minus what came.
    """
    rows = np.arange(len(inputs_N))
    log_p_NV = log_softmax(table_VV[inputs_N])
    error_NV = np.exp(log_p_NV)
    error_NV[rows, targets_N] -= 1
    gradient_VV = np.zeros_like(table_VV)
    np.add.at(gradient_VV, inputs_N, error_NV / len(rows))
    return float(-log_p_NV[rows, targets_N].mean()), gradient_VV


def counted(inputs_N: Tokens, targets_N: Tokens) -> Floats:
    """How often each token follows each, float64 [V, V]."""
    return np.bincount(inputs_N * V + targets_N, minlength=V * V).reshape(V, V).astype(np.float64)


def gradient_from_counts(table_VV: Floats, count_VV: Floats) -> Floats:
    """The gradient over all pairs at once: pairs that are equal have equal gradients."""
    total_V1 = count_VV.sum(axis=1, keepdims=True)
    gradient_VV: Floats = (total_V1 * np.exp(log_softmax(table_VV)) - count_VV) / count_VV.sum()
    return gradient_VV


def descend(parts: list[Floats], count_VV: Floats, rate: float, steps: int) -> Iterator[Floats]:
    """Gradient descent with momentum 0.9 on the product of `parts`, in place; yields each step's table."""
    speeds = [np.zeros_like(part) for part in parts]
    for _ in range(steps + 1):
        yield (table_VV := parts[0] if len(parts) == 1 else parts[0] @ parts[1])
        slope_VV = gradient_from_counts(table_VV, count_VV)
        # The chain rule through a product: what reaches one factor went through the other.
        slopes = [slope_VV] if len(parts) == 1 else [slope_VV @ parts[1].T, parts[0].T @ slope_VV]
        for part, speed, slope in zip(parts, speeds, slopes, strict=True):
            speed[:] = 0.9 * speed + slope
            part -= rate * speed


def farthest_apart(table_VV: Floats, inputs_N: Tokens, targets_N: Tokens) -> tuple[float, float, float]:
    """How far it is from central differences (an entry per pair), autograd and counts."""
    _, by_hand_VV = loss_and_gradient(table_VV, inputs_N, targets_N)
    differences, step = [], np.zeros_like(table_VV)
    for place in zip(inputs_N, np.arange(len(inputs_N)), strict=True):
        step[place] = 1e-4
        above, below = (loss_and_gradient(table_VV + sign * step, inputs_N, targets_N)[0] for sign in (1, -1))
        differences.append(abs((above - below) / 2e-4 - by_hand_VV[place]))
        step[place] = 0
    table = torch.from_numpy(table_VV).requires_grad_()
    loss = F.cross_entropy(table[torch.from_numpy(inputs_N)], torch.from_numpy(targets_N))
    autograd_VV = torch.autograd.grad(loss, table)[0].numpy()
    counts_VV = gradient_from_counts(table_VV, counted(inputs_N, targets_N))
    return (max(differences), *(float(np.abs(x - by_hand_VV).max()) for x in (autograd_VV, counts_VV)))


def experiment(lab: Lab) -> None:
    train, text = splits = split_names(2_000)
    pairs = [(s.stream[:-1].astype(np.int64), s.stream[1:].astype(np.int64)) for s in splits]
    count_VV, held_VV = (counted(*both) for both in pairs)
    random = np.random.default_rng(0)
    apart = farthest_apart(random.normal(0, 1, (V, V)), *(part[:100] for part in pairs[0]))
    far = "by {:.0e} from finite differences, {:.0e} from autograd, {:.0e} from counts".format(*apart)
    lab.note(f"the gradient by hand differs {far}")

    def bits(log_p_VV: Floats) -> tuple[float, float]:
        seen, held = (-(c[c > 0] * log_p_VV[c > 0]).sum() / np.log(2) for c in (count_VV, held_VV))
        return float(seen / train.bytes), float(held / text.bytes)

    with np.errstate(divide="ignore"):
        exact = bits(np.log(count_VV / np.maximum(count_VV.sum(axis=1, keepdims=True), 1)))
    smoothed = [ladder(train, split, orders=(2,), compressors=())[1].bits_per_byte for split in splits]
    walk = enumerate(descend([np.zeros((V, V))], count_VV, 60.0, STEPS))
    walked = {step: bits(log_softmax(table_VV)) for step, table_VV in walk if step in SHOWN}
    lab.table(
        ["step", "on the counted text", "above the count", "held out"],
        [[step, seen, f"{seen - exact[0]:.4f}", held] for step, (seen, held) in walked.items()],
    )
    parts = [random.normal(0, 0.3, (V, WIDTH)), random.normal(0, 0.3, (WIDTH, V))]
    *_, narrow_VV = descend(parts, count_VV, 2.0, 300)
    narrow, best = bits(log_softmax(narrow_VV)), min(walked.values(), key=lambda both: both[1])
    lab.table(
        ["bigram model", "numbers", "on the counted text", "held out"],
        [
            ["counted, nothing kept back", V * V, *exact],
            ["counted, Witten-Bell", V * V, *smoothed],
            ["gradient, all steps", V * V, *walked[STEPS]],
            ["gradient, stopped at its best", V * V, *best],
            [f"gradient, {WIDTH} numbers per byte", 2 * V * WIDTH, *narrow],
        ],
    )
    unit = parts[0][65:91] / np.linalg.norm(parts[0][65:91], axis=1, keepdims=True)
    near = ["".join(chr(65 + i) for i in np.argsort(-unit @ unit[ord(x) - 65])[:3]) for x in "ATK"]
    lab.note(f"capital letters whose rows point nearly the same way: {', '.join(near)}")
    walks = {"on the counted text": 0, "held out": 1}
    lab.figure(
        lambda: figures.lines(
            {name: [(n, both[i]) for n, both in walked.items() if n >= 10] for name, i in walks.items()},
            x="steps of the gradient, from 10 on",
            y="bits per byte",
            levels={"counted, held out": smoothed[1], f"{WIDTH} numbers per byte, held out": narrow[1]},
            log="x",
        )
    )
    lab.value("counted", exact[0])
    lab.value("smoothed", smoothed[1])
    lab.value("narrow_held", narrow[1], tolerance=0.03)
    for step, (seen, held) in walked.items():
        lab.value(f"seen_{step}", seen, tolerance=0.002)
        lab.value(f"held_{step}", held, tolerance=0.005)
    lab.otherwise(
        "The gradient never quite arrives: the count wants logits of minus infinity for unseen pairs. Not to "
        "arrive is better: on held-out text the exact minimum pays infinitely many bits, the table smoothed "
        f"by hand {smoothed[1]:.3f}, the gradient at its best {best[1]:.3f}. An eighth of the numbers does "
        f"better still, {narrow[1]:.3f}: to get along with 16 it had to find which bytes behave alike."
    )
    lab.costs(
        f"{STEPS:,} steps against one pass of counting. A gradient that is wrong in a factor or in some rows "
        "still leads downhill, so the loss does not tell: finite differences do."
    )
    lab.proves(
        "that this gradient is right, leads a table to the counted bits, and trains what has no count.",
        does_not_prove="that a gradient finds the best answer where a loss has more than one valley.",
    )
    lab.check("finite differences, autograd and counts agree", apart[0] < 1e-8 and max(apart[1:]) < 1e-12)
    gaps = [seen - exact[0] for seen, _ in walked.values()]
    lab.check("it comes near the counted bits per byte and never passes them", 0 < min(gaps) < 0.01)
    lab.check("sharing beats smoothing", narrow[1] < best[1] < smoothed[1])


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
