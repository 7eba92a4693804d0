"""Text to ids and back: nothing is lost, nothing is repaired, and text never becomes a boundary."""

from __future__ import annotations

import itertools
import unicodedata
import unittest

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import ContractError
from tinylm.tokenizer import (
    Utf8Stream,
    check_ids,
    debug_decode,
    decode_bytes,
    decode_document,
    decode_text,
    encode,
    encode_array,
)

SURROGATES = range(0xD800, 0xE000)
NUMPY_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

# Both ends of every range of the table of well-formed UTF-8 (Unicode, table 3-7), and what lies just outside.
ALPHABET = bytes.fromhex("00 41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f4 f5")


# Held although no character begins like this, as CPython's incremental decoder does.
HALF_SURROGATES = {bytes([0xED, second]) for second in range(0xA0, 0xC0)}


def awkward_texts() -> dict[str, str]:
    return {
        "empty": "",
        "NUL and controls": "".join(map(chr, range(32))) + "\x7f",
        "byte order mark": "\ufeffmark",
        "CRLF, CR and LF": "a\r\nb\rc\nd\n\n\n",
        "line separators": "a\u2028b\u2029c\u0085d\x0b\x0c",
        "trailing spaces": "  a \t ",
        "NFC": unicodedata.normalize("NFC", "é"),
        "NFD": unicodedata.normalize("NFD", "é"),
        "compatibility": "︰ﬁ①㎏",
        "noncharacters": "\ufffe\uffff\U0001fffe\U0010ffff",
        "replacement character": "\ufffd",
        "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
        "specials of others": "<|doc|><|endoftext|><s></s><pad>[UNK]\x00<0xFF>",
        "scripts": "안녕 שלום سلام नमस्ते こんにちは ā",
    }


class Encoding(unittest.TestCase):
    def test_every_unicode_scalar_value_round_trips_and_equals_python_utf8(self) -> None:
        scalars = 0
        for block in range(0, 0x110000, 0x800):
            if block in SURROGATES:
                continue
            text = "".join(map(chr, range(block, block + 0x800)))
            array = encode_array(text)
            self.assertEqual(array.astype(np.uint8).tobytes(), text.encode("utf-8"))
            self.assertEqual(decode_text(array), text)
            scalars += len(text)
        self.assertEqual(scalars, 1_112_064)

    def test_every_scalar_value_alone_has_the_bytes_of_the_definition(self) -> None:
        def utf8(scalar: int) -> tuple[int, ...]:  # Unicode, table 3-6
            if scalar < 0x80:
                return (scalar,)
            tails = 1 if scalar < 0x800 else 2 if scalar < 0x10000 else 3
            lead = {1: 0xC0, 2: 0xE0, 3: 0xF0}[tails] | scalar >> (6 * tails)
            return (lead, *(0x80 | scalar >> (6 * i) & 0x3F for i in reversed(range(tails))))

        edges = (0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF)
        for scalar in (*edges, *range(0, 0x110000, 997)):
            if scalar not in SURROGATES:
                self.assertEqual(encode(chr(scalar)), utf8(scalar), hex(scalar))

    def test_awkward_texts_keep_every_byte(self) -> None:
        for name, text in awkward_texts().items():
            with self.subTest(name):
                self.assertEqual(bytes(encode(text)), text.encode("utf-8"))
                self.assertEqual(encode_array(text).tolist(), list(encode(text)))
                self.assertEqual(decode_text(encode(text)), text)
                self.assertEqual(decode_document([256, *encode(text), 256]), text)

    def test_nothing_is_normalised_stripped_or_translated(self) -> None:
        self.assertEqual(encode("\u00e9"), (0xC3, 0xA9))
        self.assertEqual(encode("e\u0301"), (0x65, 0xCC, 0x81))
        self.assertEqual(encode("\ufeffa"), (0xEF, 0xBB, 0xBF, 97))
        self.assertEqual(encode("a\r\nb\r"), (97, 13, 10, 98, 13))
        self.assertEqual(encode("︰"), (0xEF, 0xB8, 0xB0))
        self.assertEqual(encode("ā"), (0xC4, 0x81))

    def test_text_never_becomes_the_boundary(self) -> None:
        self.assertEqual(encode("<|doc|>"), (60, 124, 100, 111, 99, 124, 62))
        for text in ("<|doc|>", "256", "DOC_BOUNDARY", "\u0100", "<|doc|>" * 3, "\x00\uffff"):
            self.assertLess(max(encode(text)), DOC_BOUNDARY)
            self.assertLess(int(encode_array(text).max()), DOC_BOUNDARY)

    def test_ids_are_python_integers_and_the_array_is_uint16(self) -> None:
        self.assertIsInstance(encode("aé"), tuple)
        self.assertEqual({type(value) for value in encode("aé")}, {int})
        self.assertEqual(encode_array("aé").dtype, np.uint16)
        self.assertEqual(encode_array("").shape, (0,))

    def test_lone_surrogates_are_refused_with_their_place_by_both_encoders(self) -> None:
        for half in ("\ud800", "\udbff", "\udc00", "\udfff"):
            for encoder in (encode, encode_array):
                with self.assertRaisesRegex(ContractError, rf"character 2 .*U\+{ord(half):04X}"):
                    encoder("é!" + half)
        self.assertEqual(encode("\U0001f642"), (0xF0, 0x9F, 0x99, 0x82))

    def test_encode_refuses_what_is_not_text(self) -> None:
        for value in (b"a", [97], None, 97):
            with self.assertRaises(ContractError):
                encode(value)

    @settings(deadline=None)
    @given(st.text())
    def test_any_text_round_trips(self, text: str) -> None:
        self.assertEqual(decode_text(encode(text)), text)
        self.assertLessEqual(len(text), len(encode(text)))
        self.assertLessEqual(len(encode(text)), 4 * len(text))


class Decoders(unittest.TestCase):
    def test_decode_bytes_keeps_every_byte(self) -> None:
        every = bytes(range(256))
        self.assertEqual(decode_bytes(list(every)), every)
        self.assertEqual(decode_bytes([0xFF]), b"\xff")
        self.assertEqual(decode_bytes([]), b"")

    def test_decode_bytes_and_decode_text_refuse_a_boundary_with_its_position(self) -> None:
        for decode in (decode_bytes, decode_text):
            for ids in ([65, 66, 256], [65, 66, 256, 256]):
                with self.assertRaisesRegex(ContractError, "position 2: 256 is the document boundary"):
                    decode(ids)

    def test_decode_text_is_strict_and_names_the_byte(self) -> None:
        cases = {
            (0x41, 0xFF): (1, "ff"),
            (0xC0, 0x80): (0, "c0"),
            (0x41, 0x41, 0xED, 0xA0, 0x80): (2, "ed"),
            (0xF4, 0x90, 0x80, 0x80): (0, "f4"),
            (0x41, 0xF0, 0x9F, 0x98): (1, "f0"),
            (0x80,): (0, "80"),
        }
        for ids, (place, shown) in cases.items():
            with self.subTest(ids), self.assertRaisesRegex(ContractError, rf"byte {place} \(0x{shown}\)"):
                decode_text(ids)

    def test_decode_document_removes_exactly_the_outer_boundaries(self) -> None:
        self.assertEqual(decode_document([256, 97, 256]), "a")
        self.assertEqual(decode_document([256, 256]), "")
        self.assertEqual(decode_document([256, *encode("\ufeff <|doc|> \n"), 256]), "\ufeff <|doc|> \n")

    def test_decode_document_refuses_missing_and_inner_boundaries(self) -> None:
        for ids in ([], [256], [97], [256, 97], [97, 256], [97, 256, 98]):
            with self.subTest(ids), self.assertRaisesRegex(ContractError, "begins and ends with 256"):
                decode_document(ids)
        with self.assertRaisesRegex(ContractError, "position 3: a boundary inside"):
            decode_document([256, 97, 98, 256, 99, 256])
        with self.assertRaisesRegex(ContractError, "position 1: a boundary inside"):
            decode_document([256, 256, 256])
        with self.assertRaisesRegex(ContractError, r"byte 1 \(0xff\)"):
            decode_document([256, 97, 0xFF, 256])

    def test_debug_decode_shows_any_ids_and_is_the_only_one_that_does(self) -> None:
        self.assertEqual(debug_decode([256, 97, 256, 256, 98, 256]), "<|doc|>a<|doc|><|doc|>b<|doc|>")
        self.assertEqual(debug_decode([97, 0xFF, 98]), "a\ufffdb")
        self.assertEqual(debug_decode([]), "")
        # A boundary cuts a character in two: each half is shown as ill-formed, and they are never joined.
        self.assertEqual(debug_decode([0xC3, 256, 0xA9]), "\ufffd<|doc|>\ufffd")
        for value in range(257):
            self.assertIsInstance(debug_decode([value]), str)

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 256)))
    def test_debug_decode_equals_decoding_between_the_boundaries(self, ids: list[int]) -> None:
        documents: list[bytearray] = [bytearray()]
        for value in ids:
            if value == 256:
                documents.append(bytearray())
            else:
                documents[-1].append(value)
        self.assertEqual(debug_decode(ids), "<|doc|>".join(d.decode("utf-8", "replace") for d in documents))

    @settings(deadline=None)
    @given(st.binary())
    def test_any_bytes_survive_as_ids_and_text_decodes_exactly_when_python_says_so(self, raw: bytes) -> None:
        self.assertEqual(decode_bytes(list(raw)), raw)
        try:
            expected = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            with self.assertRaisesRegex(ContractError, rf"byte {error.start} "):
                decode_text(list(raw))
        else:
            self.assertEqual(decode_text(list(raw)), expected)

    def test_errors_of_values_are_value_errors_too(self) -> None:
        with self.assertRaises(ValueError):
            decode_text([256])


class Ids(unittest.TestCase):
    def test_every_integer_dtype_of_numpy_and_torch_is_taken(self) -> None:
        for dtype in NUMPY_INTEGERS:
            top = 127 if dtype == "int8" else 255 if dtype == "uint8" else 256
            values = [0, 65, top]
            with self.subTest(dtype):
                for array in (np.array(values, dtype), torch.tensor(values, dtype=getattr(torch, dtype))):
                    checked = check_ids(array)
                    self.assertEqual(checked.tolist(), values)
                    self.assertEqual(checked.dtype, np.uint16)

    def test_sequences_and_iterators_of_integers_are_taken(self) -> None:
        self.assertEqual(check_ids((1, 2)).tolist(), [1, 2])
        self.assertEqual(check_ids(range(3)).tolist(), [0, 1, 2])
        self.assertEqual(check_ids(value for value in [256, 0]).tolist(), [256, 0])
        self.assertEqual(check_ids([np.uint8(255), np.int64(256), 7]).tolist(), [255, 256, 7])
        self.assertEqual(check_ids(np.array([1, 2], ">u2")).tolist(), [1, 2])
        self.assertEqual(check_ids(np.arange(10)[::-3]).tolist(), [9, 6, 3, 0])

    def test_the_result_shares_no_memory_with_what_was_given(self) -> None:
        given_array = np.array([1, 2], np.uint16)
        check_ids(given_array)[0] = 9
        self.assertEqual(given_array.tolist(), [1, 2])

    def test_out_of_range_is_refused_with_value_and_position_and_never_wraps(self) -> None:
        for value in (-1, 257, 65_536 + 65, 2**32, 2**40, 2**63, 2**64, 10**30, -(2**40)):
            with (
                self.subTest(value),
                self.assertRaisesRegex(ContractError, f"position 1 is {value}, expected 0..256"),
            ):
                check_ids([65, value])
        for dtype, value in (
            ("int8", -1),
            ("int16", 257),
            ("int64", 2**40),
            ("uint64", 2**63),
            ("uint32", 2**32 - 1),
        ):
            for array in (
                np.array([65, value], dtype),
                torch.tensor([65, value], dtype=getattr(torch, dtype)),
            ):
                with self.subTest(dtype), self.assertRaisesRegex(ContractError, f"position 1 is {value}"):
                    check_ids(array)

    def test_booleans_floats_and_text_are_refused(self) -> None:
        for bad in (True, np.bool_(True), 65.0, np.float32(65), "A", b"A", None, [65], np.timedelta64(65)):
            with self.subTest(repr(bad)), self.assertRaisesRegex(ContractError, "position 1 is "):
                check_ids([65, bad])
        arrays = (
            np.array([True]),
            np.array([65.0]),
            np.array([65], object),
            np.array(["A"]),
            np.array([65], "m8[s]"),
            torch.tensor([True]),
            torch.tensor([65.0]),
            torch.tensor([65.0], dtype=torch.bfloat16),
            torch.tensor([65.0], requires_grad=True),
        )
        for array in arrays:
            with (
                self.subTest(str(array.dtype)),
                self.assertRaisesRegex(ContractError, "expected an integer array"),
            ):
                check_ids(array)
        for whole in ("A", b"A", bytearray(b"A"), None, 65, 65.0):
            with (
                self.subTest(repr(whole)),
                self.assertRaisesRegex(ContractError, r"expected integers 0\.\.256"),
            ):
                check_ids(whole)

    def test_arrays_must_have_one_axis(self) -> None:
        for array in (
            np.array(65),
            np.zeros((1, 2), int),
            torch.tensor(65),
            torch.zeros(1, 2, dtype=torch.int64),
        ):
            with self.assertRaisesRegex(ContractError, "expected one axis"):
                check_ids(array)

    def test_the_place_is_named(self) -> None:
        with self.assertRaisesRegex(ContractError, "^prompt: position 0 is 300"):
            check_ids([300], where="prompt")


def held_prefixes() -> set[bytes]:
    """Every proper prefix of a character's UTF-8, from Python's own encoder, and the documented exception."""
    found = {b"", *HALF_SURROGATES}
    for scalar in itertools.chain(range(0x80, 0xD800), range(0xE000, 0x110000, 16)):
        raw = chr(scalar).encode("utf-8")
        found.update(raw[:length] for length in range(1, len(raw)))
    return found


class Streaming(unittest.TestCase):
    def check_replacing(self, raw: bytes, pieces: list[bytes]) -> None:
        stream, text = Utf8Stream("replace"), ""
        for piece in pieces:
            text += stream.push(piece)
            self.assertTrue(stream.held in self.prefixes, stream.held)
            self.assertLessEqual(len(stream.held), 3)
            self.assertTrue(accounts_for(text, stream.held, raw), (raw, text, stream.held))
        text += stream.finish()
        self.assertEqual(stream.held, b"")
        self.assertEqual(text, raw.decode("utf-8", "replace"))

    def check_strict(self, raw: bytes, pieces: list[bytes]) -> None:
        """The stream fails at the very push at which a whole decode of what came so far would fail."""
        stream, seen, text = Utf8Stream(), b"", ""
        for piece in [*pieces, None]:
            final = piece is None
            seen += piece or b""
            expected = strict_prefix(seen, final)
            if isinstance(expected, int):
                held = stream.held
                with self.assertRaisesRegex(ContractError, rf"byte {expected} \(0x{seen[expected]:02x}\)"):
                    stream.finish() if final else stream.push(piece or b"")
                self.assertEqual(stream.held, held)
                return
            text += stream.finish() if final else stream.push(piece or b"")
            self.assertEqual(text, expected)
            self.assertEqual(text.encode("utf-8") + stream.held, seen)
        self.assertEqual(text, raw.decode("utf-8"))

    @classmethod
    def setUpClass(cls) -> None:
        cls.prefixes = held_prefixes()

    def test_byte_by_byte_equals_decoding_at_once_for_all_short_adversarial_sequences(self) -> None:
        for length in (1, 2, 3):
            for letters in itertools.product(ALPHABET, repeat=length):
                raw = bytes(letters)
                pieces = [raw[i : i + 1] for i in range(length)]
                self.check_replacing(raw, pieces)
                self.check_strict(raw, pieces)

    @settings(max_examples=300, deadline=None)
    @given(st.data())
    def test_any_cuts_of_any_adversarial_bytes_equal_decoding_at_once(self, data: st.DataObject) -> None:
        letters = st.sampled_from(ALPHABET) | st.integers(0, 255)
        characters = st.characters(exclude_categories=["Cs"]).map(lambda c: c.encode("utf-8"))
        parts = data.draw(st.lists(st.lists(letters, max_size=4).map(bytes) | characters, max_size=12))
        raw = b"".join(parts)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
        pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        self.check_replacing(raw, pieces)
        self.check_strict(raw, pieces)

    def test_every_character_comes_out_with_its_last_byte(self) -> None:
        for scalar in itertools.chain(range(0xD800), range(0xE000, 0x110000, 37)):
            stream, raw = Utf8Stream(), chr(scalar).encode("utf-8")
            for i in range(len(raw) - 1):
                self.assertEqual(stream.push(raw[i : i + 1]), "")
                self.assertEqual(stream.held, raw[: i + 1])
            self.assertEqual(stream.push(raw[-1:]), chr(scalar))
            self.assertEqual((stream.held, stream.finish()), (b"", ""))

    def test_bytes_that_can_never_become_a_character_are_replaced_at_once(self) -> None:
        for raw in (
            b"\xff",
            b"\x80",
            b"\xc0",
            b"\xe0\x80",
            b"\xf0\x8f",
            b"\xf4\x90",
            b"\xf5",
            b"\xed\xa0\x80",
        ):
            stream = Utf8Stream("replace")
            self.assertEqual(
                "".join(stream.push(raw[i : i + 1]) for i in range(len(raw))), "\ufffd" * len(raw)
            )
            self.assertEqual(stream.held, b"")
        stream = Utf8Stream("replace")
        self.assertEqual([stream.push(bytes([b])) for b in b"\xf0ABC"], ["", "\ufffdA", "B", "C"])

    def test_a_stream_cut_inside_a_character_ends_in_one_replacement_or_an_error(self) -> None:
        stream = Utf8Stream("replace")
        self.assertEqual(stream.push(b"A\xf0\x9f\x98"), "A")
        self.assertEqual(stream.held, b"\xf0\x9f\x98")
        self.assertEqual(stream.finish(), "\ufffd")
        strict = Utf8Stream()
        strict.push(b"A\xf0\x9f\x98")
        with self.assertRaisesRegex(ContractError, r"byte 1 \(0xf0\).*unexpected end"):
            strict.finish()

    def test_strict_offsets_count_from_the_start_of_the_stream(self) -> None:
        stream = Utf8Stream()
        self.assertEqual(stream.push("안녕".encode()), "안녕")  # bytes 0..5
        self.assertEqual(stream.push(b"ab\xe3\x81"), "ab")  # bytes 6..9, 8 and 9 held
        with self.assertRaisesRegex(ContractError, r"byte 8 \(0xe3\)"):  # the held bytes are at fault
            stream.push(b"c")
        with self.assertRaisesRegex(ContractError, r"byte 11 \(0xff\)"):  # the push above took nothing
            stream.push(b"\x82\xff")
        self.assertEqual(stream.push(b"\x82d"), "あd")
        with self.assertRaisesRegex(ContractError, r"byte 12 \(0x80\)"):
            stream.push(b"\x80")

    def test_empty_pushes_change_nothing(self) -> None:
        stream = Utf8Stream()
        self.assertEqual(
            [stream.push(b""), stream.push(b"\xc3"), stream.push(b""), stream.push(b"\xa9")],
            ["", "", "", "é"],
        )

    def test_a_stream_cannot_be_asked_to_drop_bytes(self) -> None:
        for errors in ("ignore", "surrogateescape", "backslashreplace"):
            with self.assertRaises(ContractError):
                Utf8Stream(errors)


def strict_prefix(raw: bytes, final: bool) -> str | int:
    """Text of the complete characters of `raw`, or the offset of the byte that makes it ill-formed."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        incomplete = error.reason == "unexpected end of data" or raw[error.start :] in HALF_SURROGATES
        if incomplete and not final:
            return raw[: error.start].decode("utf-8")
        return error.start


def accounts_for(text: str, held: bytes, raw: bytes) -> bool:
    """Whether `raw` begins with bytes whose lossy text is `text`, followed by `held`."""
    return any(
        raw[:end].decode("utf-8", "replace") == text and raw[end:].startswith(held)
        for end in range(len(raw) + 1)
    )


class Words(unittest.TestCase):
    def test_every_message_is_one_line(self) -> None:
        calls = (
            lambda: decode_text([256]),
            lambda: encode("\ud800"),
            lambda: check_ids(torch.tensor([1.0], requires_grad=True)),
        )
        for call in calls:
            with self.assertRaises(ContractError) as caught:
                call()
            self.assertEqual(len(str(caught.exception).splitlines()), 1)
