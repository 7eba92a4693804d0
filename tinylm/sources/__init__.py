"""Anything that holds text becomes documents: files, folders, JSON Lines, gzip, standard input, iterables.

A source is a place (`str` or `PathLike`: a file, a folder, `-` for standard input, `builtin:docs`,
`builtin:python`, `builtin:unicode`), several places through `open_sources`, or an iterable of documents
(`str`). Documents are streamed, never held whole. Everything is read as bytes: nothing is normalised.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from tinylm.config import CorpusConfig
from tinylm.errors import CorpusError
from tinylm.sources import reading
from tinylm.sources.builtin import Builtin
from tinylm.sources.document import Document, Place, encoding_hint
from tinylm.sources.listing import Files, StandardInput

__all__ = ["Document", "Source", "Sources", "as_sources", "encoding_hint", "open_sources"]

Source = str | os.PathLike[str]


class Sources:
    """Places in order, read once: `documents()`, then what was read and what was left out."""

    def __init__(self, places: list[Place], config: CorpusConfig) -> None:
        self.places = places
        self.config = config
        self._opened = False
        for option in ("field", "split_on"):
            if getattr(config, option) is not None and not any(option in place.options for place in places):
                json_lines = "JSON Lines (.jsonl, .ndjson, or standard input)"
                kind = json_lines if option == "field" else "a text file"
                raise CorpusError(
                    f"{option} is {getattr(config, option)!r}, but no source is {kind}; "
                    f"leave --{option.replace('_', '-')} out, or name such a source"
                )

    @property
    def given(self) -> str:
        """The places, for messages."""
        return ", ".join(place.given for place in self.places)

    @property
    def size(self) -> int | None:
        """Bytes to read, if all places know it."""
        sizes = [place.size for place in self.places if place.size is not None]
        return sum(sizes) if len(sizes) == len(self.places) else None

    def documents(self) -> Iterator[Document]:
        """All documents in order; each is read to its end before the next is asked for."""
        if self._opened:
            raise CorpusError(f"{self.given}: was read already; open the sources again")
        self._opened = True
        for place in self.places:
            yield from place.documents()
            place.complete = True

    def records(self) -> list[dict[str, Any]]:
        """What was read, one entry per place."""
        return [place.record() for place in self.places]

    def skipped(self) -> dict[str, int]:
        """Files of folders that were not read, by suffix."""
        return dict(sum((place.skipped for place in self.places), Counter()))

    def blank_lines(self) -> int:
        """Blank lines of JSON Lines that were passed over."""
        return sum(place.blank_lines for place in self.places)


class Items(Place):
    """An iterable of documents as `str`."""

    kind = "documents"

    def __init__(self, items: Iterable[object]) -> None:
        super().__init__("the documents", "-")
        self.items = items

    def documents(self) -> Iterator[Document]:
        """One document per item; an item that is not `str` raises CorpusError naming its index."""
        for index, item in enumerate(self._given()):
            if not isinstance(item, str):
                way_out = (
                    "read several files with open_sources([...])"
                    if isinstance(item, os.PathLike)
                    else "give documents as str; bytes and ids are no text"
                )
                raise CorpusError(f"document {index}: expected str, found {type(item).__name__}; {way_out}")
            place = f"document {index}"
            document = Document(place, reading.text_chunks(item, place))
            yield document
            self.count_text(document)

    def _given(self) -> Iterator[object]:
        """The items; an OSError of the caller's own is told apart from one of writing the corpus."""
        given = 0
        try:
            for item in self.items:
                yield item
                given += 1
        except OSError as error:
            raise CorpusError(
                f"document {given}: the iterable of documents failed ({error}); nothing was left behind"
            ) from error


def open_sources(places: Source | Iterable[Source], config: CorpusConfig) -> Sources:
    """Find the places and list their files; nothing is read yet. CorpusError names what is not there."""
    found: list[Place] = []
    for place in [places] if isinstance(places, str | os.PathLike) else places:
        given = os.fspath(place)
        if not isinstance(given, str) or not given or "\0" in given:
            raise CorpusError(f"source {given!r}: expected a file, a folder, - or builtin:docs")
        if given == "-":
            if any(isinstance(other, StandardInput) for other in found):
                raise CorpusError("standard input: given twice, but it can be read only once; give - once")
            found.append(StandardInput(config))
        elif given.startswith("builtin:") and isinstance(place, str):
            found.append(Builtin(given))
        else:
            found.append(Files(given, config))
    if not found:
        raise CorpusError("no source is given; name a file, a folder, - or builtin:docs")
    return Sources(found, config)


def as_sources(source: object, config: CorpusConfig) -> Sources:
    """Whatever build_corpus takes as Sources: itself, one place, or an iterable of documents (`str`)."""
    if isinstance(source, Sources):
        for option in ("field", "split_on"):
            if getattr(source.config, option) != getattr(config, option):
                raise CorpusError(
                    f"{source.given}: was opened with another {option}; open it with the same options"
                )
        return source
    if isinstance(source, str | os.PathLike):
        return open_sources([source], config)
    if isinstance(source, Mapping | Set | bytes | bytearray) or not isinstance(source, Iterable):
        raise CorpusError(
            f"source: expected a place or an ordered iterable of str, found {type(source).__name__}; "
            "give a path, open_sources([...]), or a list or generator of str"
        )
    return Sources([Items(source)], config)
