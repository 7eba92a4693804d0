"""Stage 12: generation ends where the model says so: on a newly sampled boundary."""

import sys
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

from tinylm.batches import IGNORED, Plan
from tinylm.config import GenerateConfig, ModelConfig, TrainConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.events import End
from tinylm.generate import Context, generate, prompt_ids, window_start
from tinylm.generate.reader import Reader
from tinylm.model import Transformer
from tinylm.optimizer import Optimizer, rate_scale
from tinylm.sampling import distribution
from tinylm.tokenizer import Ids, encode
from tinylm.walkthrough import Lab, Stage, figures

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
MODEL = ModelConfig(layers=2, width=32, mlp_width=96, heads=2, kv_heads=2, head_size=16, window=32)
DOCUMENTS = (
    *("Rain. Then sun.", "Two cats sleep.\nOne wakes.", "One fish. Two fish.", "3.5 is less than 4."),
    *("안녕하세요.", "😊📚😊", "Привет, мир!", "שלום", "今日は雨です。", "नमस्ते"),
    *("Kaffee? Ja, bitte.", "Ende gut, alles gut."),
)
GREEDY = GenerateConfig(temperature=0.0, max_tokens=64)
LIMIT, FAR = 48, 72


def shuffled_stream() -> Split:
    """Forty rounds of the documents, each in another order: what follows a document cannot be known."""
    order = np.random.default_rng(0)
    rounds = [order.permutation(len(DOCUMENTS)) for _ in range(40)]
    return Split.of(DOCUMENTS[index].encode() for one in rounds for index in one)


def train(split: Split, score_boundaries: bool, steps: int, device: str) -> tuple[Transformer, float]:
    """A tiny model that knows the documents by heart, and its last loss in bits per target."""
    model = Transformer(MODEL, seed=0).to(device)
    optimizer = Optimizer(model, TrainConfig(data="twelve documents", muon_rate=0.02, adam_rate=0.02))
    plan = Plan(split, "cross", MODEL.window, batch_rows=16, seed=0)
    for step in range(steps):
        batch = plan.batch(step)
        inputs, targets = (torch.from_numpy(x).to(device) for x in (batch.inputs_BT, batch.targets_BT))
        if not score_boundaries:
            targets = targets.masked_fill(targets == DOC_BOUNDARY, IGNORED)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step(rate_scale(step, steps, warmup=0.02, decay=0.6))
    return model, loss.item() / float(np.log(2))


def write(model: Transformer, prompt: str | Ids, config: GenerateConfig) -> tuple[list[int], str, End]:
    """The ids, text and end of one generation."""
    events = list(generate(model, prompt, config))
    end = events[-1].end
    assert end is not None
    return [i for event in events for i in event.ids], "".join(event.text for event in events), end


def end_probabilities(model: Transformer, text: str) -> list[float]:
    """The probability that the document ends, after each character of `text`."""
    logits_TV = [Context(model, prompt_ids(text[:n])).logits() for n in range(1, len(text) + 1)]
    return [float(distribution(row, GenerateConfig(temperature=1.0))[DOC_BOUNDARY]) for row in logits_TV]


def experiment(lab: Lab) -> None:
    split, steps, samples = shuffled_stream(), 100 if lab.quick else 160, 6 if lab.quick else 12
    models, ended, rows = {}, {}, []
    for name, scored in (("scored", True), ("masked", False)):
        models[name], loss = train(split, scored, steps, lab.device)
        configs = [GenerateConfig(seed=seed, temperature=1.0, max_tokens=LIMIT) for seed in range(samples)]
        written = [write(models[name], "", config) for config in configs]
        ended[name] = sum(end.reason == "boundary" for _, _, end in written)
        whole = sum(text in DOCUMENTS and end.reason == "boundary" for _, text, end in written)
        rows.append([name, split.boundaries if scored else 0, loss, f"{ended[name]} of {samples}", whole])
        lab.value(f"bits_{name}", loss, tolerance=0.15)
        lab.value(f"ended_{name}", ended[name], tolerance=1)
        lab.value(f"whole_{name}", whole, tolerance=4 if scored else 0)
    lab.table(["boundary targets", "of them", "bits/target", "ended by itself", "whole documents"], rows)
    lab.note(f"masked, seed 0: {write(models['masked'], '', configs[0])[1]!r}, and the limit of {LIMIT}")

    texts = ("😊", "😊📚", "😊📚😊", "Two cats sleep.", "Two cats sleep.\nOne wakes.")
    likely = {text: [end_probabilities(models[name], text)[-1] for name in models] for text in texts}
    lab.table(["so far", "p(ends here), scored", "masked"], [[repr(text), *p] for text, p in likely.items()])
    curves = {f"boundaries {n}": list(enumerate(end_probabilities(models[n], texts[-1]))) for n in models}
    x, ticks = "read so far, up to this character", [repr(letter)[1:-1] for letter in texts[-1]]
    lab.figure(lambda: figures.lines(curves, x=x, y="p(ends here)", ticks=ticks))
    lab.value("p_stop", likely["Two cats sleep."][0], tolerance=0.05)
    lab.value("p_end", likely["😊📚😊"][0], tolerance=0.05)

    model, emoji = models["scored"], encode("😊📚😊")
    asked: dict[str, tuple[str | Ids, GenerateConfig]] = {
        "(256,) alone": ("", GREEDY),
        "256, a document, 256": ([DOC_BOUNDARY, *emoji, DOC_BOUNDARY], GREEDY),
        "text 😊": ("😊", GREEDY),
        "text 😊, limit 2": ("😊", GenerateConfig(temperature=0.0, max_tokens=2)),
        "text 😊, limit 0": ("😊", GenerateConfig(temperature=0.0, max_tokens=0)),
        "text Two, stop '\\n'": ("Two", GenerateConfig(temperature=0.0, stop=("\n",))),
    }
    found = {name: write(model, *request) for name, request in asked.items()}
    ends = [
        [name, repr(text), str(ids[-3:]), end.reason, end.tokens] for name, (ids, text, end) in found.items()
    ]
    lab.table(["given", "text", "last ids", "end", "tokens"], ends)

    reader = mock.Mock(wraps=Reader(models["masked"], 1))
    with mock.patch("tinylm.generate.engine.Reader", return_value=reader):
        far, _, _ = write(models["masked"], "", GenerateConfig(seed=1, max_tokens=FAR))
    read = [len(call.args[2]) for call in reader.chunk.call_args_list]
    read += [len(ids) for call in reader.step.call_args_list for _, ids in call.args[0].values()]
    ids, apart, running = [DOC_BOUNDARY, *far], 0.0, Context(models["masked"], [DOC_BOUNDARY])
    for known, token in enumerate(far, start=1):
        afresh = Context(models["masked"], ids[:known])
        apart = max(apart, float(np.abs(running.logits() - afresh.logits()).max()))
        running.append(token)
    cached = lab.value("read_cached", sum(read))
    uncached = lab.value("read_uncached", sum(n - window_start(n, MODEL.window) for n in range(1, FAR + 1)))
    lab.note(
        f"{len(far)} tokens in a window of {MODEL.window}: {cached:.0f} ids read with the cache, "
        f"{uncached:,.0f} without; logits differ by at most {apart:.0e}"
    )
    lab.otherwise(
        "A full stop does not end a document, and 😊 ends one only the second time: what counts is where "
        "the boundary stood in training. The masked model is about as sure of its bytes as the other. Where "
        "an end belongs it goes on with what it has seen elsewhere, because each target that it was scored "
        "on pushed the boundary down. And a limit of 2 ends inside a character: the text shows U+FFFD, "
        "while the ids keep both bytes."
    )
    lab.costs(
        "one forward pass per byte, so 안녕하세요. costs 17 for 6 characters. Past the window its last half "
        "is read again each time: about two ids read per token sampled, however long the text. A boundary "
        "that is masked like padding spoils the model, no loss shows it, and no sampler repairs it."
    )
    lab.proves(
        "that a given boundary stops nothing, that a sampled one does, that the end is learnt from scored "
        "boundaries alone, and that the cache changes what is read, not what is said.",
        does_not_prove="that a model ends documents well that it has not seen: these twelve are known by "
        "heart. Stage 11 measures that, in bits per boundary of held-out text.",
    )
    lab.check("scored boundaries end generations", ended["scored"] >= samples - 1)
    lab.check("masked boundaries end none", ended["masked"] <= 1)
    lab.check("seeded, not stopped, by 256", found["(256,) alone"][1] in DOCUMENTS)
    lab.check("a boundary in the prompt stops nothing", found["256, a document, 256"][2].tokens > 1)
    lab.check("a document is continued to its end", found["text 😊"][0] == [*emoji[4:], DOC_BOUNDARY])
    lab.check("a limit inside a character", found["text 😊, limit 2"][:2] == ([*emoji[4:6]], "\ufffd"))
    lab.check("no token for a limit of 0", found["text 😊, limit 0"] == ([], "", End("limit", "", 0)))
    lab.check("a stop string", found["text Two, stop '\\n'"][1:] == (" cats sleep.", End("stop", "\n", 13)))
    lab.check("same seed, same ids", write(model, "", configs[3]) == write(model, "", configs[3]))
    lab.check("cached equals uncached", apart < 1e-4 and len(far) == FAR)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
