"""The four values of the contract: what they are, and that each of them alone is guarded."""

from __future__ import annotations

import hashlib
import json
import unittest

from tinylm.contract import (
    DOC_BOUNDARY,
    TOKENIZER_VERSION,
    VOCABULARY_SHA256,
    VOCABULARY_SIZE,
    canonical_vocabulary,
    contract,
    verify,
)
from tinylm.errors import ContractError, TinylmError

# Of every value of the contract: another value of the same type, then equal or similar values of other types.
WRONG = {
    "tokenizer_version": ("utf8-byte-v2", "", "UTF8-BYTE-V1", "utf8-byte-v1\n", b"utf8-byte-v1", None, 1),
    "vocabulary_size": (256, 258, 257.0, "257", True, None),
    "boundary_id": (257, 0, -1, 256.0, "256", None, [256]),
    "vocabulary_sha256": ("0" * 64, VOCABULARY_SHA256.upper(), VOCABULARY_SHA256[:-1], "", None, 0),
}


class Vocabulary(unittest.TestCase):
    def test_the_canonical_vocabulary_is_the_specified_text(self) -> None:
        digits = "0123456789abcdef"
        expected = "".join(
            f"{16 * i + j}\t{a}{b}\n" for i, a in enumerate(digits) for j, b in enumerate(digits)
        )
        self.assertEqual(canonical_vocabulary(), (expected + "256\tDOC_BOUNDARY\n").encode("ascii"))
        self.assertEqual(len(canonical_vocabulary()), 1_699)
        self.assertTrue(canonical_vocabulary().startswith(b"0\t00\n1\t01\n"))
        self.assertTrue(canonical_vocabulary().endswith(b"255\tff\n256\tDOC_BOUNDARY\n"))

    def test_its_digest_is_the_fourth_value(self) -> None:
        self.assertEqual(hashlib.sha256(canonical_vocabulary()).hexdigest(), VOCABULARY_SHA256)
        self.assertEqual(
            VOCABULARY_SHA256, "b558ac388ef62a32f778a3518f9c1087c8a8df060f3b312163f32876f471ed74"
        )

    def test_the_constants(self) -> None:
        self.assertEqual((TOKENIZER_VERSION, VOCABULARY_SIZE, DOC_BOUNDARY), ("utf8-byte-v1", 257, 256))
        self.assertEqual(list(contract()), list(WRONG))


class Verify(unittest.TestCase):
    def test_the_contract_passes_also_after_json(self) -> None:
        verify(contract(), "here")
        verify(json.loads(json.dumps(contract())), "here")

    def test_each_value_alone_is_refused_when_wrong_showing_expected_and_found(self) -> None:
        for key, values in WRONG.items():
            for value in values:
                with self.subTest(key=key, value=value), self.assertRaises(ContractError) as caught:
                    verify({**contract(), key: value}, "model.safetensors")
                message = str(caught.exception)
                self.assertTrue(message.startswith("model.safetensors: "), message)
                self.assertIn(f"{key}: expected {contract()[key]!r}, found {value!r}", message)
                for other in set(WRONG) - {key}:
                    self.assertNotIn(f"{other}:", message)

    def test_each_value_alone_is_refused_when_missing(self) -> None:
        for key in WRONG:
            values = {name: value for name, value in contract().items() if name != key}
            with self.assertRaisesRegex(ContractError, rf"{key}: expected .*found nothing"):
                verify(values, "here")

    def test_a_value_that_is_not_part_of_the_contract_is_refused(self) -> None:
        with self.assertRaisesRegex(ContractError, "pad_id: not part of the contract"):
            verify({**contract(), "pad_id": 0}, "here")

    def test_everything_wrong_is_listed_at_once(self) -> None:
        with self.assertRaises(ContractError) as caught:
            verify({"vocabulary_size": 256, "pad_id": 0}, "here")
        for word in ("tokenizer_version", "vocabulary_size", "boundary_id", "vocabulary_sha256", "pad_id"):
            self.assertIn(word, str(caught.exception))

    def test_what_holds_no_contract_at_all_is_refused(self) -> None:
        for found in (None, "", "utf8-byte-v1", [], [257], 257, True):
            with (
                self.subTest(found),
                self.assertRaisesRegex(ContractError, "here: holds no tokenizer contract"),
            ):
                verify(found, "here")

    def test_changing_what_contract_gives_changes_nothing_for_others(self) -> None:
        contract()["vocabulary_size"] = 256
        self.assertEqual(contract()["vocabulary_size"], 257)

    def test_messages_are_one_line_and_the_error_is_a_value_error(self) -> None:
        with self.assertRaises(ValueError) as caught:
            verify({**contract(), "tokenizer_version": "a\nb"}, "here")
        self.assertIsInstance(caught.exception, TinylmError)
        self.assertEqual(len(str(caught.exception).splitlines()), 1)
