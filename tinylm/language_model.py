"""The front door to a trained model: load it, let it write, measure it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from tinylm import checkpoint
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.corpus import Corpus, Split
from tinylm.devices import choose_device
from tinylm.errors import RequestError
from tinylm.evaluate import Comparison, Evaluation, EvaluationProtocol, compare, evaluate
from tinylm.events import Event
from tinylm.generate import generate
from tinylm.model import Transformer
from tinylm.tokenizer import Ids


class LanguageModel:
    """A Transformer with the two things that one does with it. `transformer` is the module itself."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    def generate(self, prompt: str | Ids = "", **options: Any) -> Iterator[Event]:
        """Generate from a text prompt (the boundary is put before it) or from ids as they are.

        Options are those of GenerateConfig: max_tokens, stop, temperature, top_k, top_p, min_p, seed,
        valid_utf8, grammar, regex, json_schema (a text or an object).
        Yields an Event per sampled token and a last one with `end`.
        """
        try:
            stop = options.pop("stop", ())
            if isinstance(options.get("json_schema"), Mapping):
                options["json_schema"] = json.dumps(options["json_schema"])
            config = GenerateConfig(stop=(stop,) if isinstance(stop, str) else tuple(stop), **options)
        except TypeError as error:
            raise RequestError(f"generate: {error}; options are those of GenerateConfig") from None
        return generate(self.transformer, prompt, config)

    def evaluate(
        self,
        data: Corpus | Split,
        *,
        protocol: EvaluationProtocol = "disjoint",
        stride: int | None = None,
        **options: Any,
    ) -> Evaluation:
        """Bits per byte of a corpus' held-out text, or of a split.

        `protocol` is disjoint or strided (`stride`: default half the window); other options: rows, limit,
        progress. See tinylm.evaluate.score.
        """
        return evaluate(self.transformer, held_out(data), protocol=protocol, stride=stride, **options)

    def compare(self, against: LanguageModel, data: Corpus | Split, **options: Any) -> Comparison:
        """The paired difference to another model on the same targets; options as for evaluate."""
        return compare(self.transformer, against.transformer, held_out(data), **options)


def held_out(data: Corpus | Split) -> Split:
    """What is measured: a corpus' validation split, or the split itself."""
    return data.validation if isinstance(data, Corpus) else data


def load(path: str | os.PathLike[str], device: str = "auto") -> LanguageModel:
    """Load a run folder (its newest verified step), a step folder or a model file.

    Raises ContractError or CheckpointError before a tensor is used. Warns where newer steps of a run
    did not verify and an older one is used.
    """
    found, transformer = checkpoint.load(path)
    for problem in found.skipped:
        warnings.warn(f"using {found.folder}, because {problem}", stacklevel=2)
    return LanguageModel(transformer.to(choose_device(device)).requires_grad_(False))
