"""The model that comes with the project: it loads, writes what it wrote when it was trained, and stops.

`python -m tests.test_sample_model` prints the content of checkpoints/sample-nano/samples.json.
"""

import json
import unittest
from pathlib import Path

from tinylm import load
from tinylm.corpus import Split
from tinylm.language_model import LanguageModel

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "checkpoints" / "sample-nano"
REQUESTS = [
    {"prompt": "", "seed": 0, "max_tokens": 300},
    {"prompt": "", "seed": 1, "max_tokens": 300},
    {"prompt": "Return the ", "seed": 7, "max_tokens": 300},
    {"prompt": "Raise ", "seed": 2, "max_tokens": 300, "temperature": 0.0},
]


def exact_model() -> LanguageModel:
    """The sample model in float64, in which no machine's rounding reaches a draw."""
    model = load(FOLDER, device="cpu")
    model.transformer.double()
    return model


def written(model: LanguageModel, request: dict) -> dict:
    """A request with the text that the model writes, and why it ended."""
    options = {name: value for name, value in request.items() if name != "prompt"}
    events = list(model.generate(request["prompt"], **options))
    text = "".join(event.text for event in events)
    return {**request, "text": text, "end": events[-1].end.reason, "tokens": events[-1].end.tokens}


class TestSampleModel(unittest.TestCase):
    def test_it_writes_what_it_wrote_when_it_was_trained(self):
        model = exact_model()
        recorded = json.loads((FOLDER / "samples.json").read_text(encoding="utf-8"))
        self.assertEqual(
            [{k: sample[k] for k in r} for r, sample in zip(REQUESTS, recorded, strict=True)], REQUESTS
        )
        for sample in recorded:
            request = {k: v for k, v in sample.items() if k not in ("text", "end", "tokens")}
            self.assertEqual(written(model, request), sample)

    def test_half_of_its_documents_end_by_themselves(self):
        recorded = json.loads((FOLDER / "samples.json").read_text(encoding="utf-8"))
        self.assertGreaterEqual(sum(sample["end"] == "boundary" for sample in recorded), 2)

    def test_it_is_small(self):
        self.assertLess(sum(path.stat().st_size for path in FOLDER.iterdir()), 4_000_000)

    def test_it_can_be_measured_on_the_sample_texts(self):
        texts = sorted((ROOT / "corpora" / "samples").glob("*.txt"))
        result = load(FOLDER, device="cpu").evaluate(
            Split.of([path.read_bytes() for path in texts], "samples")
        )
        self.assertEqual(result.boundaries, len(texts))
        english = [path.read_bytes() for path in texts if path.name.startswith("english")]
        easy = load(FOLDER, device="cpu").evaluate(Split.of(english, "english"))
        self.assertLess(easy.bits_per_byte, 4)
        # It has hardly seen another script than Latin, and is sure of it: worse than a uniform guess.
        self.assertGreater(result.bits_per_byte, 8)


if __name__ == "__main__":
    model = exact_model()
    print(json.dumps([written(model, request) for request in REQUESTS], indent=1))
