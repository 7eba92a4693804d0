"""Stage 21: what is held out, how a name is scored, and a table that has nothing to go by."""

from __future__ import annotations

import unicodedata
import unittest

from tests.stage_support import load_stage, run_stage, stage_path
from tinylm.baselines import Ngrams
from tinylm.contract import DOC_BOUNDARY
from tinylm.corpus import Split

stage = load_stage(21)


class Syllables(unittest.TestCase):
    def test_every_syllable_is_there_once_and_a_tenth_is_held_out(self) -> None:
        seen, unseen = stage.syllables()
        every = sorted(seen + unseen)
        names = [
            f"{chr(n)}\t{unicodedata.name(chr(n)).removeprefix('HANGUL SYLLABLE ')}"
            for n in range(0xAC00, 0xD7A4)
        ]
        self.assertEqual(every, sorted(name.encode() for name in names))
        self.assertEqual((len(seen), len(unseen)), (10_055, 1_117))
        self.assertEqual(max(len(name) for name in every), stage.GIVEN + stage.LONGEST)
        self.assertEqual(stage.CONFIG.window, 1 + stage.GIVEN + stage.LONGEST)
        # Spread over all of them: every initial, vowel and final is among what is held out.
        for number, kinds in enumerate((19, 21, 28)):
            self.assertEqual(len({stage.parts(row[4:])[number] for row in unseen}), kinds)

    def test_a_name_has_three_parts(self) -> None:
        for name, parts in (
            (b"HAN", ("H", "A", "N")),
            (b"A", ("", "A", "")),
            (b"GGWAEBS", ("GG", "WAE", "BS")),
            (b"YUNG", ("", "YU", "NG")),
        ):
            self.assertEqual(stage.parts(name), parts)
        for wrong in (b"", b"NG", b"HANA", b"HAX", b"\xff", b"HAN "):
            self.assertEqual(stage.parts(wrong), ("?", "?", "?"))

    def test_parts_are_scored_one_by_one(self) -> None:
        documents = ["한\tHAN".encode(), "값\tGABS".encode()]
        self.assertEqual(stage.score([b"HAN", b"GABS"], documents), [100, 100, 100, 100])
        self.assertEqual(stage.score([b"HAM", b"GAB"], documents), [100, 100, 0, 0])
        self.assertEqual(stage.score([b"HAN", b"NA"], documents), [50, 100, 50, 50])
        self.assertEqual(stage.score([b"", b"HANA"], documents), [0, 0, 0, 0])


class Namers(unittest.TestCase):
    def test_the_likeliest_token_is_taken_until_the_document_ends(self) -> None:
        asked: list[list[int]] = []

        def likeliest(rows: list[list[int]]) -> list[int]:
            asked.extend(rows)
            return [(*b"HAN", DOC_BOUNDARY, *b"XYZW")[len(rows[0]) - 5]] * len(rows)

        documents = ["한\tHAN".encode(), "값\tGABS".encode()]
        self.assertEqual(stage.greedy(likeliest, documents), [b"HAN", b"HAN"])
        self.assertEqual(asked[:2], [[DOC_BOUNDARY, *document[:4]] for document in documents])
        self.assertEqual(stage.greedy(lambda rows: [65] * len(rows), documents), [b"", b""])  # no end

    def test_a_table_names_what_it_counted_and_has_nothing_for_what_it_did_not(self) -> None:
        seen = [f"{chr(0xAC00 + n)}\t{name}".encode() for n, name in ((0, "GA"), (700, "GGAN"))]
        table = stage.by_table(Ngrams.count(Split.of(seen).stream, 7))
        self.assertEqual(stage.greedy(table, seen), [b"GA", b"GGAN"])
        self.assertNotIn(stage.greedy(table, ["한\tHAN".encode()])[0], [b"HAN"])


class TheStage(unittest.TestCase):
    def test_the_quick_run_passes_and_fits_a_terminal(self) -> None:
        code, printed = run_stage(stage, "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_the_numbers_of_the_page_that_no_training_decides(self) -> None:
        text = stage_path(21).with_suffix(".md").read_text("utf-8")
        self.assertIn("1,117<!--=unseen-->", text)
        self.assertIn("10,055<!--=seen-->", text)


if __name__ == "__main__":
    unittest.main()
