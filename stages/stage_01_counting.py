"""Stage 01: how far counting gets, which length of memory is the best, and why it is not the longest."""

import math
import sys
from collections.abc import Iterable
from itertools import islice, pairwise, takewhile

import numpy as np
import numpy.typing as npt

from tinylm.baselines import Baseline, Ngrams, ladder, ngram_bits
from tinylm.config import CorpusConfig
from tinylm.corpus import Split
from tinylm.sources import open_sources
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=1,
    title="counting",
    question="How far does counting bytes get?",
    hypothesis="From 8 bits per byte to perhaps 2. Whoever has seen more of what came before guesses better, "
    "so each order should beat the one below it, and 6-grams should beat them all. General compressors know "
    "nothing of language either and should come out about where the best table does.",
    experiment="count 1- to 6-grams of four texts: Python's reference manual (English prose), and names of "
    "characters in three amounts; score every tenth document, held out; then ask where the last order gains "
    "and where it loses",
    next="What does a gradient know that a count does not?",
)
PROSE_BYTES = 150_000
NAMES = (300, 2_000, 9_900)
GROUPS = ("context never seen", "context seen, byte new after it", "context and byte seen together")

Parts = tuple[Split, Split]
Tokens = npt.NDArray[np.uint16]


def texts() -> dict[str, Parts]:
    """Four texts that need no download: English prose, then names of characters in growing amounts."""
    size = 0

    def fits(document: bytes) -> bool:
        nonlocal size
        size += len(document)
        return size <= PROSE_BYTES

    named = list(islice(documents("builtin:unicode"), max(NAMES)))
    found = {"prose": held_out(list(takewhile(fits, documents("builtin:docs"))))}
    return found | {f"{count:,} names": held_out(named[:count]) for count in NAMES}


def documents(source: str) -> Iterable[bytes]:
    """The documents of a source as bytes, in order."""
    return (b"".join(document.chunks) for document in open_sources([source], CorpusConfig()).documents())


def held_out(every: list[bytes]) -> Parts:
    """Train and validation: every tenth document, beginning with the first, is held out."""
    train = [document for index, document in enumerate(every) if index % 10]
    return Split.of(train, "train"), Split.of(every[::10], "validation")


def grams(stream: Tokens, length: int) -> list[bytes]:
    """Every run of `length` tokens of a stream, as the bytes of its uint16."""
    data = stream.astype("<u2").tobytes()
    return [data[2 * i : 2 * (i + length)] for i in range(len(stream) - length + 1)]


def groups_of(train: Split, text: Split, order: int) -> npt.NDArray[np.int64]:
    """For each target of `text`, which of GROUPS its gram of `order` tokens is in."""
    contexts, known = set(grams(train.stream[:-1], order - 1)), set(grams(train.stream, order))
    found = [0 if gram[:-2] not in contexts else 1 + (gram in known) for gram in grams(text.stream, order)]
    return np.array([0] * (order - 2) + found)  # the first targets have no context of that length


def best(rungs: list[Baseline]) -> str:
    """The name of the table with the fewest bits per byte."""
    return min((rung for rung in rungs if "gram" in rung.name), key=lambda rung: rung.bits_per_byte).name


def experiment(lab: Lab) -> None:
    every = texts()
    ladders = {name: ladder(*parts) for name, parts in every.items()}
    rows = zip(*ladders.values(), strict=True)
    lab.table(["predictor", *every], [[row[0].name, *(rung.bits_per_byte for rung in row)] for row in rows])
    winners = {name: best(rungs) for name, rungs in ladders.items()}
    sizes = ", ".join(f"{train.bytes:,} of {name}" for name, (train, _) in every.items())
    lab.note(f"bytes counted: {sizes}")
    lab.note(f"the best table, in the same order: {', '.join(winners.values())}")

    lines = {name: [(i, rungs[i].bits_per_byte) for i in range(1, 7)] for name, rungs in ladders.items()}
    order_axis = "order of the table: it looks one token less far back"
    lab.figure(lambda: figures.lines(lines, x=order_axis, y="bits per byte, held out"))
    changes: dict[str, list[float]] = {}
    shares: list[list[object]] = []
    for name in ("2,000 names", "9,900 names"):
        train, text = every[name]
        five, six = (ngram_bits(train.stream, text.stream, order) for order in (5, 6))
        groups = groups_of(train, text, 6)
        changes[name] = [float((six - five)[groups == group].sum() / text.bytes) for group in range(3)]
        for group, label in enumerate(GROUPS):
            share = f"{100 * float((groups == group).mean()):.1f}%"
            bits = [float(bits[groups == group].mean()) for bits in (five, six)]
            shown = f"{changes[name][group]:+.3f}"
            shares.append([name if group == 0 else "", label, share, *bits, shown])
    lab.table(["text", "6-gram of a target", "targets", "5-gram", "6-gram", "bits per byte"], shares)

    far = {name: 100 * float((groups_of(*parts, 11) > 0).mean()) for name, parts in every.items()}
    lab.note(f"context of 10 tokens seen: {', '.join(f'{far[name]:.0f}% in {name}' for name in far)}")

    for name, rungs in ladders.items():
        prefix = name.replace(",", "").replace(" ", "_")
        for rung in rungs:
            compressor = rung.bits_per_boundary is None
            allowed = 0.2 if name == "prose" else 0.02 if compressor else 0.0
            lab.value(
                f"{prefix}_{rung.name.partition(' ')[0].replace('-', '_')}", rung.bits_per_byte, allowed
            )
    lab.value("lost", changes["2,000 names"][1])
    lab.value("gained", -changes["2,000 names"][2])
    lab.value("lost_later", changes["9,900 names"][1])
    lab.value("gained_later", -changes["9,900 names"][2])
    lab.value("far_names", far["2,000 names"])
    lab.value("far_prose", far["prose"], tolerance=6)
    fifth, bzip2 = (ladders["2,000 names"][rung].bits_per_byte for rung in (5, 8))
    lab.otherwise(
        "Longer is not better: 6-grams lose to 5-grams on prose and on 2,000 names, and win on 9,900. Where "
        "context and byte were seen together, the sixth byte helps. Where the context was seen and the byte "
        "after it is new, the table was sure and is wrong: such a byte is dear, and with little text these "
        f"few outweigh the many. And bzip2 needs {bzip2:.3f} on 2,000 names where the best table needs "
        f"{fifth:.3f}: it sorts all bytes by what stands beside them, however far that agrees, so that a "
        "phrase of thirty bytes is one thing to it."
    )
    lab.costs(
        "One sort of the text per order: seconds, and an entry for each different gram. Every model of this "
        "walkthrough is held against this ladder, so a table that quietly does not sum to 1, or forgets the "
        "ends, would make every later result look good or bad for no reason."
    )
    lab.proves(
        "that counting alone takes a text from 8 bits per byte to about 2, and that the best order depends "
        "on how much text was counted: the same names, more of them, want a longer memory.",
        does_not_prove="that a table understands anything: it cannot use two contexts that are alike, only "
        "equal ones. What a model with a gradient does about that is the next stages' matter.",
    )
    uniform = [rungs[0].bits_per_byte_without_boundaries for rungs in ladders.values()]
    lab.check("knowing nothing costs log2(257) per byte", uniform == [math.log2(257)] * len(ladders))
    lab.check("each of the first four orders helps", all(map(steps_down, ladders.values())))
    order = [winners[f"{count:,} names"] for count in NAMES]
    lab.check("more text, longer memory", order == ["4-gram", "5-gram", "6-gram"])
    lab.check("prose: 5 beats 6", winners["prose"] == "5-gram")
    table = Ngrams.count(every["2,000 names"][0].stream, 6)
    sums = [float(table.distribution([*context]).sum()) for context in (b"", b"A", b"LATIN", b"ZZZZZ")]
    lab.check("probabilities sum to 1", max(abs(total - 1) for total in sums) < 1e-9)
    for name, change in changes.items():
        apart = ladders[name][6].bits_per_byte - ladders[name][5].bits_per_byte
        lab.check(f"{name}: the groups add up", abs(sum(change) - apart) < 1e-12)
        lab.check(f"{name}: without a context, 6 is 5", change[0] == 0)


def steps_down(rungs: list[Baseline]) -> bool:
    """Whether uniform and orders 1 to 4 each need fewer bits than the one before."""
    return all(above.bits_per_byte > below.bits_per_byte for above, below in pairwise(rungs[:5]))


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
