"""The shape of a stage: aligned tables, pages whose numbers are compared, and PASS only when all was said."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import math
import multiprocessing
import re
import signal
import subprocess
import sys
import textwrap
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import torch
from rich.cells import cell_len

import tinylm
from tinylm.walkthrough import (
    Lab,
    Stage,
    Value,
    check_page,
    display_width,
    figures,
    killed,
    render_table,
    workspace,
)
from tinylm.walkthrough.texts import character_names, split_names

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).resolve().parents[1]
STAGE = Stage(1, "title", "Why?", "Because.", "look", "And then?")


def say_everything(lab: Lab) -> None:
    lab.table(["a"], [[lab.value("one", 1)]])
    lab.otherwise("it did not")
    lab.costs("nothing")
    lab.proves("this", does_not_prove="that")
    lab.check("one", True)


def tell_the_tree(say: Callable[[int], None]) -> None:
    say(int(Path(tinylm.__file__).parents[1] == ROOT))
    time.sleep(60)


def take_cosines(say: Callable[[int], None]) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(30)  # a process that waits for threads which are not there is ended
    say(int(torch.ones(100_000, dtype=torch.float64).cos().sum()))
    time.sleep(60)


def run(experiment: Callable[[Lab], None], *arguments: str) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = STAGE.main(experiment, arguments)
    return code, printed.getvalue()


class Tables(unittest.TestCase):
    def test_a_table_worked_out_by_hand(self) -> None:
        self.assertEqual(
            render_table(["name", "n", "x"], [["a", 1, 0.5], ["bcdef", 12_345, 1234.5678]]),
            textwrap.dedent(
                """\
                ┌───────┬────────┬───────────┐
                │ name  │ n      │ x         │
                ├───────┼────────┼───────────┤
                │ a     │      1 │     0.500 │
                │ bcdef │ 12,345 │ 1,234.568 │
                └───────┴────────┴───────────┘"""
            ),
        )

    def test_columns_with_anything_but_numbers_are_aligned_to_the_left(self) -> None:
        table = render_table(["x", "y"], [[1, True], ["none", False]])
        self.assertIn("│ 1    │ yes │", table)
        self.assertIn("│ none │ no  │", table)

    def test_without_rows_there_is_a_header(self) -> None:
        self.assertEqual(render_table(["a"], []), "┌───┐\n│ a │\n├───┤\n└───┘")

    def test_a_row_of_another_length_is_an_error(self) -> None:
        with self.assertRaises(ValueError):
            render_table(["a", "b"], [[1]])

    def test_wide_and_combining_characters_keep_every_line_equally_wide(self) -> None:
        words = [
            "안녕",
            "שלום",
            "e\u0301",
            "🙂",
            "ﾊﾝｶｸ",
            "全角",
            "नमस्ते",
            "a\u200bb",
            "\u1112\u1161\u11ab",
            "é",
        ]
        lines = render_table(["text", "of"], [[word, 1] for word in words]).splitlines()
        self.assertEqual({display_width(line) for line in lines}, {display_width(lines[0])})
        self.assertEqual(len({display_width(line.rpartition("│")[0]) for line in lines[3:-1]}), 1)

    def test_widths_agree_with_an_outside_library(self) -> None:
        for text in (
            "abc",
            "안녕",
            "e\u0301",
            "全角",
            "ﾊﾝｶｸ",
            "\u1112\u1161\u11ab",
            "שלום",
            "│─┌",
            "Ａ",
            "日本語 text",
            "",
        ):
            self.assertEqual(display_width(text), cell_len(text), text)
        self.assertEqual(
            [display_width(text) for text in ("e\u0301", "안녕", "🙂", "a\u200bb")], [1, 4, 2, 2]
        )


class Pages(unittest.TestCase):
    def problems(self, text: str, **values: float | Value) -> list[str]:
        known = {name: v if isinstance(v, Value) else Value(v) for name, v in values.items()}
        return check_page(text, known)[0]

    def test_exact_numbers(self) -> None:
        self.assertEqual(self.problems("takes 7<!--=n--> tokens", n=7), [])
        self.assertEqual(self.problems("takes 8,224<!--=n-->", n=8224), [])
        self.assertEqual(self.problems("-3<!--=n-->", n=-3), [])
        self.assertEqual(self.problems("takes 8<!--=n-->", n=7), ["n is quoted as 8, this run gives 7"])
        self.assertEqual(len(self.problems("8,225<!--=n-->", n=8224)), 1)
        self.assertEqual(len(self.problems("7<!--=n-->", n=7.004)), 1)

    def test_a_number_with_digits_agrees_within_half_a_unit_of_the_last(self) -> None:
        self.assertEqual(self.problems("8.006<!--=n-->", n=8.00562), [])
        self.assertEqual(self.problems("8.006<!--=n-->", n=8.0065), [])
        self.assertEqual(len(self.problems("8.006<!--=n-->", n=8.0066)), 1)
        self.assertEqual(len(self.problems("8.006<!--=n-->", n=8.0054)), 1)
        self.assertEqual(self.problems("8.0<!--=n-->", n=8.04), [])

    def test_a_stated_tolerance_widens_it(self) -> None:
        self.assertEqual(self.problems("2.40<!--=n-->", n=Value(2.44, 0.05)), [])
        self.assertEqual(self.problems("2.40<!--=n-->", n=Value(2.45, 0.05)), [])
        self.assertEqual(len(self.problems("2.40<!--=n-->", n=Value(2.46, 0.05))), 1)
        self.assertEqual(self.problems("100<!--=n-->", n=Value(103, 5)), [])

    def test_units_and_emphasis_may_stand_between_number_and_marker(self) -> None:
        for text in ("0.5 %<!--=n-->", "**0.5**<!--=n-->", "`0.5`<!--=n-->", "0.5 bits per byte<!--=n-->"):
            self.assertEqual(check_page(text, {"n": Value(0.5)}), ([], 1), text)

    def test_the_nearest_number_is_the_one_that_is_marked(self) -> None:
        self.assertEqual(self.problems("between 3 and 4<!--=n-->", n=4), [])
        self.assertEqual(len(self.problems("between 3 and 4<!--=n-->", n=3)), 1)
        self.assertEqual(self.problems("from 1<!--=a--> to 2<!--=b-->", a=1, b=2), [])

    def test_a_marker_that_the_stage_does_not_measure(self) -> None:
        self.assertEqual(self.problems("7<!--=m-->", n=7), ["marks 'm', which the stage does not measure"])

    def test_a_page_without_markers(self) -> None:
        self.assertEqual(self.problems("takes 7 tokens", n=7), ["marks no number"])

    def test_a_marker_without_a_number(self) -> None:
        for text in ("seven<!--=n-->", "7.<!--=n-->", "7<!--=n m-->", "7 (of 8)<!--=n-->"):
            problems = self.problems("1<!--=one--> " + text, n=7, one=1)
            self.assertEqual(problems, ["1 markers do not follow a number"], text)

    def test_what_is_not_a_number_never_agrees(self) -> None:
        for number in (math.nan, math.inf):
            self.assertEqual(len(self.problems("7<!--=n-->", n=number)), 1)

    def test_how_many_numbers_were_compared(self) -> None:
        self.assertEqual(check_page("1<!--=a--> 2<!--=b--> 3<!--=c-->", {"a": Value(1)})[1], 3)


class Running(unittest.TestCase):
    def test_a_stage_that_said_everything_passes(self) -> None:
        code, printed = run(say_everything)
        self.assertEqual((code, printed.splitlines()[-1]), (0, "sanity check: PASS"))
        self.assertEqual(printed.splitlines()[0], "stage 01 · title")
        order = [line.split("  ")[0] for line in printed.splitlines() if line[0] not in " "]
        self.assertEqual(
            order[1:-1],
            ["question", "hypothesis", "experiment", "otherwise", "costs", "proves", "not proved", "next"],
        )

    def test_the_hypothesis_is_printed_before_the_experiment_runs(self) -> None:
        def experiment(lab: Lab) -> None:
            print("measured")
            say_everything(lab)

        _, printed = run(experiment)
        self.assertLess(printed.index("Because."), printed.index("measured"))

    def test_a_check_that_fails_is_named_and_fails_the_stage(self) -> None:
        def experiment(lab: Lab) -> None:
            say_everything(lab)
            lab.check("two and two", False)

        code, printed = run(experiment)
        self.assertEqual((code, printed.splitlines()[-1]), (1, "sanity check: FAIL"))
        self.assertIn("failed      two and two", printed)

    def test_a_part_that_was_not_said_fails_the_stage(self) -> None:
        parts = {
            "table": lambda lab: lab.table(["a"], [[1]]),
            "otherwise": lambda lab: lab.otherwise("x"),
            "costs": lambda lab: lab.costs("x"),
            "proves": lambda lab: lab.proves("x", does_not_prove="y"),
            "check": lambda lab: lab.check("x", True),
        }
        for left_out in parts:

            def experiment(lab: Lab, left_out: str = left_out) -> None:
                for name, say in parts.items():
                    if name != left_out:
                        say(lab)

            code, printed = run(experiment)
            self.assertEqual((code, printed.splitlines()[-1]), (1, "sanity check: FAIL"))
            self.assertIn(f"said nothing under '{left_out}'", printed)

    def test_options_reach_the_experiment(self) -> None:
        seen = []

        def experiment(lab: Lab) -> None:
            seen.append((lab.quick, lab.device))
            say_everything(lab)

        run(experiment)
        run(experiment, "--quick", "--device", "cuda")
        self.assertEqual(seen, [(False, "cpu"), (True, "cuda")])

    def test_a_page_is_compared_with_the_run(self) -> None:
        with workspace() as folder:
            page = folder / "stage.md"
            for text, expected in (("is 1<!--=one-->", 0), ("is 2<!--=one-->", 1), ("no number", 1)):
                page.write_text(text, encoding="utf-8")
                code, printed = run(say_everything, "--check-page", str(page))
                self.assertEqual(code, expected, printed)
                self.assertEqual(printed.splitlines()[-1], f"sanity check: {'FAIL' if expected else 'PASS'}")
            self.assertIn("stage.md: marks no number", printed)

    def test_an_unknown_option_is_refused(self) -> None:
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as caught:
            run(say_everything, "--fast")
        self.assertEqual(caught.exception.code, 2)

    def test_a_figure_is_drawn_where_it_was_asked_for_and_skipped_without_matplotlib(self) -> None:
        drawn = []

        def draw() -> bytes:
            drawn.append(1)
            return b"<svg/>"

        def experiment(lab: Lab) -> None:
            say_everything(lab)
            lab.figure(draw)

        with workspace() as folder:
            path = folder / "figure.svg"
            with mock.patch.dict(sys.modules, {"matplotlib": None}):
                code, printed = run(experiment, "--figure", str(path))
            self.assertEqual(code, 0)
            self.assertIn("figure      skipped: matplotlib is not installed\n", printed)
            self.assertIn("figure      on the page;", run(experiment)[1])
            self.assertEqual((drawn, path.exists()), ([], False))
            if importlib.util.find_spec("matplotlib") is None:
                self.skipTest("matplotlib is not installed")
            self.assertEqual(run(experiment, "--figure", str(path))[0], 0)
            self.assertEqual(path.read_bytes(), b"<svg/>")

    def test_several_pages_are_compared_each_by_its_name(self) -> None:
        with workspace() as folder:
            right, wrong = folder / "right.md", folder / "wrong.md"
            right.write_text("1<!--=one-->", encoding="utf-8")
            wrong.write_text("2<!--=one-->", encoding="utf-8")
            code, printed = run(say_everything, "--check-page", str(right), str(wrong))
            self.assertEqual(code, 1)
            self.assertIn("1 numbers of right.md compared with this run, 0 differ", printed)
            self.assertIn("wrong.md: one is quoted as 2", " ".join(printed.split()))

    def test_a_stage_is_skipped_in_one_line_without_the_packages_that_it_needs(self) -> None:
        stage = dataclasses.replace(STAGE, extra="gguf", needs=("sys", "no_such_package"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(stage.main(say_everything, []), 0)
        lines = printed.getvalue().splitlines()
        self.assertIn("no_such_package is not installed: pip install -e '.[gguf]'", lines[-2])
        self.assertEqual(lines[-1], "sanity check: skipped")
        self.assertEqual(dataclasses.replace(stage, needs=("sys",)).main(say_everything, ["--quick"]), 0)

    def test_output_is_utf8_whatever_the_locale_says(self) -> None:
        program = """
            from tinylm.walkthrough import Stage
            import sys
            from tests.test_walkthrough import say_everything
            sys.exit(Stage(1, "안녕 🙂", "?", "?", "?", "?").main(say_everything, []))
        """
        ran = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=ROOT,
            env={"PYTHONIOENCODING": "cp1252", "PATH": "", "SYSTEMROOT": ""},
            capture_output=True,
            timeout=60,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr.decode("utf-8", "replace"))
        self.assertIn("안녕 🙂", ran.stdout.decode("utf-8"))

    def test_processes_that_a_stage_starts_import_the_tree_of_the_stage(self) -> None:
        for how in ("spawn", "fork") if sys.platform == "linux" else ("spawn",):
            context = multiprocessing.get_context(how)
            with workspace() as folder, mock.patch("tinylm.walkthrough._processes", return_value=context):
                self.assertTrue(killed(tell_the_tree, place=folder, at=1), how)

    def test_a_process_computes_though_the_one_that_started_it_has_threads(self) -> None:
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        torch.set_num_threads(2)
        torch.ones(100_000, dtype=torch.float64).cos()
        with workspace() as folder:
            self.assertTrue(killed(take_cosines, place=folder, at=54_030))

    def test_the_workspace_is_removed(self) -> None:
        with workspace() as folder:
            (folder / "a").write_bytes(b"")
        self.assertFalse(folder.exists())
        with self.assertRaises(ValueError), workspace() as folder:
            raise ValueError
        self.assertFalse(folder.exists())


@unittest.skipIf(importlib.util.find_spec("matplotlib") is None, "matplotlib is not installed")
class Figures(unittest.TestCase):
    def drawn(self) -> dict[str, bytes]:
        maps = {"one": [[0.0, 1.0], [2.0, 0.0]], "two": [[1.0, 1.0], [1.0, 3.0]]}
        return {
            "lines": figures.lines({"안 & <b>": [(1, 2.0), (10, 1.0)]}, x="steps", y="bits", log="x"),
            "nought": figures.lines({"a": [(1, 0.0), (2, 0.03), (3, 20.0)]}, x="x", y="y", log="y"),
            "ticks": figures.lines({"a": [(0, 2.0), (1, 1.0)]}, x="x", y="y", ticks=["\n", "all of " * 9]),
            "grid": figures.grid({"cut off": [False, True]}, ["alone", "whole"], yes="loads", no="refused"),
            "levels": figures.lines({"a": [(1, 2.0), (2, 1.0)]}, x="x", y="y", levels={"limit": 1.5}),
            "bars": figures.bars([("short", 1, 3, "error"), ("whole", 3, 3, "5.1")], x="steps"),
            "maps": figures.maps(maps, x="place", y="changed", scale="moved"),
            "stacks": figures.stacks(
                {"up": [["old"], ["new", "old"]], "down": [["old"]]},
                ("old", "new", "none"),
                x="text",
                y="copies",
            ),
            "decade": figures.lines({"a": [(1, 6.0), (2, 0.7)]}, x="x", y="y", log="y", loose=["a"]),
        }

    def test_a_figure_is_svg_whose_text_stays_text_and_whose_ink_is_the_reader_s(self) -> None:
        said = {
            "lines": ("안 & <b>", "steps", "bits", "10"),
            "nought": ("0", "0.01", "10"),
            "ticks": ("all of all of all of all of all of",),
            "grid": ("cut off", "alone", "whole", "loads", "refused"),
            "levels": ("limit",),
            "bars": ("short", "error", "5.1"),
            "maps": ("one", "two", "place", "changed", "moved"),
            "stacks": ("up", "down", "old", "new", "text", "copies"),
            "decade": ("1", "2", "4"),
        }
        for name, data in self.drawn().items():
            with self.subTest(name):
                text = data.decode("utf-8")
                words = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
                self.assertLessEqual(set(said[name]), set(words))
                self.assertEqual(re.findall(r"(?:fill|stroke|color): ?(?:#000000|#010203|black)", text), [])
                self.assertIn("currentColor", text)

    def test_a_grid_fills_what_is_true(self) -> None:
        def marks(cells: list[bool]) -> tuple[int, int]:
            """Filled and empty marks, without the two of the legend."""
            text = figures.grid({"a": cells}, ["1", "2", "3"], yes="y", no="n").decode("utf-8")
            filled, empty = (text.count(f"fill: {ink}; stroke: #") for ink in (figures.COLORS[1], "none"))
            return filled - 1, empty - 1

        self.assertEqual(marks([True, False, True]), (2, 1))
        self.assertEqual(marks([False, False, False]), (0, 3))

    def test_the_same_numbers_make_the_same_bytes(self) -> None:
        self.assertEqual(self.drawn(), self.drawn())

    def test_a_cell_is_drawn_in_the_colour_of_its_kind(self) -> None:
        columns = {"panel": [["old"], ["new", "old"], ["new", "new", "new"]]}
        drawn = figures.stacks(columns, ("old", "new"), x="text", y="copies").decode("utf-8")
        paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: (#\w+)', drawn)
        cells = {color: path.count("M ") for path, color in reversed(paths)}  # panels, then legend
        self.assertEqual([cells[color] for color in figures.COLORS[:2]], [2, 4])

    def test_loose_points_are_not_joined(self) -> None:
        series = {"a": [(0.0, 1.0), (1.0, 3.0)], "b": [(0.0, 2.0), (1.0, 2.0)]}
        for loose, joined in (((), 2), (("a",), 1), (("a", "b"), 0)):
            drawn = figures.lines(series, x="x", y="y", loose=loose).decode("utf-8")
            curves = re.findall(r'<path d="[^"]*" clip-path[^>]*style="fill: none; stroke: (#\w+)', drawn)
            self.assertEqual(sum(color in figures.COLORS for color in curves), joined)


class Texts(unittest.TestCase):
    def test_every_tenth_name_is_held_out(self) -> None:
        names = character_names(25)
        self.assertEqual(names[0], b" \tSPACE")
        train, held_out = split_names(25)
        self.assertEqual([bytes(held_out.document(i).astype(np.uint8)) for i in range(3)], names[::10])
        self.assertEqual(train.bytes + held_out.bytes, sum(map(len, names)))
        self.assertEqual((train.documents, held_out.documents), (22, 3))
