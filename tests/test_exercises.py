"""Exercises: the solutions pass, what is not written says so, and a typical mistake is named by its hint."""

from __future__ import annotations

import contextlib
import io
import textwrap
import unittest
from pathlib import Path
from unittest import mock

from tests.stage_support import STAGES
from tinylm.walkthrough import exercises, workspace
from tinylm.walkthrough.exercises import equal, find, main, problem, shown

EXERCISES = STAGES / "exercises"

SYLLABLE = """
def places(data):
    a, b, c = data
    index = ((a & 15) << 12) + ((b & MASK) << 6) + (c & MASK) - START
    return FOUND
"""


def syllable(found: str, mask: str = "63", start: str = "0xAC00") -> str:
    """Places in the tables by arithmetic of one's own."""
    return SYLLABLE.replace("FOUND", found).replace("MASK", mask).replace("START", start)


# For each exercise: a wrong answer, and what its hint has to say.
WRONG: dict[int, list[tuple[str, str]]] = {
    1: [
        (
            "def probability(counts, byte, shorter):\n    return counts.get(byte, 0) / sum(counts.values())",
            "nothing is kept back",
        ),
        (
            """
            def probability(counts, byte, shorter):
                total = sum(counts.values())
                return (counts.get(byte, 0) + len(counts) * shorter) / total
            """,
            "make no room",
        ),
        (
            """
            def probability(counts, byte, shorter):
                total = sum(counts.values()) + len(counts)
                return (counts.get(byte, 0) + len(counts) * shorter) / total
            """,
            "divides by 0",
        ),
        (
            """
            def probability(counts, byte, shorter):
                return (counts.get(byte, 0) + shorter) / (sum(counts.values()) + 1)
            """,
            "adds the number of kinds",
        ),
    ],
    2: [
        (
            """
            import math
            def gradient(logits, target):
                total = sum(map(math.exp, logits))
                return [math.exp(x) / total for x in logits]
            """,
            "take off what came",
        ),
        (
            """
            import math
            def gradient(logits, target):
                total = sum(map(math.exp, logits))
                return [(i == target) - math.exp(x) / total for i, x in enumerate(logits)]
            """,
            "the sign is turned round",
        ),
        (
            """
            import math
            def gradient(logits, target):
                total = sum(map(math.exp, logits))
                return [math.exp(x) / total - (i == target) for i, x in enumerate(logits)]
            """,
            "overflows",
        ),
    ],
    3: [
        (
            """
            def top_p(p, share):
                ranked, total = sorted(range(len(p)), key=lambda i: -p[i]), 0
                kept = []
                for i in ranked:
                    total += p[i]
                    if total >= share: break
                    kept.append(i)
                return sorted(kept)
            """,
            "keeps one id too few",
        ),
        (
            """
            def top_p(p, share):
                kept, total = [], 0
                for i in sorted(range(len(p)), key=lambda i: -p[i]):
                    kept.append(i)
                    total += p[i]
                    if total > share: break
                return sorted(kept)
            """,
            "keeps one id too many",
        ),
        (
            """
            def top_p(p, share):
                kept, total = [], 0
                for i in range(len(p)):
                    kept.append(i)
                    total += p[i]
                    if total >= share: break
                return kept
            """,
            "begin with the likeliest",
        ),
    ],
    4: [
        (
            "def stream(documents):\n    return [i for d in documents if d for i in (256, *d, 256)]",
            "two boundaries stand between",
        ),
        (
            """
            def stream(documents):
                ids = [256]
                for document in documents:
                    ids += [*document, 256]
                return ids
            """,
            "an empty document leaves a boundary behind",
        ),
        (
            """
            def stream(documents):
                ids = [256]
                for document in filter(None, documents):
                    ids += [256] if document == b"<|doc|>" else [*document]
                    ids.append(256)
                return ids
            """,
            "whoever types it can end a document",
        ),
    ],
    5: [
        (
            """
            def bind(shape, letters, sizes):
                for name, size in zip(letters.split(), shape):
                    if sizes.setdefault(name, size) != size: raise ValueError(name)
                return sizes
            """,
            "changes the `sizes`",
        ),
        (
            """
            def bind(shape, letters, sizes):
                bound = dict(sizes)
                for name, size in zip(letters.split(), shape):
                    if bound.setdefault(name, size) != size: raise ValueError(name)
                return bound
            """,
            "an axis too many passes",
        ),
        (
            """
            def bind(shape, letters, sizes):
                bound = dict(sizes)
                for name, size in zip(letters.split(), shape, strict=True):
                    if bound.setdefault(name, size) != size != 1: raise ValueError(name)
                return bound
            """,
            "broadcasting",
        ),
        (
            """
            def bind(shape, letters, sizes):
                bound = dict(sizes)
                for name, size in zip(letters.split(), shape, strict=True):
                    if bound.setdefault(name, size) != size: raise ValueError("wrong shape")
                return bound
            """,
            "does not name the letter",
        ),
    ],
    6: [
        ("def held_out(document, share):\n    return hash(document) % 2**64 < share * 2**64", "expected"),
        (
            """
            import random
            def held_out(document, share):
                return random.random() < share
            """,
            "answers differently",
        ),
        (
            """
            import hashlib
            def held_out(document, share):
                return int.from_bytes(hashlib.sha256(document).digest()[:8], "little") < share * 2**64
            """,
            "in the other order",
        ),
        (
            """
            import hashlib
            def held_out(document, share):
                return int.from_bytes(hashlib.sha256(document).digest()[:8], "big") >= share * 2**64
            """,
            "the sides are exchanged",
        ),
    ],
    7: [
        (
            """
            def rows(tokens, window):
                starts = range(0, len(tokens) - 1, window)
                return [(tokens[s : s + window + 1][:-1],) * 2 for s in starts]
            """,
            "the targets are the inputs",
        ),
        (
            """
            def rows(tokens, window):
                found = [tokens[s : s + window + 1] for s in range(0, len(tokens) - 1, window + 1)]
                return [(row[:-1], row[1:]) for row in found]
            """,
            "lose a target at each cut",
        ),
        (
            """
            def rows(tokens, window):
                found = [tokens[s : s + window + 1] for s in range(0, len(tokens) - window, window)]
                return [(row[:-1], row[1:]) for row in found]
            """,
            "is dropped",
        ),
        (
            """
            def rows(tokens, window):
                found = [tokens[s : s + window + 1] for s in range(0, len(tokens), window)]
                return [(row[:-1], row[1:]) for row in found]
            """,
            "a row without inputs",
        ),
    ],
    9: [
        ("layers * (2 * d * k * (h + g) + 3 * d * m + 2 * d + 2 * k) + d + v * d", "the head is missing"),
        ("layers * (2 * d * k * (h + g) + 2 * d * m + 2 * d + 2 * k) + d + 2 * v * d", "three matrices"),
        ("layers * (4 * d * k * h + 3 * d * m + 2 * d + 2 * k) + d + 2 * v * d", "kv_heads"),
        ("layers * (2 * d * k * (h + g) + 3 * d * m + 2 * d + 2 * k) + 2 * v * d", "last norm is missing"),
    ],
    10: [
        (
            "def step_loss(parts):\n    return sum(sum(p) / len(p) for p in parts) / len(parts)",
            "a mean of means",
        ),
        ("def step_loss(parts):\n    return sum(sum(p) / len(p) for p in parts)", "sum of the means"),
        (
            "def step_loss(parts):\n    return sum(map(sum, parts)) / sum(map(len, parts))",
            "divides by 0",
        ),
    ],
    11: [
        (
            """
            import math
            def bits_per_byte(documents):
                bits = [-math.log2(p) for ps, end in documents for p in (*ps, end)]
                return sum(bits) / len(bits)
            """,
            "the ends count below the line",
        ),
        (
            """
            import math
            def bits_per_byte(documents):
                bits = [-math.log2(p) for ps, end in documents for p in ps]
                return sum(bits) / len(bits)
            """,
            "the ends are free",
        ),
        (
            """
            import math
            def bits_per_byte(documents):
                own = [-sum(map(math.log2, (*ps, end))) / len(ps) for ps, end in documents]
                return sum(own) / len(own)
            """,
            "mean of the documents' own numbers",
        ),
        (
            """
            import math
            def bits_per_byte(documents):
                bits = -sum(math.log(p) for ps, end in documents for p in (*ps, end))
                return bits / sum(len(ps) for ps, _ in documents)
            """,
            "these are nats",
        ),
    ],
    12: [
        (
            """
            def generate(next_id, prompt, limit):
                ids = [256, *prompt] if isinstance(prompt, bytes) else list(prompt)
                sampled = []
                while len(sampled) < limit:
                    if 256 in ids + sampled: return sampled, "boundary"
                    sampled.append(next_id(ids + sampled))
                return sampled, "limit"
            """,
            "the boundary that was given ends it",
        ),
        (
            """
            def generate(next_id, prompt, limit):
                ids = [256, *prompt] if isinstance(prompt, bytes) else list(prompt)
                sampled = []
                while len(sampled) < limit:
                    new = next_id(ids + sampled)
                    if new == 256: return sampled, "boundary"
                    sampled.append(new)
                return sampled, "limit"
            """,
            "is the last of the sampled ids",
        ),
        (
            """
            def generate(next_id, prompt, limit):
                ids = [*prompt]
                sampled = []
                while len(sampled) < limit:
                    sampled.append(next_id(ids + sampled))
                    if sampled[-1] == 256: return sampled, "boundary"
                return sampled, "limit"
            """,
            "is to be fed [256] first",
        ),
        (
            """
            def generate(next_id, prompt, limit):
                ids = [256, *prompt] if isinstance(prompt, bytes) else list(prompt)
                sampled = []
                while True:
                    if len(sampled) == limit: return sampled, "limit"
                    if sampled[-1:] == [256]: return sampled, "boundary"
                    sampled.append(next_id(ids + sampled))
            """,
            "the boundary counts first",
        ),
    ],
    13: [
        (
            """
            import json
            def differences(header, expected):
                found = json.loads(header)
                return sorted(n for n in expected if found.get(n) != expected[n])
            """,
            "the last of two equal keys wins",
        ),
        (
            """
            import json
            def differences(header, expected):
                found = json.loads(header)
                return sorted(n for n in found if n in expected and found[n] != expected[n])
            """,
            "absence is a difference too",
        ),
        (
            """
            import json
            def differences(header, expected):
                found = json.loads(header)
                for name in sorted(expected):
                    if found.get(name) != expected[name]: return [name]
                return []
            """,
            "stops at the first difference",
        ),
    ],
    14: [
        (
            """
            import math
            steps = 0
            def adam_step(weight, gradient, state, rate=0.1):
                global steps
                steps = steps + 1 if state else 1
                mean = 0.8 * state.get("mean", 0.0) + 0.2 * gradient
                square = 0.95 * state.get("square", 0.0) + 0.05 * gradient**2
                weight -= rate * (mean / (1 - 0.8**steps)) / (math.sqrt(square / (1 - 0.95**steps)) + 1e-8)
                return weight, {"mean": mean, "square": square}
            """,
            "something that a step needs is not in the state",
        ),
        (
            """
            import math
            def adam_step(weight, gradient, state, rate=0.1):
                mean = 0.8 * state.get("mean", 0.0) + 0.2 * gradient
                square = 0.95 * state.get("square", 0.0) + 0.05 * gradient**2
                return weight - rate * mean / (math.sqrt(square) + 1e-8), {"mean": mean, "square": square}
            """,
            "the young averages are not corrected",
        ),
        (
            """
            import math
            def adam_step(weight, gradient, state, rate=0.1):
                state["t"] = state.get("t", 0) + 1
                state["mean"] = 0.8 * state.get("mean", 0.0) + 0.2 * gradient
                state["square"] = 0.95 * state.get("square", 0.0) + 0.05 * gradient**2
                root = math.sqrt(state["square"] / (1 - 0.95 ** state["t"])) + 1e-8
                return weight - rate * state["mean"] / (1 - 0.8 ** state["t"]) / root, state
            """,
            "changes the state",
        ),
        (
            """
            import math
            def adam_step(weight, gradient, state, rate=0.1):
                mean = 0.8 * state.get("mean", 0.0) + 0.2 * gradient
                square = 0.95 * state.get("square", 0.0) + 0.05 * gradient**2
                step = rate * (mean / 0.2) / (math.sqrt(square / 0.05) + 1e-8)
                return weight - step, {"mean": mean, "square": square}
            """,
            "t is not counted",
        ),
    ],
    15: [
        (
            "def mask(ids):\n    return [[s <= t for s in range(len(ids))] for t in range(len(ids))]",
            "is no wall",
        ),
        (
            """
            def mask(ids):
                n = [sum(i == 256 for i in ids[: t + 1]) for t in range(len(ids))]
                return [[a == b for b in n] for a in n]
            """,
            "the future is seen",
        ),
        (
            """
            def mask(ids):
                n = [sum(i == 256 for i in ids[:t]) for t in range(len(ids))]
                return [[s <= t and a == b for s, b in enumerate(n)] for t, a in enumerate(n)]
            """,
            "put to the document before it",
        ),
        ("def mask(ids):\n    return [[1] * len(ids)] * len(ids)", "True and False"),
    ],
    16: [
        (
            "def feed(held, new):\n    return (held + new).decode(errors='replace'), b''",
            "before it was whole",
        ),
        ("def feed(held, new):\n    return (held + new).decode(), b''", "before it is whole"),
        (
            """
            def feed(held, new):
                data = held + new
                try:
                    return data.decode(), b""
                except UnicodeDecodeError:
                    return "", data
            """,
            "everything is held",
        ),
    ],
    17: [
        (
            """
            def events(chunks):
                return [chunk.decode().strip()[6:] for chunk in chunks]
            """,
            "a chunk may end inside a character",
        ),
        (
            """
            def events(chunks):
                body = b"".join(chunks).decode()
                return [part[6:].strip() for part in body.split("\\n\\n")[:-1]]
            """,
            "only ONE space goes",
        ),
        (
            """
            def events(chunks):
                lines = b"".join(chunks).decode().split("\\n")
                return [line[5:].removeprefix(" ") for line in lines if line.startswith("data:")]
            """,
            "joined by a line feed",
        ),
    ],
    18: [
        (
            "def rows_of(step, batch, rank, ranks):\n"
            "    first = (step * ranks + rank) * batch\n    return list(range(first, first + batch))",
            "takes a whole batch",
        ),
        (
            "def rows_of(step, batch, rank, ranks):\n"
            "    size = batch // ranks\n    first = step * batch + rank * size\n"
            "    return list(range(first, first + size))",
            "takes neighbours",
        ),
        (
            "def rows_of(step, batch, rank, ranks):\n"
            "    size = batch // ranks\n"
            "    return [step * batch + rank + i * ranks for i in range(size)]",
            "taken by nobody",
        ),
    ],
    19: [
        (
            """
            import math
            def rotate(head, position, theta=10_000.0):
                out = list(head)
                for i in range(len(head) // 2):
                    a, (x, y) = position * theta ** (-2 * i / len(head)), head[2 * i : 2 * i + 2]
                    out[2 * i] = x * math.cos(a) - y * math.sin(a)
                    out[2 * i + 1] = x * math.sin(a) + y * math.cos(a)
                return out
            """,
            "neighbours are paired",
        ),
        (
            """
            import math
            def rotate(head, position, theta=10_000.0):
                out, half = list(head), len(head) // 2
                for i in range(half):
                    a, x, y = position * theta ** (-i / len(head)), head[i], head[i + half]
                    out[i] = x * math.cos(a) - y * math.sin(a)
                    out[i + half] = x * math.sin(a) + y * math.cos(a)
                return out
            """,
            "yours is -i / K",
        ),
        (
            """
            import math
            def rotate(head, position, theta=10_000.0):
                out, half = list(head), len(head) // 2
                for i in range(half):
                    a, x, y = position * theta ** (-2 * i / len(head)), head[i], head[i + half]
                    out[i] = x * math.cos(a) + y * math.sin(a)
                    out[i + half] = y * math.cos(a) - x * math.sin(a)
                return out
            """,
            "the other way round",
        ),
    ],
    20: [
        ("def emitted(draft, drawn):\n    return list(drawn)", "after a wrong guess the model has read"),
        (
            """
            def emitted(draft, drawn):
                right = 0
                while right < len(draft) and draft[right] == drawn[right]:
                    right += 1
                return list(draft[:right])
            """,
            "the draw after the last of them counts",
        ),
        (
            """
            def emitted(draft, drawn):
                right = 0
                while right < len(draft) and draft[right] == drawn[right]:
                    right += 1
                return list(drawn[: right + 1]) if right == len(draft) else list(drawn[:right])
            """,
            "it must not be lost",
        ),
        ("def emitted(draft, drawn):\n    return [*draft, drawn[-1]]", "a wrong guess is not emitted"),
        ("def emitted(draft, drawn):\n    return [drawn[0]]", "not yet right"),
    ],
    21: [
        (syllable("index // 588, index // 28 % 21, index % 28", start="0"), "begin at 0xAC00"),
        (syllable("index // 588, index // 21 % 28, index % 21"), "not the other way round"),
        (syllable("index // 588, index // 28, index % 28"), "take it modulo 21"),
        (syllable("index // 567, index // 27 % 21, index % 27"), "one of which is none"),
        (syllable("index // 588, index // 28 % 21, index % 28", mask="255"), "are no part of the number"),
        (syllable("index % 28, index // 28 % 21, index // 588"), "the order is"),
    ],
}

ATTENTION = """
import math
def attention(queries, keys, values):
    out = []
    for t, query in enumerate(queries):
        scores = [sum(a * b for a, b in zip(query, key)) / SCALE for key in keys]
        weights = [math.exp(score) * (SEEN) for s, score in enumerate(scores)]
        total = sum(weights)
        out.append([sum(w / total * row[i] * (KEPT) for s, (w, row) in enumerate(zip(weights, values)))
                    for i in range(len(values[0]))])
    return out
"""


def attention(seen: str = "s <= t", scale: str = "math.sqrt(len(query))", kept: str = "1") -> str:
    """Attention with a rule of one's own about who is seen, how scores are scaled, and what is kept."""
    return ATTENTION.replace("SEEN", seen).replace("SCALE", scale).replace("KEPT", kept)


WRONG[9] = [
    (f"def parameters(layers, d, m, h, g, k, v=257):\n    return {formula}", expected)
    for formula, expected in WRONG[9]
]
WRONG[8] = [
    (attention(seen="1"), "sees its future"),
    (attention(seen="1", kept="s <= t"), "the mask comes after the softmax"),
    (attention(scale="1"), "not divided by the square root"),
    (attention(seen="s <= t + 1"), "one position too many"),
    (attention(), "overflows"),
]


def hint(number: int, source: str) -> str | None:
    """What the check of an exercise says to an answer."""
    with workspace() as folder:
        answer = folder / find(EXERCISES)[number].name
        answer.write_text(textwrap.dedent(source), encoding="utf-8")
        return problem(answer, EXERCISES / "checks")


def run(*arguments: str, folder: Path = EXERCISES) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main(folder, arguments)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue()


class Files(unittest.TestCase):
    def test_every_stage_has_one_exercise_with_its_check_and_its_solution(self) -> None:
        stages = {int(path.stem.split("_")[1]) for path in STAGES.glob("stage_[0-9][0-9]_*.py")}
        names = [path.name for path in find(EXERCISES).values()]
        self.assertEqual(stages - find(EXERCISES).keys(), set(), "give these stages an exercise")
        self.assertEqual(len(names), len(list(EXERCISES.glob("exercise_*.py"))))
        for place in ("checks", "solutions"):
            self.assertEqual(names, [path.name for path in find(EXERCISES / place).values()], place)

    def test_every_page_names_the_command_that_checks_its_exercise(self) -> None:
        for script in STAGES.glob("stage_[0-9][0-9]_*.py"):
            number = script.stem.split("_")[1]
            with self.subTest(script.name):
                page = script.with_suffix(".md").read_text("utf-8")
                for named in (f"check.py {number}", f"exercises/{find(EXERCISES)[int(number)].name}"):
                    self.assertTrue(named in page, f"the page does not name {named}")


class Answers(unittest.TestCase):
    def test_every_solution_passes(self) -> None:
        for number, path in find(EXERCISES / "solutions").items():
            with self.subTest(number):
                self.assertIsNone(problem(path, EXERCISES / "checks"))

    def test_what_is_not_written_says_where_to_write_it(self) -> None:
        for number, path in find(EXERCISES).items():
            with self.subTest(number):
                self.assertRegex(
                    problem(path, EXERCISES / "checks") or "", rf"not written yet: .*{path.name}"
                )

    def test_an_answer_that_ends_the_program_is_not_right(self) -> None:
        for line in ("import sys; sys.exit(0)", "def stream(*given):\n    raise SystemExit"):
            self.assertIn("ends the program", hint(4, line) or "")

    def test_an_answer_that_does_not_end_is_stopped_where_it_stands_and_the_next_one_is_checked(self) -> None:
        loops = "def stream(documents):\n    while documents:\n        pass"
        # One call that never gives the interpreter back, and one that takes the alarm clock away too.
        deaf = "import itertools\ndef stream(documents):\n    return sum(itertools.repeat(0))"
        deafer = "import faulthandler\nfaulthandler.cancel_dump_traceback_later()\nwhile True:\n    pass"
        gone = "import os\nos._exit(0)"
        with workspace() as folder, mock.patch.object(exercises, "GRACE", 0.5):
            paths = []
            for number, source in enumerate((loops, deaf, deafer, gone)):
                paths.append(folder / f"그 {number}" / find(EXERCISES)[4].name)
                paths[-1].parent.mkdir()
                paths[-1].write_text(source, encoding="utf-8")
            paths += [find(EXERCISES / "solutions")[4], find(EXERCISES)[4]]
            said = list(exercises.judge(paths, EXERCISES / "checks", seconds=0.5))
        stopped = "does not end: stopped after 0.5 s"
        self.assertIn(f"{stopped} (it stands at line 2: while documents:); look", said[0] or "")
        self.assertIn(f"{stopped} (it stands at line 3: return sum(", said[1] or "")
        self.assertIn(f"{stopped}; look for a loop", said[2] or "")
        self.assertIn("ends the program", said[3] or "")
        self.assertIsNone(said[4])
        self.assertIn("not written yet", said[5] or "")

    def test_a_check_that_fails_itself_is_not_the_reader_s_mistake(self) -> None:
        with workspace() as folder:
            for place in (folder, folder / "checks"):
                place.mkdir(exist_ok=True)
                (place / "exercise_04_stream.py").write_text("def check(answer):\n    1 / 0\n")
            with self.assertRaisesRegex(
                RuntimeError, "the check of exercise_04_stream.py failed:.*(?s:.)*division"
            ):
                list(exercises.judge([folder / "exercise_04_stream.py"], folder / "checks"))

    def test_typical_mistakes_are_named(self) -> None:
        self.assertEqual(WRONG.keys(), find(EXERCISES).keys())
        for number, answers in WRONG.items():
            self.assertGreaterEqual(len(answers), 3, number)
            for source, expected in answers:
                with self.subTest(number, expected=expected):
                    said = hint(number, source)
                    self.assertIsNotNone(said, "a wrong answer passed")
                    self.assertIn(expected, said or "")

    def test_a_hint_shows_the_call_and_both_values(self) -> None:
        self.assertEqual(
            hint(3, WRONG[3][0][0]),
            "your top-p keeps one id too few: the one that reaches the share belongs to it: for "
            "top_p([0.5, 0.3, 0.2], 0.7) expected [0, 1], yours gives [0]",
        )

    def test_an_error_in_the_answer_is_shown_with_its_line(self) -> None:
        said = hint(4, "def stream(documents):\n    return documents + 1")
        self.assertIn("raises TypeError", said or "")
        self.assertIn("line 2: return documents + 1", said or "")
        self.assertIn("raises SyntaxError", hint(4, "def stream(:") or "")
        self.assertIn("has no attribute 'stream'", hint(4, "def other(documents):\n    return []") or "")


class Command(unittest.TestCase):
    def test_one_exercise_or_all(self) -> None:
        code, printed = run("4", "12")
        self.assertEqual(code, 1)
        self.assertEqual([line[:2] for line in printed.splitlines()], ["04", "12", "0 "])
        code, printed = run("--solutions")
        self.assertEqual((code, printed.splitlines()[-1]), (0, f"{len(WRONG)} of {len(WRONG)} right"))

    def test_a_number_without_an_exercise_is_refused(self) -> None:
        code, printed = run("77")
        self.assertEqual(code, 2)
        self.assertIn("no exercise 77; there are 01, 02", printed)


class Values(unittest.TestCase):
    def test_a_truth_value_is_not_a_number_and_lists_are_compared_by_item(self) -> None:
        for one, other in (
            (1, 1.0),
            ([1, 2], (1, 2)),
            (0.1 + 0.2, 0.3),
            ({"a": [1]}, {"a": [1.0]}),
            ("a", "a"),
        ):
            self.assertTrue(equal(one, other), (one, other))
        for one, other in ((1, True), ([1], [1, 1]), (0.3, 0.31), ("1", 1), (None, 0), (b"a", "a"), ({}, [])):
            self.assertFalse(equal(one, other), (one, other))

    def test_values_are_shown_short(self) -> None:
        self.assertEqual(shown([1 / 3, 2]), "[0.333333, 2]")
        self.assertLessEqual(len(shown(list(range(1000)))), 160)


if __name__ == "__main__":
    unittest.main()
