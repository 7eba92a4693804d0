"""What to change, in plain words: where a run does not fit, and where its time goes into waiting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinylm.config import parameter_count
from tinylm.config.checked import MOST
from tinylm.config.plan import TOKENS_PER_PARAMETER
from tinylm.plan.memory import memory
from tinylm.plan.words import amount

if TYPE_CHECKING:
    from tinylm.plan.predict import Prediction

WAITING = 0.2
"""A larger share of a step than this, spent without forward or backward passes, is worth a word."""
FULL = 8192
"""Tokens in a forward pass below which a GPU has pauses between kernels of a small model."""


def advice(plan: Prediction) -> list[str]:
    """Sentences for the user, those about memory first; none where there is nothing to say."""
    said = [] if plan.fits else no_room(plan)
    config, time, ranks = plan.config, plan.time, plan.config.gpus
    if time.waiting > WAITING * time.total:
        less = "; without --shard less is sent" if config.shard and replicated_fits(plan) else ""
        said.append(
            f"{time.waiting / time.total:.0%} of a step waits for the network: with more rows a step, as in "
            f"--batch-rows {2 * plan.batch_rows}, it waits more seldom{less}"
        )
    if time.optimizer > WAITING * time.total:
        where = "on every rank alike" if ranks > 1 and not config.shard else "on each rank"
        way = "more rows a step spread it over more tokens"
        if ranks > 1 and not config.shard:
            way = f"--shard divides it by {ranks}, {way}"
        said.append(
            f"{time.optimizer / time.total:.0%} of a step is the optimizer's, {where}"
            + (" (Muon's products are float32)" if config.muon else "")
            + f": {way}"
        )
    passed = plan.micro_rows * plan.model.window
    if plan.hardware.overlaps and not plan.hardware.measured and passed < FULL:
        said.append(
            f"a forward pass of {passed:,} tokens may not fill the device: measure the utilisation of "
            f"{plan.hardware.utilisation:g} that is assumed, with --device here on one"
        )
    each = plan.tokens / parameter_count(plan.model)
    if each < TOKENS_PER_PARAMETER / 2:
        said.append(
            f"{each:.1f} tokens for each parameter are few (Hoffmann et al., 2022, found about "
            f"{TOKENS_PER_PARAMETER} for tokens of several bytes, and a byte tells less): a smaller preset "
            "gets further with them"
        )
    return said


def no_room(plan: Prediction) -> list[str]:
    """How it would fit: fewer rows at once, sharding, more ranks, a shorter window."""
    config, kept = plan.config, plan.memory
    over = (
        f"{amount(kept.peak)} do not fit the {amount(plan.limit)} that a run may fill of "
        f"{amount(plan.hardware.memory)}"
    )
    ranks, tried = config.gpus, [(config.gpus, config.shard), (config.gpus, True)]
    while ranks < MOST:
        ranks *= 2
        tried.append((ranks, True))
    for ranks, shard in tried if config.gpus > 1 else [(1, config.shard), *tried[2:]]:
        batch_rows = -(-plan.batch_rows // ranks) * ranks
        for rows in divisors(batch_rows // ranks):
            if (needed := peak(plan, ranks, rows, shard, batch_rows)) <= plan.limit:
                flags = [f"--gpus {ranks}"] * (ranks != config.gpus)
                flags += ["--shard"] * (shard and not config.shard)
                flags += [f"--batch-rows {batch_rows}"] * (ranks != config.gpus)
                return [f"{over}: {' '.join([*flags, f'--micro-rows {rows}'])} does, with {amount(needed)}"]
    per_row = kept.backward - kept.states - kept.casts - kept.buffers
    if per_row // plan.micro_rows > plan.limit / 2:
        return [
            f"{over}, on any number of ranks: one row of {plan.model.window:,} tokens takes "
            f"{amount(per_row / plan.micro_rows)}; use a smaller --window"
        ]
    return [f"{over}, on any number of ranks: use a device with more memory (--device), or a smaller model"]


def peak(plan: Prediction, ranks: int, rows: int, shard: bool, batch_rows: int) -> int:
    """The memory that the plan would take with these ranks and rows at once."""
    return memory(
        plan.model,
        ranks,
        rows,
        micro_batches=batch_rows // ranks // rows,
        shard=shard,
        muon=plan.config.muon,
        precision=plan.precision,
        compiled=plan.compiled,
    ).peak


def replicated_fits(plan: Prediction) -> bool:
    """Whether every rank could hold everything."""
    return peak(plan, plan.config.gpus, plan.micro_rows, False, plan.batch_rows) <= plan.limit


def divisors(number: int) -> list[int]:
    """All divisors, the largest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, reverse=True)
