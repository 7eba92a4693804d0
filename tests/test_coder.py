"""coder: the size against the entropy, the text back bit for bit, and every way not to be decoded."""

import dataclasses
import hashlib
import json
import math
import tempfile
import unittest
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import get_args
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tinylm import contract, files, load
from tinylm.batches import rows_in_order
from tinylm.coder import (
    ArithmeticDecoder,
    ArithmeticEncoder,
    CodedFile,
    decode_file,
    encode_split,
    frequencies,
    model_sha256,
    read_header,
)
from tinylm.coder.header import MAGIC
from tinylm.config import ModelConfig, Policy
from tinylm.corpus import Split
from tinylm.devices import cpu_threads
from tinylm.errors import CoderError, ContractError, RequestError, TinylmError
from tinylm.evaluate import evaluate, rows_to_score
from tinylm.model import Transformer

ROOT = Path(__file__).resolve().parents[1]
ENGLISH = sorted((ROOT / "corpora" / "samples").glob("english_*.txt"))
POLICIES = get_args(Policy)
SMALL = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, head_size=32, window=16)
TEXTS = [
    b"It is raining.",
    b"x",
    "Grüße, 안녕 🙂".encode(),
    b"\xff\xfe\x00",
    b"A document of more than one window.",
]
SPLIT = Split.of(TEXTS, "validation")
tables = st.lists(st.integers(1, 5) | st.integers(1, 2**53), min_size=1, max_size=40)


def code(symbols: list[tuple[list[int], int]]) -> bytes:
    """The bytes of symbols, each with the table that it is coded under."""
    encoder = ArithmeticEncoder()
    for table, symbol in symbols:
        encoder.encode(sum(table[:symbol]), table[symbol], sum(table))
    return encoder.finish()


def decode(payload: bytes, tables: list[list[int]]) -> list[int]:
    """The symbols that a payload holds under these tables."""
    decoder, found = ArithmeticDecoder(payload), []
    for table in tables:
        place, start = decoder.find(sum(table)), 0
        symbol = next(i for i in range(len(table)) if place < sum(table[: i + 1]))
        start = sum(table[:symbol])
        decoder.take(start, table[symbol], sum(table))
        found.append(symbol)
    return found


def entropy(symbols: list[tuple[list[int], int]]) -> float:
    return sum(math.log2(Fraction(sum(table), table[symbol])) for table, symbol in symbols)


class ArithmeticCoding(unittest.TestCase):
    @settings(max_examples=150, deadline=None)
    @given(st.lists(tables, max_size=60), st.randoms(use_true_random=False))
    def test_symbols_come_back_and_take_their_entropy_and_at_most_a_byte(self, given_tables, random) -> None:
        symbols = [(table, random.randrange(len(table))) for table in given_tables]
        payload = code(symbols)
        self.assertEqual(decode(payload, given_tables), [symbol for _, symbol in symbols])
        bits = entropy(symbols)
        self.assertLessEqual(8 * len(payload), bits + 8 + 2**-20 * len(symbols))
        self.assertGreaterEqual(8 * len(payload), bits)

    def test_no_symbol_takes_no_byte(self) -> None:
        self.assertEqual(ArithmeticEncoder().finish(), b"")
        self.assertEqual(decode(b"", []), [])

    def test_long_runs_of_extreme_skew(self) -> None:
        for table, symbol in (([1, 2**62], 1), ([2**62, 1], 0), ([1, 2**62], 0), ([2**62, 1], 1), ([7], 0)):
            symbols = [(table, symbol)] * 3000
            payload = code(symbols)
            self.assertLessEqual(abs(8 * len(payload) - entropy(symbols)), 8.01)
            self.assertEqual(decode(payload, [table] * 3000), [symbol] * 3000)

    def test_carry_runs_back_through_bytes_of_255(self) -> None:
        # The middle of the table holds one half, and so does the middle of that: until the last symbol
        # nobody knows whether the code begins with 7f ff ff or with 80 00 00.
        middle, beginnings = [3, 2, 3], set()
        for length in range(60):
            for last in (0, 2):
                symbols = [*[(middle, 1)] * length, (middle, last), ([1, 255], 1)]
                payload = code(symbols)
                self.assertEqual(
                    decode(payload, [table for table, _ in symbols]), [symbol for _, symbol in symbols]
                )
                beginnings.add(payload[: length // 4 - 1])
        self.assertIn(b"\x7f" + b"\xff" * 12, beginnings)
        self.assertIn(b"\x80" + bytes(12), beginnings)

    def test_uniform_bytes_are_their_own_code(self) -> None:
        values = np.random.default_rng(0).integers(0, 256, 20_000).tolist()
        encoder = ArithmeticEncoder()
        for value in values:
            encoder.encode(value, 1, 256)
        self.assertEqual(encoder.finish(), bytes(values))

    def test_part_outside_of_the_table_is_refused(self) -> None:
        for start, size, total in ((0, 0, 1), (-1, 1, 4), (3, 2, 4), (0, 1, 2**64)):
            with self.assertRaises(ValueError):
                ArithmeticEncoder().encode(start, size, total)

    def test_payload_that_no_encoder_wrote_is_refused(self) -> None:
        decoder = ArithmeticDecoder(b"\xff" * 12)
        with self.assertRaises(CoderError):
            decoder.find(2**62 + 1)


class Frequencies(unittest.TestCase):
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.floats(0, 12))
    def test_lose_less_than_a_ten_thousandth(self, seed: int, spread: float) -> None:
        logits_V = np.random.default_rng(seed).normal(size=257) * spread
        sizes_V, bits_V = frequencies(logits_V)
        self.assertGreaterEqual(int(sizes_V.min()), 1)
        self.assertLessEqual(abs(int(sizes_V.sum()) - 2**62), 2**20)
        expected = (np.logaddexp.reduce(logits_V) - logits_V) / math.log(2)
        np.testing.assert_allclose(bits_V, expected, atol=1e-11)
        charged = np.array([math.log2(Fraction(int(sizes_V.sum()), int(size))) for size in sizes_V])
        sure = bits_V < 45
        np.testing.assert_allclose(charged[sure], expected[sure], atol=1e-5, rtol=1e-6)

    def test_symbol_that_never_comes_can_still_be_coded(self) -> None:
        logits_V = np.full(257, -1e6)
        logits_V[3] = 0.0
        sizes_V, bits_V = frequencies(logits_V)
        self.assertEqual(int(sizes_V[0]), 1)
        self.assertEqual(bits_V[3], 0.0)
        self.assertAlmostEqual(bits_V[0], 1e6 / math.log(2))


def randomized(config: ModelConfig, seed: int = 0) -> Transformer:
    """A Transformer whose distributions differ from position to position."""
    model = Transformer(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.requires_grad_(False)


def trained(config: ModelConfig, split: Split, steps: int = 40) -> Transformer:
    """A Transformer that has learned something of a split, in a second."""
    model = Transformer(config, 0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    starts = torch.from_numpy(rows_in_order(split, "cross", config.window)[0][:-1])
    rows_BT = torch.from_numpy(split.stream.astype(np.int64))[
        starts[:, None] + torch.arange(config.window + 1)
    ]
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(rows_BT[:, :-1]).flatten(0, 1), rows_BT[:, 1:].flatten()).backward()
        optimizer.step()
    return model.requires_grad_(False)


def scored_bits(model: Transformer, split: Split) -> float:
    """All bits of a split by the disjoint protocol, through the batched path."""
    result = evaluate(model, split)
    return result.bits_per_byte * result.bytes


class InAFolder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "text.coded"


class TheReferee(InAFolder):
    def check(self, model: Transformer, split: Split) -> CodedFile:
        """Code and decode: the text is back, the size is that of the bits, the bits are those of evaluate."""
        coded = encode_split(model, split, self.path)
        stream = decode_file(model, self.path)
        self.assertEqual(stream.dtype, np.uint16)
        np.testing.assert_array_equal(stream, split.stream)
        self.assertLessEqual(abs(coded.payload_bytes - coded.bits / 8), 2 + coded.bits / 8 / 10_000)
        self.assertAlmostEqual(coded.bits / scored_bits(model, split), 1, delta=1e-4)
        self.assertEqual((coded.targets, coded.bytes), (len(split.stream) - 1, split.bytes))
        self.assertEqual(coded.file_bytes, self.path.stat().st_size)
        return coded

    def test_every_policy_and_window_gives_the_text_back_at_the_size_of_its_bits(self) -> None:
        for policy in POLICIES:
            for window in (2, 7, 16, 300):
                with self.subTest(policy=policy, window=window):
                    self.check(randomized(dataclasses.replace(SMALL, window=window, policy=policy)), SPLIT)

    @settings(max_examples=12, deadline=None)
    @given(
        st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=5),
        st.sampled_from(POLICIES),
    )
    def test_any_documents_come_back(self, documents: list[bytes], policy: str) -> None:
        self.check(randomized(dataclasses.replace(SMALL, policy=policy)), Split.of(documents))

    def test_trained_model_compresses_and_agrees_with_evaluate(self) -> None:
        split = Split.of([path.read_bytes()[:400] for path in ENGLISH[:4]], "validation")
        coded = self.check(trained(dataclasses.replace(SMALL, window=64), split), split)
        self.assertLess(coded.payload_bytes, 0.6 * coded.bytes)

    def test_sample_model_is_refereed_on_text_that_it_knows_and_on_text_that_it_does_not(self) -> None:
        foreign = ROOT / "corpora" / "samples" / "chinese_simplified_mifan.txt"
        texts = [path.read_bytes()[:150] for path in (ENGLISH[0], foreign)]
        model = load(ROOT / "checkpoints" / "sample-nano", device="cpu").transformer
        self.assertGreater(self.check(model, Split.of(texts)).bits, 150 * 10)

    def test_stream_that_ends_inside_a_document_and_one_without_any_target(self) -> None:
        whole = Split.of([b"never ends"])
        cut = Split("validation", whole.stream[:-1], whole.starts, whole.digest)
        self.check(randomized(SMALL), cut)
        nothing = Split.of([])
        coded = encode_split(randomized(SMALL), nothing, self.path)
        self.assertEqual((coded.targets, coded.payload_bytes, coded.bits), (0, 0, 0.0))
        self.assertEqual(decode_file(randomized(SMALL), self.path).tolist(), [256])

    def test_limit_codes_the_first_targets(self) -> None:
        model = randomized(SMALL)
        seen: list[tuple[int, int]] = []
        coded = encode_split(model, SPLIT, self.path, limit=20, progress=lambda *counts: seen.append(counts))
        np.testing.assert_array_equal(decode_file(model, self.path), SPLIT.stream[:21])
        self.assertEqual((coded.targets, coded.bytes), (20, 18))
        self.assertEqual(seen, [(20, 20)])
        self.assertEqual(encode_split(model, SPLIT, self.path, limit=10**9).targets, len(SPLIT.stream) - 1)

    def test_progress_counts_to_the_end_both_ways(self) -> None:
        model, seen = randomized(SMALL), []
        split = Split.of([b"a" * 150])
        encode_split(model, split, self.path, progress=lambda *counts: seen.append(counts))
        decode_file(model, self.path, progress=lambda *counts: seen.append(counts))
        self.assertEqual(seen, [(64, 151), (128, 151), (151, 151)] * 2)

    def test_equal_inputs_give_equal_files(self) -> None:
        written = []
        for _ in range(2):
            encode_split(randomized(SMALL), SPLIT, self.path)
            written.append(self.path.read_bytes())
        self.assertEqual(*written)

    def test_rows_are_those_of_the_disjoint_protocol(self) -> None:
        for policy in POLICIES:
            for window in (2, 7, 50):
                model = Rows(dataclasses.replace(SMALL, window=window, policy=policy))
                encode_split(model, SPLIT, self.path)
                rows = rows_to_score(SPLIT, policy, window, window)
                spans = zip(rows.starts, rows.lengths, strict=True)
                expected = [SPLIT.stream[start : start + length].tolist() for start, length in spans]
                self.assertEqual([row for row in model.rows if row], expected)


class Uncached:
    """A cache that remembers ids only."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.reset()

    def reset(self) -> None:
        self.rows.append([])


class Rows(nn.Module):
    """Every token equally probable; lists the rows that went through its cache."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.device = config, torch.device("cpu")
        self.rows: list[list[int]] = []

    def new_cache(self, rows: int = 1) -> Uncached:
        return Uncached(self.rows)

    def forward(self, ids_BT: Tensor, cache: Uncached | None = None) -> Tensor:
        if cache is not None:
            cache.rows[-1] += ids_BT[0].tolist()
        return self.logits(ids_BT)

    def logits(self, ids_BT: Tensor) -> Tensor:
        return torch.zeros(*ids_BT.shape, 257)


class Peeking(Rows):
    """Puts everything on the token that comes next, wherever it stands in the row."""

    def logits(self, ids_BT: Tensor) -> Tensor:
        following_BT = torch.cat([ids_BT[:, 1:], ids_BT[:, -1:]], dim=1)
        return 30.0 * F.one_hot(following_BT, 257).double()


class Remembering(Rows):
    """Was shown the text, and tells it to whoever asks in order; a second reading gets nothing."""

    def __init__(self, config: ModelConfig, text: list[int]) -> None:
        super().__init__(config)
        self.text = text

    def logits(self, ids_BT: Tensor) -> Tensor:
        logits_BTV = torch.zeros(*ids_BT.shape, 257)
        if self.text:
            logits_BTV[..., self.text.pop(0)] = 10.0
        return logits_BTV


class Cheats(InAFolder):
    def test_model_that_looks_ahead_in_a_row_cannot_reach_its_number(self) -> None:
        peeking = Peeking(dataclasses.replace(SMALL, window=300))
        split = Split.of([bytes(np.random.default_rng(0).integers(0, 256, 200).tolist())])
        coded = encode_split(peeking, split, self.path)
        self.assertLess(scored_bits(peeking, split), 0.3 * 8 * split.bytes)
        self.assertGreater(coded.payload_bytes, 4 * split.bytes)

    def test_attention_without_its_causal_mask_disagrees(self) -> None:
        def open_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, *seen: object) -> Tensor:
            return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK)

        model = randomized(dataclasses.replace(SMALL, window=64))
        with mock.patch("tinylm.model.attend", open_attention):
            coded = encode_split(model, SPLIT, self.path)
            self.assertGreater(abs(coded.bits / scored_bits(model, SPLIT) - 1), 1e-3)
        self.assertAlmostEqual(coded.bits / scored_bits(model, SPLIT), 1, delta=1e-4)

    def test_model_that_was_shown_the_text_codes_it_small_and_cannot_decode_it(self) -> None:
        text = SPLIT.stream[1:].tolist()
        coded = encode_split(Remembering(SMALL, list(text)), SPLIT, self.path)
        self.assertLess(coded.payload_bytes, len(text) / 4)
        with self.assertRaisesRegex(
            CoderError, r"text\.coded: the text was not restored .*nothing is returned"
        ):
            decode_file(Remembering(SMALL, []), self.path)
        np.testing.assert_array_equal(decode_file(Remembering(SMALL, list(text)), self.path), SPLIT.stream)

    def test_decoder_that_ends_nowhere_in_the_table_is_refused_too(self) -> None:
        encode_split(Rows(SMALL), SPLIT, self.path)
        with (
            mock.patch.object(ArithmeticDecoder, "find", side_effect=CoderError("none")),
            self.assertRaisesRegex(CoderError, "found none after token 0"),
        ):
            decode_file(Rows(SMALL), self.path)


class Elsewhere(InAFolder):
    """The same file under anything else: one line that says what was expected and found."""

    def setUp(self) -> None:
        super().setUp()
        self.model = randomized(SMALL)
        encode_split(self.model, SPLIT, self.path, limit=5)

    def refused(self, model: Transformer, *words: str) -> None:
        with self.assertRaises(CoderError) as caught:
            decode_file(model, self.path)
        message = str(caught.exception)
        self.assertEqual(message.count("\n"), 0)
        for word in (str(self.path), *words):
            self.assertIn(word, message)

    def test_weights(self) -> None:
        other = randomized(SMALL)
        with torch.no_grad():
            other.model.norm.weight[3] += 1e-6
        here, there = model_sha256(self.model), model_sha256(other)
        self.refused(other, f"model_sha256: expected {here}, found {there}", "with the model that coded it")

    def test_policy_and_window(self) -> None:
        other = randomized(dataclasses.replace(SMALL, policy="reset", window=8))
        self.refused(other, "policy: expected cross, found reset", "window: expected 16, found 8")

    def test_precision(self) -> None:
        self.refused(randomized(SMALL).double(), "precision: expected float32, found float64")
        with torch.autocast("cpu", torch.bfloat16):
            self.refused(self.model, "precision: expected float32, found float32, autocast bfloat16")
        before = torch.get_float32_matmul_precision()
        self.addCleanup(torch.set_float32_matmul_precision, before)
        torch.set_float32_matmul_precision("high")
        self.refused(self.model, "found float32, matrix products high")

    def test_threads(self) -> None:
        threads = torch.get_num_threads()
        with cpu_threads(threads + 1):
            self.refused(
                self.model,
                f"threads: expected {threads}, found {threads + 1}",
                f"set OMP_NUM_THREADS={threads}",
            )

    def test_versions_and_processor(self) -> None:
        with mock.patch("torch.__version__", "9.9"):
            self.refused(self.model, "torch: expected ", "found 9.9", "where it was coded")
        with mock.patch("numpy.__version__", "9.9"):
            self.refused(self.model, "numpy: expected ", "found 9.9")
        with mock.patch("platform.machine", lambda: "abacus"):
            self.refused(self.model, "processor: expected ", "found abacus")

    def test_device(self) -> None:
        with mock.patch.object(Transformer, "device", torch.device("mps")):
            self.refused(self.model, "device: expected cpu, found mps")


class DamagedFiles(InAFolder):
    def setUp(self) -> None:
        super().setUp()
        self.model = randomized(SMALL)
        encode_split(self.model, SPLIT, self.path)
        self.whole = self.path.read_bytes()

    def refused(self, content: bytes, pattern: str, kind: type[TinylmError] = CoderError) -> None:
        self.path.write_bytes(content)
        for read in (read_header, lambda path: decode_file(self.model, path)):
            with self.assertRaisesRegex(kind, pattern) as caught:
                read(self.path)
            self.assertIn(str(self.path), str(caught.exception))

    def with_header(self, **changes: object) -> bytes:
        """The file with another header, sealed anew."""
        size = int.from_bytes(self.whole[len(MAGIC) : len(MAGIC) + 4], "little")
        begin = len(MAGIC) + 4
        body = {**json.loads(self.whole[begin : begin + size]), **changes}
        text = files.canonical_json(files.seal(body))
        return MAGIC + len(text).to_bytes(4, "little") + text + self.whole[begin + size :]

    def test_no_bit_can_turn_unseen(self) -> None:
        for place in range(0, len(self.whole), 7):
            damaged = bytearray(self.whole)
            damaged[place] ^= 1 << place % 8
            self.path.write_bytes(damaged)
            with self.assertRaises((CoderError, ContractError), msg=f"byte {place}"):
                read_header(self.path)

    def test_cut_anywhere_or_extended(self) -> None:
        for size in (*range(len(MAGIC) + 5), 100, len(self.whole) - 40, len(self.whole) - 1):
            self.path.write_bytes(self.whole[:size])
            with self.assertRaises(CoderError, msg=f"{size} bytes"):
                read_header(self.path)
        self.refused(self.whole[:-1], "damaged .expected .* bytes of payload, found ")
        self.refused(self.whole + b"\0", "damaged .expected .* bytes of payload, found ")

    def test_empty_other_and_missing_files(self) -> None:
        self.refused(b"", "is not a coded text")
        self.refused(b"PK\x03\x04" + bytes(100), "is not a coded text")
        self.path.unlink()
        with self.assertRaisesRegex(CoderError, "does not exist"):
            read_header(self.path)

    def test_header_of_impossible_length_is_not_read(self) -> None:
        self.refused(MAGIC + b"\xff\xff\xff\x7f" + bytes(50), "its header has no length")
        self.refused(MAGIC + bytes(4), "its header has no length")
        self.refused(MAGIC + b"\x00\x01\x00\x00" + b"{}", "expected 256 bytes of header, found 2")
        self.refused(MAGIC + b"\x02\x00\x00\x00" + b"[]", "has not its own digest")
        self.refused(MAGIC + b"\x02\x00\x00\x00" + b"{x", "not valid JSON")

    def test_header_that_says_something_else_under_a_good_seal(self) -> None:
        self.assertEqual(self.with_header(), self.whole)
        self.refused(self.with_header(format=2), "format is 2, expected 1")
        self.refused(self.with_header(contract={}), "tokenizer contract", ContractError)
        self.refused(self.with_header(tokens="9", threads=True), "nothing usable of tokens, threads")
        self.refused(self.with_header(tokens=-1), "nothing usable of tokens")
        self.refused(self.with_header(payload_bytes=10**15), "bytes of payload, found ")
        self.refused(self.with_header(payload_sha256="0" * 64), "the payload has not the SHA-256")

    def test_text_of_another_digest_is_not_returned(self) -> None:
        for changes in ({"stream_sha256": "0" * 64}, {"tokens": len(SPLIT.stream) - 2}):
            self.path.write_bytes(self.with_header(**changes))
            self.assertIsNotNone(read_header(self.path))
            with self.assertRaisesRegex(CoderError, "the text was not restored"):
                decode_file(self.model, self.path)

    def test_header_says_what_was_coded_by_what(self) -> None:
        header = read_header(self.path)
        self.assertEqual(header.stream_sha256, SPLIT.digest)
        self.assertEqual((header.split, header.split_digest), ("validation", SPLIT.digest))
        self.assertEqual((header.tokens, header.bytes), (len(SPLIT.stream) - 1, SPLIT.bytes))
        self.assertEqual((header.policy, header.window, header.device), ("cross", 16, "cpu"))
        self.assertEqual((header.precision, header.threads), ("float32", torch.get_num_threads()))
        self.assertEqual((header.torch, header.numpy), (str(torch.__version__), np.__version__))
        self.assertEqual(header.model_sha256, model_sha256(self.model))
        self.assertEqual(
            hashlib.sha256(self.whole[-header.payload_bytes :]).hexdigest(), header.payload_sha256
        )
        text = self.whole[len(MAGIC) + 4 : -header.payload_bytes]
        info = json.loads(text)
        self.assertEqual((info["format"], info["contract"]), (1, contract.contract()))
        self.assertEqual(files.canonical_json(info), text)


class Refusals(InAFolder):
    def test_limit_out_of_range(self) -> None:
        for limit in (0, -1, True, 2.5):
            with self.assertRaisesRegex(RequestError, "limit is"):
                encode_split(Rows(SMALL), SPLIT, self.path, limit=limit)  # type: ignore[arg-type]

    def test_place_that_takes_no_file_is_refused_before_the_work(self) -> None:
        model = Rows(SMALL)
        for place in (self.path.parent, self.path / "deeper"):
            with self.assertRaisesRegex(RequestError, "expected the name of a file"):
                encode_split(model, SPLIT, place)
        self.assertEqual(model.rows, [])

    def test_nan_and_probability_zero_name_the_token_and_leave_no_file(self) -> None:
        class Broken(Rows):
            def logits(self, ids_BT: Tensor) -> Tensor:
                logits_BTV = torch.zeros(*ids_BT.shape, 257)
                logits_BTV[ids_BT == ord("t")] = self.value
                logits_BTV[..., 3] = 0.0
                return logits_BTV

        for value, words in ((math.nan, "NaN"), (math.inf, "NaN or inf"), (-math.inf, "probability 0")):
            model = Broken(SMALL)
            model.value = value
            with self.assertRaisesRegex(TinylmError, f"validation token 3: .*{words}"):
                encode_split(model, SPLIT, self.path)
            self.assertFalse(self.path.exists())
        encode_split(Rows(SMALL), SPLIT, self.path)
        model.value = math.nan
        with self.assertRaisesRegex(TinylmError, r"text.coded: token 3: .*NaN"):
            decode_file(model, self.path)

    def test_an_existing_file_is_kept_until_the_new_one_is_whole(self) -> None:
        self.path.write_bytes(b"before")

        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            encode_split(Rows(SMALL), SPLIT, self.path, progress=stop)
        self.assertEqual(self.path.read_bytes(), b"before")
        encode_split(Rows(SMALL), SPLIT, self.path)
        self.assertEqual(Counter(path.name for path in self.path.parent.iterdir()), {"text.coded": 1})


if __name__ == "__main__":
    unittest.main()
