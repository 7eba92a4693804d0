"""The audit against servers that keep every id, lose them as llama-server does, or err in one chosen way."""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama_mimic import Mimic, Output
from tinylm import cli
from tinylm.config import AuditConfig
from tinylm.errors import RequestError
from tinylm.serve.audit import Audit, Run, audit
from tinylm.serve.audit.answers import Answer, Refusal, ask, read_stream, rebuild, repeats
from tinylm.serve.audit.cases import CASES, FACES, GREETING, Case, ids_grammar, literal
from tinylm.serve.audit.checks import Request, check, compare, counted
from tinylm.serve.audit.client import Lost, Server, pause
from tinylm.serve.audit.run import Auditor
from tinylm.serve.audit.sse import SseReader

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "cases" / "streaming.json"
SHORT = AuditConfig(chain=2, prompts=("A",), tokens=20, timeout=10.0)

# What the real llama-server 0.7.0 delivered in a stream of these, of what it sampled (facts/streaming.md).
LLAMA = {
    "ABCD": (5, 5),
    "ABCD limit 0": (1, 1),
    GREETING: (7, 17),
    FACES: (4, 13),
    f"{FACES} limit 1": (0, 1),
    f"{FACES} limit 2": (0, 2),
    f"{FACES} limit 3": (0, 3),
    f"{FACES} limit 4": (1, 4),
    f"{FACES} limit 5": (1, 5),
    "é NFC": (2, 3),
    "family ZWJ": (8, 26),
    "BOM+hi": (4, 6),
    "A NUL B": (4, 4),
    "a U+2028 b U+2029 c U+0085 d": (8, 13),
    '"one STOP two" stop STOP': (8, 8),
    '"one ST" stop STOP': (7, 7),
    '"one ST" limit 6 stop STOP': (6, 6),
    "가나다 stop 나": (2, 6),
}


def command(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = cli.main(words)
    return code, out.getvalue(), error.getvalue()


def forced(mimic: Mimic, name: str = FACES, config: AuditConfig = SHORT) -> tuple[Run, Auditor]:
    """The run of one forced case against a running server."""
    auditor = Auditor(Server(mimic.url, timeout=config.timeout), config)
    auditor.probe()
    run = next(run for run in auditor.forced() if run.name == name)
    auditor.audit.runs.append(run)
    return run, auditor


def invariants(run: Run) -> set[str]:
    return {finding.invariant for finding in run.broken}


def hazards(run: Run) -> str:
    return "; ".join(finding.text for finding in run.findings if not finding.broken)


@contextlib.contextmanager
def raw_server(*parts: bytes, pause: float = 0.0, reset: bool = False) -> Iterator[str]:
    """The URL of a server that answers anything with these bytes, a pause before each but the first."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(10)
                while not connection.recv(1 << 16).endswith(b"}"):
                    pass
                for number, part in enumerate(parts):
                    if number and done.wait(pause):
                        return
                    connection.sendall(part)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n"


class ReadingEvents(unittest.TestCase):
    def read(self, raw: bytes, size: int | None = None) -> tuple[list[str], SseReader]:
        reader = SseReader()
        parts = [raw] if size is None else [raw[i : i + size] for i in range(0, len(raw), size)]
        events = [event for part in parts for event in reader.feed(part)]
        reader.close()
        return events, reader

    def test_values_by_hand(self) -> None:
        for raw, events in (
            (b"data: a\n\ndata: b\n\n", ["a", "b"]),
            (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
            (b"data: a\r\rdata: b\r\r", ["a", "b"]),
            (b"data:a\n\n", ["a"]),
            (b"data:  a\n\n", [" a"]),
            (b"data: a\ndata: b\n\n", ["a\nb"]),
            (b"data\n\n", [""]),
            (b":\n\n: ping\n\ndata: a\n\n", ["a"]),
            (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
            (b"event: x\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
            ("data: \u2028\u0085\u2029\x0b\x0c\n\n".encode(), ["\u2028\u0085\u2029\x0b\x0c"]),
            (b"data: a", []),
            (b"data: a\n", []),
            (b"\n\n\n", []),
        ):
            for size in (None, 1, 2, 3):
                self.assertEqual(self.read(raw, size)[0], events, raw)

    @settings(max_examples=120, deadline=None)
    @given(
        st.lists(
            st.sampled_from([b"data", b": ", b":", b"x", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff", b"id"])
        ),
        st.integers(1, 5),
    )
    def test_pieces_change_nothing_and_a_simple_reader_agrees(self, parts: list[bytes], size: int) -> None:
        raw = b"".join(parts)
        events, reader = self.read(raw)
        pieces, other = self.read(raw, size)
        self.assertEqual((events, reader.findings), (pieces, other.findings))
        expected, data = [], []
        lines = re.split(rb"\r\n|\r|\n", raw)
        for line in lines[:-1]:
            name, _, value = line.partition(b":")
            if not line:
                expected += [b"\n".join(data)] if data else []
                data = []
            elif name == b"data":
                data.append(value[value.startswith(b" ") :])
        self.assertEqual(events, [event.decode("utf-8", "replace") for event in expected])

    def test_what_harms_a_correct_client_is_told_from_what_harms_others(self) -> None:
        for raw, words, broken in (
            (b"data: a", "ends inside an event", True),
            (b"data: a\n", "ends inside an event", True),
            (b'{"content":1}\n\n', "no field", True),
            (b"error: {}\n\n", "no field", True),
            (b"data: \xff\n\n", "0xff", True),
            (b"data: a\r\n\r\n", "CR LF", False),
            (b"data: a\r\r", "with CR", False),
            (b"id: 3\ndata: a\n\n", "`id:`", False),
            (b"data:a\n\n", "space", False),
            (b"data: a\ndata: b\n\n", "2 data lines", False),
            ("data: é\n\n".encode(), "not ASCII", False),
            ("data: \u2028\n\n".encode(), "U+2028", False),
            (b"\xef\xbb\xbfdata: a\n\n", "byte order mark", False),
        ):
            found = [finding for finding in self.read(raw)[1].findings if words in finding.text]
            self.assertEqual([finding.broken for finding in found], [broken], raw)
        self.assertEqual(self.read(b": ping\n\ndata: a\n\n")[1].findings, [])

    def test_an_event_without_end_is_not_kept_for_ever(self) -> None:
        reader = SseReader()
        with self.assertRaisesRegex(RequestError, "bytes"):
            for _ in range(40):
                reader.feed(b"data: " + b"x" * (1 << 19))
                reader.feed(b"\n")


class TheCases(unittest.TestCase):
    @unittest.skipUnless(SHARED.is_file(), "shared/cases/streaming.json lies beside the checkout only")
    def test_every_shared_case_is_asked_for_and_received_as_it_says(self) -> None:
        with Mimic(exact=True) as mimic:
            auditor = Auditor(Server(mimic.url), SHORT)
            auditor.probe()
            runs = list(auditor.forced())
        asked = dict(zip(((c.data, c.stop, c.limit) for c in CASES), runs, strict=False))
        for shared in json.loads(SHARED.read_text("utf-8"))["cases"]:
            data = bytes(token for token in shared["script"] if token < 256)
            run = asked[data, tuple(shared["stop"]), shared["n_predict"]]
            with self.subTest(shared["name"]):
                self.assertEqual(run.findings, [])
                for answer in (run.stream, run.whole):
                    self.assertEqual(list(answer.ids), shared["sampled"])
                    self.assertEqual(answer.text, shared["content"])
                    self.assertEqual(answer.stop_type, shared["stop_type"])
                    self.assertEqual(answer.stopping_word, shared["stopping_word"])
                    self.assertEqual((answer.predicted, answer.timed), (shared["tokens_predicted"],) * 2)

    def test_a_literal_has_ascii_only_and_no_character_of_its_own_syntax(self) -> None:
        self.assertEqual(
            literal('a"\\\n\r\0é안😊'.encode()), r'root ::= "a\"\\\x0A\x0D\x00\u00E9\uC548\U0001F60A"'
        )
        self.assertEqual(ids_grammar(b"\xffA"), "root ::= <[255]> <[65]>")

    def test_names_are_unique(self) -> None:
        self.assertEqual(len({case.name for case in CASES}), len(CASES))
        self.assertIsNone(Case("", b"\xff").text)


class NegativeControl(unittest.TestCase):
    def test_a_server_like_llama_server_loses_what_llama_server_loses(self) -> None:
        with tempfile.TemporaryDirectory() as folder, Mimic() as mimic:
            record = Path(folder) / "record.json"
            code, out, error = command("audit", mimic.url, "--json", str(record), "--tokens", "24")
            found = json.loads(record.read_text("ascii"))
        self.assertEqual((code, error), (1, ""))
        runs = {run["case"]: run for run in found["runs"]}
        for name, (received, sampled) in LLAMA.items():
            self.assertEqual((runs[name]["received"], runs[name]["sampled"]), (received, sampled), name)
        self.assertRegex(out, rf"{FACES} +\d+ +13 +4 of 13 +13 +equal +eos +I1")
        self.assertRegex(out, rf"{re.escape(GREETING)} +\d+ +17 +7 of 17 +17 +equal +eos +I1")
        self.assertRegex(out, r"verdict +NOT exact: \d+ of \d+ runs broken; \d+ of [\d,]+ ids lost")
        self.assertIn("a progress event with ids [0]", json.dumps(found))
        self.assertIn("`data: null`", json.dumps(found))
        faces = runs[FACES]["stream"]
        self.assertEqual([event[1] for event in faces["events"]], [[138], [154], [138], [256], []])
        self.assertEqual([event[2] for event in faces["events"]], [4, 8, 12, 13, 13])

    def test_runs_whose_counts_disagree_are_kept_and_not_averaged(self) -> None:
        with Mimic() as mimic:
            result = audit(mimic.url, SHORT)
        forced = [run for run in result.runs if run.group == "forced"]
        agreeing = [run for run in forced if run.counted]
        self.assertTrue(0 < len(agreeing) < len(forced))
        row = result.averages()["forced"]
        self.assertEqual((row["runs"], row["counted"]), (len(forced), len(agreeing)))
        self.assertEqual(row["ids"], sum(len(run.stream.ids) for run in agreeing))
        self.assertEqual(row["ids_per_run"], row["ids"] / len(agreeing))
        self.assertIsNone(result.averages()["free"]["ids_per_run"])
        self.assertEqual(len(result.to_dict()["runs"]), len(result.runs))

    def test_an_exact_server_is_exact(self) -> None:
        for options in (
            {},
            {"piece": 3},
            {"grammar": False},
            {"faults": ("comments", "dribble")},
            {"faults": ("busy",)},
        ):
            with self.subTest(options), Mimic(exact=True, **options) as mimic:
                result = audit(mimic.url, SHORT)
                self.assertEqual([finding for run in result.runs for finding in run.findings], [])
                self.assertEqual((result.exit_code, result.lost), (0, 0))

    def test_free_and_constrained_runs_never_mix(self) -> None:
        with Mimic(exact=True) as mimic:
            rows = audit(mimic.url, SHORT).averages()
        self.assertEqual(list(rows), ["forced", "free", "constrained", "chain"])
        self.assertEqual((rows["constrained"]["runs"], rows["constrained"]["ids"]), (1, 20))
        self.assertEqual((rows["free"]["runs"], rows["chain"]["runs"]), (6, 2))
        grammars = {run.group: run.body.get("grammar") for run in audit_runs(exact=True)}
        self.assertIsNone(grammars["free"])
        self.assertIn("2600", grammars["constrained"])

    def test_losses_are_found_on_a_vocabulary_that_nobody_knows(self) -> None:
        with Mimic(piece=3) as mimic:
            result = audit(mimic.url, SHORT)
        self.assertEqual(result.facts["vocabulary"], "unknown")
        self.assertEqual(result.exit_code, 1)
        run = next(run for run in result.runs if run.name == FACES)
        self.assertEqual((len(run.stream.ids), run.sampled, run.lost), (2, 5, 3))
        self.assertTrue(any("ids are not bytes" in note for note in result.notes))


def audit_runs(**options: Any) -> list[Run]:
    with Mimic(**options) as mimic:
        return audit(mimic.url, SHORT).runs


class Misbehaviour(unittest.TestCase):
    """Each fault alone, on a server that is exact otherwise."""

    BROKEN = (
        ("counts", {"I1", "I2", "I3"}),
        ("running_counts", {"I2"}),
        ("timings", {"I2"}),
        ("reordered", {"I3", "I4"}),
        ("lost_id", {"I1", "I2", "I3"}),
        ("twice", {"I1", "I3"}),
        ("second_final", {"I7"}),
        ("no_final", {"I7"}),
        ("drop_text", {"I3"}),
        ("early_text", {"I4"}),
        ("surrogate", {"I5"}),
        ("float", {"I1"}),
        ("wrong_end", {"I7"}),
        ("error", {"I11"}),
        ("null", {"I14"}),
        ("garbage", {"I14"}),
        ("bare_line", {"I14"}),
        ("cut", {"I14", "I7"}),
        ("bad_byte", {"I5"}),
        ("crash", {"I7"}),
    )
    HAZARDS = (
        ("repeat", "repeats all ids"),
        ("no_charset", "charset"),
        ("crlf", "CR LF"),
        ("cr", "with CR"),
        ("done", "[DONE]"),
        ("no_timings", "timings"),
        ("late", "the final event carries"),
    )

    def test_what_is_lost_or_wrong_is_broken(self) -> None:
        for fault, expected in self.BROKEN:
            name = f"{FACES} limit 5" if fault in ("drop_text", "early_text", "bad_byte") else FACES
            if fault == "early_text":
                name = "ABCD"
            with self.subTest(fault), Mimic(exact=True, faults=(fault,)) as mimic:
                run, auditor = forced(mimic, name)
                self.assertLessEqual(expected, invariants(run), [f.text for f in run.findings])
                self.assertEqual(auditor.audit.exit_code, 1)

    def test_what_a_correct_client_copes_with_is_a_hazard(self) -> None:
        for fault, words in self.HAZARDS:
            with self.subTest(fault), Mimic(exact=True, faults=(fault,)) as mimic:
                run, auditor = forced(mimic)
                self.assertIn(words, hazards(run))
                self.assertEqual((run.broken, auditor.audit.exit_code, run.lost), ([], 0, 0))

    def test_text_lost_at_a_limit_is_found_whether_or_not_the_twin_loses_it_too(self) -> None:
        for fault in ("drop_text", "drop_text_in_stream"):
            with Mimic(exact=True, faults=(fault,)) as mimic:
                run, _ = forced(mimic, f"{FACES} limit 3")
                self.assertEqual(run.stream.text, "")
                self.assertEqual(invariants(run), {"I3"})
                self.assertEqual(run.lost, 0)

    def test_phantom_ids_of_progress_events(self) -> None:
        with Mimic(exact=True, faults=("phantom",)) as mimic:
            result = audit(mimic.url, SHORT)
        broken = [run.name for run in result.broken]
        self.assertEqual(broken, ["prompt 'A', progress events"])
        self.assertEqual(result.broken[0].stream.ids[0], 0)

    def test_a_final_that_repeats_all_ids_counts_once(self) -> None:
        with Mimic(exact=True, faults=("repeat",)) as mimic:
            for name in (FACES, "the end first", "ABCD limit 4"):
                run, _ = forced(mimic, name)
                self.assertEqual(run.stream.ids, run.whole.ids)
                self.assertTrue(run.counted and run.stream.repeats)
        self.assertTrue(repeats((1, 1), (1, 1), 2))
        self.assertTrue(repeats((1, 2, 3), (2,), 3))
        self.assertFalse(repeats((1, 1), (1, 1), 4))
        self.assertFalse(repeats((1, 2, 3), (3, 2), 3))

    def test_a_second_final_is_not_counted_a_second_time(self) -> None:
        for faults in (("late", "second_final"), ("repeat", "second_final")):
            with Mimic(exact=True, faults=faults) as mimic:
                run, _ = forced(mimic)
                self.assertEqual((run.stream.ids, run.stream.text), (run.whole.ids, run.whole.text))
                self.assertEqual(invariants(run), {"I7"})

    def test_text_lost_in_a_stream_is_found_where_ids_are_not_bytes(self) -> None:
        with Mimic(exact=True, faults=("drop_text_in_stream",), piece=3) as mimic:
            run, _ = forced(mimic, f"{FACES} limit 1")
        self.assertEqual((run.stream.text, run.whole.text), ("", "\ufffd"))
        self.assertEqual(invariants(run), {"I3"})

    def test_a_server_that_repeats_what_its_events_lost_gives_all_ids(self) -> None:
        with Mimic(faults=("repeat",)) as mimic:
            run, _ = forced(mimic)
        self.assertEqual((run.lost, len(run.stream.ids)), (0, 13))
        self.assertEqual(invariants(run), {"I2", "I4"})

    def test_a_server_that_does_not_repeat_itself_is_not_accused_of_losing(self) -> None:
        with Mimic(exact=True, faults=("dice",)) as mimic:
            result = audit(mimic.url, SHORT)
        free = [run for run in result.runs if run.name == "prompt 'A', greedy"]
        self.assertIn("gave two results", hazards(free[0]))
        self.assertEqual(free[0].broken, [])

    def test_a_link_of_the_chain_must_be_read_whole(self) -> None:
        with Mimic(exact=True, faults=("evaluated",)) as mimic:
            runs = [run for run in audit(mimic.url, SHORT).runs if run.group == "chain"]
        self.assertEqual([invariants(run) for run in runs], [set(), {"I2"}])
        with Mimic(exact=True) as mimic:
            audit(mimic.url, AuditConfig(chain=3, prompts=("A",), tokens=20))
            links = [body["prompt"] for body in mimic.requests[-3:]]
        self.assertEqual([len(link) for link in links], [1, 20, 40])
        self.assertEqual(links[2][:20], links[1])

    def test_a_chain_stays_within_the_context_and_goes_on_from_its_end(self) -> None:
        with Mimic(exact=True) as mimic:
            result = audit(mimic.url, AuditConfig(chain=15, prompts=("A",), tokens=100))
        links = [run for run in result.runs if run.group == "chain"]
        for before, link in pairwise(links):
            fed = link.body["prompt"]
            self.assertLessEqual(len(fed) + 100, 512)
            self.assertEqual(fed[-100:], list(before.stream.ids))

    def test_a_server_that_is_gone_is_not_asked_for_ever(self) -> None:
        with Mimic(exact=True, faults=("crash",)) as mimic:
            result = audit(mimic.url, SHORT)
            asked = len(mimic.requests)
        self.assertEqual(result.exit_code, 1)
        self.assertLess(asked, 12)
        self.assertIn("had no answer", result.notes[-1])

    def test_a_refused_request_is_recorded_and_not_judged(self) -> None:
        with Mimic(exact=True, grammar=False) as mimic:
            result = audit(mimic.url, SHORT)
            auditor = Auditor(Server(mimic.url), SHORT)
            run = next(auditor.both("forced", "x", auditor.body("A", 4, grammar='root ::= "x"')))
        self.assertEqual(result.exit_code, 0)
        self.assertEqual(run.refused, "status 501: no grammar here")
        self.assertEqual(run.findings, [])


class Wire(unittest.TestCase):
    def ask(self, url: str, timeout: float = 5.0, **more: Any) -> Any:
        return ask(Server(url, timeout=timeout), {"prompt": "A", "n_predict": 2, "stream": True, **more})

    def texts(self, answer: Answer) -> str:
        return "; ".join(finding.text for finding in answer.findings)

    def test_silence_ends(self) -> None:
        with raw_server(b"", b"x", pause=5.0) as url:
            began = time.monotonic()
            with self.assertRaisesRegex(Lost, "nothing came for 0.2 s"):
                self.ask(url, timeout=0.2)
            self.assertLess(time.monotonic() - began, 3)
        with raw_server(HEAD + b'data: {"content"', b"x", pause=5.0) as url:
            answer = self.ask(url, timeout=0.2)[0]
            self.assertIn("the stream broke off: nothing came for 0.2 s", self.texts(answer))

    def test_a_server_that_only_pings_is_left(self) -> None:
        with raw_server(HEAD, *[b":\n\n"] * 300, pause=0.02) as url:
            answer = self.ask(url, timeout=0.05)[0]
        self.assertIn("no end after 0.5 s", self.texts(answer))

    def test_a_connection_that_closes_is_seen_in_every_framing(self) -> None:
        event = b'data: {"content":"a","tokens":[97],"stop":false,"tokens_predicted":1}\n\n'
        chunked = HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        for head, body in (
            (HEAD, event),
            (HEAD, event[:-1]),
            (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 9999\r\n\r\n"), event),
            (chunked, b"%x\r\n%s\r\n" % (len(event), event)),
            (chunked, b"%x\r\n%s" % (len(event), event[:20])),
            (chunked, b"zz\r\n"),
        ):
            with raw_server(head + body) as url:
                answer = self.ask(url)[0]
                self.assertFalse(answer.ended)
                self.assertTrue({"I7"} & {finding.invariant for finding in answer.findings}, body)
                if b"Content-Length" in head:
                    self.assertIn("bytes before the end", self.texts(answer))

    def test_not_http_and_no_answer(self) -> None:
        for raw in (b"hello\r\n\r\n", b"", b"HTTP/1.1 abc\r\n\r\n"):
            with raw_server(raw) as url, self.assertRaises(Lost):
                self.ask(url)

    def test_an_error_before_the_stream_is_a_refusal(self) -> None:
        body = b'{"error":{"code":400,"message":"prompt is 5"}}'
        with raw_server(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)) as url:
            self.assertEqual(self.ask(url), Refusal(400, "prompt is 5"))

    def test_json_in_place_of_a_stream(self) -> None:
        body = b'{"content":"","tokens":[],"stop":true,"tokens_predicted":0}'
        with raw_server(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + body) as url:
            self.assertIn("a stream was asked for", self.texts(self.ask(url)[0]))

    def test_waiting_for_a_full_server(self) -> None:
        self.assertEqual(
            [pause(text, 9.0) for text in ("0", "3", "100", "", "soon", "-1")], [0, 3, 9, 1, 1, 1]
        )


def exchanged(
    data: bytes, stops: Sequence[str], limit: int, exact: bool = True
) -> tuple[Answer, Answer, Request]:
    """Stream and whole answer of a byte script, as an exact server sends them, and what was asked."""
    mimic = SimpleNamespace(exact=exact, faults=(), token=lambda piece: piece[0])
    body = {"n_predict": limit, "stop": list(stops), "prompt": "A"}
    output = Output(mimic, body, [bytes((byte,)) for byte in data])
    events = [*(output.exact() if exact else output.held()), output.final()]
    whole = {**output.final(), "content": output.text, "tokens": output.ids}
    answers = []
    for messages in (events, [whole]):
        raw = b"".join(f"data: {json.dumps(message)}\n\n".encode() for message in messages)
        answer = Answer()
        read_stream("text/event-stream; charset=utf-8", [raw], {0: answer}, 0.0)
        rebuild(answer, len(answers) == 0)
        answers.append(answer)
    return answers[0], answers[1], Request(limit, tuple(stops), None, bytes_vocabulary=True)


BYTES = st.lists(
    st.sampled_from(
        [0, 10, 65, 83, 84, 0x80, 0x8A, 0x98, 0x9F, 0xA0, 0xC3, 0xE2, 0xED, 0xEA, 0xF0, 0xF4, 0xFF]
    ),
    max_size=12,
).map(bytes)
STOPS = st.lists(st.sampled_from(["A", "ST", "SAT", "é", "\n", "\x00A", "😊"]), max_size=2, unique=True)


class Judgement(unittest.TestCase):
    """No exact server is accused, and any loss from its stream is found."""

    @settings(max_examples=120, deadline=None)
    @given(BYTES, STOPS, st.integers(0, 14))
    def test_an_exact_answer_is_never_accused(self, data: bytes, stops: list[str], limit: int) -> None:
        stream, whole, request = exchanged(data, stops, limit)
        found = [*check(stream, request, True), *check(whole, request, False), *compare(stream, whole)]
        self.assertEqual(found, [])
        self.assertTrue(counted(stream, whole))

    @settings(max_examples=120, deadline=None)
    @given(BYTES, STOPS, st.integers(1, 14), st.data())
    def test_any_change_to_the_ids_of_a_stream_is_found(
        self, data: bytes, stops: list[str], limit: int, draw: st.DataObject
    ) -> None:
        stream, whole, request = exchanged(data, stops, limit)
        ids = list(stream.ids)
        place = draw.draw(st.integers(0, len(ids) - 1))
        kind = draw.draw(st.sampled_from(["drop", "double", "swap", "change"]))
        if kind == "drop":
            del ids[place]
        elif kind == "double":
            ids.insert(place, ids[place])
        elif kind == "swap":
            other = draw.draw(st.integers(0, len(ids) - 1))
            ids[place], ids[other] = ids[other], ids[place]
        else:
            ids[place] = draw.draw(st.integers(0, 255))
        changed = tuple(ids) != stream.ids
        stream.ids = tuple(ids)
        found = [*check(stream, request, True), *compare(stream, whole)]
        self.assertEqual(any(finding.broken for finding in found), changed)

    @settings(max_examples=150, deadline=None)
    @given(
        st.sampled_from([FACES.encode(), b"one STOP", b"\xff\x00"]),
        st.lists(st.tuples(st.integers(0, 999), st.integers(0, 3), st.binary(max_size=3)), max_size=4),
    )
    def test_no_bytes_of_a_server_raise_an_error_of_ours(self, data: bytes, edits: list[Any]) -> None:
        mimic = SimpleNamespace(exact=True, faults=(), token=lambda piece: piece[0])
        pieces = [bytes((byte,)) for byte in data]
        output = Output(mimic, {"n_predict": 20, "stop": ["STOP"], "prompt": "A"}, pieces)
        raw = b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in [*output.exact(), output.final()])
        for place, removed, added in edits:
            place %= len(raw) + 1
            raw = raw[:place] + added + raw[place + removed :]
        answer = Answer()
        read_stream("text/event-stream; charset=utf-8", [raw], {0: answer}, 0.0)
        rebuild(answer, True)
        for request in (Request(20, ("STOP",), data, True), Request(20, (), data), Request(20)):
            check(answer, request, True)
        json.dumps(answer.to_dict())

    def test_a_server_like_llama_server_is_accused_where_characters_span_tokens(self) -> None:
        for data, lost in ((b"AB", False), ("é".encode(), True), (b"\xf0ABC", True), (b"\xff", False)):
            stream, whole, request = exchanged(data, [], 20, exact=False)
            found = [*check(stream, request, True), *compare(stream, whole)]
            self.assertEqual(any(finding.invariant == "I1" for finding in found), lost, data)

    def test_stop_strings_and_limits(self) -> None:
        def broken(answer: Answer, request: Request) -> set[str]:
            return {finding.invariant for finding in check(answer, request, False) if finding.broken}

        def ended(text: str, ids: list[int], reason: str, word: str = "") -> Answer:
            answer = Answer(ids=tuple(ids), text=text, predicted=len(ids), timed=len(ids), ended=True)
            answer.stop_type, answer.stopping_word = reason, word
            return answer

        known = Request(3, ("B",), None, True)
        self.assertEqual(broken(ended("A", [65, 66], "word", "B"), known), set())
        self.assertEqual(broken(ended("AB", [65, 66], "word", "B"), known), {"I7", "I3"})
        self.assertEqual(broken(ended("A", [65, 66], "word", "C"), known), {"I7"})
        self.assertEqual(broken(ended("ABC", [65, 66, 67], "limit"), known), {"I7"})
        self.assertEqual(broken(ended("AA", [65, 65], "limit"), known), {"I7"})
        self.assertEqual(broken(ended("AAAA", [65] * 4, "limit"), known), {"I7"})
        self.assertEqual(broken(ended("AA", [65, 65], "eos"), known), {"I7"})
        self.assertEqual(broken(ended("", [], "none"), known), {"I7"})
        self.assertEqual(broken(ended("", [], "none"), Request(3, empty_prompt=True)), set())
        truncated = ended("AA", [65, 65], "limit")
        truncated.truncated = True
        self.assertEqual(broken(truncated, known), set())

    def test_a_forced_text_is_known_whatever_the_vocabulary(self) -> None:
        def broken(text: str, reason: str, word: str = "", stop: tuple[str, ...] = ()) -> set[str]:
            answer = Answer(ids=(1,), text=text, predicted=1, timed=1, ended=True, stop_type=reason)
            answer.stopping_word = word
            found = check(answer, Request(1, stop, "a😊b".encode()), False)
            return {finding.invariant for finding in found if finding.broken}

        self.assertEqual(broken("a😊b", "eos"), set())
        self.assertEqual(broken("a😊", "eos"), {"I3"})
        self.assertEqual(broken("a\ufffd", "limit"), set())
        self.assertEqual(broken("a", "limit"), set())
        self.assertEqual(broken("b", "limit"), {"I3"})
        self.assertEqual(broken("a\ufffdb", "limit"), {"I3"})
        self.assertEqual(broken("a", "word", "😊", ("😊",)), set())
        self.assertEqual(broken("", "word", "😊", ("😊",)), {"I3"})
        self.assertEqual(broken("a", "eos", "", ("😊",)), {"I7"})


class TheCommand(unittest.TestCase):
    def refused(self, *words: str) -> str:
        code, out, error = command("audit", *words)
        self.assertEqual((code, out), (2, ""), error)
        self.assertEqual(len(error.strip().splitlines()), 1, error)
        return error

    def test_an_unusable_url_is_told_on_one_line(self) -> None:
        for url in (
            "",
            "127.0.0.1:8080",
            "ftp://h",
            "http://",
            "http://h:99999",
            "http://u:p@h",
            "http://h/?a=b",
            "http://h/a b",
            "http://[::1",
            "http://안녕",
        ):
            with self.subTest(url):
                self.assertIn("expected", self.refused(url))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.assertIn("refused", self.refused(f"http://127.0.0.1:{port}"))
        self.assertIn("http://h.invalid", self.refused("http://h.invalid:1"))

    def test_an_unusable_answer_is_told_on_one_line(self) -> None:
        for head, body in (
            (b"200 OK", b"<html>hello\n</html>"),
            (b"200 OK", b"[]"),
            (b"200 OK", b"null"),
            (b"200 OK", b'{"content":"","tokens":[],"stop":true,"tokens_predicted":0}'),
            (b"200 OK", b'{"choices":[{"text":"a"}]}'),
            (b"404 Not Found", b'{"error":{"message":"File\\nNot Found"}}'),
            (b"503 Unavailable", b"Loading"),
            (b"301 Moved", b""),
        ):
            raw = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
            with self.subTest(body), raw_server(raw) as url:
                self.assertIn("/completion: ", self.refused(url))

    def test_options_are_checked_before_anything_is_sent(self) -> None:
        with tempfile.TemporaryDirectory() as folder, Mimic(exact=True) as mimic:
            there = Path(folder) / "there.json"
            there.write_text("kept")
            for words, expected in (
                (("--chain", "-1"), "chain is -1"),
                (("--tokens", "0"), "tokens is 0"),
                (("--seed", str(2**32)), "32 bits"),
                (("--timeout", "0"), "timeout is 0"),
                (("--api-key", ""), "api_key"),
                (("--api-key", "a\nb"), "api_key"),
                (("--api-key", "a", "--api-key-file", str(there)), "both given"),
                (("--api-key-file", str(there) + "x"), "there.jsonx"),
                (("--json", str(there)), "exists already"),
                (("--json", str(there / "x")), "folder does not exist"),
            ):
                self.assertIn(expected, self.refused(mimic.url, *words))
            self.assertEqual((mimic.requests, there.read_text()), ([], "kept"))

    def test_a_key_is_sent_and_never_recorded(self) -> None:
        with tempfile.TemporaryDirectory() as folder, Mimic(exact=True, key="s3cret") as mimic:
            self.assertIn("give its key with --api-key", self.refused(mimic.url))
            record = Path(folder) / "record.json"
            words = ("--api-key", "s3cret", "--json", str(record), "--prompts", "A", "--chain", "0")
            code, out, error = command("audit", mimic.url, *words)
            self.assertEqual(code, 0, error)
            file = Path(folder) / "key"
            file.write_text("s3cret\n")
            words = ("--api-key-file", str(file), "--prompts", "A", "--chain", "0")
            self.assertEqual(command("audit", mimic.url, *words)[0], 0)
            self.assertNotIn("s3cret", out + error + record.read_text("ascii"))
        self.assertRegex(out, r"verdict +exact: \d+ runs;")

    def test_the_record_says_everything(self) -> None:
        with tempfile.TemporaryDirectory() as folder, Mimic(exact=True) as mimic:
            record = Path(folder) / "record.json"
            command("audit", mimic.url, "--json", str(record), "--prompts", "A", "--chain", "1")
            found = json.loads(record.read_text("ascii"))
        self.assertEqual(found["verdict"]["exact"], True)
        self.assertEqual(found["verdict"]["runs"], len(found["runs"]))
        run = next(run for run in found["runs"] if run["case"] == FACES)
        self.assertEqual(run["stream"]["ids"], [*FACES.encode(), 256])
        self.assertEqual(run["stream"]["events"][3], ["😊", [138], 4])
        self.assertEqual(run["request"]["prompt"], "A")

    def test_every_kind_of_text_is_shown_on_one_line(self) -> None:
        with Mimic(exact=True) as mimic:
            code, out, _ = command("audit", mimic.url, "--prompts", "a\nb\x1b[31m", "--chain", "0")
        self.assertEqual(code, 0)
        self.assertIn(r"a\nb\x1b[31m", out)
        self.assertIn(r"mimic \x1b[1m", out)
        self.assertNotIn("\x1b", out)

    def test_neither_torch_nor_a_model_is_loaded(self) -> None:
        code = "import sys, tinylm.serve.audit.report; print('torch' in sys.modules)"
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        self.assertEqual(ran.stdout.strip(), "False", ran.stderr)


class Averages(unittest.TestCase):
    def test_nothing_is_averaged_over_nothing(self) -> None:
        self.assertEqual(Audit("http://h", {}).averages(), {})
        empty = Audit("http://h", {}, [Run("free", "x", {}, refused="status 400: no")])
        self.assertIsNone(empty.averages()["free"]["ids_per_second"])
        self.assertEqual(empty.exit_code, 0)


if __name__ == "__main__":
    unittest.main()
