"""Text that needs no download: Python's own documentation and source, and the names of characters."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import sysconfig
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tinylm.errors import CorpusError
from tinylm.sources import reading
from tinylm.sources.document import Document, Place

SHORTEST_DOCSTRING = 40
NO_TEXT = re.compile("[\0\ud800-\udfff]")
LEFT_OUT_FOLDERS = frozenset(("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"))
LEFT_OUT_PREFIXES = ("config-", "_sysconfigdata")  # how this very Python was built


class Builtin(Place):
    """builtin:docs, builtin:python or builtin:unicode."""

    kind = "builtin"

    def __init__(self, given: str) -> None:
        super().__init__(given, given)
        if given not in BUILTINS:
            raise CorpusError(
                f"{self.given}: expected {', '.join(BUILTINS)}; for a file, write ./{self.given}"
            )
        self._texts = BUILTINS[given]

    def documents(self) -> Iterator[Document]:
        """One document per topic or docstring, module or character."""
        for place, text in self._texts():
            document = Document(f"{self.given}, {place}", (text,), known_bytes=len(text))
            yield document
            self.count_text(document)


def docs() -> Iterator[tuple[str, bytes]]:
    """Python's reference topics, then the docstrings of the standard library: place and text of each.

    Docstrings are cleaned as inspect.cleandoc does; those under 40 bytes, exact repetitions, and any that
    show NUL or half a surrogate pair are left out. Modules are parsed, never imported.
    """
    seen: set[bytes] = set()
    for place, text in itertools.chain(_topics(), _docstrings()):
        if NO_TEXT.search(text):
            continue
        raw = text.encode("utf-8")
        if len(raw) >= SHORTEST_DOCSTRING and raw not in seen:
            seen.add(raw)
            yield place, raw


def python() -> Iterator[tuple[str, bytes]]:
    """The source of the standard library's modules, tests left out: place and text of each."""
    for name, path in _modules():
        yield name, _read(path)


def unicode() -> Iterator[tuple[str, bytes]]:
    """`character TAB name` for the 95,156 named characters of Unicode 3.2, the same on every Python."""
    for code in range(0x110000):
        name = unicodedata.ucd_3_2_0.name(chr(code), None)
        if name is not None:
            yield f"U+{code:04X}", f"{chr(code)}\t{name}".encode()


BUILTINS = {"builtin:docs": docs, "builtin:python": python, "builtin:unicode": unicode}


def _topics() -> Iterator[tuple[str, str]]:
    name = "pydoc_data/topics.py"
    for node in _parse(_read(_library() / name)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in ast.literal_eval(node.value).items():
                yield f"topic {topic}", text


def _docstrings() -> Iterator[tuple[str, str]]:
    for name, path in _modules():
        for line, text in _found(_parse(_read(path))):
            yield f"{name}:{line}", inspect.cleandoc(text)


def _found(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The docstrings in a tree, in source order; only statements are visited, for only they hold any."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            yield first.lineno, first.value.value
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        statements: Iterable[ast.AST] = getattr(node, name, ())
        for statement in statements if isinstance(statements, list) else ():
            yield from _found(statement)


def _parse(source: bytes) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own invalid escapes are no concern of the user
        return ast.parse(source)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise reading.unreadable(f"{path} (of Python's standard library)", error) from error


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules() -> list[tuple[str, Path]]:
    """The standard library's modules: POSIX path inside it and path, in the order of the former."""
    library = _library()
    found = []
    for folder, folders, names in os.walk(library):
        folders[:] = [
            name
            for name in folders
            if name not in LEFT_OUT_FOLDERS and not name.startswith(LEFT_OUT_PREFIXES)
        ]
        for name in names:
            if name.endswith(".py") and not name.startswith(LEFT_OUT_PREFIXES):
                path = Path(folder, name)
                found.append((path.relative_to(library).as_posix(), path))
    if not found:
        raise CorpusError(
            f"{library}: holds no modules of the standard library; name a folder of texts instead"
        )
    return sorted(found)
