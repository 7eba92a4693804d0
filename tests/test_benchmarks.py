"""The arithmetic of the benchmarks, with made-up numbers: no test here looks at a clock."""

from __future__ import annotations

import copy
import importlib
import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from tests.stage_support import ROOT

FOLDER = ROOT / "benchmarks"

with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
    measuring: Any = importlib.import_module("measuring")
    report: Any = importlib.import_module("report")


def result(name: str = "checkpoint", **changes: Any) -> dict[str, Any]:
    """A whole result file, with made-up numbers."""
    comparison = {
        "question": "save | mini",
        "unit": "MB/s",
        "ours": "tinylm",
        "ours_value": 412.0,
        "peer": "plain",
        "peer_value": 500.0,
        "ratio": 0.824,
        "target": 0.7,
    }
    machine = {"processor": "abacus", "cores": 2, "threads": 2, "torch": "2.13", "gpu": None}
    made = {
        "format": 1,
        "benchmark": name,
        "version": report.version_of(name),
        "short": False,
        "date": "2026-11-30 08:00",
        "machine": machine,
        "load": {"before": 0.11, "after": 1.9},
        "comparisons": [comparison],
    }
    return {**made, **changes}


class TestMeasuring(unittest.TestCase):
    def test_variants_take_turns_backwards_in_odd_rounds_and_warm_up_does_not_count(self) -> None:
        calls: list[str] = []

        def variant(name: str) -> Any:
            def run() -> float:
                calls.append(name)
                return float(len(calls))

            return run

        found = measuring.alternate({name: variant(name) for name in "abc"}, rounds=2)
        self.assertEqual("".join(calls), "abccbaabc")
        self.assertEqual(found, {"a": [6.0, 7.0], "b": [5.0, 8.0], "c": [4.0, 9.0]})

    def test_a_ratio_is_the_median_of_rounds_not_the_ratio_of_medians(self) -> None:
        ours, theirs = [1.0, 10.0, 2.0], [2.0, 30.0, 8.0]
        self.assertEqual(measuring.ratio_of(theirs, ours), 3.0)
        self.assertEqual(measuring.median(theirs) / measuring.median(ours), 4.0)
        with self.assertRaises(ValueError):
            measuring.ratio_of([1.0], [1.0, 2.0])
        with self.assertRaises(ValueError):
            measuring.median([])

    def test_a_load_above_a_third_of_a_core_each_is_warned_of(self) -> None:
        self.assertIsNone(measuring.busy(0.6, 2))
        self.assertIsNone(measuring.busy(None, 2))
        self.assertIn("0.61 on 2 cores", measuring.busy(0.61, 2))

    def test_amounts_have_three_digits(self) -> None:
        shown = {
            0.0: "0",
            0.01234: "0.0123",
            1.0: "1.00",
            12.345: "12.3",
            999.5: "1,000",
            1234567: "1,234,567",
        }
        for value, text in shown.items():
            self.assertEqual(measuring.amount(value), text)
        self.assertEqual(measuring.quantity(None, "s"), "not reached")

    def test_a_session_writes_what_the_report_reads(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch("builtins.print"):
            path = Path(folder, "new", "checkpoint.json")
            version = report.version_of("checkpoint")
            session = measuring.Session("checkpoint", version, 1, {"rounds": 3}).begin()
            session.row(what="save", seconds=[1.0, 2.0])
            session.compare("save", "MB/s", "tinylm", 8.0, "plain", 10.0, 0.8, 0.7)
            session.end(path)
            found = report.read(path, "checkpoint", version)
        self.assertEqual(found["rows"], [{"what": "save", "seconds": [1.0, 2.0]}])
        self.assertTrue(session.comparisons[0].met)
        self.assertEqual(found["comparisons"][0]["ratio"], 0.8)

    def test_the_fastest_of_each_side_are_compared_round_by_round(self) -> None:
        session = measuring.Session("x", 1, 1, {})
        seconds = {"slow": [9.0, 9.0, 9.0], "ours": [1.0, 2.0, 4.0], "a": [3.0, 8.0, 4.0], "b": [5.0] * 3}
        session.compare_fastest("q", "tokens/s", 100, seconds, ["ours", "slow"], 1.3)
        session.compare_fastest("none of ours", "tokens/s", 100, {"a": [1.0]}, ["ours"])
        session.compare_fastest("no peer", "tokens/s", 100, {"ours": [1.0]}, ["ours"])
        (found,) = session.comparisons
        self.assertEqual((found.ours, found.ours_value), ("ours", 50.0))
        self.assertEqual((found.peer, found.peer_value), ("a", 25.0))
        self.assertEqual((found.ratio, found.met), (3.0, True))

    def test_values_that_json_has_not_are_not_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(ValueError):
            measuring.write(Path(folder, "x.json"), {"ratio": float("nan")})


class TestReport(unittest.TestCase):
    def refusal(self, content: object) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "checkpoint.json")
            if content is not None:
                path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
            with self.assertRaises(report.Refused) as caught:
                report.read(path, "checkpoint", 7)
        return str(caught.exception)

    def test_incomplete_and_stale_results_are_refused_with_the_command_that_makes_them(self) -> None:
        good = result(version=7)
        wrong = copy.deepcopy(good)
        wrong["comparisons"][0]["ratio"] = "0.8"
        less = copy.deepcopy(good)
        del less["comparisons"][0]["unit"]
        cases = {
            "is missing": None,
            "is not JSON": "{",
            "format 1": {**good, "format": 2},
            "is a result of 'memory'": {**good, "benchmark": "memory"},
            "a short form": {**good, "short": True},
            "as version 6": {**good, "version": 6},
            "compares nothing": {**good, "comparisons": []},
            "ratio of a comparison is '0.8'": wrong,
            "does not hold": less,
            "which machine": {**good, "machine": {}},
            "no load or date": {**good, "load": None},
        }
        for part, content in cases.items():
            with self.subTest(part):
                told = self.refusal(content)
                self.assertIn(part, told)
                self.assertIn(
                    "python benchmarks/checkpoint.py --json benchmarks/results/checkpoint.json", told
                )

    def test_the_table_by_hand(self) -> None:
        first, second = result(), result("memory", load={"before": 1.5, "after": 2.0})
        second["comparisons"][0] |= {"question": "time", "ratio": 1.239, "target": 1.3, "ours_value": None}
        text = report.table([first, second], ["decoding"])
        self.assertEqual(
            text,
            "Measured on abacus, 2 cores, 2 threads, torch 2.13. Above 1, tinylm is better.\n\n"
            "| question | tinylm | best peer | ratio | measured |\n|---|---|---|---|---|\n"
            "| save \\| mini | tinylm: 412 MB/s | plain: 500 MB/s | 0.82 | 2026-11-30, load 0.11 |\n"
            "| time | tinylm: not reached | plain: 500 MB/s | **1.23** (target 1.3) "
            "| 2026-11-30, load 1.50 (busy) |\n\n"
            "Not measured here: decoding.",
        )

    def test_two_machines_are_told_apart(self) -> None:
        other = result("memory")
        other["machine"] = {**other["machine"], "gpu": "H200"}
        text = report.table([result(), other])
        self.assertIn("(1) abacus, 2 cores, 2 threads, torch 2.13; (2) abacus, H200, 2 cores", text)
        self.assertIn("load 0.11, (2) |", text)

    def test_a_ratio_is_not_rounded_up_to_its_target(self) -> None:
        self.assertEqual(report.ratio_cell(0.9999, None), "0.99")
        self.assertEqual(report.ratio_cell(1.2999, 1.3), "**1.29** (target 1.3)")
        self.assertEqual(report.ratio_cell(1.3, 1.3), "**1.30**")
        self.assertEqual(report.ratio_cell(0.29, 0.7), "0.29 (target 0.7)")
        self.assertEqual(report.ratio_cell(123.4, None), "**123**")

    def test_only_what_stands_between_the_markers_changes(self) -> None:
        page = "a\n<!--benchmarks-->\nold\n<!--/benchmarks-->\nb\r\n"
        changed = report.between_markers(page, "new")
        self.assertEqual(changed, "a\n<!--benchmarks-->\nnew\n<!--/benchmarks-->\nb\r\n")
        self.assertEqual(report.between_markers(changed, "new"), changed)
        for bad in ("", page * 2, "<!--/benchmarks--><!--benchmarks-->"):
            with self.assertRaises(report.Refused):
                report.between_markers(bad, "new")

    def test_a_folder_without_results_is_refused_also_where_some_may_be_missing(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for allowed in (False, True):
                with self.assertRaises(report.Refused):
                    report.collect(Path(folder), allowed)
            Path(folder, "checkpoint.json").write_text(json.dumps(result()), encoding="utf-8")
            found, missing = report.collect(Path(folder), True)
        self.assertEqual([each["benchmark"] for each in found], ["checkpoint"])
        self.assertEqual({*missing, "checkpoint"}, set(report.COMMANDS))

    def test_the_readme_shows_what_the_committed_results_say(self) -> None:
        if not measuring.RESULTS.is_dir():
            self.skipTest("no results are committed")
        page = (ROOT / "README.md").read_text(encoding="utf-8")
        content = report.table(*report.collect(measuring.RESULTS, True))
        self.assertEqual(report.between_markers(page, content), page, "python benchmarks/report.py --readme")


if __name__ == "__main__":
    unittest.main()
