"""Generation: a prompt, a model and a configuration give events.

Seeded with a document boundary, which does not stop it; stops on a newly sampled one, on a stop string
or at the limit. Knows of a model only what `Model` says.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from tinylm import constraints
from tinylm.config import GenerateConfig, ModelConfig
from tinylm.constraints import Constraint
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import RequestError
from tinylm.events import Event, EventStream
from tinylm.sampling import Floats, distribution, draw, uniform
from tinylm.shapes import check_shape
from tinylm.tokenizer import Ids, check_ids, encode


class Cache(Protocol):
    """What generation needs of a model's cache."""

    def reset(self) -> None: ...


class Model(Protocol):
    """What generation needs of a model: Transformer has it, and so has a script of logits."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    def new_cache(self, rows: int = 1) -> Any: ...

    def __call__(self, ids_BT: Tensor, cache: Any = None) -> Tensor: ...


def generate(
    model: Model, prompt: str | Ids = "", config: GenerateConfig | None = None
) -> Generator[Event, None, None]:
    """The events of one generation: one per sampled token, then the final one.

    A text prompt is fed as [256, *its bytes], so "" is the boundary alone; ids are fed as they are.
    Draw k uses `uniform(config.seed, k)`. With `config.valid_utf8` the sampled bytes alone are whole
    well-formed UTF-8, also at the limit, near which only characters that still fit may begin. A grammar, a
    regex or a json_schema allows only what it matches (tinylm.constraints). Under the policies `mask` and
    `reset` a prompt counts from its last boundary. Closing the generator stops the work at once. Raises
    RequestError, ConfigError or ContractError before anything is computed.
    """
    config = GenerateConfig() if config is None else config.check()
    context = Context(model, prompt_ids(prompt))
    compiled = constraints.compile(
        grammar=config.grammar,
        regex=config.regex,
        json_schema=config.json_schema,
        valid_utf8=config.valid_utf8,
    )
    constraint = None if compiled is None else compiled.start()
    return _events(context, EventStream(config.stop, config.max_tokens), config, constraint)


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


class Context:
    """The tokens known so far, and the logits of the token after them.

    What a model sees is a function of the tokens alone, however they were given: under the policies
    `mask` and `reset` they count from the last boundary of the prompt, and `window_start` says where the
    window begins. Each token is read once, and again when the window moves.
    """

    def __init__(self, model: Model, prompt: Sequence[int]) -> None:
        self._model = model
        origin = 0
        if model.config.policy != "cross" and DOC_BOUNDARY in prompt:
            origin = len(prompt) - 1 - prompt[::-1].index(DOC_BOUNDARY)
        self._tokens = list(prompt[origin:])
        self._cache: Cache | None = None
        self._start = 0
        self._read = 0
        self._logits_V: Floats

    def append(self, token: int) -> None:
        """One more token is known."""
        self._tokens.append(token)

    def logits(self) -> Floats:
        """The logits (float64 [257], on the host) of the next token. Reads what was not read yet."""
        if self._read == len(self._tokens):
            return self._logits_V
        start = window_start(len(self._tokens), self._model.config.window)
        if self._cache is None:
            self._cache = self._model.new_cache(1)
            self._read = start
        elif start != self._start:
            self._cache.reset()
            self._read = start
        self._start = start
        ids_BT = torch.tensor([self._tokens[self._read :]], dtype=torch.int64, device=self._model.device)
        # Not around a yield: the mode would reach into the caller's own code.
        with torch.inference_mode():
            logits_BTV = self._model(ids_BT, cache=self._cache)
        check_shape(
            logits_BTV, "B T V", name="logits_BTV", kind="float", B=1, T=ids_BT.shape[1], V=VOCABULARY_SIZE
        )
        # First to the host, then to float64, which not every device has.
        self._logits_V = logits_BTV[0, -1].cpu().to(torch.float64).numpy()
        self._read = len(self._tokens)
        return self._logits_V


def _events(
    context: Context, stream: EventStream, config: GenerateConfig, constraint: Constraint | None
) -> Generator[Event, None, None]:
    while stream.end is None:
        allowed_V = None if constraint is None else constraint.allowed(config.max_tokens - stream.tokens)
        probabilities_V = distribution(context.logits(), config, allowed_V)
        token = draw(probabilities_V, uniform(config.seed, stream.tokens))
        context.append(token)
        if constraint is not None:
            constraint.advance(token)
        yield stream.push(token)
    yield stream.finish()
