"""Stage 04: one boundary says what two tokens say, and no text can forge it."""

from __future__ import annotations

import hashlib
import itertools
import unittest

import numpy as np

from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm import contract, tokenizer
from tinylm.errors import ContractError


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_agrees_with_the_page(self) -> None:
        code, printed = run_stage(load_stage(4), "--quick", *page_arguments(4))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")

    def test_tables_fit_a_terminal_of_120_columns(self) -> None:
        _, printed = run_stage(load_stage(4), "--quick")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)


class OneBoundary(unittest.TestCase):
    def setUp(self) -> None:
        self.stage = load_stage(4)

    def test_the_stream_of_two_documents_is_worked_out_by_hand(self) -> None:
        self.assertEqual(self.stage.one_boundary(("ab", "ba")), [256, 97, 98, 256, 98, 97, 256])
        self.assertEqual(self.stage.begin_and_end(("ab", "ba")), [256, 97, 98, 257, 256, 98, 97, 257])

    def test_both_streams_give_the_same_documents_back(self) -> None:
        documents = ("ab", "", "<|doc|>", "안녕")
        stream = self.stage.one_boundary(documents)
        ends = [place for place, token in enumerate(stream) if token == 256]
        pieces = [stream[start : end + 1] for start, end in itertools.pairwise(ends)]
        self.assertEqual(tuple(map(tokenizer.decode_document, pieces)), documents)
        other = self.stage.begin_and_end(documents)
        texts, current = [], []
        for token in other:
            if token == 257:
                texts.append(tokenizer.decode_text(current))
            current = [] if token in (256, 257) else [*current, token]
        self.assertEqual(tuple(texts), documents)

    def test_the_second_token_is_paid_once_per_join(self) -> None:
        for documents in (("ab",), ("ab", "ba"), ("a",) * 10):
            saved = len(self.stage.begin_and_end(documents)) - len(self.stage.one_boundary(documents))
            self.assertEqual(saved, len(documents) - 1)

    def test_token_parameters_are_rows_of_embedding_and_head(self) -> None:
        self.assertEqual(
            self.stage.token_parameters(257), np.zeros((257, 16)).size + np.zeros((16, 257)).size
        )
        self.assertEqual(self.stage.token_parameters(258) - self.stage.token_parameters(257), 32)

    def test_attention_reads_across_a_boundary(self) -> None:
        stream = [256, 97, 98, 256, 98, 97, 256]
        # By hand: one-hot queries and keys score 1/sqrt(257) where the ids are equal, else 0.
        weights = np.exp(np.array([0, 1, 0, 0, 0, 1]) / np.sqrt(257))
        expected = weights[1:3].sum() / weights.sum()
        self.assertAlmostEqual(self.stage.attention_to_the_first_document(stream), expected, places=6)
        self.assertGreater(expected, 0.3)


class WhatALearnerMayRelyOn(unittest.TestCase):
    def test_text_never_becomes_the_boundary(self) -> None:
        self.assertEqual(tokenizer.encode("<|doc|>"), (60, 124, 100, 111, 99, 124, 62))
        self.assertNotIn(256, tokenizer.encode("<|doc|>"))

    def test_a_text_of_n_characters_has_n_to_4n_tokens(self) -> None:
        for text, tokens in (("ab", 2), ("é", 2), ("안녕", 6), ("🙂", 4)):
            self.assertEqual(len(tokenizer.encode(text)), tokens)
            self.assertTrue(len(text) <= tokens <= 4 * len(text))

    def test_four_decoders_make_four_promises(self) -> None:
        self.assertEqual(tokenizer.decode_bytes([65, 255]), b"A\xff")
        with self.assertRaises(ContractError):
            tokenizer.decode_text([65, 255])
        with self.assertRaises(ContractError):
            tokenizer.decode_text([256, 65, 256])
        self.assertEqual(tokenizer.decode_document([256, 65, 256]), "A")
        self.assertEqual(tokenizer.debug_decode([256, 65, 255]), "<|doc|>A\ufffd")

    def test_typed_text_cannot_be_told_from_what_debug_decode_shows(self) -> None:
        self.assertEqual(tokenizer.debug_decode([256]), tokenizer.debug_decode(tokenizer.encode("<|doc|>")))

    def test_the_vocabulary_has_257_ids_and_a_digest(self) -> None:
        written = contract.canonical_vocabulary()
        self.assertEqual((len(written), written.count(b"\n")), (1_699, 257))
        self.assertEqual(hashlib.sha256(written).hexdigest(), contract.VOCABULARY_SHA256)
