"""tinylm evaluate as a user types it: protocols, comparisons, compressing and restoring."""

import json
import unittest
from pathlib import Path
from unittest import mock

from tests.test_cli import TEXTS, Case, command
from tests.test_evaluate import SMALL, trained
from tinylm.checkpoint import save_model
from tinylm.config import CorpusConfig, EvaluateConfig
from tinylm.corpus import build_corpus, open_corpus
from tinylm.evaluate import compare, evaluate


class EvaluateCase(Case):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.model, cls.other = trained(SMALL), trained(SMALL, seed=9)
        cls.validation = open_corpus(cls.shared / "corpus").validation
        save_model(cls.shared / "one.safetensors", cls.model)
        save_model(cls.shared / "two.safetensors", cls.other)

    def setUp(self) -> None:
        super().setUp()
        self.one, self.two = str(self.shared / "one.safetensors"), str(self.shared / "two.safetensors")
        self.before = ("evaluate", self.one, self.corpus, "--device", "cpu")

    def run_json(self, *words: str) -> dict:
        code, out, error = command(*words, "--json", "--no-ladder")
        self.assertEqual(code, 0, error)
        return json.loads(out)

    def printed(self, *words: str) -> str:
        code, out, error = command(*words)
        self.assertEqual(code, 0, error)
        return out


class Measuring(EvaluateCase):
    def test_protocol_stride_limit_and_rows_reach_the_result(self) -> None:
        for words, how in (
            ((), {}),
            (("--protocol", "strided"), {"protocol": "strided"}),
            (("--protocol", "strided", "--stride", "3"), {"protocol": "strided", "stride": 3}),
            (("--limit", "100", "--rows", "2"), {"limit": 100, "rows": 2}),
        ):
            found = self.run_json(*self.before, *words)
            expected = {"checkpoint": self.one, **evaluate(self.model, self.validation, **how).to_dict()}
            self.assertEqual(found, {**expected, "ladder": []})

    def test_the_table_says_protocol_stride_error_and_split(self) -> None:
        out = self.printed(*self.before, "--protocol", "strided", "--stride", "3")
        words = "strided, window 16, stride 3, policy cross, float32 on cpu, standard error over "
        for part in (words, "documents", "standard error", self.validation.digest[:12], "5-gram"):
            self.assertIn(part, out)

    def test_against_another_checkpoint_gives_both_and_their_difference(self) -> None:
        build_corpus(TEXTS, "half", CorpusConfig(validation=0.5))
        half = open_corpus("half").validation
        words = ("evaluate", self.one, "half", "--device", "cpu", "--protocol", "strided", "--against")
        found = self.run_json(*words, self.two)
        expected = compare(self.model, self.other, half, protocol="strided")
        self.assertEqual(found["against"], {"checkpoint": self.two, **expected.against.to_dict()})
        self.assertEqual(found["difference"], json.loads(json.dumps(expected.difference.to_dict())))
        self.assertEqual(found["bits_per_byte"], expected.model.bits_per_byte)
        out = self.printed(*words, self.two)
        better = {"model": "this model is better", "against": "the other model is better"}
        verdict = better[expected.difference.better]
        difference = f"{expected.difference.difference:+.4f}"
        for part in (difference, f"paired over {half.documents} documents: {verdict}", "5-gram"):
            self.assertIn(part, out)
        self.assertIn("not distinguishable on this text", self.printed(*words, self.one))
        few = self.printed(*self.before, "--against", self.two)
        self.assertIn(f"{self.validation.documents} documents: too few to tell", few)

    def test_field_names_the_text_of_a_source(self) -> None:
        lines = [json.dumps({"body": text, "text": "no"}) for text in TEXTS]
        Path("mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
        found = self.run_json("evaluate", self.one, "mine.jsonl", "--field", "body", "--device", "cpu")
        self.assertEqual(found["split_digest"], self.validation.digest)
        self.assertIn("leave out --field", self.refused(*self.before, "--field", "body"))

    def test_pictures_are_drawn_from_the_same_scores(self) -> None:
        how = ("--protocol", "strided", "--stride", "4", "--limit", "200", "--pictures", "seen/here")
        found = self.run_json(*self.before, *how)
        self.assertEqual(
            [Path(p).name for p in found["pictures"]], ["position.svg", "classes.svg", "text.html"]
        )
        for path in found["pictures"]:
            self.assertGreater(Path(path).stat().st_size, 500)
        self.assertIn("drawn: seen/here/text.html", self.printed(*self.before, *how))


class Coding(EvaluateCase):
    def test_a_coded_file_has_the_reported_size_and_is_restored(self) -> None:
        found = self.run_json(*self.before, "--code", "text.coded")
        coded = found["coded"]
        self.assertEqual(coded["file_bytes"], Path("text.coded").stat().st_size)
        self.assertLessEqual(abs(coded["payload_bytes"] - coded["reported_bits"] / 8), 2)
        self.assertEqual(coded["targets"], len(self.validation.stream) - 1)
        self.assertEqual(found["bits_per_byte"], evaluate(self.model, self.validation).bits_per_byte)
        found = self.run_json(*self.before, "--decode", "text.coded", "--restore", "back.jsonl")["decoded"]
        self.assertEqual((found["equal"], found["bytes"]), (True, self.validation.bytes))
        lines = Path("back.jsonl").read_text("ascii").splitlines()
        texts = [self.validation.document(i).astype("u1").tobytes() for i in range(self.validation.documents)]
        self.assertEqual([json.loads(line)["text"].encode() for line in lines], texts)

    def test_a_limit_codes_the_first_tokens_and_both_say_so(self) -> None:
        out = self.printed(*self.before, "--code", "some.coded", "--limit", "70")
        self.assertIn(f"disjoint, the first 70 of {len(self.validation.stream) - 1:,} tokens", out)
        self.assertIn("some.coded", out)
        ends = int((self.validation.stream[1:71] == 256).sum())
        out = self.printed(*self.before, "--decode", "some.coded")
        self.assertIn(f"the first {70 - ends} of the held-out text's {self.validation.bytes} bytes", out)

    def test_one_document_is_restored_as_its_bytes_without_data(self) -> None:
        Path("one.txt").write_bytes(b"caf\xc3\xa9 \r\n" * 30)
        self.printed(
            "evaluate", self.one, "one.txt", "--device", "cpu", "--code", "a.coded", "--decode", "a.coded"
        )
        out = self.printed("evaluate", self.one, "--device", "cpu", "--decode", "a.coded", "--restore", "b")
        self.assertIn("written to b", out)
        held = Path("b").read_bytes()
        self.assertTrue(Path("one.txt").read_bytes().endswith(held))
        self.assertGreater(len(held), 10)

    def test_another_text_is_refused_with_the_first_token_that_differs(self) -> None:
        self.printed(*self.before, "--code", "text.coded")
        Path("other.jsonl").write_text("".join(json.dumps({"text": text + "!"}) + "\n" for text in TEXTS))
        line = self.refused_there(
            "evaluate", self.one, "other.jsonl", "--device", "cpu", "--decode", "text.coded"
        )
        self.assertRegex(line, r"text.coded: decoded, but is not validation: token \d+ is \d+")
        line = self.refused("evaluate", self.two, self.corpus, "--device", "cpu", "--decode", "text.coded")
        self.assertIn("model", line)

    def test_documents_that_a_name_cannot_hold_are_refused(self) -> None:
        self.printed(*self.before, "--code", "text.coded")
        line = self.refused(
            "evaluate", self.one, "--device", "cpu", "--decode", "text.coded", "--restore", "b.txt"
        )
        self.assertIn("name it something.jsonl", line)
        Path("u.txt").write_bytes("é".encode() * 100)
        self.printed("evaluate", self.one, "u.txt", "--device", "cpu", "--code", "u.coded", "--limit", "3")
        line = self.refused(
            "evaluate", self.one, "--device", "cpu", "--decode", "u.coded", "--restore", "u.jsonl"
        )
        self.assertIn("document 1 is not UTF-8 at its byte 2", line)

    def refused_there(self, *words: str) -> str:
        """As refused, where a corpus is built on the way."""
        code, out, error = command(*words)
        self.assertEqual((code, out, len(error.strip().splitlines())), (2, "", 1), error)
        return error


class Refusals(EvaluateCase):
    def test_before_any_work_and_all_at_once(self) -> None:
        Path("there").write_text("precious")
        with mock.patch("tinylm.language_model.load", side_effect=AssertionError("was loaded")):
            line = self.refused(
                *self.before, "--stride", "0", "--rows", "0", "--limit", "-1", "--against", "", "--field", ""
            )
            for part in ("stride is 0", "rows is 0", "limit is -1", "against is ''", "field is ''"):
                self.assertIn(part, line)
            cases = {
                ("--stride", "4"): "--protocol strided",
                ("--restore", "x.jsonl"): "restore needs --decode",
                (
                    "--code",
                    "c",
                    "--against",
                    self.two,
                    "--protocol",
                    "strided",
                ): "--against, --protocol strided",
                ("--decode", "c", "--limit", "9"): "--decode restores the whole of a file",
                ("--decode", "c", "--pictures", "p"): "--pictures cannot stand beside --decode",
                ("--code", "there"): "code there: exists already",
                ("--pictures", "there"): "pictures there: is a file",
                ("--code", "no/c"): "its folder does not exist",
            }
            for words, part in cases.items():
                self.assertIn(part, self.refused(*self.before, *words))
            for words in ((), ("--decode", "c"), ("--code", "c")):
                self.assertIn("DATA is missing", self.refused("evaluate", self.one, *words))
        self.assertEqual(Path("there").read_text(), "precious")

    def test_a_stride_beyond_the_window(self) -> None:
        line = self.refused(*self.before, "--protocol", "strided", "--stride", "17")
        self.assertIn("stride is 17, expected an integer from 1 to the window of 16", line)

    def test_problems_of_the_configuration(self) -> None:
        self.assertEqual(EvaluateConfig(protocol="strided", stride=4, limit=9, pictures="p").problems(), [])
        self.assertEqual(EvaluateConfig(code="a", decode="b", restore="c").problems(), [])
        for wrong in ({"protocol": "sliding"}, {"limit": 1.5}, {"stride": True}, {"code": 5}, {"json": 1}):
            (problem,) = EvaluateConfig(**wrong).problems()
            self.assertTrue(problem.startswith(next(iter(wrong))), problem)


if __name__ == "__main__":
    unittest.main()
