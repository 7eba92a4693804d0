"""Durable files: whatever fails, and whenever, a name holds the old content or the whole new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from tinylm import files
from tinylm.errors import CheckpointError, ConfigError, CorpusError

ROOT = Path(__file__).resolve().parents[1]
OLD = b"old content\n"
NEW = bytes(range(256)) * 40  # 10,240 bytes


class Faulty:
    """Counts the system calls of tinylm.files, fails the n-th (from 1), and makes every write a short one."""

    def __init__(
        self, fail_at: int = 0, error: BaseException | None = None, persistent: bool = False
    ) -> None:
        self.fail_at, self.error, self.persistent = fail_at, error, persistent
        self.calls: list[str] = []

    def step(self, name: str) -> None:
        self.calls.append(name)
        number = len(self.calls)
        if self.error is not None and (number == self.fail_at or (self.persistent and number > self.fail_at)):
            raise self.error

    def wrap(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def called(*arguments: object, **options: object) -> object:
            self.step(name)
            return function(*arguments, **options)

        return called

    def open(self, path: os.PathLike[str], mode: str, buffering: int = -1) -> object:
        self.step("open")
        return ShortWrites(open(path, mode, buffering), self) if "x" in mode else open(path, mode, buffering)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Faulty]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(files, "open", self.open, create=True))
            for name in ("fsync", "replace", "rename", "mkdir"):
                stack.enter_context(mock.patch.object(os, name, self.wrap(name, getattr(os, name))))
            yield self

    @property
    def failed(self) -> bool:
        return self.error is not None and len(self.calls) >= self.fail_at


class ShortWrites:
    """A raw file that takes at most 3,000 bytes at a time."""

    def __init__(self, file: io.FileIO, faults: Faulty) -> None:
        self.file, self.faults = file, faults

    def write(self, data: memoryview) -> int:
        self.faults.step("write")
        return self.file.write(data[:3000])

    def fileno(self) -> int:
        return self.file.fileno()

    def __enter__(self) -> ShortWrites:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class InFolder(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.path = self.folder / "file.bin"

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.folder.iterdir())


class WriteAtomic(InFolder):
    def test_content_and_digest(self) -> None:
        for data in (
            b"",
            b"a",
            NEW,
            b"x" * (3 * files.BLOCK + 1),
            bytearray(b"ab"),
            memoryview(b"abcd")[::1],
        ):
            digest = files.write_atomic(self.path, data)
            self.assertEqual(self.path.read_bytes(), bytes(data))
            self.assertEqual(digest, hashlib.sha256(data).hexdigest())
            self.assertEqual(files.sha256_file(self.path), digest)
        self.assertEqual(self.names(), ["file.bin"])

    def test_paths_may_be_text_and_names_may_be_in_any_script(self) -> None:
        files.write_atomic(str(self.folder / "안녕 é.json"), NEW)
        self.assertEqual((self.folder / "안녕 é.json").read_bytes(), NEW)

    def test_the_file_is_as_readable_as_any_other(self) -> None:
        files.write_atomic(self.path, NEW)
        (self.folder / "plain").write_bytes(b"")
        self.assertEqual(self.path.stat().st_mode, (self.folder / "plain").stat().st_mode)

    def test_short_writes_are_continued_to_the_last_byte(self) -> None:
        with Faulty().at_work() as faults:
            digest = files.write_atomic(self.path, NEW)
        self.assertEqual(faults.calls.count("write"), 4)
        self.assertEqual(self.path.read_bytes(), NEW)
        self.assertEqual(digest, hashlib.sha256(NEW).hexdigest())

    def test_the_file_is_on_disk_before_it_takes_its_name_and_the_folder_after(self) -> None:
        with Faulty().at_work() as faults:
            files.write_atomic(self.path, b"a")
        folder = ["fsync"] if os.name == "posix" else []
        self.assertEqual(faults.calls, ["open", "write", "fsync", "replace", *folder])

    def test_whichever_call_fails_the_old_or_the_whole_new_file_remains_and_no_temporary(self) -> None:
        for persistent, existing in itertools.product((False, True), (False, True)):
            for number in itertools.count(1):
                self.path.unlink(missing_ok=True)
                if existing:
                    self.path.write_bytes(OLD)
                faults = Faulty(number, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), persistent)
                with faults.at_work(), contextlib.suppress(OSError):
                    files.write_atomic(self.path, NEW)
                if not faults.failed:
                    break
                renamed = faults.calls.index("replace") + 1 < number if "replace" in faults.calls else False
                found = self.path.read_bytes() if self.path.exists() else None
                self.assertEqual(found, NEW if renamed else OLD if existing else None, faults.calls)
                self.assertEqual(self.names(), ["file.bin"] if found is not None else [], faults.calls)
            self.assertEqual(number, 9 if os.name == "posix" else 8)  # open, 4 writes, fsync, replace, fsync

    def test_every_failing_call_is_reported_with_the_path_that_the_user_knows(self) -> None:
        for number in range(1, 8):
            for code in (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT):
                with (
                    Faulty(number, OSError(code, os.strerror(code))).at_work(),
                    self.assertRaises(OSError) as caught,
                ):
                    files.write_atomic(self.path, NEW)
                self.assertEqual((caught.exception.errno, caught.exception.filename), (code, str(self.path)))
                self.assertIn("file.bin", str(caught.exception))
                self.assertNotIn(".tmp-", str(caught.exception))
        self.assertEqual(self.names(), [])

    def test_an_interrupt_leaves_the_old_file_and_no_temporary(self) -> None:
        self.path.write_bytes(OLD)
        for number in range(1, 8):
            with Faulty(number, KeyboardInterrupt()).at_work(), self.assertRaises(KeyboardInterrupt):
                files.write_atomic(self.path, NEW)
            self.assertEqual((self.path.read_bytes(), self.names()), (OLD, ["file.bin"]))

    def test_a_file_that_takes_no_bytes_is_an_error_and_not_an_endless_loop(self) -> None:
        for taken in (0, None):
            silent = mock.Mock(write=mock.Mock(return_value=taken))
            with self.assertRaises(OSError):
                files.write_all(silent, b"abc")

    def test_missing_folder_and_folder_in_the_way_are_named(self) -> None:
        for path, kind in (
            (self.folder / "no" / "file", FileNotFoundError),
            (self.folder, OSError),
        ):
            with self.assertRaises(kind) as caught:
                files.write_atomic(path, NEW)
            self.assertEqual(caught.exception.filename, str(path))
        self.assertEqual(self.names(), [])

    def test_writers_at_the_same_time_never_mix(self) -> None:
        contents = [bytes([number]) * 100_000 for number in range(8)]
        failures: list[Exception] = []

        def write(data: bytes) -> None:
            try:
                for _ in range(5):
                    files.write_atomic(self.path, data)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(data,)) for data in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertIn(self.path.read_bytes(), contents)
        self.assertEqual(self.names(), ["file.bin"])

    def test_write_new_refuses_an_existing_file(self) -> None:
        self.path.write_bytes(OLD)
        with self.assertRaises(FileExistsError) as caught:
            files.write_new(self.path, NEW)
        self.assertEqual(caught.exception.filename, str(self.path))
        self.assertEqual(self.path.read_bytes(), OLD)

    def test_sha256_of_a_missing_file_names_it(self) -> None:
        with self.assertRaises(FileNotFoundError) as caught:
            files.sha256_file(self.path)
        self.assertIn("file.bin", str(caught.exception))


class NewFolder(InFolder):
    def setUp(self) -> None:
        super().setUp()
        self.path = self.folder / "step-1"

    def write_old(self) -> None:
        self.path.mkdir()
        (self.path / "a").write_bytes(OLD)
        (self.path / "gone").write_bytes(OLD)

    def write(self, replace: bool = False) -> None:
        with files.new_folder(self.path, replace=replace) as temporary:
            (temporary / "a").write_bytes(NEW)
            (temporary / "inner").mkdir()
            (temporary / "inner" / "b").write_bytes(NEW)

    def content(self) -> str:
        """What stands under the name: "none", "old", "new", or "torn"."""
        found = {
            entry.relative_to(self.path).as_posix(): entry.read_bytes()
            for entry in self.path.rglob("*")
            if entry.is_file()
        }
        if not self.path.exists():
            return "none"
        whole = {"old": {"a": OLD, "gone": OLD}, "new": {"a": NEW, "inner/b": NEW}}
        return next((name for name, content in whole.items() if found == content), "torn")

    def test_the_folder_takes_its_name_at_the_end_only(self) -> None:
        with files.new_folder(self.path) as temporary:
            self.assertFalse(self.path.exists())
            self.assertEqual(temporary.parent, self.folder)
            (temporary / "a").write_bytes(NEW)
        self.assertEqual(self.names(), ["step-1"])
        self.assertEqual((self.path / "a").read_bytes(), NEW)

    def test_everything_in_it_is_on_disk_before_it_takes_its_name(self) -> None:
        with Faulty().at_work() as faults:
            self.write()
        before, after = " ".join(faults.calls).split("rename")
        self.assertEqual(
            before.count("fsync"), 4 if os.name == "posix" else 2
        )  # a, inner, inner/b, the folder
        self.assertEqual(after.count("fsync"), 1 if os.name == "posix" else 0)

    def test_an_existing_folder_or_file_is_refused_before_the_block_runs(self) -> None:
        self.write_old()
        with self.assertRaises(FileExistsError) as caught:
            self.write()
        self.assertEqual(caught.exception.filename, str(self.path))
        self.assertEqual((self.content(), self.names()), ("old", ["step-1"]))
        other = self.folder / "file"
        other.write_bytes(OLD)
        for replace in (False, True):
            with self.assertRaises(FileExistsError), files.new_folder(other, replace=replace):
                self.fail("the block ran")
        self.assertEqual(other.read_bytes(), OLD)

    def test_replace_takes_the_place_of_the_old_folder_or_of_nothing(self) -> None:
        self.write(replace=True)
        self.assertEqual((self.content(), self.names()), ("new", ["step-1"]))
        (self.path / "a").unlink()
        self.write(replace=True)
        self.assertEqual((self.content(), self.names()), ("new", ["step-1"]))

    def test_a_block_that_raises_leaves_nothing_or_the_old_folder(self) -> None:
        for error in (ValueError("x"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")):
            for replace in (False, True):
                with (
                    self.assertRaises(type(error)),
                    files.new_folder(self.path, replace=replace) as temporary,
                ):
                    (temporary / "a").write_bytes(NEW)
                    raise error
                self.assertEqual(self.names(), ["step-1"] if replace and self.path.exists() else [])
        self.write_old()
        with self.assertRaises(ValueError), files.new_folder(self.path, replace=True):
            raise ValueError
        self.assertEqual((self.content(), self.names()), ("old", ["step-1"]))

    def test_missing_parents_are_made_and_go_again_when_the_block_raises(self) -> None:
        self.path = self.folder / "a" / "b" / "c"
        with self.assertRaises(ValueError), files.new_folder(self.path):
            raise ValueError
        self.assertEqual(self.names(), [])
        with Faulty().at_work() as faults:
            self.write()
        self.assertEqual(self.content(), "new")
        after = faults.calls[faults.calls.index("rename") :]
        self.assertEqual(
            after.count("fsync"), 3 if os.name == "posix" else 0
        )  # of a/b, a, and the outer folder

    def test_where_no_file_can_be_closed_any_more_the_error_that_is_told_still_names_the_folder(self) -> None:
        def broken(descriptor: int) -> None:
            close(descriptor)
            raise OSError(errno.EIO, "Input/output error")

        close = os.close
        with self.assertRaises(OSError) as caught, files.new_folder(self.path) as temporary:
            files.write_atomic(temporary / "data", b"new")
            (temporary / "inner").mkdir()
            patched = mock.patch("os.close", broken)
            patched.start()
            self.addCleanup(patched.stop)
        self.assertIn(self.path.name, str(caught.exception.filename))

    def test_whichever_call_fails_nothing_the_old_or_the_whole_new_folder_remains(self) -> None:
        for existing, error in itertools.product(
            (False, True), (OSError(errno.EIO, os.strerror(errno.EIO)), KeyboardInterrupt())
        ):
            for number in itertools.count(1):
                shutil.rmtree(self.path, ignore_errors=True)
                if existing:
                    self.write_old()
                faults = Faulty(number, error)
                with faults.at_work(), contextlib.suppress(OSError, KeyboardInterrupt):
                    self.write(replace=existing)
                if not faults.failed:
                    break
                found = self.content()
                self.assertIn(found, ("old", "new") if existing else ("none", "new"), faults.calls)
                if "rename" not in faults.calls or faults.calls[number - 1] == "rename":
                    self.assertEqual(found, "old" if existing else "none", faults.calls)
                self.assertEqual(self.names(), [] if found == "none" else ["step-1"], faults.calls)
            self.assertEqual(self.content(), "new")

    def test_every_failing_call_is_reported_with_a_path(self) -> None:
        for number in itertools.count(1):
            shutil.rmtree(self.path, ignore_errors=True)
            faults = Faulty(number, OSError(errno.EIO, os.strerror(errno.EIO)))
            try:
                with faults.at_work(), files.new_folder(self.path) as temporary:
                    files.write_new(temporary / "a", NEW)
            except OSError as error:
                call = faults.calls[number - 1]
                self.assertTrue(str(error.filename).startswith(str(self.folder)), (call, error.filename))
                if call in ("mkdir", "rename"):
                    self.assertEqual(error.filename, str(self.path))
            if not faults.failed:
                break
        self.assertGreater(number, 8)


CHILD = """
import os, sys
from pathlib import Path
from tinylm import files

number, what, path = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
calls = 0

def dying(function):
    def called(*arguments, **options):
        global calls
        calls += 1
        if calls == number:
            os._exit(77)
        return function(*arguments, **options)
    return called

for name in ("fsync", "replace", "rename", "mkdir"):
    setattr(os, name, dying(getattr(os, name)))
if what == "file":
    files.write_atomic(path, b"new")
else:
    with files.new_folder(path, replace=what == "replace") as temporary:
        (temporary / "a").write_bytes(b"new")
"""


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


class Killed(InFolder):
    """The process ends at the n-th call, for every n: nothing gets a chance to clean up."""

    def test_killed_while_writing_a_file(self) -> None:
        for number in range(1, 10):
            self.path.write_bytes(b"old")
            code = child(CHILD, number, "file", self.path).returncode
            self.assertIn(self.path.read_bytes(), (b"old", b"new"))
            if code == 0:
                break
            self.assertEqual(code, 77)
        self.assertEqual((code, number > 3, self.path.read_bytes()), (0, True, b"new"))

    def test_killed_while_writing_a_folder(self) -> None:
        for number in range(1, 10):
            path = self.folder / f"step-{number}"
            code = child(CHILD, number, "folder", path).returncode
            if path.exists():
                self.assertEqual((path / "a").read_bytes(), b"new")
            if code == 0:
                break
            self.assertEqual(code, 77)
        self.assertEqual((code, number > 4, path.exists()), (0, True, True))

    def test_killed_while_replacing_a_folder_the_old_or_the_new_one_is_whole_under_a_name_that_tells(
        self,
    ) -> None:
        for number in range(1, 10):
            path = self.folder / f"step-{number}"
            path.mkdir()
            (path / "a").write_bytes(b"old")
            code = child(CHILD, number, "replace", path).returncode
            if path.exists():
                self.assertIn((path / "a").read_bytes(), (b"old", b"new"))
            else:
                aside = list(self.folder.glob(f".old-step-{number}-*"))
                self.assertEqual([(entry / "a").read_bytes() for entry in aside], [b"old"])
            if code == 0:
                break
        self.assertEqual((code, number > 5, (path / "a").read_bytes()), (0, True, b"new"))


class FullDisk(InFolder):
    def test_a_device_that_is_always_full(self) -> None:
        if not Path("/dev/full").exists():
            self.skipTest("this system has no /dev/full")

        def full(path: object, mode: str, buffering: int) -> io.FileIO:
            return open("/dev/full", "wb", buffering)

        self.path.write_bytes(OLD)
        with mock.patch.object(files, "open", full, create=True), self.assertRaises(OSError) as caught:
            files.write_atomic(self.path, NEW)
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENOSPC, str(self.path)))
        self.assertEqual((self.path.read_bytes(), self.names()), (OLD, ["file.bin"]))

    def test_a_small_file_system(self) -> None:
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(self.folder)]
        try:
            mounted = subprocess.run(mount, capture_output=True, text=True)
        except FileNotFoundError:
            self.skipTest("this system has no mount command")
        if mounted.returncode:
            self.skipTest(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.folder)], check=True)
        self.path.write_bytes(OLD)
        with self.assertRaises(OSError) as caught:
            files.write_atomic(self.path, bytes(1 << 20))
        self.assertEqual((caught.exception.errno, caught.exception.filename), (errno.ENOSPC, str(self.path)))
        with self.assertRaises(OSError) as caught, files.new_folder(self.folder / "step-1") as temporary:
            files.write_new(temporary / "model", bytes(1 << 20))
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertTrue(caught.exception.filename.endswith("model"))
        self.assertEqual((self.path.read_bytes(), self.names()), (OLD, ["file.bin"]))
        files.write_atomic(self.path, NEW)
        self.assertEqual(self.path.read_bytes(), NEW)

    def test_a_limit_on_the_size_of_files(self) -> None:
        if os.name != "posix":
            self.skipTest("resource limits are POSIX's")
        self.path.write_bytes(OLD)
        ran = child(
            """
            import resource, sys
            from tinylm import files
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                files.write_atomic(sys.argv[1], bytes(100_000))
            except OSError as error:
                print(error.errno, error.filename)
            """,
            self.path,
        )
        self.assertEqual(ran.stdout, f"{errno.EFBIG} {self.path}\n", ran.stderr)
        self.assertEqual((self.path.read_bytes(), self.names()), (OLD, ["file.bin"]))


class Json(unittest.TestCase):
    def test_equal_values_give_equal_bytes(self) -> None:
        self.assertEqual(
            files.canonical_json({"b": [1, 2.5, None, True], "a": "é\n"}),
            b'{"a":"\\u00e9\\n","b":[1,2.5,null,true]}',
        )
        self.assertEqual(files.canonical_json({"x": 1, "y": 2}), files.canonical_json({"y": 2, "x": 1}))
        self.assertEqual(files.readable_json({"b": 1, "a": []}), b'{\n "a": [],\n "b": 1\n}\n')
        for value in (0.1, 1e-300, 5e-324, 2**53 + 1, -0.0, "🙂", "\u2028", "\x7f"):
            self.assertEqual(repr(files.parse_json(files.canonical_json(value), "here")), repr(value))

    def test_nan_and_infinities_are_not_written(self) -> None:
        for value in (float("nan"), float("inf"), -float("inf")):
            for write in (files.canonical_json, files.readable_json):
                with self.assertRaises(ValueError):
                    write({"x": value})

    def test_valid_json_is_read_as_python_reads_it(self) -> None:
        for text in (
            '{"a": [1, -2.5e3, true, false, null, "\\u00e9\\ud83d\\ude42"], "b": {}}',
            "0",
            '""',
            " [1]\n",
        ):
            self.assertEqual(files.parse_json(text, "here"), json.loads(text))
            self.assertEqual(files.parse_json(text.encode(), "here"), json.loads(text))

    def test_what_is_ambiguous_or_not_json_is_refused_with_its_place(self) -> None:
        cases = {
            b'{"a": 1, "a": 1}': "the key 'a' stands there twice",
            b'{"x": {"b": 1, "c": 2, "b": 3}}': "the key 'b' stands there twice",
            b'{"\\u0061": 1, "a": 2}': "the key 'a' stands there twice",
            b"NaN": "NaN is not a number that JSON can hold",
            b"[Infinity]": "Infinity is not",
            b"[-Infinity]": "-Infinity is not",
            b"[1e999]": "1e999 is not",
            b"-1e999": "-1e999 is not",
            b'"\xff"': "byte 1 is not well-formed UTF-8",
            b'"\xed\xa0\x80"': "byte 1 is not well-formed UTF-8",
            b'\xef\xbb\xbf{"a": 1}': "not valid JSON",
            '{"a": 1}'.encode("utf-16"): "byte 0 is not well-formed UTF-8",
            '{"a": 1}'.encode("utf-16-le"): "not valid JSON",
            b"": "not valid JSON .*line 1, column 1",
            b'{"a": 1': "not valid JSON",
            b'{"a": 1}}': "not valid JSON .*Extra data",
            b'{"a": 1} {"a": 1}': "Extra data",
            b"{'a': 1}": "not valid JSON",
            b'{"a": 1,}': "not valid JSON",
            b'{"a":\n\n tru}': "line 3, column 2",
            b'"a\nb"': "not valid JSON",
            b'"a\x00b"': "not valid JSON",
            b"[" * 100_000: "nested too deeply",
            b'{"a":' * 100_000: "nested too deeply",
            b"9" * 5000: "an integer of thousands of digits",
        }
        for data, message in cases.items():
            for error in (CheckpointError, CorpusError, ConfigError):
                with (
                    self.subTest(data[:40]),
                    self.assertRaisesRegex(error, f"^notes.json: .*{message}") as caught,
                ):
                    files.parse_json(data, "notes.json", error)
                self.assertEqual(len(str(caught.exception).splitlines()), 1)
                self.assertLess(len(str(caught.exception)), 200)

    def test_refusing_a_large_object_takes_no_time(self) -> None:
        many = ",".join(f'"k{number}":0' for number in range(200_000))
        with self.assertRaisesRegex(CheckpointError, "'k199999' stands there twice"):
            files.parse_json(f'{{{many},"k199999":0}}', "here")


class Seals(unittest.TestCase):
    def test_a_sealed_value_is_recognised_also_after_json(self) -> None:
        sealed = files.seal({"b": 1, "a": [1.5, "é"]})
        self.assertEqual(sealed["digest"], hashlib.sha256(b'{"a":[1.5,"\\u00e9"],"b":1}').hexdigest())
        self.assertTrue(files.is_sealed(sealed))
        self.assertTrue(files.is_sealed(files.parse_json(files.readable_json(sealed), "here")))

    def test_sealing_again_changes_nothing(self) -> None:
        sealed = files.seal({"a": 1})
        self.assertEqual(files.seal(sealed), sealed)

    def test_any_change_breaks_the_seal(self) -> None:
        sealed = files.seal({"a": 1, "b": {"c": [1, 2]}})
        for changed in (
            {**sealed, "a": 2},
            {**sealed, "a": 1.0},
            {**sealed, "b": {"c": [2, 1]}},
            {**sealed, "d": None},
            {key: value for key, value in sealed.items() if key != "a"},
            {key: value for key, value in sealed.items() if key != "digest"},
            {**sealed, "digest": sealed["digest"].upper()},
            {**sealed, "digest": None},
        ):
            self.assertFalse(files.is_sealed(changed), changed)

    def test_the_value_that_was_sealed_is_not_changed(self) -> None:
        value = {"a": 1}
        files.seal(value)
        self.assertEqual(value, {"a": 1})


class NewFile(unittest.TestCase):
    def test_a_file_takes_its_name_only_when_it_is_complete(self) -> None:
        with tempfile.TemporaryDirectory() as holder:
            path = Path(holder) / "deep" / "model.gguf"
            for problem in (OSError(28, "No space left on device"), KeyboardInterrupt()):
                with self.assertRaises(type(problem)) as caught, files.new_file(path) as temporary:
                    temporary.write_bytes(b"half")
                    self.assertFalse(path.exists())
                    raise problem
                self.assertEqual(list(Path(holder).iterdir()), [])
                self.assertEqual(getattr(caught.exception, "filename", str(path)), str(path))
            with files.new_file(path) as temporary:
                temporary.write_bytes(b"whole")
            self.assertEqual([entry.name for entry in path.parent.iterdir()], ["model.gguf"])
            with self.assertRaises(FileExistsError), files.new_file(path):
                self.fail("an existing file was given away")
            self.assertEqual(path.read_bytes(), b"whole")
