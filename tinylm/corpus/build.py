"""Documents become a corpus folder: the strict border, limits, the held-out split, streams, corpus.json."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tinylm import contract, files
from tinylm.config import CorpusConfig
from tinylm.corpus.opened import FILES, MANIFEST, SPLITS, open_corpus, starts_file, stream_file
from tinylm.corpus.scripts import by_script
from tinylm.corpus.split import Corpus
from tinylm.corpus.streams import WIDTH, Stream
from tinylm.corpus.tail import Largest, hold_out_tail, misses
from tinylm.corpus.utf8 import Checker, Piece
from tinylm.errors import CorpusError, LimitError
from tinylm.sources import Document, Source, Sources, as_sources
from tinylm.sources.document import counted, shown

HELD = 4 << 20
REPORTED = 4 << 20
DEFAULT = CorpusConfig()
Progress = Callable[[int, int], None]


def build_corpus(
    source: Source | Sources | Iterable[str],
    out: str | os.PathLike[str],
    config: CorpusConfig = DEFAULT,
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Build the corpus folder `out` from a place, `open_sources(...)`, or an iterable of documents (`str`).

    Memory stays bounded whatever the size of the text. `progress` is called now and then with the
    documents and bytes so far. If anything fails, nothing is left behind: CorpusError names place and
    reason, LimitError the limit. An existing `out` is refused, or with `replace` gives way if it is a corpus.
    """
    config.check()
    out = Path(out)
    _check_out(out, replace)
    sources = as_sources(source, config)
    try:
        with files.new_folder(out, replace=replace) as folder:
            _build(folder, sources, config, progress)
    except OSError as error:
        raise CorpusError(
            f"{shown(str(out))}: cannot be written ({error.strerror or error}); nothing was left behind; "
            "make room there, or choose another --out"
        ) from error
    return open_corpus(out, verify=False)


class _Builder:
    """Takes documents into two streams and counts what becomes of them."""

    def __init__(self, folder: Path, config: CorpusConfig, progress: Progress | None) -> None:
        self.folder = folder
        self.config = config
        self.progress = progress
        self.train = Stream(folder / stream_file("train"))
        self.validation = Stream(folder / stream_file("validation"))
        self.order = bytearray()
        self.largest = Largest()
        self.characters = 0
        self.bytes = 0
        self.empty = 0
        self.duplicates = 0
        self.truncated: str | None = None
        self.held_out = "documents"
        self._reported = 0

    def read(self, sources: Sources) -> None:
        """Take documents up to the end, or to a limit if the configuration says truncate."""
        for document in sources.documents():
            limit = self._take(document)
            if limit is not None and (not self.config.truncate or not self.order):
                raise self._limit_error(document, limit)
            if limit is not None:
                self.truncated = limit
                break
        if not self.order:
            raise CorpusError(
                f"{sources.given}: holds no text ({counted(self.empty, 'empty documents')}, "
                f"{counted(sources.blank_lines(), 'blank lines')}); name a source with text"
            )

    def split(self) -> None:
        """Hold out the tail of the largest document if whole documents miss the share."""
        held = self.validation.tokens - len(self.validation.starts) - 1
        if not misses(held, self.bytes, self.config.validation):
            return
        self.held_out = "tail"
        first = (self.train, self.validation)
        self.train, self.validation, self.duplicates = hold_out_tail(
            self.folder, *first, self.order, self.largest, self.config.validation
        )
        for old, new in zip(first, (self.train, self.validation), strict=True):
            if new is not old:
                old.close()
                new.close()
                os.replace(new.path, old.path)

    def close(self) -> None:
        """Close both streams; what they hold stays in their files."""
        try:
            self.train.close()
        finally:
            self.validation.close()

    def _take(self, document: Document) -> str | None:
        """Take one document whole, or name the limit that it would pass and take nothing of it."""
        limit = self._passed(0, document.known_bytes) if document.known_bytes else None
        held: list[Piece] = []
        mark: int | None = None

        def taken() -> Iterator[bytes]:
            if mark is None:
                yield from (data for data, _ in held)
            else:
                yield from self.train.read_bytes(mark, self.train.tokens)

        checker = Checker(document, taken)
        for chunk in document.chunks if limit is None else ():
            if not chunk:
                continue
            piece = checker.push(chunk)
            document.size += len(chunk)
            limit = self._passed(checker.characters, document.size)
            if limit is not None:
                break
            document.sha256.update(chunk)
            self._report(self.bytes + document.size)
            if mark is None and document.size <= HELD:
                held.append(piece)
                continue
            if mark is None:
                mark, counts = self.train.tokens, self.train.census.counts()
                self._start(self.train, held)
                held = []
            self.train.write(*piece)
        if limit is not None:
            if mark is not None:
                self.train.cut(mark, counts)
            return limit
        checker.finish()
        if document.size == 0:
            self.empty += 1
            return None
        digest = document.sha256.digest()
        held_out = int.from_bytes(digest[:8], "big") < self.config.validation * 2**64
        stream = self.validation if held_out else self.train
        if mark is None:
            self._start(stream, held)
        elif held_out:
            self.validation.move(self.train, mark, counts)
        stream.boundary()
        self._count(document, checker.characters, digest, held_out)
        return None

    def _start(self, stream: Stream, held: list[Piece]) -> None:
        stream.start()
        for piece in held:
            stream.write(*piece)

    def _count(self, document: Document, characters: int, digest: bytes, held_out: bool) -> None:
        if document.size > self.largest.size:
            self.largest = Largest(len(self.order), document.size, digest)
        self.order.append(held_out)
        self.characters += characters
        self.bytes += document.size

    def _report(self, size: int) -> None:
        if self.progress is not None and size - self._reported >= REPORTED:
            self.progress(len(self.order), size)
            self._reported = size

    def _passed(self, characters: int, size: int) -> str | None:
        """The limit that a further document of at least this size would pass."""
        config, documents = self.config, len(self.order) + 1
        if documents > config.max_documents:
            return "max_documents"
        if self.characters + characters > config.max_characters:
            return "max_characters"
        if self.bytes + size > config.max_bytes:
            return "max_bytes"
        if 2 + self.bytes + size + documents > config.max_tokens:
            return "max_tokens"
        return None

    def _limit_error(self, document: Document, limit: str) -> LimitError:
        value = getattr(self.config, limit)
        way_out = (
            "or stop at the last whole document with --truncate"
            if self.order
            else "or leave this document out: it is the first, nothing would remain before it"
        )
        place = f"{document.place}, line {document.line}" if document.line > 1 else document.place
        return LimitError(
            f"{place}: would pass the limit {limit} = {value:,}, as document "
            f"{len(self.order) + 1:,} of the corpus; raise it with --{limit.replace('_', '-')}, {way_out}"
        )

    def info(self, sources: Sources) -> dict[str, Any]:
        """Write what the streams need beside them, and give the content of corpus.json, not sealed yet."""
        digests, counts = {}, {}
        for name, stream in zip(SPLITS, (self.train, self.validation), strict=True):
            starts = io.BytesIO()
            np.save(starts, np.asarray(stream.starts).astype("<i8", copy=False), allow_pickle=False)
            path = self.folder / starts_file(name)
            digests[path.name] = {"bytes": starts.tell(), "sha256": files.write_new(path, starts.getbuffer())}
            path = self.folder / stream_file(name)
            files.check_length(path, stream.tokens * WIDTH)
            digests[path.name] = {"bytes": stream.tokens * WIDTH, "sha256": stream.digest()}
            census = stream.census.counts()
            counts[name] = {
                "documents": len(stream.starts),
                "characters": int(census.sum()),
                "bytes": sum(by_script(census).values()),
                "tokens": stream.tokens,
            }
        census = self.train.census.counts() + self.validation.census.counts()
        total = {key: sum(part[key] for part in counts.values()) for key in counts["train"]}
        total["documents"] = len(self.order) - self.duplicates
        return {
            "format": files.FORMAT,
            "contract": contract.contract(),
            "config": dataclasses.asdict(self.config),
            "sources": sources.records(),
            "skipped": sources.skipped(),
            "left_out": {
                "empty_documents": self.empty,
                "blank_lines": sources.blank_lines(),
                "duplicates": self.duplicates,
            },
            "truncated": self.truncated,
            "held_out": self.held_out,
            "total": total,
            "splits": counts,
            "scripts": by_script(census),
            "files": digests,
        }


def _build(folder: Path, sources: Sources, config: CorpusConfig, progress: Progress | None) -> None:
    builder = _Builder(folder, config, progress)
    with contextlib.closing(builder):
        builder.read(sources)
        builder.split()
    info = files.seal(builder.info(sources))
    files.write_new(folder / MANIFEST, files.readable_json(info))


def _check_out(out: Path, replace: bool) -> None:
    """Refuse to build where something stands that is not ours to replace."""
    where = shown(str(out))
    if not os.path.lexists(out):
        return
    if not replace:
        raise CorpusError(
            f"{where}: exists already; choose another --out, or replace a corpus with --replace"
        )
    found = sorted(os.listdir(out)) if out.is_dir() else [out.name]
    foreign = [name for name in found if name not in FILES]
    if foreign or (found and MANIFEST not in found):
        raise CorpusError(
            f"{where}: expected a corpus to replace, found {shown((foreign or found)[0])}; "
            "choose another --out, or remove it yourself"
        )
