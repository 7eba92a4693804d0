"""Logits to a distribution to an id. Pure functions of NumPy arrays, in float64.

The order is Hugging Face's: temperature, top-k, top-p, min-p. Draws go by number, so that batching,
streaming and the order of work cannot change what is sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tinylm.config import GenerateConfig
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import RequestError
from tinylm.shapes import check_shape

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

UTF8_FORMS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0x00, 0x7F),),
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
    ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
    ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)
"""The well-formed byte sequences of one character (Unicode Standard, table 3-7): a range per byte."""


def distribution(
    logits_V: npt.NDArray[np.floating[Any]], config: GenerateConfig, allowed_V: Mask | None = None
) -> Floats:
    """The probabilities (float64 [V], sum 1) from which the next id is drawn.

    `allowed_V`: bool [V], ids that may be drawn; applied first. Then temperature, top-k, top-p, min-p,
    each on what the one before left. Temperature 0 gives everything to the best id. On ties the lower
    id ranks first, so `top_k=1` equals temperature 0. A logit of -inf is an id of probability 0.
    Raises RequestError if a logit is NaN or +inf, or if no id is left; ShapeError for other shapes.
    """
    sizes = check_shape(logits_V, "V", name="logits_V", kind="float")
    scores_V = logits_V.astype(np.float64)
    # One NaN makes the maximum NaN, so the usual case needs no second look.
    highest = scores_V.max() if scores_V.size else -np.inf
    if not highest < np.inf:
        bad = np.flatnonzero(np.isnan(scores_V) | (scores_V == np.inf))
        raise RequestError(
            f"logits_V: the logit of id {int(bad[0])} is {scores_V[bad[0]]}, expected a finite number; "
            "the weights or the precision are at fault: load an earlier checkpoint, or use float32"
        )
    if allowed_V is not None:
        check_shape(allowed_V, "V", name="allowed_V", kind="bool", **sizes)
        scores_V = np.where(allowed_V, scores_V, -np.inf)
        highest = scores_V.max() if scores_V.size else -np.inf
    if highest == -np.inf:
        masked = "" if allowed_V is None else f" and {int(allowed_V.sum())} are allowed"
        raise RequestError(
            f"logits_V: none of {sizes['V']} ids can be drawn, expected at least one whose logit is "
            f"above -inf{masked}; loosen the mask"
        )
    return _shares(scores_V, config)


def distributions(logits_RV: Floats, config: GenerateConfig) -> Floats:
    """`distribution` of each row of logits (float64 [R, V]) under the same options, bit for bit.

    Raises RequestError if a row holds NaN, +inf, or nothing but -inf; ShapeError for other shapes.
    """
    check_shape(logits_RV, "R V", name="logits_RV", kind="float")
    if not np.isfinite(logits_RV.max(axis=1)).all():
        raise RequestError("logits_RV: a row has no distribution; distribution() of each row tells why")
    return _shares(logits_RV, config)


def _shares(scores: Floats, config: GenerateConfig) -> Floats:
    """Temperature, top-k, top-p and min-p for scores [..., V], of which the highest are finite."""
    if config.temperature == 0:
        best: Floats = (np.arange(scores.shape[-1]) == scores.argmax(axis=-1, keepdims=True)).astype(
            np.float64
        )
        return best
    # The maximum becomes 0 before anything is divided: a tiny temperature then gives 0 and -inf, not NaN.
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores.max(axis=-1, keepdims=True)) / config.temperature)
    if config.top_k or config.top_p < 1:
        ranked = np.argsort(-scores, axis=-1, kind="stable")
        kept = np.take_along_axis(weights, ranked, axis=-1)
        if config.top_k:
            kept[..., config.top_k :] = 0.0
        if config.top_p < 1:
            sums = kept.cumsum(axis=-1)
            # What comes after the first id with which the sum is large enough.
            kept[..., 1:][sums[..., :-1] >= config.top_p * sums[..., -1:]] = 0.0
        np.put_along_axis(weights, ranked, kept, axis=-1)
    if config.min_p:
        # The best weight is 1, so the share of the best is the weight itself.
        weights[weights < config.min_p] = 0.0
    probabilities: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def penalizes(config: GenerateConfig) -> bool:
    """Whether any logits are lowered at all."""
    return config.repeat_penalty != 1 or config.presence_penalty != 0 or config.frequency_penalty != 0


def penalized(logits_V: Floats, known: Sequence[int], config: GenerateConfig) -> Floats:
    """Logits (float64 [V]) with those of recent tokens lowered, as llama.cpp lowers them.

    `known`: the tokens that the model sees; the last `repeat_last_n` are recent. An id that occurs n > 0
    times among them: its logit is divided by `repeat_penalty` if positive, else multiplied by it (Keskar et
    al., 2019), then loses `presence_penalty + n * frequency_penalty`. Without penalties nothing changes.
    """
    count = len(known) if config.repeat_last_n == -1 else config.repeat_last_n
    if not penalizes(config) or not count or not known:
        return logits_V
    ids, times = np.unique(np.asarray(known[-count:], dtype=np.int64), return_counts=True)
    lowered_V = logits_V.copy()
    of_ids = lowered_V[ids]
    of_ids = np.where(of_ids > 0, of_ids / config.repeat_penalty, of_ids * config.repeat_penalty)
    lowered_V[ids] = of_ids - config.presence_penalty - times * config.frequency_penalty
    return lowered_V


def uniform(seed: int, number: int) -> float:
    """The uniform number in [0, 1) of draw `number` of a generation; a function of the two alone.

    53 bits of BLAKE2b, so equal on every machine. Raises RequestError unless both are integers >= 0.
    """
    for name, value in (("seed", seed), ("number", number)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RequestError(f"{name} is {value!r}, expected an integer of at least 0")
    digest = hashlib.blake2b(f"tinylm draw {seed} {number}".encode("ascii"), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def draw(probabilities_V: Floats, u: float) -> int:
    """The id at `u` in [0, 1) of the cumulative distribution; never an id of probability 0.

    `probabilities_V`: float64 [V], at least one above 0; they need not sum to 1 exactly. Raises
    RequestError for anything else.
    """
    check_shape(probabilities_V, "V", name="probabilities_V", kind="float")
    if not 0 <= u < 1:
        raise RequestError(f"u is {u!r}, expected a number from 0 to below 1")
    sums = probabilities_V.cumsum(dtype=np.float64)
    total = float(sums[-1]) if sums.size else 0.0
    if not 0 < total < np.inf or probabilities_V.min() < 0:
        raise RequestError(
            f"probabilities_V: the sum is {total:g}, expected numbers of at least 0 with a sum above 0; "
            "give what distribution() returns"
        )
    # "right" skips ids that add nothing to the sum; u * total, rounded up, must not pass the last one.
    if u * total < total:
        return int(sums.searchsorted(u * total, "right"))
    return int(sums.searchsorted(total))


def draws(probabilities_RV: Floats, u_R: Sequence[float]) -> list[int]:
    """The id that `draw` gives for each row of what `distributions` returns and its number in [0, 1)."""
    sums_RV = probabilities_RV.cumsum(axis=1, dtype=np.float64)
    totals_R = sums_RV[:, -1]
    # As in `draw`: the sums that are not above u times the total are counted.
    at_R = np.minimum(u_R * totals_R, np.nextafter(totals_R, 0.0))
    found: list[int] = (sums_RV <= at_R[:, None]).sum(axis=1).tolist()
    return found


def allowed_after(held: bytes, room: int | None = None) -> Mask:
    """Which ids (bool [257]) may follow `held`, the begun bytes of a character, in well-formed UTF-8.

    A document ends between characters only, so the boundary is allowed when nothing is held. `room`: how
    many tokens may still be drawn, this one included; with it only characters that still fit may begin.
    Drawing every byte of a generation under this mask, with its `room`, gives whole well-formed UTF-8.
    Raises RequestError if nothing can follow.
    """
    allowed_V = np.zeros(VOCABULARY_SIZE, dtype=np.bool_)
    for form in UTF8_FORMS:
        begun = len(held) < len(form) and all(
            low <= byte <= high for byte, (low, high) in zip(held, form, strict=False)
        )
        if begun and (room is None or len(form) - len(held) <= room):
            low, high = form[len(held)]
            allowed_V[low : high + 1] = True
    allowed_V[DOC_BOUNDARY] = not held and (room is None or room > 0)
    if not allowed_V.any():
        space = "" if room is None else f" in {room} tokens"
        raise RequestError(
            f"held bytes {held.hex(' ')!r}: no id can complete a character{space}; "
            "give only the bytes of the character that is not complete yet"
        )
    return allowed_V
