"""The builder against a naive twin; limits; held-out rules; damage on the way back in."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tinylm import contract, files
from tinylm.config import CorpusConfig, TrainConfig
from tinylm.corpus import Corpus, Split, build_corpus, describe, open_corpus, scripts, streams
from tinylm.corpus import build as build_room
from tinylm.corpus.opened import FILES
from tinylm.data import corpus_for
from tinylm.errors import ContractError, CorpusError, LimitError
from tinylm.sources import Sources
from tinylm.sources.document import Document, Place
from tinylm.trainer import train

TEXT = st.text(st.sampled_from("ab\n\r é€안😀\u0301\ufeff"), max_size=12)
BOUNDARY = contract.DOC_BOUNDARY


class Pieces(Place):
    """Documents given as bytes, in chunks of one size."""

    kind = "documents"

    def __init__(self, documents: Iterable[bytes], size: int, known: bool = False) -> None:
        super().__init__("pieces", "-")
        self.given_documents = list(documents)
        self.chunk = size
        self.known = known
        self.chunks_read = 0

    def documents(self) -> Iterator[Document]:
        for index, data in enumerate(self.given_documents):
            document = Document(
                f"piece {index}", self._chunks(data), known_bytes=len(data) if self.known else 0
            )
            yield document
            self.count_text(document)

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), self.chunk):
            self.chunks_read += 1
            yield data[start : start + self.chunk]


def twin(documents: list[bytes], share: float) -> tuple[list[list[bytes]], bool]:
    """The held-out rule, naively: documents of train and validation, and whether train ends in a head."""
    documents = [document for document in documents if document]
    parts: list[list[bytes]] = [[], []]
    for document in documents:
        number = int.from_bytes(hashlib.sha256(document).digest()[:8], "big")
        parts[Fraction(number, 2**64) < Fraction(share)].append(document)
    total = sum(map(len, documents))
    held = sum(map(len, parts[1]))
    if not abs(held - share * total) > share * total / 2:
        return parts, False
    largest = max(documents, key=len)
    others = [document for document in documents if document != largest]
    wanted = math.ceil(Fraction(str(share)) * (sum(map(len, others)) + len(largest)))
    characters = largest.decode("utf-8")
    tails = [characters[cut:].encode("utf-8") for cut in range(0 if others else 1, len(characters))]
    enough = [tail for tail in tails if len(tail) >= wanted] or tails[:1]
    tail = enough[-1]
    head = largest[: len(largest) - len(tail)]
    return [others + [head] * bool(head), [tail]], bool(head)


def stream_of(documents: list[bytes], closed: bool = True) -> list[int]:
    stream = [BOUNDARY]
    for document in documents:
        stream += [*document, BOUNDARY]
    return stream if closed else stream[:-1]


def starts_of(documents: list[bytes]) -> list[int]:
    starts, position = [], 1
    for document in documents:
        starts.append(position)
        position += len(document) + 1
    return starts


class Case(unittest.TestCase):
    """Each test has an empty folder, which must hold nothing unexpected at the end."""

    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tinylm-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.out = self.folder / "out"

    def build(self, documents: Iterable[str | bytes], chunk: int = 0, **options: object) -> Corpus:
        """A corpus from documents, through chunks of `chunk` bytes if that is given."""
        config = CorpusConfig(**options)
        raw = [item.encode("utf-8") if isinstance(item, str) else item for item in documents]
        source = Sources([Pieces(raw, chunk or 1 << 20)], config)
        shutil.rmtree(self.out, ignore_errors=True)
        return build_corpus(source, self.out, config)

    def left(self) -> list[str]:
        """What the folder holds."""
        return sorted(path.name for path in self.folder.iterdir())

    def expect_split(self, split: Split, documents: list[bytes], closed: bool = True) -> None:
        self.assertEqual(split.stream.tolist(), stream_of(documents, closed))
        self.assertEqual(split.starts.tolist(), starts_of(documents))
        self.assertEqual(
            [bytes(split.document(i).astype(np.uint8)) for i in range(split.documents)], documents
        )
        self.assertEqual(split.boundaries, split.stream[1:].tolist().count(BOUNDARY))
        self.assertEqual(split.bytes, sum(map(len, documents)))
        self.assertEqual(split.digest, hashlib.sha256(np.array(split.stream, "<u2").tobytes()).hexdigest())


class BuilderTest(Case):
    @settings(max_examples=60, deadline=None)
    @given(
        texts=st.lists(TEXT, min_size=1, max_size=14),
        share=st.sampled_from((0.05, 0.1, 0.25, 0.5)),
        chunk=st.integers(1, 7),
        held=st.sampled_from((1, 6, 1000)),
        block=st.sampled_from((1, 5, 64)),
    )
    def test_streams_are_those_of_a_naive_builder_however_the_bytes_arrive(
        self, texts: list[str], share: float, chunk: int, held: int, block: int
    ) -> None:
        documents = [text.encode("utf-8") for text in texts]
        with mock.patch.object(build_room, "HELD", held), mock.patch.object(streams, "BLOCK", block):
            if len({text for text in texts if text}) <= 1 and max(map(len, texts)) < 2:
                with self.assertRaises(CorpusError):
                    self.build(texts, chunk, validation=share)
                return
            corpus = self.build(texts, chunk, validation=share)
        (train, validation), head = twin(documents, share)
        self.expect_split(corpus.train, train, closed=not head)
        self.expect_split(corpus.validation, validation)
        info = corpus.info
        kept = b"".join(train + validation).decode("utf-8")
        self.assertEqual(info["total"]["characters"], len(kept))
        self.assertEqual(sum(info["scripts"].values()), len(kept.encode("utf-8")))
        self.assertEqual(info["left_out"]["empty_documents"], texts.count(""))
        self.assertEqual(info["total"]["tokens"], len(corpus.train.stream) + len(corpus.validation.stream))
        self.assertEqual(
            info["splits"]["validation"]["characters"], len(b"".join(validation).decode("utf-8"))
        )
        self.assertEqual(
            info["total"]["documents"] + info["left_out"]["duplicates"], len([t for t in texts if t])
        )
        self.assertEqual(open_corpus(self.out).digest, corpus.digest)

    def test_two_documents_have_one_boundary_between_them(self) -> None:
        split = Split.of([b"ab", b"", b"ba"])
        self.assertEqual(split.stream.tolist(), [256, 97, 98, 256, 98, 97, 256])
        self.assertEqual((split.documents, split.bytes, split.boundaries), (2, 4, 2))
        self.expect_split(split, [b"ab", b"ba"])
        self.expect_split(Split.of([]), [])

    def test_typed_boundary_stays_seven_bytes(self) -> None:
        corpus = self.build(["<|doc|>", *map(str, range(100))], validation=0.3)
        tokens = np.concatenate([corpus.train.stream, corpus.validation.stream])
        boundaries = corpus.train.boundaries + corpus.validation.boundaries
        self.assertEqual(int((tokens == BOUNDARY).sum()), boundaries + 2)
        self.assertIn(b"\0".join(bytes([value]) for value in b"<|doc|>"), tokens.astype("<u2").tobytes())
        self.assertEqual(int((tokens == BOUNDARY).sum()), 101 + 2)

    def test_nothing_is_normalised(self) -> None:
        texts = ["\ufeffbom", "a\r\nb\rc\n\n", "e\u0301", "é", "︰", "\u2028\u0085"]
        corpus = self.build([*texts, "filler " * 40], validation=0.2)
        found = [
            bytes(split.document(i).astype(np.uint8)).decode("utf-8")
            for split in (corpus.train, corpus.validation)
            for i in range(split.documents)
        ]
        self.assertLessEqual(set(texts), set(found))

    def test_duplicates_never_straddle_the_split(self) -> None:
        draw = random.Random(1)
        texts = [f"document {draw.randrange(300)}" for _ in range(2000)]
        corpus = self.build(texts)
        self.assertEqual(corpus.info["held_out"], "documents")
        train, validation = (
            {split.document(i).tobytes() for i in range(split.documents)}
            for split in (corpus.train, corpus.validation)
        )
        self.assertTrue(train and validation)
        self.assertFalse(train & validation)

    def test_same_texts_give_the_same_files_wherever_they_are_built(self) -> None:
        texts = [f"text {number}" for number in range(50)]
        first = {path.name: path.read_bytes() for path in self.build(texts).path.iterdir()}
        second = build_corpus(
            Sources([Pieces([t.encode() for t in texts], 3)], CorpusConfig()), self.folder / "b" / "c"
        )
        self.assertEqual(first, {path.name: path.read_bytes() for path in second.path.iterdir()})
        self.assertNotIn(str(self.folder).encode(), first["corpus.json"])

    def test_a_large_document_takes_bounded_memory(self) -> None:
        status = Path("/proc/self/status")
        if not status.is_file():
            self.skipTest("no /proc: peak memory cannot be read")
        text = self.folder / "one.txt"
        with text.open("wb") as file:
            for _ in range(48):
                file.write("0123456789abcde안".encode() * (1_000_000 // 18) + b"!")
        code = (
            "import sys; from tinylm.corpus import build_corpus; build_corpus(sys.argv[1], sys.argv[2]);"
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(text), str(self.out)], capture_output=True, text=True, check=True
        )
        self.assertLess(int(done.stdout) / 1024, 150)
        corpus = open_corpus(self.out, verify=False)
        self.assertEqual(corpus.train.bytes + corpus.validation.bytes, text.stat().st_size)

    def test_progress_tells_documents_and_bytes(self) -> None:
        seen: list[tuple[int, int]] = []
        with mock.patch.object(build_room, "REPORTED", 10):
            build_corpus(["12345678"] * 10, self.out, progress=lambda *counts: seen.append(counts))
        self.assertEqual(seen[0], (1, 16))
        self.assertEqual(seen, sorted(seen))

    def test_digests_survive_cutting_and_copying(self) -> None:
        draw = random.Random(2)
        for _ in range(60):
            with mock.patch.object(streams, "BLOCK", 7), mock.patch.object(streams, "SNAPSHOT", 20):
                first = streams.Stream(self.folder / "first")
                second = streams.Stream(self.folder / "second")
            expected = [[BOUNDARY], [BOUNDARY]]
            with mock.patch.object(streams, "BLOCK", 7), mock.patch.object(streams, "SNAPSHOT", 20):
                for _ in range(draw.randrange(20)):
                    side, stream = draw.choice(list(enumerate((first, second))))
                    what = draw.randrange(4)
                    if what == 0:
                        data = bytes(draw.choices(b"abc", k=draw.randrange(30)))
                        stream.write(data, None)
                        expected[side] += data
                    elif what == 1:
                        stream.boundary()
                        expected[side].append(BOUNDARY)
                    elif what == 2:
                        end = draw.randrange(1, stream.tokens + 1)
                        stream.cut(end, stream.census.counts())
                        del expected[side][end:]
                    else:
                        begin = draw.randrange(first.tokens)
                        second.copy(first, begin, first.tokens)
                        expected[1] += expected[0][begin:]
            for tokens, stream in zip(expected, (first, second), strict=True):
                data = np.array(tokens, "<u2").tobytes()
                self.assertEqual(stream.digest(), hashlib.sha256(data).hexdigest())
                self.assertEqual(stream.path.read_bytes(), data)
                self.assertEqual(stream.tokens, len(tokens))
                stream.close()
                stream.path.unlink()


class TailTest(Case):
    def test_one_document_keeps_its_last_tenth_for_validation(self) -> None:
        text = "".join(random.Random(0).choices("abc \n", k=1_115_394))
        corpus = self.build([text])
        self.assertEqual((corpus.train.bytes, corpus.validation.bytes), (1_003_854, 111_540))
        self.assertEqual((corpus.train.boundaries, corpus.validation.boundaries), (0, 1))
        joined = (
            corpus.train.document(0).astype(np.uint8).tobytes()
            + corpus.validation.document(0).astype(np.uint8).tobytes()
        )
        self.assertEqual(joined.decode(), text)
        self.assertEqual(corpus.info["held_out"], "tail")

    def test_the_cut_is_between_characters(self) -> None:
        for text, head in (
            ("안녕하세요", "안녕하세"),
            ("ab", "a"),
            ("a안", "a"),
            ("안a", "안"),
            ("😀😀", "😀"),
            ("안ab", "안a"),
        ):
            with self.subTest(text):
                corpus = self.build([text], validation=0.1)
                self.assertEqual(corpus.train.document(0).astype(np.uint8).tobytes().decode(), head)

    def test_the_cut_is_a_character_even_if_half_of_it_would_do(self) -> None:
        corpus = self.build(["안a"], validation=0.5)
        self.assertEqual(corpus.train.document(0).astype(np.uint8).tobytes().decode(), "안")

    def test_the_rule_is_the_same_whatever_must_be_moved(self) -> None:
        for documents in (
            ["a", "b" * 50],
            ["b" * 50, "a"],
            ["a" * 40, "b" * 41, "c"],
            ["안" * 30],
            ["x" * 9] * 3,
        ):
            for held in (1, 1000):
                with self.subTest(documents, held=held), mock.patch.object(build_room, "HELD", held):
                    raw = [document.encode() for document in documents]
                    (train, validation), head = twin(raw, 0.07)
                    corpus = self.build(documents, 10, validation=0.07)
                    self.expect_split(corpus.train, train, closed=not head)
                    self.expect_split(corpus.validation, validation)
                    self.assertEqual(sorted(path.name for path in self.out.iterdir()), sorted(FILES))

    def test_duplicates_of_the_largest_are_left_out_and_counted(self) -> None:
        largest = "the largest document of all"
        corpus = self.build(["a", largest, "bc", largest, largest], validation=0.2)
        (train, validation), _ = twin(
            [b"a", largest.encode(), b"bc", largest.encode(), largest.encode()], 0.2
        )
        self.expect_split(corpus.train, train, closed=False)
        self.expect_split(corpus.validation, validation)
        self.assertEqual(corpus.info["left_out"]["duplicates"], 2)
        self.assertEqual(corpus.info["total"]["documents"], 3)

    def test_one_character_cannot_be_split_and_says_what_to_do(self) -> None:
        for texts in (["x"], ["안"], ["x", "x", "x"]):
            with self.subTest(texts), self.assertRaisesRegex(CorpusError, "at least two characters"):
                self.build(texts)
            self.assertEqual(self.left(), [])

    def test_single_characters_are_held_out_whole(self) -> None:
        corpus = self.build(["a", "b", "c"], validation=0.34)
        self.assertEqual(corpus.train.documents + corpus.validation.documents, 3)
        self.assertEqual(corpus.validation.documents, 1)
        self.assertEqual(corpus.train.boundaries, 2)


TOTAL = {"max_documents": 4, "max_characters": 8, "max_bytes": 15, "max_tokens": 2 + 15 + 4}
"""What the texts of the limit tests hold, by the limit that counts it."""


class LimitTest(Case):
    TEXTS = ("ab", "안녕", "", "xyz", "😀")

    def test_each_limit_is_exact(self) -> None:
        plain = self.build(self.TEXTS, validation=0.3)
        self.assertEqual({f"max_{name}": value for name, value in plain.info["total"].items()}, TOTAL)
        for limit, value in TOTAL.items():
            for chunk in (1, 100):
                with self.subTest(limit, chunk=chunk):
                    self.build(self.TEXTS, chunk, validation=0.3, **{limit: value})
                    self.build(self.TEXTS, chunk, validation=0.3, **{limit: value + 1})
                    shutil.rmtree(self.out)
                    with self.assertRaises(LimitError) as caught:
                        self.build(self.TEXTS, chunk, validation=0.3, **{limit: value - 1})
                    message = str(caught.exception)
                    for part in (
                        "piece 4",
                        f"{limit} = {value - 1}",
                        f"--{limit.replace('_', '-')}",
                        "--truncate",
                    ):
                        self.assertIn(part, message)
                    self.assertNotIn("\n", message)
                    self.assertEqual(self.left(), [])

    def test_truncate_stops_at_the_last_whole_document(self) -> None:
        shorter = self.build(self.TEXTS[:-1], validation=0.3)
        expected = [split.stream.tolist() for split in (shorter.train, shorter.validation)]
        for limit, value in TOTAL.items():
            for held in (1, 1000):
                with self.subTest(limit, held=held), mock.patch.object(build_room, "HELD", held):
                    corpus = self.build(self.TEXTS, 1, validation=0.3, truncate=True, **{limit: value - 1})
                    self.assertEqual(corpus.info["truncated"], limit)
                    self.assertEqual([s.stream.tolist() for s in (corpus.train, corpus.validation)], expected)
                    self.assertEqual(corpus.info["scripts"], shorter.info["scripts"])
                    self.assertIn(f"under {limit}", describe(corpus))

    def test_empty_documents_after_the_limit_do_not_count(self) -> None:
        self.assertIsNone(self.build(["ab", "cd", "", ""], max_documents=2, truncate=True).info["truncated"])

    def test_a_first_document_above_the_limit_fails_even_with_truncate(self) -> None:
        with self.assertRaisesRegex(LimitError, "it is the first"):
            self.build(["abcdef", "a"], max_bytes=5, truncate=True)
        self.assertEqual(self.left(), [])

    def test_a_document_is_read_no_further_than_the_limit(self) -> None:
        place = Pieces([b"x" * 1000], 10)
        with self.assertRaises(LimitError):
            build_corpus(Sources([place], CorpusConfig(max_bytes=50)), self.out, CorpusConfig(max_bytes=50))
        self.assertEqual(place.chunks_read, 6)

    def test_a_file_whose_size_passes_the_limit_is_not_read(self) -> None:
        place = Pieces([b"x" * 1000], 10, known=True)
        with self.assertRaises(LimitError):
            build_corpus(Sources([place], CorpusConfig(max_bytes=50)), self.out, CorpusConfig(max_bytes=50))
        self.assertEqual(place.chunks_read, 0)


class FolderTest(Case):
    def test_existing_places_are_refused(self) -> None:
        self.build(["ab", "cd"])
        with self.assertRaisesRegex(CorpusError, "--replace"):
            build_corpus(["xy"], self.out)
        build_corpus(["xy"], self.out, replace=True)
        self.assertEqual(open_corpus(self.out).info["total"]["bytes"], 2)
        self.assertEqual(self.left(), ["out"])

    def test_only_a_corpus_is_replaced(self) -> None:
        self.build(["ab", "cd"])
        (self.out / "notes.txt").write_text("mine", encoding="utf-8")
        other = self.folder / "other"
        other.mkdir()
        (other / "train.bin").write_bytes(b"weights of mine")
        file = self.folder / "file"
        file.write_text("mine", encoding="utf-8")
        for place in (self.out, other, file):
            with (
                self.subTest(place.name),
                self.assertRaisesRegex(CorpusError, "expected a corpus to replace"),
            ):
                build_corpus(["xy"], place, replace=True)
        self.assertEqual((self.out / "notes.txt").read_text(encoding="utf-8"), "mine")

    def test_a_build_that_fails_leaves_the_old_corpus(self) -> None:
        digest = self.build(["ab", "cd"]).digest
        for documents in (["\0"], [b"no text"], []):
            with self.assertRaises(CorpusError):
                build_corpus(documents, self.out, replace=True)
        self.assertEqual(open_corpus(self.out).digest, digest)
        self.assertEqual(self.left(), ["out"])

    def test_a_full_disk_at_any_write_leaves_the_old_corpus_or_none(self) -> None:
        texts = ["a" * 30, "b" * 40, "c" * 10]
        write_all = files.write_all
        for old in (False, True):
            failures = 0
            while True:
                shutil.rmtree(self.out, ignore_errors=True)
                digest = self.build(["old", "text"]).digest if old else None
                calls = 0

                def full(file: object, data: object, last: int = failures) -> None:
                    nonlocal calls
                    calls += 1
                    if calls > last:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    write_all(file, data)

                with mock.patch.object(files, "write_all", full), mock.patch.object(streams, "BLOCK", 16):
                    try:
                        built = build_corpus(texts, self.out, replace=True)
                    except CorpusError as error:
                        self.assertIn("No space left on device", str(error))
                        self.assertIn("out", str(error))
                    else:
                        self.assertEqual(open_corpus(self.out).digest, built.digest)
                        break
                self.assertEqual(self.left(), ["out"] if old else [])
                if old:
                    self.assertEqual(open_corpus(self.out).digest, digest)
                failures += 1
            self.assertGreater(failures, 8)

    def test_bytes_that_the_system_lost_leave_the_old_corpus_or_none(self) -> None:
        write_all = files.write_all
        expected = build_corpus(["some", "other"], self.folder / "expected").digest
        shutil.rmtree(self.folder / "expected")
        noticed = 0
        for old, lost in itertools.product((False, True), range(8)):
            shutil.rmtree(self.out, ignore_errors=True)
            digest = self.build(["old", "text"]).digest if old else None
            calls = itertools.count()

            def losing(file: object, data: bytes, lost: int = lost, calls: Iterator[int] = calls) -> None:
                write_all(file, memoryview(data).cast("B")[: -2 if next(calls) == lost else None])

            with mock.patch.object(files, "write_all", losing):
                try:
                    build_corpus(["some", "other"], self.out, replace=True)
                except CorpusError as error:
                    self.assertRegex(str(error), "arrived of|ends before token")
                    noticed += 1
                else:  # bytes of a stream that was written again
                    self.assertEqual(open_corpus(self.out).digest, expected)
                    continue
            self.assertEqual(self.left(), ["out"] if old else [])
            if old:
                self.assertEqual(open_corpus(self.out).digest, digest)
        self.assertGreater(noticed, 8)

    def test_interrupting_leaves_nothing(self) -> None:
        def documents() -> Iterator[str]:
            yield "some text"
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            build_corpus(documents(), self.out)
        self.assertEqual(self.left(), [])


class OpenTest(Case):
    def setUp(self) -> None:
        super().setUp()
        self.corpus = self.build([f"document {number}" for number in range(40)], validation=0.25)

    def reseal(self, **changes: object) -> None:
        """Change corpus.json as a forger would: with a fitting digest."""
        path = self.out / "corpus.json"
        path.write_bytes(files.readable_json(files.seal({**json.loads(path.read_bytes()), **changes})))

    def expect(self, error: type[Exception], *parts: str, verify: bool = True) -> None:
        with self.assertRaises(error) as caught:
            open_corpus(self.out, verify=verify)
        for part in parts:
            self.assertIn(part, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))

    def test_streams_are_read_only(self) -> None:
        for array in (self.corpus.train.stream, self.corpus.train.starts):
            with self.assertRaises(ValueError):
                array[0] = 1

    def test_missing_things_are_named(self) -> None:
        for name in ("train.bin", "validation.documents.npy", "corpus.json"):
            (self.out / name).rename(self.folder / name)
            self.expect(CorpusError, name, "found", verify=False)
            (self.folder / name).rename(self.out / name)
        with self.assertRaisesRegex(CorpusError, "found nothing.*corpus build"):
            open_corpus(self.folder / "nowhere")

    def test_sizes_are_checked_without_verify(self) -> None:
        for name in ("train.bin", "train.documents.npy"):
            path = self.out / name
            data = path.read_bytes()
            for wrong in (b"", data[:-1], data[:-2], data + b"\0\1"):
                path.write_bytes(wrong)
                self.expect(CorpusError, name, f"expected {len(data):,} bytes", verify=False)
            path.write_bytes(data)
        open_corpus(self.out)

    def test_every_flipped_bit_is_found(self) -> None:
        for name in ("train.bin", "validation.bin", "train.documents.npy", "validation.documents.npy"):
            path = self.out / name
            data = path.read_bytes()
            for position in {0, 1, 2, 9, len(data) // 2, len(data) - 1}:
                for bit in range(8):
                    path.write_bytes(
                        bytes([*data[:position], data[position] ^ 1 << bit, *data[position + 1 :]])
                    )
                    self.expect(CorpusError, name)
            path.write_bytes(data)

    def test_a_changed_manifest_is_found(self) -> None:
        path = self.out / "corpus.json"
        data = path.read_bytes()
        for old, new in (
            (b'"documents": 40', b'"documents": 41'),
            (b'"validation": 0.25', b'"validation": 0.5'),
        ):
            self.assertIn(old, data)
            path.write_bytes(data.replace(old, new))
            self.expect(CorpusError, "corpus.json", "digest", verify=False)
        for wrong in (b"", b"[]", data[:-9], data.replace(b'"format": 1', b'"format": 1, "format": 1')):
            path.write_bytes(wrong)
            self.expect(CorpusError, "corpus.json", verify=False)

    def test_another_format_or_contract_is_refused(self) -> None:
        self.reseal(format=2)
        self.expect(CorpusError, "expected format 1, found 2", verify=False)
        self.reseal(format=True)
        self.expect(CorpusError, "expected format 1", verify=False)
        for key, value in (
            ("tokenizer_version", "utf8-byte-v2"),
            ("vocabulary_size", 258),
            ("boundary_id", 0),
            ("vocabulary_sha256", "0" * 64),
        ):
            self.reseal(format=1, contract={**contract.contract(), key: value})
            self.expect(ContractError, "corpus.json", key, repr(value), verify=False)
        self.reseal(contract=None)
        self.expect(ContractError, "no tokenizer contract", verify=False)

    def rewrite(self, name: str, data: bytes) -> None:
        """Change a file as a forger would: with fitting size and digest."""
        (self.out / name).write_bytes(data)
        entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self.reseal(files={**self.corpus.info["files"], name: entry})

    def test_ids_out_of_range_are_refused_before_use(self) -> None:
        for split in (self.corpus.train, self.corpus.validation):
            whole = np.array(split.stream, "<u2")  # the mapping would follow the file
            for value, place in ((257, 5), (258, 1), (65535, 0), (32768, -2)):
                stream = whole.copy()
                stream[place] = value
                self.rewrite(f"{split.name}.bin", stream.tobytes())
                at = f"at token {place % len(stream)}" if place else "as the first token"
                self.expect(CorpusError, f"{split.name}.bin", str(value), at)
            self.rewrite(f"{split.name}.bin", whole.tobytes())
        open_corpus(self.out)

    def test_an_id_out_of_range_never_reaches_an_embedding(self) -> None:
        stream = np.array(self.corpus.train.stream, "<u2")
        stream[7] = 300
        self.rewrite("train.bin", stream.tobytes())
        config = TrainConfig(data=str(self.out), out=str(self.folder / "run"), steps=1, device="cpu")
        for use in (lambda: train(config), lambda: corpus_for(str(self.out))):
            with (
                mock.patch("torch.nn.functional.embedding", side_effect=AssertionError("an id was used")),
                self.assertRaisesRegex(CorpusError, r"train\.bin.*found 300 at token 7"),
            ):
                use()
        self.assertFalse((self.folder / "run").exists())

    def test_odd_sizes_are_refused_with_and_without_a_manifest_that_fits(self) -> None:
        data = np.array(self.corpus.train.stream, "<u2").tobytes()
        for wrong in (data[:-1], data + b"\0", b"\0"):
            (self.out / "train.bin").write_bytes(wrong)
            self.expect(CorpusError, "train.bin", verify=False)
            self.rewrite("train.bin", wrong)
            self.expect(CorpusError, "train.bin", "of 2 bytes each", verify=False)
            self.rewrite("train.bin", data)
        open_corpus(self.out)

    def test_files_in_each_other_s_place_are_refused(self) -> None:
        whole = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.out = self.folder / "another"
        self.build([f"other {number}" for number in range(41)], validation=0.25)
        foreign = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.out = self.folder / "out"
        for one, two in (
            ("train.bin", "validation.bin"),
            ("train.documents.npy", "validation.documents.npy"),
        ):
            for names, data in (((one, two), whole), ((two, one), whole)):
                (self.out / names[0]).write_bytes(data[names[1]])
                self.expect(CorpusError, names[0], verify=False)
                (self.out / names[0]).write_bytes(whole[names[0]])
        for name in whole:
            (self.out / name).write_bytes(foreign[name])
            self.expect(CorpusError, str(self.out))
            (self.out / name).write_bytes(whole[name])
        open_corpus(self.out)

    def test_a_manifest_of_the_same_content_in_other_bytes_is_refused(self) -> None:
        path = self.out / "corpus.json"
        whole = path.read_bytes()
        for other in (whole.replace(b"\n ", b"\n\t", 1), whole.replace(b"\n", b"\r\n"), whole + b"\n"):
            self.assertEqual(json.loads(other), json.loads(whole))
            path.write_bytes(other)
            self.expect(CorpusError, "corpus.json", "digest", verify=False)

    def test_a_manifest_nested_as_deep_as_the_parser_goes_is_refused(self) -> None:
        path = self.out / "corpus.json"
        whole = path.read_bytes()
        for depth in (100, *range(900, 1010), 100_000):
            nested = b'{\n "a": ' + b"[" * depth + b"]" * depth + b",\n"
            path.write_bytes(whole.replace(b"{\n", nested, 1))
            self.expect(CorpusError, "corpus.json", verify=False)

    def test_where_a_killed_build_left_the_old_corpus_is_said(self) -> None:
        self.out.rename(self.folder / ".old-out-0123456789ab")
        self.expect(CorpusError, "found nothing", "rename", ".old-out-0123456789ab back")
        (self.folder / ".old-out-0123456789ab").rename(self.out)
        open_corpus(self.out)

    def test_starts_must_fit_the_stream(self) -> None:
        stream = np.array(self.corpus.train.stream, "<u2")
        stream[3] = BOUNDARY
        self.rewrite("train.bin", stream.tobytes())
        self.expect(CorpusError, "train.bin", "boundaries where train.documents.npy says")
        self.rewrite("train.bin", np.array(self.corpus.train.stream, "<u2").tobytes())
        good = np.array(self.corpus.train.starts)
        for wrong in (
            good[::-1],
            good - 1,
            good + 10**6,
            good[:0],
            good.astype(np.float64),
            good.reshape(1, -1),
        ):
            path = self.folder / "wrong.npy"
            np.save(path, wrong)
            self.rewrite("train.documents.npy", path.read_bytes())
            self.expect(CorpusError, "train.documents.npy", verify=False)
        self.rewrite("train.documents.npy", b"not an array" * 20)
        self.expect(CorpusError, "train.documents.npy", verify=False)

    def test_forged_manifests_without_parts_are_refused(self) -> None:
        for part in ("files", "splits"):
            for value in (None, [], {}, {"train.bin": 1, "train": 1}):
                self.reseal(
                    **{"files": self.corpus.info["files"], "splits": self.corpus.info["splits"], part: value}
                )
                self.expect(CorpusError, "corpus.json", verify=False)

    def test_an_empty_stream_is_refused(self) -> None:
        self.rewrite("train.bin", b"\0\1")
        self.expect(CorpusError, "train.bin", verify=False)
        self.rewrite("train.bin", b"")
        self.expect(CorpusError, "train.bin", verify=False)


class DescribeTest(Case):
    def test_shows_what_a_reader_asks_for(self) -> None:
        corpus = self.build(["Привет, мир\n", "안녕 😀", "", "plain \x1b[31mtext" * 30], validation=0.3)
        text = describe(corpus)
        for part in (
            "Cyrillic",
            "Hangul",
            "symbols",
            "bytes per character",
            "1 empty document",
            corpus.digest,
        ):
            self.assertIn(part, text)
        self.assertIn("<|doc|>", text)
        self.assertIn("…", text)
        self.assertNotIn("\x1b", text)


class CensusTest(unittest.TestCase):
    def count(self, text: str) -> dict[str, int]:
        census = scripts.Census()
        census.add(text.encode("utf-8"), None if text.isascii() else text)
        return scripts.by_script(census.counts())

    def test_letters_are_counted_under_the_script_that_unicode_names(self) -> None:
        names = {
            "LATIN CAPITAL LETTER ": "Latin",
            "LATIN SMALL LETTER ": "Latin",
            "GREEK SMALL LETTER ": "Greek",
            "CYRILLIC CAPITAL LETTER ": "Cyrillic",
            "HEBREW LETTER ": "Hebrew",
            "ARABIC LETTER ": "Arabic",
            "DEVANAGARI LETTER ": "Devanagari",
            "THAI CHARACTER ": "Thai",
            "HANGUL SYLLABLE ": "Hangul",
            "HIRAGANA LETTER ": "Kana",
            "KATAKANA LETTER ": "Kana",
            "CJK UNIFIED IDEOGRAPH-": "Han",
            "ARMENIAN SMALL LETTER ": "Armenian",
            "GEORGIAN LETTER ": "Georgian",
            "TAMIL LETTER ": "Tamil",
            "COMBINING ": "common",
        }
        found: dict[str, list[str]] = {}
        for code in range(0x30000):
            name = unicodedata.ucd_3_2_0.name(chr(code), "")
            prefix = next((prefix for prefix in names if name.startswith(prefix)), None)
            if prefix is not None and (prefix != "COMBINING " or code < 0x370):
                found.setdefault(names[prefix], []).append(chr(code))
        self.assertEqual(set(found), set(names.values()))
        for script, characters in found.items():
            text = "".join(characters)
            with self.subTest(script):
                self.assertEqual(self.count(text), {script: len(text.encode("utf-8"))})

    def test_counts_are_those_of_a_loop_over_characters(self) -> None:
        characters = "aZ5 \n\x7fé×ª안녕😀\U000e0041\u0301ё"
        script_of = {character: next(iter(self.count(character))) for character in characters}
        self.assertEqual(
            [script_of[character] for character in "a5é×안😀ё"],
            ["Latin", "common", "Latin", "common", "Hangul", "symbols", "Cyrillic"],
        )
        text = "".join(random.Random(3).choices(characters, k=200_001))
        expected: dict[str, int] = {}
        for character in text:
            script = script_of[character]
            expected[script] = expected.get(script, 0) + len(character.encode("utf-8"))
        self.assertEqual(self.count(text), expected)
        self.assertEqual(self.count("a5"), {"Latin": 1, "common": 1})

    def test_ascii_with_a_few_other_characters_is_counted_the_same(self) -> None:
        text = "".join(random.Random(4).choices("aZ5 \né안😀", weights=[500] * 5 + [1] * 3, k=200_000))
        expected = {
            "Latin": sum(map(text.count, "aZ")) + 2 * text.count("é"),
            "common": sum(map(text.count, "5 \n")),
            "Hangul": 3 * text.count("안"),
            "symbols": 4 * text.count("😀"),
        }
        self.assertGreater(min(expected.values()), 0)
        self.assertEqual(self.count(text), expected)


if __name__ == "__main__":
    unittest.main()
