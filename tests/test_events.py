"""Ids to events: the nine invariants against an oracle of bytes.decode and bytes.find, and recorded cases."""

from __future__ import annotations

import codecs
import unittest
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recorded import case_limit, recorded_cases
from tinylm.errors import ContractError, RequestError
from tinylm.events import End, Event, EventStream

REASONS = {"eos": "boundary", "word": "stop", "limit": "limit"}


@dataclass(frozen=True)
class Expected:
    """What a script must give, worked out at once from all of its bytes."""

    sampled: list[int]
    kept: bytes
    end: End


def oracle(script: Sequence[int], stops: Sequence[str | bytes], limit: int) -> Expected | None:
    """The outcome of a script by bytes.find; None if the script stops before any end."""
    raw = bytes(token for token in script if token < 256)
    boundary = script.index(256) + 1 if 256 in script else None
    before_boundary = raw if boundary is None else raw[: boundary - 1]
    words = [word.encode() if isinstance(word, str) else word for word in stops]
    matches = [
        (before_boundary.find(word) + len(word), before_boundary.find(word), index)
        for index, word in enumerate(words)
        if word in before_boundary
    ]
    outcomes: list[tuple[int, int, End, int]] = []
    if boundary is not None:
        outcomes.append((boundary, 0, End("boundary", "", boundary), boundary - 1))
    if matches:
        tokens, start, index = min(matches)
        text = words[index].decode("utf-8", "backslashreplace")
        outcomes.append((tokens, 1, End("stop", text, tokens), start))
    if limit <= len(script):
        outcomes.append((limit, 2, End("limit", "", limit), limit))
    if not outcomes:
        return None
    tokens, _, end, kept = min(outcomes, key=lambda outcome: outcome[:2])
    return Expected(list(script[:tokens]), raw[:kept], end)


def check_invariants(events: Sequence[Event], expected: Expected, stops: Sequence[str | bytes]) -> None:
    """Everything that holds for the events of every generation; raises AssertionError."""
    *tokens, final = events
    assert final == Event((), b"", "", expected.end), final
    assert [event.end for event in tokens] == [None] * len(tokens)
    assert [event.ids for event in tokens] == [(token,) for token in expected.sampled]
    assert expected.end.tokens == len(expected.sampled)
    assert b"".join(event.bytes for event in events) == expected.kept
    assert "".join(event.text for event in events) == expected.kept.decode("utf-8", "replace")

    words = [word.encode() if isinstance(word, str) else word for word in stops]
    raw, given_bytes, given_text = b"", b"", ""
    for index, event in enumerate(tokens):
        assert event.text == event.bytes.decode("utf-8", "replace")
        event.text.encode("utf-8")  # no surrogate
        raw += bytes(token for token in event.ids if token < 256)
        given_bytes, given_text = given_bytes + event.bytes, given_text + event.text
        assert raw.startswith(given_bytes)
        # Only a stop string that begins inside a character makes a text that all bytes would not give.
        if expected.end.reason != "stop" or "\\x" not in expected.end.stop or event is not tokens[-1]:
            assert raw.decode("utf-8", "replace").startswith(given_text)
        if index == len(tokens) - 1:
            continue
        # Nothing waits longer than it must: a begun stop string, and what may become one character.
        waits = max(
            (n for word in words for n in range(1, min(len(word), len(raw) + 1)) if raw.endswith(word[:n])),
            default=0,
        )
        free = raw[: len(raw) - waits]
        begun = free[len(given_bytes) :]
        assert given_bytes + begun == free, "a byte was given that may belong to a stop string"
        assert len(begun) <= 3
        if begun:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            assert decoder.decode(begun) == "", f"{begun!r} is complete and was held"


def run(script: Iterable[int], stops: Sequence[str | bytes], limit: int) -> list[Event]:
    """The events of a script, pushed until the stream says that it has ended."""
    stream, events, tokens = EventStream(stops, limit), [], iter(script)
    while stream.end is None:
        before = stream.held
        event = stream.push(next(tokens))
        if stream.end is None:
            assert before + bytes(event.ids) == event.bytes + stream.held
            assert len(stream.held) <= 3 + max((len(_raw(word)) - 1 for word in stops), default=0)
        events.append(event)
    assert stream.held == b""
    return [*events, stream.finish()]


def coalesced(events: Sequence[Event]) -> list[list[Any]]:
    """Events grouped so that ids wait for text: [text, ids] whenever there is text, and once at the end."""
    groups: list[list[Any]] = []
    waiting: list[int] = []
    for event in events:
        waiting += event.ids
        if event.text or (event.end is not None and waiting):
            groups.append([event.text, waiting])
            waiting = []
    return groups


def check_case(case: dict[str, Any], events: Sequence[Event]) -> None:
    """One recorded case, whatever its events came from; raises AssertionError."""
    end = events[-1].end
    assert [token for event in events for token in event.ids] == case["sampled"]
    assert "".join(event.text for event in events) == case["content"]
    assert end == End(REASONS[case["stop_type"]], case["stopping_word"], case["tokens_predicted"])  # type: ignore[arg-type]
    assert coalesced(events) == case["coalesced_events"]


def _raw(word: str | bytes) -> bytes:
    return word.encode() if isinstance(word, str) else word


class RecordedCases(unittest.TestCase):
    def test_every_recorded_case_gives_what_a_client_must_receive(self) -> None:
        for case in recorded_cases():
            with self.subTest(case["name"]):
                events = run(case["script"], case["stop"], case_limit(case))
                check_case(case, events)
                expected = oracle(case["script"], case["stop"], case_limit(case))
                assert expected is not None
                check_invariants(events, expected, case["stop"])


# Leads, continuations at the edges of every row of the UTF-8 table, bytes of no character, and ASCII.
ADVERSARIAL = bytes.fromhex("00 0a 41 53 54 7f 80 8f 90 9f a0 bf c0 c2 c3 e0 e2 ed ef f0 f4 f5 ff")
SMALL = b"ab"
TEXTS = ["😊", "📚", "안", "é", "e\u0301", "\u2028", "A", "STOP", "\ufeff", "\ufffd", "👨\u200d👩"]


def scripts(alphabet: bytes) -> st.SearchStrategy[list[int]]:
    tokens = st.lists(st.sampled_from(alphabet), max_size=14)
    texts = st.lists(st.sampled_from(TEXTS), max_size=4).map(lambda parts: list("".join(parts).encode()))
    body = st.one_of(tokens, texts, st.tuples(tokens, texts, tokens).map(lambda t: [*t[0], *t[1], *t[2]]))
    return st.tuples(body, st.booleans(), body).map(lambda t: t[0] + [256] + t[2] if t[1] else t[0] + t[2])


def stop_lists(alphabet: bytes) -> st.SearchStrategy[list[str | bytes]]:
    raw = st.lists(st.sampled_from(alphabet), min_size=1, max_size=5).map(bytes)
    return st.lists(st.one_of(raw, st.sampled_from(TEXTS)), max_size=4)


class Invariants(unittest.TestCase):
    def _check(self, script: list[int], stops: Sequence[str | bytes], limit: int) -> None:
        expected = oracle(script, stops, limit)
        if expected is None:
            # Nothing ends it: one more boundary does.
            script = [*script, 256]
            expected = oracle(script, stops, limit)
        assert expected is not None
        check_invariants(run(script, stops, limit), expected, stops)

    @settings(max_examples=600, deadline=None)
    @given(scripts(ADVERSARIAL), stop_lists(ADVERSARIAL), st.integers(0, 30))
    def test_hold_for_adversarial_bytes(
        self, script: list[int], stops: list[str | bytes], limit: int
    ) -> None:
        self._check(script, stops, limit)

    @settings(max_examples=400, deadline=None)
    @given(
        st.lists(st.sampled_from(SMALL), max_size=16),
        st.lists(st.lists(st.sampled_from(SMALL), min_size=1, max_size=6).map(bytes), max_size=4),
        st.integers(0, 18),
    )
    def test_hold_where_stop_strings_overlap_themselves_and_each_other(
        self, script: list[int], stops: list[bytes], limit: int
    ) -> None:
        self._check(script, stops, limit)

    @settings(max_examples=100, deadline=None)
    @given(scripts(ADVERSARIAL), stop_lists(ADVERSARIAL))
    def test_hold_at_every_limit(self, script: list[int], stops: list[str | bytes]) -> None:
        for limit in range(len(script) + 2):
            self._check(script, stops, limit)

    def test_the_oracle_would_notice_a_lost_id_a_late_text_and_a_wrong_end(self) -> None:
        script = [*"é!".encode(), 256]
        expected = oracle(script, [], 9)
        assert expected is not None
        good = run(script, [], 9)
        check_invariants(good, expected, [])
        late = [good[0], Event((0xA9,), b"", ""), Event((0x21,), "é!".encode(), "é!"), *good[3:]]
        for bad in (
            good[1:],
            good[:-1],
            [*good, good[-1]],
            late,
            [*good[:-1], Event((), b"", "", End("limit", "", 4))],
        ):
            with self.assertRaises(AssertionError):
                check_invariants(bad, expected, [])


class Text(unittest.TestCase):
    def texts(self, raw: bytes) -> list[str]:
        stream = EventStream((), 99)
        return [stream.push(byte).text for byte in raw]

    def test_a_character_comes_with_its_last_byte(self) -> None:
        self.assertEqual(self.texts("é😊A".encode()), ["", "é", "", "", "", "😊", "A"])

    def test_a_byte_that_can_never_become_a_character_comes_at_once(self) -> None:
        self.assertEqual(self.texts(b"\xff\x80A"), ["\ufffd", "\ufffd", "A"])

    def test_a_stray_lead_byte_swallows_nothing(self) -> None:
        self.assertEqual(self.texts(b"\xf0ABC"), ["", "\ufffdA", "B", "C"])

    def test_nul_line_separators_and_the_byte_order_mark_are_text(self) -> None:
        self.assertEqual("".join(self.texts("\0\r\n\u2028\ufeffx".encode())), "\0\r\n\u2028\ufeffx")

    def test_event_bytes_keep_what_the_text_replaces(self) -> None:
        events = run([0x41, 0xFF, 0xC3, 256], [], 9)
        self.assertEqual(b"".join(event.bytes for event in events), b"A\xff\xc3")
        self.assertEqual("".join(event.text for event in events), "A\ufffd\ufffd")


class Ends(unittest.TestCase):
    def test_a_limit_inside_a_character_gives_the_held_bytes_with_the_last_token(self) -> None:
        events = run("한".encode()[:2], [], 2)
        self.assertEqual(
            events,
            [
                Event((0xED,), b"", ""),
                Event((0x95,), b"\xed\x95", "\ufffd"),
                Event((), b"", "", End("limit", "", 2)),
            ],
        )

    def test_a_limit_inside_a_stop_string_gives_its_held_bytes(self) -> None:
        events = run(b"one ST", ["STOP"], 6)
        self.assertEqual([event.text for event in events], ["o", "n", "e", " ", "", "ST", ""])

    def test_a_boundary_gives_held_bytes_and_no_text_of_its_own(self) -> None:
        events = run([0xF0, 0x9F, 256], [], 9)
        self.assertEqual(events[2], Event((256,), b"\xf0\x9f", "\ufffd"))

    def test_a_limit_of_0_ends_before_the_first_token(self) -> None:
        stream = EventStream((), 0)
        self.assertEqual(stream.finish(), Event((), b"", "", End("limit", "", 0)))

    def test_on_one_token_boundary_beats_limit_and_stop_beats_limit(self) -> None:
        self.assertEqual(run([65, 256], [], 2)[-1].end, End("boundary", "", 2))
        self.assertEqual(run([65, 66], ["B"], 2)[-1].end, End("stop", "B", 2))

    def test_the_final_event_comes_once_and_only_after_the_end(self) -> None:
        stream = EventStream((), 2)
        stream.push(65)
        with self.assertRaisesRegex(RequestError, "not ended after 1 of at most 2"):
            stream.finish()
        stream.push(66)
        stream.finish()
        with self.assertRaisesRegex(RequestError, "given already"):
            stream.finish()

    def test_a_token_after_the_end_is_refused(self) -> None:
        stream = EventStream((), 9)
        stream.push(256)
        with self.assertRaisesRegex(RequestError, r"after the end \(boundary, 1"):
            stream.push(65)


class Stops(unittest.TestCase):
    def outcome(self, text: str, *stops: str | bytes) -> tuple[str, str]:
        events = run(text.encode(), stops, 99)
        end = events[-1].end
        assert end is not None
        return "".join(event.text for event in events), end.stop

    def test_the_earliest_to_be_completed_wins(self) -> None:
        self.assertEqual(self.outcome("one STOP", " STOP", "STO"), ("one ", "STO"))

    def test_of_those_completed_by_one_byte_the_first_to_begin_wins(self) -> None:
        self.assertEqual(self.outcome("one STOP", "TOP", " STOP"), ("one", " STOP"))

    def test_of_equal_ones_the_first_in_the_list_wins(self) -> None:
        self.assertEqual(self.outcome("aXb", b"X", "X"), ("a", "X"))

    def test_a_stop_string_that_overlaps_itself_is_found(self) -> None:
        self.assertEqual(self.outcome("aabaabaaab!", "aabaaab"), ("aab", "aabaaab"))

    def test_a_stop_string_may_cut_a_character(self) -> None:
        text, stop = self.outcome("a😊", b"\x9f\x98")
        self.assertEqual((text, stop), ("a\ufffd", "\\x9f\\x98"))

    def test_a_replaced_byte_does_not_match_the_replacement_character(self) -> None:
        self.assertEqual(run([0xFF, 256], ["\ufffd"], 9)[-1].end, End("boundary", "", 2))

    def test_the_ids_of_a_stop_string_are_given_and_its_text_is_not(self) -> None:
        events = run(b"aSTOP", ["STOP"], 99)
        self.assertEqual([event.ids for event in events[:-1]], [(byte,) for byte in b"aSTOP"])
        self.assertEqual(b"".join(event.bytes for event in events), b"a")

    def test_a_long_stop_string_costs_a_bounded_time_per_token(self) -> None:
        stream = EventStream([b"a" * 20_000 + b"b"], 300_000)
        for _ in range(60_000):
            stream.push(97)
        self.assertEqual(len(stream.held), 20_000)


class BadInput(unittest.TestCase):
    def test_empty_stop_strings_are_refused(self) -> None:
        for stop in ([""], [b""], ["a", ""]):
            with self.assertRaisesRegex(RequestError, "not empty"):
                EventStream(stop, 9)

    def test_one_string_is_not_a_list_of_strings(self) -> None:
        with self.assertRaisesRegex(RequestError, "sequence of strings"):
            EventStream("STOP", 9)

    def test_what_is_not_text_or_bytes_is_refused(self) -> None:
        with self.assertRaisesRegex(RequestError, "stop string 5"):
            EventStream([5], 9)  # type: ignore[list-item]
        with self.assertRaisesRegex(ContractError, "lone surrogate"):
            EventStream(["\ud83d"], 9)

    def test_a_limit_is_an_integer_from_0(self) -> None:
        for limit in (-1, 1.0, True, None):
            with self.assertRaisesRegex(RequestError, "limit is"):
                EventStream((), limit)  # type: ignore[arg-type]

    def test_a_token_is_an_integer_of_the_vocabulary(self) -> None:
        for token in (-1, 257, 2**40, 65.0, True, "A"):
            stream = EventStream((), 9)
            with self.assertRaisesRegex(ContractError, "token is"):
                stream.push(token)  # type: ignore[arg-type]
            self.assertEqual(stream.tokens, 0)
