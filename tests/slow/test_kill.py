"""A run that is killed again and again ends as the run that was not; a killed build leaves no corpus.

python -m pytest tests/slow [--short]
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tinylm import checkpoint
from tinylm.corpus import build_corpus

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """--layers 1 --width 32 --mlp-width 32 --heads 2 --kv-heads 2 --head-size 16 --window 16
--batch-rows 4 --sample-tokens 0 --device cpu --save-every 20 --evaluate-every 200"""


def start(*words: str, folder: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tinylm", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*words: str, folder: Path) -> None:
    child = start(*words, folder=folder)
    _, error = child.communicate(timeout=600)
    assert child.returncode == 0, error


def test_a_run_killed_at_random_times_ends_as_the_run_that_was_not(tmp_path: Path, short: bool) -> None:
    texts = [f"document {number}: the quick brown fox, {number * number} times.\n" for number in range(60)]
    build_corpus(texts, tmp_path / "corpus")
    steps = "600" if short else "3000"
    finish("train", "corpus", "--steps", steps, "--out", "whole", *TRAIN.split(), folder=tmp_path)
    chance, killed = random.Random(0), 0
    child = start("train", "corpus", "--steps", steps, "--out", "part", *TRAIN.split(), folder=tmp_path)
    while killed < (4 if short else 40):
        before = checkpoint.list_steps(tmp_path / "part") if (tmp_path / "part").is_dir() else []
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and child.poll() is None:
            if (tmp_path / "part").is_dir() and checkpoint.list_steps(tmp_path / "part") != before:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        if child.poll() is not None:
            break
        child.kill()
        child.communicate()
        killed += 1
        checkpoint.newest_step(tmp_path / "part")
        child = start("train", "--resume", "part", folder=tmp_path)
    child.communicate(timeout=600)
    finish("train", "--resume", "part", folder=tmp_path)
    assert killed >= 2
    last = f"step-{int(steps):08d}"
    for name in ("metrics.jsonl", f"{last}/model.safetensors", f"{last}/training.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "part" / name).read_bytes(), name


def test_a_killed_build_leaves_no_corpus_or_the_old_one(tmp_path: Path, short: bool) -> None:
    chance = random.Random(1)
    finish("corpus", "build", "builtin:unicode", "--out", "mine", folder=tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    for _ in range(3 if short else 30):
        for words in (("--out", "mine", "--replace"), ("--out", "new")):
            child = start("corpus", "build", "builtin:unicode", *words, folder=tmp_path)
            time.sleep(0.3 + 2.0 * chance.random())
            child.kill()
            child.communicate()
            found = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
            assert found == before
            new = tmp_path / "new"
            if new.exists():  # it was faster than the kill
                assert {path.name: path.read_bytes() for path in new.iterdir()} == before
                for path in new.iterdir():
                    path.unlink()
                new.rmdir()
