"""One writer per run: who holds it is named, the dead are succeeded, other machines are not guessed about."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path
from unittest import mock

from tests.stage_support import ROOT
from tinylm import files, locks
from tinylm.errors import CheckpointError

try:
    import filelock
except ImportError:
    filelock = None

HOLD = """
import sys, time
from tinylm.locks import run_lock
with run_lock(sys.argv[1], print):
    print("held", flush=True)
    time.sleep(60)
"""


def process(code: str, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )


@unittest.skipIf(filelock is None, "filelock is not installed")
class Locks(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.run_folder = Path(holder.name)
        self.notes: list[str] = []

    def forge(self, **changes: object) -> locks.Owner:
        owner = dataclasses.replace(locks.this_process(), **{"pid": 4711, **changes})
        files.write_atomic(self.run_folder / locks.OWNER, files.readable_json(dataclasses.asdict(owner)))
        return owner

    def test_the_owner_stands_beside_the_lock_and_leaves_with_it(self) -> None:
        with locks.run_lock(self.run_folder, self.notes.append):
            owner = locks.read_owner(self.run_folder)
            self.assertEqual((owner.pid, owner.host), (os.getpid(), socket.gethostname()))
            self.assertRegex(owner.since, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertIsNone(locks.read_owner(self.run_folder))
        self.assertEqual(self.notes, [])
        with locks.run_lock(self.run_folder, self.notes.append):
            pass

    def test_a_second_process_is_refused_at_once_with_pid_and_host_and_succeeds_a_killed_one(self) -> None:
        first = process(HOLD, self.run_folder)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.assertEqual(first.stdout.readline(), "held\n")
        for attempt in (lambda: locks.run_lock(self.run_folder, self.fail).__enter__(), self.look):
            started = time.monotonic()
            with self.assertRaises(CheckpointError) as caught:
                attempt()
            self.assertLess(time.monotonic() - started, 0.9)
            expected = f"process {first.pid} on {re.escape(socket.gethostname())}, since 20"
            self.assertRegex(str(caught.exception), expected)
        first.kill()
        first.wait()
        self.assertEqual(locks.read_owner(self.run_folder).pid, first.pid)
        with locks.run_lock(self.run_folder, self.notes.append):
            self.assertEqual(locks.read_owner(self.run_folder).pid, os.getpid())
        self.assertEqual(len(self.notes), 1)
        self.assertIn(f"took the run over from process {first.pid} on ", self.notes[0])

    def look(self) -> None:
        locks.check_unlocked(self.run_folder)

    def test_a_run_of_another_machine_is_refused_until_it_is_stolen(self) -> None:
        other = self.forge(host="elsewhere", boot="another-boot")
        for _ in range(2):  # a refusal changes nothing
            with (
                self.assertRaisesRegex(CheckpointError, "process 4711 on elsewhere.*--steal-lock"),
                locks.run_lock(self.run_folder, self.fail),
            ):
                self.fail("it was let in")
            self.assertEqual(locks.read_owner(self.run_folder), other)
        with locks.run_lock(self.run_folder, self.notes.append, steal=True):
            self.assertEqual(locks.read_owner(self.run_folder).pid, os.getpid())
        self.assertIn("elsewhere", self.notes[0])

    def test_a_lock_that_is_held_cannot_be_stolen(self) -> None:
        first = process(HOLD, self.run_folder)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.assertEqual(first.stdout.readline(), "held\n")
        with (
            self.assertRaises(CheckpointError),
            locks.run_lock(self.run_folder, self.fail, steal=True),
        ):
            self.fail("it was let in")

    def test_a_container_under_the_same_kernel_is_this_machine(self) -> None:
        here = locks.this_process()
        self.assertTrue(dataclasses.replace(here, boot=None).on_this_machine())
        self.assertTrue(dataclasses.replace(here, boot="before the restart").on_this_machine())
        self.assertEqual(dataclasses.replace(here, host="container").on_this_machine(), here.boot is not None)
        self.assertFalse(dataclasses.replace(here, host="container", boot=None).on_this_machine())

    def test_an_owner_that_cannot_be_read_names_nobody(self) -> None:
        for content in (b"", b"{", b"[]", b"7", b'{"pid": 1}', b'{"pid":"1","host":2,"boot":0,"since":3}'):
            (self.run_folder / locks.OWNER).write_bytes(content)
            self.assertIsNone(locks.read_owner(self.run_folder), content)
        with locks.run_lock(self.run_folder, self.notes.append):
            self.assertEqual(locks.read_owner(self.run_folder).pid, os.getpid())

    def test_the_owner_of_somebody_else_is_not_removed(self) -> None:
        with locks.run_lock(self.run_folder, self.fail):
            other = self.forge()
        self.assertEqual(locks.read_owner(self.run_folder), other)

    def test_a_short_look_of_another_process_does_not_refuse_the_real_one(self) -> None:
        lock = filelock.FileLock(self.run_folder / locks.LOCK)
        lock.acquire()
        real = filelock.FileLock.acquire

        def acquire(again, *rest, **options):
            lock.release()  # the look is over while we wait
            return real(again, *rest, **options)

        with (
            mock.patch.object(filelock.FileLock, "acquire", acquire),
            locks.run_lock(self.run_folder, self.fail),
        ):
            pass

    def test_a_file_system_without_locks_is_told(self) -> None:
        for error in (NotImplementedError("no flock"), OSError(38, "Function not implemented")):
            with (
                mock.patch.object(filelock.FileLock, "acquire", side_effect=error),
                locks.run_lock(self.run_folder, self.notes.append),
            ):
                pass
            self.assertIn("nothing keeps a second trainer out", self.notes.pop())


class WithoutFilelock(unittest.TestCase):
    def test_it_is_told_that_nothing_is_held(self) -> None:
        notes: list[str] = []
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.dict(sys.modules, {"filelock": None}),
            locks.run_lock(folder, notes.append),
        ):
            self.assertIsNotNone(locks.read_owner(Path(folder)))
        self.assertEqual(len(notes), 1)
        self.assertIn("filelock is not installed", notes[0])


class Litter(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def test_only_what_our_files_leave_is_removed_and_an_interrupted_replacement_comes_back(self) -> None:
        hexes = "0123456789ab"
        for name in (f".tmp-step-00000003-{hexes}", f".pruned-step-00000001-{hexes}", f".old-a-{hexes}", "a"):
            (self.folder / name).mkdir()
            (self.folder / name / "model").write_bytes(name.encode())
        (self.folder / f".old-step-00000002-{hexes}").mkdir()
        (self.folder / f".tmp-run.json-{hexes}").write_bytes(b"")
        others = (
            ".tmp-mine", f".tmp-x-{hexes}0z", f"tmp-x-{hexes}", f".temp-x-{hexes}", f".tmp-x-{hexes.upper()}",
            "damaged-step-00000004-abc", "run.json",
        )  # fmt: skip
        for name in others:
            (self.folder / name).write_bytes(b"")
        said = files.clean(self.folder)
        left = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(left, sorted([*others, "a", "step-00000002"]))
        self.assertEqual((self.folder / "a" / "model").read_bytes(), b"a")
        self.assertEqual(len(said), 5)
        self.assertEqual(sum("put back" in sentence for sentence in said), 1)
        self.assertEqual(files.clean(self.folder), [])

    def test_a_link_is_removed_and_not_followed(self) -> None:
        (self.folder / "data").mkdir()
        (self.folder / "data" / "file").write_bytes(b"x")
        try:
            (self.folder / ".tmp-x-0123456789ab").symlink_to(self.folder / "data", target_is_directory=True)
        except OSError:
            self.skipTest("no links here")
        files.clean(self.folder)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["data"])
        self.assertTrue((self.folder / "data" / "file").exists())


if __name__ == "__main__":
    unittest.main()
