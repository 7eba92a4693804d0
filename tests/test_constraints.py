"""Constraints: against re, json and brute force, through scripted and random models."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from tests.scripted import ScriptedModel, scripted
from tinylm import constraints
from tinylm.commands.generate import told_or_read
from tinylm.config import GenerateConfig
from tinylm.constraints import Compiled, Constraint, gbnf, lark
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import ConfigError, RequestError
from tinylm.generate import generate
from tinylm.language_model import LanguageModel
from tinylm.sampling import allowed_after, distribution

LIBRARY = importlib.util.find_spec("llguidance") is not None
WITHOUT = "llguidance is not installed (extra constrain)"


def compiled(**asked: object) -> Compiled:
    found = constraints.compile(**asked)  # type: ignore[arg-type]
    assert found is not None
    return found


def after(made: Compiled, drawn: bytes) -> Constraint:
    """A fresh constraint that has seen `drawn`."""
    constraint = made.start()
    for byte in drawn:
        assert constraint.allowed()[byte], (drawn, byte)
        constraint.advance(byte)
    return constraint


def ids(constraint: Constraint, room: int | None = None) -> set[int]:
    return set(np.flatnonzero(constraint.allowed(room)).tolist())


def language(made: Compiled, longest: int) -> set[bytes]:
    """Every text of at most `longest` bytes after which the boundary is allowed, by trying all masks."""
    found = set()
    waiting = [b""]
    while waiting:
        text = waiting.pop()
        allowed = ids(after(made, text))
        assert allowed, text
        if DOC_BOUNDARY in allowed:
            found.add(text)
        if len(text) < longest:
            waiting += [text + bytes((byte,)) for byte in allowed - {DOC_BOUNDARY}]
    return found


def texts(alphabet: str, longest: int) -> Iterator[str]:
    for length in range(longest + 1):
        yield from map("".join, itertools.product(alphabet, repeat=length))


def random_model(seed: int, rows: int = 60, high: float = 0.0) -> ScriptedModel:
    """Random logits at each position; `high` is added to bytes above 127 and to the boundary."""
    logits = np.random.default_rng(seed).normal(0, 2, (rows, VOCABULARY_SIZE))
    logits[:, 128:] += high
    return ScriptedModel(logits)


def written(model: ScriptedModel, seed: int, **options: object) -> tuple[bytes, str]:
    """The bytes and the end of one generation."""
    given = {"temperature": 1.0, "max_tokens": 60, **options}
    events = list(generate(model, "", GenerateConfig(seed=seed, **given)))  # type: ignore[arg-type]
    assert events[-1].end is not None
    drawn = [token for event in events for token in event.ids]
    return bytes(token for token in drawn if token != DOC_BOUNDARY), events[-1].end.reason


REGEXES = {
    "(a|ab)(c|bcd)?": "abcd",
    "[ab]*a[ab]{2}": "ab",
    "(a*?)(b|)": "ab",
    "a{2,3}?b|": "ab",
    "^(?:ab|ba)+$": "ab",
    "(?i)ab*": "aAbB",
    "[^b]{0,2}c": "abc",
    "a.?b": "ab\n",
    r"\d+(\.\d\d)?": "01.",
}


@unittest.skipUnless(LIBRARY, WITHOUT)
class Regex(unittest.TestCase):
    def test_the_masks_allow_exactly_what_re_matches(self) -> None:
        for regex, alphabet in REGEXES.items():
            made = compiled(regex=regex)
            expected = {text for text in texts(alphabet, 4) if re.fullmatch(regex, text, re.ASCII)}
            with self.subTest(regex):
                for text in texts(alphabet, 4):
                    self.assertEqual(self.accepts(made, text.encode()), text in expected, text)
                self.assertGreater(len(expected), 0)

    def accepts(self, made: Compiled, text: bytes) -> bool:
        constraint = made.start()
        for byte in text:
            if not constraint.allowed()[byte]:
                return False
            constraint.advance(byte)
        return bool(constraint.allowed()[DOC_BOUNDARY])

    def test_no_byte_beyond_the_language_is_allowed(self) -> None:
        for regex in ("(a|ab)(c|bcd)?", "[ab]{1,3}", "a{2}b|c"):
            expected = {t.encode() for t in texts("abcd", 4) if re.fullmatch(regex, t)}
            self.assertEqual(language(compiled(regex=regex), 4), expected)

    def test_what_random_models_write_matches(self) -> None:
        regexes = (
            r"[0-9]{4}-[0-9]{2}",
            r"([가-힣]{1,4} ?){1,5}\.",
            r"(?s)[^\u2300-\u27BF\U0001F000-\U0001FAFF]{1,12}",
            r"(😊|📚|é|a){2,6}",
            "(yes|no|안녕)!?",
        )
        for regex, seed in itertools.product(regexes, range(8)):
            rust = regex.replace(r"\U0001F000", r"\U{1F000}").replace(r"\U0001FAFF", r"\U{1FAFF}")
            raw, end = written(random_model(seed, high=2.0), seed, regex=rust, max_tokens=90)
            with self.subTest(regex, seed=seed):
                self.assertEqual(end, "boundary")
                self.assertIsNotNone(re.fullmatch(regex, raw.decode("utf-8")), raw)

    def test_hangul_byte_by_byte_equals_the_encodings(self) -> None:
        syllables = {chr(code).encode() for code in range(0xAC00, 0xD7A4)}
        made = compiled(regex="[가-힣]")
        for held in {raw[:size] for raw in syllables for size in (0, 1)} | {"가".encode()[:2]}:
            expected = {raw[len(held)] for raw in syllables if raw.startswith(held)}
            self.assertEqual(ids(after(made, held)), expected)

    def test_where_it_can_only_end_only_the_boundary_is_left(self) -> None:
        self.assertEqual(ids(after(compiled(regex="ab?"), b"a")), {98, 256})
        self.assertEqual(ids(after(compiled(regex="ab?"), b"ab")), {256})
        self.assertEqual(ids(compiled(regex="").start()), {256})

    def test_a_mistake_is_named_with_its_position_before_anything_runs(self) -> None:
        model = scripted([65])
        for regex, said in {
            "a(b": "position 2: unclosed group",
            "a(?=b)": "position 2: look-around",
            r"a[^\s\S]": "no text matches",
            "\ud800": "position 1",
            "a" * 30_001: "expected at most 30000",
            "(" * 300 + ")" * 300: "nested",
        }.items():
            with self.assertRaisesRegex(RequestError, said) as caught:
                generate(model, "", GenerateConfig(regex=regex))
            self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(model.read, [])

    def test_one_too_large_for_the_library_ends_with_an_error_and_not_with_waiting(self) -> None:
        events = generate(scripted([97] * 200), "", GenerateConfig(regex="((a{1,999}){1,999}){1,999}"))
        with self.assertRaisesRegex(RequestError, "regex: after .* tokens"):
            list(events)


GRAMMARS: dict[str, Callable[[str], bool]] = {
    # A terminal that is read greedily would never leave a b for the end.
    'root ::= [ab]* "b"': lambda t: re.fullmatch("[ab]*b", t) is not None,
    'root ::= x* "b" y\nx ::= [ab]\ny ::= "a" | "ba"': lambda t: re.fullmatch("[ab]*b(a|ba)", t) is not None,
    'root ::= "a" root "b" | ""': lambda t: t == "a" * (len(t) // 2) + "b" * (len(t) // 2),
    'root ::= "a" root "a" | "b" root "b" | "a"? | "b"': lambda t: t == t[::-1],
    'root ::= root root | "ab" | ""': lambda t: re.fullmatch("(ab)*", t) is not None,
    'root ::= left "b"\nleft ::= left "a" | "a"': lambda t: re.fullmatch("a+b", t) is not None,
    'root ::= (("a"{2,3} | <[98]>)? # and a comment\n  ){0,2}': lambda t: (
        re.fullmatch("((aa|aaa|b)?){0,2}", t) is not None
    ),
    "root ::= !<[97]> .": lambda t: re.fullmatch("b[ab]", t) is not None,
    "root ::= a-1\na-1 ::= [^b]+ |\n  [b]": lambda t: re.fullmatch("a+|b", t) is not None,
}

JSON_GRAMMAR = r"""
root    ::= ws value ws
value   ::= object | list | text | number | "true" | "false" | "null"
object  ::= "{" ws (pair ("," ws pair)*)? "}"   # as in RFC 8259
pair    ::= text ws ":" ws value ws
list    ::= "[" ws (value ws ("," ws value ws)*)? "]"
text    ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number  ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
ws      ::= [ \t\n]{0,3}
"""


@unittest.skipUnless(LIBRARY, WITHOUT)
class Grammar(unittest.TestCase):
    def test_the_masks_allow_exactly_the_language(self) -> None:
        for grammar, matches in GRAMMARS.items():
            made = compiled(grammar=grammar)
            with self.subTest(grammar):
                found = language_over(made, b"ab", 5)
                self.assertEqual(found, {t.encode() for t in texts("ab", 5) if matches(t)})

    def test_characters_and_single_bytes_may_begin_alike(self) -> None:
        # C3 A9 is é; the byte C3 alone may be followed by a.
        made = compiled(grammar='root ::= <[195]> "a" | "é" | [ê-ī] "b"')
        self.assertEqual(ids(after(made, b"\xc3")), {0x61, *range(0xA9, 0xC0)})
        self.assertEqual(ids(after(made, b"\xc3\xa9")), {256})
        self.assertEqual(ids(after(made, b"\xc3\xaa")), {0x62})

    def test_ids_force_bytes_that_are_no_text(self) -> None:
        raw, end = written(random_model(1), 1, grammar="root ::= <[255]> <[240]> <[159]> <[65]>")
        self.assertEqual((raw, end), (b"\xff\xf0\x9fA", "boundary"))

    def test_json_of_a_random_model_is_json(self) -> None:
        whole = 0
        for seed in range(24):
            raw, end = written(random_model(seed, high=1.0), seed, grammar=JSON_GRAMMAR)
            if end == "boundary":
                json.loads(raw)
                whole += 1
        self.assertGreater(whole, 5)

    def test_a_given_document_passes_and_its_damage_does_not(self) -> None:
        text = '{"한글": [1.5e3, -0, true, null], "\\u00e9😊": {"": "\\n"}}'.encode()
        made = compiled(grammar=JSON_GRAMMAR)
        self.assertIn(DOC_BOUNDARY, ids(after(made, text)))
        for size in range(1, len(text)):
            self.assertNotIn(DOC_BOUNDARY, ids(after(made, text[:size])))
        self.assertNotIn(ord("1"), ids(after(made, b"[0")))

    def test_a_grammar_without_emoji_gives_well_formed_text_without_emoji(self) -> None:
        grammar = r"root ::= [^\u2300-\u27BF\U0001F000-\U0001FAFF]{1,9}"
        many = 0
        for seed in range(20):
            raw, end = written(random_model(seed, high=3.0), seed, grammar=grammar)
            text = raw.decode("utf-8")
            self.assertEqual(end, "boundary")
            self.assertFalse(
                any(0x2300 <= ord(c) <= 0x27BF or 0x1F000 <= ord(c) <= 0x1FAFF for c in text), text
            )
            many += sum(ord(c) > 0xFFFF for c in text)
        self.assertGreater(many, 5)
        self.assertNotIn(0x98, ids(after(compiled(grammar=grammar), b"\xf0\x9f")))

    def test_a_mistake_is_named_with_line_and_column(self) -> None:
        for grammar, said in {
            'root := "a"': "line 1, column 6: .*expected ::=",
            'rot ::= "a"': "expected a rule root",
            "root ::= x": "column 10: found rule 'x'",
            'root ::= "a"\n\nx ::= [a': "line 3, column 7: .*without end",
            'root ::= "\\q"': "column 11: found",
            'root ::= "a': "closing quotation mark",
            'root ::= ("a"\n': "line 2, column 1: found the end, expected \\)",
            "root ::= [b-a]": "upwards",
            "root ::= []": "at least one",
            "root ::= <think>": "<\\[65\\]>",
            "root ::= <[256]>": "comes by itself",
            'root ::= "a" root': "no text completes",
            'root ::= "a"{3,2}': "greater number last",
            'root ::= "a"{x}': "repetition such as",
            'root ::= "\\uD800"': "half a surrogate",
            'root ::= "a" )': "end of the rule 'root'",
            'root ::= "a"\nroot ::= "b"': "line 2, column 1: .*second time",
            "root ::= " + "(" * 101: "nested parentheses",
            "root ::= a1\n"
            + "\n".join(f'a{i} ::= "x"? a{i + 1}' for i in range(1, 500))
            + '\na500 ::= "a"': ("500 deep"),
        }.items():
            with self.assertRaisesRegex(RequestError, said) as caught:
                compiled(grammar=grammar)
            self.assertNotIn("\n", str(caught.exception))

    def test_every_character_has_exactly_its_encoding(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(60):
            low, high = sorted(
                int(code) for code in rng.choice([*range(0x3000), 0xD7FF, 0xE000, 0x10FFFF], 2)
            )
            rows = list(lark.utf8_ranges(gbnf._complement(gbnf._complement([(low, high)]))))
            for code in {low, high, (low + high) // 2, low - 1, high + 1, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF}:
                if 0 <= code <= 0x10FFFF and not 0xD800 <= code < 0xE000:
                    raw = chr(code).encode()
                    hits = sum(
                        len(row) == len(raw) and all(a <= b <= c for b, (a, c) in zip(raw, row, strict=True))
                        for row in rows
                    )
                    self.assertEqual(hits, int(low <= code <= high), (low, high, code))


def language_over(made: Compiled, alphabet: bytes, longest: int) -> set[bytes]:
    """`language`, looking only at the bytes of an alphabet."""
    found = set()
    waiting = [b""]
    while waiting:
        text = waiting.pop()
        allowed = ids(after(made, text))
        if DOC_BOUNDARY in allowed:
            found.add(text)
        if len(text) < longest:
            waiting += [text + bytes((byte,)) for byte in allowed & set(alphabet)]
    return found


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["가", "b", 3]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def chain(length: int) -> str:
    """A schema whose references follow one another."""
    each = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(length)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**each, f"a{length}": {}}}, separators=(",", ":"))


def is_person(value: object) -> bool:
    """PERSON, checked by hand."""
    if not isinstance(value, dict) or not {"name", "age"} <= set(value) <= {"name", "age", "tags"}:
        return False
    name, age, tags = value["name"], value["age"], value.get("tags", [])
    return (
        (isinstance(name, str) and 1 <= len(name) <= 5)
        and (isinstance(age, int) and not isinstance(age, bool) and 0 <= age <= 150)
        and (isinstance(tags, list) and len(tags) <= 2 and all(tag in ("가", "b", 3) for tag in tags))
    )


def random_pattern(rng: np.random.Generator, depth: int) -> tuple[str, str]:
    """One pattern, as a regular expression and as the right side of a GBNF rule."""
    kind = int(rng.integers(0, 6)) if depth else 0
    if kind == 0:
        one = str(rng.choice(["a", "b", "[ab]", "[^a]", "é"]))
        return one.replace("[^a]", "[bé]"), one.replace("[^a]", "[bé]") if "[" in one else f'"{one}"'
    first, second = (random_pattern(rng, depth - 1) for _ in range(2))
    if kind in (1, 2):
        return first[0] + second[0], f"{first[1]} {second[1]}"
    if kind == 3:
        return f"(?:{first[0]}|{second[0]})", f"({first[1]} | {second[1]})"
    times = str(rng.choice(["*", "+", "?", "{2}", "{1,2}", "{2,}", "{0,1}"]))
    return f"(?:{first[0]}){times}", f"({first[1]}){times}"


@unittest.skipUnless(LIBRARY, WITHOUT)
class RandomPatterns(unittest.TestCase):
    def test_as_a_regex_and_as_a_grammar_they_allow_what_re_matches(self) -> None:
        matched = 0
        for seed in range(50):
            regex, grammar = random_pattern(np.random.default_rng(seed), 4)
            expected = {t.encode() for t in texts("abé", 3) if re.fullmatch(regex, t)}
            expected = {raw for raw in expected if len(raw) <= 3}
            matched += len(expected)
            for made in (compiled(regex=regex), compiled(grammar=f"root ::= {grammar}")):
                with self.subTest(regex, grammar=grammar):
                    self.assertEqual(language(made, 3), expected)
        self.assertGreater(matched, 100)


@unittest.skipUnless(LIBRARY, WITHOUT)
class JsonSchema(unittest.TestCase):
    def test_what_random_models_write_is_json_that_the_schema_accepts(self) -> None:
        whole = 0
        for seed in range(12):
            model = random_model(seed, rows=300)
            raw, end = written(model, seed, json_schema=json.dumps(PERSON), max_tokens=300)
            if end == "boundary":
                self.assertTrue(is_person(json.loads(raw)), raw)
                whole += 1
        self.assertGreater(whole, 8)

    def test_a_schema_may_be_an_object_and_keeps_its_order(self) -> None:
        made = compiled(json_schema=PERSON)
        self.assertIn(ord("n"), ids(after(made, b'{"')))
        self.assertNotIn(ord("a"), ids(after(made, b'{"')))
        model = LanguageModel(random_model(3, rows=300))  # type: ignore[arg-type]
        raw = b"".join(event.bytes for event in model.generate(max_tokens=300, json_schema=PERSON))
        self.assertEqual(
            raw, b"".join(e.bytes for e in model.generate(max_tokens=300, json_schema=json.dumps(PERSON)))
        )

    def test_spaces_do_not_go_on_for_ever(self) -> None:
        made = compiled(json_schema={"type": "array", "items": {"type": "null"}})
        for spaces, more in (
            (b"", True),
            (b" ", False),
            (b"\n" + b" " * 19, True),
            (b"\n" + b" " * 20, False),
        ):
            allowed = ids(after(made, b"[" + spaces))
            self.assertEqual(ord(" ") in allowed, more, spaces)
            self.assertLessEqual({ord("n"), ord("]")}, allowed)

    def test_a_mistake_is_named(self) -> None:
        for schema, said in {
            "{": "line 1, column 2",
            "[]": "expected an object",
            '{"type":"strin"}': "Invalid type: strin",
            '{"not":{}}': "not",
            '{"a":1,"a":2}': "twice",
            '{"$ref":"http://example.org/x"}': "example.org",
            '{"type":"integer","minimum":5,"maximum":3}': "Unsatisfiable",
            '{"type":"string","pattern":"a(b"}': "position 2: unclosed group",
            '{"$ref":"#"}': "no text matches",
            "[" * 99_000: "nested too deeply",
            chain(1500): "follow one another",
        }.items():
            with self.assertRaisesRegex(RequestError, said) as caught:
                compiled(json_schema=schema)
            self.assertNotIn("\n", str(caught.exception))


class ValidUtf8(unittest.TestCase):
    def test_it_is_the_mask_of_the_held_bytes(self) -> None:
        for text in ("a", "é", "한", "😊"):
            constraint = compiled(valid_utf8=True).start()
            for place, byte in enumerate(text.encode()):
                for room in (None, 4, 9):
                    expected = allowed_after(text.encode()[:place], room)
                    np.testing.assert_array_equal(constraint.allowed(room), expected)
                constraint.advance(byte)
            self.assertIn(DOC_BOUNDARY, ids(constraint))

    def test_nothing_asked_is_no_constraint(self) -> None:
        self.assertIsNone(constraints.compile())

    def test_it_needs_no_library(self) -> None:
        with mock.patch.dict(sys.modules, {"llguidance": None}):
            self.assertEqual(written(scripted([*"é".encode(), 256]), 0, valid_utf8=True)[0], "é".encode())

    def test_without_the_library_the_extra_is_named(self) -> None:
        with (
            mock.patch.dict(sys.modules, {"llguidance": None}),
            self.assertRaisesRegex(RequestError, r"pip install llguidance"),
        ):
            compiled(regex="a")


@unittest.skipUnless(LIBRARY, WITHOUT)
class Together(unittest.TestCase):
    def test_with_valid_utf8_only_characters_that_fit_begin(self) -> None:
        made = compiled(regex="[가-힣é.]+", valid_utf8=True)
        self.assertEqual(ids(made.start(), 9), {0x2E, 0xC3, 0xEA, 0xEB, 0xEC, 0xED})
        self.assertEqual(ids(made.start(), 2), {0x2E, 0xC3})
        self.assertEqual(ids(made.start(), 1), {0x2E})
        self.assertEqual(ids(compiled(regex="[가-힣é.]+").start(), 1), {0x2E, 0xC3, 0xEA, 0xEB, 0xEC, 0xED})

    def test_at_every_limit_the_text_is_whole_characters_where_the_grammar_allows_it(self) -> None:
        for limit, seed in itertools.product(range(1, 14), range(4)):
            model = random_model(seed, high=3.0)
            raw, _ = written(model, seed, regex="([가-힣😊]|[a-z.]){2,}", valid_utf8=True, max_tokens=limit)
            raw.decode("utf-8")

    def test_where_no_character_fits_the_grammar_goes_first(self) -> None:
        raw, end = written(random_model(0), 0, regex="[가-힣]{2}", valid_utf8=True, max_tokens=5)
        self.assertEqual((len(raw), end), (5, "limit"))
        with self.assertRaises(UnicodeDecodeError):
            raw.decode("utf-8")

    def test_bytes_that_are_no_text_and_valid_utf8_are_refused(self) -> None:
        with self.assertRaisesRegex(RequestError, "no id satisfies both"):
            compiled(grammar="root ::= <[255]>", valid_utf8=True).start().allowed(9)

    def test_at_the_limit_a_text_is_a_prefix(self) -> None:
        whole, end = written(random_model(5), 5, regex="[a-z]{20}")
        self.assertEqual((len(whole), end), (20, "boundary"))
        cut, end = written(random_model(5), 5, regex="[a-z]{20}", max_tokens=7)
        self.assertEqual((cut, end), (whole[:7], "limit"))

    def test_a_stop_string_still_ends_it(self) -> None:
        raw, end = written(scripted([*b"abcdef"]), 0, regex="[a-z]+", stop=("cd",))
        self.assertEqual((raw, end), (b"abcd", "stop"))

    def test_draws_follow_the_model_renormalised_over_the_mask(self) -> None:
        logits = np.random.default_rng(8).normal(0, 2, (2, VOCABULARY_SIZE))
        shares = np.exp(logits[0, 97:103]) / np.exp(logits[0, 97:103]).sum()
        counts = np.zeros(6)
        made = compiled(regex="[a-f]")
        config = GenerateConfig(temperature=1.0)
        np.testing.assert_allclose(
            distribution(logits[0], config, made.start().allowed())[97:103], shares, rtol=1e-12
        )
        for seed in range(300):
            counts[written(ScriptedModel(logits), seed, regex="[a-f]", max_tokens=1)[0][0] - 97] += 1
        deviations = (counts - 300 * shares) / np.sqrt(300 * shares * (1 - shares))
        self.assertLess(np.abs(deviations).max(), 4.5)

    def test_what_is_compiled_once_serves_generations_that_take_turns(self) -> None:
        made = compiled(grammar='root ::= "a" root "b" | "c"')
        first, second = made.start(), made.start()
        for byte in b"aac":
            first.advance(byte)
        self.assertEqual((ids(first), ids(second)), ({98}, {97, 99}))
        second.advance(99)
        self.assertEqual((ids(first), ids(second), ids(made.start())), ({98}, {256}, {97, 99}))

    def test_threads_share_what_is_compiled(self) -> None:
        made = compiled(json_schema=PERSON)
        alone = [self.walk(made, seed) for seed in range(4)]
        found: dict[int, bytes] = {}

        def work(seed: int) -> None:
            found[seed] = self.walk(made, seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([found[seed] for seed in range(4)], alone)

    def walk(self, made: Compiled, seed: int) -> bytes:
        rng, constraint, drawn = np.random.default_rng(seed), made.start(), b""
        while len(drawn) < 60 and (allowed := sorted(ids(constraint) - {DOC_BOUNDARY})):
            drawn += bytes((int(rng.choice(allowed)),))
            constraint.advance(drawn[-1])
        return drawn

    def test_an_id_that_was_not_allowed_is_refused(self) -> None:
        for token in (98, 255, 256):
            with self.assertRaises(RequestError):
                compiled(regex="a").start().advance(token)

    def test_time_beyond_the_budget_ends_it(self) -> None:
        constraint = compiled(regex="a+").start()
        with (
            mock.patch("tinylm.constraints.library.SECONDS", 0.0),
            mock.patch("tinylm.constraints.library.SECONDS_PER_TOKEN", 0.0),
            self.assertRaisesRegex(RequestError, "less nesting"),
        ):
            constraint.allowed()

    def test_a_grammar_with_too_many_readings_is_stopped_early(self) -> None:
        constraint = compiled(grammar='root ::= (x{0,100}){0,100}\nx ::= "a"?').start()
        with (
            mock.patch("tinylm.constraints.library.SECONDS", 0.5),
            self.assertRaisesRegex(RequestError, "grammar: (after|took)"),
        ):
            for _ in range(300):
                constraint.allowed()
                constraint.advance(97)


class Options(unittest.TestCase):
    def test_at_most_one_of_them(self) -> None:
        with self.assertRaisesRegex(ConfigError, "grammar and regex"):
            GenerateConfig(grammar="root ::= .", regex="a").check()
        with self.assertRaisesRegex(RequestError, "regex and json_schema"):
            constraints.compile(regex="a", json_schema="{}")

    def test_on_the_command_line_an_at_sign_names_a_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "root.gbnf"
            path.write_bytes("root ::= [가-힣]\r\n".encode())
            self.assertEqual(told_or_read("grammar", f"@{path}"), "root ::= [가-힣]")
            path.write_bytes(b"root \xff")
            with self.assertRaisesRegex(RequestError, "byte 5 is not well-formed"):
                told_or_read("grammar", f"@{path}")
        self.assertEqual(
            [told_or_read("regex", given) for given in ("a@b", r"\@b", None)], ["a@b", r"\@b", None]
        )

    def test_what_is_no_text_is_refused(self) -> None:
        for name in ("grammar", "json_schema", "regex"):
            with self.assertRaisesRegex(ConfigError, name):
                GenerateConfig(**{name: 5}).check()
        for name in ("grammar", "json_schema"):
            with self.assertRaisesRegex(ConfigError, name):
                GenerateConfig(**{name: ""}).check()


if __name__ == "__main__":
    unittest.main()
