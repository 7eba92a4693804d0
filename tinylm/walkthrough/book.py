"""Bind pages, figures and fresh output into one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import base64
import html
import os
import platform
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from tinylm.walkthrough.runs import Ran, pages_of

STYLE = Path(__file__).with_name("book.css")
IMAGES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}
LANGUAGES = {"ko": "한국어"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
FORMAT = HtmlFormatter(nowrap=True)


@dataclass
class Chapter:
    """A page in the book: where it lies, its anchor, its title, its language, and its HTML."""

    page: Path
    anchor: str
    ran: Ran | None = None
    language: str = "en"
    title: str = ""
    body: str = ""


@dataclass
class Binder:
    """Renders pages; knows which pages are in the book and which figures are fresh, and collects problems."""

    chapters: dict[Path, Chapter]
    figures: dict[str, Path]
    root: Path
    problems: list[str] = field(default_factory=list)

    def render(self, chapter: Chapter) -> None:
        """Fill in the title and the HTML of a chapter from its page."""
        if not chapter.page.exists():
            self.problems.append(f"{self._name(chapter.page)} does not exist")
            chapter.title, chapter.body = chapter.page.stem, "<p>This page does not exist.</p>"
            return
        reader = MarkdownIt("commonmark", {"html": True, "highlight": code}).enable("table")
        reader.use(anchors_plugin, max_level=6, slug_func=lambda text: f"{chapter.anchor}-{slug(text)}")
        tokens = reader.parse(chapter.page.read_text(encoding="utf-8"))
        for token in walk(tokens):
            if token.type == "inline":
                continue
            if token.type in ("html_inline", "html_block"):
                token.type, token.content = "text", re.sub(r"<!--.*?-->", "", token.content, flags=re.DOTALL)
            elif token.type in ("heading_open", "heading_close"):
                token.tag = f"h{min(6, int(token.tag[1]) + 1)}"  # the h1 of the file is the book's own
            elif token.type == "link_open":
                self._link(token, chapter)
            elif token.type == "image":
                self._image(token, chapter)
        heading = next((i for i, token in enumerate(tokens) if token.type == "heading_open"), None)
        if heading is None:
            self.problems.append(f"{self._name(chapter.page)} has no title")
            chapter.title = chapter.page.stem
        else:
            chapter.title = plain(tokens[heading + 1])
            tokens[heading].attrSet("id", chapter.anchor)
        body = reader.renderer.render(tokens, reader.options, {})
        body = re.sub(r"<table>", '<div class="scroll" tabindex="0"><table>', body)
        body = body.replace("</table>", "</table></div>")
        chapter.body = body.replace("<pre>", '<pre tabindex="0">')

    def _link(self, token: Token, chapter: Chapter) -> None:
        """Point a link at its chapter; one to a file that is not in the book becomes plain text."""
        address = str(token.attrGet("href") or "")
        parts = urlsplit(address)
        if parts.scheme in ("http", "https", "mailto"):
            token.attrSet("rel", "noopener noreferrer")
            return
        if parts.scheme or parts.netloc or address.startswith("/"):
            self.problems.append(f"{self._name(chapter.page)} links to {address!r}, which a book cannot")
        target = chapter.page.parent.joinpath(unquote(parts.path)).resolve() if parts.path else chapter.page
        other = self.chapters.get(target)
        if other is not None:
            fragment = f"{other.anchor}-{slug(unquote(parts.fragment))}" if parts.fragment else other.anchor
            token.attrSet("href", f"#{fragment}")
            return
        if not target.exists():
            self.problems.append(f"{self._name(chapter.page)} links to {address}, which does not exist")
        token.attrs = {"title": f"{self._name(target)} in the repository", "class": "file"}

    def _image(self, token: Token, chapter: Chapter) -> None:
        """Put the picture into the page: this run's if it drew one, else the one beside the page."""
        source = unquote(str(token.attrGet("src") or ""))
        path = self.figures.get(Path(source).name) or chapter.page.parent / source
        kind = IMAGES.get(path.suffix.lower())
        if kind is None or not path.is_file():
            why = "is not of a kind that a book can hold" if path.is_file() else "does not exist"
            self.problems.append(f"{self._name(chapter.page)} shows {source}, which {why}")
            token.type, token.children = "text", None
            token.content = f"[missing figure: {source}]"
            return
        token.attrSet("src", f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}")

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.root)).as_posix()


def bind(every: Sequence[Ran], stages: Path, *, quick: bool = False) -> tuple[str, list[str]]:
    """The book of these runs as HTML, and what is wrong with it: links and figures that lead nowhere."""
    stages = stages.resolve()
    chapters = [Chapter(stages / "README.md", "map")] if (stages / "README.md").exists() else []
    pages = [(ran, page.resolve()) for ran in every for page in pages_of(ran.script)]
    for ran, page in sorted(pages, key=lambda pair: pair[1].parent != stages):  # translations come last
        language = "en" if page.parent == stages else page.parent.name
        anchor = f"stage-{ran.number:02d}" + ("" if language == "en" else f"-{language}")
        chapters.append(Chapter(page, anchor, ran, language))
    figures = {ran.figure.name: ran.figure for ran in every if ran.figure is not None}
    binder = Binder({chapter.page: chapter for chapter in chapters}, figures, stages.parent)
    for chapter in chapters:
        binder.render(chapter)
    sections = [
        section(chapter, before, after)
        for before, chapter, after in zip(
            [None, *chapters[:-1]], chapters, [*chapters[1:], None], strict=True
        )
    ]
    text = frame(contents(chapters), "\n".join(sections), made_by(every, quick))
    known = set(re.findall(r'\sid="([^"]*)"', text))
    for target in sorted(set(re.findall(r'\shref="#([^"]*)"', text)) - known):
        binder.problems.append(f"a link leads to #{target}, which no heading has")
    return text, binder.problems


def section(chapter: Chapter, before: Chapter | None, after: Chapter | None) -> str:
    """A chapter: its page, beside it the fresh output, under it the code and the way on."""
    side, under = "", ""
    if chapter.ran is not None and chapter.language == "en":
        ran = chapter.ran
        shown = ran.output + (f"\n{ran.errors}" if ran.errors.strip() and ran.failed else "")
        mark = f'<span class="{ran.verdict}">{ran.verdict}</span>'
        side = (
            f'<details class="output" open><summary>Fresh output {mark} '
            f'{ran.seconds:.1f} s</summary><pre tabindex="0">{html.escape(shown)}</pre></details>'
        )
        exercises = sorted(ran.script.parent.glob(f"exercises/exercise_{ran.number:02d}_*.py"))
        under = "".join(source(path, label) for path, label in listed(ran.script, exercises))
    turns = [
        f'<a href="#{other.anchor}" rel="{rel}">{arrow}</a>'
        for other, rel, arrow in ((before, "prev", "← before"), (after, "next", "next →"))
        if other is not None
    ]
    return (
        f'<section class="chapter" lang="{chapter.language}"><article>{chapter.body}{under}</article>{side}'
        f'<nav class="turn" aria-label="chapters">{" ".join(turns)} '
        '<a href="#contents">contents</a></nav></section>'
    )


def listed(script: Path, exercises: Sequence[Path]) -> list[tuple[Path, str]]:
    """The files whose text follows a page, each with its label."""
    return [(path, "The exercise") for path in exercises] + [(script, "The whole script")]


def source(path: Path, label: str) -> str:
    """A file of Python, folded away."""
    text = path.read_text(encoding="utf-8")
    return (
        f'<details class="source"><summary>{label}, <code>{html.escape(path.name)}</code></summary>'
        f'<pre tabindex="0"><code>{code(text, "python", "")}</code></pre></details>'
    )


def contents(chapters: Sequence[Chapter]) -> str:
    """The table of contents; a stage that failed is marked."""
    rows, language = [], "en"
    for chapter in chapters:
        if chapter.language != language:
            language = chapter.language
            rows.append(f'<li class="language" lang="{language}">{LANGUAGES.get(language, language)}</li>')
        mark = ' <span class="FAIL">FAIL</span>' if chapter.ran and chapter.ran.failed else ""
        number = f"{chapter.ran.number:02d} " if chapter.ran else ""
        # "Stage 04: one boundary?" and "04단계: 경계 하나?" stand as "04 One boundary?" and "04 경계 하나?".
        title = re.sub(r"^(?:\w+ \d\d|\d\d\w+)\s*[:·]\s*", "", chapter.title)
        title = html.escape(f"{number}{title[:1].upper()}{title[1:]}")
        rows.append(f'<li><a href="#{chapter.anchor}" lang="{language}">{title}</a>{mark}</li>')
    return f'<nav id="contents" aria-label="contents"><h2>Contents</h2><ul>{"".join(rows)}</ul></nav>'


def made_by(every: Sequence[Ran], quick: bool) -> str:
    """What ran, where and when, in a line."""
    try:
        torch = f"PyTorch {version('torch')}"
    except PackageNotFoundError:
        torch = "no PyTorch"
    counts = Counter(ran.verdict for ran in every)
    verdict = ", ".join(
        f'<span class="{name}">{counts[name]} {name}</span>'
        for name in ("PASS", "SKIP", "FAIL")
        if counts[name]
    )
    form = ", in their short form (the numbers of the pages are those of the full one)" if quick else ""
    where = html.escape(f"Python {platform.python_version()}, {torch}, {platform.system()}")
    return f"{len(every)} stages{form}; {date.today().isoformat()}; {where}: {verdict}."


def frame(toc: str, chapters: str, made: str) -> str:
    """The file around the chapters. Its policy forbids scripts and every request."""
    light, dark = (
        HtmlFormatter(style=name).get_style_defs("pre code") for name in ("friendly", "github-dark")
    )
    style = STYLE.read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>tinylm: a language model of bytes, in stages</title>
<style>
{light}
@media screen and (prefers-color-scheme: dark) {{
{dark}
}}
{style}</style>
</head>
<body>
<header><h1>tinylm, stage by stage</h1>
<p>A language model of bytes, built one question at a time.</p>
<p class="made">{made}</p></header>
{toc}
<main>
{chapters}
</main>
</body>
</html>
"""


def code(text: str, language: str, attributes: str) -> str:
    """Code as highlighted HTML; text in an unknown language, or in none, is only escaped."""
    try:
        lexer = get_lexer_by_name(language) if language else None
    except ClassNotFound:
        lexer = None
    return highlight(text, lexer, FORMAT) if lexer is not None else html.escape(text)


def slug(text: str) -> str:
    """The anchor of a heading, as GitHub makes it: letters of any script, digits and hyphens."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.strip().lower()))


def walk(tokens: Sequence[Token]) -> list[Token]:
    """Every token, those inside others too."""
    return [inner for token in tokens for inner in (token, *walk(token.children or []))]


def plain(token: Token) -> str:
    """The text of an inline token without its marks."""
    return "".join(inner.content for inner in token.children or [] if inner.type in ("text", "code_inline"))
