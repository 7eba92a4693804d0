"""Files, folders and standard input as places: which files count as text, their order, how each is read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from tinylm.config import CorpusConfig
from tinylm.errors import CorpusError
from tinylm.sources import reading
from tinylm.sources.document import Document, Place, shown

TEXT_SUFFIXES = """
txt text md markdown rst adoc asciidoc org tex bib log srt vtt csv tsv html htm xhtml xml css
py pyi js mjs ts tsx jsx java kt scala groovy c h cc cpp cxx hpp hh cs go rs swift m mm
rb php pl pm lua r jl sh bash zsh ps1 bat sql hs ml mli fs ex exs erl clj lisp el scm vim
f90 pas asm s zig nim dart proto toml yaml yml ini cfg conf diff patch po
"""
TEXT = frozenset(f".{suffix}" for suffix in TEXT_SUFFIXES.split())
JSON_LINES = frozenset((".jsonl", ".ndjson"))
FIELD = "text"
LINKED_FOLDER = "(link to a folder)"
NAME_ERRORS = sys.getfilesystemencodeerrors()


class Inputs(Place):
    """What files and standard input share: one input gives one document, several, or JSON Lines."""

    def __init__(self, given: str, name: str, config: CorpusConfig) -> None:
        super().__init__(given, name)
        self.field = FIELD if config.field is None else config.field
        self.separator = None if config.split_on is None else config.split_on.encode("utf-8")

    def read(self, source: reading.Input, name: str, *, packed: bool, json: bool) -> Iterator[Document]:
        """The documents of one input, which is recorded under `name` when it was read to its end."""
        whole = not json and self.separator is None
        source.hashing = packed or not whole
        chunks = source.chunks(packed=packed)
        if json:
            for line in reading.json_lines(chunks, source.given, self.field):
                if line is None:
                    self.blank_lines += 1
                else:
                    yield line
                    self.count(line)
        elif self.separator is not None:
            for document in reading.split_on(chunks, source.given, self.separator):
                yield document
                self.count(document)
        else:
            document = Document(source.given, chunks, known_bytes=0 if packed else source.size or 0)
            yield document
            self.count(document)
        sha256 = source.sha256 if source.hashing else document.sha256
        self.count_file(name, source.bytes, sha256.hexdigest())

    def uses(self, *, json: bool) -> None:
        """Note which option the reading of an input depends on."""
        self.options.add("field" if json else "split_on")


class Files(Inputs):
    """A file of any name, or the text files of a folder in the order of the UTF-8 of their relative paths."""

    def __init__(self, given: str, config: CorpusConfig) -> None:
        super().__init__(given, os.path.basename(os.path.abspath(given)) or given, config)
        try:
            status = os.stat(given)
        except FileNotFoundError:
            raise CorpusError(
                f"{self.given}: no such file or folder; give a file, a folder, - for standard input, "
                "builtin:docs, builtin:python or builtin:unicode"
            ) from None
        except OSError as error:
            raise reading.unreadable(self.given, error) from error
        self.size = 0
        self.names: list[str] = []
        if stat.S_ISDIR(status.st_mode):
            self.kind, self.folder = "folder", given
            self._list()
        else:
            reading.check_regular(status.st_mode, self.given)
            self.kind, self.folder = "file", os.path.dirname(given)
            self._take(os.path.basename(given), status.st_size, *classify(given))

    def documents(self) -> Iterator[Document]:
        """One document per text file, or the documents inside it."""
        for name in self.names:
            suffix, packed = classify(name)
            path = os.path.join(self.folder, name)
            with reading.regular_file(path, shown(path)) as (file, size):
                source = reading.Input(file, shown(path), size)
                yield from self.read(source, name, packed=packed, json=suffix in JSON_LINES)

    def _list(self) -> None:
        found: list[tuple[bytes, str, int]] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            path = os.path.join(self.folder, folder)
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if not entry.name.startswith("."):
                            self._sort(entry, f"{folder}{entry.name}", folders, found)
            except OSError as error:
                raise reading.unreadable(shown(path), error) from error
        for _, name, size in sorted(found):
            self._take(name, size, *classify(name))
        if not self.names:
            skipped = ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(self.skipped.items()))
            raise CorpusError(
                f"{self.given}: no text file in this folder (skipped: {skipped or 'nothing'}); text "
                "files end in .txt, .md, .py, .jsonl and so on, or .gz after it; name other files one by one"
            )

    def _sort(
        self, entry: os.DirEntry[str], name: str, folders: list[str], found: list[tuple[bytes, str, int]]
    ) -> None:
        given = shown(entry.path)
        try:
            status = entry.stat()
        except OSError as error:
            raise reading.unreadable(f"{given} (a link)" if entry.is_symlink() else given, error) from error
        suffix, packed = classify(name)
        if stat.S_ISDIR(status.st_mode):
            is_junction = getattr(entry, "is_junction", bool)
            if entry.is_symlink() or is_junction():
                self.skipped[LINKED_FOLDER] += 1
            else:
                folders.append(f"{name}/")
            return
        reading.check_regular(status.st_mode, given)
        if suffix in TEXT or suffix in JSON_LINES:
            found.append((name.encode("utf-8", NAME_ERRORS), name, status.st_size))
        else:
            self.skipped[shown(suffix + ".gz" * packed) or "(no suffix)"] += 1

    def _take(self, name: str, size: int, suffix: str, packed: bool) -> None:
        self.names.append(name)
        self.uses(json=suffix in JSON_LINES)
        self.size = None if packed or self.size is None else self.size + size


class StandardInput(Inputs):
    """Standard input: one document, or those inside it; JSON Lines if a field is named."""

    kind = "standard input"

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__("standard input", "-", config)
        self.json = config.field is not None
        self.uses(json=self.json)

    def documents(self) -> Iterator[Document]:
        """Read standard input to its end."""
        stream = getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise CorpusError(f"{self.given}: not open for bytes; pipe text into the command, or name a file")
        yield from self.read(reading.Input(stream, self.given), "-", packed=False, json=self.json)


def classify(name: str) -> tuple[str, bool]:
    """The suffix of a file's name in lower case, and whether `.gz` follows it."""
    name = name.lower()
    packed = name.endswith(".gz")
    return os.path.splitext(name[:-3] if packed else name)[1], packed
