"""Stage 06: documents become a corpus; only its builder inserts boundaries, and limits hold beforehand."""

import sys
import textwrap
from pathlib import Path

import numpy as np

from tinylm.config import CorpusConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Corpus, Split, build_corpus
from tinylm.errors import LimitError
from tinylm.walkthrough import INDENT, WIDTH, Lab, Stage, figures, workspace

STAGE = Stage(
    number=6,
    title="corpus",
    question="Who may insert a boundary, and how much text is too much?",
    hypothesis="Only the builder: it alone knows where a document ends, so that boundary targets equal "
    "documents whatever the texts say. Too much is one unit above a limit, noticed before it is spent: "
    "nothing is left behind.",
    experiment="build 300 short documents, most of them repeated, five with a typed <|doc|>; count "
    "boundaries, repetitions on both sides of the split, and what happens at and beside each limit",
    next="What is one training example?",
)
GREETINGS = ("good morning", "guten Morgen", "доброе утро", "おはよう", "안녕", "صباح الخير")
MARKER = "<|doc|>"
KINDS = ("trained on", "held out, and trained on as well", "held out, never seen")
COUNTED = ("documents", "characters", "bytes", "tokens")


def texts() -> list[str]:
    """300 documents of which 77 repeat; five contain the marker as a user would type it."""
    plain = [f"{GREETINGS[number % 77 % 6]}, {number % 77}\r\n" for number in range(300)]
    return [text + MARKER if number % 60 == 7 else text for number, text in enumerate(plain)]


def joined_by_marker(documents: list[str]) -> int:
    """The documents that a reader finds if the boundary is written as text between them."""
    return len(MARKER.join(documents).split(MARKER))


def in_both(train: list[bytes], held_out: list[bytes]) -> int:
    """Held-out documents that also stand in the training part."""
    return sum(document in set(train) for document in held_out)


def sides(documents: list[bytes], held_out: list[bool]) -> list[list[str]]:
    """For each text, as it first comes: on which side each of its copies is."""
    columns: dict[bytes, list[bool]] = {}
    for document, held in zip(documents, held_out, strict=True):
        columns.setdefault(document, []).append(held)
    return [[KINDS[1 + all(column)] if held else KINDS[0] for held in column] for column in columns.values()]


def documents_of(split: Split) -> list[bytes]:
    """The documents of a split as bytes."""
    return [split.document(index).astype(np.uint8).tobytes() for index in range(split.documents)]


def boundary_targets(corpus: Corpus) -> int:
    """How often 256 is a target, counted in the streams themselves."""
    return sum(int((split.stream[1:] == DOC_BOUNDARY).sum()) for split in (corpus.train, corpus.validation))


def attempt(documents: list[str], out: Path, config: CorpusConfig) -> str:
    """What becomes of a build: its documents, or the refusal and what it leaves."""
    try:
        corpus = build_corpus(documents, out, config)
    except LimitError:
        return f"refused, {len(list(out.parent.iterdir()))} files left"
    return f"built, {corpus.info['total']['documents']} documents"


def experiment(lab: Lab) -> None:
    documents = texts()
    raw = [text.encode("utf-8") for text in documents]
    with workspace() as folder:
        corpus = build_corpus(documents, folder / "all")
        train, held_out = documents_of(corpus.train), documents_of(corpus.validation)
        targets = lab.value("targets", boundary_targets(corpus))
        found = lab.value("joined", joined_by_marker(documents))
        by_position = in_both([text for n, text in enumerate(raw) if n % 10 != 9], raw[9::10])
        by_hash = in_both(train, held_out)
        lab.table(
            ["who inserts the boundary", "documents in", "documents found"],
            [
                ["the builder, as id 256", len(documents), targets],
                [f"text, as {MARKER}", len(documents), found],
            ],
        )
        lab.table(
            ["who is held out", "held out", "of these also in training"],
            [["each tenth document", len(raw[9::10]), by_position], ["by SHA-256", len(held_out), by_hash]],
        )
        panels = {
            "each tenth document is held out": sides(raw, [n % 10 == 9 for n in range(len(raw))]),
            "SHA-256 decides": sides(raw, [text in held_out for text in raw]),
        }
        lab.figure(
            lambda: figures.stacks(panels, KINDS, x="text, in the order of first appearance", y="copies")
        )
        one = build_corpus(["".join(documents)], folder / "one")

        total, rows, outcomes = corpus.info["total"], [], []
        for name in COUNTED:
            row = [f"max_{name}", total[name]]
            for limit in (total[name] - 1, total[name], total[name] + 1):
                out = folder / f"{name}-{limit}" / "corpus"
                out.parent.mkdir()
                row.append(attempt(documents, out, CorpusConfig(**{f"max_{name}": limit})))
            outcomes.append([str(cell).partition(",")[0] for cell in row[2:]])
            rows.append(row)
        lab.table(["limit", "the corpus has", "limit one below", "limit equal", "limit one above"], rows)
        message = refusal(documents, folder / "refused", CorpusConfig(max_bytes=total["bytes"] - 1))
        truncating = CorpusConfig(max_bytes=total["bytes"] - 1, truncate=True)
        kept = build_corpus(documents, folder / "truncated", truncating).info["total"]["documents"]
        lab.note("\n".join(textwrap.wrap(message, WIDTH - INDENT)))
        lab.note(f"with --truncate instead: {lab.value('kept', kept)} documents, all whole")
        left = sorted(path.name for path in folder.glob("*/*") if path.name.startswith("."))

    lab.value("documents", len(documents))
    lab.value("held_out", len(held_out))
    lab.value("by_position", by_position)
    lab.value("bytes", total["bytes"])
    lab.value("tokens", total["tokens"])
    share = lab.value("share", 100 * corpus.validation.bytes / total["bytes"])
    lab.otherwise(
        f"A split by hash keeps repetitions together but misses its share: {share:.1f} % of the bytes, "
        "not 10 %. And one document cannot be split by hash at all: its tail is held out, so that its "
        f"training part has {one.train.boundaries} boundary targets and the tail "
        f"{one.validation.boundaries}: "
        "together still one per document."
    )
    lab.costs(
        f"one token per document and one per split: {total['tokens']:,} tokens for {total['bytes']:,} bytes, "
        "two bytes of disk each. A wrong boundary reaches every model trained on the corpus and every number "
        "measured with it, and nobody sees it in a loss curve."
    )
    lab.proves(
        "that boundary targets equal documents although five texts contain the marker, that no held-out "
        "document was trained on, and that each limit is exact and leaves nothing.",
        does_not_prove="that near-duplicates stay on one side (one changed byte makes another document), or "
        "that memory stays bounded: benchmarks/corpus.py measures that.",
    )
    lab.check("boundary targets equal documents", targets == len(documents) == total["documents"])
    lab.check("typed markers stay text", sum(MARKER.encode() in text for text in train + held_out) == 5)
    lab.check("every byte is kept", sorted(train + held_out) == sorted(raw))
    lab.check("no document on both sides", by_hash == 0 < by_position)
    lab.check("one document keeps one boundary target", boundary_targets(one) == 1)
    lab.check("limits are exact", outcomes == [["refused", "built", "built"]] * len(COUNTED))
    lab.check("nothing is left behind", not left and all("0 files left" in row[2] for row in rows))


def refusal(documents: list[str], out: Path, config: CorpusConfig) -> str:
    """The message of a build that passes a limit."""
    try:
        build_corpus(documents, out, config)
    except LimitError as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
