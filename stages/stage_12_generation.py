"""Stage 12: generation ends where the model says so: on a newly sampled boundary."""

import sys
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from tinylm.batches import IGNORED, Plan
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.events import End
from tinylm.generate import Context, generate, prompt_ids, window_start
from tinylm.model import Transformer
from tinylm.sampling import distribution
from tinylm.tokenizer import Ids, encode
from tinylm.walkthrough import Lab, Stage

STAGE = Stage(
    number=12,
    title="generation",
    question="When does a document end?",
    hypothesis="When the model samples a boundary: nothing else knows. A boundary that was given (the seed, "
    "or one in the prompt) says where a document begins, so it must not stop anything. And a model learns to "
    "sample boundaries only where training scores them: mask those targets, and it never ends.",
    experiment="train one tiny model twice on the same twelve documents, once with boundary targets masked; "
    "let both write; then end a generation in every way there is, and go past the window",
    next="What must match before weights may be trusted?",
)
MODEL = ModelConfig(layers=2, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=16, window=64)
DOCUMENTS = (
    "Rain. Then sun.",
    "Two cats sleep.\nOne wakes.",
    "안녕하세요.",
    "😊📚😊",
    "Привет, мир!",
    "Kaffee? Ja, bitte.",
    "3.5 is less than 4.",
    "שלום",
    "今日は雨です。",
    "नमस्ते",
    "One fish. Two fish.",
    "Ende gut, alles gut.",
)
GREEDY = GenerateConfig(temperature=0.0, max_tokens=100)
SAMPLES, LIMIT, FAR = 20, 100, 150


def shuffled_stream() -> Split:
    """Forty rounds of the documents, each in another order: what follows a document cannot be known."""
    order = np.random.default_rng(0)
    rounds = [order.permutation(len(DOCUMENTS)) for _ in range(40)]
    return Split.of(DOCUMENTS[index].encode() for one in rounds for index in one)


def train(split: Split, score_boundaries: bool, steps: int, device: str) -> tuple[Transformer, float]:
    """A tiny model trained with plain AdamW, and its last loss in bits per target."""
    model = Transformer(MODEL, seed=0).to(device)
    plan = Plan(split, "cross", MODEL.window, 16, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        batch = plan.batch(step)
        inputs, targets = (torch.from_numpy(x).to(device) for x in (batch.inputs_BT, batch.targets_BT))
        if not score_boundaries:
            targets = targets.masked_fill(targets == DOC_BOUNDARY, IGNORED)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.param_groups[0]["lr"] = 0.01 * min(1.0, (step + 1) / 10, 2 * (1 - step / steps))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model, loss.item() / float(np.log(2))


def write(model: Transformer, prompt: str | Ids, config: GenerateConfig) -> tuple[list[int], str, End]:
    """The ids, text and end of one generation."""
    events = list(generate(model, prompt, config))
    end = events[-1].end
    assert end is not None
    return [i for event in events for i in event.ids], "".join(event.text for event in events), end


def end_probability(model: Transformer, text: str) -> float:
    """The probability that the document ends after `text`."""
    logits_V = Context(model, prompt_ids(text)).logits()
    return float(distribution(logits_V, GenerateConfig(temperature=1.0))[DOC_BOUNDARY])


def experiment(lab: Lab) -> None:
    split, steps = shuffled_stream(), 100 if lab.quick else 200
    rows, ended, models = [], {}, {}
    for name, scored in (("scored", True), ("masked", False)):
        models[name], loss = train(split, scored, steps, lab.device)
        configs = [GenerateConfig(seed=s, temperature=1.0, max_tokens=LIMIT) for s in range(SAMPLES)]
        written = [write(models[name], "", config) for config in configs]
        ended[name] = sum(end.reason == "boundary" for _, _, end in written)
        whole = sum(text in DOCUMENTS and end.reason == "boundary" for _, text, end in written)
        lab.value(f"ended_{name}", ended[name], tolerance=1)
        lab.value(f"whole_{name}", whole, tolerance=4)
        mean = float(np.mean([end.tokens for _, _, end in written]))
        rows.append(
            [name, split.boundaries if scored else 0, loss, f"{ended[name]} of {SAMPLES}", whole, mean]
        )
        lab.value(f"tokens_{name}", mean, tolerance=4)
    lab.table(
        ["boundary targets", "of them", "bits/target", "ended by itself", "whole documents", "tokens"], rows
    )
    lab.note(f"The masked model, seed 0: {write(models['masked'], '', configs[0])[1][:60]!r} ...")

    model = models["scored"]
    texts = ("😊", "😊📚", "😊📚😊", "Two cats sleep.", "Two cats sleep.\nOne wakes.")
    likely = {text: [end_probability(models[name], text) for name in ("scored", "masked")] for text in texts}
    lab.table(["so far", "p(ends here), scored", "masked"], [[repr(t), *p] for t, p in likely.items()])

    emoji = encode("😊📚😊")
    asked: dict[str, tuple[str | Sequence[int], GenerateConfig]] = {
        "(256,) alone": ("", GREEDY),
        "256, a document, 256": ([DOC_BOUNDARY, *emoji, DOC_BOUNDARY], GREEDY),
        "text 😊": ("😊", GREEDY),
        "text 😊, limit 2": ("😊", GenerateConfig(temperature=0.0, max_tokens=2)),
        "text 😊, limit 0": ("😊", GenerateConfig(temperature=0.0, max_tokens=0)),
        "text Two, stop '\\n'": ("Two", GenerateConfig(temperature=0.0, stop=("\n",))),
    }
    results = {name: write(model, *request) for name, request in asked.items()}
    rows = [[name, repr(r[1]), str(r[0][-3:]), r[2].reason, r[2].tokens] for name, r in results.items()]
    lab.table(["given", "text", "last ids", "end", "tokens"], rows)

    read: list[int] = []
    hook = models["masked"].register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape[1]))
    ids = [DOC_BOUNDARY, *write(models["masked"], "", GenerateConfig(seed=1, max_tokens=FAR))[0]][:FAR]
    cached = lab.value("read_cached", sum(read))
    hook.remove()
    uncached = sum(n - window_start(n, MODEL.window) for n in range(1, FAR + 1))
    running, apart = Context(models["masked"], ids[:1]), 0.0
    for n in range(1, len(ids) + 1):
        apart = max(apart, float(abs(running.logits() - Context(models["masked"], ids[:n]).logits()).max()))
        running.append(ids[min(n, len(ids) - 1)])
    lab.value("read_uncached", uncached)
    lab.note(
        f"{FAR} tokens in a window of {MODEL.window}: {cached} ids read with the cache, {uncached:,} without; "
        f"logits differ by at most {apart:.0e}"
    )
    lab.otherwise(
        "Full stops do not end documents, and neither does the last word of a sentence: only the position of "
        "the boundary in training does. The masked model has seen every byte that the other has, is as sure of "
        "each, and still runs on from one document into the next until a limit stops it; its probability of "
        "an end is not small by chance, every target that it was scored on pushed it down. A limit of 2 ends "
        "inside a character: the text shows U+FFFD, the ids keep both bytes."
    )
    lab.costs(
        "one forward pass per byte, so 안녕하세요. costs 17 for 6 characters. Past the window half of it is read "
        "again each time: about two ids read per token sampled, whatever the length. A boundary masked as if "
        "it were padding is noticed by nobody until the model is used, and no sampler can repair it."
    )
    lab.proves(
        "that a given boundary stops nothing, that a sampled one does, that the end is learnt from scored "
        "boundaries alone, and that the cache changes what is read, not what is said.",
        does_not_prove="that a model ends documents well that it has not seen: these twelve are known by heart. "
        "Stage 11 measures that, in bits per boundary of held-out text.",
    )
    lab.check("scored boundaries end generations", ended["scored"] >= SAMPLES - 2)
    lab.check("masked boundaries end none", ended["masked"] <= 1)
    lab.check("seeded, not stopped, by 256", results["(256,) alone"][1] in DOCUMENTS)
    lab.check("a boundary in the prompt stops nothing", len(results["256, a document, 256"][1]) > 0)
    lab.check("a document is continued to its end", results["text 😊"][0] == [*emoji[4:], DOC_BOUNDARY])
    lab.check("a limit inside a character", results["text 😊, limit 2"][:2] == ([*emoji[4:6]], "\ufffd"))
    lab.check("no token for a limit of 0", results["text 😊, limit 0"] == ([], "", End("limit", "", 0)))
    lab.check("a stop string", results["text Two, stop '\\n'"][1:] == (" cats sleep.", End("stop", "\n", 13)))
    lab.check("same seed, same ids", write(model, "", configs[3]) == write(model, "", configs[3]))
    lab.check("cached equals uncached", apart < 1e-4 and len(ids) == FAR)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
