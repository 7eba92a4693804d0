"""Stage 16: what a learner may rely on, and the stage itself."""

import unittest

from tests.recorded import case_limit, recorded_cases
from tests.stage_support import load_stage, page_arguments, run_stage
from tinylm.events import EventStream

STAGE = load_stage(16)
EMOJI = [*"😊📚😊".encode(), 256]
KOREAN = [*"안녕하세요.".encode(), 256]


class WhenAUnitIsComplete(unittest.TestCase):
    def test_an_id_comes_at_once_and_a_character_with_its_last_byte(self) -> None:
        self.assertEqual(
            STAGE.events([*"é1".encode(), 256], (), 9),
            [("", (0xC3,)), ("é", (0xA9,)), ("1", (0x31,)), ("", (256,))],
        )

    def test_what_is_held_at_the_end_rides_on_the_last_token(self) -> None:
        self.assertEqual(STAGE.events(EMOJI, (), 3)[-1], ("\ufffd", (152,)))
        self.assertEqual(STAGE.events([0xC3, 256], (), 9), [("", (0xC3,)), ("\ufffd", (256,))])

    def test_half_a_stop_string_waits_and_is_text_after_all(self) -> None:
        texts = [text for text, _ in STAGE.events([*b"a ST", 256], ("STOP",), 9)]
        self.assertEqual(texts, ["a", " ", "", "", "ST"])
        self.assertEqual(STAGE.arrived(STAGE.events([*b"a STOP b"], ("STOP",), 9)), ([*b"a STOP"], "a "))

    def test_a_joiner_after_a_character_makes_it_part_of_another(self) -> None:
        # Nothing in 👨 says whether the person that it shows is complete.
        man = [*"👨".encode()]
        for following in ("\u200d👩", "!"):
            stream = EventStream((), 99)
            texts = [stream.push(token).text for token in [*man, *following.encode()]]
            self.assertEqual(texts[: len(man)], ["", "", "", "👨"])


class ThreeStreams(unittest.TestCase):
    def test_text_catches_up_and_the_ids_of_hold_do_not(self) -> None:
        found = {name: [arrived for _, arrived in line] for name, line in STAGE.over_time("é한!").items()}
        self.assertEqual(
            found,
            {
                "ids, events": [0, 1, 2, 3, 4, 5, 6, 7],
                "ids, hold": [0, 0, 1, 1, 1, 2, 3, 4],
                "bytes of text": [0, 0, 2, 2, 2, 5, 6, 6],
            },
        )

    def test_the_newest_id_alone_loses_what_waited(self) -> None:
        self.assertEqual(STAGE.arrived(STAGE.hold(EMOJI, (), 99)), ([138, 154, 138, 256], "😊📚😊"))
        self.assertEqual(len(STAGE.arrived(STAGE.hold(KOREAN, (), 99))[0]), 7)

    def test_it_forgets_a_character_that_the_limit_cuts(self) -> None:
        self.assertEqual(STAGE.hold(EMOJI, (), 3), [])
        self.assertEqual(STAGE.arrived(STAGE.hold([0x41, 0xF0, 0x9F, 0x98, 256], (), 99)), ([0x41], "A"))

    def test_a_token_decoded_alone_has_the_ids_and_no_text(self) -> None:
        ids, text = STAGE.arrived(STAGE.naive(EMOJI, (), 99))
        self.assertEqual((ids, text), (EMOJI, "\ufffd" * 12))

    def test_events_give_what_the_recorded_cases_say(self) -> None:
        for case in recorded_cases():
            with self.subTest(case["name"]):
                given = case["script"], case["stop"], case_limit(case)
                self.assertEqual(STAGE.arrived(STAGE.events(*given)), (case["sampled"], case["content"]))

    def test_its_own_oracle_agrees_with_the_recorded_cases(self) -> None:
        for case in recorded_cases():
            with self.subTest(case["name"]):
                ids = STAGE.sampled(case["script"], case["stop"], case_limit(case))
                self.assertEqual(ids, case["sampled"])
                self.assertEqual(STAGE.right_text(ids, case["stop"]), case["content"])

    def test_text_encoded_again_is_not_what_was_sampled(self) -> None:
        for script, limit in (([0xFF, 256], 9), (EMOJI, 2), ([65, 256], 9)):
            ids, text = STAGE.arrived(STAGE.events(script, (), limit))
            self.assertNotEqual([*text.encode()], ids)


class TheStage(unittest.TestCase):
    def test_it_passes_and_its_page_says_what_it_prints(self) -> None:
        code, printed = run_stage(STAGE, "--quick", *page_arguments(16))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")

    def test_a_stream_that_keeps_an_id_back_fails_it(self) -> None:
        whole = STAGE.STREAMS["events"]

        def keeps(*given: object) -> list[tuple[str, tuple[int, ...]]]:
            return [(text, ids if text else ()) for text, ids in whole(*given)]

        STAGE.STREAMS["events"] = keeps
        self.addCleanup(STAGE.STREAMS.__setitem__, "events", whole)
        code, printed = run_stage(STAGE, "--quick")
        self.assertEqual(code, 1)
        self.assertIn("one event per token gives back everything", printed)
