"""bit_pictures: the numbers against loops over single tokens, the page against a parser, equal files."""

import dataclasses
import importlib.util
import math
import re
import tempfile
import unicodedata
import unittest
from collections import Counter, defaultdict
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import get_args
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinylm.bit_pictures import draw_pictures, tally
from tinylm.bit_pictures.charts import chart_rows
from tinylm.bit_pictures.page import STEPS, cells, level, text_page, visible
from tinylm.bit_pictures.style import LEVELS
from tinylm.bit_pictures.tally import (
    BOUNDARY,
    DIGIT,
    FIRST_SCRIPT,
    ILL_FORMED,
    LETTER,
    OTHER_ASCII,
    SPACE,
    ClassBits,
    classify,
)
from tinylm.config import ModelConfig, Policy
from tinylm.corpus import Split
from tinylm.corpus.scripts import SCRIPTS, Census
from tinylm.errors import RequestError
from tinylm.evaluate import Scored, evaluate, score
from tinylm.model import Transformer

SMALL = ModelConfig(layers=1, width=32, mlp_width=32, heads=1, kv_heads=1, head_size=32, window=16)
NASTY = [
    "<script>alert('x')</script> & \"q\" </span>\n\ttab\r\n\x00\x1b[31m\x7f\x85".encode(),
    "שלום, مرحبا \u202ereversed\u202c".encode(),
    "e\u0301 Z\u0335 नमस्ते ครับ".encode(),
    "🙂 👩‍👩‍👧 🇫🇷 ☎\ufe0f 漢字かな한글 \u00a0\u00ad\u200b\ue000\u0378".encode(),
    b"\xff\xfe broken \xe2\x82 \xc3\n\xed\xa0\x80 \xe0\x9f\xbf \xf0\x8f\xbf\xbf \xf4\x90\x80\x80 \xc0\xaf",
    b"\xf0\x9f\x99",
    b"-->]]>",
]
pieces = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.text(min_size=1, max_size=4).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(NASTY),
)
documents = st.lists(st.lists(pieces, min_size=1, max_size=6).map(b"".join), min_size=1, max_size=5)


def scores(split: Split, window: int = 16, seed: int = 0, groups: int = 3) -> list[Scored]:
    """Bits of all targets of a split, made up, in groups that are in no order."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(split.stream) - 1)
    bits = random.gamma(1.2, 2.5, len(order))
    parts = [order[group::groups] for group in range(groups)]
    return [Scored(part + 1, part % window + 1, bits[part], "float32") for part in parts]


def one_by_one(given_scores: list[Scored]) -> list[tuple[int, int, float]]:
    """(position, context, bits) of each target, in order."""
    return sorted(
        item
        for scored in given_scores
        for item in zip(
            scored.positions.tolist(), scored.contexts.tolist(), scored.bits.tolist(), strict=True
        )
    )


def classes_by_decoding(split: Split) -> list[int]:
    """The class of every token, by Python's own decoder and the census of the corpus."""
    found = [BOUNDARY]
    for index in range(split.documents):
        raw = bytes(split.document(index).tolist())
        place = 0
        while place < len(raw):
            for size in (1, 2, 3, 4):
                try:
                    character = raw[place : place + size].decode("utf-8")
                except UnicodeDecodeError:
                    continue
                break
            else:
                found.append(ILL_FORMED)
                place += 1
                continue
            if size == 1:
                kind = OTHER_ASCII
                if character.isalpha():
                    kind = LETTER
                elif character.isdigit():
                    kind = DIGIT
                elif character in " \t\n\v\f\r":
                    kind = SPACE
                found.append(kind)
            else:
                census = Census()
                census.add(character.encode(), character)
                script = int(np.argmax(census.counts().sum(axis=1)))
                found += [FIRST_SCRIPT + 4 * script + k for k in range(size)]
            place += size
        if index + 1 < split.documents or split.stream[-1] == 256:
            found.append(BOUNDARY)
    return found


class Classes(unittest.TestCase):
    @settings(max_examples=150, deadline=None)
    @given(documents)
    def test_agree_with_python_s_decoder(self, texts: list[bytes]) -> None:
        split = Split.of(texts)
        positions = np.arange(len(split.stream))
        self.assertEqual(classify(split.stream, positions).tolist(), classes_by_decoding(split))

    def test_no_character_is_put_together_across_a_boundary(self) -> None:
        split = Split.of([b"\xe2\x82", b"\xac"])
        self.assertEqual(
            classify(split.stream, np.arange(6)).tolist(),
            [BOUNDARY, ILL_FORMED, ILL_FORMED, BOUNDARY, ILL_FORMED, BOUNDARY],
        )

    def test_bytes_have_the_script_of_their_character(self) -> None:
        split = Split.of(["aя€😀".encode()])
        common, cyrillic, symbols = (SCRIPTS.index(name) for name in ("common", "Cyrillic", "symbols"))
        self.assertEqual(
            classify(split.stream, np.arange(1, 11)).tolist(),
            [
                LETTER,
                *(FIRST_SCRIPT + 4 * cyrillic + k for k in range(2)),
                *(FIRST_SCRIPT + 4 * symbols + k for k in range(3)),
                *(FIRST_SCRIPT + 4 * symbols + k for k in range(4)),
            ],
        )
        self.assertNotEqual(common, symbols)

    def test_add_up_to_everything_in_a_fixed_order(self) -> None:
        split = Split.of([*NASTY, b"letters and 123 digits"])
        found = tally(split, 16, scores(split))
        classes = found.by_class()
        self.assertEqual(sum(one.tokens for one in classes), len(split.stream) - 1)
        self.assertAlmostEqual(sum(one.bits for one in classes), found.bits, delta=1e-9)
        names = list(dict.fromkeys(one.name for one in classes))
        self.assertEqual(names[:4], ["ASCII letters", "ASCII digits", "ASCII white space", "other ASCII"])
        self.assertEqual(names[-2:], ["ill-formed bytes", "boundary"])
        dear = [sum(one.bits for one in classes if one.name == name) for name in names[4:-2]]
        self.assertEqual(dear, sorted(dear, reverse=True))
        bits: dict[int, float] = defaultdict(float)
        kinds = classes_by_decoding(split)
        for position, _, cost in one_by_one(scores(split)):
            bits[kinds[position]] += cost
        self.assertAlmostEqual(classes[0].bits, bits[LETTER], delta=1e-9)
        self.assertAlmostEqual(classes[-1].bits, bits[BOUNDARY], delta=1e-9)
        self.assertEqual(classes[-1].tokens, split.boundaries)
        greek = next(one for one in classes if one.name == "Hebrew" and one.place == "2nd byte")
        index = FIRST_SCRIPT + 4 * SCRIPTS.index("Hebrew") + 1
        self.assertAlmostEqual(greek.bits, bits[index], delta=1e-9)
        self.assertAlmostEqual(greek.mean, bits[index] / Counter(kinds)[index], delta=1e-9)

    def test_rest_of_many_scripts_shares_one_row_and_loses_nothing(self) -> None:
        classes = [ClassBits("ASCII letters", "", 5, 9.0)]
        for number in range(14):
            classes += [
                ClassBits(f"script {number}", f"{k}", number + 1, 20.0 - number)
                for k in ("1st byte", "2nd byte")
            ]
        classes.append(ClassBits("boundary", "", 2, 3.0))
        rows = chart_rows(classes)
        self.assertEqual([row[0].name for row in rows][-3:], ["script 9", "4 more scripts", "boundary"])
        for value in ("tokens", "bits"):
            self.assertEqual(
                sum(getattr(part, value) for row in rows for part in row),
                sum(getattr(part, value) for part in classes),
            )
        self.assertEqual([part.place for part in rows[-2]], ["1st byte", "2nd byte"])
        few = [one for one in classes if one.name not in ("script 12", "script 13", "script 11")]
        self.assertEqual(len(chart_rows(few)), 13)


class Positions(unittest.TestCase):
    @settings(max_examples=40, deadline=None)
    @given(documents, st.integers(2, 40), st.integers(0, 99), st.integers(1, 30))
    def test_agree_with_loops_over_single_targets(
        self, texts: list[bytes], window: int, seed: int, least: int
    ) -> None:
        split = Split.of(texts)
        given_scores = scores(split, window, seed)
        found = tally(split, window, given_scores)
        items = one_by_one(given_scores)
        points = found.by_position(least)
        for point in points:
            chosen = [
                (bits, split.stream[position] != 256)
                for position, context, bits in items
                if point.first <= context <= point.last
            ]
            size = sum(is_byte for _, is_byte in chosen)
            ratio = sum(bits for bits, _ in chosen) / size
            self.assertEqual((point.tokens, point.bytes), (len(chosen), size))
            self.assertAlmostEqual(point.bits_per_byte, ratio, delta=1e-9)
            if len(chosen) > 1:
                spread = sum((bits - ratio * is_byte) ** 2 for bits, is_byte in chosen)
                expected = math.sqrt(spread * len(chosen) / (len(chosen) - 1)) / size
                self.assertAlmostEqual(point.standard_error, expected, delta=1e-6)
            else:
                self.assertTrue(math.isnan(point.standard_error))
            self.assertTrue(point.first <= point.context <= point.last)
        for before, after in pairwise(points):
            self.assertEqual(after.first, before.last + 1)
        if len(points) > 1:
            self.assertGreaterEqual(min(point.bytes for point in points), least)
        if split.bytes == sum(point.bytes for point in points):  # no group of boundaries alone
            total = sum(point.bits_per_byte * point.bytes for point in points)
            self.assertAlmostEqual(total / split.bytes, found.bits_per_byte, delta=1e-9)

    def test_error_is_what_drawing_again_gives(self) -> None:
        # Over many made-up texts the numbers of one position scatter by what one text's error says.
        split = Split.of([b"some text of a hundred tokens in all, of which the last " * 2] * 4)
        points = [tally(split, 4, scores(split, 4, seed)).by_position(1)[0] for seed in range(300)]
        scatter = np.std([point.bits_per_byte for point in points])
        said = np.mean([point.standard_error for point in points])
        self.assertAlmostEqual(scatter / said, 1, delta=0.15)

    def test_short_contexts_stand_alone_and_long_ones_share(self) -> None:
        split = Split.of([b"x" * 100_000])
        points = tally(split, 256, scores(split, 256)).by_position()
        self.assertEqual([(p.first, p.last) for p in points[:5]], [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)])
        self.assertLess(len(points), 32)
        self.assertEqual(points[-1].last, 256)


class AgainstEvaluate(unittest.TestCase):
    def test_bits_per_byte_are_those_of_evaluate_for_every_protocol(self) -> None:
        split = Split.of([*NASTY, b"A longer document, with more than one window in it."])
        for policy in get_args(Policy):
            model = Transformer(dataclasses.replace(SMALL, policy=policy), 1)
            with torch.no_grad():
                model.lm_head.weight.normal_(generator=torch.Generator().manual_seed(2))
            for options in ({}, {"protocol": "strided", "stride": 4}):
                found = tally(split, 16, score(model, split, **options))
                expected = evaluate(model, split, **options)
                self.assertAlmostEqual(found.bits_per_byte, expected.bits_per_byte, delta=1e-9)
                self.assertEqual((found.tokens, found.bytes), (expected.tokens, expected.bytes))
                boundary = found.by_class()[-1]
                self.assertAlmostEqual(boundary.mean, expected.bits_per_boundary, delta=1e-9)


class Streaming(unittest.TestCase):
    def test_order_and_size_of_the_groups_change_nothing(self) -> None:
        split = Split.of(NASTY * 3)
        whole = tally(split, 16, scores(split, groups=1), shown=50)
        parts = tally(split, 16, scores(split, groups=7)[::-1], shown=50)
        for name in ("positions", "contexts", "bits"):
            np.testing.assert_array_equal(getattr(whole.first, name), getattr(parts.first, name))
        self.assertEqual(whole.first.positions.tolist(), list(range(1, 54)))
        for one, other in zip(whole.by_class(), parts.by_class(), strict=True):
            self.assertAlmostEqual(one.bits, other.bits, delta=1e-9)

    def test_memory_does_not_grow_with_the_split(self) -> None:
        split = Split.of([b"abc" * 30_000])
        found = tally(split, 16, scores(split, groups=20), shown=100)
        arrays = [value for value in vars(found).values() if isinstance(value, np.ndarray)]
        self.assertLess(sum(array.size for array in arrays) + len(found.first.bits), 500)

    def test_nothing_scored_is_refused(self) -> None:
        split = Split.of([b"a"])
        only_end = Scored(np.array([2]), np.array([2]), np.array([1.0]), "float32")
        for given_scores in ([], [only_end]):
            with self.assertRaisesRegex(RequestError, "train: no byte is scored"):
                tally(split, 16, given_scores)


class Parsed(HTMLParser):
    """A page as a parser sees it: elements that close in order, cells with their bytes and titles."""

    VOID = frozenset(("meta", "br"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.titles: list[str] = []
        self.text: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.stack.append(tag)
        values = dict(attrs)
        if tag == "span" and "title" in values:
            self.titles.append(values["title"] or "")
            self.cells.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.stack and self.stack[-1] == "i" and "u" in self.stack:
            self.cells[-1].append(data)


class ThePage(unittest.TestCase):
    def setUp(self) -> None:
        self.split = Split.of(NASTY, 'nasty <b> & "')
        self.tally = tally(self.split, 16, scores(self.split))
        self.page = text_page(self.tally, self.split.name, "a shape").decode("utf-8")
        self.parsed = Parsed(self.page)

    def test_holds_every_token_of_the_stream_in_order(self) -> None:
        tokens = []
        for title, found in zip(self.parsed.titles, self.parsed.cells, strict=True):
            tokens += [256] if title.startswith("boundary") else [int(value, 16) for value in found]
        self.assertEqual(tokens, self.split.stream.tolist())

    @settings(max_examples=60, deadline=None)
    @given(documents)
    def test_cells_agree_with_the_classes(self, texts: list[bytes]) -> None:
        split = Split.of(texts)
        classes = classify(split.stream, np.arange(len(split.stream)))
        tokens: list[int] = []
        for cell in cells(split.stream, 0, len(split.stream)):
            self.assertEqual(cell.start, len(tokens))
            tokens += cell.tokens
            kind = int(classes[cell.start])
            self.assertEqual(cell.text == "", kind in (ILL_FORMED, BOUNDARY))
            if cell.text:
                self.assertEqual(cell.text.encode(), bytes(cell.tokens))
                self.assertEqual(len(cell.text), 1)
        self.assertEqual(tokens, split.stream.tolist())

    def test_is_well_formed_and_asks_nobody_for_anything(self) -> None:
        self.assertEqual(self.parsed.stack, [])
        self.assertEqual((self.parsed.elements["script"], self.parsed.elements["style"]), (1, 1))
        self.assertEqual({name for _, name, _ in self.parsed.attributes} & {"src", "href", "onclick"}, set())
        self.assertNotRegex(self.page, r"https?:|//[a-z]|url\(|@import")
        self.assertIn("default-src 'none'", self.page)
        self.assertIn('name="viewport"', self.page)
        self.assertIn("prefers-color-scheme: dark", self.page)

    def test_text_cannot_leave_its_place(self) -> None:
        self.assertEqual(self.page.count("<script>"), 1)
        self.assertNotIn("<b>", self.page.split("<main>")[0])
        raw = {c for c in self.page if unicodedata.category(c) in ("Cc", "Cf", "Co", "Cn", "Cs")}
        self.assertEqual(raw, {"\n"})
        names = {
            name for tag, name, _ in self.parsed.attributes if tag in ("span", "b", "u", "i", "bdi", "br")
        }
        self.assertEqual(names, {"class", "title"})
        for title in ('"  U+0022 QUOTATION MARK', "<  U+003C LESS-THAN SIGN", "&  U+0026 AMPERSAND"):
            self.assertIn(title, {title.split("\n")[0] for title in self.parsed.titles})
        for character in "אب<":
            self.assertRegex(self.page, f"<bdi>(&lt;|{character})</bdi>")

    def test_what_cannot_be_seen_is_shown_by_its_number_or_a_sign(self) -> None:
        for character, sign in (
            ("a", "a"), ("\n", "↵"), ("\t", "⇥"), (" ", "␣"), ("\0", "0000"), ("\x1b", "001B"),
            ("\u202e", "202E"),
            ("\u0301", "◌\u0301"), ("\ufe0f", "FE0F"), ("\u00a0", "00A0"), ("\ue000", "E000"), ("🙂", "🙂"),
            ("\u2028", "2028"), ("\U000e0101", "E0101"), ("ן", "ן"),
        ):  # fmt: skip
            self.assertEqual(visible(character), sign)

    def test_title_tells_bits_probability_and_context_of_each_byte(self) -> None:
        costs = {position: (bits, context) for position, context, bits in one_by_one(scores(self.split))}
        start = self.split.stream.tolist().index(0xD7)
        title = next(title for title in self.parsed.titles if "HEBREW LETTER SHIN" in title)
        lines = title.split("\n")
        self.assertEqual(lines[0], "ש  U+05E9 HEBREW LETTER SHIN")
        for line, position in zip(lines[1:3], (start, start + 1), strict=True):
            bits, context = costs[position]
            byte, cost, probability, tokens = re.match(
                r"(\w\w)  ([\d.]+) bits  probability ([\d.e-]+)  from (\d+) token", line
            ).groups()
            self.assertEqual(int(byte, 16), self.split.stream[position])
            self.assertAlmostEqual(float(cost), bits, delta=0.006)
            self.assertAlmostEqual(float(probability), 2**-bits, delta=0.0006)
            self.assertEqual(int(tokens), context)
        self.assertEqual(lines[3], f"together {costs[start][0] + costs[start + 1][0]:.2f} bits")

    def test_boundaries_are_marks_of_their_own_and_the_first_is_context_only(self) -> None:
        marks = [title for title in self.parsed.titles if title.startswith("boundary")]
        self.assertEqual(len(marks), len(NASTY) + 1)
        self.assertIn("context only", marks[0])
        for mark in marks[1:]:
            self.assertRegex(mark, r"^boundary: the document ends here\n[\d.]+ bits  probability ")

    def test_new_windows_are_marked_where_the_context_drops(self) -> None:
        # Windows of 16 tokens begin at 1, 17, 33, ...; where one begins inside a character there is no mark.
        starts = {cell.start for cell in cells(self.split.stream, 0, len(self.split.stream))}
        ends = set(np.flatnonzero(self.split.stream == 256).tolist())
        begin = [p for p in range(1, len(self.split.stream), 16) if p in starts - ends]
        self.assertEqual(len(re.findall(r'class="c w"', self.page)), len(begin))

    def test_has_a_legend_and_a_table_that_need_no_colour(self) -> None:
        text = "".join(self.parsed.text)
        for low in (0, *STEPS):
            self.assertRegex(text, rf"{low:g} – [\d.]+ bits|over {low:g} bits")
        classes = self.tally.by_class()
        self.assertEqual(self.parsed.elements["tr"], len(classes) + 1)
        self.assertEqual(self.parsed.elements["caption"], 1)
        for one in classes:
            self.assertIn(f"{one.name} {one.place}", text)
            self.assertIn(f"{one.mean:.3f}", text)
        self.assertIn(f"{self.tally.bits_per_byte:.3f} bits per byte", text)

    def test_only_the_first_scored_tokens_are_shown_in_whole_characters(self) -> None:
        split = Split.of(["안녕하세요. ".encode() * 40])
        found = tally(split, 16, scores(split), shown=98)
        parsed = Parsed(text_page(found, "x", "y").decode())
        tokens = [value for cell in parsed.cells for value in cell]
        self.assertEqual(len(tokens), 100)
        self.assertIn("the first 98 tokens", "".join(parsed.text))
        self.assertNotIn("not scored\n", "".join(parsed.titles))
        bytes(int(value, 16) for value in tokens).decode("utf-8")

    def test_tokens_that_were_not_scored_leave_a_gap_that_says_so(self) -> None:
        split = Split.of([b"0123456789" * 50])
        (whole,) = scores(split, groups=1)
        chosen = ((whole.positions > 64) & (whole.positions <= 80)) | (whole.positions > 400)
        part = Scored(whole.positions[chosen], whole.contexts[chosen], whole.bits[chosen], "float32")
        page = text_page(tally(split, 16, [part]), "x", "y").decode()
        self.assertEqual(re.findall(r"… ([\d,]+) tokens that were not scored …", page), ["65", "320"])
        self.assertEqual(sum(len(cell) for cell in Parsed(page).cells), 16 + 100)

    def test_equal_inputs_give_equal_pages(self) -> None:
        again = text_page(tally(self.split, 16, scores(self.split)), self.split.name, "a shape")
        self.assertEqual(again.decode("utf-8"), self.page)

    def test_every_level_can_be_read_light_and_dark(self) -> None:
        def luminance(colour: str) -> float:
            values = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        self.assertEqual(len(LEVELS), len(STEPS) + 1)
        for pair in (pair for both in LEVELS for pair in both):
            dark, light = sorted(map(luminance, pair))
            self.assertGreaterEqual((light + 0.05) / (dark + 0.05), 4.5, pair)
        # Light pages darken towards surprise, dark pages brighten: grey eyes read the order too.
        self.assertEqual([luminance(light[0]) for light, _ in LEVELS],
                         sorted((luminance(light[0]) for light, _ in LEVELS), reverse=True))  # fmt: skip
        self.assertEqual([luminance(dark[0]) for _, dark in LEVELS],
                         sorted(luminance(dark[0]) for _, dark in LEVELS))  # fmt: skip
        self.assertEqual(
            [level(bits) for bits in (0.0, 0.49, 0.5, 3.0, 11.9, 12.0, 1e9)], [0, 0, 1, 4, 7, 8, 8]
        )


class Model:
    config = SMALL


class Drawing(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "new" / "pictures"
        self.split = Split.of([*NASTY, b"some more letters" * 40], "validation $x_1$")
        self.notes: list[str] = []

    def draw(self) -> list[Path]:
        return draw_pictures(Model(), self.split, self.folder, iter(scores(self.split)), self.notes.append)

    @unittest.skipIf(importlib.util.find_spec("matplotlib") is None, "matplotlib is not installed")
    def test_three_files_the_same_twice(self) -> None:
        paths = self.draw()
        self.assertEqual([path.name for path in paths], ["position.svg", "classes.svg", "text.html"])
        first = [path.read_bytes() for path in paths]
        self.draw()
        self.assertEqual([path.read_bytes() for path in paths], first)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {path.name for path in paths})
        for data in first[:2]:
            self.assertEqual(ElementTree.fromstring(data).tag, "{http://www.w3.org/2000/svg}svg")
            self.assertNotIn(b"<dc:date>", data)
        self.assertEqual(self.notes, [])

    @unittest.skipIf(importlib.util.find_spec("matplotlib") is None, "matplotlib is not installed")
    def test_charts_show_the_numbers_of_the_tally(self) -> None:
        from tinylm.bit_pictures.charts import classes_figure, position_figure

        found = tally(self.split, 16, scores(self.split))
        points = found.by_position()
        (axes,) = position_figure(found, "x").axes
        np.testing.assert_allclose(axes.lines[0].get_ydata(), [point.bits_per_byte for point in points])
        np.testing.assert_allclose(axes.lines[0].get_xdata(), [point.context for point in points])
        self.assertAlmostEqual(axes.lines[1].get_ydata()[0], found.bits_per_byte)
        dear, share = classes_figure(found, "x").axes
        parts = [part for row in chart_rows(found.by_class()) for part in row]
        np.testing.assert_allclose([bar.get_width() for bar in dear.patches], [part.mean for part in parts])
        widths = [bar.get_width() for bar in share.patches]
        np.testing.assert_allclose(widths, [part.bits / found.bits for part in parts])
        self.assertAlmostEqual(sum(widths), 1)

    def test_without_matplotlib_one_note_and_the_page_only(self) -> None:
        with mock.patch("importlib.util.find_spec", return_value=None):
            paths = self.draw()
        self.assertEqual([path.name for path in paths], ["text.html"])
        self.assertEqual(self.notes, ["no position.svg and no classes.svg: matplotlib is not installed"])
        self.assertEqual([path.name for path in self.folder.iterdir()], ["text.html"])

    def test_nothing_scored_leaves_no_file(self) -> None:
        with self.assertRaises(RequestError):
            draw_pictures(Model(), self.split, self.folder, [], self.notes.append)
        self.assertFalse(self.folder.exists())


if __name__ == "__main__":
    unittest.main()
