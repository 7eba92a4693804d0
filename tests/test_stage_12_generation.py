"""Stage 12: what a learner may rely on, and the stage itself."""

import unittest

import numpy as np
import torch

from tests.scripted import scripted
from tests.stage_support import load_stage, run_stage
from tinylm.config import GenerateConfig
from tinylm.errors import RequestError
from tinylm.events import End, EventStream
from tinylm.generate import Context, generate, prompt_ids, window_start
from tinylm.model import Transformer

SENTENCE = [*"한.".encode(), 256]


def outcome(script: list[int], prompt: str | list[int] = "", **options: object) -> tuple[list[int], str, End]:
    """Ids, text and end of a generation by a model that follows a script."""
    model = scripted(script, prompt_tokens=len(prompt_ids(prompt)))
    events = list(generate(model, prompt, GenerateConfig(**options)))  # type: ignore[arg-type]
    end = events[-1].end
    assert end is not None
    return [i for event in events for i in event.ids], "".join(event.text for event in events), end


class WhenADocumentEnds(unittest.TestCase):
    def test_the_boundary_that_seeds_a_generation_does_not_stop_it(self) -> None:
        self.assertEqual(outcome(SENTENCE), (SENTENCE, "한.", End("boundary", "", 5)))

    def test_boundaries_in_the_prompt_do_not_stop_it(self) -> None:
        self.assertEqual(outcome(SENTENCE, [256, 65, 256, 256])[1:], ("한.", End("boundary", "", 5)))

    def test_a_newly_sampled_boundary_stops_it_and_is_no_text(self) -> None:
        self.assertEqual(outcome([65, 256, 66, 256]), ([65, 256], "A", End("boundary", "", 2)))

    def test_typing_a_boundary_does_not_make_one(self) -> None:
        self.assertEqual(prompt_ids("<|doc|>")[1:], tuple(b"<|doc|>"))

    def test_a_limit_inside_a_character_loses_no_id(self) -> None:
        self.assertEqual(outcome(SENTENCE, max_tokens=2), ([0xED, 0x95], "\ufffd", End("limit", "", 2)))

    def test_a_limit_of_0_samples_nothing(self) -> None:
        model = scripted(SENTENCE)
        final = list(generate(model, "", GenerateConfig(max_tokens=0)))
        self.assertEqual((len(final), final[0].end, model.read), (1, End("limit", "", 0), []))

    def test_a_stop_string_is_cut_from_the_text_and_kept_in_the_ids(self) -> None:
        self.assertEqual(outcome([*b"one STOP", 256], stop=("STOP",))[1:], ("one ", End("stop", "STOP", 8)))
        self.assertEqual(outcome([*b"one STOP", 256], stop=("STOP",))[0], [*b"one STOP"])

    def test_half_a_stop_string_is_text_after_all(self) -> None:
        self.assertEqual(outcome([*b"one ST", 256], stop=("STOP",))[1], "one ST")

    def test_text_comes_when_a_character_is_complete_and_ids_come_at_once(self) -> None:
        stream = EventStream((), 9)
        events = [stream.push(byte) for byte in "é!".encode()]
        self.assertEqual([event.text for event in events], ["", "é", "!"])
        self.assertEqual([event.ids for event in events], [(0xC3,), (0xA9,), (0x21,)])

    def test_nothing_comes_after_the_end(self) -> None:
        stream = EventStream((), 9)
        stream.push(256)
        with self.assertRaises(RequestError):
            stream.push(65)


class PastTheWindow(unittest.TestCase):
    def test_half_is_dropped_whenever_one_more_does_not_fit(self) -> None:
        self.assertEqual([window_start(known, 4) for known in range(1, 9)], [0, 0, 0, 0, 2, 2, 4, 4])

    def test_the_cache_changes_nothing_that_is_said(self) -> None:
        stage = load_stage(12)
        model = Transformer(stage.MODEL)
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.data.uniform_(-0.5, 0.5, generator=generator)
        model.double()
        ids = np.random.default_rng(0).integers(0, 257, 100).tolist()
        running = Context(model, ids[:1])
        for known in range(1, 100):
            afresh = Context(model, ids[:known]).logits()
            np.testing.assert_allclose(running.logits(), afresh, rtol=0, atol=1e-10)
            running.append(ids[known])


class TheStage(unittest.TestCase):
    def test_its_stream_holds_each_document_forty_times_in_no_order(self) -> None:
        stage = load_stage(12)
        split = stage.shuffled_stream()
        documents = [split.document(i).astype(np.uint8).tobytes().decode() for i in range(split.documents)]
        self.assertEqual(
            {text: documents.count(text) for text in stage.DOCUMENTS}, dict.fromkeys(stage.DOCUMENTS, 40)
        )
        self.assertGreater(len({tuple(documents[i : i + 12]) for i in range(0, 480, 12)}), 30)

    def test_quick_run_passes(self) -> None:
        code, printed = run_stage(load_stage(12), "--quick")
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
