"""What a model has read of one generation, and the logits of the token after it."""

from __future__ import annotations

from collections.abc import Sequence

from tinylm.config import ModelConfig
from tinylm.contract import DOC_BOUNDARY
from tinylm.errors import RequestError
from tinylm.generate.reader import CHUNK, Model, Reader
from tinylm.sampling import Floats
from tinylm.tokenizer import Ids, check_ids, encode


def prompt_ids(prompt: str | Ids) -> tuple[int, ...]:
    """What a model is fed: a text gets the boundary before it, ids stay as they are.

    Raises RequestError for no ids at all, ContractError for what is neither text nor ids 0..256.
    """
    if isinstance(prompt, str):
        return (DOC_BOUNDARY, *encode(prompt))
    ids = tuple(int(token) for token in check_ids(prompt, "prompt"))
    if not ids:
        raise RequestError(
            f"prompt: holds no ids, expected at least one; a document begins with ({DOC_BOUNDARY},)"
        )
    return ids


def window_start(known: int, window: int) -> int:
    """Where the context begins when `known` tokens are known; a function of the two alone.

    At 0 while all fit. Each time one token more does not, the first half is dropped and the last
    `window // 2` tokens, with the new one, are what the model sees.
    """
    dropped = window - window // 2
    overflow = max(0, known - window)
    return -(-overflow // dropped) * dropped


class Window:
    """The tokens of one generation that the model sees, and how many of them it has read.

    What a model sees is a function of the tokens alone, however they were given: under the policies
    `mask` and `reset` they count from the last boundary of the prompt, and `window_start` says where the
    window begins. Each token is read once, and again when the window moves.
    """

    def __init__(self, prompt: Sequence[int], config: ModelConfig) -> None:
        origin = 0
        if config.policy != "cross" and DOC_BOUNDARY in prompt:
            origin = len(prompt) - 1 - prompt[::-1].index(DOC_BOUNDARY)
        self.read = 0
        self._size = config.window
        self._known = len(prompt) - origin
        self._start = window_start(self._known, self._size)
        self.tokens = list(prompt[origin + self._start :])

    def append(self, token: int) -> None:
        """One more token is known."""
        self.tokens.append(token)
        self._known += 1
        start = window_start(self._known, self._size)
        if start != self._start:
            del self.tokens[: start - self._start]
            self._start, self.read = start, 0

    def unread(self, chunk: int) -> list[int]:
        """The tokens to be read next: those that were not, up to the next multiple of `chunk` in the window.

        So where a prompt is cut depends on nothing but its length.
        """
        return self.tokens[self.read : (self.read // chunk + 1) * chunk]


class Context:
    """A prompt, what is appended to it, and what the model says of the token after."""

    def __init__(self, model: Model, prompt: Sequence[int]) -> None:
        self._reader = Reader(model, 1)
        self._window = Window(prompt, model.config)
        self._logits_V: Floats

    def append(self, token: int) -> None:
        """One more token is known."""
        self._window.append(token)

    def logits(self) -> Floats:
        """The logits (float64 [257], on the host) of the next token. Reads what was not read yet."""
        while ids := self._window.unread(CHUNK):
            self._logits_V = self._reader.chunk(0, self._window.read, ids)
            self._window.read += len(ids)
        return self._logits_V
