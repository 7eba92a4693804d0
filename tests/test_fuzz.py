"""Wide inputs: arbitrary bytes, ids and headers meet the borders of the library, and a twin tells the truth.

Each strategy runs a fixed number of examples in a fixed order, so that a run here is the run of the next
machine; `python tests/slow/fuzz.py` looks further. Examples that once went wrong stay as @example.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import itertools
import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    from hypothesis import HealthCheck, example, given, settings
    from hypothesis import strategies as st
except ImportError:
    raise unittest.SkipTest("hypothesis is not installed; pip install -e '.[test]'") from None

import numpy as np
import torch

from tinylm import checkpoint, contract, files
from tinylm.config import CorpusConfig, ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import build_corpus, open_corpus
from tinylm.errors import CheckpointError, ContractError, CorpusError, TinylmError
from tinylm.events import EventStream
from tinylm.model import Transformer
from tinylm.sources import as_sources
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

FACTOR = int(os.environ.get("TINYLM_FUZZ", "1"))
"""How many times as many examples, and then other ones each time; tests/slow/fuzz.py raises it."""


def few(examples: int) -> settings:
    return settings(
        max_examples=examples * FACTOR,
        deadline=None,
        derandomize=FACTOR == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# Bytes that are nearly UTF-8: whole characters, their halves, and everything that looks like them.
PIECES = st.one_of(
    st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=4),
    st.sampled_from(
        (b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xe2\x82", b"\xf0\x9f\x98")
    ),
)
BYTES = st.lists(PIECES, max_size=12).map(b"".join)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
ANY_TEXT = st.text(st.characters(), max_size=20)  # lone surrogates too
IDS = st.lists(st.one_of(st.integers(0, 256), st.sampled_from((10, 13, 0xE2, 0x82, 0xAC, 256))), max_size=24)
NO_IDS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3), st.binary(max_size=3)
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=6),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


class Tokenizer(unittest.TestCase):
    @few(150)
    @given(ANY_TEXT)
    @example("\ud800")
    @example("a\udfff")
    @example("<|doc|>\0\ufeff\U0010ffff")
    def test_text_becomes_its_utf8_and_comes_back_or_is_refused(self, text: str) -> None:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            for way in (encode, encode_array):
                with self.assertRaisesRegex(ContractError, f"character {error.start} "):
                    way(text)
            return
        ids = encode(text)
        self.assertEqual(bytes(ids), raw)
        self.assertEqual(encode_array(text).tolist(), list(ids))
        self.assertEqual((decode_text(ids), decode_bytes(ids)), (text, raw))
        self.assertEqual(decode_document((256, *ids, 256)), text)

    @few(200)
    @given(IDS)
    @example([256, 256])
    @example([256])
    @example([256, 0xED, 0xA0, 0x80, 256])
    def test_decoders_give_what_python_decodes_or_refuse(self, ids: list[int]) -> None:
        whole = all(token < 256 for token in ids)
        self.assertEqual(attempt(decode_bytes, ids), bytes(ids) if whole else None)
        self.assertEqual(attempt(decode_text, ids), strictly(bytes(ids)) if whole else None)
        framed = len(ids) >= 2 and ids[0] == ids[-1] == 256 and 256 not in ids[1:-1]
        self.assertEqual(attempt(decode_document, ids), strictly(bytes(ids[1:-1])) if framed else None)
        parts = [
            bytes(part).decode("utf-8", "replace")
            for boundary, part in itertools.groupby([*ids], lambda token: token == 256)
            if not boundary
        ]
        # Between boundaries stands what Python makes of the bytes there; nothing else is shown.
        self.assertEqual(debug_decode(ids).replace("<|doc|>", ""), "".join(parts).replace("<|doc|>", ""))
        self.assertGreaterEqual(debug_decode(ids).count("<|doc|>"), ids.count(256))

    @few(150)
    @given(st.lists(NO_IDS, max_size=4))
    @example([True])
    @example([1.0])
    @example([2**64])
    @example([-1])
    def test_only_integers_of_the_vocabulary_are_ids(self, values: list[Any]) -> None:
        good = all(type(value) is int and 0 <= value <= 256 for value in values)
        found = attempt(check_ids, values)
        self.assertEqual(None if found is None else found.tolist(), values if good else None)

    @few(100)
    @given(st.lists(BYTES, max_size=6), st.sampled_from(("strict", "replace")))
    @example([b"\xed", b"\xa0\x80"], "replace")
    @example([b"\xe2\x82", b"\xe2\x82\xac"], "replace")
    @example([b"\xf0\x9f\x98"], "strict")
    def test_a_stream_gives_what_pythons_incremental_decoder_gives(
        self, chunks: list[bytes], errors: Any
    ) -> None:
        stream, twin, seen = Utf8Stream(errors), codecs.getincrementaldecoder("utf-8")(errors), 0
        for chunk, final in [*((chunk, False) for chunk in chunks), (b"", True)]:
            held, state = stream.held, twin.getstate()
            try:
                expected = twin.decode(chunk, final)
            except UnicodeDecodeError as error:
                place = seen - len(state[0]) + error.start
                with self.assertRaisesRegex(ContractError, f"^byte {place} "):
                    stream.finish() if final else stream.push(chunk)
                self.assertEqual(stream.held, held)
                return
            self.assertEqual(stream.finish() if final else stream.push(chunk), expected)
            self.assertEqual(stream.held, twin.getstate()[0])
            self.assertLessEqual(len(stream.held), 3)
            seen += len(chunk)


class Events(unittest.TestCase):
    STOPS = st.lists(
        st.one_of(
            st.sampled_from(("a", "ab", "ba", "aba", "€", "\n", b"\x82", b"\xac\xe2")), TEXTS.filter(bool)
        ),
        max_size=3,
    )
    SAMPLED = st.lists(
        st.one_of(st.sampled_from((97, 98, 10, 0xE2, 0x82, 0xAC, 256)), st.integers(0, 256)), max_size=30
    )

    @few(200)
    @given(SAMPLED, STOPS, st.integers(0, 30))
    @example([97, 98, 97], ["ba", "aba"], 30)
    @example([0xE2, 0x82], ["€"], 2)
    @example([0xE2, 0x82, 0xAC, 97], [b"\x82"], 30)
    @example([], [], 0)
    def test_events_are_those_of_a_twin_that_looks_at_everything_each_time(
        self, sampled: list[int], stops: list[str | bytes], limit: int
    ) -> None:
        stream, events = EventStream(stops, limit), []
        for token in sampled:
            if stream.end is not None:
                break
            events.append(stream.push(token))
        ids = [token for event in events for token in event.ids]
        tokens, reason, stop = ending(sampled, stops, limit)
        self.assertEqual(ids, sampled[:tokens])
        raw = bytes(token for token in ids if token != DOC_BOUNDARY)
        if reason is None:
            self.assertIsNone(stream.end)
            self.assertTrue(raw.startswith(b"".join(event.bytes for event in events)))
            self.assertEqual(b"".join(event.bytes for event in events) + stream.held, raw)
            return
        assert stream.end is not None
        events.append(stream.finish())
        found = (stream.end.reason, stream.end.tokens, stream.end.stop)
        self.assertEqual(found, (reason, tokens, shown(stop)))
        kept = raw[: len(raw) - len(encoded(stop))] if reason == "stop" else raw
        self.assertEqual(b"".join(event.bytes for event in events), kept)
        self.assertEqual("".join(event.text for event in events), kept.decode("utf-8", "replace"))
        for event in events:
            self.assertEqual(event.text, event.bytes.decode("utf-8", "replace"))


def ending(sampled: list[int], stops: list[str | bytes], limit: int) -> tuple[int, str | None, str | bytes]:
    """How many tokens are sampled, why it ends, and by which stop string: all is looked at each time."""
    if limit == 0:
        return 0, "limit", ""
    for tokens in range(1, len(sampled) + 1):
        if sampled[tokens - 1] == DOC_BOUNDARY:
            return tokens, "boundary", ""
        raw = bytes(sampled[:tokens])
        ended = [stop for stop in stops if raw.endswith(encoded(stop))]
        if ended:
            return tokens, "stop", min(ended, key=lambda stop: (-len(encoded(stop)), stops.index(stop)))
        if tokens == limit:
            return tokens, "limit", ""
    return len(sampled), None, ""


def encoded(stop: str | bytes) -> bytes:
    return stop if isinstance(stop, bytes) else stop.encode("utf-8")


def shown(stop: str | bytes) -> str:
    return encoded(stop).decode("utf-8", "backslashreplace")


class InFolder(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def read(self, name: str, data: bytes, **options: Any) -> list[bytes] | str:
        """The documents of a file as the builder would read them, or the line of its refusal."""
        path = self.folder / name
        path.write_bytes(data)
        config = CorpusConfig(**options)
        documents = []
        try:
            for document in as_sources(path, config).documents():
                raw = b"".join(document.chunks)
                document.sha256.update(raw)
                document.size = len(raw)
                documents.append(raw)
        except CorpusError as error:
            return self.one_line(error, path)
        return documents

    def build(self, name: str, data: bytes, **options: Any) -> list[bytes] | str:
        """The documents of a corpus of one file, sorted; or the refusal, after which nothing may be left."""
        (self.folder / name).write_bytes(data)
        try:
            with tempfile.TemporaryDirectory() as place:
                try:
                    corpus = build_corpus(self.folder / name, Path(place) / "c", CorpusConfig(**options))
                except CorpusError:
                    self.assertEqual(list(Path(place).iterdir()), [])
                    raise
                corpus = open_corpus(Path(place) / "c")
                return sorted(
                    bytes(split.document(index).astype(np.uint8))
                    for split in (corpus.train, corpus.validation)
                    for index in range(split.documents)
                )
        except CorpusError as error:
            return self.one_line(error, self.folder / name)

    def one_line(self, error: CorpusError, path: Path) -> str:
        said = str(error)
        self.assertNotIn("\n", said)
        if "all text is one character" not in said:
            self.assertIn(path.name, said)
        return said


class Readers(InFolder):
    @few(100)
    @given(BYTES)
    @example(b"\xef\xbb\xbf")
    @example(b"a\r\n\xe2\x80\xa8\xc2\x85\r")
    @example(b"\xff\xfea\0")
    @example(b"a\xe2\x82")
    def test_a_text_file_is_its_bytes_or_refused(self, data: bytes) -> None:
        found = self.build("x.txt", data)
        good = bool(data) and b"\0" not in data and strictly(data) is not None
        if good and len(data.decode()) > 1:
            assert isinstance(found, list), found
            self.assertIn(data, {b"".join(order) for order in itertools.permutations(found)})
        else:
            self.assertIsInstance(found, str)

    @few(60)
    @given(BYTES)
    @example(b"")
    @example(b"text")
    def test_a_packed_file_is_what_was_packed(self, data: bytes) -> None:
        self.assertEqual(self.read("x.txt.gz", gzip.compress(data, mtime=0)), [data])

    @few(120)
    @given(st.binary(max_size=60), st.integers(0, 60), st.integers(1, 255))
    @example(b"", 0, 1)
    @example(b"abc", 3, 4)
    def test_a_damaged_packed_file_gives_the_right_bytes_or_is_refused(
        self, data: bytes, place: int, change: int
    ) -> None:
        packed = bytearray(gzip.compress(data, mtime=0))
        place %= len(packed)
        packed[place] ^= change
        found = self.read("x.txt.gz", bytes(packed))
        # The header holds a time and a system, which mean nothing; everything else is covered by the CRC.
        self.assertTrue(found == [data] or isinstance(found, str), found)
        self.assertIsInstance(self.read("x.txt.gz", gzip.compress(data, mtime=0)[: place or 1]), str)

    @few(200)
    @given(st.one_of(BYTES, st.lists(st.one_of(JSON.map(json.dumps), TEXTS), max_size=4).map("\n".join)))
    @example(b'{"text": "a"}\r\n\r\n{"text": "\\u2028"}')
    @example(b'{"text": "\\ud800"}')
    @example(b'{"text": "a", "text": "b"}')
    @example(b'{"text": 1e999}')
    @example(b'{"text": "a", "n": NaN}')
    @example(b'\xef\xbb\xbf{"text": "a"}')
    @example(b'{"text": "a"}{"text": "b"}')
    @example(b'{"text": ' + b"[" * 5000)
    def test_lines_of_json_are_their_texts_or_refused(self, data: bytes | str) -> None:
        raw = data if isinstance(data, bytes) else data.encode()
        found = self.read("x.jsonl", raw)
        expected = json_texts(raw)
        if expected is None:
            self.assertIsInstance(found, str)
        else:
            self.assertEqual(found, expected)

    @few(60)
    @given(st.lists(TEXTS, min_size=1, max_size=6), st.sampled_from(("\n", "\r\n")))
    def test_every_json_encoding_of_a_text_gives_that_text(self, texts: list[str], end: str) -> None:
        for ascii_only in (False, True):
            lines = [json.dumps({"text": text, "n": None}, ensure_ascii=ascii_only) for text in texts]
            self.assertEqual(
                self.read("x.jsonl", end.join(lines).encode()), [text.encode() for text in texts]
            )


def json_texts(raw: bytes) -> list[bytes] | None:
    """What strict JSON Lines hold, by other means than the reader; None if a line is to be refused."""
    found = []
    for line in raw.split(b"\n"):
        if not line.strip(b" \t\r"):
            continue
        repeated: list[bool] = []

        def pairs(items: list[tuple[str, Any]], repeated: list[bool] = repeated) -> dict[str, Any]:
            repeated.append(len(dict(items)) != len(items))
            return dict(items)

        try:
            value = json.loads(line.decode("utf-8"), object_pairs_hook=pairs)
            json.dumps(value, allow_nan=False)
            if not isinstance(value, dict) or not isinstance(value.get("text"), str) or any(repeated):
                return None
            found.append(value["text"].encode("utf-8"))
        except (ValueError, RecursionError):
            return None
    return found


TINY = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, head_size=32, window=16)


class Headers(InFolder):
    """A model file of any header: refused by our own errors, or loaded under our contract."""

    def setUp(self) -> None:
        super().setUp()
        self.whole = checkpoint.model_bytes(Transformer(TINY, seed=1))
        size = int.from_bytes(self.whole[:8], "little")
        self.header, self.data = self.whole[8 : 8 + size], self.whole[8 + size :]

    def load(self, data: bytes) -> str | None:
        """The refusal, or None if it loads; anything but a refusal in our own words fails the test."""
        path = self.folder / "model.safetensors"
        path.write_bytes(data)
        try:
            info, _ = checkpoint.read_tensors(path)
            checkpoint.load_model(path)
        except (ContractError, CheckpointError) as error:
            self.assertIn(str(path), str(error))
            return str(error)
        except TinylmError as error:  # a configuration that is none
            return str(error)
        self.assertEqual(info["contract"], contract.contract())
        return None

    def with_header(self, header: bytes) -> bytes:
        return len(header).to_bytes(8, "little") + header + self.data

    @few(120)
    @given(st.one_of(st.binary(max_size=40), JSON.map(lambda value: json.dumps(value).encode())))
    @example(b"")
    @example(b"{}")
    @example(b" {}")
    @example(b"{" * 100_000)
    @example(b'{"__metadata__":{"tinylm":null}}')
    @example(b'{"__metadata__":null}')
    def test_no_arbitrary_header_is_accepted(self, header: bytes) -> None:
        self.assertIsNotNone(self.load(self.with_header(header)))
        self.assertIsNotNone(self.load(header))

    @few(150)
    @given(st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), min_size=1, max_size=3))
    @example([(0, ord(" "))])
    def test_changed_bytes_of_the_header_never_give_another_contract(
        self, changes: list[tuple[int, int]]
    ) -> None:
        header = bytearray(self.header)
        for place, value in changes:
            header[place % len(header)] = value
        self.load(self.with_header(bytes(header)))

    @few(60)
    @given(st.integers(0, 2**64 - 1))
    @example(100_000_001)
    @example(2**63)
    @example(0)
    def test_a_length_that_lies_is_refused(self, length: int) -> None:
        refused = self.load(length.to_bytes(8, "little") + self.whole[8:])
        self.assertEqual(refused is None, length == len(self.header))

    @few(100)
    @given(st.data())
    def test_edited_entries_are_refused(self, data: st.DataObject) -> None:
        header = json.loads(self.header)
        name = data.draw(st.sampled_from(sorted(header)))
        entry = header[name]
        key = data.draw(st.sampled_from(sorted(entry)))
        value = data.draw(JSON.filter(lambda found: found != entry[key]))
        header[name] = {**entry, key: value}
        self.assertIsNotNone(self.load(self.with_header(json.dumps(header).encode())))

    @few(100)
    @given(st.sampled_from(sorted(contract.contract())), JSON)
    @example("vocabulary_size", 257.0)
    @example("vocabulary_size", 258)
    @example("boundary_id", True)
    def test_every_other_value_of_the_contract_is_refused(self, key: str, value: Any) -> None:
        header = json.loads(self.header)
        info = json.loads(header["__metadata__"]["tinylm"])
        same = type(value) is type(info["contract"][key]) and value == info["contract"][key]
        info["contract"][key] = value
        header["__metadata__"]["tinylm"] = json.dumps(info)
        refused = self.load(self.with_header(json.dumps(header).encode()))
        self.assertEqual(refused is None, same, refused)
        if not same:
            self.assertIn(key, refused or "")

    def test_dtypes_that_torch_does_not_know_are_refused(self) -> None:
        info = json.loads(json.loads(self.header)["__metadata__"]["tinylm"])
        text = files.canonical_json(info).decode()
        for dtype, size in (("F4", 1), ("F8_E8M0", 2), ("F6_E2M3", 3), ("C64", 16), ("U64", 16), ("BOOL", 2)):
            entry = {"dtype": dtype, "shape": [2 if dtype != "F6_E2M3" else 4], "data_offsets": [0, size]}
            header = json.dumps({"__metadata__": {"tinylm": text}, "model.norm.weight": entry}).encode()
            data = len(header).to_bytes(8, "little") + header + bytes(size)
            self.assertIsNotNone(self.load(data), dtype)

    def test_tensors_that_overlap_leave_holes_or_stand_twice_are_refused(self) -> None:
        header = json.loads(self.header)
        names = sorted(
            (name for name in header if name != "__metadata__"), key=lambda n: header[n]["data_offsets"]
        )
        first, second = names[:2]
        begin, end = header[second]["data_offsets"]
        for offsets in ([begin - 4, end - 4], [begin + 4, end + 4], header[first]["data_offsets"]):
            changed = {**header, second: {**header[second], "data_offsets": offsets}}
            self.assertIsNotNone(self.load(self.with_header(json.dumps(changed).encode())))
        text = self.header.decode()
        twice = text.replace(f'"{first}":', f'"{first}":{json.dumps(header[first])},"{first}":', 1)
        self.assertIn("twice", self.load(self.with_header(twice.encode())) or "")

    def test_weights_that_are_not_finite_are_refused(self) -> None:
        for value in (float("nan"), float("inf"), -float("inf")):
            model = Transformer(TINY, seed=1)
            with torch.no_grad():
                model.model.norm.weight[3] = value
            self.assertIn("not finite", self.load(checkpoint.model_bytes(model)) or "")


class Manifests(InFolder):
    def setUp(self) -> None:
        super().setUp()
        build_corpus(["some text", "other text", "a third text"], self.folder / "c")
        self.path = self.folder / "c" / "corpus.json"
        self.whole = self.path.read_bytes()

    def refused(self, data: bytes) -> bool:
        self.path.write_bytes(data)
        try:
            open_corpus(self.folder / "c")
        except (CorpusError, ContractError) as error:
            self.assertNotIn("\n", str(error))
            return True
        return False

    @few(150)
    @given(st.integers(0, 1 << 20), st.integers(0, 255))
    @example(1, ord(" "))  # a line feed that became a space: the same content, other bytes
    @example(2, ord("\t"))
    def test_every_changed_byte_of_corpus_json_is_refused(self, place: int, value: int) -> None:
        data = bytearray(self.whole)
        place %= len(data)
        same = data[place] == value
        data[place] = value
        self.assertEqual(self.refused(bytes(data)), not same)

    @few(100)
    @given(st.data())
    def test_every_sealed_change_of_what_readers_rely_on_is_refused(self, data: st.DataObject) -> None:
        info = json.loads(self.whole)
        section = data.draw(st.sampled_from(("contract", "files", "splits", "format")))
        value = data.draw(JSON)
        if section == "format":
            same, info["format"] = type(value) is int and value == info["format"], value
        else:
            part = data.draw(st.sampled_from(sorted(info[section])))
            same, info[section][part] = value == info[section][part], value
        self.assertEqual(self.refused(files.readable_json(files.seal(info))), not same)

    @few(80)
    @given(st.one_of(st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode())))
    @example(b"{" * 100_000)
    @example(b'{"format": 1, "x": ' + b"[" * 990 + b"]" * 990 + b"}")  # once a RecursionError
    def test_no_arbitrary_manifest_is_accepted(self, data: bytes) -> None:
        self.assertTrue(self.refused(data))


def strictly(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def attempt(decode: Any, ids: Any) -> Any:
    """What a decoder gives, or None where it refuses."""
    with contextlib.suppress(ContractError):
        return decode(ids)
    return None


if __name__ == "__main__":
    unittest.main()
