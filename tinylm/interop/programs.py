"""One model in several programs, each asked in the same way: for ids of a text, predictions, greedy ids."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.generate import generate
from tinylm.interop.by_hand import ByHand, Floats, log_softmax
from tinylm.interop.gguf import log_probabilities
from tinylm.interop.llama_cpp import LlamaCpp
from tinylm.model import Transformer
from tinylm.tokenizer import encode


@dataclass(frozen=True)
class Program:
    """A program that holds a model.

    `tokenize`: the ids of a text, without a boundary before it. `predict`: log-probabilities (natural,
    float64 [T, 257]) of the token after each id. `greedy`: at most so many best ids after the given ones,
    the boundary that ends them included.
    """

    name: str
    tokenize: Callable[[str], list[int]]
    predict: Callable[[list[int]], Floats]
    greedy: Callable[[list[int], int], list[int]]


def in_tinylm(model: Transformer) -> Program:
    """The model as it is."""

    def greedy(ids: Sequence[int], limit: int) -> list[int]:
        config = GenerateConfig(max_tokens=limit, temperature=0.0)
        return [token for event in generate(model, ids, config) for token in event.ids]

    return Program(
        "tinylm", lambda text: list(encode(text)), lambda ids: log_probabilities(model, ids), greedy
    )


def in_numpy(reader: ByHand) -> Program:
    """A Hugging Face folder, read by hand; greedy ids read the whole row again for each."""

    def greedy(ids: Sequence[int], limit: int) -> list[int]:
        found: list[int] = []
        while len(found) < limit and DOC_BOUNDARY not in found:
            found.append(int(reader.log_probabilities([*ids, *found])[-1].argmax()))
        return found

    return Program("numpy, by hand", reader.tokenize, reader.log_probabilities, greedy)


def in_transformers(folder: Path) -> Program:
    """A Hugging Face folder in transformers, which has to be installed; its warnings are switched off."""
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def predict(ids: Sequence[int]) -> Floats:
        with torch.inference_mode():
            return log_softmax(model(torch.tensor([ids])).logits[0].double().numpy())

    def greedy(ids: Sequence[int], limit: int) -> list[int]:
        given_BT = torch.tensor([ids])
        told = {"attention_mask": torch.ones_like(given_BT), "max_new_tokens": limit, "do_sample": False}
        return [int(token) for token in model.generate(given_BT, **told)[0, len(ids) :]]

    name = f"transformers {transformers.__version__}"
    return Program(name, lambda text: list(tokenizer(text)["input_ids"]), predict, greedy)


def in_llama_cpp(llama: LlamaCpp) -> Program:
    """The GGUF file that llama.cpp holds; texts are tokenized as in a chat, where special tokens are read."""

    def greedy(ids: Sequence[int], limit: int) -> list[int]:
        found = llama.greedy(ids, limit)  # which says nothing of the boundary that ended it
        return found if len(found) == limit else [*found, DOC_BOUNDARY]

    return Program("llama.cpp", lambda text: llama.tokenize(text, True), llama.log_probabilities, greedy)
