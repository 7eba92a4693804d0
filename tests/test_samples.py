"""The sample documents that ship with the project: every one arrives byte for byte."""

import unicodedata
import unittest

from tests.stage_support import ROOT
from tinylm import tokenizer

FOLDER = ROOT / "corpora" / "samples"
SCRIPTS = (
    *("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "DEVANAGARI", "BENGALI"),
    *("TAMIL", "THAI", "HANGUL", "HIRAGANA", "KATAKANA", "CJK"),
)
DECOMPOSED = "composed_and_decomposed.txt"


class TheSamples(unittest.TestCase):
    def setUp(self) -> None:
        self.documents = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir())}

    def test_are_36_to_48_short_text_files_with_a_final_newline(self) -> None:
        self.assertTrue(36 <= len(self.documents) <= 48, len(self.documents))
        for name, data in self.documents.items():
            self.assertTrue(name.endswith(".txt"), name)
            self.assertTrue(150 <= len(data) <= 700, f"{name} has {len(data)} bytes")
            self.assertTrue(data.endswith(b"\n") and not data.endswith(b"\n\n"), name)
        self.assertEqual(len(set(self.documents.values())), len(self.documents))

    def test_round_trip_through_the_tokenizer(self) -> None:
        for name, data in self.documents.items():
            text = data.decode("utf-8")
            self.assertEqual(tokenizer.decode_bytes(tokenizer.encode(text)), data, name)

    def test_cover_at_least_14_scripts(self) -> None:
        text = "".join(data.decode("utf-8") for data in self.documents.values())
        found = {unicodedata.name(c).partition(" ")[0] for c in text if c.isalpha()}
        self.assertEqual([script for script in SCRIPTS if script not in found], [])
        self.assertGreaterEqual(len(SCRIPTS), 14)

    def test_special_bytes_are_where_the_description_says(self) -> None:
        documents = self.documents
        self.assertTrue(documents["byte_order_mark.txt"].startswith(b"\xef\xbb\xbf"))
        carriage = documents["carriage_returns.txt"]
        self.assertEqual(carriage.count(b"\r\n"), carriage.count(b"\n"))
        self.assertEqual(carriage.count(b"\r\n"), 4)
        self.assertEqual(
            [name for name, data in documents.items() if b"\r" in data], ["carriage_returns.txt"]
        )
        for form in ("NFC", "NFD"):
            self.assertIn(unicodedata.normalize(form, "caf\u00e9").encode(), documents[DECOMPOSED])
        self.assertIn(b"<|doc|><|doc|>", documents["typed_boundary.txt"])
        self.assertIn("\u200d".encode(), documents["emoji_weather.txt"])
        self.assertIn("\u200c".encode(), documents["persian_alefba.txt"])
        self.assertIn("«\u00a0".encode(), documents["french_accents.txt"])
        self.assertIn(b"\t", documents["english_table.txt"])

    def test_all_others_are_composed(self) -> None:
        for name, data in self.documents.items():
            if name != DECOMPOSED:
                text = data.decode("utf-8")
                self.assertEqual(unicodedata.normalize("NFC", text), text, name)

    def test_table_of_byte_counts_is_true(self) -> None:
        rows = self.documents["english_table.txt"].decode("utf-8").splitlines()[1:]
        for character, code_point, size in (row.split("\t") for row in rows):
            self.assertEqual((f"U+{ord(character):04X}", str(len(character.encode()))), (code_point, size))

    def test_python_code_runs(self) -> None:
        names: dict[str, object] = {"__name__": "sample"}
        exec(compile(self.documents["python_code.txt"], "python_code.txt", "exec"), names)
        bigrams = names["bigrams"]
        self.assertEqual(dict(bigrams(b"banana")), {(97, 110): 2, (110, 97): 2, (98, 97): 1})  # type: ignore[operator]

    def test_git_never_converts_them(self) -> None:
        self.assertIn("/corpora/samples/** -text", (ROOT / ".gitattributes").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
