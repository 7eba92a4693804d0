"""Signals and lost output: a run finishes its step and saves, or leaves at once with nothing torn."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

from tests.stage_support import ROOT
from tinylm import checkpoint, files
from tinylm.cli import ended_by_signals, main
from tinylm.corpus import build_corpus
from tinylm.interrupts import LastingStream, stop_requests

FAST = (
    "--layers 1 --width 32 --mlp-width 32 --heads 2 --kv-heads 2 --head-size 16 --window 16 --batch-rows 4"
    " --sample-tokens 0 --device cpu"
)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
POSIX = unittest.skipUnless(os.name == "posix", "POSIX signals")


class Requests(unittest.TestCase):
    def test_the_first_asks_and_is_told_and_the_second_leaves(self) -> None:
        told: list[int] = []
        with stop_requests(told.append) as stop:
            self.assertIsNone(stop.signal)
            signal.raise_signal(signal.SIGTERM)
            self.assertEqual((stop.signal, told), (signal.SIGTERM, [signal.SIGTERM]))
            with mock.patch("os._exit", side_effect=SystemExit) as leave, self.assertRaises(SystemExit):
                signal.raise_signal(signal.SIGINT)
            leave.assert_called_once_with(128 + signal.SIGINT)
        self.assertEqual(told, [signal.SIGTERM])

    def test_what_the_listener_raises_does_not_break_the_step(self) -> None:
        with stop_requests(lambda number: 1 // 0) as stop:
            signal.raise_signal(signal.SIGTERM)
            self.assertEqual(stop.signal, signal.SIGTERM)

    def test_before_there_is_a_run_a_signal_ends_the_command_like_an_exception(self) -> None:
        for name in ("SIGTERM", "SIGHUP"):
            if number := getattr(signal, name, None):
                with self.assertRaises(SystemExit) as caught, ended_by_signals():
                    signal.raise_signal(number)
                self.assertEqual(caught.exception.code, 128 + number)

    @POSIX
    def test_a_closed_terminal_says_it_twice_and_means_it_once(self) -> None:
        with stop_requests() as stop, mock.patch("os._exit") as leave:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            self.assertEqual(stop.signal, signal.SIGHUP)
            leave.assert_not_called()

    @POSIX
    def test_nohup_keeps_its_meaning(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with stop_requests() as stop:
                signal.raise_signal(signal.SIGHUP)
                self.assertIsNone(stop.signal)
            self.assertIs(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_handlers_are_given_back_and_another_thread_has_none(self) -> None:
        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = [signal.getsignal(number) for number in numbers]
        with contextlib.suppress(KeyError), stop_requests():
            raise KeyError
        self.assertEqual([signal.getsignal(number) for number in numbers], before)

        def inside() -> None:
            with stop_requests() as stop:
                self.assertIsNone(stop.signal)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()


class Output(unittest.TestCase):
    def test_a_stream_whose_reader_is_gone_says_no_more(self) -> None:
        read, write = os.pipe()
        stream = LastingStream(os.fdopen(write, "w", encoding="utf-8", buffering=1))
        stream.write("one\n")
        self.assertEqual(os.read(read, 10), b"one\n")
        os.close(read)
        for _ in range(3):
            self.assertEqual(stream.write("two\n"), 4)
            stream.flush()
        stream.close()  # a flush at exit does not fail either
        self.assertEqual(stream.encoding, "utf-8")

    def test_a_stream_without_a_descriptor_is_left_alone(self) -> None:
        class Gone(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(5, "Input/output error")

        LastingStream(Gone()).write("x")

    def test_an_error_message_that_nobody_reads_is_no_traceback(self) -> None:
        class Gone(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError(32, "Broken pipe")

        with contextlib.redirect_stderr(Gone()):
            self.assertEqual(main(["nothing"]), 2)


@POSIX
class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.folder = Path(holder.name)
        build_corpus([f"document {n}: {n * n} times.\n" * 20 for n in range(60)], cls.folder / "corpus")

    def command(self, run: str) -> list[str]:
        words = [
            "train",
            "corpus",
            "--steps",
            "1000000",
            "--out",
            run,
            *FAST.split(),
            "--evaluate-every",
            "500000",
        ]
        return [sys.executable, "-m", "tinylm", *words, "--save-every", "20"]

    def start(self, command: list[str], **options: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            command,
            cwd=self.folder,
            env=ENVIRONMENT,
            text=True,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )

        def end() -> None:
            child.kill()
            child.wait()
            for stream in (child.stdout, child.stderr):
                if stream is not None:
                    stream.close()

        self.addCleanup(end)
        return child

    def wait_for_a_step(self, run: str, child: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if child.poll() is not None:
                self.fail(f"ended with {child.returncode}: {child.stderr.read() if child.stderr else ''}")
            if (self.folder / run).is_dir() and checkpoint.list_steps(self.folder / run):
                return
            time.sleep(0.02)
        self.fail("no step was saved")

    def assert_whole(self, run: str) -> int:
        """The newest step verifies, nothing is torn, and it is the last row's; returns the step."""
        folder = self.folder / run
        found = checkpoint.find(folder)
        self.assertEqual(found.skipped, ())
        return int(found.manifest["step"])

    def rows(self, run: str) -> int:
        return int(json.loads((self.folder / run / "metrics.jsonl").read_bytes().splitlines()[-1])["step"])

    def test_a_second_trainer_goes_away_at_once_and_a_killed_one_is_succeeded(self) -> None:
        first = self.start(self.command("one"))
        self.wait_for_a_step("one", first)
        with mock.patch.dict(sys.modules):
            sys.modules.pop("tinylm.trainer", None)
            errors = io.StringIO()
            importlib.import_module("tyro")
            started = time.process_time()  # so that a busy machine does not count
            with contextlib.redirect_stderr(errors):
                self.assertEqual(main(["train", "--resume", str(self.folder / "one")]), 2)
            self.assertLess(time.process_time() - started, 0.7)
            self.assertNotIn("tinylm.trainer", sys.modules)  # it left before the slow imports
        self.assertRegex(errors.getvalue(), rf"trained by process {first.pid} on \S+, since 20\S+Z; wait")
        self.assertIsNone(first.poll())
        first.kill()
        first.wait()
        words = [sys.executable, "-m", "tinylm", "train", "--resume", "one", "--stop-after", "100000"]
        second = self.start(words)
        deadline = time.monotonic() + 120
        before = self.assert_whole("one")
        while time.monotonic() < deadline and self.assert_whole("one") == before and second.poll() is None:
            time.sleep(0.05)
        second.send_signal(signal.SIGTERM)
        _, said = second.communicate(timeout=60)
        self.assertEqual(second.returncode, 143, said)
        self.assertIn(f"took the run over from process {first.pid}", said)
        self.assertGreater(self.assert_whole("one"), before)
        self.assertEqual(files.left_behind(self.folder / "one"), [])
        self.assertFalse((self.folder / "one" / "run.owner.json").exists())

    def test_twice_leaves_at_once_with_nothing_torn(self) -> None:
        hold = (  # the step takes for ever, so that only the second signal can end it
            "import os, sys, time\n"
            "from tinylm import trainer\nfrom tinylm.cli import main\n"
            "real = trainer.train_step\n"
            "def step(run, batch, number, scale):\n"
            "    if number == 20:\n"
            "        print('now', flush=True)\n"
            "        while True: time.sleep(0.01)\n"
            "    return real(run, batch, number, scale)\n"
            "trainer.train_step = step\nsys.exit(main(sys.argv[1:]))\n"
        )
        child = self.start([sys.executable, "-c", hold, *self.command("two")[3:]], stdout=subprocess.PIPE)
        self.assertEqual(child.stdout.readline(), "now\n")
        child.send_signal(signal.SIGINT)
        line = ""
        while "stopping" not in line:
            line = child.stderr.readline()
            self.assertTrue(line, "it ended after the first signal")
        child.send_signal(signal.SIGINT)
        started = time.monotonic()
        child.wait(timeout=60)
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(child.returncode, 130)
        self.assertEqual(self.assert_whole("two"), 20)

    def test_a_closed_terminal_saves_and_ends_with_129(self) -> None:
        import pty

        leader, follower = pty.openpty()
        child = self.start(
            self.command("hung-up"), stdin=follower, stdout=follower, stderr=follower, start_new_session=True
        )
        os.close(follower)
        reading = threading.Thread(target=self.drain, args=(leader, stop := threading.Event()))
        reading.start()
        self.wait_for_a_step("hung-up", child)
        stop.set()
        reading.join()
        os.close(leader)  # from here on writing to the terminal fails
        child.send_signal(signal.SIGHUP)
        child.send_signal(signal.SIGHUP)
        self.assertEqual(child.wait(timeout=60), 129)
        self.assertEqual(self.assert_whole("hung-up"), self.rows("hung-up"))

    def drain(self, descriptor: int, stop: threading.Event) -> None:
        while not stop.is_set():
            if select.select([descriptor], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    os.read(descriptor, 65536)

    def test_output_into_head_goes_on_until_it_is_done(self) -> None:
        command = self.command("piped")
        command[command.index("1000000")] = "60"
        command[command.index("500000")] = "10"
        child = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        child.stdout.readline()
        child.stdout.close()
        self.assertEqual(child.wait(timeout=120), 0)
        self.assertEqual(self.assert_whole("piped"), 60)
        self.assertEqual(len(re.findall(rb'"loss"', (self.folder / "piped/metrics.jsonl").read_bytes())), 60)


if __name__ == "__main__":
    unittest.main()
