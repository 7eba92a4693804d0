"""Commands as a user types them: what they print, what they refuse, how they end."""

import contextlib
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from tests.forked import POSIX, Forked
from tinylm import cli, config
from tinylm.corpus import build_corpus, open_corpus

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "checkpoints" / "sample-nano"
TEXTS = [f"document {number}: the quick brown fox, {number * number} times.\n" for number in range(60)]
SMALL = [
    "--layers",
    "1",
    "--width",
    "32",
    "--mlp-width",
    "32",
    "--heads",
    "2",
    "--kv-heads",
    "2",
    "--head-size",
    "16",
]
FAST = [*SMALL, "--window", "16", "--batch-rows", "4", "--sample-tokens", "0", "--device", "cpu"]


def command(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, in this process."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = cli.main(words)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
    return code, out.getvalue(), error.getvalue()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.shared = Path(holder.name)
        build_corpus(TEXTS, cls.shared / "corpus")

    def setUp(self):
        before = os.getcwd()
        self.folder = Path(tempfile.mkdtemp(dir=self.shared))
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        self.corpus = str(self.shared / "corpus")

    def refused(self, *words: str) -> str:
        """The one line with which a command refuses."""
        before = sorted(str(path) for path in self.folder.rglob("*"))
        code, out, error = command(*words)
        self.assertEqual(code, 2, error)
        self.assertEqual(out, "")
        self.assertEqual(len(error.strip().splitlines()), 1, error)
        self.assertTrue(error.startswith("tinylm: "), error)
        self.assertEqual(
            before, sorted(str(path) for path in self.folder.rglob("*")), "something was left behind"
        )
        return error


class TestMainJob(Case):
    def test_from_a_folder_of_text_to_a_model_that_writes(self):
        texts = self.folder / "my_texts"
        texts.mkdir()
        for number, text in enumerate(TEXTS):
            (texts / f"{number:03d}.txt").write_text(text, encoding="utf-8")
        code, out, error = command("train", "my_texts/", "--steps", "12", *FAST)
        self.assertEqual(code, 0, error)
        self.assertIn("bits per byte", out)
        self.assertTrue((self.folder / "corpora/my_texts/corpus.json").is_file())
        run = self.folder / "checkpoints/my_texts-nano"
        self.assertTrue((run / "curve.svg").is_file())
        code, out, error = command("generate", str(run), "document", "--seed", "3", "--max-tokens", "30")
        self.assertEqual(code, 0, error)
        self.assertTrue(out.startswith("document"))
        self.assertEqual(
            out, command("generate", str(run), "document", "--seed", "3", "--max-tokens", "30")[1]
        )
        code, out, error = command("evaluate", str(run), "my_texts/")
        self.assertEqual(code, 0, error)
        for word in (
            "bits per byte",
            "without boundaries",
            "bits per boundary",
            "5-gram",
            "lzma",
            "this model",
        ):
            self.assertIn(word, out)
        code, out, _ = command("evaluate", str(run), "corpora/my_texts", "--json", "--no-ladder")
        self.assertEqual(json.loads(out)["protocol"], "disjoint")
        (texts / "999.txt").write_text("one more document\n", encoding="utf-8")
        code, _, error = command("train", "my_texts/", "--steps", "2", "--out", "checkpoints/second", *FAST)
        self.assertEqual(code, 0, error)
        self.assertEqual(
            len(list((self.folder / "corpora").iterdir())), 2, "the first run must keep its corpus"
        )

    def test_corpus_build_and_show(self):
        (self.folder / "a.txt").write_text("안녕 <|doc|>\n" * 40, encoding="utf-8")
        code, out, error = command("corpus", "build", "a.txt", "--out", "mine", "--validation", "0.2")
        self.assertEqual(code, 0, error)
        code, shown, _ = command("corpus", "show", "mine")
        self.assertEqual((code, shown), (0, out))
        self.assertIn("Hangul", shown)

    def test_a_stopped_run_is_resumed_by_the_command_that_it_prints(self):
        code, _, error = command(
            "train", self.corpus, "--steps", "6", "--stop-after", "2", "--out", "run", *FAST
        )
        self.assertEqual(code, 0, error)
        resume = re.search(r"tinylm (train --resume \S+)", error)
        self.assertIsNotNone(resume, error)
        code, _, error = command(*resume[1].split())
        self.assertEqual(code, 0, error)
        self.assertTrue((self.folder / "run/step-00000006").is_dir())

    def test_a_run_can_be_repeated_from_its_run_json(self):
        self.assertEqual(
            command("train", self.corpus, "--steps", "3", "--out", "one", "--seed", "5", *FAST)[0], 0
        )
        code, _, error = command("train", self.corpus, "--config", "one/run.json", "--out", "two")
        self.assertEqual(code, 0, error)
        for name in ("metrics.jsonl", "step-00000003/model.safetensors"):
            self.assertEqual(Path("one", name).read_bytes(), Path("two", name).read_bytes())

    def test_init_takes_the_shape_of_its_checkpoint(self):
        self.assertEqual(command("train", self.corpus, "--steps", "2", "--out", "one", *FAST)[0], 0)
        words = (
            "train",
            self.corpus,
            "--steps",
            "2",
            "--out",
            "two",
            "--init",
            "one",
            "--batch-rows",
            "4",
            "--sample-tokens",
            "0",
        )
        code, _, error = command(*words)
        self.assertEqual(code, 0, error)
        self.assertEqual(json.loads(Path("two/run.json").read_text())["config"]["model"]["width"], 32)


class TestHelp(Case):
    def test_help_of_every_command_names_every_option(self):
        code, out, _ = command("--help")
        self.assertEqual(code, 0)
        self.assertIn("tinylm import", out)
        pairs = {
            "quickstart": config.QuickstartConfig,
            "corpus build": config.CorpusConfig,
            "train": config.TrainConfig,
            "evaluate": config.EvaluateConfig,
            "generate": config.GenerateConfig,
            "export": config.ExportConfig,
            "plan": config.PlanConfig,
            "audit": config.AuditConfig,
        }
        for name, options in pairs.items():
            self.assertIn(name, out)
            code, text, _ = command(*name.split(), "--help")
            self.assertEqual(code, 0)
            for field in options.__dataclass_fields__:
                if field != "model" and (field != "data" or name == "export"):
                    self.assertIn(f"--{field.replace('_', '-')}", text)

    def test_help_does_not_import_torch(self):
        code = "import sys; from tinylm.cli import main; main(['--help']); assert 'torch' not in sys.modules"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_version_and_an_unknown_command(self):
        self.assertRegex(command("--version")[1], r"^tinylm \d+\.\d+\.\d+$")
        self.assertIn("quickstart", self.refused("trian"))


class TestBadInput(Case):
    def test_sources_that_cannot_be_read_are_refused_in_one_line(self):
        Path("empty").mkdir()
        Path("empty.txt").write_bytes(b"")
        Path("binary.txt").write_bytes(bytes(range(256)))
        Path("utf16.txt").write_bytes("hello there".encode("utf-16"))
        Path("utf16bare.txt").write_bytes("hello there".encode("utf-16-le"))
        Path("latin.txt").write_bytes("line one\nl\xe9".encode("latin-1"))
        Path("broken.jsonl").write_bytes(b'{"text": "a"}\n{"text": \n')
        cases = {
            "missing.txt": "missing.txt",
            "empty": "empty",
            "empty.txt": "empty.txt",
            "binary.txt": "binary.txt",
            "utf16.txt": "UTF-16",
            "utf16bare.txt": "UTF-16",
            "latin.txt": "latin.txt: line 2, byte 10",
            "broken.jsonl": "broken.jsonl:2",
            "builtin:nothing": "builtin:docs",
        }
        for place, part in cases.items():
            for words in (
                ("corpus", "build", place, "--out", "mine"),
                ("train", place, "--steps", "1", *FAST),
            ):
                with self.subTest(place=place, command=words[0]):
                    self.assertIn(part, self.refused(*words))

    @unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no FIFOs")
    def test_a_fifo_does_not_block(self):
        os.mkfifo("pipe.txt")
        started = time.monotonic()
        self.assertIn("pipe.txt", self.refused("corpus", "build", "pipe.txt", "--out", "mine"))
        self.assertLess(time.monotonic() - started, 5)

    def test_limits_name_their_flag_and_leave_nothing(self):
        Path("a.txt").write_text("x" * 100)
        for limit in ("documents", "characters", "bytes", "tokens"):
            if limit != "documents":
                self.assertIn(
                    f"--max-{limit}",
                    self.refused("corpus", "build", "a.txt", "--out", "m", f"--max-{limit}", "10"),
                )

    def test_wrong_options_are_refused_together(self):
        line = self.refused(
            "train", self.corpus, "--steps", "0", "--batch-rows", "0", "--width", "33", *FAST[8:]
        )
        for part in (
            "steps is 0",
            "batch_rows is 0" if "--batch-rows" not in FAST[8:] else "steps",
            "width is 33",
        ):
            self.assertIn(part, line)
        self.assertIn("nano, micro", self.refused("train", self.corpus, "--preset", "huge"))
        self.assertIn(
            "expected one of them", self.refused("train", self.corpus, "--steps", "3", "--minutes", "1")
        )
        self.assertIn("temperature", self.refused("generate", str(SAMPLE), "--temperature", "-1"))
        self.assertIn("stop is", self.refused("generate", str(SAMPLE), "--stop", ""))
        self.assertIn("DATA", self.refused("train"))

    def test_places_without_a_checkpoint_or_corpus(self):
        Path("note.txt").write_text("hello")
        for place in ("nowhere", ".", "note.txt", self.corpus):
            self.assertIn("expected" if place != "note.txt" else "note.txt", self.refused("generate", place))
        self.assertIn("nowhere", self.refused("corpus", "show", "nowhere"))
        self.assertIn("nowhere", self.refused("train", "--resume", "nowhere"))

    def test_a_model_and_a_corpus_in_each_other_s_place_are_told_apart(self):
        self.assertEqual(command("train", self.corpus, "--steps", "1", "--out", "run", *FAST)[0], 0)
        self.assertIn("is a corpus", self.refused("evaluate", self.corpus, "run"))
        self.assertIn("is a run", self.refused("evaluate", "run", "run"))
        self.assertIn("is a run", self.refused("train", "run", "--steps", "1", "--out", "more", *FAST))

    def test_existing_places_are_refused(self):
        self.assertIn(
            "--replace",
            self.refused(
                "corpus",
                "build",
                "builtin:unicode",
                "--max-documents",
                "5",
                "--truncate",
                "--out",
                self.corpus,
            ),
        )
        Path("run").mkdir()
        self.assertIn("--resume", self.refused("train", self.corpus, "--steps", "1", "--out", "run", *FAST))

    def test_a_full_disk_is_named_with_its_place(self):
        real = os.fsync

        def full(descriptor):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        Path("a.txt").write_text("hello there\n" * 100)
        with mock.patch("os.fsync", full):
            line = self.refused("corpus", "build", "a.txt", "--out", "mine")
        self.assertIs(os.fsync, real)
        self.assertIn("No space left", line)
        self.assertIn("mine", line)

    def test_a_damaged_checkpoint_is_refused(self):
        self.assertEqual(command("train", self.corpus, "--steps", "2", "--out", "run", *FAST)[0], 0)
        model = Path("run/step-00000002/model.safetensors")
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
        code, _, error = command("generate", "run", "--max-tokens", "3")
        self.assertEqual(code, 0)
        self.assertRegex(error, "warning: using run/step-00000001, because .*step-00000002.model.safetensors")
        for path in Path("run").glob("step-*/model.safetensors"):
            path.write_bytes(data)
        for words in (("generate", "run"), ("evaluate", "run", self.corpus), ("train", "--resume", "run")):
            self.assertIn("model.safetensors", self.refused(*words))


class TestRefusedFlags(Case):
    def test_what_the_parser_refuses_is_one_line_too(self):
        cases = {
            ("train", self.corpus, "--stepz", "5"): "--stepz",
            ("train", self.corpus, "--steps", "abc"): "abc",
            ("train", self.corpus, "--device", "tpu"): "tpu",
            ("corpus", "build", "a.txt"): "--out",
            ("generate",): "CHECKPOINT",
            ("corpus", "show", "a", "b"): "b",
        }
        for words, part in cases.items():
            self.assertIn(part, self.refused(*words))

    def test_a_resumed_run_takes_no_new_options(self):
        words = ("train", self.corpus, "--steps", "4", "--stop-after", "2", "--out", "run", *FAST)
        self.assertEqual(command(*words)[0], 0)
        for more in (["--steps", "9"], ["--width", "64"], [self.corpus], ["--seed", "1"]):
            self.assertRegex(self.refused("train", "--resume", "run", *more), "does not take")
        for stop in ("0", "-3", "1", "2"):
            self.assertIn("stop_after", self.refused("train", "--resume", "run", "--stop-after", stop))
        self.assertEqual(command("train", "--resume", "run", "--stop-after", "3")[0], 0)
        self.assertEqual(command("train", "--resume", "run")[0], 0)
        self.assertTrue(Path("run/step-00000004").is_dir())

    def test_what_a_resume_may_change_is_taken_also_where_it_is_the_usual_value(self):
        words = ("train", self.corpus, "--steps", "6", "--stop-after", "2", "--out", "run", *FAST)
        self.assertEqual(command(*words, "--keep", "1", "--save-every", "1", "--deterministic")[0], 0)
        self.assertEqual(command("train", "--resume", "run", "--keep", "2", "--stop-after=4")[0], 0)
        self.assertGreaterEqual(
            {path.name for path in Path("run").glob("step-*")}, {f"step-0000000{n}" for n in (3, 4)}
        )
        manifest = json.loads(Path("run/step-00000004/manifest.json").read_bytes())
        self.assertEqual((manifest["config"]["keep"], manifest["machine"]["deterministic"]), (2, True))
        for flag in ("--muon", "--no-muon", "--deterministic", "--config=run/run.json", "--width=32"):
            name = flag.replace("--no-", "--").partition("=")[0]
            self.assertIn(f"does not take {name} ", self.refused("train", "--resume", "run", flag))
        code, _, error = command("train", "--resume", "run", "--threads", "3")
        self.assertEqual(code, 0)
        self.assertIn("is 3: from step 4 on the run is no longer bit-equal", error)
        self.assertIn("--resume", self.refused("train", self.corpus, "--steal-lock", *FAST))

    def test_a_run_json_names_its_corpus(self):
        self.assertEqual(command("train", self.corpus, "--steps", "1", "--out", "one", *FAST)[0], 0)
        self.assertEqual(command("train", "--config", "one/run.json", "--out", "two")[0], 0)

    def test_stop_strings_are_given_one_by_one(self):
        code, out, _ = command("generate", str(SAMPLE), "--stop", "e", "--stop", " ", "Return")
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith("Return"))
        self.assertNotIn(" ", out.removeprefix("Return").strip("\n"))

    def test_a_run_that_cannot_begin_leaves_nothing(self):
        with mock.patch("importlib.util.find_spec", return_value=None):
            self.assertIn(
                "pip install tensorboard",
                self.refused("train", self.corpus, "--steps", "1", "--tensorboard", *FAST),
            )
        with mock.patch("tinylm.trainer.save", side_effect=OSError(errno.ENOSPC, "No space left", "run/x")):
            code, _, error = command("train", self.corpus, "--steps", "1", "--out", "run", *FAST)
        self.assertEqual(code, 2)
        self.assertIn("free some space", error)
        self.assertFalse(Path("run").exists())

    def test_sizes_that_no_machine_has_are_refused(self):
        for words in (["--window", "100000000000"], ["--threads", "100000"], ["--batch-rows", "20000000000"]):
            self.assertIn("at most", self.refused("train", self.corpus, *FAST, *words))
        self.assertIn("at most", self.refused("train", self.corpus, *FAST, "--minutes", "1e308"))


class TestProcesses(Case):
    @POSIX
    def test_a_reader_that_goes_away_does_not_end_the_run(self):
        reading, writing = os.pipe()
        with open(reading, "rb", buffering=0) as reader:
            with open(writing, "wb") as pipe:
                words = ("train", self.corpus, "--steps", "5", "--out", "run", *FAST)
                child = Forked(*words, output=pipe, error=pipe)
                self.addCleanup(child.kill)
            self.assertTrue(reader.read(1))
        child.wait(120)
        self.assertTrue(Path("run/step-00000005").is_dir())

    @POSIX
    def test_signals_save_print_the_way_back_and_exit_130_or_143(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            run = self.folder / f"run-{code}"
            words = ("train", self.corpus, "--steps", "100000", "--out", run.name)
            with open(f"error-{code}", "w+b") as error, open(os.devnull, "wb") as nothing:
                child = Forked(*words, "--evaluate-every", "50000", *FAST, output=nothing, error=error)
                self.addCleanup(child.kill)
                log = run / "metrics.jsonl"
                deadline = time.monotonic() + 120
                while time.monotonic() < deadline and not (log.exists() and log.stat().st_size > 500):
                    time.sleep(0.02)
                child.send_signal(number)
                found = child.wait(60)
            said = Path(f"error-{code}").read_text("utf-8")
            self.assertEqual(found, code, said)
            self.assertIn(f"tinylm train --resume run-{code}", said)
            steps = [path.name for path in run.glob("step-*")]
            self.assertEqual(len(steps), 1)
            rows = log.read_text("utf-8").splitlines()
            self.assertEqual(steps[0], f"step-{json.loads(rows[-1])['step']:08d}")

    @POSIX
    def test_a_signal_while_a_corpus_is_built_leaves_nothing(self):
        with open("big.txt", "wb") as file:
            for _ in range(100):
                file.write(b"the quick brown fox jumps over the lazy dog\n" * 20_000)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for words in (("corpus", "build", "big.txt", "--out", "mine"), ("train", "big.txt", *FAST)):
                with open(os.devnull, "wb") as nothing:
                    child = Forked(*words, output=nothing, error=nothing)
                self.addCleanup(child.kill)
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and not self.begun():
                    time.sleep(0.01)
                self.assertNotEqual(self.begun(), [], words)
                child.send_signal(number)
                self.assertEqual(child.wait(60), code, words)
                self.assertEqual(self.begun(), [], words)

    def begun(self) -> list[str]:
        """What a build has made so far."""
        return [path.name for path in self.folder.rglob("*") if path.name not in ("big.txt", "corpora")]

    def test_output_into_a_closed_pipe_is_no_traceback(self):
        done = subprocess.run(
            f"'{sys.executable}' -m tinylm corpus show '{self.corpus}' | head -1",
            shell=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=120,
        )
        self.assertNotIn("Traceback", done.stderr)

    def test_standard_input_is_a_document_in_another_locale_too(self):
        text = "안녕하세요\n" * 40
        done = subprocess.run(
            [sys.executable, "-m", "tinylm", "corpus", "build", "-", "--out", "mine"],
            input=text.encode("utf-8"),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252", "LC_ALL": "C"},
            timeout=120,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("안녕", done.stdout.decode("utf-8"))
        corpus = open_corpus("mine")
        # A single document is cut: its last part is held out.
        parts = [bytes(split.document(0).tolist()) for split in (corpus.train, corpus.validation)]
        self.assertEqual(b"".join(parts), text.encode("utf-8"))


if __name__ == "__main__":
    unittest.main()
