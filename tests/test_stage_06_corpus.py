"""Stage 06: only the builder inserts boundaries, repetitions stay on one side, limits are exact."""

from __future__ import annotations

import hashlib
import tempfile
import unittest
from pathlib import Path

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.config import CorpusConfig
from tinylm.corpus import Corpus, Split, build_corpus
from tinylm.errors import LimitError


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_agrees_with_the_page(self) -> None:
        code, printed = run_stage(load_stage(6), "--quick", *page_arguments(6))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(map(len, printed.splitlines())), 120)

    def test_a_reader_of_joined_text_finds_documents_that_do_not_exist(self) -> None:
        stage = load_stage(6)
        self.assertEqual(stage.joined_by_marker(["a", "b"]), 2)
        self.assertEqual(stage.joined_by_marker(["a", "b<|doc|>c"]), 3)

    def test_a_copy_held_out_beside_one_that_is_trained_on_is_told_apart(self) -> None:
        stage = load_stage(6)
        trained, leaked, new = stage.KINDS
        columns = stage.sides([b"a", b"b", b"a", b"c", b"c"], [False, True, True, True, True])
        self.assertEqual(columns, [[trained, leaked], [new], [new, new]])

    def test_repetitions_are_counted_on_the_held_out_side(self) -> None:
        self.assertEqual(load_stage(6).in_both([b"a", b"b"], [b"b", b"b", b"c"]), 2)


class WhatALearnerMayRelyOn(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "corpus"

    def both(self, corpus: Corpus) -> list[tuple[str, bytes]]:
        return [
            (split.name, split.document(index).astype(np.uint8).tobytes())
            for split in (corpus.train, corpus.validation)
            for index in range(split.documents)
        ]

    def test_the_stream_of_two_documents_is_worked_out_by_hand(self) -> None:
        split = Split.of([b"ab", b"", b"ba"])
        self.assertEqual(split.stream.tolist(), [256, 97, 98, 256, 98, 97, 256])
        self.assertEqual(split.starts.tolist(), [1, 4])

    def test_boundary_targets_equal_documents_whatever_the_texts_say(self) -> None:
        texts = [f"{number} <|doc|> " * (number % 3) for number in range(90)]
        corpus = build_corpus(texts, self.out)
        targets = sum(split.stream[1:].tolist().count(256) for split in (corpus.train, corpus.validation))
        self.assertEqual(targets, 60)
        self.assertEqual(corpus.info["left_out"]["empty_documents"], 30)
        self.assertEqual(
            sorted(text for _, text in self.both(corpus)), sorted(t.encode() for t in texts if t)
        )

    def test_the_hash_alone_decides_the_side(self) -> None:
        texts = [f"text {number}" for number in range(200)]
        for side, text in self.both(build_corpus(texts + texts, self.out)):
            fraction = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
            self.assertEqual(side, "validation" if fraction < 0.1 else "train")

    def test_the_tail_of_one_document_is_held_out_without_inventing_an_end(self) -> None:
        corpus = build_corpus(["0123456789" * 10], self.out)
        self.assertEqual(corpus.train.stream.tolist()[-3:], [55, 56, 57])
        self.assertEqual(corpus.validation.stream.tolist(), [256, *b"0123456789", 256])
        self.assertEqual((corpus.train.boundaries, corpus.validation.boundaries), (0, 1))

    def test_each_limit_is_refused_only_when_it_is_passed_and_leaves_nothing(self) -> None:
        texts = ["안녕", "ab", "c"]
        for limit, value in (("documents", 3), ("characters", 5), ("bytes", 9), ("tokens", 14)):
            with self.subTest(limit):
                with self.assertRaisesRegex(LimitError, rf"max_{limit} = {value - 1}.*--max-{limit}"):
                    build_corpus(texts, self.out, CorpusConfig(**{f"max_{limit}": value - 1}))
                self.assertEqual(list(self.folder.iterdir()), [])
                corpus = build_corpus(texts, self.out, CorpusConfig(**{f"max_{limit}": value}))
                self.assertEqual(corpus.info["total"][limit], value)
                build_corpus(texts, self.out, CorpusConfig(**{f"max_{limit}": value + 1}), replace=True)
                for path in self.out.iterdir():
                    path.unlink()
                self.out.rmdir()


if __name__ == "__main__":
    unittest.main()
