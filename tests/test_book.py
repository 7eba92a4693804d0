"""Running all stages, and the book: whole, self-contained, and honest about what failed."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import os
import re
import shutil
import textwrap
import unittest
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

from tests.stage_support import ROOT, STAGES, load_stage
from tinylm.walkthrough import MARKER, runs, workspace
from tinylm.walkthrough.runs import BOOK_PARTS, HOW_TO_GET_THE_BOOK, Ran, find_scripts, pages_of, run_stage

ABSENT = [part for part in BOOK_PARTS if importlib.util.find_spec(part) is None]
CAN_BIND = unittest.skipIf(ABSENT, f"the book's renderer is not installed: {', '.join(ABSENT)}")
VOID = {"meta", "link", "img", "br", "hr", "input"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

STAGE = """
import sys
sys.stdout.reconfigure(encoding="utf-8")
print("안녕 <b> & done")
print("sanity check: {verdict}")
print("oops", file=sys.stderr)
sys.exit({code})
"""
HONEST = """
import sys
from tinylm.walkthrough import Stage
STAGE = Stage({number}, "{title}", "Why?", "Because.", "look", "And then?")
def experiment(lab):
    lab.table(["a"], [["한글"]])
    lab.value("one", 1)
    lab.otherwise("no"); lab.costs("no"); lab.proves("this", does_not_prove="that"); lab.check("one", True)
    lab.figure(lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>")
sys.exit(STAGE.main(experiment))
"""


class Reader(HTMLParser):
    """What a page holds: ids, links, sources, text; and that tags are nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.tags: Counter[str] = Counter()
        self.text = ""
        self.open: list[str] = []
        self.problems: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.tags[tag] += 1
        self.ids += [str(values["id"])] if "id" in values else []
        self.links += [str(values["href"])] if "href" in values else []
        self.sources += [str(values["src"])] if "src" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def made(folder: Path, number: int, title: str, page: str, script: str = "", language: str = "") -> Path:
    """A stage of a walkthrough in `folder`: its script and its page."""
    path = folder / "stages" / f"stage_{number:02d}_{title}.py"
    path.parent.mkdir(exist_ok=True)
    place = path.parent / language / f"{path.stem}.md"
    place.parent.mkdir(exist_ok=True)
    place.write_text(textwrap.dedent(page), encoding="utf-8")
    if not language:
        path.write_text(script or STAGE.format(verdict="PASS", code=0), encoding="utf-8")
    return path


def ran(script: Path, output: str = "sanity check: PASS\n", code: int = 0, **more: object) -> Ran:
    return Ran(script, code, 1.25, output, **more)  # type: ignore[arg-type]


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """What `run_all.py` does with the stages of a folder: its exit code and what it prints."""
    printed = io.StringIO()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = runs.main(folder / "stages", environment, arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue()


@CAN_BIND
class Pages(unittest.TestCase):
    def bound(self, page: str, output: str = "sanity check: PASS\n", **more: object) -> tuple[str, list[str]]:
        """The book of one stage with this page."""
        from tinylm.walkthrough.book import bind

        with workspace() as folder:
            script = made(folder, 4, "bytes", page)
            (folder / "stages" / "picture.png").write_bytes(PNG)
            return bind([ran(script, output, **more)], folder / "stages")

    def test_what_a_page_and_a_run_say_is_text_and_never_markup(self) -> None:
        text, problems = self.bound(
            "# A < B & <i>\n\nx <script>alert(1)</script> `a<b>`\n\n<div id=x>y</div>\n\n```\n<u>&\n```\n",
            "<img src=x onerror=alert(1)> & </pre>\n",
        )
        reader = Reader(text)
        self.assertEqual((problems, reader.problems, reader.open), ([], [], []))
        self.assertEqual({"script", "i", "u", "div", "b"} & reader.tags.keys(), set())
        self.assertEqual(reader.sources, [])
        for said in (
            "A < B & <i>",
            "<script>alert(1)</script>",
            "a<b>",
            "<u>&",
            "<img src=x onerror=alert(1)> & </pre>",
        ):
            self.assertIn(said, reader.text)

    def test_markers_of_numbers_are_not_seen(self) -> None:
        text, _ = self.bound("# T\n\nwas 8.006<!--=uniform--> bits, **3 %**<!--=n-->\n\n<!-- a note -->\n")
        self.assertIn("was 8.006 bits, 3 %", Reader(text).text)
        self.assertNotIn("<!--", text)

    def test_korean_stays_korean_and_makes_anchors(self) -> None:
        text, _ = self.bound("# 문서 경계\n\n## 왜 하나인가?\n\n가각\n\n[위로](#왜-하나인가)\n")
        reader = Reader(text)
        self.assertIn("가각", reader.text)
        self.assertIn("stage-04-왜-하나인가", reader.ids)
        self.assertIn("#stage-04-왜-하나인가", reader.links)

    def test_a_figure_is_embedded_and_this_run_s_own_goes_first(self) -> None:
        page = "# T\n\n![a dot](picture.png)\n"
        self.assertIn(base64.b64encode(PNG).decode(), self.bound(page)[0])
        with workspace() as folder:
            fresh = folder / "picture.png"
            fresh.write_bytes(PNG + b"fresh")
            text, problems = self.bound(page, figure=fresh)
        self.assertEqual(
            Reader(text).sources, [f"data:image/png;base64,{base64.b64encode(PNG + b'fresh').decode()}"]
        )
        self.assertEqual(problems, [])

    def test_a_missing_figure_is_named_on_the_page_and_as_a_problem(self) -> None:
        for source in ("figures/none.svg", "picture.exe"):
            text, problems = self.bound(f"# T\n\n![a dot]({source})\n")
            self.assertEqual(len(problems), 1)
            self.assertIn(f"stages/stage_04_bytes.md shows {source}", problems[0])
            self.assertIn(f"[missing figure: {source}]", Reader(text).text)

    def test_links(self) -> None:
        text, problems = self.bound(
            "# T\n\n## Part\n\n[a](https://example.org) [b](#part) [c](picture.png) "
            "[d](stage_04_bytes.md#part)\n"
        )
        self.assertEqual(problems, [])
        links = [link for link in Reader(text).links if link.startswith("#stage-04-") or "http" in link]
        self.assertEqual(links, ["https://example.org", "#stage-04-part", "#stage-04-part"])
        for wrong, why in (
            ("none.md", "links to none.md, which does not exist"),
            ("#nowhere", "a link leads to #stage-04-nowhere, which no heading has"),
            ("javascript:alert(1)", ""),
        ):
            text, problems = self.bound(f"# T\n\n[x]({wrong})\n")
            self.assertEqual([why in problem for problem in problems], [True] if why else [], wrong)
            self.assertNotIn("javascript:", "".join(Reader(text).links))

    def test_tables_and_code(self) -> None:
        text, _ = self.bound(
            "# T\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\ndef f(): pass\n```\n\n```zzz\nx < y\n```\n"
        )
        reader = Reader(text)
        self.assertEqual((reader.tags["table"], reader.tags["td"]), (1, 2))
        self.assertRegex(text, r'<span class="k">def</span>')
        self.assertIn("x < y", reader.text)

    def test_a_stage_that_failed_is_marked_with_what_it_wrote(self) -> None:
        text, _ = self.bound("# T\n", "sanity check: FAIL\n", code=1, errors="Traceback <here>")
        self.assertGreaterEqual(text.count('class="FAIL"'), 3)  # head, contents, output
        self.assertIn("Traceback <here>", Reader(text).text)
        self.assertNotIn('class="FAIL"', self.bound("# T\n")[0])

    def test_a_page_without_a_title_or_without_a_file_is_a_problem(self) -> None:
        from tinylm.walkthrough.book import bind

        self.assertIn("has no title", self.bound("text\n")[1][0])
        with workspace() as folder:
            script = made(folder, 4, "bytes", "# T\n")
            script.with_suffix(".md").unlink()
            self.assertIn("does not exist", bind([ran(script)], folder / "stages")[1][0])


@CAN_BIND
class TheBook(unittest.TestCase):
    """The real pages, bound with made-up output: no stage runs."""

    @classmethod
    def setUpClass(cls) -> None:
        from tinylm.walkthrough.book import bind

        cls.scripts = find_scripts(STAGES)
        cls.text, cls.problems = bind([ran(script) for script in cls.scripts], STAGES)
        cls.reader = Reader(cls.text)

    def test_nothing_is_missing(self) -> None:
        self.assertEqual(self.problems, [])

    def test_it_is_well_formed_with_unique_ids_and_links_that_lead_somewhere(self) -> None:
        self.assertEqual((self.reader.problems, self.reader.open), ([], []))
        self.assertEqual([name for name, count in Counter(self.reader.ids).items() if count > 1], [])
        inside = {link[1:] for link in self.reader.links if link.startswith("#")}
        self.assertEqual(inside - set(self.reader.ids), set())

    def test_it_needs_nothing_but_itself(self) -> None:
        self.assertEqual([s for s in self.reader.sources if not s.startswith("data:image/")], [])
        outside = [link for link in self.reader.links if not link.startswith(("#", "https://", "data:,"))]
        self.assertEqual(outside, [])
        self.assertEqual(self.reader.tags["script"], 0)
        self.assertNotRegex(self.text, r"@import|url\(")
        self.assertIn("default-src 'none'", self.text)

    def test_every_page_is_there_once_and_in_order(self) -> None:
        places = [self.reader.ids.index(f"stage-{ran(script).number:02d}") for script in self.scripts]
        self.assertEqual(places, sorted(places))
        for script in self.scripts:
            self.assertEqual(self.reader.links.count(f"#stage-{ran(script).number:02d}") >= 2, True)
        self.assertEqual(self.text.count('<details class="output"'), len(self.scripts))

    def test_every_page_shows_its_figure_and_says_what_is_in_it(self) -> None:
        for script in self.scripts:
            for page in pages_of(script):
                with self.subTest(page.relative_to(STAGES).as_posix()):
                    shown = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page.read_text("utf-8"))
                    figure = (STAGES / "figures" / f"{script.stem}.svg").resolve()
                    said = [alt.strip() for alt, path in shown if (page.parent / path).resolve() == figure]
                    self.assertTrue(
                        figure.is_file() and said and all(said), "no figure with alternative text"
                    )

    def test_figures_are_pictures_that_a_reader_on_dark_paper_can_see(self) -> None:
        for path in sorted((STAGES / "figures").iterdir()):
            svg = path.read_text("utf-8")
            self.assertIn("prefers-color-scheme:dark", svg, path)
            self.assertNotIn("#000000", svg, path)
            self.assertIn(f"figures/{path.name})", (STAGES / f"{path.stem}.md").read_text("utf-8"))


def browser() -> str | None:
    """The path of a Chromium that playwright can drive, or None."""
    if importlib.util.find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@CAN_BIND
@unittest.skipIf(browser() is None, "playwright or a Chromium is not installed")
class InABrowser(unittest.TestCase):
    def test_it_fits_a_phone_asks_for_nothing_and_has_light_and_dark_paper(self) -> None:
        from playwright.sync_api import sync_playwright

        from tinylm.walkthrough.book import bind

        with workspace() as folder, sync_playwright() as tools:
            path = folder / "book.html"
            path.write_text(bind([ran(script) for script in find_scripts(STAGES)], STAGES)[0], "utf-8")
            chromium = tools.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
            papers = []
            for scheme in ("light", "dark"):
                page = chromium.new_page(color_scheme=scheme, viewport={"width": 360, "height": 740})
                said: list[str] = []
                asked: list[str] = []
                page.on("console", lambda message, said=said: said.append(message.text))
                page.on("pageerror", lambda error, said=said: said.append(str(error)))
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.goto(path.as_uri())
                self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
                broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
                self.assertEqual(page.evaluate(broken), 0)
                self.assertEqual(said, [])
                self.assertEqual([url for url in asked if not url.startswith(("file:", "data:"))], [])
                papers.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            chromium.close()
        self.assertEqual(len(set(papers)), 2)


class Running(unittest.TestCase):
    def test_a_stage_s_line_tells_seconds_verdict_and_the_last_line(self) -> None:
        script = Path("stages/stage_04_bytes.py")
        self.assertEqual(ran(script).line(), "   1.2 s  PASS  stage_04_bytes            sanity check: PASS")
        pages = "page        7 numbers of a.md compared with this run, 0 differ\nsanity check: PASS\n"
        self.assertIn("7 numbers of its page agree; sanity", ran(script, pages).line())
        crashed = ran(script, "stage 04\n", 1, errors="Traceback\nValueError: no\n")
        self.assertTrue(crashed.line().endswith("ValueError: no"))
        self.assertEqual(crashed.reasons(), ["Traceback", "ValueError: no"])
        failed = ran(script, "failed      two and two\nsanity check: FAIL\n", 1)
        self.assertEqual((failed.verdict, failed.reasons()), ("FAIL", ["failed      two and two"]))
        self.assertEqual(ran(script, "sanity check: PASS\n", 3).verdict, "FAIL")
        self.assertEqual(ran(script, "sanity check: PASS\nmore\n").verdict, "FAIL")
        self.assertEqual(ran(script, "").verdict, "FAIL")

    def test_a_stage_whose_extra_is_missing_is_skipped_and_does_not_fail(self) -> None:
        output = 'skipped     no server: pip install -e ".[serve]"\nsanity check: skipped\n'
        skipped = ran(Path("stages/stage_17_serving.py"), output)
        self.assertEqual((skipped.verdict, skipped.failed), ("SKIP", False))
        self.assertIn("SKIP  stage_17_serving          skipped     no server: pip", skipped.line())
        with workspace() as folder:
            made(folder, 1, "s", "# One\n", f"print({output!r})\n")
            code, printed = run(folder, "--quick")
        self.assertEqual(code, 0)
        self.assertIn("all PASS but 1 skipped", printed)

    def test_one_stage_runs_as_on_a_console_without_unicode_and_its_pages_are_compared(self) -> None:
        with workspace() as folder:
            script = made(folder, 4, "bytes", "1<!--=one-->", HONEST.format(number=4, title="bytes"))
            made(folder, 4, "bytes", "2<!--=one-->", language="ko")
            self.assertEqual([page.parent.name for page in pages_of(script)], ["stages", "ko"])
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}
            quick = run_stage(script, True, folder, environment)
            self.assertFalse(quick.failed, quick.errors)
            self.assertIn("한글", quick.output)
            full = run_stage(script, False, folder, environment)
            self.assertTrue(full.failed)
            self.assertIn("one is quoted as 2", " ".join(full.output.split()))
            self.assertIn("0 differ", full.output)

    def test_a_failing_stage_gives_fail_and_exit_code_1_and_the_others_still_run(self) -> None:
        with workspace() as folder:
            made(folder, 1, "first", "# One\n", STAGE.format(verdict="FAIL", code=1))
            made(folder, 2, "second", "# Two\n")
            code, printed = run(folder, "--quick")
            self.assertEqual(code, 1, printed)
            lines = printed.splitlines()
            self.assertRegex(lines[0], r"s  FAIL  stage_01_first +oops")
            self.assertTrue(any(re.search(r"s  PASS  stage_02_second", line) for line in lines))
            self.assertTrue(any(line.endswith("s: FAIL: stage_01_first") for line in lines))
            if not ABSENT:
                text = (folder / "build" / "book.html").read_text("utf-8")
                self.assertIn("안녕 <b> & done", Reader(text).text)

    def test_only_some_stages_and_a_book_of_one_s_own_name(self) -> None:
        with workspace() as folder:
            for number in (1, 2):
                made(folder, number, "s", f"# Stage {number}\n\n[next](stage_02_s.md)\n")
            book = folder / "mine" / "book.html"
            code, printed = run(folder, "--quick", "--only", "1", *([] if ABSENT else ["--book", str(book)]))
            self.assertEqual(code, 0, printed)
            self.assertIn("1 stages in", printed)
            self.assertEqual(book.exists(), not ABSENT)
            code, printed = run(folder, "--only", "1", "7")
            self.assertEqual(code, 2)
            self.assertIn("--only 7", printed)
            self.assertIn("it has 01, 02", printed)
            self.assertEqual(run(folder, "--quick", "--jobs", "0")[0], 2)

    def test_ctrl_c_says_how_far_it_came(self) -> None:
        with workspace() as folder, mock.patch.object(runs, "run_stage", side_effect=KeyboardInterrupt):
            made(folder, 1, "s", "# One\n")
            code, printed = run(folder, "--quick")
        self.assertEqual(code, 130)
        self.assertIn("stopped after 0 of 1 stages", printed)

    def test_every_stage_runs_as_on_a_console_that_knows_no_unicode(self) -> None:
        script = (
            "import os, sys\n"
            "sys.exit(os.environ['PYTHONIOENCODING'] != 'cp1252' or print('sanity check: PASS'))\n"
        )
        with workspace() as folder:
            made(folder, 1, "s", "# One\n", script)
            self.assertEqual(run(folder, "--quick")[0], 0)

    def test_a_book_that_is_not_whole_gives_exit_code_1(self) -> None:
        if ABSENT:
            self.skipTest("the book's renderer is not installed")
        with workspace() as folder:
            made(folder, 1, "s", "# One\n\n![x](none.svg)\n")
            code, printed = run(folder, "--quick")
            self.assertEqual(code, 1)
            self.assertIn("book: stages/stage_01_s.md shows none.svg, which does not exist", printed)

    def test_without_the_renderer_the_stages_run_and_a_line_says_how_to_get_the_book(self) -> None:
        with workspace() as folder, mock.patch.object(runs, "BOOK_PARTS", ("no_such_module",)):
            made(folder, 1, "s", "# One\n")
            code, printed = run(folder, "--quick")
            self.assertEqual((code, printed.splitlines()[-1]), (0, HOW_TO_GET_THE_BOOK))
            self.assertEqual(run(folder, "--quick", "--book", "x.html")[0], 2)

    def test_a_stage_that_hangs_is_given_up(self) -> None:
        with workspace() as folder, mock.patch.object(runs, "TIME_LIMIT", 1):
            script = made(
                folder, 1, "s", "# One\n", "import time\nprint('begun', flush=True)\ntime.sleep(60)\n"
            )
            late = run_stage(script, True, folder, {**os.environ})
            self.assertTrue(late.failed)
            self.assertIn("begun", late.output)
            self.assertIn("stopped after 1 s", late.errors)


class Translations(unittest.TestCase):
    """`stages/<language>/`: what a translation quotes is what the English page quotes."""

    def pairs(self) -> list[tuple[str, str, str]]:
        found = [
            (page.name, page.read_text("utf-8"), (STAGES / page.name).read_text("utf-8"))
            for page in sorted(STAGES.glob("[a-z][a-z]/stage_*.md"))
        ]
        self.assertTrue(found)
        return found

    def test_every_marked_number_is_quoted_as_often_and_no_other(self) -> None:
        for name, translated, english in self.pairs():
            with self.subTest(name):
                self.assertEqual(Counter(MARKER.findall(translated)), Counter(MARKER.findall(english)))
                self.assertEqual(translated.count("<!--="), len(MARKER.findall(translated)))

    def test_output_commands_and_names_are_those_of_the_english_page(self) -> None:
        for name, translated, english in self.pairs():
            with self.subTest(name):
                shown = english.split("## What the run shows")[1]
                for block in re.findall(r"^```\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL):
                    self.assertIn(block, translated)
                for code in re.findall(r"`(test_\w+|tinylm/[\w/]+\.py|sanity check: \w+)`", english):
                    self.assertIn(f"`{code}`", translated)

    def test_a_translation_tells_its_stage_and_its_question_in_its_own_words(self) -> None:
        for name, translated, english in self.pairs():
            self.assertRegex(translated, rf"^# {name.split('_')[1]}단계: .+\?\n")
            parts = len(re.findall("^## ", english, re.MULTILINE))
            self.assertEqual(len(re.findall("^## ", translated, re.MULTILINE)), parts, name)


class KoreanReadme(unittest.TestCase):
    def test_its_commands_are_those_of_the_readme_and_its_links_lead_somewhere(self) -> None:
        text, english = ((ROOT / name).read_text("utf-8") for name in ("README.ko.md", "README.md"))
        blocks = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(blocks), 4)
        for block in blocks:
            self.assertIn(block, english)
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            self.assertTrue((ROOT / target).exists(), target)

    def test_it_lists_the_stages_that_exist_and_the_pages_in_korean(self) -> None:
        text = (ROOT / "README.ko.md").read_text("utf-8")
        rows = re.findall(r"^\| \[\d\d\]\(stages/(\S+)\) \| [^|]+\? \| (.*)\|$", text, re.MULTILINE)
        self.assertEqual(
            [name for name, _ in rows], [s.with_suffix(".md").name for s in find_scripts(STAGES)]
        )
        for name, korean in rows:
            self.assertEqual(f"(stages/ko/{name})" in korean, (STAGES / "ko" / name).exists(), name)


class Map(unittest.TestCase):
    def test_it_lists_the_stages_that_exist_by_number_title_and_question(self) -> None:
        text = (STAGES / "README.md").read_text("utf-8")
        rows = re.findall(r"^\| \[(\d\d) ([^\]]+)\]\(([^)]+)\) \| ([^|]+) \|", text, re.MULTILINE)
        stages = [load_stage(ran(script).number).STAGE for script in find_scripts(STAGES)]
        self.assertEqual(
            rows,
            [
                (
                    f"{s.number:02d}",
                    s.title.replace("_", " "),
                    f"stage_{s.number:02d}_{s.title.replace(' ', '_')}.md",
                    s.question,
                )
                for s in stages
            ],
        )

    def test_the_rooms_that_it_names_exist(self) -> None:
        for room in re.findall(r"`(tinylm/[^`]*)`", (STAGES / "README.md").read_text("utf-8")):
            self.assertTrue((ROOT / room).exists(), room)


if __name__ == "__main__":
    unittest.main()
