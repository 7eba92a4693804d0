"""Stage 07: rows, epochs and steps, and what is lost when examples are drawn at random."""

import math
import sys
from itertools import islice

import numpy as np

from tinylm import tokenizer
from tinylm.batches import IGNORED, Integers, Plan, gather, rows_in_order
from tinylm.config import CorpusConfig, Policy
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split
from tinylm.sources import open_sources
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=7,
    title="batches",
    question="What is one training example?",
    hypothesis="A window of T tokens, and the same window shifted by one as its targets. As many windows as "
    "fill the text, drawn anywhere in it, see nearly every byte; a plan sees each exactly once. Cutting a "
    "document to fit a row is harmless as long as no cut becomes an end.",
    experiment="one epoch of a real text under each way of choosing rows; count how often each token is a "
    "target, how many documents seem to end, and how many would if every cut closed its document",
    next="Can a position read its future?",
)
WINDOW = 64
BATCH_ROWS = 16
DOCUMENTS = 20_000
POLICIES: tuple[Policy, ...] = ("cross", "reset")
EXAMPLE = (b"ab", b"cdefg")

Rows = tuple[Integers, Integers]


def real_text() -> Split:
    """Characters and their names, one document each: the same text on every Python."""
    documents = islice(open_sources(["builtin:unicode"], CorpusConfig()).documents(), DOCUMENTS)
    return Split.of(b"".join(document.chunks) for document in documents)


def drawn(split: Split) -> Rows:
    """The usual loop: as many windows as fill the text, each beginning anywhere."""
    count = -(-(len(split.stream) - 1) // WINDOW)
    starts = np.random.default_rng(0).integers(0, len(split.stream) - WINDOW, count)
    return starts, np.full(count, WINDOW)


def planned(plan: Plan) -> Rows:
    """Starts and lengths of the rows of epoch 0, as the steps of a run take them."""
    rows = plan.rows_of_epoch(0)
    steps = [plan.rows(step) for step in range(-(-rows // plan.batch_rows))]
    starts, lengths = (np.concatenate([step[part] for step in steps])[:rows] for part in (0, 1))
    return starts, lengths


def times_scored(split: Split, rows: Rows) -> Integers:
    """How often each token of the stream is a target, the first left out: it can be none."""
    starts, lengths = rows
    change = np.zeros(len(split.stream) + 1, dtype=np.int64)
    np.add.at(change, starts + 1, 1)
    np.add.at(change, starts + lengths + 1, -1)
    return np.cumsum(change)[1:-1]


def coverage(split: Split, rows: Rows) -> list[tuple[float, float]]:
    """After each twentieth of an epoch's rows: the share of the targets seen so far, both in percent."""
    seen = [0.0]
    for part in range(1, 21):
        until = part * len(rows[0]) // 20
        seen.append(100 * float((times_scored(split, (rows[0][:until], rows[1][:until])) > 0).mean()))
    return [(5 * part, share) for part, share in enumerate(seen)]


def ends(split: Split, rows: Rows) -> tuple[int, int]:
    """Boundary targets: as they are, and if every row that cuts a document closed it."""
    starts, lengths = rows
    real = int(times_scored(split, rows)[split.stream[1:] == DOC_BOUNDARY].sum())
    cut = split.stream[starts + lengths] != DOC_BOUNDARY
    return real, real + int(cut.sum())


def example_rows(policy: Policy, window: int) -> list[list[object]]:
    """Rows of a table: what each row of the two example documents takes in and must say."""
    split = Split.of(EXAMPLE)
    rows = gather(split.stream, *rows_in_order(split, policy, window), window)
    shown: list[list[object]] = []
    for inputs, targets in zip(*rows, strict=True):
        scored = targets != IGNORED
        given, wanted = tokenizer.debug_decode(inputs[scored]), tokenizer.debug_decode(targets[scored])
        shown.append([policy, given, wanted, int((~scored).sum())])
    return shown


def experiment(lab: Lab) -> None:
    split = real_text()
    plans = {f"planned, {policy}": Plan(split, policy, WINDOW, BATCH_ROWS, seed=0) for policy in POLICIES}
    ways = {"drawn at random": drawn(split)} | {way: planned(plan) for way, plan in plans.items()}
    counts = {way: times_scored(split, rows) for way, rows in ways.items()}
    missed = {way: 100 * float((count == 0).mean()) for way, count in counts.items()}
    again = {way: 100 * float((count > 1).mean()) for way, count in counts.items()}
    most = {way: int(count.max()) for way, count in counts.items()}
    lab.table(
        ["rows", "number", "never seen", "seen again", "at most", "ends", "if cuts closed"],
        [
            [way, len(rows[0]), f"{missed[way]:.1f}%", f"{again[way]:.1f}%", most[way], *ends(split, rows)]
            for way, rows in ways.items()
        ],
    )
    lab.note(f"documents: {split.documents:,}; targets: {len(split.stream) - 1:,}; window: {WINDOW}")
    examples = [row for policy in POLICIES for row in example_rows(policy, 4)]
    lab.table(["policy", "inputs", "targets", "masked"], examples)
    random, cross, reset = ways
    lines = {way: coverage(split, rows) for way, rows in ways.items()}
    lab.figure(
        lambda: figures.lines(
            lines,
            x="rows of the epoch, %",
            y="targets seen at least once, %",
            levels={"1 - 1/e": 100 * (1 - math.exp(-1))},
        )
    )
    invented = {way: ends(split, ways[way])[1] - split.documents for way in plans}
    lab.value("documents", split.documents)
    lab.value("missed_percent", missed[random], tolerance=1.0)
    lab.value("again_percent", again[random], tolerance=1.0)
    lab.value("rows_cross", len(ways[cross][0]))
    lab.value("rows_reset", len(ways[reset][0]))
    lab.value("invented_cross", invented[cross])
    lab.value("invented_reset", invented[reset])
    lab.otherwise(
        f"Windows drawn at random miss {missed[random]:.1f}% of the targets, near the 1/e = 36.8% of drawing "
        f"with replacement, and see others up to {most[random]} times. The totals hide it: the number of "
        f"ends that were scored is nearly right. Closing every cut would invent {invented[cross]:,} ends "
        "under cross, one in nearly every row, each an example of stopping in the middle of a document."
    )
    lab.costs(
        "A keyed permutation costs a few integer operations per row and leaves no state to save: step s is "
        "computed from (corpus, policy, window, seed, s) alone. cross pays with rows that hold several "
        "documents, reset with padding and rows of several lengths. A mistake in this room reaches every "
        "result quietly: with targets that are not shifted, a model seems to know everything."
    )
    lab.proves(
        "that an epoch scores every token exactly once, and a boundary as often as a document ends, "
        "under both policies; that a step asked alone is the step of the run.",
        does_not_prove="that either policy trains better, that attention stays inside a document (stage 15), "
        "or that a position cannot read its target (stage 08).",
    )
    for way, plan in plans.items():
        lab.check(f"{way}: every target exactly once", bool((counts[way] == 1).all()))
        lab.check(f"{way}: ends are documents", ends(split, ways[way])[0] == split.documents)
        alone = Plan(split, plan.policy, WINDOW, BATCH_ROWS, seed=0).batch(500)
        in_turn = plan.batch(500)
        lab.check(f"{way}: a step asked alone", np.array_equal(alone.inputs_BT, in_turn.inputs_BT))
    wanted = tokenizer.debug_decode(Split.of(EXAMPLE).stream[1:])
    for policy in POLICIES:
        targets = "".join(str(row[2]) for row in examples if row[0] == policy)
        lab.check(f"{policy}: targets are the stream, one token on", targets == wanted)
    lab.check("random windows miss about 1/e", abs(missed[random] / 100 - math.exp(-1)) < 0.03)


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
