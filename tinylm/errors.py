"""Errors that a user can act on. Each message names what, where, what was expected, and the way out."""

from __future__ import annotations


class TinylmError(Exception):
    """The base of every error that tinylm raises on purpose; commands print it on one line and exit 2."""


class ContractError(TinylmError, ValueError):
    """Text, ids or the four values of the tokenizer contract are not what the contract says."""


class ShapeError(TinylmError, ValueError):
    """An array or tensor at a public border has another shape or dtype than the border states."""


class CorpusError(TinylmError, ValueError):
    """A source of text cannot be read as documents, or a corpus folder is not a whole corpus."""


class LimitError(CorpusError):
    """A corpus would pass one of its limits; nothing was left behind."""


class CheckpointError(TinylmError):
    """A run, step folder or model file is missing, damaged or of another kind."""


class ConfigError(TinylmError, ValueError):
    """A configuration has problems; the message lists all of them."""


class RequestError(TinylmError, ValueError):
    """A request to generate or evaluate asks for something that does not exist."""


class ConflictError(RequestError):
    """What a request forbids and what it demands leave nothing to draw."""


class CoderError(TinylmError, ValueError):
    """A coded file is damaged, of another kind, or was written by another model or on another machine."""


class TrainingError(TinylmError):
    """Training cannot go on (a loss that is not finite, no memory for one row)."""


class RankError(TinylmError):
    """Another rank failed and says why; this one only ends."""
