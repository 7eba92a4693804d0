"""How long until a model of Tiny Shakespeare is as good as nanoGPT's, and how good in the same time?

    python benchmarks/time_to_quality.py tinyshakespeare.txt --nanogpt DIR [--steps 500,2500|--minutes 0.5,3]
        [--seeds 0,1,2] [--preset nano] [--json FILE] [-- flags of tinylm train]
    ... --run "--steps 500 --window 64" --run "--steps 2500 --batch-rows 16"    each length with its own flags

nanoGPT runs the CPU recipe of its README (4 layers x 128, windows of 64, 12 rows, 2,000 steps, dropout 0)
in a copy of DIR, on data that its own prepare.py makes of the same text: both hold out its last tenth. The
clock runs from the start of a process to its exit: imports, compilation (into an empty cache) and saving
count, evaluation does not (nanoGPT is left four batches of it, because it saves nothing without).

A schedule ends with its run, so the time to a quality is that of a whole run whose last model has it: each
length of --steps or --minutes is such a run, with every seed. nanoGPT and tinylm take turns. Quality is bits
per byte of the held-out text, every byte once, disjoint windows of the length that the model was trained
with; for tinylm also in windows of 64, as for nanoGPT. tinylm also pays for the end of the document, which
nanoGPT does not have.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch

from tinylm.config import CorpusConfig
from tinylm.corpus import Corpus, build_corpus
from tinylm.language_model import load

VERSION = 1
RECIPE = {
    "device": "cpu",
    "compile": False,
    "eval_iters": 1,
    "log_interval": 1,
    "block_size": 64,
    "batch_size": 12,
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "dropout": 0.0,
    "always_save_checkpoint": True,
}
STEPS = 2000
PREPARE = (
    "import sys, types, runpy; sys.modules.setdefault('requests', types.ModuleType('requests'));"
    "runpy.run_path('data/shakespeare_char/prepare.py', run_name='__main__')"
)
"""Its prepare.py, without the library that it would fetch the text with."""
TRAIN = (
    "import json, sys, time\n"
    "from tinylm import milestones\n"
    "from tinylm.cli import main\n"
    "whole, spent = milestones.evaluate_run, 0.0\n"
    "def timed(*given, **named):\n"
    "    global spent\n"
    "    started = time.monotonic()\n"
    "    found = whole(*given, **named)\n"
    "    spent += time.monotonic() - started\n"
    "    open(sys.argv[1], 'w').write(json.dumps(spent))\n"
    "    return found\n"
    "milestones.evaluate_run = timed\n"
    "sys.exit(main(sys.argv[2:]))\n"
)
"""`tinylm`, which also writes down how long it evaluated."""


def main() -> int:
    parser = measuring.parser(__doc__, "time_to_quality")
    parser.add_argument("text", type=measuring.existing_file, help="the file tinyshakespeare.txt")
    parser.add_argument("--nanogpt", type=measuring.nanogpt_folder, required=True, help="a copy of nanoGPT")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", help="lengths of tinylm's runs in steps, with commas")
    length.add_argument("--minutes", help="lengths in minutes, as tinylm train plans them (default: 3)")
    length.add_argument("--run", action="append", help="a length as flags of tinylm train; may be repeated")
    parser.add_argument("--seeds", default="0,1,2", help="seeds, with commas; nanoGPT runs once for each")
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--nanogpt-steps", type=measuring.positive, default=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help="further flags of tinylm train, after --")
    options = parser.parse_args()
    lengths, seeds = given_lengths(parser, options), given_seeds(parser, options.seeds)
    if options.short:
        lengths, seeds, options.nanogpt_steps = [["--steps", "4"]], seeds[:1], 4
    settings = {"lengths": lengths, "seeds": seeds, "preset": options.preset, "flags": options.flags}
    settings["nanogpt"] = RECIPE | {"max_iters": options.nanogpt_steps}
    short = options.short or options.nanogpt_steps != STEPS
    session = measuring.Session("time_to_quality", VERSION, options.threads, settings, short).begin()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="tinylm-quality-") as place:
        folder = Path(place)
        corpus = build_corpus(options.text, folder / "corpus", CorpusConfig())
        peer = prepared_nanogpt(options.nanogpt, options.text, folder / "nanogpt", corpus)
        for seed in seeds:
            session.row(**run_nanogpt(peer, options.nanogpt_steps, seed, options.threads))
            for length_flags in lengths:
                short_windows = seed == seeds[0]  # of one seed: they take as long again
                session.row(**run_tinylm(corpus, folder, length_flags, seed, options, short_windows))
    judge(session)
    session.end(options.json)
    return 0


def given_lengths(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[list[str]]:
    """The lengths that were asked for, each as flags of `tinylm train`."""
    if options.run:
        found = [shlex.split(each) for each in options.run]
        if bad := [each for each in found if not {"--steps", "--minutes"} & set(each)]:
            parser.error(f"--run {shlex.join(bad[0])!r}: names neither --steps nor --minutes")
        return found
    flag, kind = ("--steps", int) if options.steps else ("--minutes", float)
    values = (options.steps or options.minutes or "3").split(",")
    for value in values:
        try:
            good = 0 < kind(value) < math.inf
        except ValueError:
            good = False
        if not good:
            parser.error(f"{flag}: {value!r}, expected numbers above 0 with commas")
    return [[flag, value.strip()] for value in values]


def given_seeds(parser: argparse.ArgumentParser, text: str) -> list[int]:
    """The seeds that were asked for."""
    if not all(each.strip().isdecimal() for each in text.split(",")):
        parser.error(f"--seeds: {text!r}, expected whole numbers with commas")
    return [int(each) for each in text.split(",")]


def prepared_nanogpt(source: Path, text: Path, folder: Path, corpus: Corpus) -> Path:
    """A copy of what nanoGPT needs, with data made by its own prepare.py; its split must be ours."""
    import shutil

    folder.mkdir()
    for name in ("train.py", "model.py", "configurator.py", "config/train_shakespeare_char.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    shutil.copyfile(source / "data" / "shakespeare_char" / "prepare.py", data / "prepare.py")
    shutil.copyfile(text, data / "input.txt")
    subprocess.run([sys.executable, "-c", PREPARE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    theirs = np.fromfile(data / "val.bin", np.uint16)
    ours = held_out(corpus)
    characters = sorted(set(text.read_text(encoding="ascii")))
    if "".join(characters[i] for i in theirs).encode("ascii") != ours:
        raise SystemExit(f"{text}: nanoGPT holds out {len(theirs):,} bytes, tinylm {len(ours):,} or others")
    return folder


def held_out(corpus: Corpus) -> bytes:
    """The held-out bytes of a corpus of one document."""
    ids = np.asarray(corpus.validation.stream)
    return bytes(ids[ids < 256].astype(np.uint8))


def run_nanogpt(folder: Path, steps: int, seed: int, threads: int) -> dict[str, Any]:
    """One run of the recipe. Its train.py fixes the seed, so every run gives the same model."""
    flags = {**RECIPE, "max_iters": steps, "lr_decay_iters": steps, "eval_interval": steps, "out_dir": "out"}
    command = [sys.executable, "train.py", "config/train_shakespeare_char.py"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=measuring.environment(threads), capture_output=True, text=True
    )
    seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"nanoGPT's train.py ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return {
        "who": "nanoGPT",
        "length": f"{steps} steps",
        "round": seed,
        "seconds": seconds,
        "bits_per_byte": nanogpt_bits(folder),
        "window": RECIPE["block_size"],
    }


def nanogpt_bits(folder: Path) -> float:
    """Bits per byte of the last checkpoint: disjoint windows, the first after a byte of training."""
    module = measuring.nanogpt_model(folder)
    kept = torch.load(folder / "out" / "ckpt.pt", map_location="cpu", weights_only=True)
    with contextlib.redirect_stdout(None):  # it says how many parameters it has
        model = module.GPT(module.GPTConfig(**kept["model_args"])).eval()
    model.load_state_dict(kept["model"])
    data = folder / "data" / "shakespeare_char"
    before = np.fromfile(data / "train.bin", np.uint16)[-1:]
    ids = torch.from_numpy(
        np.concatenate((before, np.fromfile(data / "val.bin", np.uint16))).astype(np.int64)
    )
    block, nats = int(kept["model_args"]["block_size"]), 0.0
    whole = (len(ids) - 1) // block * block
    windows = [ids[start : start + block + 1][None] for start in range(whole, len(ids) - 1, block)]
    grid_BT = ids[:whole].view(-1, block), ids[1 : whole + 1].view(-1, block)
    pairs = [*zip(*(torch.split(ids_BT, 256) for ids_BT in grid_BT), strict=True)]
    pairs += [(window[:, :-1], window[:, 1:]) for window in windows]
    with torch.inference_mode():
        for inputs_BT, targets_BT in pairs:
            logits_BTV, _ = model(inputs_BT, targets_BT)
            logits = logits_BTV.reshape(-1, logits_BTV.shape[-1])
            nats += float(torch.nn.functional.cross_entropy(logits, targets_BT.reshape(-1), reduction="sum"))
    return nats / math.log(2) / (len(ids) - 1)


def run_tinylm(
    corpus: Corpus,
    folder: Path,
    length: list[str],
    seed: int,
    options: argparse.Namespace,
    short_windows: bool,
) -> dict[str, Any]:
    """One run of `tinylm train`; its evaluation is measured and taken off."""
    run = Path(tempfile.mkdtemp(prefix="run-", dir=folder)) / "run"
    evaluating = folder / "evaluating.json"
    command = [sys.executable, "-c", TRAIN, str(evaluating), "train", str(corpus.path), "--out", str(run)]
    command += ["--seed", str(seed), "--threads", str(options.threads)]
    if "--preset" not in (*options.flags, *length):
        command += ["--preset", options.preset]
    command += ["--evaluate-every", "1000000000", "--sample-tokens", "0", *options.flags, *length]
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = measuring.environment(options.threads, TORCHINDUCTOR_CACHE_DIR=cache)
        started = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"tinylm train ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    spent = float(json.loads(evaluating.read_text(encoding="ascii")))
    model = load(run)
    found = model.evaluate(corpus)
    config = json.loads((run / "run.json").read_text(encoding="utf-8"))["config"]
    return {
        "who": "tinylm",
        "length": " ".join(length).replace("--", ""),
        "round": seed,
        "steps": config["steps"],
        "seconds": seconds - spent,
        "seconds_of_evaluation": spent,
        "bits_per_byte": found.bits_per_byte,
        "window": found.window,
        "bits_per_byte_in_windows_of_64": in_windows(run, corpus, 64) if short_windows else None,
        "held_out_bytes": found.bytes,
    }


def in_windows(run: Path, corpus: Corpus, window: int) -> float:
    """Bits per byte in disjoint windows of another length than that of training."""
    import dataclasses

    from tinylm.checkpoint import load_model
    from tinylm.evaluate import evaluate
    from tinylm.model import Transformer

    trained = load_model(run)
    model = Transformer(dataclasses.replace(trained.config, window=min(window, trained.config.window)))
    model.load_state_dict(trained.state_dict())
    with torch.inference_mode():
        return evaluate(model, corpus.validation).bits_per_byte


def judge(session: measuring.Session) -> None:
    """The targets: medians over the seeds of each length of run, the fastest that is good enough."""
    theirs = measuring.median([row["seconds"] for row in session.rows if row["who"] == "nanoGPT"])
    bits = measuring.median([row["bits_per_byte"] for row in session.rows if row["who"] == "nanoGPT"])
    lengths: dict[str, list[dict[str, Any]]] = {}
    for row in session.rows:
        if row["who"] == "tinylm":
            lengths.setdefault(row["length"], []).append(row)
    runs = []
    for length, rows in lengths.items():
        median_of = {
            key: measuring.median([row[key] for row in rows]) for key in ("seconds", "bits_per_byte")
        }
        worst = max(row["bits_per_byte"] for row in rows)
        print(
            f"{length}: {median_of['seconds']:.1f} s, {median_of['bits_per_byte']:.3f} bits per byte (worst "
            f"seed {worst:.3f}), {median_of['seconds'] / theirs:.2f} of nanoGPT's {theirs:.1f} s"
        )
        runs.append((median_of["seconds"], median_of["bits_per_byte"]))
    for target, question, limit, least in (
        (2.739, "seconds to 2.739 bits per byte of Tiny Shakespeare", theirs, 6.0),
        (2.25, "seconds to 2.25 bits per byte", theirs, 1.0),
        (2.10, "seconds to 2.10 bits per byte", 600.0, 1.0),
    ):
        good = [seconds for seconds, quality in runs if quality <= target]
        fastest = min(good, default=None)
        ratio = 0.0 if fastest is None else limit / fastest
        peer = "ten minutes" if target == 2.10 else f"nanoGPT (ends at {bits:.3f})"
        session.compare(question, "s", "tinylm", fastest, peer, limit, ratio, least)


if __name__ == "__main__":
    sys.exit(main())
