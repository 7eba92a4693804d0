"""tinylm trains small decoder-only language models straight on UTF-8 bytes.

import tinylm
corpus = tinylm.build_corpus("texts/", "corpora/mine")
tinylm.train(tinylm.TrainConfig(data="corpora/mine", steps=300))
model = tinylm.load("checkpoints/mine-nano")
for event in model.generate("Once", max_tokens=200, seed=1):
    print(event.text, end="")
model.evaluate(corpus).bits_per_byte
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinylm.config import CorpusConfig as CorpusConfig
    from tinylm.config import GenerateConfig as GenerateConfig
    from tinylm.config import ModelConfig as ModelConfig
    from tinylm.config import TrainConfig as TrainConfig
    from tinylm.contract import DOC_BOUNDARY as DOC_BOUNDARY
    from tinylm.contract import VOCABULARY_SIZE as VOCABULARY_SIZE
    from tinylm.corpus import build_corpus as build_corpus
    from tinylm.corpus import open_corpus as open_corpus
    from tinylm.errors import TinylmError as TinylmError
    from tinylm.interop import export as export
    from tinylm.interop import import_model as import_model
    from tinylm.language_model import LanguageModel as LanguageModel
    from tinylm.language_model import load as load
    from tinylm.model import Transformer as Transformer
    from tinylm.tokenizer import debug_decode as debug_decode
    from tinylm.tokenizer import decode_bytes as decode_bytes
    from tinylm.tokenizer import decode_document as decode_document
    from tinylm.tokenizer import decode_text as decode_text
    from tinylm.tokenizer import encode as encode
    from tinylm.tokenizer import encode_array as encode_array
    from tinylm.trainer import resume as resume
    from tinylm.trainer import train as train

__all__ = [
    "DOC_BOUNDARY",
    "VOCABULARY_SIZE",
    "CorpusConfig",
    "GenerateConfig",
    "LanguageModel",
    "ModelConfig",
    "TinylmError",
    "TrainConfig",
    "Transformer",
    "build_corpus",
    "debug_decode",
    "decode_bytes",
    "decode_document",
    "decode_text",
    "encode",
    "encode_array",
    "export",
    "import_model",
    "load",
    "open_corpus",
    "resume",
    "train",
]

# Where each public name lives. Resolved at first use, so that reading a configuration needs no torch.
_HOMES = {
    "CorpusConfig": "config",
    "GenerateConfig": "config",
    "ModelConfig": "config",
    "TrainConfig": "config",
    "DOC_BOUNDARY": "contract",
    "VOCABULARY_SIZE": "contract",
    "build_corpus": "corpus",
    "open_corpus": "corpus",
    "TinylmError": "errors",
    "export": "interop",
    "import_model": "interop",
    "LanguageModel": "language_model",
    "load": "language_model",
    "Transformer": "model",
    "debug_decode": "tokenizer",
    "decode_bytes": "tokenizer",
    "decode_document": "tokenizer",
    "decode_text": "tokenizer",
    "encode": "tokenizer",
    "encode_array": "tokenizer",
    "resume": "trainer",
    "train": "trainer",
}
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinylm' has no attribute {name!r}")
    return getattr(import_module(f"tinylm.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
