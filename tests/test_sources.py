"""What becomes a document and what is refused: files, folders, JSON Lines, gzip, input, iterables."""

from __future__ import annotations

import ast
import gzip
import hashlib
import inspect
import io
import itertools
import json
import os
import posixpath
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from tinylm.config import CorpusConfig
from tinylm.corpus import build, build_corpus
from tinylm.errors import CorpusError
from tinylm.sources import as_sources, builtin, listing, open_sources, reading

NOBODY = 65534
needs_posix = unittest.skipUnless(os.name == "posix", "needs POSIX files")


def read(source: object, **options: object) -> list[bytes]:
    """The documents of a source, as the builder would read them."""
    documents = []
    for document in as_sources(source, CorpusConfig(**options)).documents():
        data = b"".join(document.chunks)
        document.sha256.update(data)
        document.size = len(data)
        documents.append(data)
    return documents


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tinylm-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.texts = self.folder / "texts"
        self.texts.mkdir()

    def put(self, name: str, data: bytes | str) -> Path:
        path = self.texts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)
        return path

    def refused(self, source: object, *parts: str, **options: object) -> str:
        """Building from `source` fails with one line that holds the parts, and leaves nothing."""
        out = self.folder / "out"
        with self.assertRaises(CorpusError) as caught:
            build_corpus(source, out, CorpusConfig(**options))
        message = str(caught.exception)
        for part in parts:
            self.assertIn(part, message)
        self.assertNotIn("\n", message)
        self.assertEqual([path.name for path in self.folder.iterdir() if path != self.texts], [])
        return message


class FolderTest(Case):
    def test_order_is_that_of_the_bytes_of_relative_paths(self) -> None:
        names = [
            "B.txt",
            "a.txt",
            "a/z.txt",
            "a-b.txt",
            "e\u0301.txt",
            "é.txt",
            "z.txt",
            "안.txt",
            "a/b/c.md",
        ]
        for name in names:
            self.put(name, name)
        expected = [name.encode("utf-8") for name in sorted(names, key=lambda name: name.encode("utf-8"))]
        self.assertEqual(read(self.texts), expected)

    def test_order_does_not_depend_on_the_file_system(self) -> None:
        for number in range(30):
            self.put(f"{number % 3}/{number}.txt", str(number))
        expected = read(self.texts)
        scandir = os.scandir

        class Shuffled:
            def __init__(self, path: str) -> None:
                with scandir(path) as entries:
                    self.entries = list(entries)
                random.Random(5).shuffle(self.entries)

            def __enter__(self) -> list[os.DirEntry[str]]:
                return self.entries

            def __exit__(self, *error: object) -> None:
                pass

        with mock.patch.object(os, "scandir", Shuffled):
            self.assertEqual(read(self.texts), expected)

    def test_only_text_files_are_read_and_others_are_counted(self) -> None:
        kept = {"a.TXT": "A", "b.py": "B", "folder.txt/c.rst": "C"}
        for name, text in kept.items():
            self.put(name, text)
        for name in ("d.png", "e.png", "README", "f.tar.gz", ".hidden.txt", ".git/g.txt", "h.json"):
            self.put(name, "not read")
        self.put("i.jsonl", '{"text": "I"}\n')
        self.put("j.md.gz", gzip.compress(b"J"))
        self.put("k.ndjson.gz", gzip.compress(b'{"text": "K"}'))
        self.assertEqual(read(self.texts), [b"A", b"B", b"C", b"I", b"J", b"K"])
        corpus = build_corpus(self.texts, self.folder / "out", CorpusConfig(validation=0.3))
        self.assertEqual(corpus.info["skipped"], {".png": 2, "(no suffix)": 1, ".tar.gz": 1, ".json": 1})

    def test_a_named_file_is_read_whatever_its_suffix(self) -> None:
        self.assertEqual(read(self.put("README", "text")), [b"text"])
        self.assertEqual(read(self.put("data.json", "[1]")), [b"[1]"])

    def test_records_tell_paths_sizes_and_digests(self) -> None:
        data = {"b/c.txt": b"three", "a.txt": b"one more", "empty.txt": b""}
        for name, text in data.items():
            self.put(name, text)
        info = build_corpus(self.texts, self.folder / "out", CorpusConfig(validation=0.4)).info
        digests = {name: hashlib.sha256(data[name]).hexdigest() for name in sorted(data)}
        lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
        listed = [f"{digest}  {len(data[name])}  {name}" for name, digest in digests.items()]
        self.assertEqual(
            info["sources"],
            [
                {
                    "place": "texts",
                    "kind": "folder",
                    "complete": True,
                    "documents": 2,
                    "files": 3,
                    "bytes": 13,
                    "sha256": hashlib.sha256(lines.encode()).hexdigest(),
                    "listed": listed,
                }
            ],
        )
        self.assertEqual(info["left_out"]["empty_documents"], 1)

    def test_several_places_keep_their_order(self) -> None:
        second, first = self.put("1.txt", "second"), self.put("2.txt", "first")
        sources = open_sources([first, str(second), "builtin:unicode"], CorpusConfig())
        documents = sources.documents()
        self.assertEqual(
            [b"".join(next(documents).chunks) for _ in range(3)], [b"first", b"second", b" \tSPACE"]
        )

    def test_sources_are_read_once_and_with_the_options_they_were_opened_with(self) -> None:
        sources = open_sources(self.put("a.txt", "text\n--\nmore"), CorpusConfig(split_on="--"))
        self.refused(sources, "opened with another split_on")
        self.assertEqual(read(sources, split_on="--"), [b"text\n", b"more"])
        self.refused(sources, "was read already", split_on="--")

    def test_a_place_that_was_not_read_to_its_end_is_recorded_so(self) -> None:
        self.put("a.txt", "text one")
        self.put("b.txt", "text two")
        config = CorpusConfig(max_documents=1, truncate=True)
        (entry,) = build_corpus(self.texts, self.folder / "out", config).info["sources"]
        self.assertEqual((entry["complete"], entry["files"], entry["documents"]), (False, 1, 1))

    def test_missing_and_empty_places_are_named_with_a_way_out(self) -> None:
        self.refused(self.folder / "nowhere", "nowhere: no such file or folder", "standard input")
        self.refused(self.texts, "texts: no text file", "skipped: nothing")
        self.put("picture.png", b"\x89PNG")
        self.refused(self.texts, "1 .png", ".txt")
        self.refused(self.put("empty.txt", b""), "empty.txt: holds no text", "1 empty document,")
        self.refused("builtin:nothing", "builtin:docs, builtin:python, builtin:unicode")
        with self.assertRaisesRegex(CorpusError, "no source"):
            open_sources([], CorpusConfig())
        self.refused("", "expected a file")
        self.refused("a\0b", "expected a file")

    @needs_posix
    def test_names_are_shown_on_one_line(self) -> None:
        self.put("two\nlines\x1b.txt", b"\xff")
        message = self.refused(self.texts, "two\\nlines\\x1b.txt")
        self.assertNotIn("\x1b", message)

    @needs_posix
    def test_names_that_are_not_utf8_are_read_and_recorded(self) -> None:
        try:
            Path(os.fsdecode(bytes(self.texts) + b"/caf\xe9.txt")).write_bytes(b"coffee")
        except OSError:
            self.skipTest("this file system takes UTF-8 names only")
        corpus = build_corpus(self.texts, self.folder / "out")
        self.assertRegex(corpus.info["sources"][0]["listed"][0], r"  6  caf\\udce9\.txt$")


@needs_posix
class SpecialFileTest(Case):
    def test_a_pipe_is_refused_without_waiting(self) -> None:
        os.mkfifo(self.texts / "pipe.txt")
        self.put("a.txt", "text")
        self.refused(self.texts, "pipe.txt", "a pipe", "-")
        self.refused(self.texts / "pipe.txt", "pipe.txt", "a pipe")
        with (
            mock.patch.object(
                reading, "check_regular", side_effect=[None, CorpusError("seen after opening")]
            ),
            self.assertRaisesRegex(CorpusError, "seen after opening"),
            reading.regular_file(str(self.texts / "pipe.txt"), "pipe.txt"),
        ):
            pass

    def test_sockets_and_devices_are_refused(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.texts / "socket"))
            self.refused(self.texts, "socket", "a socket")
        self.refused("/dev/null", "/dev/null", "a device")

    def test_links(self) -> None:
        self.put("a.txt", "AB")
        (self.texts / "linked.txt").symlink_to(self.texts / "a.txt")
        (self.texts / "loop").symlink_to(self.texts)
        self.assertEqual(read(self.texts), [b"AB", b"AB"])
        corpus = build_corpus(self.texts, self.folder / "out")
        self.assertEqual(corpus.info["skipped"], {"(link to a folder)": 1})
        shutil.rmtree(self.folder / "out")
        (self.texts / "dangling.txt").symlink_to(self.texts / "nowhere.txt")
        self.refused(self.texts, "dangling.txt (a link)", "No such file")
        (self.texts / "dangling.txt").unlink()
        (self.texts / "self.txt").symlink_to(self.texts / "self.txt")
        self.refused(self.texts, "self.txt (a link)", "symbolic links")

    def test_folders_and_empty_files_with_the_name_of_a_text(self) -> None:
        self.put("folder.txt/inside.txt", "AB")
        self.put("empty.txt", "")
        self.put("z.jsonl", "")
        info = build_corpus(self.texts, self.folder / "out").info
        self.assertEqual((info["total"]["documents"], info["left_out"]["empty_documents"]), (1, 1))
        shutil.rmtree(self.folder / "out")
        self.refused(self.texts / "empty.txt", "empty.txt", "holds no text (1 empty document")
        self.refused(self.texts / "z.jsonl", "z.jsonl", "holds no text")

    def test_what_takes_the_place_of_a_file_after_it_was_listed_is_refused_without_waiting(self) -> None:
        for make, reason in (
            (os.mkfifo, "a pipe"),
            (os.mkdir, "a folder"),
            (lambda path: os.symlink(path, path), "symbolic links"),
            (lambda path: os.symlink("/dev/zero", path), "a device"),
        ):
            path = self.put("a.txt", "text")
            documents = as_sources(self.texts, CorpusConfig()).documents()
            path.unlink()
            make(path)
            with self.subTest(reason), self.assertRaisesRegex(CorpusError, rf"a\.txt: .*{reason}"):
                next(documents)
            path.rmdir() if reason == "a folder" else path.unlink()

    def test_unreadable_files_and_folders_are_named(self) -> None:
        become = ""
        if os.geteuid() == 0:  # who may read everything
            become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        self.folder.chmod(0o777)
        self.texts.chmod(0o755)
        self.put("open.txt", "text")
        code = (
            f"import sys; from tinylm.corpus import build_corpus\n{become}"
            "try: build_corpus(sys.argv[1], sys.argv[2])\n"
            "except ValueError as error: print(type(error).__name__, error)"
        )
        self.put("closed.txt", "text").chmod(0)
        self.put("shut/inside.txt", "text")
        for name, unreadable in (("closed.txt", "closed.txt"), ("shut", "shut")):
            (self.texts / name).chmod(0)
            done = subprocess.run(
                [sys.executable, "-c", code, str(self.texts), str(self.folder / "out")],
                capture_output=True,
                text=True,
                cwd=Path(__file__).resolve().parents[1],
            )
            self.assertRegex(
                done.stdout,
                rf"^CorpusError .*{unreadable}.*: cannot be read \(Permission denied\)",
                done.stderr,
            )
            (self.texts / name).chmod(0o755)
            self.assertFalse((self.folder / "out").exists())

    def test_a_file_that_vanishes_or_changes_is_an_error(self) -> None:
        self.put("a.txt", "first")
        self.put("b.txt", "second")
        documents = as_sources(self.texts, CorpusConfig()).documents()
        b"".join(next(documents).chunks)
        (self.texts / "b.txt").unlink()
        with self.assertRaisesRegex(CorpusError, r"b\.txt: cannot be read \(No such file"):
            next(documents)
        for change in (b"longer than before", b"s"):
            path = self.put("b.txt", "second")
            documents = as_sources(path, CorpusConfig()).documents()
            document = next(documents)
            path.write_bytes(change)
            with self.assertRaisesRegex(CorpusError, r"b\.txt: changed while it was read \(expected 6 bytes"):
                b"".join(document.chunks)


class TextTest(Case):
    def test_ill_formed_utf8_is_refused_with_line_and_byte(self) -> None:
        before = "line 1\nzwei é\n안".encode()
        for name, bad in (
            ("latin-1", "café".encode("latin-1")),
            ("overlong", b"\xc0\xaf"),
            ("CESU-8", b"\xed\xa0\xbd\xed\xb8\x80"),
            ("surrogate", b"\xed\xb0\x80"),
            ("beyond", b"\xf4\x90\x80\x80"),
            ("lone", b"\x80"),
        ):
            data = before + bad + b" rest\n"
            with self.assertRaises(UnicodeDecodeError) as caught:
                data.decode("utf-8")
            for chunk, held in itertools.product((1, 2, 3, 7, 1 << 16), (1, 1 << 20)):
                with (
                    self.subTest(name, chunk=chunk, held=held),
                    mock.patch.object(reading, "CHUNK", chunk),
                    mock.patch.object(build, "HELD", held),
                ):
                    path = self.put("x.txt", data)
                    self.refused(path, f"x.txt: line 3, byte {caught.exception.start}: 0x", "iconv")

    def test_a_document_that_ends_inside_a_character_is_refused(self) -> None:
        data = "a\nb\n안".encode()[:-1]
        for chunk in (1, 2, 3, 1 << 16):
            with mock.patch.object(reading, "CHUNK", chunk):
                self.refused(
                    self.put("x.txt", data), "x.txt: line 3, byte 4: 0xec", "ends inside a character"
                )

    def test_other_encodings_are_recognised(self) -> None:
        text = "Some plain text in two lines.\nThe second.\n" * 5
        for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
            name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
            for mark in ("", "\ufeff"):
                with self.subTest(encoding, mark=mark):
                    path = self.put("x.txt", (mark + text).encode(encoding))
                    self.refused(
                        path, "x.txt: line 1, byte ", f"looks like {name}", f"iconv -f {name} -t UTF-8"
                    )
        self.refused(self.put("k.txt", ("안녕 세계\n" * 40).encode("utf-16-le")), "UTF-16LE")
        self.refused(self.put("b.txt", random.Random(0).randbytes(5000)), "binary")
        self.refused(self.put("n.txt", b"text\0text"), "line 1, byte 4: a NUL byte", "binary")

    def test_everything_is_kept_byte_for_byte(self) -> None:
        data = "\ufeffa\r\nb\rc\n\n\u2028\u0085e\u0301".encode()
        self.assertEqual(read(self.put("x.txt", data)), [data])

    def test_a_single_line_of_any_length_is_text(self) -> None:
        self.assertEqual(list(map(len, read(self.put("x.txt", b"x" * 3_000_000)))), [3_000_000])


class JsonLinesTest(Case):
    def lines(self, data: bytes | str, **options: object) -> list[bytes]:
        return read(self.put("x.jsonl", data), **options)

    def test_lines_end_at_line_feeds_only(self) -> None:
        documents = ["a\u2028b", "c\u0085d", "e\r\n\x0bf\x1cg", "안녕", ""]
        for ends in ("\n", "\r\n"):
            lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
            for data in (ends.join(lines), ends.join(lines) + ends):
                self.assertEqual(self.lines(data), [text.encode() for text in documents])

    def test_lines_are_the_same_through_any_chunks(self) -> None:
        data = b"".join(b'{"text": "%d"}\n\n' % number for number in range(30))
        for chunk in (1, 2, 3, 5, 7, 64):
            with mock.patch.object(reading, "CHUNK", chunk):
                self.assertEqual(self.lines(data), [b"%d" % number for number in range(30)])

    def test_blank_lines_are_counted(self) -> None:
        path = self.put("x.jsonl", '\n{"text": "ab"}\n \t\r\n\n{"text": "cd"}\n\n')
        info = build_corpus(path, self.folder / "out").info
        self.assertEqual(info["left_out"], {"blank_lines": 4, "empty_documents": 0, "duplicates": 0})

    def test_the_field_is_chosen(self) -> None:
        self.assertEqual(self.lines('{"text": 1, "body": "B"}', field="body"), [b"B"])

    def test_bad_lines_are_refused_with_their_number(self) -> None:
        good = '{"text": "fine"}\n'
        for bad, reason in (
            ('{"text": "cut', "not valid JSON"),
            ('{"text": "a"} {"text": "b"}', "not valid JSON"),
            ('{"text": "a", "text": "b"}', "twice"),
            ('{"text": "a", "x": NaN}', "NaN"),
            ('{"text": "\\ud800"}', "lone surrogate U+D800"),
            ('"text"', "found text"),
            ("42", "found a number"),
            ("[1]", "found an array"),
            ("null", "found null"),
            (
                '{"body": "a", "title": "b"}',
                "the field 'text' is missing (fields: body, title); choose one with --field",
            ),
            ('{"text": null}', "found null"),
            ('{"text": ["a"]}', "found an array"),
            ('{"text": true}', "found true or false"),
            ('{"text": "\\u0000"}', "NUL"),
            ('{"text": ' + "9" * 5000 + "}", "digits"),
            ('{"text": ' + "[" * 100_000, "nested"),
        ):
            with self.subTest(bad[:40]):
                self.refused(self.put("x.jsonl", good + bad + "\n" + good), "x.jsonl:2", reason)
        self.refused(self.put("x.jsonl", good.encode() + b'{"text": "\xff"}\n'), "x.jsonl:2", "UTF-8")

    def test_marks_and_other_encodings_are_refused_with_a_way_out(self) -> None:
        line = '{"text": "plain"}\n'
        self.refused(self.put("x.jsonl", "\ufeff" + line), "x.jsonl:1", "byte order mark", "tail -c +4")
        self.refused(self.put("x.jsonl", ("\ufeff" + line).encode("utf-16-le")), "x.jsonl:1", "UTF-16LE")
        self.refused(self.put("x.jsonl", line.encode("utf-16-be")), "x.jsonl:1", "UTF-16BE")

    def test_a_line_above_the_limit_is_refused(self) -> None:
        with mock.patch.object(reading, "LONGEST_LINE", 100), mock.patch.object(reading, "CHUNK", 16):
            longest = '{"text": "' + "x" * 88 + '"}'
            self.assertEqual(len(self.lines(f"{longest}\n{longest}")), 2)
            for data in (f'{longest}\n {longest}\n"', f"{longest}\n {longest}"):
                self.refused(self.put("x.jsonl", data), "x.jsonl:2", "a line above 100 bytes")

    def test_a_field_without_json_lines_is_refused(self) -> None:
        self.refused(self.put("x.txt", "text"), "field is 'body'", "--field", field="body")
        self.refused(["text"], "field is 'body'", field="body")


class GzipTest(Case):
    def test_members_and_kinds(self) -> None:
        self.assertEqual(read(self.put("x.txt.gz", gzip.compress(b"ab") + gzip.compress(b"cd"))), [b"abcd"])
        self.assertEqual(read(self.put("y.gz", gzip.compress("안".encode()))), ["안".encode()])

    def test_damage_is_refused_with_the_name_of_the_file(self) -> None:
        data = gzip.compress(random.Random(0).randbytes(100_000).hex().encode())
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 0x10
        for name, bad in (
            ("cut", data[:-20]),
            ("junk", data + b"junk"),
            ("flipped", bytes(flipped)),
            ("none", b"plain text"),
        ):
            with self.subTest(name):
                self.refused(self.put("x.txt.gz", bad), "x.txt.gz: damaged gzip data", "gzip -t")

    def test_the_record_is_that_of_the_packed_file(self) -> None:
        data = gzip.compress(b"some text")
        info = build_corpus(self.put("x.txt.gz", data), self.folder / "out").info
        self.assertEqual(info["sources"][0]["sha256"], hashlib.sha256(data).hexdigest())
        self.assertEqual(info["sources"][0]["bytes"], len(data))


class StandardInputTest(Case):
    def stdin(self, data: bytes) -> mock._patch[io.TextIOWrapper]:
        return mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    def test_is_one_document_or_json_lines(self) -> None:
        with self.stdin(b"a\r\nb"):
            self.assertEqual(read("-"), [b"a\r\nb"])
        with self.stdin(b'{"t": "a"}\n{"t": "b"}'):
            self.assertEqual(read("-", field="t"), [b"a", b"b"])
        with self.stdin(b"a\n--\nb"):
            self.assertEqual(read("-", split_on="--"), [b"a\n", b"b"])

    def test_bad_bytes_name_it(self) -> None:
        with self.stdin(b"ok\n\xff"):
            self.refused("-", "standard input: line 2, byte 3")

    def test_is_read_once_only_and_must_hold_bytes(self) -> None:
        with self.assertRaisesRegex(CorpusError, "given twice"):
            open_sources(["-", "-"], CorpusConfig())
        with mock.patch.object(sys, "stdin", None):
            self.refused("-", "standard input: not open")


class SplitOnTest(Case):
    @settings(max_examples=150, deadline=None)
    @given(
        parts=st.lists(
            st.sampled_from(("##", "##\n", "\n", "\r\n", "#", "a", "##a", "a##", "\r", "##\r\n", "안")),
            max_size=12,
        ),
        chunk=st.integers(1, 7),
    )
    def test_documents_are_those_of_a_regular_expression(self, parts: list[str], chunk: int) -> None:
        data = "".join(parts).encode()
        expected = re.split(rb"(?:(?<=\n)|\A)##(?:\r?\n|\Z)", data)
        chunks = [data[start : start + chunk] for start in range(0, len(data), chunk)]
        documents = [b"".join(document.chunks) for document in reading.split_on(chunks, "x", b"##")]
        self.assertEqual([text for text in documents if text], [text for text in expected if text])

    def test_documents_know_their_place_in_the_file(self) -> None:
        path = self.put("x.txt", b"one\n==\ntwo\nthree\n==\nfour \xff\n")
        self.refused(path, "x.txt: line 6, byte 25", split_on="==")

    def test_other_lines_stay(self) -> None:
        data = b"== \n ==\n===\n==\r\nb\n\n==\n==\nc\n=="
        self.assertEqual(
            [text for text in read(self.put("x.txt", data), split_on="==") if text],
            [b"== \n ==\n===\n", b"b\n\n", b"c\n"],
        )

    def test_is_refused_where_nothing_can_be_split(self) -> None:
        self.refused(["a"], "split_on is '--'", split_on="--")
        self.refused("builtin:unicode", "split_on", split_on="--")


class IterableTest(Case):
    def test_texts_become_documents_in_order(self) -> None:
        self.assertEqual(read(text for text in ("a", "", "안" * 70_000)), [b"a", b"", "안".encode() * 70_000])

    def test_an_iterable_that_fails_is_blamed_itself_and_not_the_place_of_the_corpus(self) -> None:
        def texts() -> Iterator[str]:
            yield "one"
            raise FileNotFoundError(2, "No such file or directory", "mine.txt")

        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(CorpusError, "document 1: the iterable.*mine.txt"):
                build_corpus(texts(), Path(folder) / "corpus")
            self.assertEqual(list(Path(folder).iterdir()), [])

    def test_ids_and_bytes_are_refused_with_their_index(self) -> None:
        for item, kind in ((b"ab", "bytes"), ([1, 2], "list"), (256, "int"), (None, "NoneType")):
            with self.subTest(kind):
                self.refused(["fine", item], "document 1: expected str", kind, "ids are no text")
        self.refused([self.texts], "document 0: expected str", "open_sources([...])")

    def test_lone_surrogates_are_refused_with_their_place(self) -> None:
        self.refused(["fine", "x" * 70_000 + "\udc80"], "document 1: character 70000", "U+DC80")

    def test_things_without_order_are_refused(self) -> None:
        for source in ({"a"}, {"a": "b"}, b"bytes", 5, None):
            with self.subTest(source):
                self.refused(source, "source: expected a place or an ordered iterable of str", "open_sources")
        self.refused([], "holds no text")
        self.refused(["", ""], "holds no text (2 empty documents")


class BuiltinTest(unittest.TestCase):
    def test_unicode_is_the_same_on_every_python(self) -> None:
        documents = read("builtin:unicode")
        self.assertEqual((len(documents), sum(map(len, documents))), (95_156, 2_893_372))
        self.assertIn("안\tHANGUL SYLLABLE AN".encode(), documents)
        digest = hashlib.sha256(b"\n".join(documents)).hexdigest()
        self.assertEqual(digest, "32550497117a641b43e9b96309bb2b82abe4c0fd4cacc57383710a7a8ad5621a")

    def test_python_is_the_source_of_modules_without_tests(self) -> None:
        documents = read("builtin:python")
        self.assertGreater(sum(map(len, documents)), 8_000_000)
        self.assertIn(Path(os.__file__).read_bytes(), documents)
        names = [name for name, _ in builtin._modules()]
        self.assertEqual(names, sorted(names))
        for word in ("site-packages", "/test/", "/tests/", "idle_test", "_sysconfigdata"):
            self.assertFalse([name for name in names if word in f"/{name}"])

    def test_docs_are_topics_and_docstrings(self) -> None:
        modules = [
            (name, path) for name, path in builtin._modules() if name in ("posixpath.py", "json/encoder.py")
        ]
        with mock.patch.object(builtin, "_modules", return_value=modules):
            documents = read("builtin:docs")
        self.assertGreater(len(documents), 90)
        self.assertEqual(len(documents), len(set(documents)))
        self.assertGreaterEqual(min(map(len, documents)), 40)
        self.assertIn(inspected(posixpath.join), documents)
        self.assertIn(inspected(json.JSONEncoder), documents)
        self.assertTrue(documents[0].startswith(b'The "assert" statement'))

    def test_docstrings_are_those_that_ast_finds(self) -> None:
        source = Path(json.decoder.__file__).read_bytes()
        tree = ast.parse(source)
        expected = {
            text
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and (text := ast.get_docstring(node, clean=False)) is not None
        }
        self.assertEqual({text for _, text in builtin._found(tree)}, expected)


def inspected(thing: object) -> bytes:
    text = inspect.getdoc(thing)
    assert text is not None
    return text.encode()


class ClassifyTest(unittest.TestCase):
    def test_suffixes(self) -> None:
        for name, expected in (
            ("a.TXT", (".txt", False)),
            ("a.jsonl.gz", (".jsonl", True)),
            ("a.gz", ("", True)),
            ("README", ("", False)),
            ("a.tar.gz", (".tar", True)),
        ):
            self.assertEqual(listing.classify(name), expected)


if __name__ == "__main__":
    unittest.main()
